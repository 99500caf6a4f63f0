#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_guests.py - farfork move of guests of other kinds than attach_move.py's; limit: 190 s

Huge pages, memory in files, four CPUs, q35, QEMU's own sandbox, Linux with its disk and its network under load;
and what is refused, by name. --others: every kind of memory with each version of QEMU, and from an older to a
newer one; limit: 580 s.
"""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

import common
import move_linux
from attaching import Move, Parent, check_left_here
from common import PAGE, Failed, Linux, Skip, check_ledger, say, status, wait_for
from farfork_move import check_here, say_phases, there
from forked import kill
from refuse import pmem
from stocks import KINDS, NEWEST, OLDEST, OTHERS, TRIXIE, Stock, qemu_of, version

MIB = 64
MICRO_ARM64 = os.path.join(common.BUILD, 'guests', 'micro-arm64.elf')
FEW = 'report_ms=400 sweep=1 wss=20'    # few pages are touched: what is in the others counts, too
SANDBOX = ('-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny')   # as libvirt's


def parent(t, memory, stock=OLDEST, **more):
    if 'hugetlb' in memory:
        t.reserve_huge(2 * MIB)
    with contextlib.suppress(FileNotFoundError):    # of the case before
        os.unlink(f'{t.work}/parent.console')
    return Parent(t, t.best_accel(), memory, stock=stock, mem_mib=MIB, **more)


@contextlib.contextmanager
def moved(t, a, *args):
    """The guest there."""
    with Move(t, a, *args) as m:
        name = f'there-{len(t.passed) + len(t.failed)}'
        with there(t, name, m.end(0, 'there')) as b:
            b.mem_mib = a.mem_mib
            yield b
        check_left_here(a)
        say_phases(m)
        kill(m.base, m.name)


def moves(t, memory, *args, **more):
    with parent(t, memory, **more) as a:
        a.start_load()
        with moved(t, a, *args) as b:
            check_ledger(a, b, sweeps=1)


# --- every byte ---

def ram(t, guest):
    path = f'{t.work}/{guest.name}.ram'
    guest.qmp('pmemsave', val=0, size=guest.mem_mib << 20, filename=path)
    with open(path, 'rb') as f:
        data = f.read()
    os.unlink(path)
    return [data[i:i + PAGE] for i in range(0, len(data), PAGE)]


def every_byte(t, memory, *args, **more):
    """Of a paused guest, untouched memory too, where a file held something before; then it runs."""
    a = parent(t, memory, load=FEW, **more)
    if 'file' in memory:
        with open(f'{t.work}/parent.mem', 'wb') as f:
            f.write(b'A' * (MIB << 20))
    with a:
        a.start_load()
        a.qmp('stop')
        was = ram(t, a)
        with moved(t, a, *args) as b:
            now = ram(t, b)
            wrong = [i for i, page in enumerate(was) if page != now[i]]
            if len(was) != len(now) or wrong:
                raise Failed(f'{len(wrong)} of {len(was)} pages differ, from page {wrong[:1]} on')
            say(f'      {sum(not any(page) for page in was)} of {len(was)} pages are zeros')
            if status(b) != 'paused':
                raise Failed(f'it is {status(b)} there, want paused')
            b.qmp('cont')
            check_ledger(a, b, sweeps=1)


# --- transparent huge pages ---

def thp_kib(pid):
    with open(f'/proc/{pid}/smaps_rollup', encoding='ascii') as f:
        return next(int(line.split()[1]) for line in f if line.startswith('AnonHugePages'))


def thp(t):
    with open('/sys/kernel/mm/transparent_hugepage/enabled', encoding='ascii') as f:
        if '[never]' in f.read():
            raise Skip('transparent_hugepage is never: write madvise to /sys/kernel/mm/transparent_hugepage/enabled')
    with parent(t, 'anon') as a:
        a.start_load()
        if thp_kib(a.proc.pid) < MIB << 9:
            raise Skip(f'the kernel gives no huge pages now: {thp_kib(a.proc.pid)} KiB')
        with moved(t, a) as b:
            check_ledger(a, b, sweeps=1)


# --- what is refused ---

def refused(t, memory, text, *devices):
    """By name, and the guest goes on here."""
    with parent(t, memory, devices=devices) as a:
        a.start_load()
        with Move(t, a) as m:
            m.end(1, 'here', text)
            check_here(m, a)


def private_huge(t):
    """In a QEMU that somebody has started there: farfork move makes them shared."""
    t.reserve_huge(2 * MIB)
    second = f'{t.work}/there.second'
    with Stock(t, 'there', t.best_accel(), 'private hugetlb', mem_mib=MIB, incoming=True,
               extra=('-qmp', f'unix:{second},server=on,wait=off')) as b:
        b.second = second
        there_by = Side(t, b, 'destination', '127.0.0.1:0', '--connect', f'{second}.in')
        if there_by.proc.wait(30) != 1 or 'private huge pages (want share=on' not in there_by.said():
            raise Failed(f'{there_by.proc.returncode}: {there_by.said()}')


def vhost_user(t):
    daemon = shutil.which('qemu-storage-daemon')
    if not daemon:
        raise Skip('no qemu-storage-daemon: apt-get install qemu-system-common')
    disk, path = f'{t.work}/vhost-user.disk', f'{t.work}/vhost-user.socket'
    with open(disk, 'wb') as f:
        f.truncate(8 << 20)
    with subprocess.Popen([daemon, '--blockdev', f'driver=file,node-name=d,filename={disk},locking=off', '--export',
                           f'type=vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={path}']) as backend:
        try:
            wait_for('a backend', 10, lambda: os.path.exists(path))
            refused(t, 'memfd', 'vhost-user', '-chardev', f'socket,id=c,path={path}', '-device',
                    'vhost-user-blk-pci,chardev=c')
        finally:
            backend.kill()


# --- another processor ---

class Arm(common.Micro):
    """The micro guest of qemu-system-aarch64, under TCG."""

    def __init__(self, t, memory, stock=OLDEST, machine='virt', smp=1):
        self.second = os.path.join(t.work, 'parent.second')
        options, backend = common.backend(memory, MIB)
        super().__init__(t, 'parent', 'tcg')
        self.mem_mib = MIB
        self.argv = [qemu_of(stock, 'aarch64'), '-nodefaults', '-display',
                     'none', '-no-reboot', '-machine', machine + options, '-cpu', 'cortex-a57', '-smp', str(smp), '-m',
                     f'{MIB}M', '-kernel', MICRO_ARM64, '-append', common.LOAD, '-serial', 'file:' + self.console,
                     *backend]
        for path in (self.sock_path, self.second):
            self.argv += ['-qmp', f'unix:{path},server=on,wait=off']


def arm(t, memory, *args, **more):
    with contextlib.suppress(FileNotFoundError):    # of the case before
        os.unlink(f'{t.work}/parent.console')
    with Arm(t, memory, **more) as a:
        a.start_load()
        with moved(t, a, *args) as b:
            check_ledger(a, b, sweeps=1)


# --- Linux ---

class StockLinux(Linux):
    """In Debian's QEMU, with a socket for who attaches, and a screen's memory."""
    stock = {}      # of each

    @property
    def second(self):
        return os.path.join(self.s.workdir, f'{self.name}.second')

    def argv(self, incoming):
        return [qemu_of(self.stock[self.name]), *super().argv(incoming)[1:], '-device', 'VGA', '-qmp',
                f'unix:{self.second},server=on,wait=off']


class Side:
    """A farfork attach, started by hand."""

    def __init__(self, t, guest, side, address, *args):
        # pylint: disable=consider-using-with
        self.side = side
        self.log = open(f'{t.work}/{guest.name}.{side}', 'w+', encoding='utf-8')
        self.proc = subprocess.Popen([common.FARFORK, 'attach', f'--{side}', '--json', '--qmp', guest.second, *args, address],
                                     stdout=self.log, stderr=self.log)
        t.at_end.callback(self.proc.kill)

    def said(self):
        with open(self.log.name, encoding='utf-8') as f:
            return f.read()

    def event(self, name):
        for line in self.said().splitlines():
            with contextlib.suppress(ValueError):
                o = json.loads(line)
                if o.get('event') == name:
                    return o
        return None

    def end(self):
        if self.proc.wait(60):
            raise Failed(f'farfork attach --{self.side} ended with {self.proc.returncode}: {self.said()[-600:]}')


class Ended:
    """The QEMU here has ended already."""

    def quit(self):
        """Nothing is left to do."""


def begin_by_hand(t, a, b):
    dest = Side(t, b, 'destination', '127.0.0.1:0', '--connect', f'{b.second}.in')
    wait_for('its port', 20, lambda: dest.event('listening') or dest.proc.poll() is not None)
    if not dest.event('listening'):
        raise Failed(dest.said())
    return dest, Side(t, a, 'source', f'127.0.0.1:{dest.event("listening")["port"]}')


def by_hand(t, a, b):
    dest, source = begin_by_hand(t, a, b)
    source.end()
    dest.end()
    if a.process.wait(20) != -signal.SIGKILL:
        raise Failed(f'the QEMU here was not ended: {a.process.returncode}')
    return Ended()


def does_not_load(t):
    """The QEMU there lacks a device: the guest goes on here, which hears why, and its disk can be written."""
    disk, second = f'{t.work}/disk', f'{t.work}/there.second'
    with open(disk, 'wb') as f:
        f.truncate(1 << 20)
    has = ('-drive', f'file={disk},format=raw,if=none,id=d0', '-device', 'virtio-blk-pci,drive=d0,share-rw=on')
    with parent(t, 'memfd', devices=(*has, '-device', 'virtio-balloon-pci')) as a, \
            Stock(t, 'there', t.best_accel(), 'memfd', mem_mib=MIB, incoming=True,
                  extra=('-qmp', f'unix:{second},server=on,wait=off', *has)) as b:
        b.second = second
        a.start_load()
        dest, source = begin_by_hand(t, a, b)
        if source.proc.wait(60) != 1 or dest.proc.wait(60) != 1:
            raise Failed(f'{source.proc.returncode}, {dest.proc.returncode}: {source.said()}')
        why = source.event('failed')['reason']
        if 'has ended' not in why:          # QEMU 7.2 does, and its own last words are in its log
            raise Failed(f'the source does not hear why: {why}')
        say(f'      {why}')
        said = common.hmp(a, 'qemu-io d0 "write -P 7 0 4k"')    # QEMU 7.2 says nothing of success
        with open(disk, 'rb') as f:
            if f.read(4096) != b'\7' * 4096:
                raise Failed(f'its disk cannot be written: {said}')
        check_ledger(a, sweeps=1)


def linux(t, memory, stocks=(OLDEST, OLDEST, 'q35'), **more):
    """Its disk, its network and a client outside go on. Processes beside the two QEMUs by hand: each has a tap of its own."""
    class Version(StockLinux):
        stock = dict(zip('ab', stocks))

    name = f'linux-{len(t.passed) + len(t.failed)}'
    move_linux.under_load(t, common.linux_settings(t, name, memory=memory, machine=stocks[2], **more),
                          lambda a, b: by_hand(t, a, b), Version)


def run(t):
    with t.case('aarch64, 4 CPUs'):
        arm(t, 'anon', smp=4)
    for memory in ('hugetlb', 'private hugetlb', 'file', 'private file'):
        with t.case(f'every byte of a paused guest, {memory}'):
            every_byte(t, memory)
    with t.case('-mem-path, a folder'):
        moves(t, 'anon', devices=('-mem-path', t.work))
    with t.case('q35, 4 CPUs, hugetlb'):
        moves(t, 'hugetlb', smp=4, machine='q35')
    with t.case('transparent huge pages'):
        thp(t)
    with t.case('-sandbox'):
        moves(t, 'anon', devices=SANDBOX)
    for name, case in (
            ('private huge pages', lambda: private_huge(t)),
            ('virtio-pmem', lambda: refused(t, 'memfd', 'virtio-pmem', *pmem(t.work, 'parent'))),
            ('ivshmem', lambda: refused(
                t, 'memfd', 'ivshmem', '-device', 'ivshmem-plain,memdev=shm', '-object',
                'memory-backend-memfd,id=shm,size=1M,share=on')),
            ('vhost-user', lambda: vhost_user(t))):
        with t.case('refused: ' + name):
            case()
    with t.case('the state does not load there'):
        does_not_load(t)
    with t.case('Linux, 4 CPUs, qcow2'):
        linux(t, 'memfd', smp=4, iothread=True, disk_format='qcow2')


def run_others(t):
    for source, destination, machine in OTHERS:
        pair = f'{version(source)} to {version(destination)}, {machine}'
        there_by, kind = ('--qemu', qemu_of(destination)), {'stock': source, 'machine': machine}
        for memory in KINDS:
            with t.case(f'a move, {pair}, {memory}'):
                moves(t, memory, *there_by, **kind)
        with t.case(f'a move, {pair}, 4 CPUs'):
            moves(t, 'anon', *there_by, smp=4, **kind)
        with t.case(f'every byte of a paused guest, {pair}, private file'):
            every_byte(t, 'private file', *there_by, **kind)
        with t.case(f'aarch64, {version(source)} to {version(destination)}'):
            if source != destination:
                raise Skip(f"{version(destination)} loads no CPU of {version(source)}, by QEMU's own migration either")
            arm(t, 'memfd', '--qemu', qemu_of(destination, 'aarch64'), stock=source)
        with t.case(f'Linux, {pair}'):
            if (source, destination) == (TRIXIE, NEWEST):
                raise Skip("11.1.3 takes no virtio-console of 10.0, by QEMU's own migration either")
            linux(t, 'anon', (source, destination, machine))
    with t.case('Linux, vhost=on'):
        move_linux.need_vhost()
        linux(t, 'memfd', vhost=True)


def needs(*stocks):
    common.need_userfaultfd()
    common.need_files(MICRO_ARM64, *(qemu_of(s, p) for s in stocks for p in ('x86_64', 'aarch64')))


if __name__ == '__main__':
    if '--others' in sys.argv:
        common.main(run_others, 580, lambda: needs(OLDEST, TRIXIE, NEWEST))
    common.main(run, 190, lambda: needs(OLDEST))
