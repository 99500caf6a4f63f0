#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""promote.py - a child of a fork takes its parent's place; limit: 300 s

The ledger of the child goes on where its parent was; what fails before GO leaves both as they were.
"""
import os
import subprocess

import common
from common import Failed, say
from farfork_move import Move, There
from forked import ENVIRON, Child, Clone, ForkParent, alive, check_result, kill, snapshot

MIB = 64
LOAD = 'report_ms=400 sweep=1'


class Promote(Move):
    """farfork promote, started."""

    def __init__(self, t, child, *args, faults=None):
        # pylint: disable=super-init-not-called
        self.base, self.name, self.command = os.path.join(t.work, 'run'), 'p', 'promote'
        env = {**os.environ, **ENVIRON, **({'FARFORK_FAILPOINTS': faults} if faults else {})}
        self.proc = subprocess.Popen([common.FARFORK, 'promote', '--json', '--rundir', self.base, '--id', self.name, '--timeout', '40',
                                      *args, child], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                     env=env, text=True)
        self.result, self.err = {}, ''


def promoted(t, memory):
    with ForkParent(t, t.best_accel(), memory=memory, mem_mib=MIB, load=LOAD) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 2) as c:
            check_result(c, 0, {'complete': 2})
            kids = [Child(row, parent) for row in c.children]
            for k in kids:
                k.begins(before)
            with Promote(t, 'f.1') as p:
                r = p.end(0, 'there')
                say(f'      {r["came_bytes"] >> 10} KiB came; downtime {r["phases_ms"]["downtime"]} ms')
                if alive(parent.proc.pid) or alive(kids[0].pid):
                    raise Failed('the parent, or the child, has not ended')
                with There(t, 'guest', r['rundir'], r['pid']) as guest:
                    common.check_ledger(guest, sweeps=1)
                kids[1].check(before)
                kill(p.base, 'p')
            kill(c.base, 'f')


def run(t):
    for memory in ('memfd', 'anon'):
        with t.case(memory):
            promoted(t, memory)


if __name__ == '__main__':
    common.main(run, 300, common.need_userfaultfd)
