#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_visit.py - a guest of Debian's QEMU visits another host, by attaching, and comes home into a QEMU made anew

What it wrote travels home; all else is read from the QEMU that it went from, which is held until then. Limit: 170 s.
"""
import contextlib
import glob
import os
import signal

import common
from attach_after_go import Side
from attaching import Parent, check_left_here, chosen, folder_there, side_here, side_there, state_of
from common import Failed, say, status, wait_for
from farfork_move import There, listed, pid_there
from forked import alive, ask, kill
from stocks import Stock
from visits import Ledger, Visit, reports, say_visit, until

MIB = 32
SOME = 'sweep=1 wss=10 report_ms=100'     # a tenth of its pages, and some others


class Guest(Stock):
    """With two QMP sockets more, for the processes beside it."""

    def __init__(self, t, name, accel, memory):
        self.second, self.third = (os.path.join(t.work, f'{name}.{n}') for n in ('second', 'third'))
        self.stream = os.path.join(t.work, name + '.stream')
        super().__init__(t, name, accel, memory, mem_mib=MIB, incoming=True, load=SOME,
                         extra=('-qmp', f'unix:{self.second},server=on,wait=off',
                                '-qmp', f'unix:{self.third},server=on,wait=off'))


class Told(Side):
    """One side with a monitor, which is told its address there."""

    def __init__(self, t, name, side, qmp, *args, address, faults=None):
        self.monitor = os.path.join(t.work, name + '.monitor')
        super().__init__(side, qmp, '--monitor', self.monitor, *args, faults=faults)
        wait_for('its monitor', 20, self.answers)
        command = 'migrate' if side == 'source' else 'migrate-incoming'
        ask(self.monitor, command, {'uri': 'rdma-postcopy:127.0.0.1:' + address})
        self.port = side == 'destination' and self.event('listening')['port']

    def answers(self):
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return ask(self.monitor, 'query-migrate')
        return None

    def is_complete(self):
        said = self.answers()
        if not said:
            raise Failed(f'it has ended: {self.proc.communicate(timeout=30)[0]}')
        return said['status'] == 'completed'

    def ends(self, code):
        """What it counted."""
        e = self.event('ended')
        if self.proc.wait(20) != code:
            raise Failed(f'exit code {self.proc.returncode}')
        return e


@contextlib.contextmanager
def away(t, accel, memory, log, faults=None):
    """It went: home, the QEMU there, and who looks after each."""
    with Parent(t, accel, memory, mem_mib=MIB, load=SOME) as a, Guest(t, 'b', accel, memory) as b:
        a.start_load()
        with Told(t, 'there', 'destination', b.second, '--connect', b.stream, address='0,visit=on,link=tcp') as there, \
                Told(t, 'here', 'source', a.second, address=f'{there.port},link=tcp', faults=faults) as here:
            there.event('running')
            log.leaves(a)
            reports(b)
            yield a, b, here, there


@contextlib.contextmanager
def homeward(t, accel, memory, name, b, here, there, faults=None, there_faults=None):
    """It is on its way home, into a QEMU made anew."""
    with Guest(t, name, accel, memory) as c:
        with Told(t, f'{name}.new', 'destination', c.second, '--connect', c.stream, '--return', here.monitor, faults=faults,
                  address='0,precopy=1,link=tcp') as new, \
                Told(t, f'{name}.back', 'source', b.third, '--return', there.monitor, address=f'{new.port},link=tcp',
                     faults=there_faults) as back:
            yield c, new, back


def is_home(log, a, b, here, there, c, new, back):
    """With what it wrote, and nothing more; then nothing is left but the QEMU in which it is."""
    wait_for('all of it', 60, new.is_complete)
    count = new.ends(0)
    log.leaves(b)
    for side in (back, here, there):
        side.ends(0)
    for g in (a, b):
        if g.proc.wait(10) != -signal.SIGKILL:
            raise Failed(f'{g.name}: exit code {g.proc.returncode}')
    came = count['engine']['prefill-bytes'] + count['engine']['fault-bytes']
    say(f'      {came >> 10} KiB came home, downtime {count["downtime_ms"]:.1f} ms')
    if not 0 < came < (MIB << 20) / 4:
        raise Failed(f'{came} bytes came home: {count}')
    log.check(c, sweeps=1)


def goes_on_there(b, name, way, code):
    """This return came to nothing, for this reason."""
    c, new, back = way
    back.ends(code)
    new.ends(1)
    if c.proc.wait(10):
        raise Failed(f'{name}: the QEMU made anew ended with {c.proc.returncode}')
    reports(b)


def fails_first(t, accel):
    """Whatever fails before GO leaves it there, served from home as before; then it comes home."""
    log = Ledger(t)
    with away(t, accel, 'anon', log) as (a, b, here, there):
        for name, faults, there_faults in (('ready', 'dest.ready=fail@1', None), ('pass', 'dest.precopy=fail', None), ('state', None, 'attach.state=fail@1')):
            with homeward(t, accel, 'anon', name, b, here, there, faults, there_faults) as way:
                goes_on_there(b, name, way, 1)
        with homeward(t, accel, 'anon', 'killed', b, here, there, 'dest.state=delay:4000000') as way:
            wait_for('the QEMU there is held', 20, lambda: state_of(b) == 't')
            way[2].proc.kill()
            new_ends = way[1]
            new_ends.ends(1)
            b.qmp('cont')
            reports(b)
        with homeward(t, accel, 'anon', 'c', b, here, there) as way:
            is_home(log, a, b, here, there, *way)


def another(t, accel):
    """Memory of another guest, or of a visit that is over, is refused before anything stops."""
    log = Ledger(t)
    with away(t, accel, 'anon', log) as (_, b, here, there), Guest(t, 'c', accel, 'anon') as c:
        with Told(t, 'plain', 'destination', c.second, '--connect', c.stream, address='0,precopy=1,link=tcp') as new, \
                Told(t, 'back', 'source', b.third, '--return', there.monitor, address=f'{new.port},link=tcp') as back:
            if ', return of ' not in back.event('failed')['reason']:
                raise Failed('it is refused for another reason')
            back.ends(1)
        said = ask(here.monitor, 'query-migrate')['status'], status(b)
        if said != ('postcopy-active', 'running'):
            raise Failed(f'{said}')
        reports(b)


def folder_here(visit):
    """Of the QEMU made anew, here."""
    return glob.glob(f'{visit.base}/{visit.name}-home-*/localhost')[0]


def pid_here(visit):
    return next(k['pid'] for f in listed(visit.base) if f['id'].startswith(visit.name + '-home-') for k in f['children'])


def slow_to_look(t, accel):
    """`migrate` is not answered; and while it looks away all of it comes home, and who sent it ends: that is no failure."""
    log = Ledger(t)
    with Parent(t, accel, 'anon', mem_mib=MIB, load=SOME) as a:
        a.start_load()
        option, end = until(t, 'slow-end')
        with Visit(t, a, *option, name='slow', faults='visit.sent=fail@1,visit.look=delay:2000000@1') as v:
            v.away()
            log.leaves(a)
            with There(t, 'slow-there', folder_there(v), pid_there(v)) as b:
                common.write_file(end, '')
                v.end(0, 'home')    # who could say how much came has ended by then, perhaps
                if v.result['tries'] != 1 or not v.result['parent_ended']:
                    raise Failed(f'{v.result}')
                log.leaves(b)
            with There(t, 'slow-home', folder_here(v), pid_here(v)) as guest:
                log.check(guest, sweeps=1)
            for f in listed(v.base):
                kill(v.base, f['id'])


def stays_home(t, log, visit, b, name):
    """Its command has ended: the guest is here again, by the name that its socket had."""
    visit.end(0, 'home')
    say_visit(visit)
    log.leaves(b)
    r = visit.result
    if not r['parent_ended'] or alive(r['pid']) or not 0 < r['bytes']['back'] < (MIB << 20) / 4:
        raise Failed(f'{r}')
    if os.readlink(r['parent']) != folder_here(visit) + '/1.qmp':
        raise Failed(f'{r["parent"]} leads elsewhere')
    return There(t, name, folder_here(visit), pid_here(visit))


def visits(t, accel, memory):
    """Twice: the QEMU made anew is one as any other."""
    log, ends = Ledger(t), contextlib.ExitStack()
    with ends:
        guest = a = ends.enter_context(Parent(t, accel, memory, mem_mib=MIB, load=SOME))
        a.start_load()
        for n in range(2):
            option, end = until(t, f'end{n}')
            v = ends.enter_context(Visit(t, a, *option, name=f'm{n}'))
            ends.callback(lambda v=v: [kill(v.base, f['id']) for f in listed(v.base)])
            v.away()
            log.leaves(guest)
            with There(t, f'there{n}', folder_there(v), pid_there(v)) as b:
                reports(b)
                common.write_file(end, '')
                guest = ends.enter_context(stays_home(t, log, v, b, f'home{n}'))
        log.check(guest, sweeps=1)


def gives_back(t, accel):
    """A guest that may take what it gave back for zeros would have old contents at home: refused before it stops."""
    balloon = ('-device', 'virtio-balloon-pci,id=balloon0,free-page-reporting=on')
    with Parent(t, accel, 'anon', mem_mib=MIB, load=SOME, devices=balloon) as a:
        a.start_load()
        with Visit(t, a, *until(t, 'never')[0]) as v:
            v.end(1, 'here', 'free-page-reporting')
        reports(a)


def does_not_come(t, accel):
    """Each try fails before GO: it works on there, and is left there in the end."""
    log = Ledger(t)
    with Parent(t, accel, 'anon', mem_mib=MIB, load=SOME) as a:
        a.start_load()
        option, end = until(t, 'end')
        with Visit(t, a, *option, name='stays', faults='attach.room=fail') as v:
            v.away()
            log.leaves(a)
            with There(t, 'there', folder_there(v), pid_there(v)) as b:
                common.write_file(end, '')
                v.end(3, 'away', 'is here twice')
                if v.result['tries'] != 3 or status(b) != 'running':
                    raise Failed(f'{status(b)}: {v.result}')
                reports(b)
                kill(v.base, v.name)
            os.kill(side_here(v), signal.SIGKILL)   # it holds the QEMU here on


@contextlib.contextmanager
def visiting(t, accel, name):
    with Parent(t, accel, 'anon', mem_mib=MIB, load=SOME) as a:
        a.start_load()
        with Visit(t, a, '--options', 'reconnect=3', name=name) as v:
            v.away()
            yield a, v
            for f in listed(v.base):
                kill(v.base, f['id'])


def side_killed(t, accel):
    """Its memory here goes with who served it; it is never here and there."""
    with visiting(t, accel, 'served') as (a, v):
        os.kill(side_here(v), signal.SIGKILL)
        v.end(3, 'broken', 'runs until it touches missing memory')
        check_left_here(a)
    with visiting(t, accel, 'there') as (a, v):
        os.kill(side_there(v), signal.SIGKILL)
        v.end(3, 'broken', 'waits for ever')
        if state_of(a) != 't':
            raise Failed(f'the QEMU here is {state_of(a)}')
        os.kill(side_here(v), signal.SIGKILL)


def visit_killed(t, accel):
    """The processes beside the QEMUs complete its way home."""
    with visiting(t, accel, 'killed') as (a, v):
        pid = pid_there(v)
        v.proc.send_signal(signal.SIGINT)
        v.hears('it runs here again')
        v.proc.kill()
        check_left_here(a)
        wait_for('the end of the QEMU there', 20, lambda: not alive(pid))
        with There(t, 'alone', folder_here(v), pid_here(v)) as c:
            reports(c)


def run(t):
    accel = t.best_accel()
    for name, case in chosen(
            ('returns that fail', lambda: fails_first(t, accel)),
            ('farfork visit', lambda: visits(t, accel, 'memfd')),
            ('farfork visit that looks away', lambda: slow_to_look(t, accel)),
            ('farfork visit, and no way home', lambda: does_not_come(t, accel)),
            ('who attaches is killed while it is there', lambda: side_killed(t, accel)),
            ('farfork visit is killed on the way home', lambda: visit_killed(t, accel)),
            ('other memory', lambda: another(t, accel)),
            ('what it gives back', lambda: gives_back(t, accel))):
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=170)
