#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""evacuate.py - farfork evacuate: every guest of a host goes to others, or stays and it is said why; limit: 150 s

In a PID namespace of its own, so that this host has no guests but the test's. Other hosts are played by
launchers.
"""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import common
from common import Failed, check_ledger, say, status, wait_for
from farfork_move import There
from forked import ENVIRON, SLOW, Clone, ForkParent, kill, processes_of, run_vmclone

ALONE = 'FARFORK_TEST_ALONE'
HOSTS = ['h1=127.0.0.1', 'h2=127.0.0.1']
ANOTHER = 'unshare --uts env FF_HOST={host}'       # a host has a name space of its own, at least
ELSEWHERE = ('--launcher', ANOTHER + ' {cmd}')


class Evacuation:
    def __init__(self, t, *args, faults=None, launcher=ELSEWHERE):
        self.base = os.path.join(t.work, 'run')
        self.proc = subprocess.Popen(
            [common.FARFORK, 'evacuate', '--json', '--rundir', self.base, *launcher, *args],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **ENVIRON, **({'FARFORK_FAILPOINTS': faults} if faults else {})})

    def end(self, code, limit_s=90):
        out, err = self.proc.communicate(timeout=limit_s)
        if self.proc.returncode != code:
            raise Failed(f'exit code {self.proc.returncode}, want {code}: {out}{err}')
        return {g['pid']: g for g in json.loads(out)['guests']}, err


@contextlib.contextmanager
def guests(t, accel, *sizes, extra=()):
    """So many, each of so many MiB, all at work."""
    with contextlib.ExitStack() as stack:
        made = []
        for i, mib in enumerate(sizes):
            folder = os.path.join(t.work, f'vm{i}')
            shutil.rmtree(folder, ignore_errors=True)       # the case's before
            os.makedirs(folder)
            own = type('Work', (), {'work': folder})
            g = stack.enter_context(ForkParent(own, accel, mem_mib=mib, memory='memfd',
                                           extra=('-name', f'guest=vm{i}', *extra)))
            g.start_load()
            g.work_of = own
            made.append(g)
        yield made


@contextlib.contextmanager
def guests_named(t, accel, name):
    """Another guest, with that name."""
    folder = os.path.join(t.work, 'named')
    os.makedirs(folder)
    with ForkParent(type('Work', (), {'work': folder}), accel, mem_mib=32, extra=('-name', f'guest={name}')) as g:
        yield g


@contextlib.contextmanager
def impostor(user, sockets=1):
    """A process that is called as a QEMU is, with monitors where nobody answers; these."""
    with tempfile.TemporaryDirectory(dir='/tmp') as folder, contextlib.ExitStack() as stack:
        os.chmod(folder, 0o755)
        program = shutil.copy('/bin/dash', os.path.join(folder, 'qemu-system-x86_64'))
        argv, bound = [program, '-c', 'sleep 300; :'], []
        for i in range(sockets):
            s = stack.enter_context(socket.socket(socket.AF_UNIX))
            s.bind(os.path.join(folder, f'{i}.qmp'))
            s.listen(8)
            s.setblocking(False)
            bound.append(s)
            argv += ['-qmp', f'unix:{folder}/{i}.qmp,server=on']
        with subprocess.Popen(argv, user=user, start_new_session=True) as p:
            try:
                yield p, bound
            finally:
                os.killpg(p.pid, signal.SIGKILL)


def tried(sockets):
    """How many of them somebody has connected to."""
    n = 0
    for s in sockets:
        with contextlib.suppress(BlockingIOError):
            s.accept()[0].close()
            n += 1
    return n


def held(guest):
    """Its move has saved its state."""
    with open(f'/proc/{guest.proc.pid}/stat', encoding='ascii') as f:
        return f.read().rsplit(')', 1)[1].split()[0] == 't'


def check_gone(t, base, parent, row, name):
    """Its QEMU here has ended, and it goes on there."""
    if row['state'] != 'there' or parent.proc.wait(20) != -signal.SIGKILL:
        raise Failed(f'{row}')
    with There(t, name, row['move']['rundir'], row['move']['pid']) as b:
        check_ledger(parent, b, sweeps=1)
    kill(base, row['move']['id'])


def everybody(t, accel):
    with guests(t, accel, 48, 64, 32) as vms, impostor(4242) as (other, sockets):
        e = Evacuation(t, *(f'{host}:2' for host in HOSTS))
        rows, err = e.end(0)
        if f'pid {other.pid} is of another user (uid 4242), and was left out' not in err or tried(sockets):
            raise Failed(f'another user\'s process: {err}')
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
        if sorted(r['state'] for r in rows.values()) != ['here', 'planned']:
            raise Failed(f'{rows}')
        e = Evacuation(t, '--guest', 'vm1', HOSTS[0])
        rows, _ = e.end(0)
        if set(rows) != {vms[1].pid} or status(vms[0]) != 'running':
            raise Failed(f'{rows}')
        check_gone(t, e.base, vms[1], rows[vms[1].pid], 'chosen')
        _, err = Evacuation(t, '--guest', 'nobody', HOSTS[0]).end(1)
        if 'no guest nobody is here' not in err:
            raise Failed(err)


def next_host(t, accel):
    """A move that fails leaves the guest here: it goes to the other host. One host does not answer at all."""
    bad = ('--launcher', f'case {{host}} in none) exit 255;; h1) exec {ANOTHER} FARFORK_FAILPOINTS='
           f'dest.ready=fail {{cmd}};; *) exec {ANOTHER} {{cmd}};; esac')
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


def stands_still(t, accel):
    """A move that is stopped: the others go on, and of its guest it is said that nobody knows."""
    with guests(t, accel, 48, 32) as vms:
        e = Evacuation(t, '--jobs', '1', HOSTS[0], faults='evacuate.still=fail', launcher=(
            '--launcher', f'{ANOTHER} FARFORK_FAILPOINTS=dest.state=delay:2000000 {{cmd}}'))
        wait_for('a move', 30, lambda: held(vms[0]))
        with open(f'/proc/{e.proc.pid}/task/{e.proc.pid}/children', encoding='ascii') as f:
            move = int(f.read().split()[0])
        os.kill(move, signal.SIGSTOP)
        try:
            rows, _ = e.end(3)
        finally:
            os.kill(move, signal.SIGKILL)
        if [rows[v.pid]['state'] for v in vms] != ['unknown', 'there'] or 'stands still' not in rows[vms[0].pid]['error']:
            raise Failed(f'{rows}')
        check_gone(t, e.base, vms[1], rows[vms[1].pid], 'beside')
        for fork in json.loads(run_vmclone('--list', '--json', '--rundir', e.base).stdout):
            kill(e.base, fork['id'])


def no_monitor(t, accel):
    """Its sockets have clients: it stays, and it is said what to do. One of them stands in a file."""
    third, config = (os.path.join(t.work, name) for name in ('third.qmp', 'third.cfg'))
    common.write_file(config, f'''[rtc]
  base = "utc"
[chardev "third"]
  backend = "socket"
  path = "{third}"
  server = "on"
  wait = "off"
[mon "third"]
  chardev = "third"
  mode = "control"
''')
    with guests(t, accel, 32, extra=('-readconfig', config)) as vms, contextlib.ExitStack() as stack:
        other, last = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        other.connect(vms[0].second)
        rows, _ = Evacuation(t, '--dry-run', HOSTS[0]).end(0)
        if rows[vms[0].pid]['state'] != 'planned':
            raise Failed(f'its monitor in {config}: {rows}')
        last.connect(third)
        rows, _ = Evacuation(t, HOSTS[0]).end(1)
        if 'no QMP socket of it answers' not in rows[vms[0].pid]['error'] or status(vms[0]) != 'running':
            raise Failed(f'{rows}')


def this_host(t, accel):
    """Whatever it is called, and one host by two names: no guest moves to where it is."""
    with guests(t, accel, 32) as vms, impostor(0, 9) as (_, sockets):
        rows, err = Evacuation(t, 'me=127.0.0.1', launcher=('--launcher', 'env FF_HOST={host} {cmd}')).end(1)
        if 'this very host' not in err or status(vms[0]) != 'running' or rows[vms[0].pid]['tries']:
            raise Failed(f'{rows} {err}')
        if tried(sockets) != 4:
            raise Failed('so many silent sockets of one process cost 2 s each')
        # a name that is another guest's process number names two
        with guests_named(t, accel, str(vms[0].pid)):
            rows, err = Evacuation(t, '--guest', str(vms[0].pid), HOSTS[0]).end(1)
            if rows or 'names 2 guests' not in err or status(vms[0]) != 'running':
                raise Failed(f'{rows} {err}')
    for more in (('--', '--help'), ('--', '--js'), ('--', '--record', 'x'), ('--nobody',)):
        e = Evacuation(t, HOSTS[0], *more)
        e.proc.communicate(timeout=30)
        if e.proc.returncode != 2:
            raise Failed(f'{more}: exit code {e.proc.returncode}')


def others_fetch(t, accel):
    """What keeps the memory of a fork for other hosts is no guest, and has to stay. A parent goes nevertheless."""
    with guests(t, accel, 32) as vms:
        slow = ('--launcher', f'{ANOTHER} FARFORK_FAILPOINTS={SLOW} {{cmd}}')
        with Clone(vms[0].work_of, vms[0], 1, *slow, hosts=['h1=127.0.0.1']) as c:
            holder = wait_for('the export', 40, vms[0].exports)[0]['holder-pid']
            rows, _ = Evacuation(t, '--dry-run', HOSTS[0]).end(1)
            if 'other hosts still fetch' not in rows[holder]['error'] or rows[vms[0].pid]['state'] != 'planned':
                raise Failed(f'{rows}')
            kill(c.base, 'f')


def ended_meanwhile(t, accel):
    """A guest that has ended when it is its turn is gone, too."""
    with guests(t, accel, 48, 32) as vms:
        e = Evacuation(t, '--jobs', '1', HOSTS[0], faults='dest.state=delay:8000000')
        wait_for('a move', 30, lambda: held(vms[0]))
        vms[1].proc.kill()
        vms[1].proc.wait()
        rows, _ = e.end(0)
        if [rows[v.pid]['state'] for v in vms] != ['there', 'ended']:
            raise Failed(f'{rows}')
        check_gone(t, e.base, vms[0], rows[vms[0].pid], 'meanwhile')


def interrupted(t, accel):
    """Before the switch: all guests are here, running, and nothing is left there."""
    with guests(t, accel, 32, 32, 32) as vms:
        e = Evacuation(t, *HOSTS, faults='dest.state=delay:8000000')
        wait_for('two moves', 30, lambda: len([
            v for v in vms if held(v)]) == 2)
        for _ in range(3):              # the moves hear of the first alone
            e.proc.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        rows, _ = e.end(1)
        if any(r['state'] != 'here' for r in rows.values()) or any(status(v) != 'running' for v in vms):
            raise Failed(f'{rows}')
        if len([r for r in rows.values() if 'interrupted' in r['error']]) != 3:
            raise Failed(f'{rows}')
        wait_for('nothing there', 20, lambda: not processes_of(e.base))


def run(t):
    accel = t.best_accel()
    cases = [('everybody', everybody), ('a host that fails', next_host), ('this host', this_host),
             ('interrupted', interrupted), ('a move that stands still', stands_still)]
    if common.FULL:
        cases += [('some', chosen), ('no monitor', no_monitor), ('others fetch from here', others_fetch),
                  ('one ends meanwhile', ended_meanwhile)]
    for name, case in cases:
        with t.case(name):
            case(t, accel)


if __name__ == '__main__':
    if os.geteuid():                    # it would find the guests of others
        print('SKIP: a PID namespace of its own needs root')
        sys.exit(77)
    if ALONE not in os.environ:
        os.execvp('unshare', ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc', 'env', f'{ALONE}=1',
                              sys.executable, *sys.argv])
    common.main(run, limit_s=150)
