#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""fork_again.py - a second fork of one parent to a host that still has the first one's image; limit: 200 s

With verify=on what is the same comes from that image, and over the network what differs. Children go on with
the ledger that their parent had at their fork.
"""
import os
import subprocess

import common
from common import Failed, say
from forked import (Child, Clone, ForkParent, check_nothing_left, check_result, hosts_of_their_own, kill, snapshot)

LAUNCHER = ('--launcher', 'ip netns exec {host} {cmd}')


def received(host):
    """Bytes, over all network cards of that host."""
    out = subprocess.run(['ip', 'netns', 'exec', host.partition('=')[0], 'sh', '-c',
                          'cat /sys/class/net/[!l]*/statistics/rx_bytes'], check=True, capture_output=True, text=True)
    return sum(int(n) for n in out.stdout.split())


def fork(t, parent, host, name, *options):
    """Into one child: its row, that of its host, the bytes that came over the network, and the ledger before."""
    before, had = snapshot(parent), received(host)
    clone = Clone(t, parent, 1, *LAUNCHER, *options, hosts=[host], name=name)
    check_result(clone, 0, {'complete': 1})
    row = clone.result['hosts'][0]
    came = received(host) - had
    say(f'      {name}: {came >> 10} KiB over the network, {row["same_bytes"] >> 10} KiB of the earlier image')
    return clone, row, came, before


def again(t, accel, load, least):
    """@least: percent of the network's bytes that a second fork is to save."""
    with hosts_of_their_own(1, True) as hosts, ForkParent(t, accel, load=load) as parent:
        parent.start_load()
        base = os.path.join(t.work, 'run')
        try:
            first, row, all_bytes, before = fork(t, parent, hosts[0], 'f', '--options', 'verify=on')
            if row['same_bytes']:
                raise Failed(f'there is no earlier image: {row}')
            second, row, rest, later = fork(t, parent, hosts[0], 'g', '--options', 'verify=on')
            if not row['same_bytes'] or rest > all_bytes * (100 - least) / 100:
                raise Failed(f'the first fork took {all_bytes} bytes, the second one {rest}: {row}')
            third, row, _, last = fork(t, parent, hosts[0], 'h')
            if row['same_bytes']:
                raise Failed(f'nobody says what is right: {row}')
            Child(third.children[0], parent).begins(last)
            kill(base, 'h')
            for clone, had in ((first, before), (second, later)):
                Child(clone.children[0], parent).check(had)
        finally:
            for name in 'fgh':
                kill(base, name)
        check_nothing_left(first, parent)


def run(t):
    accel = t.best_accel()
    with t.case('a guest that writes a part of its memory'):
        again(t, accel, 'report_ms=400 sweep=2 wss=10 rate=20000', 20)
    if common.FULL:
        with t.case('a guest that only reads'):
            again(t, accel, 'report_ms=400 sweep=1 mode=readonly', 80)


if __name__ == '__main__':
    common.main(run, limit_s=200)
