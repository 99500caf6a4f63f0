#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""agent_waves.py - an agent starts children in waves that the CPUs bear. Limit: 50 s

The children are programs that never say anything to the agent, so that none makes room for the
next one: the agent must not start more than a wave within the two seconds after which it takes one
for stuck, and must start all in the end. One that waits for its turn and is killed never starts.

Environment  FARFORK_BUILD (default: build)
Exit code    0 passed, 1 failed, 77 skipped with the reason
"""
import json
import os
import select
import subprocess
import time

import common
from common import Failed

WAVE_A_CPU = 2      # control/agent/agent_wave.c
STUCK_S = 2.0
START_S = 30


class Agent:
    def __init__(self, t):
        self.work, self.heard, self.events = t.work, b'', []
        self.p = subprocess.Popen(
            [common.FARFORK, 'agent', '--listen', '127.0.0.1:0', '--memory', '1048576', '--id', 'w',
             '--node', 'n', '--rundir', os.path.join(t.work, 'run')],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        t.at_end.callback(self.end)

    def say(self, command):
        self.p.stdin.write(json.dumps(command).encode() + b'\n')
        self.p.stdin.flush()

    def spawn(self, n):
        self.say({'spawn': {'number': n, 'log': f'{self.work}/{n}.log', 'argv': ['sleep', '60']}})

    def listen(self, until):
        """Events that have come by then."""
        while (left := until - time.monotonic()) > 0:
            if not select.select([self.p.stdout], [], [], left)[0]:
                break
            data = os.read(self.p.stdout.fileno(), 65536)
            if not data:
                raise Failed(f'the agent has ended after {self.events}')
            *lines, self.heard = (self.heard + data).split(b'\n')
            self.events += map(json.loads, lines)
            yield

    def children(self, what):
        return {e['child'] for e in self.events if e['event'] == 'child' and e['what'] == what}

    def end(self):
        self.p.stdin.close()        # it ends its children
        self.p.wait(20)


def run(t):
    common.need_files(common.FARFORK)
    wave = WAVE_A_CPU * len(os.sched_getaffinity(0))
    count = 3 * wave
    with t.case(f'{count} children in waves of {wave}'):
        agent = Agent(t)
        begun = time.monotonic()
        for n in range(1, count + 1):
            agent.spawn(n)
        agent.say({'kill': count})
        for _ in agent.listen(begun + STUCK_S / 2):
            pass
        first = agent.children('started')
        if len(first) > wave or not first:
            raise Failed(f'{len(first)} of {count} children were started at once, want {wave}')
        for _ in agent.listen(begun + START_S):
            if len(agent.children('started')) == count - 1:
                break
        if agent.children('started') != set(range(1, count)):
            raise Failed(f'not all have been started: {agent.events}')
        if not any(e['event'] == 'error' and e.get('child') == count for e in agent.events):
            raise Failed(f'child {count} was killed before its turn; nobody says so: '
                         f'{agent.events}')


if __name__ == '__main__':
    common.main(run, 50)
