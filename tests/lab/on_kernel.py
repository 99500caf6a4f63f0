#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""on_kernel.py - inside the lab, on a kernel that people run: doctor, moves and forks, over tcp, one fork over verbs

usage: lab/lab --kernel 6.1 tests/lab/on_kernel.py [CASE...]     all, or those named

What the kernel lacks costs speed, never bytes: `farfork doctor` names it, and guests that move and
fork find all of their memory right. A move with each kind of landing, one with a pass ahead, two
forks of one parent: the second one finds pages that the parent has copied since. Limit: 700 s.
"""
import json
import os
import re
import subprocess
import sys

import labplace                     # first: it knows where those of tests/e2e are
import common
from common import Failed, Micro, Skip, check_ledger, check_move, say
from forked import Child, Clone, ForkParent, check_nothing_left, check_result, kill, snapshot
from labplace import MIB

# What `farfork doctor` names, and the Linux that has it first
LACKS = {'MADV_POPULATE_WRITE': (5, 14), 'MADV_COLLAPSE': (6, 1), 'UFFDIO_POISON': (6, 6),
         'PAGEMAP_SCAN': (6, 7), 'UFFDIO_MOVE': (6, 8), 'RWF_NOWAIT': (6, 10),
         'TCP_RTO_MIN_US': (6, 15)}


class OneHost(labplace.Lab):
    """Both sides on one host, as without the lab."""
    host = source_host = '127.0.0.1'
    options = ''

    def argv(self, argv, _incoming):
        return argv


def doctor(_t):
    version = tuple(int(x) for x in re.match(r'(\d+)\.(\d+)', os.uname().release).groups())
    done = subprocess.run([common.FARFORK, 'doctor', '--json'], stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, timeout=60, check=False)
    said = {c['subject'].partition(': ')[2]: c for c in json.loads(done.stdout)['checks']
            if c['subject'].startswith('kernel: ')}
    want = {name for name, since in LACKS.items() if version < since}
    if set(said) != want or any(c['result'] != 'limited' or len(c['why']) < 20 for c in said.values()):
        raise Failed(f'Linux {os.uname().release} lacks {sorted(want)}, doctor says {said}')
    say(f'      Linux {os.uname().release} lacks {", ".join(sorted(said)) or "nothing"}')


def moves(t, kind, options):
    with Micro(t, 'a', 'tcg', kind, MIB) as src, \
            Micro(t, 'b', 'tcg', kind, MIB, incoming=True) as dst:
        src.start_load()
        moved = common.move(src, dst, options=options)
        check_move(moved)
        say(f'      {moved.line()}')
        check_ledger(src, dst, sweeps=1)


def forks(t, kind):
    """Twice: into two children and into one, of an agent that gets the memory's file, if there is
    one. That many guests under TCG under TCG have little each."""
    with ForkParent(t, 'tcg', memory=kind, mem_mib=MIB // 2) as parent:
        parent.start_load()
        for name, n in ('first', 2), ('second', 1):
            before = snapshot(parent)
            with Clone(t, parent, n, '--timeout', '200', name=name) as c:
                if c.end(400) or {k['state'] for k in c.children} != {'complete'}:
                    raise Failed(f'{c.result} {c.err}')
                for row in c.children:
                    Child(row, parent).check(before)
                kill(c.base, name)
                check_nothing_left(c, parent)


def fork_verbs(t):
    """What serves the image registers a mapping of the memory's file, which nobody may write: Linux 6.2 can."""
    if tuple(map(int, os.uname().release.split('.')[:2])) < (6, 2):
        raise Skip('Linux 6.2 registers memory that may only be read')
    two = labplace.HOSTS > 1
    launcher = ('--launcher', 'ip netns exec {host} {cmd}' if two else 'env FF_HOST={host} {cmd}')
    with ForkParent(t, 'tcg', memory='memfd', mem_mib=MIB // 2) as parent:
        parent.argv = labplace.Lab().argv(parent.argv, False)
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 1, '--timeout', '200', '--options', 'link=verbs', *launcher, hosts=['hostb=10.8.0.2' if two else f'h1={labplace.Lab().host}'],
                   prefix=labplace.Lab().argv([], False)) as c:
            if c.end(400) or c.children[0]['state'] != 'complete':
                raise Failed(f'{c.result} {c.err}')
            Child(c.children[0], parent).check(before)
            kill(c.base, 'f')


CASES = {
    'doctor': doctor,
    'move-anon': lambda t: moves(t, 'anon', ''),
    'move-memfd-copied': lambda t: moves(t, 'memfd', ',landing=copy'),
    'move-memfd-in-place': lambda t: moves(t, 'memfd', ',landing=continue'),
    'move-precopy': lambda t: moves(t, 'anon', ',precopy=1'),
    'fork-verbs': fork_verbs,
    'fork-memfd': lambda t: forks(t, 'memfd'),
    'fork-anon': lambda t: forks(t, 'anon'),
}


def run(t):
    for name in sys.argv[1:] or CASES:
        with t.case(name):
            CASES[name](t)


if __name__ == '__main__':
    unknown = [x for x in sys.argv[1:] if x not in CASES]
    if unknown:
        sys.exit(f'no such case: {", ".join(unknown)}; there are: {", ".join(CASES)}')
    common.place = OneHost()
    common.main(run, 700, labplace.need_lab)
