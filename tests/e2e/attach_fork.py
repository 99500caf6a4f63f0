#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_fork.py - vmclone of a guest whose QEMU is Debian's own, by a process beside it; limit: 240 s

Parent and children go on with the ledger of the fork, whatever fails, and whoever is killed. What any fork does is in vmclone.py and
others, which are of that QEMU, too.
"""
import os
import signal
import subprocess
import time

import attach_guests
import common
from attaching import Parent, cmdline
from common import Failed, status, wait_for
from forked import ELSEWHERE, TWO_HOSTS, Child, Clone, ask, check_result, kill, say_phases, snapshot
from stocks import OLDEST, qemu_of

LOAD = 'report_ms=400 sweep=1'
MIB = 48                        # too much to be handed over
THERE = ('--qemu', qemu_of(OLDEST))   # of parent and children


def parent(t, memory, **more):
    if memory == 'hugetlb':
        t.reserve_huge(4 * MIB)
    return Parent(t, t.best_accel(), memory, stock=OLDEST, machine='pc-i440fx-7.2', mem_mib=MIB, load=LOAD, **more)


def frozen_of(pid):
    """Processes that hold memory of this one."""
    found = []
    for name in os.listdir('/proc'):
        if not name.isdigit():
            continue
        try:
            with open(f'/proc/{name}/stat', encoding='ascii', errors='replace') as f:
                head, rest = f.read().rsplit(')', 1)
        except OSError:
            continue
        if head.endswith('(farfork-frozen') and int(rest.split()[1]) == pid:
            found.append((int(name), rest.split()[0]))
    return found


def check_goes_on(a):
    if status(a) != 'running':
        raise Failed(f'the parent is {status(a)}')
    common.check_ledger(a, sweeps=1)


def forked(t, a, n, *args, name='f', there=THERE, **more):
    before = snapshot(a)
    with Clone(t, a, n, *there, *args, name=name, **more) as c:
        try:
            check_result(c, 0, {'complete': n})
            say_phases(c)
            for k in [Child(row, a) for row in c.children]:
                k.check(before)
        finally:
            kill(c.base, name)
    check_goes_on(a)
    wait_for('the end of the copy', 10, lambda: not frozen_of(a.proc.pid))
    return c


def twice(t, memory, *args, **more):
    """A second fork of one parent, to a host that is another."""
    with parent(t, memory) as a:
        a.start_load()
        c = forked(t, a, 1, *args, **more)
        if bool(sum(h['lent_bytes'] for h in c.result['hosts'])) != (memory == 'memfd'):
            raise Failed(f'lent: {c.result["hosts"]}')
        forked(t, a, 1, *ELSEWHERE, hosts=TWO_HOSTS[:1], name='again')


def beside(a):
    """The process that vmclone has started beside this QEMU."""
    return next(int(pid) for pid in os.listdir('/proc') if pid.isdigit()
                and f'attach\0--parent\0--qmp\0{a.second}' in cmdline(pid))


def fails(t, memory, faults, text):
    """Nothing is left, and it can be forked again."""
    with parent(t, memory) as a:
        a.start_load()
        with Clone(t, a, 1, *THERE, faults=faults) as c:
            check_result(c, 3, {'failed': 1})
            if text not in str(c.result):
                raise Failed(f'{c.result}')
        check_goes_on(a)
        forked(t, a, 1, name='again')


def stopped(a):
    """For longer than a system call takes that is made in it."""
    for _ in range(5):
        with open(f'/proc/{a.proc.pid}/stat', encoding='ascii') as f:
            if f.read().rsplit(')', 1)[1].split()[0] != 't':
                return False
        time.sleep(0.02)
    return True


def killed_in_pause(t, who):
    """The process beside it, or vmclone, is killed while the guest stands still."""
    with parent(t, 'anon') as a:
        a.start_load()
        with Clone(t, a, 1, *THERE, faults='attach.state=delay:1500000') as c:
            wait_for('the pause', 20, lambda: stopped(a))
            os.kill(c.proc.pid if who == 'vmclone' else beside(a), signal.SIGKILL)
            wait_for('the guest goes on', 20, lambda: not stopped(a) and status(a) == 'running')
            if who != 'vmclone':
                check_result(c, 3, {'failed': 1})
            else:
                c.proc.communicate(timeout=30)
        wait_for('the end of the copy', 20, lambda: not [x for x in frozen_of(a.proc.pid) if x[1] != 'Z'])
        check_goes_on(a)
        forked(t, a, 1, name='again')


def stood(t):
    """The children of a guest that stands still do, too; and it stays so."""
    with parent(t, 'memfd') as a:
        a.start_load()
        a.qmp('stop')
        with Clone(t, a, 1, *THERE) as c:
            check_result(c, 0, {'complete': 1})
            if status(a) != 'paused' or 'do not' not in str(c.result['notes']):
                raise Failed(f'{status(a)}, {c.result["notes"]}')
        a.qmp('cont')
        check_goes_on(a)


def balloon(t):
    """It may punch no hole in a file that children read."""
    with parent(t, 'memfd', devices=('-device', 'virtio-balloon-pci')) as a:
        a.start_load()
        before = snapshot(a)
        with Clone(t, a, 1, *THERE) as c:
            check_result(c, 0, {'complete': 1})
            Child(c.children[0], a).check(before)
        check_goes_on(a)


def taken_back(t):
    """No child loads: what the parent wrote meanwhile is in its own image again."""
    image = os.path.join(t.work, 'back.qcow2')
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', image, '4M'], check=True)
    devices = ('-drive', f'if=none,id=d0,format=qcow2,file={image}', '-device', 'virtio-blk-pci,drive=d0,id=v0')
    with parent(t, 'memfd', devices=devices) as a:
        a.start_load()
        with Clone(t, a, 1, *THERE, faults='child.loaded=fail') as c:
            check_result(c, 3, {'failed': 1})
        on = a.qmp('query-block')[0]['inserted']['image']['filename']
        if on != image:
            raise Failed(f'the parent writes to {on}')
        check_goes_on(a)


def disk_io(command, qmp=None, guest=None):
    line = {'command-line': f'qemu-io -d /machine/peripheral/v0/virtio-backend "{command}"'}
    out = guest.qmp('human-monitor-command', **line) if guest else ask(qmp, 'human-monitor-command', line)
    if 'fail' in out or 'error' in out.lower():
        raise Failed(f'{command}: {out}')


def disk(t):
    """Each has what the disk held at the fork, and what it wrote itself."""
    image = os.path.join(t.work, 'disk.qcow2')
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', image, '4M'], check=True)
    devices = ('-drive', f'if=none,id=d0,format=qcow2,file={image}', '-device', 'virtio-blk-pci,drive=d0,id=v0')
    with parent(t, 'anon', devices=devices) as a:
        a.start_load()
        disk_io('write -P 7 0 64k', guest=a)
        before = snapshot(a)
        with Clone(t, a, 2, *THERE) as c:
            try:
                check_result(c, 0, {'complete': 2})
                say_phases(c)
                disk_io('write -P 8 64k 64k', guest=a)
                for n, row in enumerate(c.children):
                    disk_io('read -P 7 0 64k', row['qmp'])
                    disk_io('read -P 0 64k 64k', row['qmp'])
                    disk_io(f'write -P {20 + n} 64k 64k', row['qmp'])
                    disk_io('write -P 9 0 4k', row['qmp'])
                for n, row in enumerate(c.children):
                    disk_io(f'read -P {20 + n} 64k 64k', row['qmp'])
                    Child(row, a).check(before)
                disk_io('read -P 7 0 64k', guest=a)
                disk_io('read -P 8 64k 64k', guest=a)
            finally:
                kill(c.base, 'f')
        check_goes_on(a)


def arm(t):
    """A guest of qemu-system-aarch64."""
    with attach_guests.Arm(t, 'anon') as a:
        a.start_load()
        forked(t, a, 1, there=('--qemu', qemu_of(OLDEST, 'aarch64')))


def run(t):
    for name, case in (
            ('anonymous memory, twice', lambda: twice(t, 'anon')),
            ('memfd, twice', lambda: twice(t, 'memfd')),
            ('the fork fails', lambda: fails(t, 'memfd', 'attach.state=fail@1', 'injected')),
            ('the process beside it is killed in the pause', lambda: killed_in_pause(t, 'beside')),
            ('vmclone is killed in the pause', lambda: killed_in_pause(t, 'vmclone')),
            ('a guest that stands still', lambda: stood(t)),
            ('a disk', lambda: disk(t)),
            ('a disk, and no child comes to be', lambda: taken_back(t)),
            ('a balloon', lambda: balloon(t)),
            ('aarch64', lambda: arm(t))):
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=240)
