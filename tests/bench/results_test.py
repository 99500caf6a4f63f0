#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""results_test.py - schema, `bench compare`, tables, plots and the page, of results by hand"""
import contextlib
import copy
import io
import json
import os
import re
import tempfile
import unittest
import xml.etree.ElementTree

import benchtest
import compare
import html_report
import plots
import schema
import table
from benchtest import group, peer, results, run, totals

DOC = os.path.join(benchtest.TOP, 'docs', 'benchmarking.md')


def whole():
    slow = peer('pre-copy', run(0), run(1, 'did not converge', transferred_bytes=5 << 20,
                                        work_lost_ms=70, stall_total_ms=9000))
    return results(group(slow, totals('rdma-tcp', [50.0, 51.0])))


class Schema(unittest.TestCase):
    def test_whole(self):
        schema.check(whole())

    def broken(self, text, change):
        doc = whole()
        change(doc)
        with self.assertRaisesRegex(schema.Bad, text):
            schema.check(doc)

    def test_what_is_wrong_is_named(self):
        first = lambda d: d['groups'][0]['peers'][0]['runs'][0]     # noqa: E731
        self.broken('schema', lambda d: d.update(schema='other'))
        self.broken('version 2', lambda d: d.update(version=2))
        self.broken('no skipped', lambda d: d.pop('skipped'))
        self.broken('mem_mib is str', lambda d: d['groups'][0].update(mem_mib='256'))
        self.broken('smp is bool', lambda d: d['groups'][0].update(smp=True))
        self.broken('outcome', lambda d: first(d).update(outcome='fine'))
        self.broken('unknown', lambda d: first(d)['metrics'].update(no_such_metric=1))
        self.broken('no number', lambda d: first(d)['metrics'].update(total_ms='1'))
        self.broken('without total_ms', lambda d: first(d)['metrics'].pop('total_ms'))
        self.broken('a row of hist', lambda d: first(d)['hist'].append([1, 2, 3]))
        self.broken('a row of hist', lambda d: first(d)['timeline'].append([1, 2]))
        self.broken('twice', lambda d: d['groups'].append(d['groups'][0]))
        self.broken('a peer twice', lambda d: d['groups'][0]['peers'].append(
            d['groups'][0]['peers'][0]))

    def test_saved_and_loaded(self):
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, 'results.json')
            schema.save(path, whole())
            self.assertEqual(schema.load(path), json.loads(json.dumps(whole())))
            with open(path, 'w', encoding='utf-8') as f:
                f.write('{"schema": "farfork-be')      # as after a full disk
            with self.assertRaises(schema.Bad):
                schema.load(path)
            with self.assertRaises(schema.Bad):
                schema.load(os.path.join(d, 'none.json'))

    def test_documented(self):
        """Every figure and floor has its row in docs/benchmarking.md, and no other has one."""
        with open(DOC, encoding='utf-8') as f:
            text = f.read().split('\n## What is measured')[1].split('\n## ')[0]
        rows = re.findall(r'^\| `([a-z0-9_]+)` \|', text, re.M)
        self.assertEqual(sorted(rows), sorted([*schema.BY_NAME, *(f[0] for f in schema.FLOORS)]))


class Compare(unittest.TestCase):
    def lines(self, old, new):
        lines, worse = compare.compare(old, new)
        return '\n'.join(lines), worse

    def test_worse_better_and_same(self):
        old = results(group(totals('post-copy', [10, 11, 12, 13, 14]),
                            totals('preempt', [10, 11, 12, 13, 14]),
                            totals('rdma-tcp', [10, 11, 12, 13, 14])))
        new = results(group(totals('post-copy', [30, 31, 32, 33, 34]),
                            totals('preempt', [9, 11.5, 12.5, 13.5, 14.5]),
                            totals('rdma-tcp', [5, 5, 5, 6, 6])))
        text, worse = self.lines(old, new)
        self.assertEqual(worse, 1)
        self.assertRegex(text, r'worse .*: post-copy: .*total_ms.* 12 -> 32 x2\.67 \(rank test, p=')
        self.assertRegex(text, r'better .*: rdma-tcp: ')
        self.assertNotIn('preempt', text)
        self.assertIn('1 better, 1 worse', text)

    def test_with_itself(self):
        text, worse = self.lines(whole(), whole())
        self.assertEqual(worse, 0)
        self.assertNotRegex(text, '(?m)^(worse|better|NOTE|FLOOR)')

    def test_not_converging_any_more_is_worse(self):
        new = whole()
        runs = new['groups'][0]['peers'][1]['runs']
        runs[0] = run(0, 'did not converge')
        text, worse = self.lines(whole(), new)
        self.assertEqual(worse, 1)
        self.assertIn('rdma-tcp: did not converge: 0 of 2 runs -> 1 of 2', text)

    def test_other_machine_and_other_floor_are_said(self):
        old, new = whole(), whole()
        new['host']['cpu'] = 'another'
        for doc, values in ((old, (1, 2, 3, 4)), (new, (11, 12, 13, 14))):
            doc['groups'][0]['floors'] = [{'tcp_mib_s': v} for v in values]
        text, worse = self.lines(old, new)
        self.assertIn('other machine: cpu a CPU -> another', text)
        self.assertRegex(text, 'FLOOR .*tcp_mib_s.*the machine itself was different')
        self.assertEqual(worse, 0)

    def test_nothing_in_common(self):
        text, worse = self.lines(whole(), results(group(mem_mib=1024)))
        self.assertIn('nothing in common', text)
        self.assertEqual(worse, 0)

    def test_exit_codes(self):
        with tempfile.TemporaryDirectory() as d:
            paths = [os.path.join(d, n) for n in ('old.json', 'new.json')]
            for path, low in zip(paths, (10, 90)):
                schema.save(path, results(group(totals('rdma-tcp', range(low, low + 5)))))
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                self.assertEqual(compare.main(paths), 0)
                self.assertEqual(compare.main([*paths, '--fail-on-regression']), 1)
                self.assertEqual(compare.main([*paths[::-1], '--fail-on-regression']), 0)
                self.assertEqual(compare.main([paths[0], os.path.join(d, 'none')]), 2)


class Shown(unittest.TestCase):
    def test_table(self):
        text = '\n'.join(table.lines(whole()))
        self.assertIn('random, 256 MiB anon, 1 vCPU, kvm, loopback: 2 runs', text)
        self.assertIn('50.5 (50..51)', text)
        self.assertIn('NOTE: pre-copy: did not converge: 1 of 2 runs', text)
        self.assertIn('rdma-tcp by the other, pair by pair', text)
        self.assertRegex(text, r'total time +0\.5\n')      # 50 by 100, the only pair
        self.assertNotIn('9000', text)              # of no whole move
        self.assertIn('5 MiB were transferred, 70 ms of work lost', text)
        self.assertIn('mig/src/main 0.250', text)
        self.assertNotIn('CPU 0/KVM', text)

    def test_bytes_are_shown_as_mib(self):
        self.assertEqual(schema.shown('fault_bytes', 3 << 20), '3')
        self.assertEqual(schema.shown('total_ms', None), '-')

    def test_plots_are_made_of_what_is_there(self):
        names = [name for _, name, _ in plots.plan(whole())]
        self.assertEqual(names, ['answer', '00-bars', '00-stalls', '00-timeline', '00-waits'])
        two = results(group(totals('rdma-tcp', [1.0])),
                      group(totals('rdma-tcp', [4.0]), mem_mib=1024))
        self.assertIn('memory-00-total_ms', [name for _, name, _ in plots.plan(two)])
        empty = results(group(peer('rdma-tcp', run(0, 'failed'))))
        empty['groups'][0]['peers'][0]['runs'][0].update(hist=[], timeline=[])
        self.assertEqual(plots.plan(empty), [])

    def test_a_title_cannot_leave_its_quotes(self):
        self.assertEqual(plots.quote('a"; system "x" `y`\n'), '"a; system x y"')

    def test_page_needs_no_other_file(self):
        doc = copy.deepcopy(whole())
        doc['host']['cpu'] = '<i>&"'
        with tempfile.TemporaryDirectory() as d:
            with open(os.path.join(d, '00-bars.png'), 'wb') as f:
                f.write(b'\x89PNG')
            page = os.path.join(d, 'report.html')
            html_report.write(page, doc, d, [('a <title>', '00-bars')])
            with open(page, encoding='utf-8') as f:
                text = f.read()
        self.assertIn('src="data:image/png;base64,iVBORw=="', text)
        self.assertNotRegex(text, r'(?i)(src|href)="(?!data:)')
        self.assertIn('&lt;i&gt;&amp;&quot;', text)
        self.assertNotIn('<i>', text)

    def test_gnuplot_draws_them(self):
        with tempfile.TemporaryDirectory() as d:
            try:
                drawn = plots.draw(whole(), d)
            except plots.NoGnuplot as e:
                print(f'SKIP: drawing: {e}')
                return
            for _, name in drawn:
                with open(os.path.join(d, name + '.png'), 'rb') as f:
                    self.assertEqual(f.read(4), b'\x89PNG')
                xml.etree.ElementTree.parse(os.path.join(d, name + '.svg'))


if __name__ == '__main__':
    unittest.main()
