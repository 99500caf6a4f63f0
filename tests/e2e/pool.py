#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""pool.py - vmclone --keep: forks of children that were started before anybody asked; limit: 800 s

A fork from the pool is like any other: each child has its parent's memory. A child that waits never
runs. Whatever ends, nothing of the pool is left; and who asks gets a fork in any case.
"""
import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import time

import common
from common import Failed, say, wait_for
from forked import (ENVIRON, QEMU, SLOW, Child, Clone, ForkParent, alive, ask, check_nothing_left, check_result,
                    hosts_of_their_own, kill, processes_of, run_vmclone, say_phases, snapshot, weight)

FARFORK = os.path.join(common.BUILD, 'bin', 'farfork')
MIB = 32
NAMESPACE = ('--launcher', 'ip netns exec {host} {cmd}')


class Pool:
    """vmclone --keep, and what it says."""

    def __init__(self, t, parent, n, *args, hosts=(), rundir='run'):
        self.base = os.path.join(t.work, rundir)
        self.heard, self.parent = b'', parent
        env = {**os.environ, **ENVIRON, 'FARFORK_RUNDIR': self.base}
        # pylint: disable=consider-using-with
        self.proc = subprocess.Popen(
            [common.BUILD + '/bin/vmclone', '--keep', str(n), '--json', '--rundir', self.base, *args,
             parent.second, *hosts], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, env=env)

    def event(self, name, limit_s=120):
        end = time.monotonic() + limit_s
        while b'\n' not in self.heard:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.proc.stdout], [], [], left)[0]:
                raise Failed(f'no event {name} within {limit_s} s')
            data = os.read(self.proc.stdout.fileno(), 65536)
            if not data:
                raise Failed(f'no event {name}, the pool has ended: {self.proc.wait(20)} '
                             f'{self.proc.stderr.read()}')
            self.heard += data
        line, self.heard = self.heard.split(b'\n', 1)
        e = json.loads(line)
        if e['event'] != name:
            raise Failed(f'event {e}, want {name}')
        return e

    def ended(self, code, text=''):
        out, err = self.proc.communicate(timeout=40)
        if self.proc.returncode != code or text not in err.decode() or out or self.heard:
            raise Failed(f'exit code {self.proc.returncode}, want {code}: {self.heard} {out} {err}')

    def state(self):
        out = subprocess.run([FARFORK, 'pool', '--json', '--rundir', self.base], timeout=30,
                             stdout=subprocess.PIPE, check=True)
        return json.loads(out.stdout)

    def waiting(self):
        """Children that were started and have no fork, by pid: where their QMP sockets are."""
        return {k['pid']: k['qmp'] for f in json.loads(
            run_vmclone('--list', '--json', '--rundir', self.base).stdout)
                if f['image'] == 'waiting' and f['agent_alive'] for k in f['children']}

    def agents(self):
        return [f['agent'] for f in json.loads(
            run_vmclone('--list', '--json', '--rundir', self.base).stdout) if f['image'] == 'waiting']

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            self.proc.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.proc.communicate(timeout=30)
        self.proc.kill()
        self.proc.wait(10)
        for pipe in (self.proc.stdout, self.proc.stderr):
            pipe.close()


class Fork(Clone):
    """vmclone, as its user types it with a pool."""

    def __init__(self, pool, n, *args, hosts=()):
        # pylint: disable=super-init-not-called
        self.base, self.result, self.err = pool.base, None, ''
        self.argv = [common.BUILD + '/bin/vmclone', '--json', '--rundir', self.base, '--timeout', '40',
                     *args, pool.parent.second, str(n), *hosts]
        # pylint: disable=consider-using-with
        self.proc = subprocess.Popen(self.argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     stdin=subprocess.DEVNULL, text=True, env={**os.environ, **ENVIRON})

    def __exit__(self, *_):
        super().__exit__()
        if self.result:
            kill(self.base, self.result['id'])

    def ordinary(self, text=''):
        """Whether it was one; with that reason."""
        said = 'an ordinary fork' in self.err
        if said and text not in self.err:
            raise Failed(f'"{text}" is not what was said: {self.err}')
        return said


def good(fork, n, parent, before, pids):
    """A fork of n of the children that waited; their memory is right."""
    check_result(fork, 0, {'complete': n})
    if fork.ordinary():
        raise Failed(f'an ordinary fork: {fork.err}')
    got = {row['pid'] for row in fork.children}
    if not got <= set(pids):
        raise Failed(f'children {got} of {set(pids)}')
    say_phases(fork)
    verify(fork, parent, before)


def verify(fork, parent, before):
    """Their memory is right; then they end, or others would have less of the CPUs."""
    for row in fork.children:
        Child(row, parent).check(before)
    kill(fork.base, fork.result['id'])


def has_spoken(pool, qmp):
    console = os.path.join(os.path.dirname(qmp), f'{os.path.basename(qmp)[:-4]}.'
                           f'{os.path.basename(pool.parent.console)}')
    return os.path.exists(console) and os.path.getsize(console) > 0


def never_ran(pool, n):
    """Those that wait: there, at rest, without a guest."""
    waiting = pool.waiting()
    if len(waiting) != n:
        raise Failed(f'{len(waiting)} children wait, want {n}')
    for pid, qmp in waiting.items():
        status = ask(qmp, 'query-status')
        if status['running'] or status['status'] != 'inmigrate':
            raise Failed(f'a child that waits is {status}')
        if has_spoken(pool, qmp):
            raise Failed(f'{qmp}: a child that waits has said something')
        with open(f'/proc/{pid}/stat', encoding='ascii') as f:
            used = f.read().rpartition(')')[2].split()
        say(f'      a child that waits has used {10 * (int(used[11]) + int(used[12]))} ms of CPU')
    return waiting


def used_and_refilled(t, accel):
    """Forks of all and of some; what is used is replaced, and what is left over ends."""
    with ForkParent(t, accel, memory='memfd', mem_mib=MIB) as parent, Pool(t, parent, 2) as pool:
        parent.start_load()
        ready = pool.event('ready')
        if ready['ready'] != 2 or ready['hosts'][0]['pss_bytes'] <= 0:
            raise Failed(f'{ready}')
        say(f'      a child that waits costs {ready["hosts"][0]["pss_bytes"] / 2 / (1 << 20):.1f} MiB')
        waiting = never_ran(pool, 2)
        before = snapshot(parent)
        with Fork(pool, 2, '--user-data', 'x') as c:
            good(c, 2, parent, before, waiting)
        pool.event('used')
        pool.event('ready')
        again = never_ran(pool, 2)
        with Fork(pool, 1) as c:
            check_result(c, 0, {'complete': 1})
            wait_for('end of the child that is left over', 20,
                     lambda: sum(alive(pid) for pid in again) == 1)
            pool.event('used')
            pool.event('ready')
            (state,) = pool.state()
            if (state['forks'], state['used'], state['ready']) != (2, 3, 2):
                raise Failed(f'{state}')
            listed = json.loads(run_vmclone('--list', '--json', '--rundir', pool.base).stdout)
            states = sorted((f['image'], len(f['children'])) for f in listed)
            if states != [('complete', 1), ('waiting', 2)]:
                raise Failed(f'--list: {listed}')
        followed(pool)
        pool.proc.send_signal(signal.SIGINT)
        pool.ended(0)
        check_nothing_left(pool, parent)


def followed(pool):
    """Who asked stays, and hears how the child ends; the pool has others ready meanwhile."""
    with Fork(pool, 1, '--follow') as c:
        forked = json.loads(c.proc.stdout.readline())
        pool.event('used')
        pool.event('ready')
        os.kill(forked['children'][0]['pid'], signal.SIGKILL)
        ended = json.loads(c.proc.stdout.readline())
        if (ended['event'], ended['code']) != ('ended', 255) or c.proc.wait(30) != 1:
            raise Failed(f'{ended}, exit code {c.proc.returncode}')


def in_background(t, accel):
    """Children are started with a small share of the CPUs, and have an ordinary one when they run."""
    slow = os.path.join(t.work, 'qemu-slow')
    with open(slow, 'w', encoding='ascii') as f:
        f.write(f'#!/bin/sh\nsleep 1\nexec {shlex.quote(QEMU)} "$@"\n')
    os.chmod(slow, 0o700)
    with ForkParent(t, accel, memory='memfd', mem_mib=MIB) as parent, \
            Pool(t, parent, 2, '--qemu', slow) as pool:
        parent.start_load()
        (agent,) = wait_for('an agent', 60, pool.agents)
        if weight(agent) not in ('nice 10', '') or pool.state()[0]['starting'] != 2:
            raise Failed(f'children are started at {weight(agent)}: {pool.state()}')
        pool.event('ready')
        waiting, before = never_ran(pool, 2), snapshot(parent)
        if weight(agent) == 'nice 10':
            raise Failed('children wait in the background: they would run there')
        with Fork(pool, 2, '--qemu', slow) as c:
            good(c, 2, parent, before, waiting)


def not_from_it(t, accel):
    """Too many, other options, two at once: each is a fork all the same."""
    with ForkParent(t, accel, memory='memfd', mem_mib=MIB) as parent, Pool(t, parent, 1) as pool:
        parent.start_load()
        pool.event('ready')
        before = snapshot(parent)
        for n, args, text in ((2, (), 'it keeps 1 children ready'), (1, ('--net', 'none'), '--net'),
                              (1, ('--id', 'own'), '--id')):
            with Fork(pool, n, *args) as c:
                check_result(c, 0, {'complete': n})
                if not c.ordinary(text):
                    raise Failed(f'it was a fork of the pool: {n} {args}')
                verify(c, parent, before)
        with Fork(pool, 1) as c, Fork(pool, 1) as d:
            for fork in (c, d):
                check_result(fork, 0, {'complete': 1})
                verify(fork, parent, before)
            if c.ordinary() + d.ordinary() != 1:
                raise Failed(f'of two at once the pool gave {2 - c.ordinary() - d.ordinary()}')
        pool.event('used')
        pool.event('ready')
        with Pool(t, parent, 1) as other:
            other.ended(3, 'has a pool already')
        never_ran(pool, 1)
        out = subprocess.run([FARFORK, 'pool', '--end', parent.second, '--rundir', pool.base],
                             timeout=60, check=False)
        if out.returncode:
            raise Failed(f'farfork pool --end: {out.returncode}')
        pool.ended(0)
        check_nothing_left(pool, parent)
        with Fork(pool, 1) as c:
            check_result(c, 0, {'complete': 1})
            if c.ordinary():
                raise Failed(f'without a pool there is nothing to say: {c.err}')


def killed(t, accel):
    """A child, the process that keeps it, the pool: what is left ends, or is replaced."""
    with ForkParent(t, accel, memory='memfd', mem_mib=MIB) as parent:
        parent.start_load()
        with Pool(t, parent, 2) as pool:
            pool.event('ready')
            first = never_ran(pool, 2)
            os.kill(min(first), signal.SIGKILL)
            say(f'      {pool.event("lost")["error"]}')
            pool.event('ready')
            second = never_ran(pool, 2)
            if set(first) & set(second):
                raise Failed(f'of {set(first)} some are left: {set(second)}')
            (held,) = (pid for pid, argv in processes_of(pool.base) if b'vmclone' in argv[0] and
                       pid != pool.proc.pid)
            os.kill(held, signal.SIGKILL)
            pool.event('lost')
            pool.event('ready')
            wait_for('end of the children before', 20, lambda: not any(map(alive, second)))
            third = never_ran(pool, 2)
            pool.proc.kill()
            wait_for('end of all that waited', 20, lambda: not any(map(alive, third)))
            before = snapshot(parent)
            with Fork(pool, 1) as c:
                check_result(c, 0, {'complete': 1})
                if not c.ordinary('it was killed'):
                    raise Failed('a fork of a pool that was killed')
                verify(c, parent, before)
            check_nothing_left(pool, parent)
            if [name for name in os.listdir(pool.base) if name.startswith('.pool')]:
                raise Failed('its socket is left')


def parent_ends(t, accel):
    with ForkParent(t, accel, memory='memfd', mem_mib=MIB) as parent, Pool(t, parent, 2) as pool:
        pool.event('ready')
        parent.close()
        pool.ended(0, 'the parent has ended')
        check_nothing_left(pool)


def stopped_by_its_user(t, accel):
    """Ctrl-C of who asked, in the midst of the fork; the pool goes on."""
    with hosts_of_their_own(1) as hosts, ForkParent(t, accel, mem_mib=MIB) as parent:
        parent.start_load()
        slow = f'ip netns exec {{host}} env FARFORK_FAILPOINTS={SLOW} {{cmd}}'
        with Pool(t, parent, 1, '--launcher', slow, hosts=hosts) as pool:
            pool.event('ready')
            with Fork(pool, 1, '--launcher', slow, hosts=hosts) as c:
                pool.event('used')
                wait_for('the export', 20, parent.exports)
                c.proc.send_signal(signal.SIGINT)
                check_result(c, 3, {'failed': 1})
                if c.ordinary() or not c.result['interrupted']:
                    raise Failed(f'{c.result} {c.err}')
            pool.event('ready')
            never_ran(pool, 1)
            pool.proc.terminate()
            pool.ended(0)
            check_nothing_left(pool, parent)


def words_come_late(t, accel):
    """An image comes faster than the launcher's words: what is left over never gets it."""
    late = os.path.join(t.work, 'late')
    with open(late, 'w', encoding='ascii') as f:
        f.write('#!/bin/sh\nwhile IFS= read -r l; do sleep 0.5; printf "%s\\n" "$l"; done | '
                'ip netns exec "$@"\n')
    os.chmod(late, 0o700)
    launcher = ('--launcher', f'{late} {{host}} {{cmd}}')
    with hosts_of_their_own(1) as hosts, ForkParent(t, accel, mem_mib=MIB) as parent, \
            Pool(t, parent, 2, *launcher, hosts=hosts) as pool:
        parent.start_load()
        pool.event('ready')
        waiting, before = never_ran(pool, 2), snapshot(parent)
        with Fork(pool, 1, *launcher, hosts=hosts) as c:
            check_result(c, 0, {'complete': 1})
            (used,) = (row['pid'] for row in c.children)
            wait_for('end of the child that is left over', 20,
                     lambda: sum(alive(pid) for pid in waiting) == 1)
            for pid, qmp in waiting.items():
                if has_spoken(pool, qmp) != (pid == used):
                    raise Failed(f'child {pid}, {qmp}: of {used} alone the guest is to run')
            verify(c, parent, before)


def stands_still(t, accel):
    """Who asks a pool that does not answer waits for so long, and makes an ordinary fork."""
    with ForkParent(t, accel, memory='memfd', mem_mib=MIB) as parent, Pool(t, parent, 1) as pool:
        parent.start_load()
        pool.event('ready')
        before = snapshot(parent)
        pool.proc.send_signal(signal.SIGSTOP)
        with Fork(pool, 1, '--timeout', '20') as c:
            check_result(c, 0, {'complete': 1})
            if not c.ordinary('no answer') or "waiting for the parent's pool" not in c.err:
                raise Failed(f'a fork of a pool that stands still: {c.err}')
            verify(c, parent, before)
        pool.proc.send_signal(signal.SIGCONT)
        never_ran(pool, 1)


def two_after_another(t, accel):
    """One that ends late takes nothing from the next one."""
    with ForkParent(t, accel, memory='memfd', mem_mib=MIB) as parent, Pool(t, parent, 1) as pool:
        pool.event('ready')
        (agent,) = pool.agents()
        os.kill(agent, signal.SIGSTOP)
        pool.proc.terminate()
        wait_for('its end to begin', 20, lambda: not pool.state())
        with Pool(t, parent, 1) as other:
            other.event('ready')
            os.kill(agent, signal.SIGCONT)
            pool.ended(0)
            if len(other.state()) != 1:
                raise Failed('the socket of the second pool is gone')


def other_hosts(t, accel):
    """Two hosts; one of them is lost, and the other is kept."""
    with hosts_of_their_own(2) as hosts, ForkParent(t, accel, mem_mib=MIB) as parent:
        parent.start_load()
        with Pool(t, parent, 2, *NAMESPACE, hosts=hosts) as pool:
            if pool.event('ready')['ready'] != 4:
                raise Failed('not two on each host')
            waiting = never_ran(pool, 4)
            before = snapshot(parent)
            with Fork(pool, 3, *NAMESPACE, hosts=hosts) as c:
                good(c, 3, parent, before, waiting)
                pool.event('used')
                pool.event('ready')
                waiting = never_ran(pool, 4)
            before = snapshot(parent)
            with Fork(pool, 1, *NAMESPACE, hosts=hosts) as c:
                good(c, 1, parent, before, waiting)
                wait_for('end of those on the other host', 20,
                         lambda: not any(map(alive, waiting)))
            pool.event('used')
            pool.event('ready')
            waiting = never_ran(pool, 4)
            (lost,) = (f for f in json.loads(run_vmclone('--list', '--json', '--rundir', pool.base).stdout)
                       if f['node'] == hosts[1].partition('=')[0] and f['image'] == 'waiting')
            os.kill(lost['agent'], signal.SIGKILL)
            e = pool.event('host')
            if e['host'] != lost['node']:
                raise Failed(f'{e}')
            pool.event('lost')
            if pool.event('ready')['ready'] != 2:
                raise Failed('not two on the host that is left')
            if any(map(alive, waiting)):
                raise Failed('children that waited outlived their agent')
            kill(pool.base, lost['id'])
            before = snapshot(parent)
            waiting = never_ran(pool, 2)
            with Fork(pool, 2, *NAMESPACE, hosts=hosts) as c:
                check_result(c, 0, {'complete': 2})
                if not c.ordinary('other hosts'):
                    raise Failed('a fork to a host that is lost')
            with Fork(pool, 2, *NAMESPACE, hosts=hosts[:1]) as c:
                good(c, 2, parent, before, waiting)
            pool.event('used')
            pool.event('ready')
            pool.proc.terminate()
            pool.ended(0)
            check_nothing_left(pool, parent)


def disk_changes(t, accel):
    """Each fork gives its parent new overlays: children that stand on the one before are not used."""
    disk = os.path.join(t.work, 'disk.qcow2')
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', disk, '16M'], check=True, timeout=20)
    extra = ['-drive', f'if=none,id=d0,file={disk},format=qcow2', '-device', 'virtio-blk-pci,drive=d0']
    scratch = ('--scratch', t.work)
    with ForkParent(t, accel, memory='memfd', extra=extra, mem_mib=MIB) as parent, \
            Pool(t, parent, 1, *scratch) as pool:
        parent.start_load()
        for _ in range(2):
            pool.event('ready')
            before = snapshot(parent)
            with Fork(pool, 1, *scratch) as c:
                good(c, 1, parent, before, never_ran(pool, 1))
            pool.event('used')
        pool.event('ready')
        waiting = never_ran(pool, 1)
        with Fork(pool, 1, *scratch, '--id', 'own') as c:
            check_result(c, 0, {'complete': 1})
        before = snapshot(parent)
        with Fork(pool, 1, *scratch) as d:
            check_result(d, 0, {'complete': 1})
            if not d.ordinary('have changed'):
                raise Failed("a child on a disk that is not the parent's any more")
            verify(d, parent, before)
        pool.event('lost')
        pool.event('ready')
        if set(waiting) & set(never_ran(pool, 1)):
            raise Failed('a child that stands on another disk waits on')
        pool.proc.terminate()
        pool.ended(0)
        check_nothing_left(pool, parent)


def run(t):
    accel = t.best_accel()
    with t.case('used and refilled'):
        used_and_refilled(t, accel)
    with t.case('in the background'):
        in_background(t, accel)
    with t.case('forks that it cannot make'):
        not_from_it(t, accel)
    with t.case('killed: a child, a process, the pool'):
        killed(t, accel)
    with t.case('the parent ends'):
        parent_ends(t, accel)
    with t.case('interrupted by who asked'):
        stopped_by_its_user(t, accel)
    with t.case('two hosts, one is lost'):
        other_hosts(t, accel)
    with t.case("the parent's disk is another"):
        disk_changes(t, accel)
    if not common.FULL:
        return
    with t.case('a launcher that is slow'):
        words_come_late(t, accel)
    with t.case('a pool that stands still'):
        stands_still(t, accel)
    with t.case('one ends while the next one begins'):
        two_after_another(t, accel)


if __name__ == '__main__':
    common.main(run, limit_s=800)
