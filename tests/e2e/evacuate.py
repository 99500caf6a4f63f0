#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""evacuate.py - farfork evacuate: every guest of a host goes to others, or stays and it is said why; limit: 150 s

In a PID namespace of its own, so that this host has no guests but the test's. Other hosts are played by
launchers.
"""
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import common
from common import Failed, check_ledger, say, status, wait_for
from farfork_move import There
from forked import ELSEWHERE, Parent, kill, processes_of

ALONE = 'FARFORK_TEST_ALONE'
HOSTS = ['h1=127.0.0.1', 'h2=127.0.0.1']


class Evacuation:
    def __init__(self, t, *args, faults=None, launcher=ELSEWHERE):
        self.base = os.path.join(t.work, 'run')
        self.proc = subprocess.Popen(
            [common.FARFORK, 'evacuate', '--json', '--rundir', self.base, *launcher, *args],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **({'FARFORK_FAILPOINTS': faults} if faults else {})})

    def end(self, code, limit_s=90):
        out, err = self.proc.communicate(timeout=limit_s)
        if self.proc.returncode != code:
            raise Failed(f'exit code {self.proc.returncode}, want {code}: {out}{err}')
        return {g['pid']: g for g in json.loads(out)['guests']}, err


@contextlib.contextmanager
def guests(t, accel, *sizes):
    """So many, each of so many MiB, all at work."""
    with contextlib.ExitStack() as stack:
        made = []
        for i, mib in enumerate(sizes):
            folder = os.path.join(t.work, f'vm{i}')
            os.makedirs(folder, exist_ok=True)
            for name in os.listdir(folder):
                os.unlink(os.path.join(folder, name))
            own = type('Work', (), {'work': folder})
            g = stack.enter_context(Parent(own, accel, mem_mib=mib, memory='memfd',
                                           extra=('-name', f'guest=vm{i}')))
            g.start_load()
            made.append(g)
        yield made


def check_gone(t, base, parent, row, name):
    """Its QEMU here has ended, and it goes on there."""
    if row['state'] != 'there' or parent.proc.wait(20) != 0:
        raise Failed(f'{row}')
    with There(t, name, row['move']['rundir'], row['move']['pid']) as b:
        check_ledger(parent, b, sweeps=1)
    kill(base, row['move']['id'])


def everybody(t, accel):
    with guests(t, accel, 48, 64, 32) as vms:
        e = Evacuation(t, *HOSTS)
        rows, _ = e.end(0)
        if set(rows) != {v.pid for v in vms} or [r['name'] for r in rows.values()] != ['vm1', 'vm0', 'vm2']:
            raise Failed(f'the largest first: {rows}')
        if {r['host'] for r in rows.values()} != {'h1', 'h2'} or any(r['tries'] != 1 for r in rows.values()):
            raise Failed(f'both hosts: {rows}')
        for i, v in enumerate(vms):
            check_gone(t, e.base, v, rows[v.pid], f'there{i}')


def chosen(t, accel):
    """One by its name; a dry run moves nobody; slots are kept."""
    with guests(t, accel, 32, 32) as vms:
        rows, _ = Evacuation(t, '--dry-run', 'h1=127.0.0.1:1', 'h2=127.0.0.1:1').end(0)
        if {r['host'] for r in rows.values()} != {'h1', 'h2'} or any(status(v) != 'running' for v in vms):
            raise Failed(f'{rows}')
        rows, _ = Evacuation(t, '--dry-run', 'h1=127.0.0.1:1').end(1)
        if sorted(r['state'] for r in rows.values()) != ['here', 'waits']:
            raise Failed(f'{rows}')
        e = Evacuation(t, '--guest', 'vm1', HOSTS[0])
        rows, _ = e.end(0)
        if set(rows) != {vms[1].pid} or status(vms[0]) != 'running':
            raise Failed(f'{rows}')
        check_gone(t, e.base, vms[1], rows[vms[1].pid], 'chosen')
        _, err = Evacuation(t, '--guest', 'nobody', HOSTS[0]).end(1)
        if 'are not here' not in err:
            raise Failed(err)


def next_host(t, accel):
    """A move that fails leaves the guest here: it goes to the other host. One host does not answer at all."""
    bad = ('--launcher', 'case {host} in none) exit 255;; h1) exec env FF_HOST={host} FARFORK_FAILPOINTS='
           'dest.ready=fail {cmd};; *) exec env FF_HOST={host} {cmd};; esac')
    with guests(t, accel, 32) as vms:
        e = Evacuation(t, 'none', HOSTS[0], 'h2=127.0.0.1', launcher=bad)
        rows, err = e.end(0)
        row = rows[vms[0].pid]
        if row['host'] != 'h2' or 'none gets no guest' not in err:
            raise Failed(f'{rows} {err}')
        say(f'      {row["tries"]} tries')
        check_gone(t, e.base, vms[0], row, 'second')
    with guests(t, accel, 32) as vms:
        rows, _ = Evacuation(t, HOSTS[0], launcher=bad).end(1)
        row = rows[vms[0].pid]
        if row['state'] != 'here' or row['tries'] != 1 or status(vms[0]) != 'running' or not row['error']:
            raise Failed(f'{row}')
        say(f'      {row["error"]}')


def no_monitor(t, accel):
    """Its sockets have clients: it stays, and it is said what to do."""
    with guests(t, accel, 32) as vms, contextlib.ExitStack() as stack:
        other = stack.enter_context(socket.socket(socket.AF_UNIX))
        other.connect(vms[0].second)
        rows, _ = Evacuation(t, HOSTS[0]).end(1)
        if 'no QMP socket of it answers' not in rows[vms[0].pid]['error'] or status(vms[0]) != 'running':
            raise Failed(f'{rows}')


def interrupted(t, accel):
    """Before the switch: all guests are here, running, and nothing is left there."""
    with guests(t, accel, 32, 32, 32) as vms:
        e = Evacuation(t, *HOSTS, faults='dest.state=delay:3000000')
        wait_for('two moves', 30, lambda: len([
            v for v in vms if v.qmp('query-migrate').get('status') in ('active', 'device')]) == 2)
        e.proc.send_signal(signal.SIGTERM)
        rows, _ = e.end(1)
        if any(r['state'] != 'here' for r in rows.values()) or any(status(v) != 'running' for v in vms):
            raise Failed(f'{rows}')
        if len([r for r in rows.values() if 'interrupted' in r['error']]) != 3:
            raise Failed(f'{rows}')
        wait_for('nothing there', 20, lambda: not processes_of(e.base))


def run(t):
    accel = t.best_accel()
    for name, case in (('everybody', everybody), ('some', chosen), ('a host that fails', next_host),
                       ('no monitor', no_monitor), ('interrupted', interrupted)):
        with t.case(name):
            case(t, accel)


if __name__ == '__main__':
    if ALONE not in os.environ and os.geteuid() == 0:
        os.execvp('unshare', ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc', 'env', f'{ALONE}=1',
                              sys.executable, *sys.argv])
    common.main(run, limit_s=150)
