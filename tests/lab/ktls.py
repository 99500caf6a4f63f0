#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""ktls.py - inside the lab: the kernel encrypts what a queue of tcp sends (kTLS)

Where tests run otherwise the kernel may not have it: there they print SKIP. The unit tests of TLS,
moves with a key in one process, and a live guest from hosta to hostb. /proc/net/tls_stat, of each
host its own, counts what the kernel did. Limit: 600 s.
"""
import glob
import os
import signal
import subprocess

import labplace
import common
from common import Failed, Micro, check_ledger, check_move, say
from labplace import MIB

BUILD = os.environ.get('FARFORK_BUILD', os.path.join(labplace.TOP, 'build'))
QUEUES = 2              # of a move; each side has them
OPTIONS = ',link=tcp,key=k'
PROGRAM_S = 200         # of each program


def stat(incoming=None):
    """The kernel's counts, by name: of this network, or of a side's host."""
    argv = ['cat', '/proc/net/tls_stat']
    if incoming is not None:
        argv = common.place.argv(argv, incoming)
    out = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                         timeout=20, check=True).stdout
    return {name: int(n) for name, n in (line.split() for line in out.splitlines())}


def children(pid):
    """Of each of its threads: a loop test runs in a child."""
    found = []
    for path in glob.glob(f'/proc/{pid}/task/*/children'):
        with open(path, encoding='ascii') as f:
            found += [int(x) for x in f.read().split()]
    return found


def say_where(pid):
    """Where each thread waits in the kernel, of a process and of its children."""
    for task in sorted(glob.glob(f'/proc/{pid}/task/*')):
        say(f'      {task}:')
        for name in ('comm', 'wchan', 'stack'):
            try:
                with open(f'{task}/{name}', encoding='ascii', errors='replace') as f:
                    say('\n'.join(f'        {name}: {x}' for x in f.read().splitlines()))
            except OSError as e:
                say(f'        {name}: {e}')
    for child in children(pid):
        say_where(child)


def output_of(argv):
    """What it printed, and its exit code; None: it hung, and it is said where."""
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as p:
        try:
            return p.communicate(timeout=PROGRAM_S)[0], p.returncode
        except subprocess.TimeoutExpired:
            say_where(p.pid)
            for child in children(p.pid):   # they hold the pipe
                os.kill(child, signal.SIGKILL)
            p.kill()
            return p.communicate(timeout=20)[0], None


def program(name, *cases):
    path = os.path.join(BUILD, 'tests', name)
    for case in cases or (None,):
        out, rc = output_of([path, case] if case else [path])
        say('\n'.join(f'      {x}' for x in out.splitlines() if 'OK ]' not in x))
        if rc is None:
            raise Failed(f'{name} {case or ""}: not done within {PROGRAM_S} s')
        if rc or 'SKIP' in out:
            raise Failed(f'{name} {case or ""}: exit code {rc}')


def loop():
    before = stat()
    program('loop/keyed', 'moves with', 'over two links')
    n = stat()['TlsTxSw'] - before['TlsTxSw']
    say(f'      the kernel encrypted for {n} connections')
    if n < 4 * 2 * QUEUES:      # four links, each with both ends here
        raise Failed(f'the kernel encrypted for {n} connections')


def moved(t, off, options=''):
    """The sides in `off` do not leave it to the kernel; a process tries a connection of its own."""
    key = os.urandom(32).hex()
    with Micro(t, 'a', 'tcg', 'anon', MIB) as src, \
            Micro(t, 'b', 'tcg', 'anon', MIB, incoming=True) as dst:
        src.start_load()
        before = {side: stat(side == 'dst') for side in ('src', 'dst')}
        for guest in (src, dst):
            guest.qmp('object-add', **{'qom-type': 'secret', 'id': 'k', 'data': key})
        switch = {s: f',kernel-tls={"off" if s in off else "on"}' for s in ('src', 'dst')}
        port = common.listen(dst, options=switch['dst'] + options)
        src.qmp('migrate', uri=port + switch['src'])
        move = common.Moved(src, dst, 0)
        check_move(move)
        say(f'      {move.line()}')
        for side in ('src', 'dst'):
            n = stat(side == 'dst')['TlsTxSw'] - before[side]['TlsTxSw']
            say(f'      {side}: the kernel encrypted for {n} connections')
            if n > 0 if side in off else n < QUEUES:
                raise Failed(f'{side}: the kernel encrypted for {n} connections')
        check_ledger(src, dst, sweeps=1)


def run(t):
    labplace.need_two_hosts()
    common.place.options = OPTIONS
    subprocess.run(['modprobe', 'tls'], check=True, timeout=20)
    with t.case('unit tests'):
        program('unit/rdma/test_tcp_tls')
    with t.case('in one process'):
        loop()
    with t.case('a guest'):
        moved(t, ())
    with t.case('a guest, precopy=1, kernel-tls=off at the destination'):
        moved(t, ('dst',), ',precopy=1')
    with t.case('a guest, kernel-tls=off at the source'):
        moved(t, ('src',))


if __name__ == '__main__':
    labplace.main(run, 600)
