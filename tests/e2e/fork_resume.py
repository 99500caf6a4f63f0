#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""fork_resume.py - an agent loses its parent's memory for a while: its children wait, and go on

The link between the two breaks, and does not come back for some seconds, or for good: no child ends before `reconnect`
seconds have passed. Limit: 180 s.
"""
import contextlib
import os
import signal
import time

import common
from common import Failed, say, wait_for
from farfork_move import listed
from forked import (ELSEWHERE, TWO_HOSTS, Child, Clone, ForkParent, alive, check_nothing_left,
                    check_result, kill, snapshot)

BY_PARENT = (*ELSEWHERE, '--fanout', '0')    # whose link breaks when prefill does
BREAKS = 'dest.prefill=delay:60000,dest.prefill=fail@4,dest.resume='


def paused_hosts(c):
    return [f for f in listed(c.base) if f['image'] == 'paused']


def clone_goes_on(t, accel):
    """Each of two agents loses its link, tries for a while, and is said to be paused meanwhile;
    longer than --timeout."""
    with ForkParent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 4, '--timeout', '8', *BY_PARENT, hosts=TWO_HOSTS,
                   faults=BREAKS + 'fail@1-60') as c:
            wait_for('two hosts that are paused', 40, lambda: len(paused_hosts(c)) == 2)
            pids = [k['pid'] for f in paused_hosts(c) for k in f['children']]
            if len(pids) != 4 or not all(map(alive, pids)):
                raise Failed(f'children, meanwhile: {listed(c.base)}')
            check_result(c, 0, {'complete': 4})
            if [n for n in c.result['notes'] if 'was waited for' in n][1:] == []:
                raise Failed(f'notes: {c.result["notes"]}')
            for row in c.children:
                Child(row, parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def for_good(t, accel):
    """The time is over: children end with the word, not before; the parent goes on, and nothing is left."""
    with ForkParent(t, accel) as parent:
        parent.start_load()
        with Clone(t, parent, 2, *BY_PARENT, '--options', 'reconnect=4', hosts=TWO_HOSTS[:1],
                   faults=BREAKS + 'fail@1+') as c:
            wait_for('a host that is paused', 40, lambda: paused_hosts(c))
            begin = time.monotonic()
            check_result(c, 3, {'failed': 2})
            if time.monotonic() - begin < 3:
                raise Failed(f'it ended after {time.monotonic() - begin:.1f} s')
            say(f'      {c.children[0]["error"]}')
            check_nothing_left(c, parent)


def clone_ended(t, accel, how):
    """Ctrl-C, and vmclone --kill, while nothing comes: at once, and nothing is left."""
    with ForkParent(t, accel) as parent:
        parent.start_load()
        with Clone(t, parent, 2, *BY_PARENT, hosts=TWO_HOSTS, faults=BREAKS + 'fail@1+') as c:
            wait_for('two hosts that are paused', 40, lambda: len(paused_hosts(c)) == 2)
            begin = time.monotonic()
            if how == 'kill':
                kill(c.base, 'f')
            else:
                c.proc.send_signal(signal.SIGINT)
            check_result(c, 3, {'failed': 2})
            say(f'      it took {time.monotonic() - begin:.1f} s')
            states = {h['state'] for h in c.result['hosts']}
            if how != 'kill' and states != {'paused'}:
                raise Failed(f'hosts: {c.result["hosts"]}')
            check_nothing_left(c, parent)


def run(t):
    best = t.best_accel()
    with t.case('vmclone waits'):
        clone_goes_on(t, best)
    cases = {'the link is gone for good': lambda: for_good(t, best),
             **{f'vmclone is ended while it waits: {how}': lambda how=how: clone_ended(t, best, how) for how in ('Ctrl-C', 'kill')}}
    for name, case in cases.items():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(t.work, 'parent.console'))
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, 180)
