#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""move_verbs.py - inside the lab: a live guest moves from hosta to hostb over RDMA verbs

On memory of several kinds, on a bad network, and through outages that the queue pairs'
retries outlast. The guest touches random pages all the while and checks what it reads.
Limit: 600 s.
"""
import os
import time

import labplace
from labplace import MIB
import common
from common import Failed, Micro, check_ledger, check_move, say

# two seconds of prefill: some 16 chunks, or some 200 short runs in place
SLOW = {'copy': 'dest.prefill=delay:100000', 'continue': 'dest.prefill=delay:10000'}
OUTAGE_S = 1.0
RETRIES_S = 3.2         # they last for 3.8 s at least (rdma/verbs_cm.c)


def over_verbs(moved):
    check_move(moved)
    if moved.stats['link'] != 'verbs':
        raise Failed(f'moved over {moved.stats["link"]}')
    say(f'      {moved.line()}')


def plain(t, kind, options, mib=MIB):
    with Micro(t, 'a', 'tcg', kind, mib) as src, \
            Micro(t, 'b', 'tcg', kind, mib, incoming=True) as dst:
        src.start_load()
        over_verbs(common.move(src, dst, options=options))
        check_ledger(src, dst, sweeps=1)


def keyed(t, options=''):
    """Both have a key, as farfork move gives it; with another one the source is refused before."""
    own, other = (os.urandom(32).hex() for _ in range(2))
    with Micro(t, 'a', 'tcg', 'anon', MIB) as src, \
            Micro(t, 'b', 'tcg', 'anon', MIB, incoming=True) as dst:
        src.start_load()
        for guest, name, data in ((src, 'own', own), (src, 'other', other), (dst, 'own', own)):
            guest.qmp('object-add', **{'qom-type': 'secret', 'id': name, 'data': data})
        uri = common.listen(dst, options=f',key=own{options}')
        src.qmp('migrate', uri=uri + ',key=other')
        why = common.wait_migration(src, 'failed')['error-desc']
        say(f'      {why}')
        if 'another key' not in why or common.status(src) != 'running':
            raise Failed(f'another key: {why}, the source is {common.status(src)}')
        start = time.monotonic()
        src.qmp('migrate', uri=uri + ',key=own')
        try:
            over_verbs(common.Moved(src, dst, start))
        except Failed as e:
            goes_on(src, dst, options, str(e))
        check_ledger(src, dst, sweeps=1)


def goes_on(src, dst, options, why):
    """soft-RoCE may end a queue pair that has READs and WRITEs (docs/operations.md): its kernel says
    so, the link is the only thing that breaks, and the move goes on over another one."""
    if not ('verify=on' in options and 'queue pair' in why and 'verify:' not in why
            and labplace.soft_roce_complained()):
        raise Failed(why)
    say(f'      soft-RoCE broke the link, the move goes on: {why}')
    for guest in (src, dst):
        common.wait_for(f'{guest.name}: completed after that', 90, lambda g=guest:
                        common.migration(g).get('status') == 'completed')


def through_outage(t, kind, options, faults):
    """Nothing comes through for a while, when some of the memory has come; how long it was."""
    with Micro(t, 'a', 'tcg', kind, MIB) as src, \
            Micro(t, 'b', 'tcg', kind, MIB, incoming=True, faults=faults) as dst:
        src.start_load()
        start = time.monotonic()
        src.qmp('migrate', uri=common.listen(dst, options=options))
        common.wait_migration(dst, 'postcopy-active')
        common.wait_for('some of its memory', 20, lambda: present(dst) > MIB << 17)
        at = time.monotonic()
        # not by the cable: to put that in takes a busy machine seconds
        with labplace.bad_network('loss', '100%'):
            # what had arrived is installed soon; then nothing can come any more
            had = -1
            while time.monotonic() < at + OUTAGE_S or present(dst) != had:
                had = present(dst)
                if time.monotonic() > at + 20:
                    raise Failed('memory goes on coming while the network is down')
                time.sleep(0.2)
        lasted = time.monotonic() - at
        say(f'      down for {lasted:.1f} s with {had >> 20} MiB present')
        if had >= MIB << 20:
            raise Failed('all memory was there before the outage: slow prefill down more')
        if lasted > RETRIES_S:
            return lasted
        moved = common.Moved(src, dst, start)
        over_verbs(moved)
        if moved.stats['fault-max'] < OUTAGE_S * 1e9:
            raise Failed('no fault was waiting while the network was down')
        check_ledger(src, dst, sweeps=1)
        return lasted


def outage(t, kind, options, faults):
    """A machine that is busy may need long to end it: that proves nothing."""
    for _ in range(3):
        if through_outage(t, kind, options, faults) <= RETRIES_S:
            return
    raise Failed(f'no outage was shorter than {RETRIES_S} s: this machine is too busy')


def may_pin(guest, mib):
    """Its QEMU has this memlock limit, and no privilege to exceed it."""
    at = guest.argv.index(common.QEMU)
    guest.argv[at:at] = ['setpriv', '--inh-caps', '-ipc_lock', '--bounding-set', '-ipc_lock',
                         'prlimit', f'--memlock={mib << 20}']
    return guest


def memlock(t):
    """Too little of it is refused before the guest stops; on-demand paging does without."""
    with may_pin(Micro(t, 'a', 'tcg', 'anon', MIB), 16) as src:
        src.start_load()
        with Micro(t, 'b', 'tcg', 'anon', MIB, incoming=True) as dst:
            src.qmp('migrate', uri=common.listen(dst) + ',odp=off')
            why = common.wait_migration(src, 'failed')['error-desc']
            say(f'      {why}')
            if 'memlock limit is 16 MiB' not in why or 'at least' not in why:
                raise Failed(f'does not say what is too small, or how much is needed: {why}')
            common.check_still_running(src)
            if dst.exit_code(20) != 1:
                raise Failed(f'the destination: {dst.tail}')
        with Micro(t, 'c', 'tcg', 'anon', MIB, incoming=True) as dst:
            over_verbs(common.move(src, dst))
            if 'on-demand paging' not in src.tail:
                raise Failed(f'says nothing of on-demand paging: {src.tail}')
            check_ledger(src, dst, sweeps=1)


def present(guest):
    return common.migration(guest)['x-rdma-postcopy']['present-bytes']


def run(t):
    for name, kind, options in (('anon', 'anon', ''), ('memfd', 'memfd', ',landing=copy'),
                                ('memfd, landing=continue', 'memfd', ',landing=continue'),
                                ('anon, precopy=1', 'anon', ',precopy=1'),
                                ('memfd, precopy=1', 'memfd', ',landing=continue,precopy=1')):
        with t.case(name):
            plain(t, kind, options)
    with t.case('with a key'):
        keyed(t)
    with t.case('with a key, verified'):
        keyed(t, ',verify=on,landing=copy')
    with t.case('memlock'):
        memlock(t)
    with t.case('1 % loss, 20 ms delay each way'):
        with labplace.bad_network('delay', '20ms', 'loss', '1%'):
            plain(t, 'memfd', '', 16)       # some 30 s: each loss costs half a second
    for landing, faults in SLOW.items():
        with t.case(f'outage in the middle of prefill, while a fault waits, landing={landing}'):
            outage(t, 'memfd', f',landing={landing}', faults)


if __name__ == '__main__':
    labplace.main(run, 600)
