#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""remote.py - a guest that works on a remote accelerator is moved: its session goes on; what the calls notice

usage: remote.py [--ways rdma-postcopy|visit|preempt|postcopy|precopy...] [--mem MIB] [--kib KIB] [--depth N] [--rounds N]
                 [--json FILE]

Picture   Linux guest (gl_rpc.c) --- tap, bridge --- rpcserver.py: arguments go out, results come back, a few calls in
          flight. The guest checks every byte of each result, and that no call is lost, doubled or another's.
Figures   calls a second in the 3 s before the move, from `migrate` to its end, and in the 3 s after it; the longest
          time between two calls; each way moves a guest of its own, in turns. A visit: there, 3 s later home again
Exit code 0 measured, 1 a session broke or a result was wrong, 77 it cannot run here
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'tests', 'e2e')]

import common
import linuxguest
import linuxreport
import move_linux
import returns
from common import Failed, say

WAYS = ('rdma-postcopy', 'visit', 'preempt', 'postcopy', 'precopy')
ADDRESS, PORT = '10.77.0.1', 7100
AROUND_S = 3


class Accelerator:
    """In the guest's network."""

    def __init__(self, lab):
        self.process = subprocess.Popen(
            lab.inside([sys.executable, os.path.join(linuxguest.HERE, 'rpcserver.py'), ADDRESS, str(PORT)]),
            stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != 'listening\n':
            raise Failed('rpcserver.py does not listen')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=20)

    def so_far(self):
        self.process.send_signal(signal.SIGUSR1)
        return json.loads(self.process.stdout.readline())


def rate(bins, begin, end):
    """Calls a second between two moments of time.monotonic()."""
    return sum(n for at, n in bins if begin * 1000 <= at < end * 1000) / (end - begin)


def one(t, way, o, name):
    """A row of the table."""
    row, made = {'way': way}, []

    def beside(lab):
        made.append(Accelerator(lab))
        return made[0]

    def move_it(a, b):
        common.wait_for('calls', 60, lambda: (linuxreport.last(settings.report) or {}).get('rpc_calls', 0) > 50)
        time.sleep(AROUND_S)
        begin = time.monotonic()
        if way == 'visit':
            returns.visit(a, b)
            time.sleep(AROUND_S)
            returns.come_back(a, b)
        else:
            moved = common.move(a, b) if way == 'rdma-postcopy' else common.stock_move(a, b, way)
        end = time.monotonic()
        time.sleep(AROUND_S)
        calls = linuxreport.last(settings.report)
        said = made[0].so_far()
        row.update(before=rate(said['bins'], begin - AROUND_S, begin), during=rate(said['bins'], begin, end),
                   after=rate(said['bins'], end, end + AROUND_S), longest_gap_ms=said['longest_gap_ms'],
                   move_s=end - begin - AROUND_S if way == 'visit' else moved.took_s, calls=said['calls'])
        if calls['rpc_errors'] or said['sessions'] != 1 or calls['rpc_calls'] < row['calls'] // 2:
            raise Failed(f'{way}: the session: {calls["first_error"]} {said["sessions"]} sessions')
        return b if way == 'visit' else a

    settings = common.linux_settings(
        t, name, mem_mib=o.mem, append=f'farfork.rpc={ADDRESS}:{PORT} farfork.rpc_kib={o.kib} farfork.rpc_depth={o.depth} '
        'farfork.duty=10')
    move_linux.under_load(t, settings, move_it, beside=beside, need=('counter', 'disk', 'tcp', 'rpc'))
    return row


def table(rows, o):
    print(f'\nGuest of {o.mem} MiB under TCG; calls of {o.kib} KiB either way, {o.depth} in flight; median of {o.rounds}\n')
    print(f'{"way":14} {"before":>9} {"during":>9} {"after":>9}  calls/s   {"longest gap":>11} {"move":>8}')
    out = []
    for way in o.ways:
        mine = [r for r in rows if r['way'] == way]
        if not mine:
            continue
        m = {k: statistics.median(r[k] for r in mine) for k in ('before', 'during', 'after', 'longest_gap_ms', 'move_s')}
        out.append({'way': way, **m})
        print(f'{way:14} {m["before"]:9.1f} {m["during"]:9.1f} {m["after"]:9.1f}            {m["longest_gap_ms"]:8.0f} ms '
              f'{m["move_s"]:6.2f} s')
    return out


def run(t, o):
    rows = []
    for i in range(o.rounds):
        for way in o.ways:
            with t.case(f'{way}, round {i + 1}'):
                rows.append(one(t, way, o, f'{way}{i}'))
                say(f'      {rows[-1]}')
    out = table(rows, o)
    if o.json:
        with open(o.json, 'w', encoding='utf-8') as f:
            json.dump({'rows': rows, 'medians': out, 'mem_mib': o.mem, 'kib': o.kib, 'depth': o.depth}, f, indent=1)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--ways', nargs='+', choices=WAYS, default=['rdma-postcopy', 'preempt'])
    p.add_argument('--mem', type=int, default=256)
    p.add_argument('--kib', type=int, default=64)
    p.add_argument('--depth', type=int, default=4)
    p.add_argument('--rounds', type=int, default=1)
    p.add_argument('--json')
    o = p.parse_args()
    common.main(lambda t: run(t, o), limit_s=120 * o.rounds * len(o.ways))


if __name__ == '__main__':
    main()
