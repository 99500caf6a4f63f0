#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""move_linux.py - a Linux guest moves with its disk, its network and a TCP client outside

Memory checksummer, counter, disk worker and TCP session go on without an error, over the
same connection; what the client felt is printed, not judged. Limit: 120 s.
"""
import os
import subprocess

import common
import linuxguest
from common import Failed, Linux, check_move, move, say

NEED = ('mem', 'counter', 'disk', 'tcp')


def announced(dst_tap, lab):
    """Packets that the destination's tap sent to the bridge: the announcement is among them."""
    path = f'/sys/class/net/{dst_tap}/statistics/rx_packets'
    out = subprocess.run(lab.inside(['cat', path]), stdout=subprocess.PIPE, text=True, check=False)
    return int(out.stdout or 0)


def one(t, name, memory, options, smp=1):
    lab = linuxguest.Lab(f'ffe2e-{os.getpid()}-{len(t.passed) + len(t.failed)}')
    t.at_end.callback(lab.close)
    settings = common.linux_settings(t, name, memory=memory, smp=smp)
    with Linux(lab, settings, 'a') as a, Linux(lab, settings, 'b') as b:
        a.start()
        common.linux_boot(a)
        client = linuxguest.Client(lab)
        try:
            common.linux_progress(settings, NEED)
            b.start(incoming=True)
            moved = move(a, b, options=options)
            check_move(moved)
            say(f'      {moved.line()}')
            a.quit()
            common.linux_progress(settings, NEED, reports=12)
            seen, code = client.finish()
        finally:
            client.close()
        say(f'      client: {seen["lines"]} lines, longest gap {seen["longest_gap_ms"]} ms at '
            f'line {seen["longest_gap_at_line"]}; packets from the destination: '
            f'{announced(b.tap, lab)}')
        if code or seen['errors'] or not seen['same_connection']:
            raise Failed(f'TCP client: {seen}')
        common.linux_check(settings, NEED)
    lab.close()


def run(t):
    with t.case('anon, tcg'):
        one(t, 'anon', 'anon', '')
    with t.case('memfd, landing=continue, tcg'):
        one(t, 'memfd', 'memfd', ',landing=continue')
    if common.FULL:
        with t.case('anon, 2 CPUs, tcg'):
            one(t, 'smp', 'anon', '', 2)


if __name__ == '__main__':
    common.main(run, 120)
