#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""fork_resume.py - an agent loses its parent for a while: its children wait, and go on

The way between holder and agent is closed for some seconds, or for good. Both children compare every
byte of their memory afterwards; no child ends before `reconnect` seconds have passed. Limit: 380 s.
"""
import contextlib
import os
import signal
import time

import clone
import common
import report
from clone import Agent, check_parent, check_went_on, child, complete, enter, export, exports, snapshot
from common import Failed, Micro, say, wait_for
from farfork_move import listed
from forked import (ELSEWHERE, TWO_HOSTS, Child, Clone, ForkParent, alive, check_nothing_left,
                    check_result, kill)
from road import Road

MIB = 64
SLOW = 'dest.prefill=delay:300000@1-12'       # 32 chunks: most is missing when the way is closed
AWAY_S = 3


@contextlib.contextmanager
def two_children(t, name, accel, memory='anon', more='', n_agents=1):
    """A parent, agents and two children of them, that run and miss memory; a road to the first."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, name, accel, memory=memory, mem_mib=MIB))
        parent.start_load()
        agents = enter(stack, [Agent(t, f'{name}-a{i}', faults=SLOW, more=more)
                               for i in range(n_agents)])
        road = stack.enter_context(Road(agents[0].port))
        before = snapshot(parent)
        r = export(parent, 'f', *[a.target(lend=False, port=None if i else road.port)
                                  for i, a in enumerate(agents)])
        kids = enter(stack, [child(t, a, k, accel, memory) for a in agents
                             for k in range(2 // n_agents)])
        for k in kids:
            common.wait_migration(k, 'postcopy-active')
        yield parent, agents, kids, road, before, r


def close(road, agent):
    if agent.find('complete'):
        raise Failed('the image was to be on its way')
    road.close()
    agent.wait('paused')


def statuses(parent):
    return [x['status'] for x in exports(parent, 'f')['targets']]


def away(t, accel, memory):
    """Their monitors answer meanwhile, and nothing more comes."""
    with two_children(t, f'away-{memory}', accel, memory) as (parent, (a,), kids, road, before, _):
        close(road, a)
        until = time.monotonic() + AWAY_S
        while time.monotonic() < until:
            for k in kids:
                if k.proc.poll() is not None or common.migration(k)['status'] != 'postcopy-active':
                    raise Failed(f'{k.name}: while the way is closed: {k.proc.poll()}, {k.tail}')
            time.sleep(0.2)     # between two questions
        if statuses(parent) != ['postcopy-paused']:
            raise Failed(f'the export, meanwhile: {exports(parent, "f")}')
        road.open()
        a.wait('resumed')
        wait_for('an export that goes on', 20,
                 lambda: statuses(parent)[0] in ('active', 'completed'))
        for k in kids:
            check_went_on(before, k)
        complete(kids)
        clone.wait_exported(parent, 'f')
        check_parent(parent)


def one_of_two(t, accel):
    """Two agents of one fork: only the one whose way is closed is paused."""
    with two_children(t, 'two', accel, n_agents=2) as (parent, agents, kids, road, before, _):
        close(road, agents[0])
        wait_for('one that is paused', 20, lambda: 'postcopy-paused' in statuses(parent))
        if statuses(parent)[1] not in ('active', 'completed'):
            raise Failed(f'the other: {exports(parent, "f")}')
        check_went_on(before, kids[1])
        complete(kids[1:])
        if agents[1].find('paused') or agents[0].find('resumed') or agents[0].find('lost'):
            raise Failed(f'{agents[0].events[-1]}, {agents[1].events[-1]}')
        road.open()
        check_went_on(before, kids[0])
        complete(kids[:1])
        clone.wait_exported(parent, 'f')


def for_good(t, accel, holder_dies):
    """The time is over: children end with the word, not before; holder and export are gone."""
    name = 'dead' if holder_dies else 'good'
    with two_children(t, name, accel, more=',reconnect=4') as (parent, (a,), kids, road, _, r):
        begin = time.monotonic()
        if holder_dies:
            os.kill(r['holder-pid'], 9)
            a.wait('paused')
        else:
            close(road, a)
        for k in kids:
            code = k.exit_code(60)
            if time.monotonic() - begin < 4:
                raise Failed(f'{k.name} ended after {time.monotonic() - begin:.1f} s: {k.tail}')
            if code != 1 or 'the source did not come back within 4 s' not in k.tail:
                raise Failed(f'{k.name}: ended with {code}: {k.tail}')
            say(f'      {k.tail.splitlines()[-1]}')
            ok, reasons = report.verdict(k.log()) if k.log().lines else (True, [])
            if not ok:
                raise Failed(f'{k.name}: {reasons}')
        wait_for('end of the holder', 20, lambda: not os.path.exists(f'/proc/{r["holder-pid"]}'))
        x = wait_for('the end of the export', 20,
                     lambda: not (e := exports(parent, 'f'))['alive'] and e)['targets'][0]
        if x['status'] != 'failed' or not x.get('error'):
            raise Failed(f'the export says {x}')
        say(f'      {x["error"]}')
        check_parent(parent)


def grandchild(t, accel):
    """A child whose way was closed for a while is forked itself."""
    with two_children(t, 'gone', accel) as (parent, (a,), kids, road, before, _):
        close(road, a)
        road.open()
        complete(kids)
        parent.close()
        b = Agent(t, 'gone-b')
        with b:
            check_went_on(before, kids[0])
            then = snapshot(kids[0])
            export(kids[0], 'g', b.target(lend=False))
            with child(t, b, 0, accel) as k:
                check_went_on(then, k)
                complete([k])
            clone.wait_exported(kids[0], 'g')
        check_went_on(before, kids[1])


# --- vmclone ---

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
    for memory, accel in (('anon', best), ('memfd', best), ('anon', 'tcg'))[:3 if common.FULL else 1]:
        with t.case(f'the way is closed for a while, {memory}, {accel}'):
            away(t, accel, memory)
    with t.case('one of two agents'):
        one_of_two(t, best)
    with t.case('the way is closed for good'):
        for_good(t, best, False)
    with t.case('the holder is killed'):
        for_good(t, best, True)
    if common.FULL:
        with t.case('a child of a child'):
            grandchild(t, best)
    with t.case('vmclone waits'):
        clone_goes_on(t, best)
    for how in ('Ctrl-C', 'kill'):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(t.work, 'parent.console'))
        with t.case(f'vmclone is ended while it waits: {how}'):
            clone_ended(t, best, how)


if __name__ == '__main__':
    common.main(run, 380)
