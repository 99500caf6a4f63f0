#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_children.py - parent and children of Debian 13's QEMU, by attaching; limit: 290 s

What any fork does is in vmclone.py and others. Every child goes on with the ledger that its parent had at the fork, and sweeps all of its memory.
"""
import glob
import os
import random
import signal
import subprocess
import time

import attaching
import common
import report
from common import Failed, say, wait_for
from forked import (ENVIRON, LOAD, OPTIONS, QEMU, SLOW, Child, Clone, ForkParent, ask, check_nothing_left, check_result, exports_at,
                    kill, processes_of, say_phases, snapshot)
from qemu import cpu_model
from stocks import TRIXIE, qemu_of

MIB = 16
GUESTS_KIB = 1024        # what that guest writes, and is written to load its devices
AGENT_KIB, AGENT_CHILD_KIB = 3072, 256      # measured: 3057 with 8 children; 14328 where each thread has malloc()'s memory of its own
HERE_BY_LINK = ('--launcher', 'env FF_HOST={host} {cmd}')


def by_debian(t, parent, n, *args, **more):
    return Clone(t, parent, n, '--qemu', qemu_of(TRIXIE), *args, **more)


class Trixie(attaching.Parent):
    def exports(self):
        return exports_at(self.second)


def started(t, memory='memfd'):
    if memory == 'hugetlb':
        t.reserve_huge(8 * MIB)
    return Trixie(t, t.best_accel(), memory, stock=TRIXIE, mem_mib=MIB, load=LOAD)


def check_is_debians(row):
    with open(f'/proc/{row["pid"]}/maps', encoding='ascii', errors='replace') as f:
        if os.path.dirname(qemu_of(TRIXIE)) not in f.read():
            raise Failed(f'child {row["child"]} is no QEMU of Debian\'s')


def family(t, memory, n):
    """n children run, their ledgers are right; then they are ended."""
    with started(t, memory) as parent:
        parent.start_load()
        before = snapshot(parent)
        with by_debian(t, parent, n) as c:
            check_result(c, 0, {'complete': n})
            say_phases(c)
            kids = [Child(row, parent) for row in c.children]
            for row in c.children:
                check_is_debians(row)
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


def pss(pid):
    with open(f'/proc/{pid}/smaps_rollup', encoding='ascii') as f:
        return next(int(row.split()[1]) for row in f if row.startswith('Pss:'))


def start_plain(t, n):
    """QEMUs that wait for a guest of that size, and are no children."""
    for i in range(n):
        argv = [QEMU, *OPTIONS, '-nodefaults', '-display', 'none', '-machine', 'pc', '-accel', t.best_accel(), '-cpu', cpu_model(t.best_accel()), '-m',
                f'{MIB}M', '-bios', 'qboot.rom', '-S', '-incoming', 'defer', '-qmp', f'unix:{t.work}/plain{i},server=on,wait=off']
        # pylint: disable=consider-using-with
        yield subprocess.Popen(argv, env={**os.environ, **ENVIRON})


def memory(t, n):
    """A child takes no more than such a QEMU does anyhow, and the agent little for each."""
    plain = list(start_plain(t, n))
    try:
        for i, p in enumerate(plain):
            ask(wait_for('its monitor', 20, lambda i=i: os.path.exists(f'{t.work}/plain{i}') and f'{t.work}/plain{i}'), 'query-status')
        alone = sorted(pss(p.pid) for p in plain)
    finally:
        for p in plain:
            p.kill()
            p.wait()
    with ForkParent(t, t.best_accel(), memory='memfd', mem_mib=MIB, load='report_ms=400 wss=1') as parent:
        parent.start_load()
        with Clone(t, parent, n) as c:
            check_result(c, 0, {'complete': n})
            each = sorted(pss(row['pid']) for row in c.children)
            agent = sum(pss(pid) for w in ('farfork', 'farfork-watcher') for pid in parts(c, w))
            say(f'      Pss {each[0]}..{each[-1]} KiB a child, {alone[0]}..{alone[-1]} KiB a QEMU that waits; agent {agent} KiB')
            if each[n // 2] > alone[n // 2] + GUESTS_KIB or agent > AGENT_KIB + n * AGENT_CHILD_KIB:
                raise Failed('that is more than it was')
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def run(t):
    with t.case('a child of huge pages'):
        family(t, 'hugetlb', 1)
    with t.case('the agent is killed while pages are missing'):
        killed(t, 'farfork')
    with t.case('the watcher is killed while pages are missing'):
        no_watcher(t)
    with t.case('memory'):
        memory(t, 8)


def needs():
    common.need_userfaultfd()
    common.need_files(qemu_of(TRIXIE))


if __name__ == '__main__':
    common.main(run, 290, needs)
