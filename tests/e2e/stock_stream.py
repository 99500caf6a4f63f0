#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""stock_stream.py - Debian's own QEMU 7.2 moves a guest through stream_pass(); limit: 120 s

The parser has to understand every byte of both directions, and to forward them as they came.
--others does so with 10.0, with the newest of Debian's archive, and from an older to a newer one.
"""
import json
import os
import subprocess
import sys
import common
from common import Failed, Micro, Moved, check_ledger, migration, say, wait_for, wait_migration
from stocks import KINDS, OLDEST, OTHERS, Stock

BETWEEN = os.path.join(common.BUILD, 'tests', 'e2e', 'stream_between')
# pre-copy has to get ahead of the guest's writes
PACED = 'report_ms=400 sweep=1 rate=20000 wss=20'
# The guest asks for pages while most of its memory is missing, also where its CPU has to wait
SLOW = {'max-bandwidth': 32 << 20, 'max-postcopy-bandwidth': 64 << 20}
FAST = {'max-bandwidth': 0, 'downtime-limit': 300}




def move_through(t, src, dst, postcopy):
    """What stream_between saw of the move."""
    there, here = f'{t.work}/{dst.name}.there', f'{t.work}/{dst.name}.here'
    for g in (src, dst):
        g.qmp('migrate-set-capabilities',
              capabilities=[{'capability': 'postcopy-ram', 'state': True}])
    src.qmp('migrate-set-parameters', **(SLOW if postcopy else FAST))
    dst.qmp('migrate-incoming', uri=f'unix:{there}')
    with subprocess.Popen([BETWEEN, here, there], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as between:
        try:
            wait_for('socket of stream_between', 10, lambda: os.path.exists(here))
            start = common.time.monotonic()
            src.qmp('migrate', uri=f'unix:{here}')
            if postcopy:
                wait_migration(src, ('active', 'completed'))
                src.qmp('migrate-start-postcopy')
            try:
                Moved(src, dst, start)
            except Failed as e:
                between.kill()
                raise Failed(f'{e}; {between.communicate(timeout=10)[1]}') from e
            out, err = between.communicate(timeout=20)
        finally:
            between.kill()
    if between.returncode:
        raise Failed(f'stream_between: exit {between.returncode}: {err or out}')
    return json.loads(out)


def check_seen(seen, src, postcopy):
    for way in ('forward', 'return'):
        if not seen[way][0] or seen[way][0] != seen[way][1]:
            raise Failed(f'{way}: {seen[way]} bytes in and out')
    if seen['page'] < 256 or not seen['zeros'] or seen['header'] != 1 or seen['blocks'] != 1:
        raise Failed(f'units: {seen}')
    want = {'package': 1, 'packaged': 1, 'eof': 1, 'devices': 0} if postcopy else \
        {'package': 0, 'packaged': 0, 'devices': 1}
    if any(seen[k] != n for k, n in want.items()) or seen['SHUT'] != 1:
        raise Failed(f'want {want} and one SHUT: {seen}')
    asked = migration(src)['ram']['postcopy-requests']
    if seen['REQ_PAGES'] + seen['REQ_PAGES_ID'] != asked or (postcopy and not asked):
        raise Failed(f'QEMU answered {asked} requests: {seen}')


def one(t, name, accel, memory='anon', postcopy=True, stocks=(OLDEST, OLDEST, 'pc')):
    load = common.LOAD if postcopy else PACED
    source, destination, machine = stocks
    with Stock(t, f'a-{name}', accel, memory, source, machine, load=load) as a, \
            Stock(t, f'b-{name}', accel, memory, destination, machine, load=load,
                  incoming=True) as b:
        a.start_load()
        seen = move_through(t, a, b, postcopy)
        check_seen(seen, a, postcopy)
        say(f'      {seen["page"]} pages, {seen["zeros"]} of zeros, {seen["discard"]} discards, '
            f'package {seen["package_bytes"]} bytes, '
            f'{seen["REQ_PAGES"] + seen["REQ_PAGES_ID"]} requests')
        check_ledger(a, b, sweeps=1)


def version(stock):
    said = subprocess.run([qemu_of(stock), '--version'], capture_output=True, text=True, check=True)
    return said.stdout.split()[3]


def run(t):
    accel = t.best_accel()
    with t.case(f'post-copy, {accel}'):
        one(t, 'postcopy', accel)
    with t.case(f'post-copy, memfd, {accel}'):
        one(t, 'memfd', accel, 'memfd')
    with t.case(f'pre-copy, {accel}'):
        one(t, 'precopy', accel, postcopy=False)


def run_others(t):
    accel = t.best_accel()
    for n, stocks in enumerate(OTHERS):
        pair = f'{version(stocks[0])} to {version(stocks[1])}, {stocks[2]}, {accel}'
        for memory in KINDS:
            with t.case(f'post-copy, {pair}, {memory}'):
                if memory == 'hugetlb':
                    t.reserve_huge(2 * 256)
                one(t, f'{n}-{memory}', accel, memory, stocks=stocks)
        if stocks[0] == stocks[1]:
            with t.case(f'pre-copy, {pair}'):
                one(t, f'{n}-precopy', accel, postcopy=False, stocks=stocks)


def needs(*stocks):
    common.need_userfaultfd()
    common.need_files(BETWEEN, *(qemu_of(s) for s in stocks))


if __name__ == '__main__':
    if '--others' in sys.argv:
        common.main(run_others, 580, lambda: needs(OLDEST, TRIXIE, NEWEST))
    common.main(run, 120, lambda: needs(OLDEST))
