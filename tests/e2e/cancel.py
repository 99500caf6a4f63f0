#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""cancel.py - migrate_cancel at every stage before GO, and its refusal after; limit: 120 s

The same source is cancelled again and again: each time its guest goes on with a clean
ledger and the destination ends with the reason. Then it moves to a new destination.
"""
import socket

import common
from common import Failed, GuestError, Micro, check_ledger, check_move, check_still_running, refuses, say

SLOW = 'delay:4000000'
MIB = 64


def cancelled(src, state):
    """Cancel a migration that is in this state."""
    common.wait_migration(src, state, 20)
    src.qmp('migrate_cancel')
    common.wait_migration(src, 'cancelled', 20)
    check_still_running(src)


def ended(dst, limit_s=20):
    """The destination has ended by itself, with a reason."""
    code = dst.exit_code(limit_s)
    if code is None:
        raise Failed(f'{dst.name}: still there {limit_s} s after its migration ended')
    if code == 0 or 'rdma-postcopy' not in dst.tail:
        raise Failed(f'{dst.name}: exit code {code}, message "{dst.tail}"')
    say(f'      {dst.name}: exit code {code}: {dst.tail}')


def silent_peer(src):
    with socket.create_server(('127.0.0.1', 0)) as s:
        src.qmp('migrate', uri=f'rdma-postcopy:127.0.0.1:{s.getsockname()[1]}')
        cancelled(src, 'setup')


def slow_destination(t, src, accel, point, state):
    name = point.replace('.', '-')
    with Micro(t, name, accel, mem_mib=MIB, incoming=True, faults=f'{point}={SLOW}') as dst:
        src.qmp('migrate', uri=common.listen(dst))
        if point == 'dest.pager':
            common.wait_for('connection', 10, lambda: common.migration(src)['x-rdma-postcopy']
                            ['link'] != 'none')
            common.wait_migration(dst, 'active')
        cancelled(src, state)
        ended(dst)
        if dst.log().lines:
            raise Failed(f'{dst.name}: the guest ran here')


def before_queues(t, accel):
    """The source leaves with no queue open: the destination waits for the next, here the same."""
    with Micro(t, 'again-a', accel, mem_mib=MIB, faults=f'source.welcomed={SLOW}@1') as src, \
            Micro(t, 'again-b', accel, mem_mib=MIB, incoming=True) as dst:
        src.start_load()
        uri = common.listen(dst)
        src.qmp('migrate', uri=uri)
        common.wait_for('connection', 10, lambda: common.migration(src)['x-rdma-postcopy']
                        ['link'] != 'none')
        cancelled(src, 'setup')
        if 'STOP' in common.event_names(src):
            raise Failed('the guest was stopped before the destination was prepared')
        src.qmp('migrate', uri=uri)
        common.wait_migration(src, 'completed')
        common.wait_migration(dst, 'completed')
        check_ledger(src, dst)


def slow_source(t, accel, point, state):
    name = point.replace('.', '-')
    with Micro(t, name + '-a', accel, mem_mib=MIB, faults=f'{point}={SLOW}@1') as src, \
            Micro(t, name + '-b', accel, mem_mib=MIB, incoming=True) as dst, \
            Micro(t, name + '-c', accel, mem_mib=MIB, incoming=True) as good:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        common.wait_migration(dst, 'active')
        cancelled(src, state)
        ended(dst)
        check_move(common.move(src, good))
        check_ledger(src, good)


def after_go(t, src, accel):
    with Micro(t, 'last', accel, mem_mib=MIB, incoming=True,
               faults='dest.prefill=delay:50000') as dst:
        src.qmp('migrate', uri=common.listen(dst))
        common.wait_migration(src, 'postcopy-active')
        say(f'      {refuses(src, "cannot cancel", "migrate_cancel")}')
        dst.qmp('migrate_cancel')       # QEMU's destinations take it and do nothing
        common.wait_migration(src, 'completed')
        common.wait_migration(dst, 'completed')
        common.check_given_away(src)
        check_ledger(src, dst)


def quit_at_the_end(t, accel):
    """All is there, and the source is about to say so: nothing is cancelled any more."""
    with Micro(t, 'late-a', accel, mem_mib=MIB, faults=f'source.free={SLOW}') as src, \
            Micro(t, 'late-b', accel, mem_mib=MIB, incoming=True) as dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        common.wait_migration(dst, 'completed')
        try:
            src.qmp('quit')
            while True:
                src.qmp('query-name')       # until it has gone: collects events
        except GuestError:
            pass
        names = [e['data']['status'] for e in src.events if e['event'] == 'MIGRATION']
        if src.exit_code(20) != 0 or names[-2:] != ['postcopy-active', 'completed']:
            raise Failed(f'{src.name}: exit code {src.proc.returncode}, states {names}')
        check_ledger(src, dst)


def run(t):
    accel = t.best_accel()
    with Micro(t, 'a', accel, mem_mib=MIB) as src:
        src.start_load()
        with t.case('setup: the peer is silent'):
            silent_peer(src)
        with t.case('setup: dest.pager takes long, and the guest is not stopped for it'):
            slow_destination(t, src, accel, 'dest.pager', 'setup')
            if 'STOP' in common.event_names(src):
                raise Failed('the guest was stopped before the destination was prepared')
        for point in ('dest.state', 'dest.ready'):
            with t.case(f'device: {point} takes long'):
                slow_destination(t, src, accel, point, 'device')
        with t.case('after GO it is refused, and the move ends well'):
            after_go(t, src, accel)
    with t.case('setup: it leaves before its queues are open, and comes again'):
        before_queues(t, accel)
    with t.case('the source is quit when all is there'):
        quit_at_the_end(t, accel)
    with t.case('setup: source.publish takes long'):
        slow_source(t, accel, 'source.publish', 'setup')
    with t.case('device: source.state takes long'):
        slow_source(t, accel, 'source.state', 'device')


if __name__ == '__main__':
    common.main(run, 120)
