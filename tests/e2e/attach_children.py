#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_children.py - children of a fork that are Debian's own QEMU, by attaching; limit: 290 s

The parent is Farfork's QEMU, of the same version. Every child goes on with the ledger that its parent had at the fork,
and sweeps all of its memory.
"""
import glob
import os
import random
import signal
import time

import common
import report
from common import Failed, say, status, wait_for
from forked import (SLOW, Child, Clone, Parent, ask, check_nothing_left, check_result, hosts_of_their_own, kill,
                    processes_of, say_phases, snapshot)
from stocks import TRIXIE, qemu_of

MIB = 16
NETNS = ('--launcher', 'ip netns exec {host} {cmd}')
HERE_BY_LINK = ('--launcher', 'env FF_HOST={host} {cmd}')


def by_debian(t, parent, n, *args, stock=TRIXIE, **more):
    return Clone(t, parent, n, '--qemu', qemu_of(stock), *args, **more)


def started(t, memory='memfd', **more):
    if memory == 'hugetlb':
        t.reserve_huge(8 * MIB)
    return Parent(t, t.best_accel(), memory=memory, mem_mib=MIB, **more)


def check_is_debians(row, stock):
    with open(f'/proc/{row["pid"]}/maps', encoding='ascii', errors='replace') as f:
        if os.path.dirname(qemu_of(stock)) not in f.read():
            raise Failed(f'child {row["child"]} is no QEMU of Debian\'s')


def family(t, memory, n, *args, hosts=(), faults=None, stock=TRIXIE, **more):
    """n children run, their ledgers are right; then they are ended."""
    with started(t, memory, **more) as parent:
        parent.start_load()
        before = snapshot(parent)
        with by_debian(t, parent, n, *args, hosts=hosts, faults=faults, stock=stock) as c:
            check_result(c, 0, {'complete': n})
            say_phases(c)
            kids = [Child(row, parent) for row in c.children]
            for row in c.children:
                check_is_debians(row, stock)
            for k in kids:
                k.begins(before)
            for k in kids:
                k.check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def parts(c, comm):
    """Processes of that fork with this name."""
    found = []
    for pid, _ in processes_of(c.base):
        try:
            with open(f'/proc/{pid}/comm', encoding='ascii') as f:
                if f.read().strip() == comm:
                    found.append(pid)
        except OSError:
            pass
    return found


def check_consoles(consoles):
    """What guests said before they were ended: none has found a wrong byte."""
    said = 0
    for f in consoles:
        log = report.Log()
        log.feed(f.read())
        f.close()
        said += len(log.lines)
        for line in log.lines + [e for e in log.events if e['event'] == 'error']:
            if line.get('event') == 'error' or any(line[key] for key in report.BAD):
                raise Failed(f'{f.name}: {line}')
    return said


def killed(t, what):
    """@what, at a moment of no choice, while pages are missing: children that lack some end, and nobody has read zeros."""
    seed = random.randrange(1 << 30)
    wait_s = random.Random(seed).uniform(0, 1.5)
    with started(t) as parent:
        parent.start_load()
        with by_debian(t, parent, 3, *HERE_BY_LINK, hosts=['h1=127.0.0.1'], faults='dest.prefill=delay:1500000@1-40') as c:
            wait_for('a child that runs', 40, lambda: any(os.path.getsize(p) for p in glob.glob(c.base + '/f/*/*.console')))
            time.sleep(wait_s)      # any moment will do
            pids = parts(c, what)
            consoles = [open(p, 'rb') for p in glob.glob(c.base + '/f/*/*.console')]    # their folder goes
            if not pids:
                raise Failed(f'no process {what}: {processes_of(c.base)}')
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            c.end()
            wait_for('end of all children', 20, lambda: not parts(c, 'qemu-system-x86') and not parts(c, 'ld-linux-x86-64') or None)
            say(f'      {what} killed after {wait_s:.2f} s (seed {seed}); {check_consoles(consoles)} reports before that')
            common.check_ledger(parent, sweeps=1)


def no_watcher(t):
    """It is not needed any more once memory is watched: children get all of it without."""
    with started(t) as parent:
        parent.start_load()
        before = snapshot(parent)
        with by_debian(t, parent, 2, *HERE_BY_LINK, hosts=['h1=127.0.0.1'], faults=SLOW) as c:
            wait_for('children that run', 40, lambda: len(glob.glob(c.base + '/f/*/*.console')) == 2 or None)
            wait_for('reports', 40, lambda: all(os.path.getsize(p) for p in glob.glob(c.base + '/f/*/*.console')))
            for pid in parts(c, 'farfork-watcher'):
                os.kill(pid, signal.SIGKILL)
            check_result(c, 0, {'complete': 2})
            for row in c.children:
                Child(row, parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def paused(t):
    """The parent does not run, and nor does its child, until it is told to."""
    with started(t) as parent:
        parent.start_load()
        before = snapshot(parent)
        parent.qmp('stop')
        with by_debian(t, parent, 1) as c:
            check_result(c, 0, {'complete': 1})
            row = c.children[0]
            if ask(row['qmp'], 'query-status')['running'] or status(parent) != 'paused':
                raise Failed('a child of a paused parent runs, or the parent does')
            ask(row['qmp'], 'cont')
            Child(row, parent).check(before)
            kill(c.base, 'f')
            parent.qmp('cont')
            check_nothing_left(c, parent)


def pss(pid):
    with open(f'/proc/{pid}/smaps_rollup', encoding='ascii') as f:
        return next(int(row.split()[1]) for row in f if row.startswith('Pss:'))


def beside_patched(t, n):
    """Printed: what a child takes, and when it runs, beside those of Farfork's QEMU in the same run."""
    with started(t, load='report_ms=400 wss=1') as parent:
        parent.start_load()
        for name, args in (('Farfork\'s', ()), ('Farfork\'s, each by exec', ('--qemu', os.path.abspath(common.QEMU))),
                           ('Debian\'s', ('--qemu', qemu_of(TRIXIE)))):
            with Clone(t, parent, n, *args) as c:
                check_result(c, 0, {'complete': n})
                each = sorted(pss(row['pid']) for row in c.children)
                agents = sum(pss(pid) for w in ('farfork', 'farfork-watcher') for pid in parts(c, w))
                p = c.result['phases_ms']
                say(f'      {n} of {name}: Pss {each[0]}..{each[-1]} KiB a child, agent {agents} KiB; first instruction '
                    f'{p["first_instruction"]:.0f} ms, of the last {p["last_first_instruction"]:.0f} ms')
                kill(c.base, 'f')
                check_nothing_left(c)


def run(t):
    with t.case('3 children here, of shared memory'):
        family(t, 'memfd', 3)
    with t.case('2 children here, of anonymous memory, started ahead'):
        family(t, 'anon', 2, '--prestart')
    with t.case('a child of huge pages'):
        family(t, 'hugetlb', 1)
    with t.case('3 children on another host, pages come slowly'), hosts_of_their_own(1) as hosts:
        family(t, 'memfd', 3, *NETNS, hosts=hosts, faults=SLOW)
    with t.case('the agent is killed while pages are missing'):
        killed(t, 'farfork')
    with t.case('the watcher is killed while pages are missing'):
        no_watcher(t)
    with t.case('of a paused parent'):
        paused(t)
    with t.case('memory and time, beside the patched'):
        beside_patched(t, 8)


def needs():
    common.need_userfaultfd()
    common.need_files(qemu_of(TRIXIE))


if __name__ == '__main__':
    common.main(run, 290, needs)
