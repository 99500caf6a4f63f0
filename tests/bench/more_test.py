#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""more_test.py - what is measured beside moves of the micro guest, of values made by hand

The client outside, the guest while nothing moves, the curve of faulting threads, the selections.
"""
import contextlib
import copy
import io
import os
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

import benchtest
import clone_groups
import compare
import fault_scaling
import forks
import html_report
import measure
import client_view
import demo
import overhead
import peers
import testbed
import plots
import procstat
import schema
import selection
import table
from common import Failed


def ways():
    runs = {'never moved': [100.0, 200.0, None], 'rdma-tcp': [50.0, 180.0, 7.0]}
    return {'workload': 'random', 'mem_mib': 256, 'smp': 1, 'memory': 'thp', 'net': 'loopback',
            'accel': 'kvm', 'ways': [
                {'way': w, 'runs': [{'work_per_s': x, 'huge_mib': 256.0 if x else None,
                                     'why': '' if x else 'it died'} for x in values]}
                for w, values in runs.items()]}


def curves():
    def point(threads, *p50):
        return {'threads': threads, 'runs': [
            {**dict.fromkeys(fault_scaling.FIGURES, 9.0), 'p50_us': x, 'why': ''} for x in p50]}
    return {'net': 'loopback', 'mib': 32, 'links': [
        {'link': 'loop', 'about': 'loop', 'points': [point(1, 20.0, 40.0), point(2, 30.0, 30.0)]},
        {'link': 'tcp', 'about': 'tcp', 'points': [point(1, 90.0, 60.0), point(2, 99.0, 99.0)]}],
            'floors': [{'uffd_same_cpu_p50_us': 10.0, 'tcp_round_trip_p50_us': 20.0},
                       {'uffd_same_cpu_p50_us': 10.0, 'tcp_round_trip_p50_us': 50.0}]}


def forked(children=1):
    def run(last_ms, export_ms=None):
        return {**dict.fromkeys(forks.FIGURES), 'first_ms': last_ms, 'last_ms': last_ms,
                'export_ms': export_ms, 'why': '' if last_ms else 'nobody came'}
    return {**clone_groups.children_group(children, 512, 'kvm', 'busy', [], True), 'ways': [
        {'way': 'templating', 'runs': [run(40.0), run(20.0)]},
        {'way': 'vmclone', 'runs': [run(80.0, 10.0), run(None)]},
        {'way': 'vmclone --prestart', 'runs': [run(90.0, 80.0), run(30.0, 25.0)]}]}


class Forks(unittest.TestCase):
    def test_ratios_are_pair_by_pair_and_ahead_counts_from_the_export(self):
        cold, ahead = clone_groups.ratio_rows(forked())
        self.assertEqual((cold[1][:3], cold[2]), ((2.0, 2.0, 2.0), 0.8))
        self.assertEqual((ahead[1][:3], ahead[2]), ((0.25, 0.25, 0.25), 0.3))
        cold, ahead = clone_groups.ratio_rows(forked(20))
        self.assertEqual((cold[1].median, ahead[1][:3]), (2.0, (1.875, 1.5, 2.25)))

    def test_what_failed_is_said(self):
        doc = {**benchtest.results(), 'clone': [forked()]}
        schema.check(doc)
        self.assertEqual(clone_groups.failures(doc), 1)
        text = '\n'.join(table.lines(doc))
        self.assertIn('vmclone: 1 of 2 runs failed: nobody came', text)
        self.assertIn('first instruction, cold: vmclone by templating: 2.00', text)
        doc['clone'][0]['kind'] = 'other'
        with self.assertRaisesRegex(schema.Bad, "kind 'other'"):
            schema.check(doc)

    def test_too_many_copies_are_left_out(self):
        self.assertIn('mapped-ram', clone_groups.usual_ways(20, 512))
        self.assertNotIn('mapped-ram', clone_groups.usual_ways(50, 512))


class Answers(unittest.TestCase):
    # a move from 1000 ms to 1200 ms; one answer waits from 990 ms to 1150 ms
    ANSWERS = [(at, 100) for at in range(0, 990000, 10000)] + [(990000, 160000)] \
        + [(at, 200) for at in range(1150000, 2000000, 10000)]

    def seen(self, **other):
        return {'start': 0, 'wrong': 0, 'answers': [x for pair in self.ANSWERS for x in pair],
                **other}

    def test_in_the_move_and_usually(self):
        out, line, problems = client_view.answers_around(self.seen(), 1000000, 200000)
        self.assertEqual(problems, [])
        self.assertEqual((out['answer_usual_p50_us'], out['answer_usual_p99_us']), (100, 100))
        self.assertEqual((out['answer_p50_us'], out['answer_max_us']), (200, 160000))
        self.assertEqual(out['answers_per_s'], 100)
        # no answer in the first of two slots, six in the second, instead of ten
        self.assertAlmostEqual(out['work_lost_ms'], 100 + 40)
        at = {row[0]: row for row in line}
        self.assertEqual(at[0], [0, 0, 0, 0])
        self.assertEqual(at[100][1:], [6, 160000, 200])

    def test_a_wrong_answer_is_a_problem(self):
        self.assertEqual(client_view.answers_around(self.seen(wrong=2), 1000000, 200000)[2],
                         ['2 answers were wrong'])
        with self.assertRaises(Failed):
            client_view.Redis.work(self.seen(wrong=1))

    def test_nobody_answered(self):
        out, line, _ = client_view.answers_around({'start': 0, 'wrong': 0, 'answers': []}, 0, 1000)
        self.assertEqual((line, out['work_lost_ms']), ([], None))


class Attached(unittest.TestCase):
    def test_a_side_is_a_qemu_and_what_is_attached_to_it(self):
        both = procstat.together([procstat.Use(1.5, {'CPU 0/KVM': 1.0, 'a': 0.5}, 100, 110),
                                  procstat.Use(0.75, {'a': 0.25, 'b': 0.5}, 0, 7)])
        self.assertEqual((both.cpu_s, both.vcpu_s(), both.threads['a']), (2.25, 1.0, 0.75))
        self.assertEqual((both.rss_mib, both.peak_mib), (100, 117))

    def test_what_a_process_used_that_has_ended(self):
        watch = procstat.Watch([])
        with subprocess.Popen([sys.executable, '-c', 'sum(range(3000000))']) as p:
            watch.add_new([p.pid])
            os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)
            used = watch.end()[p.pid]
        self.assertGreater(used.cpu_s, 0.01)

    def test_peers(self):
        attach = peers.Peer('attach,qemu=stock-qemu,prefill=push')
        self.assertEqual(attach.options, ',insecure=on,link=tcp,prefill=push')
        self.assertTrue(attach.qemu.endswith('qemu-system-x86_64'))
        self.assertFalse(attach.patched() or attach.starts_postcopy())
        self.assertEqual(peers.Peer('attach,link=verbs').options, ',insecure=on,link=verbs')
        self.assertTrue(table.is_ours({'peer': attach.text}))
        self.assertTrue(peers.Peer('rdma-tcp').patched())
        self.assertTrue(peers.Peer('preempt').starts_postcopy())
        with self.assertRaises(ValueError):
            peers.Peer('preempt,prefill=push')


class NothingMoves(unittest.TestCase):
    def test_rows(self):
        (never, a), (moved, b) = overhead.rows(ways())
        self.assertEqual((never, moved), ('never moved', 'after rdma-tcp'))
        self.assertEqual(a[0], '150 (100..200)')
        # pair by pair, and the third round has no pair
        self.assertEqual(b[1], '0.700 (0.500..0.900)')
        self.assertEqual(b[2], '256 (256..256)')
        self.assertEqual(overhead.notes(ways()), ['never moved: 1 of 3 runs failed: it died'])


class Curve(unittest.TestCase):
    def test_by_floor_pair_by_pair(self):
        loop, tcp = curves()['links']
        self.assertEqual(fault_scaling.by_floor(curves(), loop, fault_scaling.UFFD[0])[0][:3], (3.0, 2.0, 4.0))
        # 90/30 and 60/60
        ratio, floor = fault_scaling.by_floor(curves(), tcp, fault_scaling.UFFD[0])
        self.assertEqual((ratio[:3], floor), ((2.0, 1.0, 3.0), 45.0))
        self.assertIsNone(fault_scaling.by_floor(curves(), tcp, fault_scaling.UFFD[1])[0])
        self.assertEqual(len(fault_scaling.notes(curves(), tcp)), 1)

    def test_failures_count(self):
        g = curves()
        self.assertEqual(fault_scaling.failures({'curve': [g]}), 0)
        g['links'][0]['points'][1]['runs'][0] = {**dict.fromkeys(fault_scaling.FIGURES), 'why': 'no link'}
        self.assertEqual(fault_scaling.failures({'curve': [g]}), 1)
        self.assertIn('2 threads: 1 runs failed: no link', fault_scaling.notes(g, g['links'][0])[-1])


class Results(unittest.TestCase):
    def whole(self):
        return {**benchtest.results(), 'overhead': [ways()], 'curve': [curves()]}

    def broken(self, text, change):
        doc = copy.deepcopy(self.whole())
        change(doc)
        with self.assertRaisesRegex(schema.Bad, text):
            schema.check(doc)

    def test_schema(self):
        schema.check(self.whole())
        self.broken('no ways', lambda d: d['overhead'][0].pop('ways'))
        self.broken('work_per_s', lambda d: d['overhead'][0]['ways'][0]['runs'][0].update(
            work_per_s='1'))
        self.broken('no mib', lambda d: d['curve'][0].pop('mib'))
        self.broken('tcp: 1: no p50_us',
                    lambda d: d['curve'][0]['links'][1]['points'][0]['runs'][0].pop('p50_us'))

    def test_compared(self):
        old, new = self.whole(), copy.deepcopy(self.whole())
        for run in new['curve'][0]['links'][1]['points'][1]['runs']:
            run['p50_us'] /= 3
        for run in new['overhead'][0]['ways'][0]['runs']:
            run['work_per_s'] = 10.0 if run['work_per_s'] else None
        lines, worse = compare.compare(old, new)
        text = '\n'.join(lines)
        self.assertEqual(worse, 0)      # 100..200 is wider than it is away from 10
        self.assertRegex(text, r'better threads that fault: .*, tcp, 2: \[p50_us\]: 99 -> 33')
        self.assertNotIn('nothing in common', text)
        old['overhead'][0]['ways'][0]['runs'][1]['work_per_s'] = 101.0
        lines, worse = compare.compare(old, new)
        self.assertEqual(worse, 1)
        self.assertRegex('\n'.join(lines), r'worse +nothing moves: .*never moved: \[work_per_s\]')

    def test_shown(self):
        text = '\n'.join(table.lines(self.whole()))
        self.assertIn('nothing moves: random, 256 MiB thp', text)
        self.assertIn('threads that fault: link tcp', text)
        self.assertIn('p50 of one thread is 2.00 (1.00..3.00) x its floor: 45.0 us', text)
        names = [name for _, name, _ in plots.plan(self.whole())]
        self.assertEqual(names, ['curve-00-rate', 'curve-00-latency'])
        with tempfile.TemporaryDirectory() as d:
            page = os.path.join(d, 'report.html')
            html_report.write(page, self.whole(), d, [])
            with open(page, encoding='utf-8') as f:
                page = f.read()
        self.assertIn('after rdma-tcp', page)
        self.assertIn('link loop', page)


class Limit(unittest.TestCase):
    def test_twice_what_the_link_needs(self):
        def limit(net, mib):
            return testbed.limit_s(types.SimpleNamespace(link=net and testbed.Link(net)), mib)
        self.assertEqual(limit('1gbit', 256), 5)
        self.assertEqual(limit('1gbit,0.2ms', 8192), 138)
        self.assertEqual(limit('25gbit', 256), 3)
        self.assertEqual(limit(None, 8192), limit('0.2ms', 256))


class OfLink(unittest.TestCase):
    def test_by_line_and_by_stream(self):
        # 1 s of 1 Gbit/s is 125 MB
        got = measure.metrics_of_link(
            {'postcopy_ms': 1000, 'prefill_bytes': 100e6, 'duplicated_bytes': 0,
             'fault_bytes': 12.5e6, 'pager_p99_us': 500},
            1e9, {'tcp_mib_s': 100e6 / (1 << 20), 'tcp_round_trip_p50_us': 200})
        self.assertEqual(got, {'prefill_by_line': 0.8, 'traffic_by_line': 0.9,
                               'prefill_by_stream': 1.0, 'traffic_by_stream': 1.125,
                               'pager_p99_by_round_trip': 2.5})


class Selection(unittest.TestCase):
    def moves(self, full=False, in_lab=False, **chosen):
        o = types.SimpleNamespace(**dict.fromkeys(selection.KEYS), full=full)
        vars(o).update(chosen)
        return selection.moves(o, in_lab)

    def test_default_has_what_does_not_converge(self):
        got = self.moves()
        self.assertEqual([(g['workload'], g['mem'], g['net']) for g in got],
                         [('random', 256, 'loopback'), ('random', 1024, 'loopback'),
                          ('write', 256, '1gbit')])
        self.assertEqual([g['mem'] for g in self.moves(in_lab=True)], [32])

    def test_what_is_asked_for_alone(self):
        self.assertEqual(len(self.moves(workload=['random', 'seq'], mem=[64])), 2)
        self.assertEqual({g['net'] for g in self.moves(full=True, net=['1gbit'])}, {'1gbit'})

    def test_full_has_all_of_the_plan(self):
        got = self.moves(full=True)
        for key, values in (('mem', {256, 1024, 4096, 8192}), ('smp', {1, 4}),
                            ('memory', {'anon', 'memfd', 'thp', 'hugetlb'}),
                            ('workload', set(selection.FULL['workload']))):
            self.assertEqual({g[key] for g in got}, values)
        self.assertIn('25gbit,0.05ms,0.1%', {g['net'] for g in got})
        self.assertEqual(len(got), len({tuple(g.items()) for g in got}))


class Said:
    """A guest whose query-migrate says one status after the other; the last one for ever."""
    name, tail = 'a', ''

    def __init__(self, *statuses, ours=True):
        self.statuses, self.ours, self.asked = list(statuses), ours, 0

    def qmp(self, _command):
        status = self.statuses[min(self.asked, len(self.statuses) - 1)]
        self.asked += 1
        return {'status': status, **({'x-rdma-postcopy': {}} if self.ours else {})}


class Pauses(unittest.TestCase):
    def ends(self, guest, limit_s):
        return measure.wait_end(guest, time.monotonic() + limit_s)['status']

    def test_a_link_that_breaks_is_waited_for(self):
        guest = Said('active', *['postcopy-paused'] * 30, 'postcopy-recover', 'postcopy-active', 'completed')
        self.assertEqual(self.ends(guest, 0.1), 'completed')    # the pause alone takes longer

    def test_another_transport_stays_paused(self):
        guest = Said('postcopy-paused', 'completed', ours=False)
        self.assertEqual((self.ends(guest, 10), guest.asked), ('postcopy-paused', 1))

    def test_it_does_not_end(self):
        self.assertEqual(self.ends(Said('postcopy-active'), 0.1), 'postcopy-active')

    def test_the_link_never_comes_back(self):
        with unittest.mock.patch.object(measure, 'PAUSE_S', 0.2):
            self.assertEqual(self.ends(Said('postcopy-paused'), 0.1), 'postcopy-paused')


class Acts(unittest.TestCase):
    def shown(self, show):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            good = demo.act('1. It', show)
        return good, out.getvalue()

    def test_what_goes_wrong_is_a_sentence(self):
        for trouble in (Failed('the guest is gone'), subprocess.TimeoutExpired('qemu', 15), OSError(28, 'No space left')):
            def fail(trouble=trouble):
                raise trouble
            good, out = self.shown(fail)
            self.assertFalse(good)
            self.assertIn(' '.join(str(trouble).split()), ' '.join(out.split()))
            self.assertTrue(out.startswith('1. It: not shown\n'))

    def test_what_goes_well(self):
        self.assertEqual(self.shown(lambda: True), (True, ''))


if __name__ == '__main__':
    unittest.main()
