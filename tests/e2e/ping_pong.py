#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""ping_pong.py - a guest goes back and forth between two hosts, every time whole

Each move has a new destination process; the source's ends. Limit: 120 s.
"""
import contextlib

import common
from common import Linux, Micro, check_ledger, check_move, move, say

MOVES = 20 if common.FULL else 10


def micro(t, accel, memory, options):
    went = []
    with contextlib.ExitStack() as stack:
        here = stack.enter_context(Micro(t, 'h0', accel, memory))
        here.start_load()
        went.append(here)
        downtimes = []
        for i in range(1, MOVES + 1):
            there = stack.enter_context(Micro(t, f'h{i}', accel, memory, incoming=True))
            moved = move(here, there, options=options)
            check_move(moved)
            downtimes.append(moved.src_info['downtime'])
            here.qmp('quit')
            if here.exit_code(10) != 0:
                raise common.Failed(f'{here.name}: quit after the move: exit code '
                                    f'{here.proc.returncode}; {here.tail}')
            here = there
            went.append(here)
            # it must have reported here, or its log would not show that it ran
            here.wait('a report', lambda log: len(log.lines) > 0, 60)
        check_ledger(*went)
        say(f'      {MOVES} moves, downtimes {downtimes} ms')


def linux(t):
    need = ('mem', 'counter', 'disk')
    settings = common.linux_settings(t, 'linux')
    with contextlib.ExitStack() as stack:
        here = stack.enter_context(Linux(None, settings, 'h0')).start()
        common.linux_boot(here)
        common.linux_progress(settings, need)
        for i in range(1, 5):
            there = stack.enter_context(Linux(None, settings, f'h{i}')).start(incoming=True)
            check_move(move(here, there))
            here.quit()
            here = there
            common.linux_progress(settings, need)
        common.linux_progress(settings, need, reports=8)
        common.linux_check(settings, need)


def run(t):
    accel = t.best_accel()
    with t.case(f'{MOVES} moves, anon, {accel}'):
        micro(t, accel, 'anon', '')
    with t.case(f'{MOVES} moves, memfd, landing=continue, {accel}'):
        micro(t, accel, 'memfd', ',landing=continue')
    with t.case('linux, 4 moves, tcg'):
        linux(t)


if __name__ == '__main__':
    common.main(run, 120)
