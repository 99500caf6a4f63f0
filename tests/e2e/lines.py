#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""lines.py - the command lines that people's tools write start, move and fork here

tests/e2e/lines has one file each, with its source; tests/e2e/lineplace.py replaces what this host
lacks. Each guest is moved by farfork move to a host of its own (a network namespace) and forked by
vmclone, or refused by the name of what is in the way, and goes on. The head of a file says what is
expected:
    Guest: micro (its ledger shows each wrong page), shell (the firmware's, which remembers a word)
           or paused (it need not run: it is refused)
    Move:  yes; by hand: TEXT (farfork move refuses with it, QMP moves); refused: TEXT
    Fork:  yes; OPTION: TEXT (refused with it, and works without the option); refused: TEXT
make check has a few of them, FARFORK_FULL=1 all; arguments name others. Limit: 120 s, or 900.
"""
import contextlib
import glob
import os
import sys

import common
import lineplace
import report
from attaching import Move, check_left_here
from common import Failed, check_ledger, say, status, wait_for
from farfork_move import there
from forked import (ENVIRON, Child, Clone, Parent, check_nothing_left, hosts_of_their_own, kill, snapshot)
from lineplace import Console, Here, Line
from qemu import GuestError
from refuse_memory import Backend

QUICK = ('libvirt-9-session', 'virt-install', 'proxmox-8')
LIMIT_S = 900 if common.FULL or sys.argv[1:] else 120
LAUNCHER = ('--launcher', 'ip netns exec {host} {cmd}')
REFUSED = ('refused', 'by hand')
OWN = dict.fromkeys(ENVIRON, '')        # these QEMUs have modules of their own


class Tool(Parent):
    """A QEMU as the tool starts it, with the test's QMP sockets and guest."""

    def __init__(self, t, here, name='parent', incoming=False):
        # pylint: disable=super-init-not-called
        own = os.path.join(here.folder, name)
        self.name, self.env, self.events, self.pending = name, None, [], b''
        self.console, self.stderr = own + '.console', own + '.stderr'
        self.sock_path, self.second = own + '.qmp', own + '.second'
        self.qmp_sock = self.proc = None
        self._log, self._log_at = report.Log(), 0
        self.here, self.serial = here, own + '.serial'
        words, self.handed = here.argv(name)
        self.pass_fds = [d.fileno() for d in self.handed]
        self.argv = [common.QEMU, *words]
        for path in (self.sock_path, self.second):
            self.argv += ['-qmp', f'unix:{path},server=on,wait=off']
        if here.micro:
            self.argv += ['-kernel', common.MICRO_ELF, '-append', common.LOAD,
                          '-debugcon', 'file:' + self.console]
        else:                               # it would wait for servers to boot from
            for ip in ('IPv4', 'IPv6'):
                self.argv += ['-fw_cfg', f'name=opt/org.tianocore/{ip}Support,string=no']
        if incoming:
            self.argv += ['-incoming', 'defer']

    def __enter__(self):
        super().__enter__()
        for d in self.handed:
            d.close()
        return self

    def begin(self, stack):
        """The guest runs; what shows that it goes on elsewhere."""
        kind = self.here.line.head['Guest']
        if status(self) == 'prelaunch':
            self.qmp('cont')
        if kind == 'paused':
            self.qmp('stop')
        if kind == 'micro':
            self.start_load()
        elif kind == 'shell':
            self.shell = stack.enter_context(Console(self.serial))
            self.shell.wait_shell(lambda: self.qmp('system_reset'))
            self.shell.remember('here')


def expected(line, key):
    """(what is tried, the text of a refusal)"""
    how, _, text = line.head[key].partition(': ')
    return how, text


def refuse_move(t, parent, host, text):
    with Move(t, parent, host=host, launcher=LAUNCHER, environ=OWN) as m:
        m.end(1, 'here', text)
        check_nothing_left(m)


def vouched(parent):
    """Where the line names a script, which an operator has to permit."""
    return ['--unconfined'] * any('script=/' in word for word in parent.argv)


def serial_of(folder, number):
    return wait_for('its console', 20, lambda: glob.glob(f'{folder}/{number}.*serial'))[0]


def move_line(t, parent, host):
    with Move(t, parent, *vouched(parent), host=host, launcher=LAUNCHER, environ=OWN) as m:
        m.end(0, 'there')
        check_left_here(parent)
        for note in m.result.get('notes', []):
            say(f'      {note}')
        if parent.here.micro:
            with there(t, 'b', m.result) as b:
                check_ledger(parent, b)
            os.unlink(os.path.join(t.work, 'b.console'))
        else:
            with Console(serial_of(m.result['rundir'], 1)) as shell:
                shell.recall('here')
        kill(m.base, m.name)
        check_nothing_left(m)


def move_by_hand(t, here, parent):
    with Tool(t, here, 'b', incoming=True) as b:
        moved = common.move(parent, b)
        held = here.line.has('-S')          # the tool starts it there
        common.check_move(moved, paused=held and 'there')
        if held:
            b.qmp('cont')
        say(f'      {moved.line()}')
        check_ledger(parent, b)


def refuse_fork(t, parent, text):
    with Clone(t, parent, 1, *vouched(parent), environ=OWN) as c:
        code = c.end()
        error = f'{c.result.get("error")} {[r["error"] for r in c.result.get("children", [])]}'
        if code != 3 or text not in error:
            raise Failed(f'vmclone ended with {code}, {error} {c.err[-600:]}; want 3, "{text}"')
        say(f'      {error}')
        check_nothing_left(c)


def logs_of(result):
    """The end of what each child said."""
    return {path: open(path, encoding='utf-8', errors='replace').read()[-900:]
            for host in result['hosts'] for path in glob.glob(f'{host["rundir"]}/*.log')}


def fork_line(t, parent):
    before = snapshot(parent) if parent.here.micro else None
    with Clone(t, parent, 2, *vouched(parent), environ=OWN) as c:
        if c.end() or [r['state'] for r in c.children] != ['complete'] * 2:
            raise Failed(f'vmclone: {c.result} {c.err[-600:]} {logs_of(c.result)}')
        for note in c.result.get('notes', []):
            say(f'      {note}')
        for row in c.children:
            if parent.here.micro:
                Child(row, parent).check(before)
            else:
                with Console(serial_of(os.path.dirname(row['qmp']), row['child'])) as shell:
                    shell.recall('here')
        if not parent.here.micro:
            parent.shell.recall('here')
        kill(c.base, 'f')
        check_nothing_left(c, parent if parent.here.micro else None)


def start(stack, t, here):
    """The parent, and other programs that its devices need."""
    parent = Tool(t, here)
    for word in parent.argv:
        for what, program in (('virtiofsd', Backend), ('swtpm', lineplace.Swtpm)):
            if what in word:
                program(word.split('path=')[1]).start()
    return stack.enter_context(parent)


def moves(t, line, accel):
    how, text = expected(line, 'Move')
    here = Here(t, line, accel)
    with hosts_of_their_own(1) as hosts, lineplace.made_taps(here, hosts), \
            contextlib.ExitStack() as stack:
        parent = start(stack, t, here)
        parent.begin(stack)
        if how in REFUSED:
            refuse_move(t, parent, hosts[0], text)
        if how == 'by hand':
            move_by_hand(t, here, parent)
        elif how == 'yes':
            move_line(t, parent, hosts[0])


def forks(t, line, accel):
    how, text = expected(line, 'Fork')
    for without in [()] if how in ('yes', 'refused') else [(), (how,)]:
        here = Here(t, line, accel, without)
        with lineplace.made_taps(here, ()), contextlib.ExitStack() as stack:
            parent = start(stack, t, here)
            if text and not without:
                refuse_fork(t, parent, text)
                continue
            parent.begin(stack)
            fork_line(t, parent)


def both(t, line, accel):
    with t.case(f'{line.name}, {accel}: move {line.head["Move"]}'):
        moves(t, line, accel)
    with t.case(f'{line.name}, {accel}: fork {line.head["Fork"]}'):
        forks(t, line, accel)


def run(t):
    folder = os.path.join(common.HERE, 'lines')
    every = sorted(os.path.basename(p)[:-5] for p in glob.glob(folder + '/*.args'))
    for name in sys.argv[1:] or (every if common.FULL else QUICK):
        line = Line(os.path.join(folder, name + '.args'))
        both(t, line, 'tcg')
        if common.FULL and name in QUICK and 'kvm' in t.accels():
            both(t, line, 'kvm')


if __name__ == '__main__':
    common.main(run, LIMIT_S)
