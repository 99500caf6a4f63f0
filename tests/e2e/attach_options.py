#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_options.py - a move by attaching with precopy=1, and with fallback=go, of Debian's QEMU; limit: 240 s"""
import os
import re
import signal

import common
from attaching import Move, Parent, folder_there, logged, side_here, side_there
from common import Failed, check_ledger, say, wait_for
from farfork_move import Process, There, check_here, pid_there, say_phases, there
from forked import SLOW, alive
from move_fallback import TAKE_BACK, Disk, Fence, back, io, release_as_told

MIB = 128
BALLOON = ('-device', 'virtio-balloon-pci')


def check_not_logged(guest):
    """Nothing of the log of its writes is left in its QEMU."""
    pid = guest.proc.pid
    fds = [os.readlink(f'/proc/{pid}/fd/{fd}') for fd in os.listdir(f'/proc/{pid}/fd')]
    with open(f'/proc/{pid}/smaps', encoding='ascii') as f:
        flags = [line for line in f if line.startswith('VmFlags:') and ' uw' in line]
    if flags or any('userfaultfd' in fd for fd in fds):
        raise Failed(f'left in the QEMU here: {flags} {fds}')


def precopied(t, accel, memory, devices=()):
    """All memory comes once, what the guest writes meanwhile again; a move that fails leaves nothing here."""
    with Parent(t, accel, memory, devices=devices, mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a, '--options', 'precopy=1', faults='dest.ready=fail@1') as m:
            m.end(1, 'here', 'ready: injected')
            check_here(m, a)
            check_not_logged(a)
        with Move(t, a, '--options', 'precopy=1', faults='dest.prefill=delay:5000') as m:
            with there(t, f'precopied-{memory}', m.end(0, 'there')) as b:
                check_ledger(a, b, sweeps=1)
            with open(folder_there(m) + '/2.log', encoding='utf-8') as f:
                came, gone = map(int, re.search(r'precopied_bytes=(\d+) discarded_bytes=(\d+)', f.read()).groups())
            if came != m.result['bytes']['total'] or not 0 < gone < came:
                raise Failed(f'{came} bytes came while the guest ran, {gone} of them were discarded')
            say(f'      {gone >> 20} of {came >> 20} MiB again')
            say_phases(m)


def state_of(pid):
    with open(f'/proc/{pid}/stat', encoding='ascii') as f:
        return f.read().rsplit(')', 1)[1].split()[0]


def taken_back(t, accel, memory, victim):
    """--fallback go: it dies after GO, and no QEMU there outlives it: the guest is here as it was, with its disk."""
    disk, fence = Disk(t, 'qcow2'), Fence(t, f'attach-{memory}')
    with Parent(t, accel, memory, devices=disk.options, mem_mib=MIB) as a:
        a.start_load()
        io(a, 'write -P 7 0 64k')
        with Move(t, a, *back(fence), *disk.args, faults=SLOW) as m:
            wait_for('the guest there', 20, lambda: m.proc.poll() is None and logged(m, 'running'))
            qemu = pid_there(m)
            os.kill(victim(m), signal.SIGKILL)
            wait_for('the end of the QEMU there', 10, lambda: not alive(qemu))
            m.end(1, 'here', 'taken back')
            check_here(m, a)
        if disk.has_overlays() or not fence.was_run():
            raise Failed(f'{os.listdir(disk.folder)}, fence {fence.was_run()}')
        io(a, 'read -P 7 0 64k', 'write -P 9 1M 64k')
        check_ledger(a, sweeps=1)


def without_lease(t, accel):
    """--fallback go: the source is not heard: the guest there stands still, whatever its monitor is told. Then it goes on."""
    disk, fence = Disk(t, 'raw'), Fence(t, 'attach-lease')
    with Parent(t, accel, 'memfd', devices=disk.options, mem_mib=MIB) as a:
        a.start_load()
        io(a, 'write -P 7 0 64k')
        with Move(t, a, *back(fence), *disk.args, faults=SLOW) as m:
            wait_for('the guest there', 20, lambda: m.proc.poll() is None and logged(m, 'running'))
            here, qemu = side_here(m), pid_there(m)
            os.kill(here, signal.SIGSTOP)
            wait_for('a QEMU there that stands still', 20, lambda: logged(m, 'no-lease'))
            if state_of(qemu) != 'T':
                raise Failed(f'the QEMU there is {state_of(qemu)}')
            os.kill(here, signal.SIGCONT)
            with there(t, 'lease', m.end(0, 'there')) as b:
                if disk.has_overlays() or fence.was_run():
                    raise Failed(f'{os.listdir(disk.folder)}, fence {fence.was_run()}')
                io(b, 'read -P 7 0 64k', 'write -P 8 0 64k')
                check_ledger(a, b, sweeps=1)


def source_dies(t, accel):
    """--fallback go: the guest there stands still from the end of its lease on, until somebody says that it never goes back."""
    fence = Fence(t, 'attach-source')
    with Parent(t, accel, 'anon', mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a, *back(fence), '--timeout', '5', faults=SLOW) as m:
            wait_for('the guest there', 20, lambda: m.proc.poll() is None and logged(m, 'running'))
            os.kill(side_here(m), signal.SIGKILL)
            m.end(3, 'broken', 'stands still from the end of its lease on')
            qemu = m.result['pid']
            wait_for('a QEMU there that stands still', 20, lambda: state_of(qemu) == 'T')
            release_as_told(m)
            wait_for('a QEMU there that goes on', 20, lambda: state_of(qemu) != 'T')


class Side(There):
    """The process beside the QEMU here, which answers commands of a source."""

    def __init__(self, m):
        # pylint: disable=super-init-not-called
        self.name, self.events, self.pending = 'the process here', [], b''
        self.sock_path, self.qmp_sock, self.proc = f'{m.base}/{m.name}/source/qmp', None, Process(side_here(m))

    @property
    def tail(self):
        return ''


def fence_fails(t, accel):
    """It runs nowhere, and stands still here, until somebody who has ended the QEMU there says so."""
    fence = Fence(t, 'attach-fence')
    fence.ends_with(3)
    with Parent(t, accel, 'anon', mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a, *back(fence), faults='dest.running=kill') as m:
            m.end(3, 'unclear', 'runs nowhere')
            notes = [n for n in m.result['notes'] if 'source/qmp' in n]
            if state_of(a.proc.pid) != 't' or not notes:
                raise Failed(f'the QEMU here is {state_of(a.proc.pid)}; {m.result["notes"]}')
            fence.ends_with(0)
            with Side(m) as side:
                said = common.refuses(side, 'was sent to', TAKE_BACK, uri='rdma-postcopy:127.0.0.1:1')
                side.qmp(TAKE_BACK, uri=said.split('was sent to ')[1].split(',')[0])
            wait_for('a guest that runs', 40, lambda: state_of(a.proc.pid) != 't')
            check_ledger(a, sweeps=1)


def run(t):
    accel = t.best_accel()
    for name, case in (
            ('precopy=1, anonymous', lambda: precopied(t, accel, 'anon')),
            ('precopy=1, memfd', lambda: precopied(t, accel, 'memfd', BALLOON)),
            ('fallback go, the QEMU there dies', lambda: taken_back(t, accel, 'anon', pid_there)),
            ('fallback go, who attaches there is killed', lambda: taken_back(t, accel, 'memfd', side_there)),
            ('fallback go, the source dies', lambda: source_dies(t, accel)),
            ('fallback go, the fence fails', lambda: fence_fails(t, accel)),
            ('fallback go, the source is not heard', lambda: without_lease(t, accel))):
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=240)
