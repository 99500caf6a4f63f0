#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""proxy_verbs.py - inside the lab: farfork proxy moves a guest of Debian's QEMU 7.2 over RDMA verbs

Memory in a memfd, from hosta to hostb; an outage that ends the queue pairs; anonymous memory, which no
adapter can read out of another process, is refused. --more: huge pages; anonymous memory that comes by
QEMU's own stream. Limit: 400 s.
"""
import sys

import labplace                     # first: it knows where those of tests/e2e are
import common
import proxy_move
from common import Failed, check_ledger, say
from farfork_move import Move, there
from labplace import MIB
from move_proxy import Parent
from proxy_move import check_moved, happy, killed_there, proxies, two
from stocks import OLDEST, modules_of

SLOW = 'dest.prefill=delay:200000@1-30'


def moves(t, memory):
    if memory == 'hugetlb':
        t.reserve_huge(2 * MIB)
    link = happy(t, memory=memory)
    if link != 'verbs':
        raise Failed(f'it went over {link}')


def by_one_command(t):
    """farfork move starts both proxies, with a key."""
    labplace.need_two_hosts()
    with Parent(t, 'tcg', 'memfd', mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a, '--via', 'proxy', '--options', 'link=verbs', host='hostb=10.8.0.2',
                  launcher=('--launcher', f'env QEMU_MODULE_DIR={modules_of(OLDEST)} '
                            'ip netns exec {host} {cmd}')) as m:
            result = m.end(0, 'there')
            say(f'      {result["phases_ms"]}')
            with there(t, 'moved', result) as b:
                check_ledger(a, b, sweeps=1)


def outage(t):
    with two(t, 'outage') as (a, b), \
            proxies(t, a, b, ',timeout=5,reconnect=120', faults=(None, SLOW)) as (here, there):
        here.wait('running')
        with labplace.outage():
            for side in (here, there):
                side.wait('paused', 30)
        for side in (here, there):
            side.wait('resumed', 60)
        for s in check_moved(a, b, here, there):
            if s['breaks'] != 1:
                raise Failed(f'want 1 break: {s}')


def refused(t):
    """By name, and neither guest knows of it"""
    with two(t, 'anon', 'anon') as (a, b), proxies(t, a, b) as (here, there):
        here.end(1)
        why = here.must('failed')['reason']
        say(f'      {why}')
        if 'in no shared file: use link=tcp' not in why or here.find('migrating'):
            raise Failed(here.told())
        common.check_still_running(a)


def from_stream(t):
    """Then there is nothing to be read: QEMU's own stream brings it."""
    with two(t, 'stream', 'anon') as (a, b), proxies(t, a, b, more=('--from-stream',)) as (here, there):
        for s in (here.end(0), there.end(0)):
            if s['engine']['present-bytes'] != s['bytes'] or s['bytes'] < MIB << 20:
                raise Failed(f'not all of it has passed: {s}')
        if here.must('connected')['link'] != 'verbs':
            raise Failed(f'it went over {here.must("connected")}')
        check_ledger(a, b, sweeps=1)


def run(t):
    proxy_move.MIB = MIB
    more = '--more' in sys.argv
    memory = 'hugetlb' if more else 'memfd'
    with t.case(f'a move, {memory}'):
        moves(t, memory)
    if more:
        with t.case('anonymous memory, --from-stream'):
            from_stream(t)
        return
    with t.case('a move, by farfork move'):
        by_one_command(t)
    with t.case('an outage'):
        labplace.need_two_hosts()
        outage(t)
    killed_there(t, 'ready')
    with t.case('anonymous memory'):
        refused(t)


if __name__ == '__main__':
    labplace.main(run, 400)
