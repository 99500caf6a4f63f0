#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""big.py - a guest of 2 GiB (FARFORK_FULL=1: in a memfd, too, and of 6 GiB); limit: 150 s"""
import os

import common
from common import Micro, Skip, check_ledger, check_move, move, say


def one(t, accel, memory, options, mib):
    free = os.sysconf('SC_AVPHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 20
    if free < 2 * mib + 512:
        raise Skip(f'{free} MiB of memory are free, this needs {2 * mib + 512}')
    load = 'report_ms=400 sweep=1'
    with Micro(t, 'a', accel, memory, mib, load=load) as a, \
            Micro(t, 'b', accel, memory, mib, load=load, incoming=True) as b:
        a.start_load()
        moved = move(a, b, options=options)
        check_move(moved)
        say(f'      {moved.line()}')
        check_ledger(a, b, sweeps=1)


def run(t):
    accel = t.best_accel()
    for mib in (2048, 6144) if common.FULL else (2048,):
        for memory, options in (('anon', ''), ('memfd', ',landing=continue'))[:2 if common.FULL else 1]:
            with t.case(f'{mib} MiB, {memory}{options}, {accel}'):
                one(t, accel, memory, options, mib)


if __name__ == '__main__':
    common.main(run, 150)
