#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""stock_stream.py - Debian's own QEMU 7.2 moves a guest through stream_pass(); limit: 120 s

The parser has to understand every byte of both directions, and to forward them as they came.
"""
import json
import os
import subprocess
import common
from common import Failed, Micro, Moved, check_ledger, migration, say, wait_for, wait_migration

STOCK = os.path.realpath(os.path.join(common.BUILD, 'tests', 'e2e', 'stock-qemu'))  # see e2e.mk
BETWEEN = os.path.join(common.BUILD, 'tests', 'e2e', 'stream_between')
# pre-copy has to get ahead of the guest's writes
PACED = 'report_ms=400 sweep=1 rate=20000 wss=20'


class Stock(Micro):
    """The micro guest in Debian's QEMU, unpacked, with its libraries and firmware."""

    def __init__(self, *args, **more):
        super().__init__(*args, qemu=f'{STOCK}/usr/bin/qemu-system-x86_64', **more)
        self.env['LD_LIBRARY_PATH'] = f'{STOCK}/usr/lib/x86_64-linux-gnu:{STOCK}/lib/x86_64-linux-gnu'


def move_through(t, src, dst, postcopy):
    """What stream_between saw of the move."""
    there, here = f'{t.work}/{dst.name}.there', f'{t.work}/{dst.name}.here'
    for g in (src, dst):
        g.qmp('migrate-set-capabilities',
              capabilities=[{'capability': 'postcopy-ram', 'state': True}])
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


def one(t, kind, accel, memory='anon', postcopy=True):
    load = common.LOAD if postcopy else PACED
    with Stock(t, f'a-{kind}', accel, memory, load=load) as a, \
            Stock(t, f'b-{kind}', accel, memory, load=load, incoming=True) as b:
        a.start_load()
        seen = move_through(t, a, b, postcopy)
        check_seen(seen, a, postcopy)
        say(f'      {seen["page"]} pages, {seen["zeros"]} of zeros, {seen["discard"]} discards, '
            f'package {seen["package_bytes"]} bytes, '
            f'{seen["REQ_PAGES"] + seen["REQ_PAGES_ID"]} requests')
        check_ledger(a, b, sweeps=1)


def run(t):
    accel = t.best_accel()
    with t.case(f'post-copy, {accel}'):
        one(t, 'postcopy', accel)
    with t.case(f'post-copy, memfd, {accel}'):
        one(t, 'memfd', accel, 'memfd')
    with t.case(f'pre-copy, {accel}'):
        one(t, 'precopy', accel, postcopy=False)


def needs():
    common.need_userfaultfd()
    common.need_files(BETWEEN, f'{STOCK}/usr/bin/qemu-system-x86_64')


if __name__ == '__main__':
    common.main(run, 120, needs)
