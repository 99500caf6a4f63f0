#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""farfork_move.py - farfork move: the guest is there, or goes on here, or what is said is so

The ledger goes on from one QEMU to the next; what fails before the switch leaves the guest running
and nothing behind. Other hosts are played by launchers that run on this one; limit: 330 s.
"""
import contextlib
import glob
import json
import os
import shlex
import signal
import subprocess

import common
import report
from common import Failed, check_ledger, say, status, wait_for
from forked import (ELSEWHERE, FAKE_SOURCE, SLOW, FakeParent, Parent, alive, check_nothing_left,
                    fake_qemu, hosts_of_their_own, kill, processes_of, run_vmclone)
from qemu import Guest

HOST = 'h1=127.0.0.1'
STUCK = 'dest.state=delay:8000000'      # the guest stands still, and is the source's


class Move:
    """farfork move, started; its result once it has ended."""
    command = 'move'
    environ = {}

    def __init__(self, t, parent, *args, host=HOST, launcher=ELSEWHERE, faults=None, name='m',
                 prefix=(), via='transport', environ=None, **popen):
        self.base, self.name, self.via = os.path.join(t.work, 'run'), name, via
        path = parent if isinstance(parent, str) else parent.second
        self.argv = common.place.argv(
            [*prefix, common.FARFORK, self.command, '--json', '--rundir', self.base, '--id', name,
             '--timeout', '40', *(('--via', via) if via and self.command == 'move' else ()), *launcher, *args, path, *([host] if isinstance(host, str) else host)], False)
        env = {**os.environ, **self.environ, **(environ or {}), **({'FARFORK_FAILPOINTS': faults} if faults else {})}
        self.proc = subprocess.Popen(self.argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     env=env, text=True, **{'stdin': subprocess.DEVNULL, **popen})
        self.result, self.err = {}, ''

    def end(self, code, state, text=''):
        """It ends so, and says this."""
        out, self.err = self.proc.communicate(timeout=90)
        self.result = json.loads(out) if out.startswith('{') else {}
        got = self.proc.returncode, self.result.get('state')
        error = self.result.get('error') or ''
        if got != (code, state) or text not in error:
            raise Failed(f'farfork {self.command} ended with {got}, want {(code, state)} and "{text}": '
                         f'{error} {self.err[-600:]}')
        if error:
            say(f'      {error}')
        return self.result

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            self.proc.kill()
            self.proc.communicate(timeout=30)
        kill(self.base, self.name)


class Process:
    """Somebody else's child, as Guest wants it."""
    returncode = '?'

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        return None if alive(self.pid) else 0

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, limit_s):
        wait_for(f'end of {self.pid}', limit_s, lambda: not alive(self.pid))
        return 0


class There(Guest):
    """The micro guest where it was moved to; its console is kept when its run directory goes."""

    def __init__(self, t, name, folder, pid):
        # pylint: disable=super-init-not-called
        self.name, self.events, self.pending = name, [], b''
        self.sock_path = wait_for('its socket', 10, lambda: glob.glob(
            folder + '/*parent.qmp'))[0]                           # the first one's, there
        self.second = os.path.join(folder, '1.qmp')                # the one that a move adds
        self.stderr = os.path.join(folder, '1.log')
        self.console = os.path.join(t.work, name + '.console')
        os.link(wait_for('its console', 10, lambda: glob.glob(folder + '/*.console'))[0],
                self.console)
        self._log, self._log_at = report.Log(), 0
        self.qmp_sock, self.proc = None, Process(pid)

    def __enter__(self):
        self._connect(15)
        return self

    def close(self):
        """Not its end: that is the agent's."""
        if self.qmp_sock:
            self.qmp_sock.close()
            self.qmp_sock = None

    @property
    def tail(self):
        return self.complaint()


def there(t, name, result):
    return There(t, name, result['rundir'], result['pid'])


def listed(base):
    return json.loads(run_vmclone('--list', '--json', '--rundir', base).stdout)


def check_listed(base, name, state):
    """A QEMU says completed a moment after its source does."""
    return wait_for(f'{name} in the list, detached, its guest {state}', 10, lambda: [
        f for f in listed(base) if f['id'] == name and f['detached'] and f['agent_alive'] and
        [k['state'] for k in f['children']] == [state]])[0]


def check_left_here(t, parent, move):
    """Its QEMU has ended, and nobody else was killed for it."""
    if parent.proc.wait(20) != (0 if move.via == 'transport' else -signal.SIGKILL):
        raise Failed(f'{parent.name}: exit code {parent.proc.returncode}')
    if not move.result['parent_ended']:
        raise Failed('it is not said that the QEMU here has ended')


def check_here(move, parent):
    """The guest goes on here, and nothing is left of the move."""
    check_nothing_left(move)
    wait_for('a guest that runs', 20, lambda: status(parent) == 'running')
    check_ledger(parent, sweeps=1)


def say_phases(move):
    say('      ' + ', '.join(f'{k} {v:.1f}' for k, v in move.result['phases_ms'].items()
                             if v is not None) + ' ms')


# --- it works ---

def twice(t, accel, memory):
    """There, and from there to another host: three QEMUs, one ledger."""
    with Parent(t, accel, memory=memory) as a:
        a.start_load()
        with Move(t, a, name='m1') as m1, Move(t, '', name='none') as none:
            none.end(1, 'untouched', 'QMP socket of a running QEMU')
            m1.end(0, 'there')
            say_phases(m1)
            check_left_here(t, a, m1)
            check_listed(m1.base, 'm1', 'complete')
            with there(t, 'b', m1.result) as b:
                check_ledger(a, b)
                with Move(t, b, host='h2=127.0.0.1', name='m2') as m2:
                    m2.end(0, 'there')
                    b.proc.wait(20)
                    wait_for('end of the first agent', 20, lambda: [
                        f['id'] for f in listed(m2.base)] == ['m2'])
                    with there(t, 'c', m2.result) as c:
                        if len(glob.glob(m2.result['rundir'] + '/*.qmp')) != 2:
                            raise Failed(f'sockets pile up: {os.listdir(m2.result["rundir"])}')
                        check_ledger(a, b, c)
                    kill(m2.base, 'm2')
                    check_nothing_left(m2)


def one(t, accel, *args, host=HOST, launcher=ELSEWHERE, extra=(), before=None, after=None,
        want='running', **how):
    with Parent(t, accel, extra=extra, **how) as a:
        a.start_load()
        if before:
            before(a)
        with Move(t, a, *args, host=host, launcher=launcher) as m:
            m.end(0, 'there')
            check_left_here(t, a, m)
            with there(t, 'b', m.result) as b:
                if status(b) != want:
                    raise Failed(f'it is {status(b)} there, want {want}')
                if after:
                    after(b)
                check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)


def namespace(t, accel):
    with hosts_of_their_own(1) as hosts:
        one(t, accel, memory='memfd', host=hosts[0],
            launcher=('--launcher', 'ip netns exec {host} {cmd}'))


def disk(t, accel):
    """On shared storage, and by another image than the command line names."""
    image, overlay = (os.path.join(t.work, n) for n in ('disk.qcow2', 'later.qcow2'))
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', image, '8M'], check=True,
                   timeout=20)

    def io(guest, *commands):
        for c in commands:
            out = common.hmp(guest, f'qemu-io d0 "{c}"')
            if 'failed' in out or 'rror' in out:
                raise Failed(f'{guest.name}: {c}: {out}')

    def before(a):
        io(a, 'write -P 7 0 64k')
        a.qmp('blockdev-snapshot-sync', **{'device': 'd0', 'snapshot-file': overlay})
        io(a, 'write -P 8 1M 64k')

    def after(b):
        io(b, 'read -P 7 0 64k', 'read -P 8 1M 64k', 'write -P 9 2M 64k', 'read -P 9 2M 64k')
        names = [e['inserted']['image']['filename'] for e in b.qmp('query-block')]
        if names != [overlay]:
            raise Failed(f'its disk is in {names} there')
    one(t, accel, extra=('-drive', f'file={image},format=qcow2,if=none,id=d0',
                         '-device', 'virtio-blk-pci,drive=d0'), before=before, after=after)


def precopy(t, accel):
    one(t, accel, '--options', 'precopy=1')


def paused(t, accel):
    one(t, accel, before=lambda a: a.qmp('stop'), after=lambda b: b.qmp('cont'), want='paused')


# --- it does not, and the guest goes on here ---

def refused(t, accel):
    cases = (
        (['--qemu', '/bin/false'], (), 'exit code 1'),
        (['--qemu', '/no-such-qemu'], (), 'No such file'),
        (['--qemu', os.path.join(t.work, 'deaf'), '--timeout', '5'], (),
         'does not answer within 5 s'),
        ([], ('--launcher', "printf 'no \\033[7mroute to {host}' >&2; exit 255; {cmd}"), 'no ?[7mroute to h1'),
        (['--timeout', '1'], ('--launcher', 'sleep 100; {host} {cmd}'), 'no answer within 1 s'),
    )
    common.write_file(os.path.join(t.work, 'deaf'), '#!/bin/sh\nexec sleep 100\n')
    os.chmod(os.path.join(t.work, 'deaf'), 0o700)
    with Parent(t, accel) as a:
        a.start_load()
        for args, launcher, text in cases:
            with Move(t, a, *args, launcher=launcher or ELSEWHERE) as m:
                m.end(1, 'here', text)
                check_here(m, a)
        a.qmp('device_add', driver='virtio-rng-pci', id='late')
        with Move(t, a) as m:
            m.end(1, 'here', 'device late was plugged in')
            check_here(m, a)


def cannot_move(t, accel):
    """The source refuses when everything is ready there; the destination, when it is asked."""
    with Parent(t, accel, extra=('-device', 'ivshmem-plain,memdev=shm', '-object',
                                 'memory-backend-memfd,id=shm,size=1M,share=on')) as a:
        a.start_load()
        with Move(t, a) as m:
            m.end(1, 'here', 'ivshmem')
            check_here(m, a)
    os.unlink(a.console)
    smaller = os.path.join(t.work, 'smaller')
    common.write_file(smaller, '#!/bin/sh\n'
                      f'exec {shlex.quote(os.path.abspath(common.QEMU))} "$@" -m 48M\n')
    os.chmod(smaller, 0o700)
    with Parent(t, accel) as a:
        a.start_load()
        a.qmp('migrate-set-capabilities', capabilities=[{'capability': 'xbzrle', 'state': True}])
        with Move(t, a) as m:
            m.end(1, 'here', 'xbzrle')
            check_here(m, a)
        a.qmp('migrate-set-capabilities', capabilities=[{'capability': 'xbzrle', 'state': False}])
        with Move(t, a, '--qemu', smaller) as m:
            m.end(1, 'here', 'length differs')
            check_here(m, a)


def wait_source(parent, state):
    return wait_for(f'source {state}', 40,
                    lambda: common.migration(parent).get('status') == state)


def wait_gone(parent):
    """It runs there: GO is sent a moment after QEMU says postcopy-active."""
    wait_for('a guest that runs there', 40, lambda: common.migration(parent).get(
        'x-rdma-postcopy', {}).get('start-time'))


def wait_alone(base):
    """An agent whose command is gone."""
    wait_for('an agent alone', 20, lambda: any(f['detached'] for f in listed(base)))


def interrupted(t, accel):
    with Parent(t, accel) as a:
        a.start_load()
        with Move(t, a, launcher=('--launcher', 'sleep 100; {host} {cmd}')) as m:
            wait_for('the launcher', 20, lambda: len(processes_of(m.base)) > 1)
            m.proc.send_signal(signal.SIGINT)
            m.end(1, 'here', 'interrupted')
            check_here(m, a)
        for sig in (signal.SIGINT, signal.SIGTERM):
            with Move(t, a, faults=STUCK) as m:
                wait_source(a, 'device')
                m.proc.send_signal(sig)
                m.end(1, 'here', 'interrupted')
                check_here(m, a)


# --- after the switch ---

def folder_of(move):
    return wait_for('its folder', 10, lambda: glob.glob(f'{move.base}/{move.name}/*'))[0]


def pid_there(move):
    return wait_for('its QEMU', 10, lambda: [
        k['pid'] for f in listed(move.base) for k in f['children']])[0]


def interrupted_late(t, accel):
    """One signal: it is said where the guest is, and the move goes on. Two: it leaves."""
    for signals in (1, 2):
        with Parent(t, accel) as a, contextlib.ExitStack() as end:
            a.start_load()
            m = end.enter_context(Move(t, a, faults=SLOW))
            wait_source(a, 'postcopy-active')
            m.proc.send_signal(signal.SIGINT)
            line = m.proc.stderr.readline()
            if 'runs on h1 by now' not in line:
                raise Failed(f'it says "{line}"')
            if signals == 2:
                m.proc.send_signal(signal.SIGINT)
                m.end(3, 'following', 'its memory still follows')
                common.wait_migration(a, 'completed')
                common.check_given_away(a)
            else:
                m.end(0, 'there')
                check_left_here(t, a, m)
            with there(t, f'b{signals}', m.result) as b:
                check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)
        os.unlink(a.console)


def killed(t, accel, faults, state):
    """The mover is gone: the QEMUs and the agent go on by themselves."""
    with Parent(t, accel) as a:
        a.start_load()
        with Move(t, a, faults=faults) as m:
            wait_source(a, state)
            m.proc.kill()
            m.proc.communicate(timeout=30)
            common.wait_migration(a, 'completed')
            common.check_given_away(a)
            wait_alone(m.base)
            wait_for('completion, there', 20, lambda: listed(m.base)[0]['children'][0]['state'] ==
                     'complete')
            with There(t, 'b', folder_of(m), pid_there(m)) as b:
                check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)


def never_sent(t, accel):
    """The mover is gone before the source has heard of it, and then the source."""
    go = os.path.join(t.work, 'go')
    with Parent(t, accel) as a, Move(t, a, '--timeout', '10', launcher=(
            '--launcher', f'until test -e {go}; do sleep 0.1; done; : {{host}}; {{cmd}}')) as m:
        wait_for('the launcher', 20, lambda: len(processes_of(m.base)) > 1)
        a.proc.send_signal(signal.SIGSTOP)      # it does not take `migrate`
        common.write_file(go, '')
        wait_for('an agent that keeps', 20, lambda: [
            k['state'] for f in listed(m.base) for k in f['children']] == ['attached'])
        m.proc.kill()
        m.proc.communicate(timeout=30)
        wait_alone(m.base)
        check_listed(m.base, 'm', 'attached')
        a.proc.kill()
        check_nothing_left(m)


def used_is_kept(t):
    """An agent alone ends the child that says setup, none that says anything else, or nothing."""
    fake, base = fake_qemu(t), os.path.join(t.work, 'run')
    agent = subprocess.Popen(
        [common.FARFORK, 'agent', '--id', 'm', '--node', 'n', '--rundir', base, '--timeout', '1'],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    t.at_end.callback(kill, base, 'm')

    def children():
        return {k['number']: k['state'] for f in listed(base) for k in f['children']}

    def command(o):
        agent.stdin.write(json.dumps(o) + '\n')
        agent.stdin.flush()
    for n, says in enumerate(('active', None, 'setup', 'completed'), 1):
        path = f'{base}/m/n/{n}.qmp'     # in the run directory, by which --kill knows them
        replies = json.dumps({'query-migrate': {'status': says}})
        command({'spawn': {'number': n, 'log': f'{t.work}/{n}.log', 'qmp': path,
                           'argv': ['env', f'FAKE_QEMU={replies}', fake, f'unix:{path}'] if says
                           else ['python3', '-c', 'import time; time.sleep(60)', path]}})
        if says:
            wait_for(f'child {n}', 10, lambda path=path: os.path.exists(path))
    wait_for('all', 10, lambda: len(children()) == 4)
    command({'keep': True})
    wait_for('keep', 10, lambda: set(children().values()) == {'attached'})
    agent.stdin.close()
    wait_for('end of the one', 15, lambda: children()[3] == 'ended')
    agent.stdout.close()
    agent.wait(10)
    wait_for('what each is', 15, lambda: children() == {1: 'attached', 2: 'attached', 3: 'ended',
                                                        4: 'complete'})
    kill(base, 'm')
    wait_for('end of all', 15, lambda: not processes_of(base) and not glob.glob(base + '/*'))


def lose_agent(move):
    """The way to it, of which this is the far end: it goes on."""
    with open(f'/proc/{listed(move.base)[0]["agent"]}/stat', encoding='ascii') as f:
        front = int(f.read().rpartition(')')[2].split()[1])
    os.kill(front, signal.SIGKILL)


def agent_lost(t, accel):
    """The way to the agent is gone: the move goes on, and what cannot be seen is not called done."""
    with Parent(t, accel) as a:
        a.start_load()
        with Move(t, a, faults=SLOW) as m:
            wait_source(a, 'postcopy-active')
            lose_agent(m)
            m.end(3, 'unclear', 'does not show there')
            if common.migration(a)['status'] != 'completed':
                raise Failed(f'the source: {common.migration(a)}')
            common.check_given_away(a)
            check_listed(m.base, 'm', 'complete')
            with there(t, 'b', m.result) as b:
                check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)


def link_breaks(t, accel):
    """It goes on over another, and so does the move."""
    with Parent(t, accel) as a:
        a.start_load()
        with Move(t, a, faults=SLOW) as m:
            wait_gone(a)
            common.break_link(a)
            m.end(0, 'there')
            if m.result['breaks'] != 1 or not m.result['phases_ms']['paused']:
                raise Failed(f'one link broke: {m.result}')
            with there(t, 'b', m.result) as b:
                if 'link 2' not in b.tail:
                    raise Failed(f'there was no break: {b.tail}')
                check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)


def go_lost(t, accel):
    """The source asks, and hears that nothing ran there."""
    with Parent(t, accel, faults='source.gone=fail@1') as a:
        a.start_load()
        with Move(t, a) as m:
            m.end(1, 'here', 'never got GO')
            check_here(m, a)


def destination_dies(t, accel):
    with Parent(t, accel) as a:
        a.start_load()
        with Move(t, a, faults=SLOW) as m:
            wait_gone(a)
            os.kill(pid_there(m), signal.SIGKILL)
            m.end(3, 'lost', 'SIGKILL')
            check_nothing_left(m)
        common.check_given_away(a)


def source_dies(t, accel):
    with Parent(t, accel) as a:
        a.start_load()
        with Move(t, a, faults=SLOW) as m:
            wait_gone(a)
            a.close()
            m.end(3, 'broken', 'until it touches missing memory')
            check_listed(m.base, 'm', 'attached')
            if not alive(m.result['pid']):
                raise Failed('the QEMU there was ended')
            kill(m.base, m.name)
            check_nothing_left(m)


def strange_parents(t):
    ok, able = {'return': {}}, {'return': [{'name': 'x-rdma-postcopy-not-started'}]}
    def is_now(text):
        return {'return': {'status': text, 'running': text == 'running'}}
    base = {'qmp_capabilities': ok, 'query-commands': able, 'query-migrate': ok,
            'query-status': is_now('running')}
    here, untouched = (1, 'here'), (1, 'untouched')
    for end, replies, text in (
            (here, {'query-commands': {'return': [{'name': 'stop'}]}}, 'no x-rdma-postcopy-not-started'),
            (untouched, {'query-status': is_now('postmigrate')}, 'has moved away already'),
            (untouched, {'query-status': is_now('io-error')}, 'io-error (permitted: running'),
            (untouched, {'query-migrate': {'return': {'status': 'active'}}},
             'a migration is under way'),
            (untouched, {'query-status': 'end'}, 'query-status'),
            (untouched, {'query-commands': 'end'}, 'query-commands')):
        with FakeParent(t, {**base, **replies}) as parent, \
                Move(t, parent, '--qemu', '/bin/false', '--timeout', '2', '--via',
                     'transport') as m:
            m.end(*end, text)
            check_nothing_left(m)


def old_completed(t):
    """It came by a move, and says completed from the start: not believed when nothing began, nor
    when the destination does not say so too."""
    fake, ok = fake_qemu(t), {'return': {}}
    parent = {**FAKE_SOURCE, 'query-migrate': {'return': {'status': 'completed'}}}
    for answer, there_is, code, state, text in (
            (None, 'inmigrate', 1, 'here', 'refused to migrate'),
            (ok, 'inmigrate', 3, 'unclear', 'migration setup'),
            (ok, 'paused', 3, 'unclear', 'migration setup')):
        replies = {'query-migrate': {'status': 'setup', 'socket-address': [{'port': '1'}]},
                   'query-status': {'status': there_is, 'running': False}}
        os.environ['FAKE_QEMU'] = json.dumps(replies)
        with FakeParent(t, {**parent, 'migrate': answer}) as p, \
                Move(t, p, '--qemu', fake, '--timeout', '6') as m:
            m.end(code, state, text)
            if 'quit' in p.asked or m.result['parent_ended']:
                raise Failed(f'the source was told to quit: {p.asked}')
            kill(m.base, m.name)
            check_nothing_left(m)


def usage(_t):
    for args, text in ((['x'], 'usage'), (['x', 'a;b'], 'want HOST'), (['x', 'h', '-bad'], '--help'),
                       (['--options', 'window=0', 'x', 'h'], '--options'),
                       (['--id', '../x', 'x', 'h'], '--id'), (['--timeout', '0', 'x', 'h'], '--timeout: "0" (permitted: 1..86400)'),
                       (['--fallback', 'maybe', 'x', 'h'], 'permitted: off|go'), (['--nonsense', 'x', 'h'], '--help'),
                       (['--domain', 'd', '--lease', '10', 'qemu+ssh://h/system'], '--lease: not with --domain'),
                       (['--launcher', 'ssh', 'x', 'h'], '{cmd}')):
        out = subprocess.run([common.FARFORK, 'move', *args], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=20, check=False)
        lines = out.stdout.count('\n')
        if out.returncode != 2 or text not in out.stdout or (lines > 2) != (text == 'usage'):
            raise Failed(f'{args}: {out.returncode}, want "{text}": {out.stdout[:300]}')


def run(t):
    accel = t.best_accel()
    for name, case in (
            ('usage', lambda: usage(t)),
            ('parents that cannot be moved', lambda: strange_parents(t)),
            ('a completed of an earlier move', lambda: old_completed(t)),
            ('twice, anon', lambda: twice(t, accel, 'anon')),
            ('paused', lambda: paused(t, accel)),
            ('precopy=1', lambda: precopy(t, accel)),
            ('memfd, into a network namespace', lambda: namespace(t, accel)),
            ('to another QEMU on this host', lambda: one(
                t, accel, host='localhost', launcher=())),
            ('a disk', lambda: disk(t, accel)),
            ('no host, no QEMU there, another device', lambda: refused(t, accel)),
            ('refused by either QEMU', lambda: cannot_move(t, accel)),
            ('interrupted before the switch', lambda: interrupted(t, accel)),
            ('interrupted after the switch', lambda: interrupted_late(t, accel)),
            ('killed before the switch', lambda: killed(t, accel, STUCK, 'device')),
            ('killed after the switch', lambda: killed(t, accel, SLOW, 'postcopy-active')),
            ('killed before the source knows', lambda: never_sent(t, accel)),
            ('an agent alone, with and without a guest', lambda: used_is_kept(t)),
            ('the agent is lost', lambda: agent_lost(t, accel)),
            ('the link breaks', lambda: link_breaks(t, accel)),
            ('GO is lost', lambda: go_lost(t, accel)),
            ('the destination dies', lambda: destination_dies(t, accel)),
            ('the source dies', lambda: source_dies(t, accel))):
        for path in glob.glob(t.work + '/*.console'):   # of the case before
            os.unlink(path)
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=330)
