#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""proxy_guests.py - two farfork proxy move guests of other kinds than proxy_move.py; limit: 180 s

Huge pages, memory in files that held something else, four CPUs, Linux with its disk and its
network, a QEMU that would have sent everything before post-copy began; and what is refused.
--others: every kind of memory with each version of QEMU, and from an older to a newer one; limit:
580 s.
"""
import contextlib
import os
import shutil
import subprocess
import sys

import common
import move_linux
from common import PAGE, Failed, Linux, Skip, check_ledger, say, status
from proxies import second_monitor
from proxy_move import (alike, check_here, check_moved, check_said, ends, happy, one_side, pair,
                        proxies, say_counts)
from refuse import pmem
from stock_stream import KINDS, OTHERS, needs, version
from stocks import NEWEST, OLDEST, TRIXIE, qemu_of

MIB = 64
FEW = 'report_ms=400 sweep=1 wss=20'    # few pages are touched: what is in the others counts, too


def named(t, *words):
    """Files of no other case"""
    return '-'.join([str(len(t.passed) + len(t.failed)), *words]).replace(' ', '-')


def huge_for(t, *memories):
    if any('hugetlb' in m for m in memories):
        t.reserve_huge(2 * MIB)


def running(t, memory, stock=OLDEST, **more):
    huge_for(t, memory)
    happy(t, stock, memory, name=named(t, memory), mib=MIB, **more)


# --- every byte ---

def ram(t, guest):
    path = f'{t.work}/{guest.name}.ram'
    guest.qmp('pmemsave', val=0, size=guest.mem_mib << 20, filename=path)
    with open(path, 'rb') as f:
        data = f.read()
    os.unlink(path)
    return [data[i:i + PAGE] for i in range(0, len(data), PAGE)]


def fill(t, guest, byte):
    """Its memory's file holds something already"""
    with open(f'{t.work}/{guest.name}.mem', 'wb') as f:
        f.write(byte * (guest.mem_mib << 20))


def every_byte(t, memory, stock=OLDEST, faults=None):
    """Of a paused guest, untouched memory too; then it runs."""
    huge_for(t, memory)
    a, b = pair(t, named(t, memory, 'bytes'), memory, stock, MIB, load=FEW)
    if 'file' in memory:
        fill(t, a, b'A')
        fill(t, b, b'B')
    with a, b:
        a.start_load()
        a.qmp('stop')
        was = ram(t, a)
        with proxies(t, a, b, faults=(faults, None)) as (here, there):
            here.end(0)
            there.end(0)
        now = ram(t, b)
        wrong = [i for i, page in enumerate(was) if page != now[i]]
        if len(was) != len(now) or wrong:
            raise Failed(f'{len(wrong)} of {len(was)} pages differ, from page {wrong[:1]} on')
        say(f'      {sum(not any(page) for page in was)} of {len(was)} pages are zeros')
        if status(b) != 'paused':
            raise Failed(f'{b.name} is {status(b)}, want paused')
        b.qmp('cont')
        check_ledger(a, b, sweeps=1)


def private_huge(t):
    """What is there cannot be told there; to read it here is no trouble."""
    huge_for(t, 'hugetlb')
    a = pair(t, named(t, 'private'), 'private hugetlb', OLDEST, MIB)[0]
    b = pair(t, named(t, 'shared'), 'hugetlb', OLDEST, MIB)[1]
    wrong = pair(t, named(t, 'wrong'), 'private hugetlb', OLDEST, MIB)[1]
    with a:
        a.start_load()
        with wrong:
            ends(t, wrong, 'destination', 'private huge pages (want share=on')
            if status(wrong) != 'inmigrate':
                raise Failed(f'the QEMU there is {status(wrong)}')
        with b, proxies(t, a, b) as (here, there):
            check_moved(a, b, here, there)


def vhost_user(t):
    """Both proxies see it before the guest stops."""
    daemon = shutil.which('qemu-storage-daemon')
    if not daemon:
        raise Skip('no qemu-storage-daemon: apt-get install qemu-system-common')
    disk = f'{t.work}/vhost-user.disk'
    with open(disk, 'wb') as f:
        f.truncate(8 << 20)
    with contextlib.ExitStack() as stack:
        for side, incoming in (('source', False), ('destination', True)):
            path = f'{t.work}/{side}.vhost-user'
            backend = subprocess.Popen(
                [daemon, '--blockdev', f'driver=file,node-name=d,filename={disk},locking=off',
                 '--export', 'type=vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path='
                 + path])
            stack.callback(backend.wait, 10)
            stack.callback(backend.kill)
            common.wait_for('a backend', 10, lambda p=path: os.path.exists(p))
            guest = stack.enter_context(one_side(
                t, f'{side}-vhost-user', 'memfd', OLDEST, 'pc', incoming, mem_mib=MIB,
                extra=('-chardev', f'socket,id=c,path={path}',
                       '-device', 'vhost-user-blk-pci,chardev=c')))
            ends(t, guest, side, 'vhost-user-blk-pci')
            if status(guest) != ('inmigrate' if incoming else 'running'):
                raise Failed(f'{guest.name} is {status(guest)}')


def not_saved(t):
    """QEMU would leave its state behind, without a word."""
    for side, incoming in (('source', False), ('destination', True)):
        with one_side(t, f'{side}-pmem', 'memfd', OLDEST, 'pc', incoming, mem_mib=MIB,
                      extra=pmem(t.work, side)) as guest:
            ends(t, guest, side, "'dev: virtio-pmem-pci")


def does_not_load(t, stock=OLDEST):
    """The destination lacks a device: the guest goes on here, and its disk can be written."""
    source, destination, machine = alike(stock)
    name, disk = named(t, 'load'), f'{t.work}/{named(t, "disk")}'
    with open(disk, 'wb') as f:
        f.truncate(1 << 20)
    extra = ('-drive', f'file={disk},format=raw,if=none,id=d0',
             '-device', 'virtio-blk-pci,drive=d0,share-rw=on')
    with one_side(t, f'a-{name}', 'memfd', source, machine, False, mem_mib=MIB,
                  extra=(*extra, '-device', 'virtio-balloon-pci')) as a, \
            one_side(t, f'b-{name}', 'memfd', destination, machine, True, mem_mib=MIB,
                     extra=extra) as b:
        a.start_load()
        with proxies(t, a, b) as (here, there):
            here.wait('package')
            check_here(a, here, there)
        said = common.hmp(a, 'qemu-io d0 "write -P 7 0 4k"')    # QEMU 7.2 says nothing of success
        with open(disk, 'rb') as f:
            if f.read(4096) != b'\7' * 4096:
                raise Failed(f'its disk cannot be written: {said}')
        check_ledger(a, sweeps=1)


# --- Linux ---

class StockLinux(Linux):
    """In Debian's QEMU, with a monitor for its proxy, and a screen's memory, which is not main"""
    stock = {}      # of each

    @property
    def mem_mib(self):
        return self.s.memory_mib

    def argv(self, incoming):
        return [qemu_of(self.stock[self.name]), *super().argv(incoming)[1:], '-device', 'VGA',
                *second_monitor(self.s.workdir, self.name)]


def linux(t, memory, stock=OLDEST, **more):
    """Its disk, its network and a client outside go on."""
    source, destination, machine = alike(stock, 'q35')

    class Version(StockLinux):
        stock = {'a': source, 'b': destination}

    def by_proxies(a, b):
        with proxies(t, a, b) as (here, there):
            say_counts(*check_said(a, b, here, there))
    move_linux.under_load(t, common.linux_settings(t, named(t, 'linux'), memory=memory,
                                                   machine=machine, **more), by_proxies, Version)


def run(t):
    for memory in ('hugetlb', 'file'):
        with t.case(f'a move, {memory}'):
            running(t, memory)
    with t.case('a move, 4 CPUs'):
        running(t, 'memfd', smp=4)
    for memory in ('hugetlb', 'file', 'private file'):
        with t.case(f'every byte of a paused guest, {memory}'):
            every_byte(t, memory)
    with t.case('post-copy begins late'):
        every_byte(t, 'memfd', faults='proxy.postcopy=delay:1000000')
    with t.case('private huge pages at the destination'):
        private_huge(t)
    with t.case('the state does not load there'):
        does_not_load(t)
    with t.case('vhost-user'):
        vhost_user(t)
    with t.case('virtio-pmem'):
        not_saved(t)
    with t.case('Linux, 4 CPUs, qcow2'):
        linux(t, 'memfd', smp=4, iothread=True, disk_format='qcow2')


def run_others(t):
    for stock in OTHERS:
        pair_of = f'{version(stock[0])} to {version(stock[1])}'
        for memory in KINDS:
            with t.case(f'a move, {pair_of}, {memory}'):
                running(t, memory, stock)
        with t.case(f'a move, {pair_of}, 4 CPUs'):
            running(t, 'anon', stock, smp=4)
        for memory in ('hugetlb', 'file', 'private file'):
            with t.case(f'every byte of a paused guest, {pair_of}, {memory}'):
                every_byte(t, memory, stock)
        with t.case(f'post-copy begins late, {pair_of}'):
            every_byte(t, 'memfd', stock, 'proxy.postcopy=delay:1000000')
        with t.case(f'the state does not load there, {pair_of}'):
            does_not_load(t, stock)
        with t.case(f'Linux, {pair_of}'):
            if stock[:2] == (TRIXIE, NEWEST):
                raise Skip("11.1.3 takes no virtio-console of 10.0, by QEMU's own migration either")
            linux(t, 'anon', stock)
    with t.case('Linux, vhost=on'):
        move_linux.need_vhost()
        linux(t, 'memfd', vhost=True)


if __name__ == '__main__':
    if '--others' in sys.argv:
        common.main(run_others, 580, lambda: needs(OLDEST, TRIXIE, NEWEST))
    common.main(run, 180, lambda: needs(OLDEST))
