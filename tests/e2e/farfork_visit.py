#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""farfork_visit.py - farfork visit: the guest works there, and is home again with what it wrote; or where it is said to be

The ledger goes on from home to there and back. attach_visit.py has the way home by itself; limit: 300 s.
"""
import contextlib
import fcntl
import glob
import os
import pty
import signal
import subprocess
import termios

import attach_visit
import common
import report
from attach_after_go import Side
from attaching import check_left_here, logged, state_of
from common import Failed, GuestError, say, status, wait_for
from devices_stay import begin, devices, linux, there as console_there
from farfork_move import HOST, STUCK, check_here, lose_agent, pid_there, wait_alone
from forked import ELSEWHERE, ENVIRON, OPTIONS, QEMU, SLOW, alive, ask, check_nothing_left, hosts_of_their_own
from guest_identity import Linux
from shut_down import end_process, write_port
from visits import Ledger, Parent, Visit, end_homes, goes_on, is_home, left_there, nothing_there, reports, say_visit, until


BREAK_AT = 150      # so many pages were waited for: a second and a half, so that it is known to be away
BREAK = f'dest.fault=delay:10000@1-200,tcp.serve.fault=fail@{BREAK_AT}'


@contextlib.contextmanager
def visiting(t, accel, *args, home=None, log=None, **how):
    """It is there: (the guest as it was here, its command)"""
    with Parent(t, accel, **(home or {})) as a:
        a.start_load()
        with Visit(t, a, *args, **how) as v:
            v.away()
            if log:
                log.leaves(a)
            try:
                yield a, v
            finally:
                end_homes(v.base)


def by_command(t, accel, *args, host=HOST, launcher=ELSEWHERE, **how):
    log = Ledger(t)
    option, end = until(t, 'end', 7)
    with visiting(t, accel, *args, *option, log=log, home=how, host=host, launcher=launcher) as (a, v):
        with v.guest(t) as b:
            b.wait('reports', lambda said: report.is_ready(said.lines), 60)
            b.wait_sweeps(1, 120)
            common.write_file(end, '')
            home = is_home(v, t, log, b)
        with home:
            goes_on(home, log)
        check_left_here(a)
        if v.result['until_code'] != 7 or v.result['tries'] != 1:
            raise Failed(f'{v.result}')


def by_signal(t, accel):
    """Once and again, by each of them: the name of the guest's socket stays."""
    log = Ledger(t)
    with contextlib.ExitStack() as ends:
        a = guest = ends.enter_context(Parent(t, accel))
        a.start_load()
        for n, sig in enumerate((signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)):
            v = ends.enter_context(Visit(t, a, '--options', '', name=f'm{n}'))
            ends.callback(end_homes, v.base)
            v.away()
            log.leaves(guest)
            with v.guest(t, f'there{n}') as b:
                reports(b)
                v.proc.send_signal(sig)
                guest = ends.enter_context(is_home(v, t, log, b))
            if os.readlink(a.second) != v.folder_home() + '/1.qmp' or v.result['until_code'] is not None:
                raise Failed(f'{os.readlink(a.second)}: {v.result}')
        goes_on(guest, log)


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
            home = is_home(v, t, log, b)
        with home:
            goes_on(home, log)
        if v.result['until_code'] != 128 + signal.SIGTERM or alive(child):
            raise Failed(f'{v.result}')


def terminal(t, accel):
    """Ctrl-C is the command's, which has the foreground; then it is this program's again."""
    def in_front():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    person, theirs = pty.openpty()
    with Parent(t, accel) as a, open(person, 'wb', buffering=0) as keys:
        a.start_load()
        option, pids = command_of(t)
        with Visit(t, a, *option, stdin=theirs, preexec_fn=in_front, faults=SLOW) as v:
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
            nothing_there(v)
            end_homes(v.base)
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
                home = is_home(v, t, log, b)
            with home:
                goes_on(home, log)
                io(home, 'read -P 7 0 64k', 'read -P 8 1M 64k', 'write -P 9 2M 64k', 'read -P 9 2M 64k')
            end_homes(v.base)


class Stock(Linux):
    """In the distribution's QEMU."""
    program, env = QEMU, {**os.environ, **ENVIRON}


def data(t):
    """Linux reads files of that host, has them again when a return has failed, and is home without them."""
    files = [os.path.join(t.work, f'data{n}') for n in (1, 2)]
    for n, path in enumerate(files, 1):
        common.write_file(path, f'this is file {n}\n'.ljust(4096, '.'))
    with linux(t, 'tcg', 'data', '-qmp', f'unix:{t.work}/third,server=on,wait=off', *OPTIONS, kind=Stock) as g:
        begin(g)
        g.sh('insmod /modules/0x0002.*')
        had = devices(g.second)
        with Visit(t, g, *(x for f in files for x in ('--data', f)), faults='visit.home=fail@1', environ=ENVIRON) as v:
            v.away()
            folder = v.folder_there()
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
            nothing_there(v)
            if not any('open there still' in n for n in v.result['notes']):
                raise Failed(f'{v.result}')
            if devices(g.second) != had or ask(g.second, 'query-status')['status'] != 'running':
                raise Failed(f'{devices(g.second)} {had}')
            folder = v.folder_home()
            with console_there(t, {'rundir': folder, 'log': folder + '/1.log'}) as home:
                if home.sh('kill -0 $(cat /sleeper) && cat /pid; set -- /sys/block/vd*; test -e $1 || echo none; true').strip()[-4:] != 'none':
                    raise Failed('it has a disk still')
            end_homes(v.base)


def data_missing(t, accel):
    """It cannot work there: it is home again, and that is no success."""
    with Parent(t, accel) as a:
        a.start_load()
        with Visit(t, a, '--data', '/no-such-file', '--until', 'exit 9') as v:
            v.end(3, 'home', 'could not work there: --data /no-such-file')
            nothing_there(v)
            with v.at_home(t) as home:
                goes_on(home)
            end_homes(v.base)
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
            if v.result['tries'] != 3 or 'farfork attach --return' not in v.result['error']:
                raise Failed(f'{v.result}')
            with v.guest(t) as b:
                if status(b) != 'running' or 'visit-data1' not in devices(v.folder_there() + '/2.qmp'):
                    raise Failed(f'{status(b)}')
            left_there(v)


def killed(t, accel):
    """It is brought home as farfork(1) has it: by two processes, each beside a QEMU."""
    log, key = Ledger(t), os.path.join(t.work, 'key')
    common.write_file(key, '0f' * 32 + '\n')
    os.chmod(key, 0o600)
    with visiting(t, accel, log=log, home={'mem_mib': attach_visit.MIB, 'load': attach_visit.SOME}) as (a, v):
        v.proc.kill()
        v.proc.communicate(timeout=30)
        wait_alone(v.base)
        here, there = f'{v.base}/{v.name}/source/qmp', v.folder_there()
        with v.guest(t) as b, attach_visit.Guest(t, 'anew', accel, 'anon') as home:
            reports(b)
            ask(here, 'x-farfork-let-go')
            with Side('destination', home.second, '--connect', 'unix:' + home.stream, '--return', here,
                      f'127.0.0.1:0,precopy=1,link=tcp,key-file={key}') as new:
                port = new.event('listening')['port']
                with Side('source', there + '/1.back.qmp', '--return', there + '/2.qmp',
                          f'127.0.0.1:{port},link=tcp,key-file={key}') as back:
                    if [x.proc.wait(60) for x in (new, back)] != [0, 0]:
                        raise Failed(f'{new.proc.returncode} {back.proc.returncode}')
            log.leaves(b)
            nothing_there(v)
            check_left_here(a)
            goes_on(home, log)


def agent_lost(t, accel):
    """Nobody tells the QEMU there to send it back: the command says how."""
    option, end = until(t, 'end')
    with visiting(t, accel, *option) as (_, v):
        with v.guest(t) as b:
            lose_agent(v)
            v.hears('is to be brought home by hand')
            common.write_file(end, '')
            v.end(3, 'away', 'farfork attach --return on both hosts')
            reports(b)
        left_there(v)


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
            nothing_there(v)
            with v.at_home(t) as home:
                if status(home) != 'paused':
                    raise Failed(f'it is {status(home)}')
                home.qmp('cont')
                reports(home)
            end_homes(v.base)


def fails_first(t, accel, commanded):
    """One return fails at home; the guest goes on there, and the next one succeeds."""
    log = Ledger(t)
    option, end = until(t, 'end') if commanded else ((), '')
    with visiting(t, accel, *option, log=log, faults='visit.home=fail@1') as (_, v):
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
            home = is_home(v, t, log, b)
        with home:
            goes_on(home, log)
        if v.result['tries'] < 2:
            raise Failed(f'{v.result}')


def called_without_link(t, accel):
    """It comes home once there is a link."""
    log = Ledger(t)
    faults = BREAK + ',source.resume=delay:6000000@1'
    with visiting(t, accel, log=log, faults=faults) as (_, v):
        with v.guest(t) as b:
            wait_for('no link', 60, lambda: logged(v, 'paused'))
            v.proc.send_signal(signal.SIGINT)
            v.hears('cannot come home without a link')
            home = is_home(v, t, log, b)
        with home:
            goes_on(home, log)


def link_breaks(t, accel):
    log = Ledger(t)
    with visiting(t, accel, log=log, faults=BREAK) as (_, v):
        with v.guest(t) as b:
            wait_for('another link', 60, lambda: logged(v, 'resumed'))
            reports(b)
            v.proc.send_signal(signal.SIGINT)
            home = is_home(v, t, log, b)
        with home:
            goes_on(home, log)
        if v.result['breaks'] != 1:
            raise Failed(f'one link broke: {v.result}')


@contextlib.contextmanager
def on_the_way_home(t, accel, log, faults=SLOW, **how):
    """It runs here again, and what it wrote comes slowly: (its command, the guest as it was there)"""
    with visiting(t, accel, '--timeout', '20', '--options', 'reconnect=20', log=log, home=how, faults=faults) as (_, v):
        with v.guest(t) as b:
            b.wait('reports', lambda said: report.is_ready(said.lines), 60)
            b.wait_sweeps(1, 120)
            v.proc.send_signal(signal.SIGINT)
            v.hears('it runs here again')
            yield v, b


def dies_on_the_way(t, accel):
    """What it wrote there is lost."""
    with on_the_way_home(t, accel, Ledger(t)) as (v, _):
        os.kill(pid_there(v), signal.SIGKILL)
        v.end(3, 'broken', 'the guest is here, and a CPU that touches missing memory waits for ever')
        if ask(v.folder_home() + '/1.parent.qmp', 'query-status')['status'] != 'running':
            raise Failed(f'{v.result}')
        left_there(v)


def panics_at_home(t, accel):
    """It is home all the same."""
    with on_the_way_home(t, accel, Ledger(t), extra=('-device', 'pvpanic', '-action', 'panic=pause')) as (v, _):
        with v.at_home(t) as home:
            write_port(home, 0x505, 1)
            v.end(0, 'home')
            if status(home) != 'guest-panicked' or 'the guest is guest-panicked here' not in ''.join(v.result['notes']):
                raise Failed(f'{status(home)} {v.result}')


def left_on_the_way(t, accel):
    """Two signals more: the processes beside both QEMUs do it by themselves."""
    log = Ledger(t)
    with on_the_way_home(t, accel, log) as (v, b):
        v.proc.send_signal(signal.SIGINT)
        v.hears('interrupt again to leave')
        v.proc.send_signal(signal.SIGINT)
        v.end(3, 'following', 'left: the guest is here')
        log.leaves(b)
        nothing_there(v)
        with v.at_home(t) as home:
            goes_on(home, log)


def interrupted(t, accel):
    """On its way there: it never left."""
    with Parent(t, accel) as a:
        a.start_load()
        with Visit(t, a, '--until', 'exit 0', faults=STUCK) as v:
            wait_for('it is held', 20, lambda: state_of(a) == 't')
            v.proc.send_signal(signal.SIGINT)
            v.end(1, 'here', 'interrupted')
            check_here(v, a)


def not_heard(t, accel):
    """It was let go, and is not heard to run: nobody is to quit the QEMU here."""
    with Parent(t, accel) as a:
        a.start_load()
        with Visit(t, a, '--timeout', '5', faults='dest.run=delay:9000000') as v:
            v.end(3, 'away', 'it was not heard to run there for 5 s; both QEMUs go on; bring it home by')
            left_there(v)


def dies_there(t, accel):
    with Parent(t, accel) as a:
        a.start_load()
        with Visit(t, a, '--options', 'timeout=5', '--until', 'sleep 100') as v:
            v.away()
            os.kill(pid_there(v), signal.SIGKILL)
            v.end(3, 'lost', 'SIGKILL')
            check_nothing_left(v)
        check_left_here(a)


def power_off(guest):
    with contextlib.suppress(GuestError):
        common.hmp(guest, 'o/h 0x604 0x2000')       # SLP_EN of the PIIX4's PM1a control


def shuts_down_there(t, accel, is_quit=False):
    with Parent(t, accel) as a:
        a.start_load()
        with Visit(t, a, '--options', 'timeout=5') as v:
            v.away()
            with v.guest(t) as b:
                end_process(b) if is_quit else power_off(b)
            v.end(3, *(('unclear', 'was told to quit') if is_quit else ('ended', 'shut itself down')))
            if is_quit:
                left_there(v)
            check_nothing_left(v)
        check_left_here(a)


def home_dies(t, accel):
    """Also when a return failed before."""
    with visiting(t, accel, '--timeout', '10', '--options', 'reconnect=3', faults='visit.home=fail@1') as (a, v):
        v.proc.send_signal(signal.SIGINT)
        v.hears('did not come home')
        a.close()
        v.end(3, 'broken', 'until it touches missing memory')
        left_there(v)


def refused(t, accel):
    for args, text in ((['x'], 'usage'), (['--options', 'link=verbs', 'x', 'h'], 'over tcp alone'),
                       (['--options', 'prefill=off', 'x', 'h'], 'prefill'),
                       (['--data', 'relative', 'x', 'h'], 'absolute'), (['--fallback', 'go', 'x', 'h'], '--fence'),
                       (['--options', 'window=0', 'x', 'h'], '--options'), (['--timeout', '0', 'x', 'h'], '--timeout: "0" (permitted: 1..86400)')):
        out = subprocess.run([common.FARFORK, 'visit', *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, timeout=20, check=False)
        if out.returncode != 2 or text not in out.stdout:
            raise Failed(f'{args}: {out.returncode}, want "{text}": {out.stdout[:300]}')
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
        end_homes(os.path.join(t.work, 'run'))


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
            ('the link breaks', lambda: link_breaks(t, accel)),
            ('called home without a link', lambda: called_without_link(t, accel)),
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
