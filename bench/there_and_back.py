#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""visit.py - a guest goes to its data and comes back: as a visit, and by two whole moves

usage: there_and_back.py [--ways visit again move...] [--budget MIB] [--mem MIB] [--data MIB] [--written PERCENT]
                         [--rounds N] [--json FILE]

Picture   a Linux guest whose memory is full of a file in tmpfs; there a read-only disk is plugged, which it reads whole
          (O_DIRECT), then it writes over a part of its file, lets the disk go, and comes home: `visit` to the QEMU that it
          went from, `move` to a third one. `again` is a second visit with the budget, which knows what the first one
          touched: `visit` beside it is the first one
Figures   bytes out and back, against what was needed there and what was written there, as its QEMU's log has it; the
          time of each switch and of both ways whole; downtime of both; faults there, and
          the 99th percentile of how long they took. The file is summed up before and after
Exit code 0 measured, 1 a move failed or the file has changed, 77 it cannot run here
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'tests', 'e2e')]

import common
import returns
from common import Failed, say
from guest_identity import Linux
from qemu import cpu_model

WAYS = ('visit', 'again', 'move')
PORT = ('-device', 'pcie-root-port,id=rp1,chassis=1,slot=1')
SUM = 'dd if=/m/file bs=1M skip={skip} 2> /dev/null | md5sum'


def start(t, stack, name, o, incoming=False):
    g = stack.enter_context(Linux(t.work, name, [
        '-nodefaults', '-display', 'none', '-no-reboot', '-machine', 'q35', '-accel', 'tcg', '-cpu', cpu_model('tcg'),
        '-m', str(o.mem), '-kernel', common.VMLINUX, '-initrd', common.INITRD,
        '-append', 'console=ttyS0 quiet rdinit=/init panic=-1 farfork.load=off', '-serial', 'chardev:console', *PORT,
        *(['-incoming', 'defer'] if incoming else [])]))
    g.connect('console')
    common.watch_events(g)
    return g


def work(g, o, data):
    """Read the data that is here, write a little, and let the data go. Seconds of the reading."""
    g.qmp('blockdev-add', **{'driver': 'raw', 'node-name': 'data', 'read-only': True,
                             'file': {'driver': 'file', 'filename': data}})
    g.qmp('device_add', driver='virtio-blk-pci', id='data0', drive='data', bus='rp1')
    common.wait_for('the disk', 30, lambda: g.sh('ls /dev/vda 2> /dev/null || :'))
    begin = time.monotonic()
    g.sh('dd if=/dev/vda of=/dev/null bs=1M iflag=direct 2> /dev/null', limit_s=300)
    took = time.monotonic() - begin
    g.sh(f'dd if=/dev/urandom of=/m/file bs=1M count={o.writes} conv=notrunc 2> /dev/null', limit_s=120)
    g.qmp('device_del', id='data0')
    common.wait_for('the guest lets the disk go', 30, lambda: 'DEVICE_DELETED' in common.event_names(g))
    g.qmp('blockdev-del', **{'node-name': 'data'})
    return took


def fetched(info):
    x = info['x-rdma-postcopy']
    return x['prefill-bytes'] + x['fault-bytes']


def visited_before(t, stack, name, o, home, data):
    """Which pages the guest waited for on a visit that is over."""
    away = start(t, stack, name + '-before', o, incoming=True)
    returns.visit(home, away)
    work(away, o, data)
    text = away.qmp('x-rdma-postcopy-working-set')['text']
    returns.come_back(home, away)
    away.close()
    return text


def one(t, way, o, name, data):
    with contextlib.ExitStack() as stack:
        home = start(t, stack, name + '-home', o)
        home.wait_console(rb'[#$] ', 120)
        home.sh('insmod /modules/0x0002.*; mkdir /m; mount -t tmpfs -o size=95% none /m')
        home.sh(f'dd if=/dev/urandom of=/m/file bs=1M count={o.file} 2> /dev/null', limit_s=300)
        skip = SUM.format(skip=o.writes)
        before = home.sh(skip, limit_s=300)
        first = visited_before(t, stack, name, o, home, data) if way == 'again' else None
        away = start(t, stack, name + '-away', o, incoming=True)
        begin = time.monotonic()
        if way != 'move':
            out = returns.visit(home, away, f',budget={o.budget}M' if first else '', first)
        else:
            out = common.move(home, away).src_info
        row = {'way': way, 'out_s': time.monotonic() - begin, 'out_ms': out['downtime'],
               'read_s': work(away, o, data)}
        there = common.migration(away)
        row['out_bytes'] = fetched(there)
        row['faults'] = there['x-rdma-postcopy']['faults']
        row['fault_p99_us'] = there['x-rdma-postcopy']['fault-p99'] / 1000
        begin = time.monotonic()
        if way != 'move':
            back, last = returns.come_back(home, away), home
        else:
            last = start(t, stack, name + '-again', o, incoming=True)
            back = common.move(away, last).src_info
        row.update(back_s=time.monotonic() - begin, back_ms=back['downtime'], back_bytes=fetched(back),
                   written_bytes=common.migration(last)['x-rdma-postcopy']['discarded-bytes'])
        if (after := last.sh(skip, limit_s=300)) != before:
            raise Failed(f'{way}: the file was {before}, and is {after}')
    return row


def table(rows, o):
    print(f'\nLinux guest of {o.mem} MiB under TCG, {o.file} MiB of it a file; reads {o.data} MiB there, writes {o.writes} '
          f'MiB; median of {o.rounds}\n')
    print(f'{"way":6} {"MiB out":>8} {"back":>8} {"written":>8}   {"downtime out":>12} {"back":>8}   {"time out":>9} '
          f'{"back":>8}   {"faults":>6} {"p99":>8}')
    medians = []
    for way in o.ways:
        mine = [r for r in rows if r['way'] == way]
        if not mine:
            continue
        m = {k: statistics.median(r[k] for r in mine) for k in mine[0] if k != 'way'}
        medians.append({'way': way, **m})
        print(f'{way:6} {m["out_bytes"] / 2**20:8.1f} {m["back_bytes"] / 2**20:8.1f} {m["written_bytes"] / 2**20:8.1f}   '
              f'{m["out_ms"]:9.0f} ms {m["back_ms"]:5.0f} ms   {m["out_s"]:7.2f} s {m["back_s"]:6.2f} s   '
              f'{m["faults"]:6.0f} {m["fault_p99_us"]:5.0f} us')
    return medians


def run(t, o):
    rows = []
    data = os.path.join(t.work, 'data')
    subprocess.run(['dd', 'if=/dev/urandom', f'of={data}', 'bs=1M', f'count={o.data}', 'status=none'], check=True,
                   timeout=300)
    for i in range(o.rounds):
        for way in o.ways:
            with t.case(f'{way}, round {i + 1}'):
                rows.append(one(t, way, o, f'{way}{i}', data))
                say(f'      {rows[-1]}')
    out = table(rows, o)
    if o.json:
        with open(o.json, 'w', encoding='utf-8') as f:
            json.dump({'rows': rows, 'medians': out, 'mem_mib': o.mem, 'data_mib': o.data, 'written_mib': o.writes}, f,
                      indent=1)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--ways', nargs='+', choices=WAYS, default=['visit', 'move'])
    p.add_argument('--budget', type=int, default=64, metavar='MIB', help='of the way again')
    p.add_argument('--mem', type=int, default=1024, metavar='MIB')
    p.add_argument('--data', type=int, default=2048, metavar='MIB')
    p.add_argument('--written', type=float, default=1, metavar='PERCENT', help='of its memory')
    p.add_argument('--rounds', type=int, default=1)
    p.add_argument('--json')
    o = p.parse_args()
    o.file = (o.mem - 160) * 9 // 10        # without what the kernel needs
    o.writes = max(1, round(o.mem * o.written / 100))
    common.main(lambda t: run(t, o), limit_s=400 * o.rounds * len(o.ways))


if __name__ == '__main__':
    main()
