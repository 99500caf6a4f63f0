#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""meanwhile.py - what an operator does while a guest moves: stop, reset; limit: 120 s

Nothing of it makes the guest run twice, lose memory or boot unasked.
"""
import common
import report
from common import Failed, Micro, check_ledger, check_move, say, status

MIB = 128
SLOW = 'dest.prefill=delay:100000@1-50'
# Micro's -no-reboot would make a power-off of a reset
REBOOT = ['-action', 'reboot=reset']


def pair(t, name, accel, faults=SLOW):
    return (Micro(t, name + '-a', accel, mem_mib=MIB, extra=REBOOT),
            Micro(t, name + '-b', accel, mem_mib=MIB, extra=REBOOT, incoming=True, faults=faults))


def begin(src, dst, state='postcopy-active', options='', both=''):
    src.start_load()
    src.qmp('migrate', uri=common.listen(dst, options=options + both) + both)
    if state == 'postcopy-active':
        common.wait_migration(dst, state)
    common.wait_migration(src, state)


def complete(src, dst):
    return common.wait_migration(src, 'completed'), common.wait_migration(dst, 'completed')


def still_paused(guest):
    if status(guest) != 'paused' or guest.log().lines:
        raise Failed(f'{guest.name}: status {status(guest)}, {guest.progress()} reports')


def paused_guest(t, accel):
    src, dst = pair(t, 'paused', accel, None)
    with src, dst:
        src.start_load()
        src.qmp('stop')
        check_move(common.move(src, dst), paused='source')
        still_paused(dst)
        dst.qmp('cont')
        check_ledger(src, dst)


def stop_and_cont(t, accel):
    src, dst = pair(t, 'stop', accel)
    with src, dst:
        begin(src, dst)
        for _ in range(3):
            dst.qmp('stop')
            if status(dst) != 'paused':
                raise Failed(f'{dst.name}: status {status(dst)} after stop')
            dst.qmp('cont')
        dst.qmp('stop')
        complete(src, dst)
        if status(dst) != 'paused':
            raise Failed(f'{dst.name}: completion started a guest that was stopped')
        dst.qmp('cont')
        check_ledger(src, dst)


def reset_source(t, accel):
    src, dst = pair(t, 'reset-a', accel)
    with src, dst:
        begin(src, dst)
        src.qmp('system_reset')
        complete(src, dst)
        src.qmp('system_reset')
        common.check_given_away(src)
        if 'RESET' in common.event_names(src):
            raise Failed('the source was reset')
        check_ledger(src, dst)


def reset_before_go(t, accel):
    src, dst = pair(t, 'reset-b', accel, 'dest.ready=delay:4000000')
    with src, dst:
        begin(src, dst, 'device')
        dst.qmp('system_reset')
        src.qmp('system_reset')
        complete(src, dst)
        check_ledger(src, dst)              # fails if it booted again


def reset_after_go(t, accel):
    """The guest boots again at the destination, on memory that is still coming."""
    src, dst = pair(t, 'reset-c', accel)
    with src, dst:
        begin(src, dst)
        dst.qmp('system_reset')
        complete(src, dst)
        common.check_given_away(src)

        def of_this_boot():
            with open(dst.console, 'rb') as f:
                data = f.read()
            at = data.rfind(b'{"farfork":"micro","event":"boot"')
            return report.Log().feed(data[at:]) if at >= 0 else report.Log()
        common.wait_for('two sweeps after the reset', 60,
                        lambda: report.is_ready(of_this_boot().lines, min_sweeps=2))
        good, reasons = report.verdict(of_this_boot())
        if not good:
            raise Failed(f'after the reset: {"; ".join(reasons[:5])}')


def pause_is_refused(t, accel):
    """With reconnect=0 nothing could resume what is paused: migrate-pause says so, and does nothing."""
    src, dst = pair(t, 'pause', accel)
    with src, dst:
        begin(src, dst, both=',reconnect=0')
        for guest in (src, dst):
            common.refuses(guest, 'cannot pause', 'migrate-pause')
        complete(src, dst)
        check_ledger(src, dst)


def second_migration(t, accel):
    """Neither side takes another migration while one is under way."""
    src, dst = pair(t, 'second', accel)
    with src, dst:
        begin(src, dst)
        for guest in (src, dst):
            say('      ' + common.refuses(guest, '', 'migrate', uri='rdma-postcopy:127.0.0.1:1'))
            say('      ' + common.refuses(guest, '', 'migrate', uri='tcp:127.0.0.1:1'))
        complete(src, dst)
        check_ledger(src, dst)


def run(t):
    accel = t.best_accel()
    cases = {
        'a paused guest stays paused': paused_guest,
        'stop and cont at the destination': stop_and_cont,
        'the source is reset': reset_source,
        'both are reset before GO': reset_before_go,
        'the destination is reset after GO': reset_after_go,
        'migrate-pause with reconnect=0 is refused': pause_is_refused,
        'a second migration is refused': second_migration,
    }
    for name, case in cases.items():
        with t.case(f'{name}, {accel}'):
            case(t, accel)


if __name__ == '__main__':
    common.main(run, 120)
