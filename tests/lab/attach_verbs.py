#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_verbs.py - inside the lab: farfork move attaches to Debian's QEMU 7.2, and memory goes by RDMA verbs

Memory in a memfd, from hosta to hostb; an outage that ends the queue pairs; anonymous memory, which no
adapter can read out of another process, is refused for link=verbs. --more: huge pages. Limit: 400 s.
"""
import sys

import labplace                     # first: it knows where those of tests/e2e are
from attaching import Move, Parent, logged
from common import Failed, check_ledger, say, wait_for
from farfork_move import check_here, there
from labplace import MIB
from stocks import OLDEST, modules_of

SLOW = 'dest.prefill=delay:200000@1-30'


class LabMove(Move):
    def __init__(self, t, a, options='link=verbs', faults=None):
        launcher = (f'env QEMU_MODULE_DIR={modules_of(OLDEST)} ' + (f'FARFORK_FAILPOINTS={faults} ' if faults else '') +
                    'ip netns exec {host} {cmd}')
        super().__init__(t, a, '--options', options, host='hostb=10.8.0.2', launcher=('--launcher', launcher))


def arrives(t, a, m, name):
    result = m.end(0, 'there')
    if not logged(m, 'connected link=verbs', 'hostb'):
        raise Failed('it did not go over verbs')
    say(f'      {result["phases_ms"]}')
    with there(t, name, result) as b:
        check_ledger(a, b, sweeps=1)
    return result


def moves(t, memory):
    if memory == 'hugetlb':
        t.reserve_huge(2 * MIB)
    with Parent(t, 'tcg', memory, mem_mib=MIB) as a:
        a.start_load()
        with LabMove(t, a) as m:
            arrives(t, a, m, memory)


def outage(t):
    with Parent(t, 'tcg', 'memfd', mem_mib=MIB) as a:
        a.start_load()
        with LabMove(t, a, 'link=verbs,timeout=5,reconnect=120', SLOW) as m:
            wait_for('the guest there', 120, lambda: m.proc.poll() is None and logged(m, 'running', 'hostb'))
            with labplace.outage():
                wait_for('a paused link', 30, lambda: logged(m, 'paused', 'hostb'))
            if arrives(t, a, m, 'outage')['breaks'] != 1:
                raise Failed(f'want 1 break: {m.result}')


def refused(t):
    """By name, before the guest stops"""
    with Parent(t, 'tcg', 'anon', mem_mib=MIB) as a:
        a.start_load()
        with LabMove(t, a) as m:
            m.end(1, 'here', 'in no shared file: use link=tcp')
            check_here(m, a)


def run(t):
    labplace.need_two_hosts()
    if '--more' in sys.argv:
        with t.case('a move, hugetlb'):
            moves(t, 'hugetlb')
        return
    for name, case in (('a move, memfd', lambda: moves(t, 'memfd')), ('an outage', lambda: outage(t)),
                       ('anonymous memory', lambda: refused(t))):
        with t.case(name):
            case()


if __name__ == '__main__':
    labplace.main(run, 400)
