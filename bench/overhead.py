# SPDX-License-Identifier: LGPL-2.1-or-later
#
# overhead.py - what a guest gets done while nothing moves: never moved, and after a move
"""
    group = new_group(combination, ways); one_round(t, group, guest, qemu_of, i)

A way is NEVER (the patched QEMU without any option of Farfork's), STOCK (the same in the QEMU of
--qemu), or the name of a peer: that is the guest at its destination, some time after the move was
complete on both sides. Each way once a round; work is the median slot of RUN_S, so that neither
the guest's reports nor one hiccup of the machine count.
"""
import os
import re
import shutil

import common
import measure
import client_view
import schema
import stats
from common import Failed
from measure import Clock
from qemu import GuestError

NEVER, STOCK = 'never moved', 'never moved, QEMU of --qemu'
SETTLE_S, RUN_S = 1, 4


def new_group(values, ways):
    return {'workload': values['workload'], 'mem_mib': values['mem'], 'smp': values['smp'],
            'memory': values['memory'], 'net': values['net'], 'accel': '',
            'ways': [{'way': w, 'runs': []} for w in ways]}


def huge_mib(pid):
    """How much of a process is mapped in huge pages, those of hugetlb left out."""
    with open(f'/proc/{pid}/smaps_rollup', encoding='ascii') as f:
        text = f.read()
    return sum(int(x) for x in re.findall(
        r'^(?:AnonHugePages|ShmemPmdMapped|FilePmdMapped): +(\d+) kB', text, re.M)) / 1024


def as_run(work_per_s, pid):
    if not work_per_s:
        raise Failed('the guest did nothing')
    return {'work_per_s': round(work_per_s, 1), 'huge_mib': huge_mib(pid), 'why': ''}


def move(t, src, dst, peer, mem_mib):
    if measure.Move(t, src, dst, peer, 60 + mem_mib / 10).outcome != 'completed':
        raise Failed(f'{peer.text}: did not converge: no guest that has moved; take another way, '
                     'or a workload @RATE')


def run_micro(t, guest, peer, qemu):
    with guest.start(t, 'overhead-a', qemu) as src:
        src.wait_ready(120 + guest.mem_mib / 20)
        if not peer:
            return work_of_micro(src)
        with guest.start(t, 'overhead-b', qemu, incoming=True) as dst:
            measure.watch_for(src, Clock(), SETTLE_S)
            move(t, src, dst, peer, guest.mem_mib)
            return work_of_micro(dst)


def work_of_micro(g):
    measure.watch_for(g, Clock(), SETTLE_S)
    had = len(g.log().lines)
    measure.watch_for(g, Clock(), RUN_S)
    line = stats.line_up(measure.slots_of(g.log().lines[had:]), measure.SLOT_MS, 0)
    # the first and the last slot need not be whole
    return as_run((stats.median([row[1] for row in line[1:-1]]) or 0) * 1000 / measure.SLOT_MS,
                  g.pid)


def run_outside(t, guest, peer, qemu):
    settings = client_view.settings_of(t, 'overhead', guest, qemu)
    hosts, client = client_view.Hosts(f'ffbench-{os.getpid()}-o'), None
    try:
        with client_view.Moved(hosts.src, settings, 'a') as src, \
                client_view.Moved(hosts.dst, settings, 'b') as dst:
            src.start()
            common.linux_boot(src, 120)
            if peer:
                dst.start(incoming=True)
            client = client_view.CLIENTS[guest.workload](hosts.src, guest.mem_mib)
            if peer:
                client_view.watch_for(settings, SETTLE_S)
                move(t, src, dst, peer, guest.mem_mib)
            client_view.watch_for(settings, SETTLE_S + RUN_S)
            slots = client.work(client.finish())[-RUN_S * 1000 // measure.SLOT_MS:]
            return as_run((stats.median(slots) or 0) * 1000 / measure.SLOT_MS,
                          (dst if peer else src).pid)
    finally:
        if client:
            client.close()
        hosts.close()
        shutil.rmtree(settings.workdir, ignore_errors=True)


def one_round(t, group, guest, qemu_of, peers, progress):
    """Each way once. qemu_of: by way; peers: by name."""
    run = run_outside if group['workload'] in client_view.CLIENTS else run_micro
    for way in group['ways']:
        progress(way['way'])
        peer = peers.get(way['way'])
        try:
            result = run(t, guest, peer, qemu_of(way['way']))
        except (Failed, GuestError, OSError) as e:
            result = {'work_per_s': None, 'huge_mib': None, 'why': str(e)}
        way['runs'].append(result)


# --- as text ---

def spread_text(values):
    s = stats.spread(values)
    if not s:
        return '-'
    return f'{s.median:.0f}' + (f' ({s.low:.0f}..{s.high:.0f})' if s.n > 1 else '')


def ratio_text(ours, theirs):
    s = stats.ratio(ours, theirs)
    return '-' if not s else f'{s.median:.3f} ({s.low:.3f}..{s.high:.3f})'


def works(way):
    return [r['work_per_s'] for r in way['runs']]


def rows(group):
    """(way, [work a second, by never moved, MiB in huge pages])"""
    never = next((works(w) for w in group['ways'] if w['way'] == NEVER), [])
    out = []
    for way in group['ways']:
        moved = way['way'] not in (NEVER, STOCK)
        out.append((('after ' if moved else '') + way['way'],
                    [spread_text(works(way)),
                     ratio_text(works(way), never) if way['way'] != NEVER else '1',
                     spread_text([r['huge_mib'] for r in way['runs']])]))
    return out


HEAD = ('answers a second', 'touches a second')


def head(group):
    return [HEAD[group['workload'] not in client_view.CLIENTS], 'by never moved, pair by pair',
            'MiB in huge pages']


def title(group):
    runs = max((len(w['runs']) for w in group['ways']), default=0)
    return (f'nothing moves: {schema.group_title(group)}: {runs} run{"s" if runs != 1 else ""}, '
            'median (min..max)')


def notes(group):
    return [f'{w["way"]}: {len(bad)} of {len(w["runs"])} runs failed: {bad[0]}' for w in
            group['ways'] if (bad := [r['why'] for r in w['runs'] if r['work_per_s'] is None])]
