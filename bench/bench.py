#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""bench.py - what a move costs: rdma-postcopy and QEMU's own ways, in one run

Moves the micro guest between two QEMUs of this host, one way after the other, again and again,
and writes what was measured. `farfork bench --help`, docs/benchmarking.md.
"""
import argparse
import ctypes
import datetime
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, os.path.join(HERE, '..', 'tests', 'e2e'))
# pylint: disable=wrong-import-position
import clone_groups                                        # noqa: E402
import common                                       # noqa: E402
import compare                                      # noqa: E402
import fault_scaling                                        # noqa: E402
import forks                                        # noqa: E402
import html_report                                  # noqa: E402
import this_host                                         # noqa: E402
import measure                                      # noqa: E402
import overhead                                     # noqa: E402
import client_view                                      # noqa: E402
import testbed                                       # noqa: E402
import peers                                        # noqa: E402
import plots                                        # noqa: E402
import schema                                       # noqa: E402
import selection                                    # noqa: E402
import table                                        # noqa: E402
from common import Failed, Skip                     # noqa: E402
from measure import Guest, Times                    # noqa: E402
from peers import Peer                              # noqa: E402
from warm import BASELINES, SPARE_MIB, Warm         # noqa: E402

MEMORIES = ('anon', 'memfd', 'thp', 'hugetlb')
LAB_OUT = '/lab/out'
IN_LAB = bool(os.environ.get('LAB_HOSTS'))
# everything from 5 s before to 5 s after in the first round; less in the others, to save time
AROUND_S = 5
SHORT_S = 1
PR_SET_THP_DISABLE = 41
LIMIT_S = 30 * 3600     # of all

EPILOG = '''
`farfork bench compare OLD.json NEW.json` says what changed beyond noise:
  --fail-on-regression  exit code 1 when a figure is worse

PEER is one of {peers}.
After a comma: qemu=PROGRAM, and for attach and rdma-... key, a key of this run, or options of its
address, as in rdma-tcp,prefill=push. WORKLOAD is one of {workloads};
with @RATE so many touches a second; or a Linux guest that is measured from outside: linux,
with UDP packets, or redis, whose answers a client waits for.
NET is loopback, or rate, round-trip time and loss of a link between two network
namespaces: 10gbit,0.2ms,0.1%; with prio its queue lets faults go first. Several values of an option: every combination of them.

Exit code: 0 done, 1 a run failed, 2 wrong use, 77 it cannot run here, 130 interrupted
(what was measured is written all the same). docs/benchmarking.md explains the figures.
'''


class Progress:
    """A line on stderr that the next one replaces on a terminal."""

    def __init__(self):
        self.tty, self.start = sys.stderr.isatty(), time.monotonic()
        self.done = self.all = 0

    def __call__(self, text):
        spent = time.monotonic() - self.start
        left = f', {spent / self.done * (self.all - self.done) / 60:.0f} min left' \
            if self.done > 2 else ''
        line = f'[{spent:5.0f} s, {self.done}/{self.all}{left}] {text}'
        sys.stderr.write(f'\r{line[:118]:<118}' if self.tty else line + '\n')
        sys.stderr.flush()

    def clear(self):
        if self.tty:
            sys.stderr.write('\r' + ' ' * 118 + '\r')
            sys.stderr.flush()


progress = Progress()


def use_thp(wanted):
    """For the QEMUs to come: QEMU itself asks for huge pages wherever the host has them."""
    if wanted and this_host.thp() == 'never':
        raise Skip('no transparent huge pages: echo madvise > '
                   '/sys/kernel/mm/transparent_hugepage/enabled')
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_THP_DISABLE, not wanted, 0, 0, 0):
        raise Failed(f'prctl PR_SET_THP_DISABLE: {os.strerror(ctypes.get_errno())}')


def warm(g):
    """Of a guest as selection.py names it."""
    progress(f'warming memory for {g["mem"]} MiB twice')
    return Warm(g['mem'], hold=g['memory'] in ('anon', 'memfd'))


class Bench:
    def __init__(self, o):
        self.o = o
        self.peers = [Peer(p) for p in o.peers]
        alone = o.overhead or o.curve or o.clone
        every = o.full and not alone
        self.groups = [] if alone else selection.moves(o, IN_LAB)
        self.idle = selection.idle(o, IN_LAB) if o.overhead or every else []
        self.curves = list(o.net or [testbed.LOOPBACK]) if o.curve or every else []
        self.forks = (selection.forks(o) if o.clone or every else [])
        self.number = 0
        self.doc = {
            'schema': schema.NAME, 'version': schema.VERSION, 'started': now(), 'ended': '',
            'complete': False, 'command': sys.argv[1:],
            'host': this_host.facts(sorted({common.QEMU, *(self.qemu(p) for p in self.peers)})),
            'settings': {'runs': o.runs, 'limit_s': o.limit, 'around_s': o.around,
                         'slot_ms': measure.SLOT_MS, 'report_ms': measure.REPORT_MS},
            'groups': [], 'overhead': [], 'curve': [], 'clone': [], 'skipped': [],
        }

    def qemu(self, peer):
        return peer.qemu or (None if peer.patched() else self.o.qemu) or common.QEMU

    def skip(self, what, why):
        progress.clear()
        print(f'SKIP: {what}: {why}', flush=True)
        self.doc['skipped'].append({'what': what, 'why': str(why)})

    def run(self, t):
        """All groups. What cannot be had is skipped, what fails is a run that failed."""
        common.need_files(BASELINES)
        if self.groups or self.idle or self.forks:
            self.accel(t)
        progress.all = self.o.runs * (len(self.groups) * len(self.peers)
                                      + len(self.idle) * len(self.ways())
                                      + sum(len(self.fork_ways(g)) for g in self.forks)
                                      + len(self.curves) * len(fault_scaling.THREADS)
                                      * len(self.links()))
        for g in self.groups:
            group = {'workload': g['workload'], 'mem_mib': g['mem'], 'smp': g['smp'],
                     'memory': g['memory'], 'net': g['net'], 'accel': '',
                     'slot_ms': measure.SLOT_MS, 'floors': [],
                     'peers': [{'peer': p.text, 'runs': []} for p in self.peers]}
            try:
                with warm(g):
                    self.run_group(t, group)
            except Skip as e:
                self.skip(schema.group_title(group), e)
                progress.all -= (self.o.runs * len(self.peers)
                                 - sum(len(p['runs']) for p in group['peers']))
        for g in self.idle:
            group = overhead.new_group(g, self.ways())
            try:
                with warm(g):
                    self.run_idle(t, group)
            except Skip as e:
                self.skip(overhead.title(group), e)
        for net in self.curves:
            try:
                self.run_curve(net)
            except Skip as e:
                self.skip(f'threads that fault, {net}', e)
        for g in self.forks:
            try:
                self.run_clone(t, g)
            except Skip as e:
                self.skip(f'fork: {g}', e)
        self.doc['complete'] = True

    def fork_ways(self, g):
        """The columns of a group; a pause has one."""
        if 'children' not in g:
            return ['']
        return [w for w in clone_groups.usual_ways(g['children'], g['mem']) if w in
                (self.o.ways or forks.BY_NAME)]

    def run_clone(self, t, g):
        accel = self.accel(t)
        if 'children' in g:
            group = clone_groups.children_group(g['children'], g['mem'], accel, g['load'],
                                         self.fork_ways(g), g['verify'])
        else:
            group = clone_groups.pause_group(g['memory'], g['mem'], accel)
        common.need_files(forks.VMCLONE)
        need_mib = clone_groups.need_mib(group)
        if need_mib > this_host.meminfo_mib('MemAvailable'):
            raise Skip(f'needs {need_mib} MiB of free memory, there are '
                       f'{this_host.meminfo_mib("MemAvailable")}')
        use_thp(group['memory'] == 'thp')
        if clone_groups.huge_mib(group):
            t.reserve_huge(clone_groups.huge_mib(group))
        self.doc['clone'].append(group)
        with warm(g if 'memory' in g else {**g, 'memory': 'memfd'}):
            for i in range(self.o.runs):
                def say(what, number=i + 1):
                    progress(f'{clone_groups.title(group)}: round {number} of {self.o.runs}: {what}')
                    progress.done += 1
                self.number += 1
                clone_groups.one_round(t, group, self.number, testbed.floors(BASELINES, testbed.Here()), say)
        progress.clear()
        print('\n'.join(table.clone_lines(group)) + '\n', flush=True)

    @staticmethod
    def links():
        return ['loop', 'tcp', *(['verbs'] if IN_LAB else [])]

    def run_curve(self, net):
        common.need_files(fault_scaling.PROGRAM)
        with testbed.make(net, self.o.host) as place:
            group = fault_scaling.new_group(place, self.links(), 4 if IN_LAB else 32)
            self.doc['curve'].append(group)
            for i in range(self.o.runs):
                def say(what, number=i + 1):
                    progress(f'threads that fault, {net}: round {number} of {self.o.runs}: {what}')
                    progress.done += 1
                fault_scaling.one_round(group, place, testbed.floors(BASELINES, place), say)
        progress.clear()
        print('\n'.join(table.curve_lines(group)) + '\n', flush=True)

    def ways(self):
        """Of the overhead: never moved, and after each way to move."""
        return [overhead.NEVER, *([overhead.STOCK] if self.o.qemu else []),
                *(p.text for p in self.peers)]

    def run_idle(self, t, group):
        """What the guest gets done while nothing moves."""
        by_text = {p.text: p for p in self.peers}

        def qemu_of(way):
            return (self.qemu(by_text[way]) if way in by_text
                    else self.o.qemu if way == overhead.STOCK else common.QEMU)

        guest = self.prepare(t, group)
        with testbed.make(group['net'], self.o.host) as place:
            common.place = place
            group['net'] = place.name
            self.doc['overhead'].append(group)
            for i in range(self.o.runs):
                def say(way, number=i + 1):
                    progress(f'{schema.group_title(group)}: round {number} of {self.o.runs}: '
                             f'nothing moves: {way}')
                    progress.done += 1
                overhead.one_round(t, group, guest, qemu_of, by_text, say)
        progress.clear()
        print('\n'.join(table.overhead_lines(group)) + '\n', flush=True)

    def accel(self, t):
        if self.o.accel != 'auto':
            return t.need(self.o.accel)
        return 'tcg' if IN_LAB else t.best_accel()

    def linux(self, group):
        return group['workload'] in client_view.CLIENTS

    def fits(self, g):
        return 2 * g['mem'] + SPARE_MIB <= this_host.meminfo_mib('MemAvailable')

    def prepare(self, t, group):
        """The guest, once what it needs is there."""
        mem_mib = group['mem_mib']
        if not self.fits({'mem': mem_mib}):
            raise Skip(f'needs {2 * mem_mib + SPARE_MIB} MiB of free memory, there are '
                       f'{this_host.meminfo_mib("MemAvailable")}')
        use_thp(group['memory'] == 'thp')
        group['accel'] = (client_view.find_accel(t, self.o.accel) if self.linux(group)
                          else self.accel(t))
        if group['memory'] == 'hugetlb':
            t.reserve_huge(2 * mem_mib)
        return Guest(group['workload'], mem_mib, group['smp'], group['memory'], group['accel'])

    def run_group(self, t, group):
        guest = self.prepare(t, group)
        with testbed.make(group['net'], self.o.host) as place:
            common.place = place
            group['net'] = place.name
            self.doc['groups'].append(group)
            for i in range(self.o.runs):
                self.round(t, group, guest, i)
        progress.clear()
        print('\n'.join(table.group_lines(group)) + '\n', flush=True)

    def round(self, t, group, guest, i):
        """Each peer once, after the floors."""
        around = self.o.around if i == 0 else min(SHORT_S, self.o.around)
        limit_s = self.o.limit or testbed.limit_s(common.place, group['mem_mib'])
        floor = testbed.floors(BASELINES, common.place)
        group['floors'].append(floor)
        bits = common.place.link.bits() if getattr(common.place, 'link', None) else 0
        for peer, into in zip(self.peers, group['peers']):
            progress(f'{schema.group_title(group)}: round {i + 1} of {self.o.runs}: {peer.text}')
            self.number += 1
            one_move = client_view.one_move if self.linux(group) else measure.one_move
            run = one_move(t, guest, peer, self.qemu(peer), self.number,
                                   Times(around, around, limit_s))
            run['round'] = i
            run['metrics'].update(measure.metrics_of_link(run['metrics'], bits, floor))
            if run['outcome'] == 'did not converge':
                run['why'] = f'did not converge in {limit_s} s, then cancelled'
            into['runs'].append(run)
            progress.done += 1
            if run['outcome'] == 'failed':
                progress.clear()
                print(f'FAIL  {schema.group_title(group)}: {peer.text}: {run["why"]}', flush=True)

    def failures(self):
        return (sum(r['outcome'] == 'failed' for g in self.doc['groups'] for p in g['peers']
                    for r in p['runs'])
                + sum(r['work_per_s'] is None for g in self.doc['overhead'] for w in g['ways']
                      for r in w['runs'])
                + fault_scaling.failures(self.doc) + clone_groups.failures(self.doc))

    def write(self):
        """The results, as far as they have come."""
        if not any(p['runs'] for g in self.doc['groups'] for p in g['peers']) \
                and not any(w['runs'] for g in self.doc['overhead'] for w in g['ways']) \
                and not any(g['floors'] for g in self.doc['curve'] + self.doc['clone']):
            return
        self.doc['ended'] = now()
        self.doc['host']['load_after'] = this_host.load_average()
        os.makedirs(self.o.out, exist_ok=True)
        path = os.path.join(self.o.out, 'results.json')
        schema.save(path, self.doc)
        print(f'results: {path}', flush=True)
        draw(self.doc, self.o.out)


def draw(doc, out):
    try:
        images = plots.draw(doc, out)
    except plots.NoGnuplot as e:
        images = {}
        print(f'no plots: {e}')
    page = os.path.join(out, 'report.html')
    html_report.write(page, doc, out, images)
    print(f'report:  {page}', flush=True)


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec='seconds')


def positive(text):
    if not text.isdigit() or not int(text):
        raise ValueError(text)
    return int(text)


def net_type(text):
    if text != testbed.LOOPBACK:
        testbed.Link(text)
    return text


def checked(check):
    def kind(text):
        try:
            check(text)
        except ValueError as e:
            raise argparse.ArgumentTypeError(str(e)) from None
        return text
    return kind


def usual_peers():
    """Those of an unpatched QEMU where there is no other."""
    usual = [*peers.USUAL, *(['rdma-verbs'] if IN_LAB else [])]
    return usual if peers.has_transport(common.QEMU) else [p for p in usual if not Peer(p).patched()]


def parse_args(argv):
    p = argparse.ArgumentParser(
        prog='farfork bench', formatter_class=argparse.RawDescriptionHelpFormatter,
        description='Measure what a move costs, by rdma-postcopy and by what QEMU has.',
        epilog=EPILOG.format(peers=', '.join(peers.PEERS),
                             workloads=', '.join(measure.WORKLOADS)))
    add = p.add_argument
    add('--runs', type=positive, default=5, metavar='N', help='of each peer (default: 5)')
    add('--peers', nargs='+', type=checked(Peer), metavar='PEER',
        help='ways to move (default: all that QEMU has but hybrid, and rdma-tcp,key; rdma-verbs in '
        'the lab only)')
    add('--workload', nargs='+', type=checked(measure.check_workload), metavar='WORKLOAD',
        help='what the guest does (default: random)')
    add('--mem', nargs='+', type=positive, metavar='MIB',
        help='memory of the guest (default: 256 1024; in the lab 32)')
    add('--smp', nargs='+', type=positive, metavar='N', help='its vCPUs (default: 1)')
    add('--memory', nargs='+', choices=MEMORIES, metavar='KIND',
        help='anon, memfd, thp or hugetlb (default: anon)')
    add('--net', nargs='+', type=checked(net_type), metavar='NET',
        help='what is between the two (default: loopback)')
    add('--host', metavar='ADDRESS',
        help='with loopback: an own address to connect to, e.g. of an RDMA device')
    add('--accel', choices=('auto', 'kvm', 'tcg'), default='auto',
        help='auto: kvm where the guest boots under it')
    add('--qemu', metavar='PROGRAM', help='QEMU of the peers that are not rdma-postcopy; also '
        'stock-qemu and others of Debian that the tests have downloaded')
    add('--limit', type=positive, metavar='S',
        help='a pre-copy that takes longer does not converge (default: 10; over a link with a '
        'rate what it needs for all memory, twice)')
    add('--around', type=positive, default=AROUND_S, metavar='S',
        help='time line before and after a move of the first round (default: 5); 1 in others')
    add('--full', action='store_true', help='every size, memory, workload and link, for hours')
    add('--overhead', action='store_true',
        help='instead: what a guest gets done while nothing moves, never moved and after a move')
    add('--curve', action='store_true',
        help='instead: faults of the library without QEMU, against 1 to 16 threads that fault')
    add('--clone', action='store_true',
        help="instead: forks: the parent's pause, children's first instruction, their memory")
    add('--children', nargs='*', type=positive, metavar='N',
        help='of a fork (default: 1 20 50); none given: the pauses alone')
    add('--verify', action='store_true',
        help='of any number of children: until each has swept all of its memory (default: of one)')
    add('--ways', nargs='+', choices=list(forks.BY_NAME), metavar='WAY',
        help='to fork (default: all): ' + '; '.join(forks.BY_NAME))
    add('--out', metavar='FOLDER',
        help='of the results (default: bench/TIME in the build folder; installed: in this one)')
    o = p.parse_args(argv)
    o.peers = o.peers or usual_peers()
    o.qemu = o.qemu and peers.program_of(o.qemu)
    if o.qemu and not os.access(o.qemu, os.X_OK):
        p.error(f'--qemu {o.qemu}: no such program')
    # the lab forgets every other folder; the installed one is not for results
    checkout = os.path.exists(os.path.join(HERE, 'bench.mk'))
    base = LAB_OUT if IN_LAB and os.path.isdir(LAB_OUT) else \
        os.path.join(common.BUILD if checkout else '.', 'bench')
    o.out = o.out or os.path.join(base, time.strftime('%Y%m%d-%H%M%S'))
    return o


def main():
    if sys.argv[1:2] == ['compare']:
        sys.exit(compare.main(sys.argv[2:]))
    o = parse_args(sys.argv[1:])
    bench = None

    def run(t):
        nonlocal bench
        bench = Bench(o)
        bench.run(t)

    try:
        t = common.run_program(run, LIMIT_S)
    finally:
        progress.clear()
        if bench:
            bench.write()
    sys.exit(1 if t.failed or (bench and bench.failures()) else 77 if t.skipped else 0)


if __name__ == '__main__':
    main()
