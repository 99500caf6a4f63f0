# SPDX-License-Identifier: LGPL-2.1-or-later
#
# clone_groups.py - what a fork costs: the parent's pause, children's first instruction, memory, network
"""
    group = pause_group(...) or children_group(...); one_round(t, group, i, floors, progress)

A group of `pause` is a parent of one size and kind of memory that is forked twice; one of
`children` has every way (forks.py) to start so many, each once a round, with the floors of that
round before it. Ratios are pair by pair: the i-th of one way by the i-th of the other.
"""
import time

import forks
import measure
import stats
from common import Failed
from measure import Clock
from qemu import GuestError

PAUSE = ('pause_ms', 'stop_ms', 'state_ms', 'memory_ms', 'fork_ms', 'gap_ms',
         'again_pause_ms', 'again_memory_ms', 'again_gap_ms')
SHOWN = (('first_ms', 'first instruction of the first, ms'), ('last_ms', '  of the last, ms'),
         ('from_export_ms', '  from the export to the last, ms'),
         ('export_ms', 'until the export, ms'), ('save_ms', 'until saved, ms'),
         ('freeze_ms', 'export: pause, ms'), ('ship_ms', 'export to image there, ms'),
         ('start_ms', 'export to attached, ms'), ('complete_ms', 'all memory there, ms'),
         ('verified_ms', 'all memory verified, ms'), ('rss_mib', 'Rss of a child, MiB'),
         ('pss_mib', 'Pss of a child, MiB'), ('net_mib', 'received by the other host, MiB'),
         ('pages_by_fault', 'pages fetched by fault'), ('child_faults', 'faults of children'))
STOCK = 'templating'
# (way, by way, what, the aim)
AIMS = (('vmclone', STOCK, 'last_ms', 'first instruction, cold', 1, 0.8),
        ('vmclone --prestart', STOCK, 'last_ms', 'first instruction, started ahead', 1, 0.3),
        ('vmclone', STOCK, 'last_ms', 'all run', 2, 0.7),
        ('vmclone --prestart', STOCK, 'last_ms', 'all run, starting ahead included', 2, 0.7),
        ('vmclone, pool', STOCK, 'last_ms', 'first instruction, from a pool', 1, 0.25),
        ('pool, other host', STOCK, 'last_ms', 'the same on another host', 1, 0.5),
        ('vmclone, other host', 'vmclone', 'last_ms', 'another host by this one', 1, 1.5),
        ('--prestart, other host', 'vmclone --prestart', 'last_ms', 'the same, started ahead', 1,
         1.5))


def pause_group(memory, mem_mib, accel):
    return {'kind': 'pause', 'memory': memory, 'mem_mib': mem_mib, 'accel': accel, 'floors': [],
            'ways': [{'way': memory, 'runs': []}]}


def children_group(children, mem_mib, accel, load, ways, verify):
    return {'kind': 'children', 'memory': '', 'mem_mib': mem_mib, 'accel': accel, 'load': load,
            'children': children, 'verify': verify, 'floors': [],
            'ways': [{'way': w, 'runs': []} for w in ways]}


def usual_ways(children, mem_mib):
    """mapped-ram has a copy of all memory for each child: left out where that is too much."""
    return [w.name for w in forks.WAYS
            if w.stock != 'mapped-ram' or children * mem_mib <= 10240]


# --- the pause ---

def fork_once(f, again):
    """Pause by QEMU, and what the parent's guest felt: {figure: ms}."""
    clock, parent = Clock(), f.parent
    clock.seen = len(parent.log().lines)
    measure.watch_for(parent, clock, 1)
    time.sleep(1.5 * measure.SLOT_MS / 1000)
    start = time.monotonic()
    f.clone(f'f{again:d}')
    stop, resume = (forks.event_s(parent, e, start) for e in ('STOP', 'RESUME'))
    measure.watch_for(parent, Clock(), 0.5)
    slots = measure.slots_of(parent.log().lines)
    gap = stats.longest_gap(slots, measure.SLOT_MS, clock.guest_ms(stop) - 5,
                            clock.guest_ms(resume) + 5)
    return f.freeze, gap and gap / 1000


def pause_run(t, group, tag):
    load = (f'mode=random first=mix sweep=0 report_ms={measure.REPORT_MS} '
            f'slot_ms={measure.SLOT_MS} beat_ms=2')
    memory = 'anon' if group['memory'] == 'thp' else group['memory']
    out = dict.fromkeys(PAUSE)
    with forks.Fork(t, forks.Way('pause', memory=memory), group['accel'], group['mem_mib'], load, 1,
                    tag) as f:
        for again in (False, True):
            freeze, gap = fork_once(f, again)
            if again:
                out.update(again_pause_ms=freeze['pause-ns'] / 1e6, again_gap_ms=gap,
                           again_memory_ms=freeze['memory-ns'] / 1e6)
            else:
                out.update({f'{x}_ms': freeze[f'{x}-ns'] / 1e6
                            for x in ('pause', 'stop', 'state', 'memory', 'fork')}, gap_ms=gap)
    return {k: None if v is None else round(v, 3) for k, v in out.items()}


def one_pause(t, group, tag):
    try:
        return {**pause_run(t, group, tag), 'why': ''}
    except (Failed, GuestError, OSError) as e:
        return {**dict.fromkeys(PAUSE), 'why': str(e)}


# --- rounds ---

def one_round(t, group, number, floors, progress):
    group['floors'].append(floors)
    for i, way in enumerate(group['ways']):
        progress(way['way'])
        tag = f'{group["kind"]}-{number}-{i}'
        way['runs'].append(one_pause(t, group, tag) if group['kind'] == 'pause'
                           else forks.one_fork(t, forks.BY_NAME[way['way']], group, tag))


def huge_mib(group):
    """Reserved huge pages that a group needs: two forks, of which the parent and each child may
    come to write to all."""
    return 7 * group['mem_mib'] if group['memory'] == 'hugetlb' else 0


def need_mib(group):
    """Free memory: parents, children that write to a tenth of theirs, one that sweeps, QEMUs."""
    if group['kind'] == 'pause':
        return 4 * group['mem_mib'] + 512 + huge_mib(group)
    copies = group['children'] if 'mapped-ram' in [w['way'] for w in group['ways']] else 1
    return (3 + copies) * group['mem_mib'] + group['children'] * (group['mem_mib'] // 5 + 40)


def failures(doc):
    return sum(bool(r['why']) for g in doc.get('clone', []) for w in g['ways'] for r in w['runs'])


# --- as text ---

def values(way, name):
    if name == 'from_export_ms':
        return [None if r['last_ms'] is None or r['export_ms'] is None
                else r['last_ms'] - r['export_ms'] for r in way['runs']]
    return [r[name] for r in way['runs']]


def cell(all_values):
    s = stats.spread(all_values)
    if not s:
        return '-'
    one = '{:.1f}'.format if s.median < 100 else '{:.0f}'.format
    return one(s.median) + (f' ({one(s.low)}..{one(s.high)})' if s.n > 1 else '')


def judged(way, name):
    """Started ahead, the command is the export."""
    return values(way, 'from_export_ms' if forks.BY_NAME[way['way']].ahead else name)


def ratio_rows(group):
    """(what, ratio pair by pair, aim) of the ways that there are."""
    by_name = {w['way']: w for w in group['ways']}
    out = []
    for ours, theirs, name, what, least, aim in AIMS:
        if ours not in by_name or theirs not in by_name or (
                group['children'] < least or (least == 1 and aim < 1 and group['children'] > 1)):
            continue
        look = judged if least == 1 else lambda way, figure: values(way, figure)
        s = stats.ratio(look(by_name[ours], name), look(by_name[theirs], name))
        if s:
            out.append((f'{what}: {ours} by {theirs}', s, aim))
    return out


def title(group):
    runs = max((len(w['runs']) for w in group['ways']), default=0)
    what = (f'pause of a parent, {group["mem_mib"]} MiB {group["memory"]}'
            if group['kind'] == 'pause' else
            f'{group["children"]} {group["load"]} children of {group["mem_mib"]} MiB')
    return f'fork: {what}, {group["accel"]}: {runs} run{"s" if runs != 1 else ""}'


def rows(group):
    """(label, cells): pause: a figure a row; children: likewise, a way a column."""
    if group['kind'] == 'pause':
        return [(name.replace('_ms', ', ms').replace('_', ' '), [cell(values(group['ways'][0],
                                                                          name))])
                for name in PAUSE]
    out = []
    for name, label in SHOWN:
        cells = [cell(values(w, name)) for w in group['ways']]
        if any(c != '-' for c in cells):
            out.append((label, cells))
    return out


def head(group):
    return [w['way'] for w in group['ways']]


def notes(group):
    out = [f'{what}: {s.median:.2f} ({s.low:.2f}..{s.high:.2f}); to reach: {aim}'
           for what, s, aim in (ratio_rows(group) if group['kind'] == 'children' else [])]
    for w in group['ways']:
        bad = [r['why'] for r in w['runs'] if r['why']]
        out += [f'{w["way"]}: {len(bad)} of {len(w["runs"])} runs failed: {bad[0]}'] if bad else []
    return out
