#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""backends.py - memory that was given a NUMA policy, moved, and a DIMM, moved and forked

The policy is one that each kernel with NUMA has: bind to node 0. What it is afterwards stands in
/proc/PID/numa_maps. Limit: 120 s.
"""
import os

import common
from common import Failed, Micro, Skip, check_ledger, check_move
from forked import Child, Clone, Parent, check_nothing_left, check_result, kill, snapshot
from memory import Memory, compare

MIB = 32
DIMM_MIB = 8
BIND = ',host-nodes=0,policy=bind'
DIMM = ['-m', 'slots=1,maxmem=1G', '-object', f'memory-backend-memfd,id=more,size={DIMM_MIB}M,share=on',
        '-device', 'pc-dimm,id=dimm0,memdev=more']


def bound(t, name, accel, backend, incoming=False):
    if not os.path.exists('/proc/self/numa_maps'):
        raise Skip('this kernel has no NUMA')
    return Micro(t, name, accel, mem_mib=MIB, machine='pc,memory-backend=ram', incoming=incoming,
                 extra=['-object', f'memory-backend-{backend},id=ram,size={MIB}M{BIND}'])


def block(guest, name):
    """Full name, address and size of the RAM block whose name ends so."""
    memory = Memory(guest)
    memory.close()
    return next((key, at, size) for key, (at, size, _) in memory.blocks.items()
                if key.endswith(name))


def check_bound(guest):
    """Every mapping of the guest's memory has the policy."""
    _, start, size = block(guest, 'ram')
    with open(f'/proc/{guest.pid}/numa_maps', encoding='ascii') as f:
        rows = [row.split() for row in f]
    policies = {row[1] for row in rows if start <= int(row[0], 16) < start + size}
    if policies != {'bind:0'}:
        raise Failed(f'{guest.name}: its memory has the policies {policies}, want bind:0')


def policy_moved(t, accel):
    with bound(t, 'numa-a', accel, 'ram') as src, bound(t, 'numa-b', accel, 'ram', True) as dst:
        src.start_load()
        check_bound(src)
        check_move(common.move(src, dst))
        check_bound(dst)
        check_ledger(src, dst)


def fill(guest, name):
    """Write a pattern into a block that the guest does not use."""
    _, start, size = block(guest, name)
    with open(f'/proc/{guest.pid}/mem', 'r+b', buffering=0) as f:
        f.seek(start)
        for page in range(size // common.PAGE):
            f.write((page + 1).to_bytes(8, 'little') * (common.PAGE // 8))


def check_filled(guest, other, name):
    """Not zeros, and the same in both."""
    full_name, start, size = block(guest, name)
    with open(f'/proc/{guest.pid}/mem', 'rb', buffering=0) as f:
        f.seek(start + size - 8)
        last = int.from_bytes(f.read(8), 'little')
    if last != size // common.PAGE:
        raise Failed(f'{guest.name}: the last page of {name} ends in {last:#x}')
    compare(other, guest, names=[full_name])


def dimm(t, accel):
    """A guest with a DIMM moves, and is forked where it came to."""
    with Micro(t, 'dimm-a', accel, 'memfd', MIB, extra=DIMM) as src, \
            Parent(t, accel, DIMM, MIB, memory='memfd', incoming=True, load=None) as dst:
        src.start_load()
        fill(src, 'more')
        check_move(common.move(src, dst))
        check_filled(dst, src, 'more')
        check_ledger(src, dst)
        before = snapshot(dst)
        with Clone(t, dst, 1) as c:
            check_result(c, 0, {'complete': 1})
            kid = Child(c.children[0], dst)
            kid.check(before)
            check_filled(kid, dst, 'more')
            kill(c.base, 'f')
            check_nothing_left(c, dst)


def run(t):
    accel = t.best_accel()
    with t.case('NUMA policy, moved'):
        policy_moved(t, accel)
    with t.case('a DIMM, moved and forked'):
        dimm(t, accel)


if __name__ == '__main__':
    common.main(run, 120)
