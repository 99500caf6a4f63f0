#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""move_fallback.py - farfork move --fallback go: the guest is taken back, or its disks are committed

The QEMU there is killed: the guest goes on here as it was, and nothing is left of what it wrote there.
It is not: what it wrote there is in its own images. take_back.py has the QEMUs alone. Limit: 170 s.
"""
import os
import subprocess
import tempfile

import common
from common import Failed, check_ledger, status, wait_for
from farfork_move import Move, check_here, check_left_here, there
from forked import SLOW, Parent, check_nothing_left, kill
from take_back import MIB, Fence, io, is_nowhere_yet

LEASE_S = 4
KINDS = ('qcow2', 'raw')


class Disk:
    """An image, and a folder for what is made on top of it."""

    def __init__(self, t, kind):
        self.folder = tempfile.mkdtemp(prefix='disk-', dir=t.work)
        self.image = os.path.join(t.work, f'{os.path.basename(self.folder)}.{kind}')
        subprocess.run(['qemu-img', 'create', '-q', '-f', kind, self.image, '8M'], check=True,
                       timeout=20)
        self.options = ('-drive', f'file={self.image},format={kind},if=none,id=d0', '-device',
                        'virtio-blk-pci,drive=d0')
        self.args = ('--overlays', self.folder)

    def has_overlays(self):
        return bool(os.listdir(self.folder))


def back(fence):
    return ('--fallback', 'go', '--fence', fence.program, '--record', fence.record, '--lease',
            str(LEASE_S))


def killed(t, accel, kind):
    disk, fence = Disk(t, kind), Fence(t, 'killed-' + kind)
    with Parent(t, accel, extra=disk.options, mem_mib=MIB) as a:
        a.start_load()
        io(a, 'write -P 7 0 64k')
        with Move(t, a, *back(fence), *disk.args, faults='dest.running=kill') as m:
            m.end(1, 'here', 'taken back')
            check_here(m, a)
        if disk.has_overlays() or not fence.was_run():
            raise Failed(f'{os.listdir(disk.folder)}, fence {fence.was_run()}')
        io(a, 'read -P 7 0 64k', 'write -P 9 1M 64k', 'read -P 9 1M 64k')


def complete(t, accel, kind):
    """Its disks are where they were, with what it wrote on the way."""
    disk, fence = Disk(t, kind), Fence(t, 'complete-' + kind)
    with Parent(t, accel, extra=disk.options, mem_mib=MIB) as a:
        a.start_load()
        io(a, 'write -P 7 0 64k', 'write -P 7 1M 64k')
        with Move(t, a, *back(fence), *disk.args, faults=SLOW) as m:
            wait_for('an overlay', 40, disk.has_overlays)
            m.end(0, 'there')
            check_left_here(t, a, m)
            if m.result['notes'] or disk.has_overlays() or fence.was_run():
                raise Failed(f'{m.result["notes"]}, {os.listdir(disk.folder)}')
            with there(t, 'b-' + kind, m.result) as b:
                images = [e['inserted']['image']['filename'] for e in b.qmp('query-block')]
                if images != [disk.image]:
                    raise Failed(f'its disk is in {images} there')
                io(b, 'read -P 7 0 64k', 'write -P 8 0 64k', 'read -P 8 0 64k')
                check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)


def fence_fails(t, accel):
    fence = Fence(t, 'fails')
    fence.ends_with(3)
    with Parent(t, accel, mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a, *back(fence), faults='dest.running=kill') as m:
            m.end(3, 'unclear', 'runs nowhere')
            if 'it ended with 3' not in m.result['error']:
                raise Failed(m.result['error'])
            is_nowhere_yet(a)
            fence.ends_with(0)
            uri = common.refuses(a, 'was sent to', 'x-rdma-postcopy-take-back',
                                 uri='rdma-postcopy:127.0.0.1:1')
            a.qmp('x-rdma-postcopy-take-back', uri=uri.split('was sent to ')[1].split(',')[0])
            wait_for('a guest that runs', 40, lambda: status(a) == 'running')
            check_ledger(a, sweeps=1)


def refused(t, accel):
    """Before anything is started"""
    disk, fence = Disk(t, 'raw'), Fence(t, 'refused')
    with Parent(t, accel, extra=disk.options, mem_mib=MIB) as a:
        a.start_load()
        for code, args in ((2, ('--fallback', 'go')), (2, ('--fence', '/bin/true')),
                           (2, ('--fallback', 'maybe'))):
            with Move(t, a, *args) as m:
                m.proc.communicate(timeout=30)
                if m.proc.returncode != code:
                    raise Failed(f'{args}: exit code {m.proc.returncode}')
        with Move(t, a, *back(fence)) as m:
            m.end(1, 'here', '--overlays')
            check_here(m, a)


def run(t):
    accel = t.best_accel()
    for kind in KINDS:
        with t.case(f'killed, {kind}, {accel}'):
            killed(t, accel, kind)
        with t.case(f'complete, {kind}, {accel}'):
            complete(t, accel, kind)
    with t.case(f'the fence fails, {accel}'):
        fence_fails(t, accel)
    with t.case(f'refused, {accel}'):
        refused(t, accel)


if __name__ == '__main__':
    common.main(run, 170)
