#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""killed_early.py - inside the lab: a side is killed, fails, or is cut off before GO

Over RDMA verbs: a destination that is killed while the source is stopped, and an outage that is too long;
--more: tests/e2e/break_before_go.py. The source goes on, the destination ends with the reason, and no queue
pair stays. Limit: 600 s.
"""
import sys

import labplace                     # first: it knows where those of tests/e2e are
import break_before_go
import cancel
import common
import one_runner
from common import Micro, check_still_running, say

SLOW = 'dest.ready=delay:4000000'


def cut_off(t):
    """The network goes away while the guest is paused, and stays away."""
    with Micro(t, 'cut-a', 'tcg', mem_mib=cancel.MIB) as src, \
            Micro(t, 'cut-b', 'tcg', mem_mib=cancel.MIB, incoming=True, faults=SLOW) as dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst, options=',timeout=2,reconnect=0') + ',timeout=2')
        common.wait_migration(src, 'device')
        with labplace.outage():
            say(f'      source: {break_before_go.failed(src)}')
            cancel.ended(dst, 40)
            check_still_running(src)
        if dst.log().lines:
            raise common.Failed(f'{dst.name}: the guest ran here')


def run(t):
    break_before_go.MIB = cancel.MIB = one_runner.MIB = 32
    if '--more' in sys.argv:
        break_before_go.run(t)
        return
    with t.case('source stopped before GO, destination killed'):
        one_runner.destination_left(t, 'tcg', 'kill')
    with t.case('outage, timeout=2'):
        cut_off(t)


if __name__ == '__main__':
    labplace.main(run, 600)
