#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""stopped.py - a process of a move or a fork stands still for ten seconds (SIGSTOP)

Each process in turn, at each step, shorter and longer than the link's `timeout`: it ends by itself, one
side alone has run the guest, and the guest finds every byte right. FARFORK_FULL=1: every process at
every step; else some. Limit: 290 s, or 1,700 s.
"""
import contextlib
import itertools
import json
import os
import signal
import subprocess
import time

import abreast
import common
from common import Failed, check_ledger, say, status, wait_for
from farfork_move import (Move, check_here, check_left_here, folder_of, listed, pid_there, There,
                          wait_source)
from forked import (ELSEWHERE, SLOW, Child, Clone, ForkParent, Parent, check_nothing_left, kill,
                    snapshot)
from who_runs import agent_of, mark_of

STOP_S = 10
LONG, SHORT = 'timeout=15', 'timeout=3'     # of the link: longer than the stop, and shorter
HELD = 'delay:5000000'                      # at a step, until somebody has been stopped there


def state_of(pid):
    with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as f:
        return f.read().rpartition(')')[2].split()[0]


def stand_still(*pids):
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        for pid in pids:
            wait_for('a process that stands still', 20, lambda pid=pid: state_of(pid) == 'T')
        time.sleep(STOP_S)      # that is what is tried
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


# --- a move: at which step, failpoints of source and destination, what shows that it is there ---

def all_there(b):
    x = common.migration(b).get('x-rdma-postcopy')
    return x and x['present-bytes'] == x['total-bytes'] > 0


def go_was_read(a, m):
    wait_source(a, 'postcopy-active')
    wait_for('GO', 20, lambda: not mark_of(m))


STEPS = {
    'before GO': (None, 'dest.state=' + HELD, lambda a, m, b: wait_source(a, 'device')),
    'GO is next': ('source.go=' + HELD, None, lambda a, m, b: wait_source(a, 'postcopy-active')),
    'GO is read': (None, 'dest.running=' + HELD, lambda a, m, b: go_was_read(a, m)),
    'memory follows': (None, SLOW, lambda a, m, b: go_was_read(a, m)),
    'all is there': ('source.done=' + HELD, None, lambda a, m, b: wait_for(
        'the last page', 30, lambda: all_there(b))),
}


def front_of(m):
    """What the launcher started: it stands between the agent and who called it."""
    with open(f'/proc/{agent_of(m)}/stat', encoding='ascii') as f:
        return int(f.read().rpartition(')')[2].split()[1])


WHO = {
    'source': lambda a, m: a.proc.pid,
    'destination': lambda a, m: pid_there(m),
    'farfork move': lambda a, m: m.proc.pid,
    'agent': lambda a, m: agent_of(m),
    "agent's front": lambda a, m: front_of(m),
    'everybody': lambda a, m: (a.proc.pid, pid_there(m), m.proc.pid, agent_of(m)),   # as when a host stands still
}


def move(t, accel, who, step, timeout):
    source_fault, there_fault, reached = STEPS[step]
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(Parent(t, accel, faults=source_fault))
        stack.callback(os.unlink, a.console)
        a.start_load()
        m = stack.enter_context(Move(t, a, '--options', timeout, faults=there_fault))
        b = stack.enter_context(There(t, 'there', folder_of(m), pid_there(m)))
        stack.callback(os.unlink, b.console)
        found = WHO[who](a, m)
        reached(a, m, b)
        stand_still(*(found if isinstance(found, tuple) else (found,)))
        end = one_runs(m, a, b)
        say(f'      {end}, {m.result["breaks"]} breaks; {m.result.get("error") or ""}')
        if end == 'here' and step not in ('before GO', 'GO is next'):
            raise Failed('it goes on here after GO')


def one_runs(m, a, b):
    """'here' or 'there': whose side runs the guest when the program has ended, and finds all right."""
    try:
        out, m.err = m.proc.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        raise Failed(f'farfork move hangs; the source says {common.migration(a)}') from None
    m.result = json.loads(out) if out.startswith('{') else {}
    end = m.proc.returncode, m.result.get('state')
    if end == (1, 'here'):
        if b.log().lines:
            raise Failed('it ran there, too')
        check_here(m, a)
    elif end == (0, 'there'):
        check_left_here(None, a, m)
        if status(b) != 'running':
            raise Failed(f'it is {status(b)} there')
        check_ledger(a, b)      # one line of reports: whoever ran a second time would be in it
        kill(m.base, m.name)
        check_nothing_left(m)
    else:
        raise Failed(f'farfork move ended with {end}: {m.result.get("error")} {m.err[-600:]}')
    return end[1]


# --- a fork ---

FORK_STEPS = {
    'children load': (None, 'dest.state=' + HELD),
    'GO is next': ('source.go=' + HELD, None),
    'memory follows': (None, SLOW),
    'all is there': ('source.done=' + HELD, None),
}

FORK_WHO = {
    'parent': lambda a, c: a.proc.pid,
    'holder': lambda a, c: a.exports()[0]['holder-pid'],
    'vmclone': lambda a, c: c.proc.pid,
    'agent': lambda a, c: agent_of(c),
    'child': lambda a, c: listed(c.base)[0]['children'][0]['pid'],
}


def fork_is_at(step, a, c):
    wait_for('children', 40, lambda: [k for f in listed(c.base) for k in f['children']])
    if step == 'children load':
        return
    wait_for('an export', 40, a.exports)
    if step != 'GO is next':
        wait_for('an image that comes', 40, lambda: [
            f for f in listed(c.base) if f['image'] in ('arriving', 'complete')])


def fork(t, accel, who, step, timeout):
    source_fault, there_fault = FORK_STEPS[step]
    with ForkParent(t, accel) as a, contextlib.ExitStack() as stack:
        stack.callback(os.unlink, a.console)
        a.start_load()
        before = snapshot(a)
        with Clone(t, a, 2, '--options', timeout, *ELSEWHERE, hosts=['h1=127.0.0.1'],
                   faults=there_fault) as c:
            fork_is_at(step, a, c)
            stand_still(FORK_WHO[who](a, c))
            try:
                code = c.end()
            except subprocess.TimeoutExpired:
                raise Failed(f'vmclone hangs; {listed(c.base)}') from None
            states = {row['state'] for row in c.children}
            if code == 0 and states == {'complete'}:
                for row in c.children:
                    Child(row, a).check(before)
            elif code != 3 or states != {'failed'} or step not in ('children load', 'GO is next'):
                raise Failed(f'vmclone ended with {code}: {c.children}, {c.err[-600:]}')
            say(f'      {states}; {c.children[0]["error"] or ""}')
            kill(c.base, 'f')
            check_nothing_left(c, a)    # and the parent goes on


# --- what `make check` tries ---

SOME = (
    (move, 'source', 'before GO', LONG),
    (move, 'destination', 'GO is next', SHORT),
    (move, 'source', 'GO is read', SHORT),
    (move, 'destination', 'memory follows', SHORT),
    (move, 'farfork move', 'all is there', LONG),
    (move, 'agent', 'GO is next', LONG),
    (move, 'everybody', 'memory follows', SHORT),
    (move, 'everybody', 'before GO', SHORT),
    (fork, 'holder', 'memory follows', SHORT),
    (fork, 'agent', 'GO is next', SHORT),
    (fork, 'child', 'memory follows', LONG),
    (fork, 'vmclone', 'children load', LONG),
    (fork, 'parent', 'memory follows', LONG),
)


def every():
    for what, all_who, steps in (move, WHO, STEPS), (fork, FORK_WHO, FORK_STEPS):
        for row in itertools.product((what,), all_who, steps, (LONG, SHORT)):
            yield row


def run(t):
    accel = t.best_accel()
    abreast.run(t, [(f'{what.__name__}, {step}: {who}, {timeout}, {accel}',
                     lambda t, what=what, rest=(who, step, timeout): what(t, accel, *rest))
                    for what, who, step, timeout in (every() if common.FULL else SOME)])


if __name__ == '__main__':
    common.main(run, 1700 if common.FULL else 290)
