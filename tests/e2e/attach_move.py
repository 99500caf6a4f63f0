#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_move.py - farfork move, as it is by default: QEMUs without the transport, and no migration of their own; limit: 420 s

Debian's own QEMU 7.2, mostly. What goes wrong before GO leaves the guest running here, with its disks; after it no
monitor makes it run here.
"""
import os
import signal
import subprocess

import common
from attaching import Move, Parent, folder_there, logged, side_here, side_there
from common import Failed, check_ledger, status, wait_for
from farfork_move import There, check_here, listed, pid_there, say_phases, there
from forked import SLOW
from stocks import OLDEST, qemu_of

BALLOON = ('-device', 'virtio-balloon-pci')
# Root without the capability of its QEMU to look into others, so not into that QEMU
STRANGER = ('setpriv', '--bounding-set=-sys_ptrace', '--inh-caps=-sys_ptrace')


def state_of(guest):
    with open(f'/proc/{guest.proc.pid}/stat', encoding='ascii') as f:
        return f.read().rsplit(')', 1)[1].split()[0]


class Newer(common.Micro):
    """A QEMU of 10.0, whatever it has been patched with."""

    def __init__(self, t, accel):
        self.second = os.path.join(t.work, 'parent.second')
        super().__init__(t, 'parent', accel, 'memfd', load=common.LOAD, machine='q35', smp=4,
                         extra=('-qmp', f'unix:{self.second},server=on,wait=off', '-device', 'VGA'))


def moves(t, guest, name):
    with guest as a:
        a.start_load()
        with Move(t, a) as m:
            with there(t, f'moved-{name}', m.end(0, 'there')) as b:
                check_ledger(a, b, sweeps=1)
            if m.result['notes']:       # that its QEMU has ended is no news
                raise Failed(f'notes: {m.result["notes"]}')
            if a.proc.wait(10) != -signal.SIGKILL:
                raise Failed('the QEMU here was not ended')
            say_phases(m)


def stays(t, accel, faults, text, *options):
    """What fails before GO, or makes it come to nothing, leaves the guest running here."""
    with Parent(t, accel, 'anon') as a:
        a.start_load()
        with Move(t, a, *options, faults=faults) as m:
            m.end(1, 'here', text)
            check_here(m, a)


def killed(t, accel, pauses):
    """Who attaches is killed while the guest stands still: it was not let go of, and runs here again if it ran."""
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        if pauses:
            a.qmp('stop')
        with Move(t, a, '--keep-source', faults='dest.state=delay:3000000') as m:
            wait_for('the QEMU here is held', 20, lambda: state_of(a) == 't')
            os.kill(side_here(m), signal.SIGKILL)
            m.end(1, 'here', 'the process beside the QEMU here ended')
            if pauses and status(a) != 'paused':
                raise Failed(f'it is {status(a)} here')
            if pauses:
                a.qmp('cont')
            check_here(m, a)


def paused(t, accel):
    """It is paused there, too; and stays so here where the move fails."""
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        a.qmp('stop')
        with Move(t, a, faults='dest.ready=fail@1') as m:
            m.end(1, 'here', 'ready: injected')
        if status(a) != 'paused':
            raise Failed(f'it is {status(a)} here')
        with Move(t, a) as m:
            with there(t, 'paused', m.end(0, 'there')) as b:
                if status(b) != 'paused':
                    raise Failed(f'it is {status(b)} there')
                b.qmp('cont')
                check_ledger(a, b, sweeps=1)


def interrupted(t, accel):
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, faults='dest.state=delay:3000000') as m:
            wait_for('the QEMU here is held', 20, lambda: state_of(a) == 't')
            m.proc.send_signal(signal.SIGINT)
            m.end(1, 'here', 'interrupted')
            check_here(m, a)


def refused(t, accel):
    """Before anything is started for it, or the guest stops."""
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, '--via', 'transport') as m:
            m.end(1, 'here', 'no x-farfork-export')
            check_here(m, a)
        with Move(t, a, prefix=STRANGER) as m:
            m.end(1, 'here', 'CAP_SYS_PTRACE')
            check_here(m, a)


def one_at_a_time(t, accel):
    """Two processes at one QEMU would each stop its guest: the later one is refused, before it does anything."""
    third = os.path.join(t.work, 'parent.third')
    with Parent(t, accel, 'anon', devices=('-qmp', f'unix:{third},server=on,wait=off')) as a:
        a.start_load()
        with Move(t, a, faults='dest.pager=delay:2000000') as m:
            wait_for('a process beside the QEMU there', 20, lambda: logged(m, 'connected'))
            said = subprocess.run([common.FARFORK, 'attach', '--source', '--qmp', third, '127.0.0.1:1'], capture_output=True,
                                  text=True, timeout=20, check=False)
            if said.returncode != 1 or f'process {side_here(m)}:' not in said.stderr:
                raise Failed(f'the second one ended with {said.returncode}: {said.stderr}')
            with there(t, 'alone', m.end(0, 'there')) as b:
                check_ledger(a, b, sweeps=1)


def done_unanswered(t, accel):
    """The destination has all, and waits for a source that does not come back."""
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, '--options', 'timeout=1', faults='source.done=delay:3000000') as m:
            m.end(0, 'there')
            with there(t, 'late', m.result) as b:
                check_ledger(a, b, sweeps=1)
            states = [k['state'] for k in listed(m.base)[0]['children']]
            if states != ['complete', 'complete']:
                raise Failed(f'the QEMU there and the process beside it, which waits for the source: {states}')


def mover_killed(t, accel):
    """The processes beside the QEMUs end what it began; then the QEMU here ends."""
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, faults=SLOW) as m:
            wait_for('the guest there', 20, lambda: m.proc.poll() is None and logged(m, 'running'))
            m.proc.kill()
            m.proc.communicate(timeout=30)
            if a.proc.wait(30) != -signal.SIGKILL:
                raise Failed('the QEMU here was not ended')
            wait_for('completion, there', 20, lambda: [
                k['state'] for k in listed(m.base)[0]['children']] == ['complete'])
            with There(t, 'b', folder_there(m), pid_there(m)) as b:
                check_ledger(a, b, sweeps=1)
            wait_for('end of the process here', 10, lambda: not os.path.exists(f'{m.base}/{m.name}/source'))


def link_breaks(t, accel):
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, '--keep-source', '--options', 'prefill=pull', faults='tcp.serve.prefill=fail@5') as m:
            result = m.end(0, 'there')
            if state_of(a) != 'T' or not any('stands still' in n for n in result['notes']):
                raise Failed(f'the QEMU here is kept, and stands still: {state_of(a)}, {result["notes"]}')
            if m.result['breaks'] != 1:
                raise Failed(f'one link broke: {m.result}')
            with there(t, 'after', m.result) as b:
                check_ledger(a, b, sweeps=1)


def killed_with_go(t, accel):
    """From just before GO the kernel ends the QEMU here with who holds it, and the one there never got the guest."""
    with Parent(t, accel, 'anon') as a:
        a.start_load()
        with Move(t, a, faults='source.go=kill') as m:
            m.end(3, 'lost', 'never ran it: the guest runs nowhere')
            if a.proc.wait(10) != -signal.SIGKILL:
                raise Failed('the QEMU here goes on without who held it')


def ended_here(t, accel):
    """Its QEMU here ends before GO, perhaps since somebody else has moved it."""
    with Parent(t, accel, 'anon') as a:
        with Move(t, a, faults='dest.state=delay:2000000') as m:
            wait_for('the QEMU here is held', 20, lambda: state_of(a) == 't')
            a.proc.kill()
            m.end(3, 'unclear', 'unless somebody else moved')


def after_go(t, accel, kills_here):
    """The guest is there: its QEMU here does not run it, also where who holds it is killed."""
    with Parent(t, accel, 'anon') as a:
        a.start_load()
        with Move(t, a, faults=SLOW) as m:
            wait_for('the guest there', 20, lambda: m.proc.poll() is None and logged(m, 'running'))
            if state_of(a) != 't':
                raise Failed('the QEMU here is not held')
            os.kill(side_here(m) if kills_here else pid_there(m), signal.SIGKILL)
            m.end(3, 'lost' if not kills_here else 'broken')
            if kills_here and a.proc.wait(10) != -signal.SIGKILL:
                raise Failed('the QEMU here goes on without who held it')
        if a.proc.poll() is None and state_of(a) != 'T':   # no monitor is heard
            raise Failed('the QEMU here runs')


def side_there_dies(t, accel, kills, code, state, text):
    """Before the guest may run it goes on here; later its QEMU there says `completed`, and has not all of its memory."""
    with Parent(t, accel, 'anon') as a:
        a.start_load()
        # who serves its memory here waits for another link, in its own folder
        with Move(t, a, faults=kills or SLOW, name='m' if kills else 'broken') as m:
            if not kills:
                wait_for('the guest there', 20, lambda: m.proc.poll() is None and logged(m, 'running'))
                os.kill(side_there(m), signal.SIGKILL)
            m.end(code, state, text)
            if state == 'here':
                check_here(m, a)


def wrapped(t, accel):
    """With --qemu the program that started the QEMU there may end, and that QEMU does not: the end of the one tells
    the source nothing of the other."""
    pid, program = os.path.join(t.work, 'wrapped.pid'), os.path.join(t.work, 'wrapper')
    with Parent(t, accel, 'anon') as a:
        common.write_file(program, '#!/bin/sh\nsetsid sh -c \'echo $$ > "$0"; exec "$@"\' ' +
                          f'{pid} {qemu_of(OLDEST)} "$@" &\nwait\n')
        os.chmod(program, 0o700)
        a.start_load()
        with Move(t, a, '--qemu', program, '--options', 'reconnect=2', faults='dest.go=kill', name='wrapped') as m:
            m.end(3, 'unclear', 'may never have run')
            with open(pid, encoding='ascii') as f:
                os.kill(int(f.read()), signal.SIGKILL)
        if state_of(a) not in 'tT':
            raise Failed('the guest runs here, and its QEMU there was alive')


def run(t):
    accel = t.best_accel()
    for name, case in (
            ('memfd', lambda: moves(t, Parent(t, accel, 'memfd', devices=BALLOON), 'memfd')),
            ('anonymous', lambda: moves(t, Parent(t, accel, 'anon'), 'anon')),
            ('10.0, q35, 4 CPUs, VGA', lambda: moves(t, Newer(t, accel), 'newer')),
            ('paused', lambda: paused(t, accel)),
            ('the state is not saved', lambda: stays(t, accel, 'attach.state=fail@1', 'injected')),
            ('the destination fails', lambda: stays(t, accel, 'dest.ready=fail@1', 'the peer ended it: destination: ready: injected')),
            ('GO is lost', lambda: stays(t, accel, 'source.gone=fail@1', 'never got GO')),
            ('GO is lost, and nobody connects again', lambda: stays(t, accel, 'source.gone=fail@1', 'never ran the guest',
                                                                    '--options', 'reconnect=0')),
            ('who attaches here is killed', lambda: killed(t, accel, False)),
            ('who attaches here to a paused guest is killed', lambda: killed(t, accel, True)),
            ('who attaches here is killed with GO', lambda: killed_with_go(t, accel)),
            ('the QEMU here ends', lambda: ended_here(t, accel)),
            ('refused', lambda: refused(t, accel)),
            ('interrupted', lambda: interrupted(t, accel)),
            ('one at a time', lambda: one_at_a_time(t, accel)),
            ('DONE is not answered', lambda: done_unanswered(t, accel)),
            ('farfork move is killed', lambda: mover_killed(t, accel)),
            ('the link breaks', lambda: link_breaks(t, accel)),
            ('who holds the QEMU here is killed', lambda: after_go(t, accel, True)),
            ('who attaches there is killed with GO', lambda: side_there_dies(t, accel, 'dest.go=kill', 1, 'here',
                                                                             'never ran the guest')),
            ('likewise, and another program started the QEMU there', lambda: wrapped(t, accel)),
            ('who attaches there is killed', lambda: side_there_dies(t, accel, None, 3, 'broken', 'waits for ever')),
            ('the destination dies', lambda: after_go(t, accel, False))):
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=420)
