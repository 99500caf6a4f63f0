#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""forked_moves.py - Farfork's own QEMU, which is forked as any other, and its transport afterwards; limit: 120 s

A process beside it has put private views of files in the place of its memory, of which that QEMU knows nothing: what is
not in its page tables is no zeros. Parent and child move, and find all of their memory right.
"""
import contextlib

import common
import report
from common import Failed, check_ledger, check_move, say
from farfork_move import Move, there
from forked import Child, Clone, Parent, check_result, kill, snapshot

MIB = 64
LOAD = 'report_ms=400 wss=1'        # most pages stay as they were at the fork


def parent_moves(t, accel, memory, by_attaching=False):
    """It is forked twice: the second image is the file and copies."""
    with Parent(t, accel, memory=memory, mem_mib=MIB, load=LOAD) as a, contextlib.ExitStack() as stack:
        a.start_load()
        for name in 'fg':
            before = snapshot(a)
            with Clone(t, a, 1, name=name) as c:
                check_result(c, 0, {'complete': 1})
                Child(c.children[0], a).check(before)
                kill(c.base, name)
        if by_attaching:
            m = stack.enter_context(Move(t, a, via='attach'))
            check_ledger(a, stack.enter_context(there(t, f'moved-{memory}', m.end(0, 'there'))))
            kill(m.base, m.name)
            return
        b = stack.enter_context(common.Micro(t, 'b', accel, memory, MIB, load=LOAD, incoming=True))
        moved = common.move(a, b)
        check_move(moved)
        say(f'      {moved.line()}')
        check_ledger(a, b)


def child_moves(t, accel, memory):
    """It has not run yet, as its parent does not: next to nothing of its memory is in its page tables."""
    with Parent(t, accel, memory=memory, mem_mib=MIB, load=LOAD) as a:
        a.start_load()
        a.qmp('stop')
        with Clone(t, a, 1) as c, contextlib.ExitStack() as stack:
            check_result(c, 0, {'complete': 1})
            m = stack.enter_context(Move(t, c.children[0]['qmp']))
            b = stack.enter_context(there(t, f'kid-{memory}', m.end(0, 'there')))
            b.qmp('cont')
            b.wait('a report', lambda log: report.is_ready(log.lines), 60)
            b.wait_sweeps(2, 60)
            ok, reasons = report.verdict(b.log())
            if not ok:
                raise Failed(f'the child that moved: {"; ".join(reasons[:5])}')
            kill(m.base, m.name)


def run(t):
    accel = t.best_accel()
    for memory in 'memfd', 'anon':
        with t.case(f'the parent moves, {memory}, {accel}'):
            parent_moves(t, accel, memory)
        with t.case(f'the parent moves by attaching, {memory}, {accel}'):
            parent_moves(t, accel, memory, by_attaching=True)
        with t.case(f'a child moves, {memory}, {accel}'):
            child_moves(t, accel, memory)


if __name__ == '__main__':
    common.main(run, 120)
