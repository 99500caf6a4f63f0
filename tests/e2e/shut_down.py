#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""shut_down.py - fallback=go: a guest that shuts itself down at the destination has ended

Nobody is to take it back: the destination writes that down. Whatever else ends it does not.
move_fallback.py has farfork move, which looks. Limit: 90 s.
"""
import contextlib
import os
import signal

import common
from common import Failed, GuestError, check_ledger, status, wait_for
from take_back import is_taken_back, pair, send, take_back


# --- its guest ends ---

def write_port(guest, port, value):
    with contextlib.suppress(GuestError):   # it may end before it answers
        common.hmp(guest, f'o /b {port} {value}')


def end_process(guest):
    with contextlib.suppress(GuestError):
        guest.qmp('quit')


POWER_OFF = '-device isa-debug-exit -device pvpanic'.split()    # by a write to a port
ENDS = {
    'the guest': lambda g: write_port(g, 0x501, 0),
    'a panic': lambda g: write_port(g, 0x505, 1),
    'quit': end_process,
    'SIGTERM': lambda g: g.proc.send_signal(signal.SIGTERM),
}


def shuts_down(t, accel, who):
    """Only a guest that has shut itself down leaves the file that says so."""
    src, dst, fence = pair(t, 'end-' + who.split()[-1], accel, extra=POWER_OFF)
    down = fence.mark + '.shut-down'
    with src, dst:
        src.start_load()
        uri = send(src, dst, fence, there=',prefill=off')
        wait_for('a guest that runs', 20, lambda: status(dst) == 'running')
        if os.path.exists(down):
            raise Failed('it says so of a guest that runs')
        ENDS[who](dst)
        if dst.exit_code(30) is None:
            raise Failed(f'{dst.name}: it is still there')
        if os.path.exists(down) != (who == 'the guest'):
            raise Failed(f'{who}: it is {"not " * (who == "the guest")}there')
        if who == 'a panic':
            take_back(src, uri)
            is_taken_back(src, fence)
            check_ledger(src)


def shut_down_and_run(t, accel, faults=None):
    """With -no-shutdown it stays there, and may be run again: then it has not ended."""
    src, dst, fence = pair(t, f'no-shutdown-{faults is None}', accel, faults,
                           extra=[*POWER_OFF, '-no-shutdown'])
    down = fence.mark + '.shut-down'
    with src, dst:
        src.start_load()
        send(src, dst, fence, there=',prefill=off')
        wait_for('a guest that runs', 20, lambda: status(dst) == 'running')
        ENDS['the guest'](dst)
        wait_for('a guest that has ended', 20, lambda: status(dst) == 'shutdown')
        if not os.path.exists(down):
            raise Failed('it is not there')
        dst.qmp('set-action', reboot='reset')
        dst.qmp('system_reset')
        wait_for('a guest that may run', 20, lambda: status(dst) == 'prelaunch')
        dst.qmp('cont')
        if os.path.exists(down):
            raise Failed('it says so of a guest that runs')
        ENDS['the guest'](dst)
        wait_for('a guest that has ended', 20, lambda: status(dst) == 'shutdown')
        if not os.path.exists(down) or ('cannot be written down' in dst.tail) != bool(faults):
            raise Failed(f'it is not there, or {dst.tail}')


def run(t):
    accel = t.best_accel()
    for who in ENDS:
        with t.case(f'ended by {who}, {accel}'):
            shuts_down(t, accel, who)
    with t.case(f'shut down, and run again, {accel}'):
        shut_down_and_run(t, accel)
    with t.case(f'run again, and nobody knows whether its file has gone, {accel}'):
        shut_down_and_run(t, accel, faults='dest.shut-down=fail@4')


if __name__ == '__main__':
    common.main(run, 90)
