#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_visit.py - a guest of Debian's QEMU visits another host, by attaching, and comes home into a QEMU made anew

What it wrote travels home; all else is read from the QEMU that it went from, which is held until then. Limit: 120 s.
"""
import contextlib
import os
import signal

import common
from attach_after_go import Side
from attaching import Parent, chosen, state_of
from common import Failed, say, status, wait_for
from farfork_visit import reports
from forked import ask
from returns import Ledger
from stocks import Stock

MIB = 64
SOME = 'sweep=4 wss=10 report_ms=100'     # a tenth of its pages, and some others


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
        wait_for('its monitor', 20, lambda: os.path.exists(self.monitor))
        command = 'migrate' if side == 'source' else 'migrate-incoming'
        ask(self.monitor, command, {'uri': 'rdma-postcopy:127.0.0.1:' + address})
        self.port = side == 'destination' and self.event('listening')['port']

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


def comes_home(t, accel, memory):
    log = Ledger(t)
    with away(t, accel, memory, log) as (a, b, here, there), homeward(t, accel, memory, 'c', b, here, there) as way:
        is_home(log, a, b, here, there, *way)


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
        for name, faults, there_faults in (('ready', 'dest.ready=fail@1', None), ('state', None, 'attach.state=fail@1')):
            with homeward(t, accel, 'anon', name, b, here, there, faults, there_faults) as way:
                goes_on_there(b, name, way, 1)
        with homeward(t, accel, 'anon', 'killed', b, here, there, 'dest.state=delay:30000000') as way:
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


def run(t):
    accel = t.best_accel()
    for name, case in chosen(
            ('memfd', lambda: comes_home(t, accel, 'memfd')),
            ('anonymous', lambda: comes_home(t, accel, 'anon')),
            ('returns that fail', lambda: fails_first(t, accel)),
            ('other memory', lambda: another(t, accel))):
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=110)
