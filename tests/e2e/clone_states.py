#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""clone_states.py - vmclone says of children and agents what is so

Children of a parent that does not run stand still; those of a template run. An agent that was
ended, and memory that never came, are called so. Limit: 120 s.
"""
import contextlib
import os
import signal

import common
from common import Failed, wait_for
from farfork_move import listed
from forked import Clone, ForkParent, ask, check_nothing_left, check_result, kill

WAITING = 'dest.state=delay:10000000'


def check_paused(t, parent, want, *args, name='f'):
    with Clone(t, parent, 2, *args, name=name) as c:
        check_result(c, 0, {'complete': 2})
        got = [ask(k['qmp'], 'query-status')['running'] for k in c.children]
        said = c.result.get('children_paused'), [k['first_instruction_ms'] is None for k in c.children]
        if got != [not want] * 2 or said != (want, [want] * 2):
            raise Failed(f'they run: {got}; it says paused, no first instruction: {said}')
        kill(c.base, name)
        check_nothing_left(c)


def paused(t, accel):
    with ForkParent(t, accel) as a:
        a.start_load()
        check_paused(t, a, False)
        a.qmp('stop')
        check_paused(t, a, True, name='g')
        a.qmp('cont')
        check_paused(t, a, False, '--template', name='t1')
        check_paused(t, a, True, '--template', name='t2')   # of a template that stands: docs/attach-fork.md


def template_fails(t, accel):
    """A template without children is none: the parent runs again, but one that stood before stands."""
    with ForkParent(t, accel) as a:
        a.start_load()
        with Clone(t, a, 1, '--template', faults='dest.state=fail') as c:
            check_result(c, 3, {'failed': 1})
            if not c.result['freeze']:
                raise Failed('it failed before the parent was paused')
            check_nothing_left(c, a)        # that it runs, too
        a.qmp('stop')
        with Clone(t, a, 1, '--template', faults='dest.state=fail', name='g') as c:
            check_result(c, 3, {'failed': 1})
            check_nothing_left(c)
            if common.status(a) != 'paused':
                raise Failed(f'the parent stood, and is {common.status(a)}')


def not_started(t, accel):
    with ForkParent(t, accel, extra=('-S',)) as a:
        check_paused(t, a, True)


def agent_ended(t, accel):
    for sig in signal.SIGTERM, signal.SIGKILL:
        with ForkParent(t, accel) as a:
            a.start_load()
            with Clone(t, a, 1, faults=WAITING) as c:
                pid = wait_for('an agent', 20, lambda: [f['agent'] for f in listed(c.base)])[0]
                wait_for('a child', 20, lambda: listed(c.base)[0]['children'])
                os.kill(pid, sig)
                check_result(c, 3, {'failed': 1})
                error = c.children[0]['error']
                if sig.name not in error:
                    raise Failed(f'{sig.name}: it says: {error}')
                kill(c.base, 'f')
        os.unlink(a.console)


def nothing_lost(t, accel):
    """The link breaks before a child has run: all memory is the parent's still."""
    with ForkParent(t, accel) as a:
        a.start_load()
        with Clone(t, a, 1, faults='dest.state=fail') as c:
            check_result(c, 3, {'failed': 1})
            error = c.children[0]['error']
            if 'lost' in error or 'no child has run' not in error:
                raise Failed(f'it says: {error}')
            check_nothing_left(c, a)


def run(t):
    accel = t.best_accel()
    for name, case in (('children of a paused parent', paused),
                       ('a template without children', template_fails),
                       ('children of one that never ran', not_started),
                       ('an agent is ended', agent_ended),
                       ('memory that never came', nothing_lost)):
        with t.case(name):
            case(t, accel)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(t.work, 'parent.console'))


if __name__ == '__main__':
    common.main(run, limit_s=120)
