#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""clocks.py - nothing waits by the time of day, which an administrator or NTP may set

usage: tests/layout/clocks.py

A limit that is counted by the time of day ends early, or hours late, when that jumps. So code waits
by CLOCK_MONOTONIC, or CLOCK_BOOTTIME where a suspended host counts, and asks for the time of day
only to tell it. What waits by the time of day unless it is told otherwise is not called.
"""
import os
import re
import sys

TOP = os.environ.get('FARFORK_TOP', '.')
FOLDERS = ('base', 'rdma', 'uffd', 'migrate', 'probe', 'clone', 'vm', 'control', 'cli',
           'qemu-patches/src')
FORBIDDEN = re.compile(r'\b(CLOCK_REALTIME\w*|CLOCK_TAI|pthread_timedjoin_np|'
                       r'pthread_mutex_timedlock|pthread_rwlock_timed\w+|sem_timedwait|mq_timed\w+|'
                       r'gettimeofday|g_get_real_time|QEMU_CLOCK_HOST|(?<!\w)time)\b(?=\s*[(,);])')
# function: what it tells the time of day to
TELLS = {('control/agent/agent_events.c', 'agent_state'): 'who reads the state file',
         ('control/host/metrics.c', 'metrics_time'): 'monitoring',
         ('control/fork/fork_spawn.c', 'channel_of'): 'a child, which sets its clock by it'}
# a condition waits by the clock that it was made with: ff_cond_init(), ff_cond_wait_until()
CONDITION = re.compile(r'\bpthread_cond_timedwait\(')
FUNCTION = re.compile(r'^\w[^;{}#]*?(\w+)\([^;{}]*\)\n\{', re.M)
COMMENT = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', re.S)


def blank(match):
    return re.sub(r'[^\n]', ' ', match[0])


def find_wrong(path, text):
    """Lines that say which function of the file asks for which clock"""
    text = COMMENT.sub(blank, text)
    starts = [(m.end(), m[1]) for m in FUNCTION.finditer(text)]
    wrong = []
    for pattern in (FORBIDDEN, CONDITION):
        for m in pattern.finditer(text):
            function = ([''] + [name for at, name in starts if at <= m.start()])[-1]
            if (path, function) in TELLS or (pattern is CONDITION and path == 'base/thread.c'):
                continue
            line = text.count('\n', 0, m.start()) + 1
            wrong.append(f'{path}:{line}: {function}(): {m[0].rstrip("(")}: the time of day can '
                         'jump; wait by CLOCK_MONOTONIC (base/thread.h, ff_now_ns())')
    return wrong


def check_itself():
    bad = 'int f(void)\n{\n    clock_gettime(CLOCK_REALTIME, &t);\n    sem_timedwait(&s, &t);\n}\n'
    good = 'int f(void)\n{\n    /* CLOCK_REALTIME, */ return ff_cond_wait_until(c, l, end);\n}\n'
    if len(find_wrong('a.c', bad)) != 2 or find_wrong('a.c', good):
        sys.exit('clocks.py: does not find what it looks for')


def main():
    check_itself()
    wrong, n = [], 0
    for folder in FOLDERS:
        for where, _, names in sorted(os.walk(os.path.join(TOP, folder))):
            for name in sorted(names):
                if not name.endswith(('.c', '.h')):
                    continue
                path = os.path.relpath(os.path.join(where, name), TOP)
                n += 1
                with open(os.path.join(TOP, path), encoding='utf-8') as f:
                    wrong += find_wrong(path, f.read())
    for line in wrong:
        print(line)
    print(f'{n} files: {"clocks that jump" if wrong else "nothing waits by the time of day"}')
    return 1 if wrong or n < 100 else 0


if __name__ == '__main__':
    sys.exit(main())
