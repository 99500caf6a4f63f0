#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""rundir_full.py - a run directory without room: nothing is forked or moved, or all is found again

The run directory is a small tmpfs. Full from the start, vmclone and farfork move end before the
freeze or the switch, and name the file; full from the moment at which a QEMU is started, the state
is written all the same, and --list, --wait and --kill know it. Limit: 120 s.
"""
import contextlib
import glob
import os
import shlex
import shutil
import signal
import subprocess

import common
from common import Failed, Skip, wait_for
from farfork_move import Move, check_here, check_left_here, check_listed, listed
from forked import (ELSEWHERE, Clone, Parent, ask, check_nothing_left, check_result, kill,
                    processes_of, run_vmclone, say_phases)

SIZE = '256k'


@contextlib.contextmanager
def small(t):
    """t.work/run, of SIZE; its path."""
    path = os.path.join(t.work, 'run')
    if os.geteuid() or not shutil.which('mount'):
        raise Skip('a tmpfs of its own needs root and mount(8)')
    os.mkdir(path, 0o700)
    out = subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={SIZE},mode=700', 'tmpfs', path],
                         capture_output=True, text=True, timeout=20, check=False)
    if out.returncode:
        os.rmdir(path)
        raise Skip(f'mount: {out.stderr.strip()}')
    try:
        yield path
    finally:
        for pid, _ in processes_of(path):       # that nothing found again
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(['umount', '-l', path], timeout=20, check=True)
        os.rmdir(path)


FILL = 'dd if=/dev/zero of={} bs=4k 2> /dev/null'


def fill(path):
    """Until there is no room for a page."""
    subprocess.run(FILL.format(shlex.quote(path + '/.fill')), shell=True, timeout=20, check=False)
    if os.statvfs(path).f_bavail:
        raise Failed(f'{path} is not full')


def filling_qemu(t, path):
    """QEMU that fills the run directory before it starts."""
    wrapper = os.path.join(t.work, 'filling')
    common.write_file(wrapper, '#!/bin/sh\n' + FILL.format(shlex.quote(path + '/.fill')) +
                      f'\nexec {shlex.quote(os.path.abspath(common.QEMU))} "$@"\n')
    os.chmod(wrapper, 0o700)
    return wrapper


def full_from_start(t, accel):
    with small(t) as run, Parent(t, accel) as a:
        a.start_load()
        fill(run)
        with Clone(t, a, 2) as c:
            check_result(c, 3, {'failed': 2})
            for k in c.children:
                if 'No space left' not in k['error'] or 'state.json' not in k['error']:
                    raise Failed(f'it says: {k["error"]}')
            check_nothing_left(c)
        with Move(t, a) as m:
            m.end(1, 'here', 'No space left')
            if 'state.json' not in m.result['error']:
                raise Failed('the path is missing')
            check_here(m, a)
        if a.exports():
            raise Failed('the parent was forked')


def others_unknown(t, accel):
    """There is no room for which other hosts have children."""
    with small(t) as run, Parent(t, accel) as a:
        a.start_load()
        fill(run)
        there = os.path.join(t.work, 'there')       # the run directory of the other host
        agent = os.path.join(t.work, 'agent')
        farfork = shlex.quote(os.path.abspath(common.FARFORK))
        common.write_file(agent, f'#!/bin/sh\n[ "$1" = agent ] || exec {farfork} "$@"\n'
                                 f'exec {farfork} "$@" --rundir {there}\n')
        os.chmod(agent, 0o700)
        with Clone(t, a, 1, *ELSEWHERE, '--agent', agent, hosts=['h1=127.0.0.1']) as c, \
                contextlib.ExitStack() as end:
            end.callback(kill, there, 'f')
            check_result(c, 3, {'failed': 1})
            error = c.result['error']
            if 'No space left' not in error or 'hosts.json' not in error:
                raise Failed(f'it says: {error}')
            wait_for('an empty folder', 10, lambda: not glob.glob(there + '/*'))
            check_nothing_left(c)
        if a.exports():
            raise Failed('the parent was forked')


def full_later_fork(t, accel):
    with small(t) as run, Parent(t, accel) as a:
        a.start_load()
        with Clone(t, a, 2, '--qemu', filling_qemu(t, run)) as c:
            check_result(c, 0, {'complete': 2})
            say_phases(c)
            if os.statvfs(run).f_bavail:
                raise Failed('it is not full')
            found = [f for f in listed(run) if f['id'] == 'f']
            if [(k['pid'], k['state']) for f in found for k in f['children']] != [
                    (k['pid'], 'complete') for k in c.children]:
                raise Failed(f'--list: {found}')
            if not found[0]['detached']:
                raise Failed('the state is of before the end')
            if run_vmclone('--wait', 'f', '--timeout', '1', '--rundir', run).returncode != 1:
                raise Failed('--wait does not know them')
            kill(run, 'f')
            os.unlink(run + '/.fill')
            check_nothing_left(c, a)


def full_later_move(t, accel):
    with small(t) as run, Parent(t, accel) as a:
        a.start_load()
        with Move(t, a, '--qemu', filling_qemu(t, run)) as m:
            m.end(0, 'there')
            check_left_here(t, a, m)
            check_listed(run, 'm', 'complete')
            now = ask(m.result['qmp'], 'query-status')['status']
            if now != 'running':
                raise Failed(f'it is {now} there')
            kill(run, 'm')
            os.unlink(run + '/.fill')
            check_nothing_left(m)


def run(t):
    accel = t.best_accel()
    for name, case in (('full from the start', full_from_start),
                       ('no room for which hosts there are', others_unknown),
                       ('full later, a fork', full_later_fork),
                       ('full later, a move', full_later_move)):
        with t.case(name):
            case(t, accel)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(t.work, 'parent.console'))


if __name__ == '__main__':
    common.main(run, limit_s=120)
