#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""clock_jumps.py - inside the lab: the time of day jumps by a day, forwards and back, all the time

Nothing may notice it: moves and forks whose link breaks, limits that pass (not early, and not a day
late), leases, keys, agents. Over tcp, between processes of one host: the lab is here for its clock,
which nobody else goes by. Limit: 600 s.
"""
import contextlib
import os
import subprocess
import threading
import time

import labplace                     # first: it knows where those of tests/e2e are
import common
import farfork_move
import fork_resume
import forked
import resume
from common import Failed, say

DAY_S = 86400
TURN_S = 0.3
LIMIT_S = 600
MIB = 16

# programs of tests/loop: cases that wait for something, and see for how long
LOOPS = (('take_back', 'outage longer than the lease', 'the destination dies', 'the destination hangs'),
         ('resume_answers', 'nobody comes at first', 'GO lost'),
         ('keyed', 'a move over two links', 'breaks with a key'), ('agent_resume', 'prefill breaks at the agent', 'the source never comes back'), ('delays', 'slow activation'))


class OneHost(common.Place):
    """All of it here, below an emulated CPU."""
    accels = ['tcg']
    patience = 3
    load = labplace.Lab.load


@contextlib.contextmanager
def jumping():
    """The time of day is a day ahead, or right, or a day behind; right again at the end."""
    right = time.clock_gettime(time.CLOCK_REALTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    ends, jumps = threading.Event(), []

    def set_off(seconds):
        time.clock_settime(time.CLOCK_REALTIME,
                           right + time.clock_gettime(time.CLOCK_MONOTONIC) + seconds)

    def go_on():
        while not ends.wait(TURN_S):
            jumps.append((DAY_S, 0, -DAY_S)[len(jumps) % 3])
            set_off(jumps[-1])
    set_off(0)                      # refused: better here than in a thread
    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(10)
        set_off(0)
    if len(jumps) < 3:
        raise Failed(f'the clock jumped {len(jumps)} times: proves nothing')
    say(f'      {len(jumps)} jumps')


def loop(program, cases):
    path = os.path.join(common.BUILD, 'tests', 'loop', program)
    out = subprocess.run(['timeout', '150', path, *cases], stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, check=False)
    if out.returncode:
        raise Failed(f'{program} ended with {out.returncode}: {out.stdout[-1500:]}')


def run(t):
    common.place = OneHost()
    resume.MIB = forked.MIB = forked.FORK_MIB = MIB
    resume.SLOW = 'dest.prefill=delay:200000@1-30'
    for program, *cases in LOOPS:
        with t.case(f'{program}: {", ".join(cases)}'), jumping():
            loop(program, cases)
    with t.case('a link breaks'), jumping():
        resume.alone(t, 'tcg', 'anon', 'source')
    with t.case('a limit passes, then by hand'), jumping():
        resume.time_is_up(t, 'tcg')
    with t.case('a limit of a fork passes, not early'), jumping():
        fork_resume.for_good(t, 'tcg')
    with t.case('farfork move'), jumping():
        farfork_move.one(t, 'tcg')


if __name__ == '__main__':
    if not labplace.HOSTS:
        print('SKIP: sets the clock of the host: run it by `make check-lab`')
        raise SystemExit(77)
    labplace.main(run, LIMIT_S)
