#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""smp4.py - four vCPUs at full speed fault at the same time; limit: 150 s"""
import common
from common import Micro, check_ledger, check_move, move, say


def one(t, accel, memory, options):
    with Micro(t, 'a', t.need(accel), memory, smp=4) as a, \
            Micro(t, 'b', accel, memory, smp=4, incoming=True) as b:
        a.start_load()
        moved = move(a, b, options=options)
        check_move(moved)
        say(f'      {moved.line()}')
        check_ledger(a, b)


def run(t):
    for accel in t.accels():
        with t.case(f'anon, {accel}'):
            one(t, accel, 'anon', '')
        with t.case(f'memfd, landing=continue, {accel}'):
            one(t, accel, 'memfd', ',landing=continue')


if __name__ == '__main__':
    common.main(run, 150)
