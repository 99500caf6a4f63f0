#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""touched.py - which pages children touched is kept for the next fork, and told to its hosts; limit: 300 s"""
import glob
import os

import common
from common import Failed, say
from forked import ELSEWHERE, SLOW, TWO_HOSTS, Child, Clone, ForkParent, check_result, kill, snapshot


def read(path):
    with open(path, encoding='ascii') as f:
        return f.read()


def working_set(t, accel):
    """What children touched is kept, and told to the hosts of the next fork of that parent, or of another."""
    path = os.path.join(t.work, 'pages')
    with ForkParent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)

        def fork(*args, faults=None, check=False):
            with Clone(t, parent, 1, *ELSEWHERE, *args, hosts=TWO_HOSTS[:1], faults=faults) as c:
                check_result(c, 0, {'complete': 1})
                if check:
                    Child(c.children[0], parent).check(before)
                kill(c.base, 'f')
                of_parent = glob.glob(os.path.join(c.base, f'.working-set-{parent.pid}-*'))
                return read(of_parent[0]) if of_parent else None

        if fork('--working-set', 'none', faults=SLOW) or fork('--working-set', path, faults=SLOW):
            raise Failed('kept in the run directory, which was not asked for')
        named = read(path)
        header, _, pages = named.partition('\n')
        say(f'      {pages.count(",") + 1} spans, {len(pages)} bytes')
        if header != 'farfork working set 1' or 'pc.ram=' not in pages:
            raise Failed(f'{path}: {named[:100]}')
        if os.stat(path).st_mode & 0o777 != 0o600:
            raise Failed(f'{path}: others can read which pages were touched')
        fork('--working-set', path, check=True)
        if not read(path).startswith(named.rstrip()):
            raise Failed(f'the hosts did not hear it: {read(path)[:100]}')
        first, second = fork(faults=SLOW), fork(faults=SLOW)
        if not first or not second.startswith(first.rstrip()):
            raise Failed(f'not kept for the same parent: {first}, then {second}')
        for bad in ('/dev/null', '/etc/passwd', t.work):
            with Clone(t, parent, 1, '--working-set', bad) as c:
                if c.end() != 3 or f'working set {bad}: want a file that vmclone wrote' not in c.err + str(c.result):
                    raise Failed(f'{bad}: {c.err} {c.result}')


def run(t):
    with t.case('what children touched comes first'):
        working_set(t, t.best_accel())


if __name__ == '__main__':
    common.main(run, limit_s=300)
