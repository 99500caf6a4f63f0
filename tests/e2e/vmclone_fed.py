#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""vmclone_fed.py - vmclone to several hosts, whose agents feed each other; limit: 400 s

Hosts are network namespaces. Every child goes on with the ledger that its parent had at the fork, and sweeps
all of its memory, wherever that came from.
"""
import json
import os
import signal

import common
from common import Failed, say, wait_for
from forked import (Child, Clone, ForkParent, check_nothing_left, check_result, hosts_of_their_own, kill,
                    snapshot)


def fed(t, accel, n_hosts, bridged, fanout='auto', options='chunk=512K'):
    """Agents feed each other, where they reach each other; else all get it from the parent."""
    with hosts_of_their_own(n_hosts, bridged) as hosts, ForkParent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, n_hosts, '--launcher', 'ip netns exec {host} {cmd}', '--fanout', fanout,
                   '--options', options, hosts=hosts) as c:
            check_result(c, 0, {'complete': n_hosts})
            rows = c.result['hosts']
            say('      ' + ', '.join(f'{r["fed_bytes"] >> 20} MiB' for r in rows) + ' from other agents')
            n = 1 if fanout == 'auto' else int(fanout)
            firsts, others = rows[:n], rows[n:]
            if any(r['fed_by'] or r['fed_bytes'] for r in firsts):
                raise Failed(f'of the first hosts one was fed: {firsts}')
            if any(bool(r['fed_by']) != bridged or bool(r['fed_bytes']) != bridged for r in others):
                raise Failed(f'hosts that {"reach" if bridged else "do not reach"} each other: {others}')
            told = [n for n in c.result['notes'] if 'gets its memory from the parent' in n]
            if len(told) != (not bridged):
                raise Failed(f'notes: {c.result["notes"]}')
            for row in c.children:
                Child(row, parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def gives_wrong(t, accel):
    """A host gives on what is not the parent's: it is found out, and named; nobody takes any of it."""
    lies = 'case {host} in *n0) exec ip netns exec {host} env FARFORK_FAILPOINTS=relay.image=fail {cmd};; ' \
           '*) exec ip netns exec {host} {cmd};; esac'
    with hosts_of_their_own(3, True) as hosts, ForkParent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 3, '--launcher', lies, '--options', 'verify=on', hosts=hosts) as c:
            check_result(c, 0, {'complete': 3})
            liar = hosts[0].partition('=')[0]
            told = [n for n in c.result['notes'] if f'host {liar} gave it memory that is not' in n]
            if len(told) != 1 or any(r['fed_by'] == liar for r in c.result['hosts']):
                raise Failed(f'notes: {c.result["notes"]}; {c.result["hosts"]}')
            for row in c.children:
                Child(row, parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def image_at(path):
    try:
        with open(path, encoding='utf-8') as f:
            return json.load(f)['image']
    except FileNotFoundError:
        return ''


def complete_each_other(t, accel):
    """The parent and what keeps its memory are killed when one of three hosts has all of it."""
    slow = 'case {host} in *n0) exec ip netns exec {host} {cmd};; *) exec ip netns exec {host} env ' \
           'FARFORK_FAILPOINTS=dest.prefill=delay:20000 {cmd};; esac'
    with hosts_of_their_own(3, True) as hosts, ForkParent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 3, '--launcher', slow, hosts=hosts) as c:
            first = os.path.join(c.base, 'f', hosts[0].partition('=')[0], 'state.json')
            export = wait_for('the export', 40, parent.exports)[0]
            wait_for('all memory at one host', 30, lambda: image_at(first) == 'complete')
            for pid in (export['holder-pid'], parent.pid):
                os.kill(pid, signal.SIGKILL)
            check_result(c, 0, {'complete': 3})
            say('      ' + ', '.join(f'{r["fed_bytes"] >> 20} MiB' for r in c.result['hosts']) +
                ' from other agents')
            for row in c.children:
                Child(row, parent).check(before)
            kill(c.base, 'f')


def run(t):
    accel = t.best_accel()
    with t.case('two hosts that do not reach each other'):
        fed(t, accel, 2, False)
    with t.case('three hosts that feed each other'):
        fed(t, accel, 3, True)
    with t.case('three hosts that feed each other, every page verified'):
        fed(t, accel, 3, True, options='verify=on')
    with t.case('a host that gives on what is wrong'):
        gives_wrong(t, accel)
    with t.case('hosts that complete each other'):
        complete_each_other(t, accel)
    if common.FULL:
        with t.case('five hosts, a tree'):
            fed(t, accel, 5, True, '2')


if __name__ == '__main__':
    common.main(run, limit_s=400)
