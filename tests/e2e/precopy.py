#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""precopy.py - precopy=1: all memory once while the guest writes, and nothing of that is lost

The guest writes all the time. After the move every RAM block of both processes is compared,
while the destination stays paused (-S), and the guest checks what it reads from then on. Also
a cancel in the middle of the pass: the guest goes on where it was, and can be moved after it.
Limit: 180 s.
"""
import common
import memory
import move_bytes
from cancel import ended
from common import Failed, Micro, check_ledger, check_move, move, say

MIB = 128
PASS = 'dest.prefill=delay:5000'   # long enough for the guest to write in it, on a busy host as well
KINDS = {
    'anon': ('anon', ''),
    'memfd': ('memfd', ',landing=copy'),
    'memfd, landing=continue': ('memfd', ',landing=continue'),
    'anon, landing=move': ('anon', ',landing=move'),
    'hugetlb': ('hugetlb', ''),
}


def check_pass(moved):
    x, src = moved.stats, moved.src_info['x-rdma-postcopy']
    if not x['precopied-bytes'] or not x['pass-time']:
        raise Failed(f'no pass was made: {x}')
    if not 0 < x['discarded-bytes'] <= x['precopied-bytes']:
        raise Failed(f'the guest wrote all the time, but nothing was discarded: {x}')
    if [src[k] for k in ('precopied-bytes', 'discarded-bytes')] != \
            [x[k] for k in ('precopied-bytes', 'discarded-bytes')]:
        raise Failed(f'the source shows something else: {src}; destination: {x}')
    say(f'      MiB before the pause {x["precopied-bytes"] >> 20} in '
        f'{x["pass-time"] // 1000000} ms, discarded {x["discarded-bytes"] >> 20}')


def micro(t, accel, kind, options):
    t.need(accel)
    if kind == 'hugetlb':
        t.reserve_huge(2 * MIB)
    with Micro(t, 'a', accel, kind, MIB) as a, \
            Micro(t, 'b', accel, kind, MIB, incoming=True, faults=PASS,
                  extra=['-S']) as b:
        a.start_load()
        moved = move(a, b, options=f',precopy=1{options}')
        check_move(moved, paused=True)
        check_pass(moved)
        done, _ = memory.compare(a, b)
        say(f'      {done >> 20} MiB equal')
        b.qmp('cont')
        check_ledger(a, b)


def back_and_forth(t, accel):
    """A guest that was moved, and never looked at in between, checks everything itself."""
    t.need(accel)
    with Micro(t, 'a', accel, 'anon', MIB) as a, \
            Micro(t, 'b', accel, 'anon', MIB, incoming=True, faults=PASS) as b:
        a.start_load()
        moved = move(a, b, options=',precopy=1')
        check_move(moved)
        check_pass(moved)
        check_ledger(a, b)


def cancel(t, accel):
    t.need(accel)
    with Micro(t, 'a', accel, 'anon', MIB) as a:
        a.start_load()
        with Micro(t, 'b', accel, 'anon', MIB, incoming=True,
                   faults='dest.prefill=delay:100000') as b:
            uri = common.listen(b, options=',precopy=1')
            a.qmp('migrate', uri=uri)
            common.wait_for('the pass', 30, lambda: common.migration(a).get(
                'x-rdma-postcopy', {}).get('precopied-bytes'))
            if common.migration(a)['status'] != 'active':
                raise Failed(f'not active in the pass: {common.migration(a)}')
            a.qmp('migrate_cancel')
            common.wait_migration(a, 'cancelled', 20)
            common.check_still_running(a)
            ended(b)
        with Micro(t, 'c', accel, 'anon', MIB, incoming=True, faults=PASS) as c:
            check_pass(move(a, c, options=',precopy=1'))
            check_ledger(a, c)


def monitor(t, accel):
    """Who reads memory at the destination during the pass waits for that page, not for its end."""
    with Micro(t, 'a', accel, 'anon', 128) as a:
        a.start_load()
        with Micro(t, 'b', accel, 'anon', 128, incoming=True,
                   faults='dest.prefill=delay:100000') as b:
            a.qmp('migrate', uri=common.listen(b, options=',precopy=1'))
            common.wait_for('the pass', 30 * common.place.patience, lambda: common.migration(a).get(
                'x-rdma-postcopy', {}).get('precopied-bytes'))
            common.hmp(b, 'xp /1xg 0x7f00000')          # of the last chunk
            x = common.migration(a)['x-rdma-postcopy']
            if not x['precopied-bytes'] < x['total-bytes'] / 2:
                raise Failed(f'the monitor waited for most of the pass: {x}')


def run(t):
    accels = t.accels()
    for name, (kind, options) in KINDS.items():
        with t.case(f'micro, {name}, {accels[0]}'):
            micro(t, accels[0], kind, options)
    with t.case('micro, anon, tcg'):
        micro(t, 'tcg', 'anon', '')
    with t.case(f'micro, running on, {accels[0]}'):
        back_and_forth(t, accels[0])
    with t.case(f'cancel in the pass, {accels[0]}'):
        cancel(t, accels[0])
    with t.case(f'monitor in the pass, {accels[0]}'):
        monitor(t, accels[0])
    if common.FULL:
        with t.case('linux, anon, tcg'):
            move_bytes.linux(t, 'anon', ',precopy=1')


if __name__ == '__main__':
    common.main(run, 180)
