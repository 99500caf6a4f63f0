#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""break_after_go.py - the link breaks, or a side dies, when the guest has moved

With reconnect=0 (resume.py has the rest) whoever survives says postcopy-paused. The source never
runs the guest again, whatever it is told. The guest at the destination waits where memory is
missing; what is there is right, and it never reads zeros. Limit: 210 s.
"""
import signal
import time

import common
import memory
from common import Failed, Micro, check_given_away, refuses, say, status

MIB = 256
QUIET_S = 1.5                   # with report_ms=400 a guest that runs would report thrice
SLOW = 'dest.prefill=delay:30000'


def start(src, dst, options=''):
    """Move until the guest runs at the destination and some, not all, memory has come."""
    never = ',reconnect=0'
    src.qmp('migrate', uri=common.listen(dst, options=options + never) + never)
    common.wait_migration(dst, 'postcopy-active')
    enough = (MIB << 20) // (50 if 'prefill=off' in options else 6)
    common.wait_for('some of its memory', 20, lambda: common.migration(dst)['x-rdma-postcopy']
                    ['present-bytes'] > enough)


def paused(guest, limit_s=20):
    info = common.wait_migration(guest, 'postcopy-paused', limit_s)
    if not info.get('error-desc'):
        raise Failed(f'{guest.name}: paused without a reason')
    x = info['x-rdma-postcopy']
    say(f'      {guest.name}: {info["error-desc"]}; {x["present-bytes"] >> 20} of '
        f'{x["total-bytes"] >> 20} MiB')
    return x


def silent(guest, what):
    """It reports no more: it does not run, or waits for memory."""
    had = -1
    end = time.monotonic() + 20
    while guest.progress() != had:
        if time.monotonic() > end:
            raise Failed(f'{guest.name}: {what}, but it goes on reporting')
        had = guest.progress()
        time.sleep(QUIET_S)


def check_source(src):
    check_given_away(src)
    silent(src, 'the guest was given away')
    check_given_away(src)


def check_destination(src, dst):
    """The guest ran here, found nothing wrong, and waits for memory now."""
    if not dst.qmp('query-status')['running']:
        raise Failed(f'{dst.name}: status {status(dst)}')
    silent(dst, 'much of its memory is missing')
    ok, reasons = common.ledger(src, dst)
    if not ok:
        raise Failed(f'{dst.name}: {"; ".join(reasons[:5])}')
    refuses(dst, '', 'migrate', uri='rdma-postcopy:127.0.0.1:1')    # it has no whole image


def link_broken(t, accel, memory_kind, side):
    name = f'{memory_kind}-{side}'
    with Micro(t, name + '-a', accel, memory_kind, MIB) as src, \
            Micro(t, name + '-b', accel, memory_kind, MIB, incoming=True, faults=SLOW) as dst:
        src.start_load()
        start(src, dst, ',landing=continue' if memory_kind == 'memfd' else '')
        (src if side == 'source' else dst).qmp('yank', instances=[{'type': 'migration'}])
        for g in (src, dst):
            x = paused(g)
            if x['present-bytes'] >= x['total-bytes']:
                raise Failed('all memory was there before the break: slow prefill down more')
        check_source(src)
        check_destination(src, dst)
        # both monitors go on answering
        for g in (src, dst):
            common.hmp(g, 'info migrate')
            common.hmp(g, 'info status')


def source_killed(t, accel):
    with Micro(t, 'kill-a', accel, mem_mib=MIB) as src, \
            Micro(t, 'kill-b', accel, mem_mib=MIB, incoming=True) as dst:
        src.start_load()
        start(src, dst, ',prefill=off')
        src.proc.send_signal(signal.SIGKILL)
        paused(dst)
        check_destination(src, dst)


def source_stopped(t, accel, prefill):
    """It says nothing of it, and its kernel answers for it: what it does not serve tells."""
    with Micro(t, 'stop-a', accel, mem_mib=MIB) as src, \
            Micro(t, 'stop-b', accel, mem_mib=MIB, incoming=True, faults=SLOW) as dst:
        src.start_load()
        start(src, dst, f',prefill={prefill},timeout=1')     # eight times as long after GO
        src.proc.send_signal(signal.SIGSTOP)
        try:
            x = paused(dst, 40)
            if x['present-bytes'] >= x['total-bytes']:
                raise Failed('all memory was there before the stop: slow prefill down more')
            check_destination(src, dst)
        finally:
            src.proc.send_signal(signal.SIGCONT)
        paused(src, 40)
        check_source(src)


def destination_killed(t, accel):
    with Micro(t, 'dead-a', accel, mem_mib=MIB) as src, \
            Micro(t, 'dead-b', accel, mem_mib=MIB, incoming=True, faults=SLOW) as dst:
        src.start_load()
        start(src, dst)
        dst.proc.send_signal(signal.SIGKILL)
        paused(src)
        check_source(src)
        refuses(src, 'no other can begin', 'migrate', uri='rdma-postcopy:127.0.0.1:1')


def no_memory(t, accel):
    """For a while no page can be installed: the guest waits, its owner is told, and all goes on."""
    with Micro(t, 'short-a', accel, 'memfd', MIB) as src, \
            Micro(t, 'short-b', accel, 'memfd', MIB, incoming=True,
                  faults='dest.install=fail:12@100-1300') as dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        x = paused(dst, 60)
        if x['present-bytes'] >= x['total-bytes']:
            raise Failed('all memory was there')
        if common.migration(src)['status'] != 'postcopy-active':
            raise Failed(f'{src.name}: {common.migration(src)}')
        info = common.wait_for('the move goes on', 60, lambda: (
            m := common.migration(dst))['status'] != 'postcopy-paused' and m)
        if info.get('error-desc'):
            raise Failed(f'{dst.name}: goes on, and says {info["error-desc"]}')
        for g in (dst, src):
            common.wait_migration(g, 'completed')
        common.check_ledger(src, dst)


def present_is_right(t, accel, kind):
    """A guest that only reads: every page that is there equals the source's."""
    load = 'report_ms=400 sweep=4 mode=readonly'
    with Micro(t, f'ro-{kind}-a', accel, kind, MIB, load=load) as src, \
            Micro(t, f'ro-{kind}-b', accel, kind, MIB, load=load, incoming=True,
                  faults=SLOW) as dst:
        src.start_load()
        first = int(src.boot_event()['ledger'], 16)     # below: stacks and counters, written to
        start(src, dst)
        src.qmp('yank', instances=[{'type': 'migration'}])
        paused(dst)
        silent(dst, 'much of its memory is missing')
        main_block = 'pc.ram' if kind == 'anon' else 'ram'
        done, missing = memory.compare(src, dst, [main_block], only_present=True,
                                       start=first & -common.PAGE)
        if not done or not missing:
            raise Failed(f'{done} bytes compared, {missing} pages missing: proves nothing')
        say(f'      {done >> 20} MiB present and equal, {missing >> 8} MiB missing')


def run(t):
    accel = t.best_accel()
    for kind, side in (('anon', 'source'), ('memfd', 'destination')):
        with t.case(f'link broken at the {side}, {kind}, {accel}'):
            link_broken(t, accel, kind, side)
    with t.case('link broken at the destination, anon, tcg'):
        link_broken(t, 'tcg', 'anon', 'destination')
    with t.case(f'source killed, prefill=off, {accel}'):
        source_killed(t, accel)
    for prefill in ('off', 'pull'):
        with t.case(f'source stopped, prefill={prefill}, timeout=1, {accel}'):
            source_stopped(t, accel, prefill)
    with t.case(f'no memory for a while, {accel}'):
        no_memory(t, accel)
    with t.case(f'destination killed, {accel}'):
        destination_killed(t, accel)
    for kind in ('anon', 'memfd'):
        with t.case(f'present memory is right, {kind}, {accel}'):
            present_is_right(t, accel, kind)


if __name__ == '__main__':
    common.main(run, 210)
