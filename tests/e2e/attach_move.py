#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_move.py - farfork move, as it is by default: QEMUs without the transport, and no migration of their own; limit: 240 s

Debian's own QEMU 7.2, mostly. What goes wrong before GO leaves the guest running here, with its disks; attach_after_go.py
has what goes wrong later. Arguments: parts of the names of cases; default: all.
"""
import contextlib
import os
import signal
import subprocess

import common
from attaching import Input, Move, Parent, chosen, folder_there, logged, side_here, state_of
from common import Failed, check_ledger, status, wait_for
from farfork_move import check_here, say_phases, there

BALLOON = ('-device', 'virtio-balloon-pci')
# Root without the capability of its QEMU to look into others, so not into that QEMU
STRANGER = ('setpriv', '--bounding-set=-sys_ptrace', '--inh-caps=-sys_ptrace')


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
            m.end(1, 'here', 'no x-rdma-postcopy-not-started')
            check_here(m, a)
        with Move(t, a, prefix=STRANGER) as m:
            m.end(1, 'here', 'CAP_SYS_PTRACE')
            check_here(m, a)


def with_input(t, accel):
    """Bytes come into a device while its state is whole, and its QEMU about to be held."""
    source = Input(t)
    with contextlib.ExitStack() as stack, Parent(t, accel, 'anon', devices=source.devices) as a:
        a.start_load()
        source.start(stack)
        with Move(t, a, faults='attach.state=delay:600000') as m, there(t, 'fed', m.end(0, 'there')) as b:
            source.check(stack, folder_there(m))
            check_ledger(a, b, sweeps=1)


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


def exported(t, accel):
    """An export that writes is refused; readers are cut off, and a note says so."""
    disk = os.path.join(t.work, 'exported.raw')
    with open(disk, 'wb') as f:
        f.truncate(1 << 20)
    with Parent(t, accel, 'anon', devices=('-blockdev', f'driver=raw,node-name=d0,file.driver=file,file.filename={disk}',
                                           '-device', 'virtio-blk-pci,drive=d0,share-rw=on')) as a:
        a.start_load()
        a.qmp('nbd-server-start', addr={'type': 'unix', 'data': {'path': os.path.join(t.work, 'nbd')}})
        a.qmp('block-export-add', type='nbd', id='w', node_name='d0', writable=True)
        with Move(t, a) as m:
            m.end(1, 'here', "export 'w'")
            check_here(m, a)
        a.qmp('block-export-del', id='w')
        wait_for('end of the export', 20, lambda: not a.qmp('query-block-exports'))
        a.qmp('block-export-add', type='nbd', id='r', node_name='d0')
        with Move(t, a) as m:
            with there(t, 'exported', m.end(0, 'there')) as b:
                check_ledger(a, b, sweeps=1)
            if "export 'r' (nbd) of disk " not in ' '.join(m.result['notes']):
                raise Failed(f'no note of the reader: {m.result["notes"]}')


def ended_here(t, accel):
    """Its QEMU here ends before GO, perhaps since somebody else has moved it."""
    with Parent(t, accel, 'anon') as a:
        with Move(t, a, faults='dest.state=delay:2000000') as m:
            wait_for('the QEMU here is held', 20, lambda: state_of(a) == 't')
            a.proc.kill()
            m.end(3, 'unclear', 'unless somebody else moved')


def run(t):
    accel = t.best_accel()
    for name, case in chosen(
            ('memfd', lambda: moves(t, Parent(t, accel, 'memfd', devices=BALLOON), 'memfd')),
            ('anonymous', lambda: moves(t, Parent(t, accel, 'anon'), 'anon')),
            ('10.0, q35, 4 CPUs, VGA', lambda: moves(t, Newer(t, accel), 'newer')),
            ('paused', lambda: paused(t, accel)),
            ('input while the state is saved', lambda: with_input(t, accel)),
            ('the state is not saved', lambda: stays(t, accel, 'attach.state=fail@1', 'injected')),
            ('the destination fails', lambda: stays(t, accel, 'dest.ready=fail@1', 'the peer ended it: destination: ready: injected')),
            ('GO is lost', lambda: stays(t, accel, 'source.gone=fail@1', 'never got GO')),
            ('GO is lost, and nobody connects again', lambda: stays(t, accel, 'source.gone=fail@1', 'never ran the guest',
                                                                    '--options', 'reconnect=0')),
            ('who attaches here is killed', lambda: killed(t, accel, False)),
            ('who attaches here to a paused guest is killed', lambda: killed(t, accel, True)),
            ('the QEMU here ends', lambda: ended_here(t, accel)),
            ('refused', lambda: refused(t, accel)),
            ('interrupted', lambda: interrupted(t, accel)),
            ('an export that is read', lambda: exported(t, accel)),
            ('one at a time', lambda: one_at_a_time(t, accel))):
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=240)
