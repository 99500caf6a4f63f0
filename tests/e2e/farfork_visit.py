#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""farfork_visit.py - farfork visit: the guest works there, and is home again with what it wrote; or where it is said to be

The ledger goes on from home to there and back. returns.py has the return by itself; limit: 300 s.
"""
import contextlib
import fcntl
import glob
import json
import os
import pty
import select
import signal
import subprocess
import termios

import common
import report
from common import Failed, say, status, wait_for
from devices_stay import begin, devices, linux, there as console_there
from farfork_move import HOST, STUCK, Move, There, check_here, folder_of, lose_agent, pid_there, wait_alone, wait_source
from forked import ELSEWHERE, FAKE_SOURCE, SLOW, FakeParent, Parent, alive, ask, check_nothing_left, hosts_of_their_own, kill
from returns import Ledger
from shut_down import POWER_OFF, end_process, write_port


class Visit(Move):
    """farfork visit, started."""
    command = 'visit'

    def __init__(self, *args, **how):
        super().__init__(*args, **how)
        self.said = ''

    def __exit__(self, *how):
        if self.proc.poll() is None:    # its command ends when it is no process any more
            self.proc.kill()
            self.proc.wait(30)
            self.proc.communicate(timeout=30)
        super().__exit__(*how)

    def hears(self, text, limit_s=60):
        """The rest of the line of stderr that has this."""
        def look():
            while text not in self.said and select.select([self.proc.stderr], [], [], 0)[0]:
                more = os.read(self.proc.stderr.fileno(), 4096).decode()
                if not more:
                    raise Failed(f'farfork visit has ended without "{text}": {self.said}')
                self.said += more
            return text in self.said
        wait_for(f'"{text}"', limit_s, look)
        self.said = self.said.partition(text)[2]

    def away(self):
        """Until the guest is there."""
        self.hears('it runs on ')
        return self

    def guest(self, t, name='there'):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(t.work, name + '.console'))
        return There(t, name, folder_of(self), pid_there(self))


def reports(guest, lines=2):
    """It says so many lines more."""
    had = len(guest.log().lines)
    guest.wait(f'{lines} more reports', lambda log: len(log.lines) >= had + lines, 60)


def until(t, name, code=0):
    """(--until, its command; the file by which it ends)"""
    path = os.path.join(t.work, name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return ('--until', f'until test -e {path} || ! kill -0 $PPID; do sleep 0.05; done; exit {code}'), path


def say_visit(v):
    r = v.result
    say('      ' + ', '.join(f'{k} {x:.1f}' for k, x in r['phases_ms'].items() if x is not None) +
        f' ms; {r["bytes"]["present"] >> 10} KiB there, {r["bytes"]["back"] >> 10} KiB back')


def is_home(v, a, log, b=None):
    """It ended well: the guest is here, its memory right, and nothing is left there."""
    v.end(0, 'home')
    say_visit(v)
    check_nothing_left(v)
    if status(a) != 'running' or v.result['parent_ended']:
        raise Failed(f'{status(a)}: {v.result}')
    if b:
        log.leaves(b)
        if not v.result['bytes']['present'] or not v.result['bytes']['back']:
            raise Failed(f'{v.result}')
    log.check(a, sweeps=1)


@contextlib.contextmanager
def visiting(t, accel, *args, home=None, log=None, **how):
    """It is there: (home, its command)"""
    with Parent(t, accel, **(home or {})) as a:
        a.start_load()
        with Visit(t, a, *args, **how) as v:
            v.away()
            if log:
                log.leaves(a)
            yield a, v


def by_command(t, accel, *args, host=HOST, launcher=ELSEWHERE, **how):
    log = Ledger(t)
    with Parent(t, accel, **how) as a:
        a.start_load()
        option, end = until(t, 'end', 7)
        with Visit(t, a, *args, *option, host=host, launcher=launcher) as v:
            v.away()
            log.leaves(a)
            with v.guest(t) as b:
                b.wait('reports', lambda said: report.is_ready(said.lines), 60)
                b.wait_sweeps(1, 120)
                common.write_file(end, '')
                is_home(v, a, log, b)
            if v.result['until_code'] != 7 or v.result['tries'] != 1:
                raise Failed(f'{v.result}')


def by_signal(t, accel):
    """Once and again, by each of them."""
    log = Ledger(t)
    with Parent(t, accel) as a:
        a.start_load()
        for n, sig in enumerate((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)):
            with Visit(t, a, '--options', '', name=f'm{n}') as v:
                v.away()
                log.leaves(a)
                with v.guest(t, f'there{n}') as b:
                    reports(b)
                    v.proc.send_signal(sig)
                    is_home(v, a, log, b)
            if v.result['until_code'] is not None:
                raise Failed(f'{v.result}')


def command_of(t):
    """(--until, its command, a function that finds: its shell, and its child)"""
    path = os.path.join(t.work, 'pids')
    common.write_file(path, '')

    def pids():
        with open(path, encoding='ascii') as f:
            return [int(x) for x in f.read().split()]
    return ('--until', f'sh -c "echo \\$PPID \\$\\$ > {path}; exec sleep 100"; exit 3'), \
        lambda: wait_for('the command', 10, lambda: len(pids()) == 2 and pids())


def command_ended(t, accel):
    """A signal ends the command with its children, also one that is stopped, and that the visit."""
    log = Ledger(t)
    option, pids = command_of(t)
    with visiting(t, accel, *option, log=log) as (a, v):
        with v.guest(t) as b:
            b.wait('reports', lambda said: report.is_ready(said.lines), 60)
            shell, child = pids()
            os.killpg(shell, signal.SIGSTOP)
            v.proc.send_signal(signal.SIGTERM)
            is_home(v, a, log, b)
        if v.result['until_code'] != 128 + signal.SIGTERM or alive(child):
            raise Failed(f'{v.result}')


def terminal(t, accel):
    """Ctrl-C is the command's, which has the foreground; then it is this program's again."""
    def in_front():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    person, theirs = pty.openpty()
    with Parent(t, accel, faults=SLOW) as a, open(person, 'wb', buffering=0) as keys:
        a.start_load()
        option, pids = command_of(t)
        with Visit(t, a, *option, stdin=theirs, preexec_fn=in_front) as v:
            os.close(theirs)
            v.away()
            shell, child = pids()
            wait_for('it has the foreground', 10, lambda: os.tcgetpgrp(person) == shell)
            keys.write(b'\x1a')    # it goes on: no shell has started this program
            keys.write(b'\x03')    # heard then
            v.hears('it runs here again')
            if os.tcgetpgrp(person) != v.proc.pid:
                raise Failed('the terminal was not given back')
            v.end(0, 'home')
            check_nothing_left(v)
        if v.result['until_code'] != 128 + signal.SIGINT or alive(child):
            raise Failed(f'{v.result}')


def disk(t, accel):
    """On shared storage: what is written there is read here, and the other way."""
    image, log = os.path.join(t.work, 'disk.qcow2'), Ledger(t)
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', image, '8M'], check=True, timeout=20)

    def io(guest, *commands):
        for c in commands:
            out = common.hmp(guest, f'qemu-io d0 "{c}"')
            if 'failed' in out or 'rror' in out:
                raise Failed(f'{guest.name}: {c}: {out}')
    with Parent(t, accel, extra=('-drive', f'file={image},format=qcow2,if=none,id=d0',
                                 '-device', 'virtio-blk-pci,drive=d0')) as a:
        a.start_load()
        io(a, 'write -P 7 0 64k')
        with Visit(t, a) as v:
            v.away()
            log.leaves(a)
            with v.guest(t) as b:
                io(b, 'read -P 7 0 64k', 'write -P 8 1M 64k')
                v.proc.send_signal(signal.SIGINT)
                is_home(v, a, log, b)
        io(a, 'read -P 7 0 64k', 'read -P 8 1M 64k', 'write -P 9 2M 64k', 'read -P 9 2M 64k')


def data(t):
    """Linux reads files of that host, has them again when a return has failed, and is home without them."""
    files = [os.path.join(t.work, f'data{n}') for n in (1, 2)]
    for n, path in enumerate(files, 1):
        common.write_file(path, f'this is file {n}\n'.ljust(4096, '.'))
    with linux(t, 'tcg', 'data', '-qmp', f'unix:{t.work}/third,server=on,wait=off') as g:
        begin(g)
        g.sh('insmod /modules/0x0002.*')
        had = devices(g.second)
        with Visit(t, g, *(x for f in files for x in ('--data', f)), faults='source.state=fail@1') as v:
            v.away()
            folder = folder_of(v)
            with console_there(t, {'rundir': folder, 'log': folder + '/1.log'}) as b:
                wait_for('both disks', 60, lambda: '2 disks' in b.sh('set -- /sys/block/vd*; echo $# disks'))
                for n in (1, 2):
                    name = b.sh(f'grep -l visit-data{n} /sys/block/vd*/serial').split('/sys/block/')[-1].split('/')[0]
                    text = b.sh(f'test -b /dev/{name} || mdev -s; head -c 14 /dev/{name}; echo')
                    if f'this is file {n}' not in text:
                        raise Failed(f'file {n} at {name}: {text}')
                    if 'cannot' not in b.sh(f'echo x > /dev/{name} || echo cannot'):
                        raise Failed('it may be written')
                ask(glob.glob(folder + '/*third')[0], 'blockdev-add', {'driver': 'raw', 'node-name': 'filter',
                                                                        'file': 'visit-data2', 'read-only': True})
                v.proc.send_signal(signal.SIGINT)
                v.hears('did not come home')
                wait_for('both disks again', 60, lambda: '2 disks' in b.sh('set -- /sys/block/vd*; echo $# disks'))
            v.proc.send_signal(signal.SIGINT)
            v.end(0, 'home')
            say_visit(v)
            check_nothing_left(v)
            if not any('open there still' in n for n in v.result['notes']):
                raise Failed(f'{v.result}')
        if devices(g.second) != had or status(g) != 'running':
            raise Failed(f'{devices(g.second)} {had}')
        if g.sh('kill -0 $(cat /sleeper) && cat /pid; set -- /sys/block/vd*; test -e $1 || echo none; true').strip()[-4:] != 'none':
            raise Failed('it has a disk still')


def data_missing(t, accel):
    """It cannot work there: it is home again, and that is no success."""
    log = Ledger(t)
    with Parent(t, accel) as a:
        a.start_load()
        log.leaves(a)
        with Visit(t, a, '--data', '/no-such-file', '--until', 'exit 9') as v:
            v.end(3, 'home', 'could not work there: --data /no-such-file')
            check_nothing_left(v)
            if v.result['until_code'] is not None:
                raise Failed(f'{v.result}')


def data_kept(t, accel):
    """A guest without a driver lets nothing go: it stays there."""
    path = os.path.join(t.work, 'kept')
    common.write_file(path, ' ' * 4096)
    with Parent(t, accel) as a:
        a.start_load()
        with Visit(t, a, '--data', path, '--until', 'exit 0', '--timeout', '4') as v:
            v.end(3, 'away', 'has not let it go')
            if v.result['tries'] != 3 or 'x-rdma-postcopy-return' not in v.result['error']:
                raise Failed(f'{v.result}')
            with v.guest(t) as b:
                if status(b) != 'running' or 'visit-data1' not in devices(v.result['qmp']):
                    raise Failed(f'{status(b)}')
            kill(v.base, v.name)
            check_nothing_left(v)


def all_is_home(a):
    """The way out says postcopy-paused meanwhile: it has no link any more."""
    wait_for('all is home', 60, lambda: common.migration(a)['status'] == 'completed')


def bring_home(t, v, a, log):
    """By two commands, as farfork(1) has it; then nobody needs the QEMU there."""
    key = os.path.join(t.work, 'key')
    common.write_file(key, '0f' * 32 + '\n')
    os.chmod(key, 0o600)
    wait_alone(v.base)
    with v.guest(t) as b:
        reports(b)
        ask(a.second, 'x-rdma-postcopy-return', {'uri': f'rdma-postcopy:127.0.0.1:0,link=tcp,key-file={key}'})
        port = common.migration(a)['socket-address'][-1]['port']
        b.qmp('migrate', uri=f'rdma-postcopy:127.0.0.1:{port},link=tcp,key-file={key}')
        all_is_home(a)
        wait_for('it is home', 10, lambda: status(a) == 'running')
        log.leaves(b)
    kill(v.base, v.name)
    check_nothing_left(v)
    log.check(a)


def killed(t, accel):
    log = Ledger(t)
    with visiting(t, accel, log=log) as (a, v):
        v.proc.kill()
        v.proc.communicate(timeout=30)
        bring_home(t, v, a, log)


def agent_lost(t, accel):
    """Nobody tells the QEMU there to send it back: the command says how."""
    log = Ledger(t)
    option, end = until(t, 'end')
    with visiting(t, accel, *option, log=log) as (a, v):
        lose_agent(v)
        v.hears('is to be brought home by hand')
        common.write_file(end, '')
        v.end(3, 'away', 'rdma-postcopy:127.0.0.1:0,link=tcp')
        bring_home(t, v, a, log)


def paused_there(t, accel):
    """By somebody there: it comes home so."""
    with Parent(t, accel) as a:
        a.start_load()
        with Visit(t, a) as v:
            v.away()
            with v.guest(t) as b:
                reports(b)
                b.qmp('stop')
                v.proc.send_signal(signal.SIGINT)
                v.end(0, 'home')
            check_nothing_left(v)
        if status(a) != 'paused':
            raise Failed(f'it is {status(a)}')
        a.qmp('cont')
        reports(a)


def somebody_else(t, accel):
    """Two commands by hand, while the command is there: it notices."""
    log = Ledger(t)
    with visiting(t, accel, log=log) as (a, v):
        with v.guest(t) as b:
            reports(b)
            a.qmp('x-rdma-postcopy-return', uri='rdma-postcopy:127.0.0.1:0,link=tcp')
            port = common.migration(a)['socket-address'][-1]['port']
            b.qmp('migrate', uri=f'rdma-postcopy:127.0.0.1:{port},link=tcp')
            is_home(v, a, log, b)


def fails_first(t, accel, commanded):
    """One return fails at home; the guest goes on there, and the next one succeeds."""
    log = Ledger(t)
    option, end = until(t, 'end') if commanded else ((), '')
    with visiting(t, accel, *option, log=log, home={'faults': 'dest.state=fail@1'}) as (a, v):
        with v.guest(t) as b:
            reports(b)
            if commanded:
                common.write_file(end, '')
            else:
                v.proc.send_signal(signal.SIGINT)
            v.hears('did not come home')
            if not commanded:
                reports(b)
                v.proc.send_signal(signal.SIGINT)
            is_home(v, a, log, b)
        if v.result['tries'] < 2:
            raise Failed(f'{v.result}')


def called_without_link(t, accel):
    """It comes home once there is a link."""
    log = Ledger(t)
    with visiting(t, accel, log=log, home={'faults': 'source.resume=delay:6000000@1'}) as (a, v):
        with v.guest(t) as b:
            common.break_link(a)
            common.wait_migration(a, 'postcopy-paused')
            v.proc.send_signal(signal.SIGINT)
            v.hears('cannot come home without a link')
            is_home(v, a, log, b)


def link_breaks(t, accel):
    log = Ledger(t)
    with visiting(t, accel, log=log) as (a, v):
        with v.guest(t) as b:
            common.break_link(a)
            wait_for('another link', 30, lambda: common.migration(a)['x-rdma-postcopy']['breaks'] == 1 and
                     common.migration(a)['status'] == 'postcopy-active')
            reports(b)
            v.proc.send_signal(signal.SIGINT)
            is_home(v, a, log, b)


@contextlib.contextmanager
def on_the_way_home(t, accel, log, **how):
    """It runs here again, and what it wrote comes slowly: (home, its command, the guest as it was there)"""
    with visiting(t, accel, '--timeout', '20', '--options', 'reconnect=20', log=log, home={'faults': SLOW, **how}) as (a, v):
        with v.guest(t) as b:
            b.wait('reports', lambda said: report.is_ready(said.lines), 60)
            b.wait_sweeps(1, 120)
            v.proc.send_signal(signal.SIGINT)
            v.hears('it runs here again')
            yield a, v, b


def breaks_on_the_way(t, accel):
    log = Ledger(t)
    with on_the_way_home(t, accel, log) as (a, v, b):
        common.break_link(a)
        is_home(v, a, log, b)


def dies_on_the_way(t, accel):
    """What it wrote there is lost."""
    with on_the_way_home(t, accel, Ledger(t)) as (a, v, _b):
        os.kill(pid_there(v), signal.SIGKILL)
        v.end(3, 'broken', 'the guest is here, until it touches memory')
        if status(a) != 'running' or v.result['parent_ended']:
            raise Failed(f'{status(a)} {v.result}')
        check_nothing_left(v)


def panics_at_home(t, accel):
    """It is home all the same."""
    how = {'faults': 'dest.prefill=delay:200000@1-10', 'extra': [*POWER_OFF, '-action', 'panic=pause']}
    with on_the_way_home(t, accel, Ledger(t), **how) as (a, v, _b):
        write_port(a, 0x505, 1)
        v.end(0, 'home')
        check_nothing_left(v)
        if status(a) != 'guest-panicked' or 'the guest is guest-panicked here' not in ''.join(v.result['notes']):
            raise Failed(f'{status(a)} {v.result}')


def left_on_the_way(t, accel):
    """Two signals more: both QEMUs do it by themselves."""
    log = Ledger(t)
    with on_the_way_home(t, accel, log) as (a, v, b):
        v.proc.send_signal(signal.SIGINT)
        v.hears('interrupt again to leave')
        v.proc.send_signal(signal.SIGINT)
        v.end(3, 'following', 'left: the guest is here')
        all_is_home(a)
        log.leaves(b)
        kill(v.base, v.name)
        check_nothing_left(v)
        log.check(a)


def interrupted(t, accel):
    """On its way there: it never left."""
    with Parent(t, accel) as a:
        a.start_load()
        with Visit(t, a, '--until', 'exit 0', faults=STUCK) as v:
            wait_source(a, 'device')
            v.proc.send_signal(signal.SIGINT)
            v.end(1, 'here', 'interrupted')
            check_here(v, a)


def not_heard(t, accel):
    """It was let go, and is not heard to run: nobody is to quit the QEMU here."""
    with Parent(t, accel) as a:
        a.start_load()
        with Visit(t, a, '--timeout', '5', faults='dest.run=delay:9000000') as v:
            v.end(3, 'away', 'it was not heard to run there for 5 s; both QEMUs go on; bring it home by')
            kill(v.base, v.name)
            check_nothing_left(v)


def dies_there(t, accel):
    with Parent(t, accel) as a:
        a.start_load()
        with Visit(t, a, '--options', 'timeout=5', '--until', 'sleep 100') as v:
            v.away()
            os.kill(pid_there(v), signal.SIGKILL)
            v.end(3, 'lost', 'SIGKILL')
            check_nothing_left(v)
        common.check_given_away(a)


def shuts_down_there(t, accel, is_quit=False):
    with Parent(t, accel, extra=POWER_OFF) as a:
        a.start_load()
        with Visit(t, a, '--options', 'timeout=5') as v:
            v.away()
            with v.guest(t) as b:
                (end_process if is_quit else lambda g: write_port(g, 0x501, 0))(b)
            v.end(3, *(('lost', 'exit code 1') if is_quit else ('ended', 'shut itself down')))
            check_nothing_left(v)
        common.check_given_away(a)


def home_dies(t, accel):
    """Also when a return failed before: that is what the QEMU there says of a migration, from then on."""
    with visiting(t, accel, '--timeout', '10', '--options', 'reconnect=3', home={'faults': 'dest.state=fail@1'}) as (a, v):
        v.proc.send_signal(signal.SIGINT)
        v.hears('did not come home')
        a.close()
        v.end(3, 'broken', 'until it touches missing memory')
        kill(v.base, v.name)
        check_nothing_left(v)


def refused(t, accel):
    for args, text in ((['x'], 'usage'), (['--options', 'link=verbs', 'x', 'h'], 'over tcp alone'),
                       (['--options', 'prefill=off', 'x', 'h'], 'prefill'),
                       (['--data', 'relative', 'x', 'h'], 'absolute'), (['--fallback', 'go', 'x', 'h'], '--fence'),
                       (['--options', 'window=0', 'x', 'h'], '--options'), (['--timeout', '0', 'x', 'h'], '--timeout: "0" (permitted: 1..86400)')):
        out = subprocess.run([common.FARFORK, 'visit', *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, timeout=20, check=False)
        if out.returncode != 2 or text not in out.stdout:
            raise Failed(f'{args}: {out.returncode}, want "{text}": {out.stdout[:300]}')
    replies = {**FAKE_SOURCE, 'query-commands': {'return': [{'name': 'x-rdma-postcopy-not-started'}]}, 'query-migrate': {'return': {}}}
    with FakeParent(t, replies) as parent, Visit(t, parent, '--qemu', '/bin/false', '--timeout', '2') as v:
        v.end(1, 'here', 'no x-rdma-postcopy-return')
        check_nothing_left(v)
    with Parent(t, accel) as a:
        a.start_load()
        a.qmp('stop')
        with Visit(t, a) as v:
            v.end(1, 'here', 'let it run')
            check_nothing_left(v)
        a.qmp('cont')


def text_of_it(t, accel):
    """For a person: where it is, and a summary."""
    with Parent(t, accel) as a:
        a.start_load()
        argv = [common.FARFORK, 'visit', '--rundir', os.path.join(t.work, 'run'), '--id', 'm', *ELSEWHERE,
                '--until', 'echo it works', a.second, HOST]
        out = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
                             timeout=90, check=False)
        say('\n'.join('      ' + x for x in (out.stderr + out.stdout).splitlines()))
        if out.returncode or 'it runs on h1' not in out.stderr or 'it works' not in out.stdout or \
                'MiB back' not in out.stdout or 'ended with 0' not in out.stdout:
            raise Failed(f'{out.returncode}')


def namespace(t, accel):
    with hosts_of_their_own(1) as hosts:
        by_command(t, accel, memory='memfd', host=hosts[0], launcher=('--launcher', 'ip netns exec {host} {cmd}'))


def run(t):
    accel = t.best_accel()
    for name, case in (
            ('refused', lambda: refused(t, accel)),
            ('by a command', lambda: by_command(t, accel)),
            ('for a person', lambda: text_of_it(t, accel)),
            ('by signals, again and again', lambda: by_signal(t, accel)),
            ('a command that is ended', lambda: command_ended(t, accel)),
            ('in a terminal', lambda: terminal(t, accel)),
            ('memfd, in a network namespace', lambda: namespace(t, accel)),
            ('a disk', lambda: disk(t, accel)),
            ('data, tcg', lambda: data(t)),
            ('data that is not there', lambda: data_missing(t, accel)),
            ('data that the guest keeps', lambda: data_kept(t, accel)),
            ('a return that fails, a command', lambda: fails_first(t, accel, True)),
            ('a return that fails, a signal', lambda: fails_first(t, accel, False)),
            ('killed, and home by hand', lambda: killed(t, accel)),
            ('its agent is lost', lambda: agent_lost(t, accel)),
            ('paused there', lambda: paused_there(t, accel)),
            ('home by somebody else', lambda: somebody_else(t, accel)),
            ('the link breaks', lambda: link_breaks(t, accel)),
            ('called home without a link', lambda: called_without_link(t, accel)),
            ('the link breaks on the way home', lambda: breaks_on_the_way(t, accel)),
            ('its QEMU there dies on the way home', lambda: dies_on_the_way(t, accel)),
            ('a panic on the way home', lambda: panics_at_home(t, accel)),
            ('left on the way home', lambda: left_on_the_way(t, accel)),
            ('interrupted before the switch', lambda: interrupted(t, accel)),
            ('it is not heard of there', lambda: not_heard(t, accel)),
            ('its QEMU there dies', lambda: dies_there(t, accel)),
            ('it shuts itself down there', lambda: shuts_down_there(t, accel)),
            ('its QEMU there is told to quit', lambda: shuts_down_there(t, accel, True)),
            ('the QEMU here dies', lambda: home_dies(t, accel))):
        for path in glob.glob(t.work + '/*.console'):   # of the case before
            os.unlink(path)
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=300)
