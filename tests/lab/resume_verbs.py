#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""resume_verbs.py - inside the lab: a move over RDMA whose link breaks goes on over another

Cases of tests/e2e/resume.py, and an outage of 5 s, which is longer than a queue pair lives. With
--long those of a minute and of 10 instead. Limit: 900 s.
"""
import sys
import time

import labplace                     # first: it knows where those of tests/e2e are
import common
import resume
from resume import both_paused, is_resumed

MIB = 32
SLOW = 'dest.prefill=delay:200000@1-30'


def outage(t, seconds):
    """Both sides may notice it late; none is resumed before it ends."""
    src, dst = resume.pair(t, f'outage-{seconds}', 'tcg')
    with src, dst:
        resume.begin(src, dst, f',timeout=5,reconnect={seconds + 300}')
        with labplace.outage():
            until = time.monotonic() + seconds
            both_paused(src, dst)
            resume.silent(dst, 'much of its memory is missing')
            time.sleep(max(0, until - time.monotonic()))
            both_paused(src, dst)
        up = time.monotonic()
        common.wait_for('another link', 60, lambda: 'postcopy-recover' in common.event_names(dst))
        common.say(f'      the link is back; resumed after {time.monotonic() - up:.1f} s')
        is_resumed(src, dst)


def run(t):
    resume.MIB, resume.SLOW, resume.SLOWER = MIB, SLOW, SLOW
    for kind, side in (('anon', 'source'), ('memfd', 'destination')):
        with t.case(f'resumes by itself, broken at the {side}, {kind}'):
            resume.alone(t, 'tcg', kind, side)
    with t.case('paused at the destination'):
        resume.paused_at_destination(t, 'tcg')
    with t.case('by hand at another port'):
        resume.elsewhere(t, 'tcg')
    with t.case('GO is lost'):
        resume.go_lost(t, 'tcg')
    outages(t, 5)


def outages(t, *seconds):
    for s in seconds:
        with t.case(f'an outage of {s} s'):
            labplace.need_two_hosts()
            outage(t, s)


def run_long(t):
    resume.MIB, resume.SLOW, resume.SLOWER = MIB, SLOW, SLOW
    outages(t, 60, 600)


if __name__ == '__main__':
    labplace.main(run_long if '--long' in sys.argv else run, 900)
