#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""stock.py - QEMU's own transports go on working in the same binary; limit: 120 s"""
import common
from common import Failed, Micro, check_ledger, say, status, stock_move

# pre-copy has to get ahead of the guest's writes
PACED = 'report_ms=400 sweep=1 rate=20000 wss=20'


def nothing_of_ours(moved):
    for info in (moved.src_info, moved.dst_info):
        if 'x-rdma-postcopy' in info:
            raise Failed(f'statistics of ours in a stock move: {info}')


def one(t, accel, kind):
    load = PACED if kind in ('precopy', 'multifd') else common.LOAD
    with Micro(t, 'a', accel, load=load) as a, \
            Micro(t, 'b', accel, load=load, incoming=True) as b:
        a.start_load()
        moved = stock_move(a, b, kind)
        if status(a) != 'postmigrate' or status(b) != 'running':
            raise Failed(f'source {status(a)}, destination {status(b)}')
        nothing_of_ours(moved)
        say(f'      {moved.src_info["total-time"]} ms, '
            f'downtime {moved.src_info["downtime"]} ms, '
            f'{moved.src_info["ram"]["postcopy-requests"]} pages asked for')
        check_ledger(a, b, sweeps=1)


def after_ours(t, accel):
    """A guest that came by a move of ours goes on by another."""
    guests = [Micro(t, f'after-{n}', accel, mem_mib=64, load=PACED, incoming=n > 0)
              for n in range(3)]
    with guests[0] as a, guests[1] as b, guests[2] as c:
        a.start_load()
        common.check_move(common.move(a, b))
        nothing_of_ours(stock_move(b, c, 'precopy'))
        check_ledger(a, b, c, sweeps=1)


def run(t):
    accel = t.best_accel()
    for kind in ('precopy', 'multifd', 'postcopy', 'preempt'):
        with t.case(f'{kind}, {accel}'):
            one(t, accel, kind)
    with t.case(f'precopy after a move of ours, {accel}'):
        after_ours(t, accel)


if __name__ == '__main__':
    common.main(run, 120)
