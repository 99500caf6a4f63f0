# SPDX-License-Identifier: LGPL-2.1-or-later
#
# schema.py - the results: what is in the file, which figures there are, whether it is whole
"""
docs/benchmarking.md describes the file; check() is the same in code. A figure is in the table
METRICS, with its unit, and whether less of it is better.
"""
import json
from collections import namedtuple

NAME, VERSION = 'farfork-bench', 1

# of a fault's latency, in the pager
STAGES = ('read', 'claim', 'post', 'wire', 'install', 'wake')

Metric = namedtuple('Metric', 'name label unit less main')
# main: in the table on the terminal and in the comparison of peers
METRICS = [Metric(*m) for m in (
    ('total_ms', 'total time', 'ms', True, True),
    ('total_qemu_ms', 'total time by QEMU', 'ms', True, False),
    ('downtime_guest_ms', 'downtime, guest', 'ms', True, True),
    ('downtime_events_ms', 'downtime, STOP to RESUME', 'ms', True, True),
    ('downtime_qemu_ms', 'downtime, QEMU', 'ms', True, True),
    ('udp_downtime_ms', 'downtime, lost UDP packets', 'ms', True, True),
    ('udp_silence_ms', 'longest without an answer', 'ms', True, True),
    ('udp_rtt_p50_us', 'UDP round trip: p50', 'us', True, True),
    ('udp_rtt_p99_us', '  p99', 'us', True, True),
    ('udp_rtt_max_us', '  max', 'us', True, True),
    ('answers_per_s', 'answers a second, usually', '1/s', False, True),
    ('answer_usual_p50_us', 'one answer, usually: p50', 'us', True, True),
    ('answer_usual_p99_us', '  p99', 'us', True, True),
    ('answer_p50_us', 'one answer, in the move: p50', 'us', True, True),
    ('answer_p99_us', '  p99', 'us', True, True),
    ('answer_max_us', '  max', 'us', True, True),
    ('stall_total_ms', 'guest stalled, in all', 'ms', True, True),
    ('stalls', 'stalls', '', True, True),
    ('stall_p50_us', '  one stall: p50', 'us', True, True),
    ('stall_p90_us', '  p90', 'us', True, True),
    ('stall_p99_us', '  p99', 'us', True, True),
    ('stall_p999_us', '  p99.9', 'us', True, True),
    ('stall_max_us', '  max', 'us', True, True),
    ('stall_usual_ms_s', 'stalled when nothing moves', 'ms/s', True, False),
    ('work_lost_ms', 'work lost', 'ms', True, True),
    ('touches_per_s', 'touches before the move', '1/s', False, False),
    ('stall_p99_by_round_trip', 'stall p99 by TCP round trip', '', True, True),
    ('faults', 'faults', '', True, True),
    ('pager_p50_us', 'pager, a fault: p50', 'us', True, True),
    ('pager_p90_us', '  p90', 'us', True, False),
    ('pager_p99_us', '  p99', 'us', True, True),
    ('pager_p999_us', '  p99.9', 'us', True, False),
    ('pager_max_us', '  max', 'us', True, True),
    *((f'stage_{s}_{p}_us', f'  stage {s}: {p}', 'us', True, p == 'p50')
      for s in STAGES for p in ('p50', 'p99')),
    ('pager_p99_by_round_trip', 'pager p99 by TCP round trip', '', True, True),
    ('prefill_bytes', 'by prefill', 'MiB', None, True),
    ('fault_bytes', 'by fault', 'MiB', None, True),
    ('zero_bytes', 'zero pages', 'MiB', None, False),
    ('duplicated_bytes', 'fetched twice', 'MiB', True, True),
    ('precopied_bytes', 'before the pause', 'MiB', None, True),
    ('discarded_bytes', '  written meanwhile', 'MiB', True, True),
    ('pass_ms', '  time it took', 'ms', True, True),
    ('breaks', 'links that broke', '', True, True),
    ('paused_ms', '  time without one', 'ms', True, True),
    ('transferred_bytes', 'transferred', 'MiB', True, True),
    ('throughput_mib_s', 'throughput', 'MiB/s', False, True),
    ('postcopy_ms', 'post-copy alone', 'ms', True, False),
    ('prefill_by_line', 'prefill by line rate', '', False, True),
    ('traffic_by_line', 'all traffic by line rate', '', False, True),
    ('prefill_by_stream', 'prefill by one TCP stream', '', False, True),
    ('traffic_by_stream', 'all traffic by one TCP stream', '', False, True),
    ('cpu_source_s', 'CPU, source', 's', True, True),
    ('cpu_destination_s', 'CPU, destination', 's', True, True),
    ('cpu_source_vcpu_s', 'CPU, vCPUs at the source', 's', None, False),
    ('cpu_destination_vcpu_s', 'CPU, vCPUs at the destination', 's', None, False),
    ('peak_source_mib', 'peak memory, source', 'MiB', True, True),
    ('peak_destination_mib', 'peak memory, destination', 'MiB', True, True),
)]
BY_NAME = {m.name: m for m in METRICS}

FLOORS = [('uffd_same_cpu_p50_us', 'userfaultfd round trip, same CPU, p50', 'us'),
          ('uffd_same_cpu_p99_us', '  p99', 'us'),
          ('uffd_other_cpu_p50_us', 'userfaultfd round trip, another CPU, p50', 'us'),
          ('uffd_other_cpu_p99_us', '  p99', 'us'),
          ('tcp_round_trip_p50_us', 'TCP round trip, p50', 'us'),
          ('tcp_round_trip_p99_us', '  p99', 'us'),
          ('verbs_read_p50_us', 'READ of 4 KiB over verbs, p50', 'us'),
          ('verbs_read_p99_us', '  p99', 'us'),
          ('tcp_mib_s', 'TCP, one stream', 'MiB/s'),
          ('memcpy_mib_s', 'memcpy', 'MiB/s')]

OUTCOMES = ('completed', 'did not converge', 'failed')
GROUP_KEY = ('workload', 'mem_mib', 'smp', 'memory', 'net', 'accel')


class Bad(Exception):
    """The file is not what it should be."""


def group_key(group):
    return tuple(group[k] for k in GROUP_KEY)


def group_title(group):
    return (f'{group["workload"]}, {group["mem_mib"]} MiB {group["memory"]}, {group["smp"]} vCPU'
            f'{"s" if group["smp"] > 1 else ""}, {group["accel"]}, {group["net"]}')


def values(peer, name):
    """Of each run, in order; None for one that does not have it, or was no whole move."""
    return [r['metrics'].get(name) if r['outcome'] == 'completed' else None for r in peer['runs']]


def shown(name, value):
    """(value in the unit of METRICS, as text): bytes are shown as MiB."""
    if value is None:
        return '-'
    if name.endswith('_bytes'):
        value /= 1 << 20
    if value and abs(value) < 0.001:
        return f'{value:.1e}'
    if abs(value) >= 100 or value == int(value):
        return f'{value:.0f}'
    return f'{value:.3g}'


def need(where, obj, **kinds):
    for key, kind in kinds.items():
        if key not in obj:
            raise Bad(f'{where}: no {key}')
        if not isinstance(obj[key], kind) or (kind is int and isinstance(obj[key], bool)):
            raise Bad(f'{where}: {key} is {type(obj[key]).__name__}: {str(obj[key])[:40]}')


def check_run(where, run):
    need(where, run, round=int, outcome=str, why=str, metrics=dict, threads=dict, hist=list,
         timeline=list, ledger=str)
    if run['outcome'] not in OUTCOMES:
        raise Bad(f'{where}: outcome {run["outcome"]!r}, permitted {", ".join(OUTCOMES)}')
    for name, value in run['metrics'].items():
        if name not in BY_NAME:
            raise Bad(f'{where}: metric {name} is unknown to version {VERSION}')
        if isinstance(value, bool) or not isinstance(value, (int, float, type(None))):
            raise Bad(f'{where}: metric {name} is no number: {str(value)[:40]}')
    if run['outcome'] == 'completed' and run['metrics'].get('total_ms') is None:
        raise Bad(f'{where}: completed without total_ms')
    for row, size in ((run['hist'], 2), (run['timeline'], 4)):
        if any(not isinstance(x, list) or len(x) != size for x in row):
            raise Bad(f'{where}: a row of hist has not 2, or one of timeline not 4 numbers')


def check_overhead(groups):
    for group in groups:
        need('overhead', group, workload=str, mem_mib=int, smp=int, memory=str, net=str, accel=str,
             ways=list)
        for way in group['ways']:
            need(f'overhead: {group_title(group)}', way, way=str, runs=list)
            for run in way['runs']:
                need(f'overhead: {group_title(group)}: {way["way"]}', run, why=str,
                     work_per_s=(int, float, type(None)), huge_mib=(int, float, type(None)))


def check_curve(groups):
    for group in groups:
        need('curve', group, net=str, mib=int, floors=list, links=list)
        for link in group['links']:
            need('curve', link, link=str, about=str, points=list)
            for point in link['points']:
                need(f'curve: {link["link"]}', point, threads=int, runs=list)
                for run in point['runs']:
                    need(f'curve: {link["link"]}: {point["threads"]}', run, why=str,
                         **{k: (int, float, type(None)) for k in
                            ('faults_per_s', 'p50_us', 'p99_us', 'max_us')})


def check_clone(groups):
    for group in groups:
        need('clone', group, kind=str, memory=str, mem_mib=int, accel=str, floors=list, ways=list)
        if group['kind'] == 'children':
            need('clone', group, children=int, load=str)
        elif group['kind'] != 'pause':
            raise Bad(f'clone: kind {group["kind"]!r}, permitted children, pause')
        for way in group['ways']:
            need('clone', way, way=str, runs=list)
            for run in way['runs']:
                need(f'clone: {way["way"]}', run, why=str)
                figures = {k: v for k, v in run.items() if k != 'why'}
                need(f'clone: {way["way"]}', figures,
                     **dict.fromkeys(figures, (int, float, type(None))))


def check(doc):
    """Raise Bad unless doc is a whole results file of this version."""
    if not isinstance(doc, dict) or doc.get('schema') != NAME:
        raise Bad(f'no results of farfork bench: schema is not {NAME!r}')
    if doc.get('version') != VERSION:
        raise Bad(f'version {doc.get("version")} of the results (this program reads {VERSION}): '
                  'use the farfork that wrote them')
    need('results', doc, started=str, complete=bool, command=list, host=dict, settings=dict,
         groups=list, skipped=list)
    check_overhead(doc.get('overhead', []))
    check_curve(doc.get('curve', []))
    check_clone(doc.get('clone', []))
    seen = set()
    for group in doc['groups']:
        need('group', group, workload=str, mem_mib=int, smp=int, memory=str, net=str, accel=str,
             slot_ms=int, floors=list, peers=list)
        title = group_title(group)
        if group_key(group) in seen:
            raise Bad(f'{title}: twice')
        seen.add(group_key(group))
        names = [p.get('peer') for p in group['peers']]
        if len(set(names)) != len(names):
            raise Bad(f'{title}: a peer twice: {", ".join(map(str, names))}')
        for peer in group['peers']:
            need(title, peer, peer=str, runs=list)
            for run in peer['runs']:
                check_run(f'{title}: {peer["peer"]}', run)
    return doc


def load(path):
    try:
        with open(path, encoding='utf-8') as f:
            return check(json.load(f))
    except (OSError, ValueError) as e:
        raise Bad(f'{path}: {e}') from None
    except Bad as e:
        raise Bad(f'{path}: {e}') from None


def save(path, doc):
    with open(path, 'w', encoding='utf-8') as f:
        json.dump(check(doc), f, indent=None, separators=(',', ':'))
        f.write('\n')
