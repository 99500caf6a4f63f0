#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""resume_verbs.py - inside the lab: a move over RDMA whose link breaks goes on over another

Cases of tests/e2e/resume.py, and an outage that is longer than a queue pair lives. Limit: 900 s.
"""
import labplace                     # first: it knows where those of tests/e2e are
import common
import resume
from resume import both_paused, is_resumed

MIB = 32
SLOW = 'dest.prefill=delay:200000@1-30'


def outage(t):
    src, dst = resume.pair(t, 'outage', 'tcg')
    with src, dst:
        resume.begin(src, dst, ',timeout=2')
        with labplace.outage():
            both_paused(src, dst)
            resume.silent(dst, 'much of its memory is missing')
            both_paused(src, dst)
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
    with t.case('an outage'):
        labplace.need_two_hosts()
        outage(t)


if __name__ == '__main__':
    labplace.main(run, 900)
