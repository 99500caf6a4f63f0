#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""one_runner.py - a guest whose state was sent runs on one side at most; limit: 120 s

gdb, which starts vCPUs past the monitor, is refused on both sides. A source that stood still
between READY and GO does not let go to a destination that has left by then; FARFORK_FULL=1:
also when both sides' own limits (45 s, 60 s) passed.
"""
import os
import signal
import socket
import time

import common
from break_before_go import failed
from cancel import ended
from common import Failed, Micro, check_ledger, check_move, say, status
from quit import quit_and_code

MIB = 64
CONTINUE = ('c', 'vCont;c')
STEP = ('vCont;s:1', 's')       # the second leaves the vCPU in single-step mode for good
GO_DELAY_S = 5                  # of the source; to find it between READY and GO
LONG_S = 65


class Gdb:
    """As much of gdb as makes a guest run."""

    def __init__(self, path):
        self.path = path
        self.options = ['-gdb', f'unix:{path},server=on,wait=off']

    def send(self, packet):
        """It is dealt with when the next command of QMP is: QEMU's main loop goes in order."""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(20)
            s.connect(self.path)
            s.sendall(f'${packet}#{sum(packet.encode()) % 256:02x}'.encode())
            while (answer := s.recv(1)) != b'+':
                if not answer:
                    raise Failed(f'the gdb stub closed the connection at {packet}')


def runs_not(guest, gdb, packets=CONTINUE):
    """gdb cannot make it run."""
    for p in packets:
        gdb.send(p)
        if guest.qmp('query-status')['running'] or 'RESUME' in common.event_names(guest):
            raise Failed(f'{guest.name}: gdb made it run by {p}: status {status(guest)}')


def gdb_continues(t, accel):
    gdb_a, gdb_b = (Gdb(os.path.join(t.work, f'gdb-{c}')) for c in 'ab')
    with Micro(t, 'gdb-a', accel, mem_mib=MIB, extra=gdb_a.options) as src, \
            Micro(t, 'gdb-b', accel, mem_mib=MIB, extra=gdb_b.options, incoming=True,
                  faults='dest.ready=delay:3000000') as dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        common.wait_migration(src, 'device', 20)
        runs_not(src, gdb_a, CONTINUE + STEP)
        runs_not(dst, gdb_b)
        if status(dst) != 'inmigrate' or common.migration(src)['status'] != 'device':
            raise Failed('GO came before gdb was tried: delay it more')
        common.wait_migration(src, 'completed')
        runs_not(src, gdb_a, CONTINUE + STEP)
        common.check_given_away(src)
        common.wait_migration(dst, 'completed')
        check_ledger(src, dst)


def until_ready(src, dst, options=''):
    """Move until the destination waits for GO, then stop the source's process."""
    src.start_load()
    src.qmp('migrate', uri=common.listen(dst, options=options))
    common.wait_for('READY', 20, lambda: common.migration(dst).get('x-rdma-postcopy', {})
                    .get('load-time'))
    src.proc.send_signal(signal.SIGSTOP)
    if common.migration(dst)['status'] != 'active' or dst.log().lines:
        src.proc.send_signal(signal.SIGCONT)
        raise Failed(f'{dst.name}: GO came before the source was stopped: delay it more')


def goes_on(src, dst, good, reason):
    """The source's guest runs there and nowhere else, and can be moved."""
    said = failed(src)
    say(f'      source: {said}')
    if reason not in said:
        raise Failed(f'{src.name}: failed with "{said}", want "{reason}"')
    if dst.log().lines:
        raise Failed(f'{dst.name}: the guest ran here')
    check_move(common.move(src, good))
    check_ledger(src, good)


def three(t, accel, name):
    slow = f'source.go=delay:{GO_DELAY_S * 1000000}@1'
    return (Micro(t, name + '-a', accel, mem_mib=MIB, faults=slow),
            Micro(t, name + '-b', accel, mem_mib=MIB, incoming=True),
            Micro(t, name + '-c', accel, mem_mib=MIB, incoming=True))


def destination_left(t, accel, how):
    src, dst, good = three(t, accel, how)
    with src, dst, good:
        until_ready(src, dst)
        try:
            if how == 'quit':
                quit_and_code(dst)
            else:
                dst.proc.send_signal(signal.SIGKILL)
                dst.exit_code(10)
        finally:
            src.proc.send_signal(signal.SIGCONT)
        goes_on(src, dst, good, 'no longer waits')


def past_the_limits(t, accel):
    src, dst, good = three(t, accel, 'long')
    with src, dst, good:
        until_ready(src, dst, ',reconnect=0')   # else it stays, and would say that nothing ran
        start = time.monotonic()
        try:
            ended(dst, LONG_S)
            time.sleep(max(0, start + LONG_S - time.monotonic()))
        finally:
            src.proc.send_signal(signal.SIGCONT)
        goes_on(src, dst, good, 'the state was sent')


def run(t):
    accel = t.best_accel()
    for a in t.accels():
        with t.case(f'gdb continues, {a}'):
            gdb_continues(t, a)
    for how in ('quit', 'kill'):
        with t.case(f'source stopped before GO, destination left ({how}), {accel}'):
            destination_left(t, accel, how)
    if common.FULL:
        with t.case(f'source stopped before GO for {LONG_S} s, {accel}'):
            past_the_limits(t, accel)


if __name__ == '__main__':
    common.main(run, 240 if common.FULL else 120)
