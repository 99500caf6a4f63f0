#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""killed_late.py - inside the lab: a side is killed or cut off when the guest has moved

Cases of tests/e2e/break_after_go.py over RDMA verbs, more stages, and an outage that is too
long: whoever survives says postcopy-paused and why, and the source never runs its guest
again. Limit: 490 s.
"""
import labplace                     # first: it knows where those of tests/e2e are
import break_after_go
import common
from break_after_go import check_destination, check_source, paused
from common import Failed, Micro

MIB = 32
SLOW = 'dest.prefill=delay:200000'  # 16 chunks: three seconds


def destination_dies(t, point):
    with Micro(t, 'a', 'tcg', mem_mib=MIB) as src, \
            Micro(t, 'b', 'tcg', mem_mib=MIB, incoming=True, faults=point) as dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        if dst.exit_code(30) != -9:
            raise Failed(f'{dst.name}: {point} did not kill it: {dst.proc.returncode}')
        paused(src)
        check_source(src)


def source_dies(t):
    with Micro(t, 'a', 'tcg', mem_mib=MIB, faults='source.running=kill') as src, \
            Micro(t, 'b', 'tcg', mem_mib=MIB, incoming=True, faults=SLOW) as dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        if src.exit_code(30) != -9:
            raise Failed(f'{src.name}: it was not killed')
        paused(dst)
        check_destination(src, dst)


def reason(guest):
    return common.migration(guest)['error-desc']


def cut_off(t):
    with Micro(t, 'a', 'tcg', mem_mib=MIB) as src, \
            Micro(t, 'b', 'tcg', mem_mib=MIB, incoming=True, faults=SLOW) as dst:
        src.start_load()
        options = ',timeout=3,reconnect=0'  # eight times as long after GO: the retries are over before
        src.qmp('migrate', uri=common.listen(dst, options=options) + options)
        for g in (src, dst):
            common.wait_migration(g, 'postcopy-active')
        with labplace.outage():
            for g in (src, dst):
                paused(g, 20)
        said = reason(dst)
        for word in ('verbs', 'queue pair', 'retry'):
            if word not in said:
                raise Failed(f'{dst.name}: no "{word}" in its reason: {said}')
        check_source(src)
        check_destination(src, dst)


def run(t):
    break_after_go.MIB, break_after_go.SLOW = MIB, SLOW
    for side in ('source', 'destination'):
        with t.case(f'link broken at the {side}'):
            break_after_go.link_broken(t, 'tcg', 'memfd', side)
    with t.case('source killed, prefill=off'):
        break_after_go.source_killed(t, 'tcg')
    with t.case('source killed before it knows that the guest runs'):
        source_dies(t)
    with t.case('destination killed'):
        break_after_go.destination_killed(t, 'tcg')
    for point in ('dest.running=kill', 'dest.fault=kill@30', 'dest.prefill=kill@4',
                  'dest.install=kill@100'):
        with t.case(f'destination: {point}'):
            destination_dies(t, point)
    with t.case('outage, timeout=3'):
        cut_off(t)


if __name__ == '__main__':
    labplace.main(run, 490)
