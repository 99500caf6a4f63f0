# SPDX-License-Identifier: LGPL-2.1-or-later
#
# fault_scaling.py - page faults a second and their latency against the number of threads that fault
"""
    group = new_group(place, links, mib); one_round(group, place, floors, progress)

bench/fault_scaling.c is the library without QEMU: a source and a destination, nothing by prefill. With one
thread its latency is compared with what a fault cannot do without, in the same round: a fault that
userfaultfd resolves at once, and a round trip of the link (a READ of 4 KiB for verbs).
"""
import json
import os
import subprocess

import common
import stats
from common import Failed

PROGRAM = os.path.join(common.BUILD, 'bench', 'fault_scaling')
THREADS = (1, 2, 4, 8, 16)
LIMIT_S = 180
FIGURES = ('faults_per_s', 'p50_us', 'p90_us', 'p99_us', 'max_us', 'pager_p50_us', 'pager_p99_us')
SHOWN = (('faults_per_s', 'faults/s'), ('p50_us', 'p50, us'), ('p99_us', 'p99, us'),
         ('max_us', 'max, us'))
# what a fault over this link costs at least, besides userfaultfd
ROUND_TRIP = {'loop': None, 'tcp': 'tcp_round_trip_p50_us', 'verbs': 'verbs_read_p50_us'}
UFFD = ('uffd_same_cpu_p50_us', 'uffd_other_cpu_p50_us')


def new_group(place, links, mib):
    return {'net': place.name, 'mib': mib, 'floors': [], 'links': [
        {'link': link, 'about': '', 'points': [{'threads': n, 'runs': []} for n in THREADS]}
        for link in links]}


def output(argv):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise Failed(f'{" ".join(argv[-4:])}: exit code {done.returncode}: {done.stderr.strip()}')
    return done.stdout


def measure(place, link, threads, mib):
    """What fault_scaling.c prints."""
    if link == 'loop':
        return json.loads(output(place.argv([PROGRAM, 'loop', str(threads), str(mib)], True)))
    at = f'{place.host}:%s,link={link},insecure=on'
    argv = place.argv([PROGRAM, 'dest', at % 0 + ',prefill=off', str(threads), str(mib)], True)
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True) as dest:
        try:
            port = dest.stdout.readline().strip()
            if not port:
                raise Failed(f'{" ".join(argv[-4:])}: no port; what it says is above')
            output(place.argv([PROGRAM, 'source', at % port, str(mib)], False))
            out, _ = dest.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f'{" ".join(argv[-4:])}: no end within {LIMIT_S} s') from None
        finally:
            if dest.poll() is None:
                dest.kill()
    if dest.returncode:
        raise Failed(f'{" ".join(argv[-4:])}: exit code {dest.returncode}')
    return json.loads(out)


def one_round(group, place, floors, progress):
    """Each number of threads over each link, after the floors."""
    group['floors'].append(floors)
    for i in range(len(THREADS)):
        for link in group['links']:
            point = link['points'][i]
            progress(f'{link["link"]}, {point["threads"]} threads')
            try:
                seen = measure(place, link['link'], point['threads'], group['mib'])
                link['about'] = seen['link']
                run = {k: seen[k] for k in FIGURES}
                run['why'] = ''
            except Failed as e:
                run = {**dict.fromkeys(FIGURES), 'why': str(e)}
            point['runs'].append(run)


# --- as text ---

def values(point, name):
    return [r[name] for r in point['runs']]


def cell(all_values):
    s = stats.spread(all_values)
    return '-' if not s else f'{s.median:.0f} ({s.low:.0f}..{s.high:.0f})'


def floor_of(floors, link, uffd):
    """us: the least that a fault over this link can cost; None where it is not known."""
    parts = [floors.get(uffd)] + ([floors.get(ROUND_TRIP[link])] if ROUND_TRIP[link] else [])
    return None if None in parts else sum(parts)


def by_floor(group, link, uffd):
    """Latency of a fault with one thread by its floor, pair by pair."""
    floors = [floor_of(f, link['link'], uffd) for f in group['floors']]
    return stats.ratio(values(link['points'][0], 'p50_us'), floors), stats.median(floors)


def rows(link):
    """(threads, cells)"""
    return [(f'{p["threads"]} thread{"s" if p["threads"] > 1 else ""}',
             [cell(values(p, name)) for name, _ in SHOWN]) for p in link['points']]


def head():
    return [label for _, label in SHOWN]


def title(group, link):
    return (f'threads that fault: link {link["link"]}, {group["net"]}, {group["mib"]} MiB in '
            f'4 KiB: {len(group["floors"])} runs, median (min..max)')


def notes(group, link):
    out = []
    for uffd, where in zip(UFFD, ('the same CPU', 'another CPU')):
        ratio, floor = by_floor(group, link, uffd)
        if ratio:
            trip = ' and a round trip of the link' if ROUND_TRIP[link['link']] else ''
            out.append(f'p50 of one thread is {ratio.median:.2f} ({ratio.low:.2f}..'
                       f'{ratio.high:.2f}) x its floor: {floor:.1f} us for a fault whose handler '
                       f'is on {where}{trip}')
    for p in link['points']:
        bad = [r['why'] for r in p['runs'] if r['why']]
        out += [f'{p["threads"]} threads: {len(bad)} runs failed: {bad[0]}'] if bad else []
    return out


def failures(doc):
    return sum(bool(r['why']) for g in doc.get('curve', []) for x in g['links']
               for p in x['points'] for r in p['runs'])
