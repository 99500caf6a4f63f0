#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""move_micro.py - move the micro guest at full speed, on every kind of memory

Complete on both sides, statistics and events in order, the source gives the guest
up for good, and the guest's ledger is clean after two full sweeps. Limit: 180 s.
"""
import common
from common import Micro, check_ledger, check_move, move, say

MIB = 256
# name: kind of memory, options of the destination
KINDS = {
    'anon': ('anon', ''),
    'memfd': ('memfd', ',landing=copy'),
    'memfd, landing=continue': ('memfd', ',landing=continue'),
    'hugetlb': ('hugetlb', ''),
}


def one(t, accel, memory, options):
    t.need(accel)
    if memory == 'hugetlb':
        t.reserve_huge(2 * MIB)
    with Micro(t, 'a', accel, memory, MIB) as a, \
            Micro(t, 'b', accel, memory, MIB, incoming=True) as b:
        a.start_load()
        moved = move(a, b, options=options)
        check_move(moved)
        say(f'      {moved.line()}')
        check_ledger(a, b)


def run(t):
    for accel in t.accels():
        for name, (memory, options) in KINDS.items():
            with t.case(f'{name}, {accel}'):
                one(t, accel, memory, options)


if __name__ == '__main__':
    common.main(run, 180)
