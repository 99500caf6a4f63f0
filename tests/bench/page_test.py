#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""page_test.py - the page of the results: the answer first, our columns in view, long tables folded

Where a chromium is installed the page is laid out at a desktop's and a phone's width. With a folder
as its argument the test leaves page and screenshots there, to be looked at.
"""
import contextlib
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import benchtest
import headline
import html_report
import plots
import schema
from benchtest import group, results, run

DESKTOP, PHONE = (1280, 900), (390, 844)
BROWSER_S = 60
KEEP = None
# (total, downtime, stalled) of each usual way to move
PEERS = {'pre-copy': (900, 160, 160), 'multifd': (800, 150, 150), 'post-copy': (420, 12, 330),
         'preempt': (400, 12, 280), 'attach': (300, 14, 200), 'rdma-tcp': (200, 11, 90),
         'rdma-tcp,key': (420, 12, 150)}


def moved(number, total, down, stalled):
    off = number * 3
    many = {m.name: 1234.5 + off for m in schema.METRICS if m.main}
    return {**run(number, **{**many, 'total_ms': total + off, 'downtime_events_ms': down + off / 10,
                             'stall_total_ms': stalled + off}),
            'timeline': [[t, 0 if 0 <= t < total else 90000, 100, 0]
                         for t in range(-5000, 5000, 100)]}


def guest(**other):
    peers = [{'peer': p, 'runs': [moved(i, *figures) for i in range(3)]}
             for p, figures in PEERS.items()]
    return group(*peers, **other)


def usual():
    """As `make bench` has it: three guests, one of which does not converge by pre-copy; and one that
    was moved with many options."""
    slow, long = guest(workload='write', net='1gbit'), guest(workload='read')
    slow['peers'][0]['runs'] = [run(0, 'did not converge')]
    for p, more in (('rdma-tcp', ',prefill=push,chunk=1M,window=8,key-file=/root/a-longer-name.key'),
                    ('preempt', ',qemu=/usr/local/lib/another/bin/qemu-system-x86_64')):
        next(x for x in long['peers'] if x['peer'] == p)['peer'] += more
    return results(guest(), guest(mem_mib=1024), slow, long)


def written(doc, folder, draw=True):
    drawn = []
    try:
        drawn = plots.draw(doc, folder) if draw else []
    except plots.NoGnuplot as e:
        print(f'SKIP: plots on the page: {e}')
    path = os.path.join(folder, 'report.html')
    html_report.write(path, doc, folder, drawn)
    return path


class Page(html.parser.HTMLParser):
    """In order: (tag, class, inside how many details); of each table its head and rows."""
    VOID = ('meta', 'img', 'source', 'br')

    def __init__(self, text):
        super().__init__()
        self.stack, self.seen, self.tables, self.open_details = [], [], [], 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.seen.append((tag, attrs.get('id') or attrs.get('class')))
        self.open_details += tag == 'details' and 'open' in attrs
        if tag == 'table':
            self.tables.append({'head': [], 'rows': 0, 'folded': 'details' in self.stack})
        elif tag == 'tr':
            self.tables[-1]['rows'] += 1
        elif tag == 'th':
            self.tables[-1]['head'].append(attrs.get('class'))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, tag


class Structure(unittest.TestCase):
    def page(self, doc, draw=False):
        with tempfile.TemporaryDirectory() as d, open(written(doc, d, draw), encoding='utf-8') as f:
            text = f.read()
        return Page(text), text

    def test_the_answer_is_first(self):
        page, text = self.page(usual(), draw=True)
        body = page.seen[page.seen.index(('body', None)) + 1:]
        self.assertEqual([b for b in body if b[0] in ('h1', 'h2', 'section', 'table')][:2],
                         [('h1', None), ('section', 'answer')])
        answer = text[text.index('<section id="answer">'):text.index('</section>')]
        # 1 GiB, the most; 200/400, 203/403, 206/406
        self.assertIn('1024 MiB', answer)
        self.assertEqual(re.findall(r'<b>([\d.]+)</b>([a-z, ]+)<', answer),
                         [('0.50', 'total time'), ('0.33', 'guest stalled, in all'),
                          ('0.92', 'downtime')])
        self.assertIn('3 pairs, 0.50 to 0.51', answer)
        self.assertIn('<p>rdma-tcp,key: total time 1.05;', answer)      # what is worse, too
        self.assertEqual(answer.count('<picture>'), bool(shutil.which('gnuplot')))

    def test_long_tables_are_folded_and_ours_is_first(self):
        page, _ = self.page(usual())
        self.assertEqual(page.open_details, 0)
        self.assertGreater(max(t['rows'] for t in page.tables), 40)
        for t in page.tables:
            self.assertTrue(t['folded'] or t['rows'] <= html_report.LONG, t)
            kinds = t['head'][1:]
            self.assertEqual(kinds, sorted(kinds, key=lambda k: k != 'ours'), t)
        self.assertEqual(sum('ours' in t['head'] and not t['folded'] for t in page.tables), 4)

    def test_many_guests(self):
        page, text = self.page(results(*(guest(mem_mib=64 * (i + 1)) for i in range(20))))
        self.assertIn('<summary>20 guests</summary>', text)
        self.assertTrue(page.tables[1]['folded'])

    def test_no_answer(self):
        alone = results(group(benchtest.totals('rdma-tcp', [1.0])))
        self.assertIsNone(headline.choose(alone))
        self.assertIn('no ratios', self.page(alone)[1])
        failed = usual()
        for g in failed['groups']:
            for p in g['peers']:
                p['runs'] = [run(0, 'failed')]
        self.assertIsNone(headline.choose(failed))
        self.assertIn('no ratios', self.page(failed)[1])
        # QEMU's best own way failed: the next one stands in
        failed = usual()
        for p in failed['groups'][1]['peers']:
            if p['peer'] == 'preempt':
                p['runs'] = [run(0, 'failed')]
        self.assertEqual(headline.choose(failed).theirs['peer'], 'post-copy')

    def test_worse_is_said(self):
        doc = usual()
        for p in doc['groups'][1]['peers']:
            if p['peer'] == 'preempt':
                p['runs'] = [moved(i, 100, 11 + (i - 1) / 100, 280) for i in range(3)]
        # the third is on either side of 1
        self.assertEqual(re.findall(r'ratio (more|less|even)"><b>([\d.]+)', self.page(doc)[1]),
                         [('more', '1.97'), ('less', '0.33'), ('even', '1.00')])

    def test_forks_are_there(self):
        runs = [{**dict.fromkeys(('last_ms', 'first_ms'), 5.0), 'why': ''}]
        names = ('last_ms', 'first_ms', 'export_ms', 'save_ms', 'freeze_ms', 'ship_ms', 'start_ms',
                 'complete_ms', 'verified_ms', 'rss_mib', 'pss_mib', 'net_mib', 'pages_by_fault',
                 'child_faults')
        runs = [{**dict.fromkeys(names), **runs[0]}]
        doc = {**results(), 'clone': [
            {'kind': 'children', 'memory': '', 'mem_mib': 64, 'accel': 'kvm', 'load': 'busy',
             'children': 2, 'floors': [],
             'ways': [{'way': w, 'runs': runs} for w in ('templating', 'vmclone')]}]}
        page, text = self.page(schema.check(doc))
        self.assertIn('fork: 2 busy children', text)
        self.assertEqual(page.tables[-1]['head'], [None, 'ours', None])


MEASURE = '''<script>
addEventListener("load", () => {
  const fits = () => {
    const tables = [...document.querySelectorAll("table")].filter(t => t.checkVisibility());
    return {page: document.documentElement.scrollWidth, tables: tables.length,
            shown: tables.map(t => [...t.querySelectorAll("th.ours")]
                .map(h => Math.round(h.getBoundingClientRect().right))).filter(r => r.length),
            answer: document.querySelector("#answer").getBoundingClientRect().bottom};
  };
  const said = {window: innerWidth, folded: fits()};
  document.querySelectorAll("details").forEach(d => { d.open = true; });
  said.open = fits();
  const out = document.createElement("pre");
  out.textContent = JSON.stringify(said);
  parent.document.body.append(out);
});
</script>'''


def browser():
    return next(filter(None, map(shutil.which, ('chromium', 'chromium-browser',
                                                'google-chrome'))), None)


def run_browser(folder, *args):
    argv = [browser(), '--headless', '--no-sandbox', '--disable-gpu', '--no-first-run',
            '--disable-background-networking', '--allow-file-access-from-files',
            f'--user-data-dir={folder}/profile', *args]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.DEVNULL, timeout=BROWSER_S, check=True).stdout


class Widths(unittest.TestCase):
    """In a frame as wide as the screen: a browser's own window has a least width."""

    def layouts(self, path, folder, *sizes):
        """What the page says of itself at each size."""
        page, frame = (os.path.join(folder, n) for n in ('measured.html', 'frame.html'))
        with open(path, encoding='utf-8') as f, open(page, 'w', encoding='utf-8') as out:
            out.write(f.read().replace('</body>', MEASURE + '</body>'))
        with open(frame, 'w', encoding='utf-8') as f:
            f.write('<!DOCTYPE html><body>' + ''.join(
                f'<iframe src="measured.html" style="border:0" width="{w}" height="{h}"></iframe>'
                for w, h in sizes))
        text = run_browser(folder, '--window-size=1400,1800', '--virtual-time-budget=10000',
                           '--dump-dom', f'file://{frame}')
        said = [json.loads(x) for x in re.findall(r'<pre>(.*?)</pre>', text)]
        return [next(x for x in said if x['window'] == w) for w, _ in sizes]

    def test_ours_is_in_view(self):
        if not browser():
            print('SKIP: widths: install package chromium')
            return
        with contextlib.ExitStack() as stack:
            folder = KEEP or stack.enter_context(tempfile.TemporaryDirectory())
            path = written(usual(), folder)
            for said, size, columns in zip(self.layouts(path, folder, DESKTOP, PHONE),
                                           (DESKTOP, PHONE), (3, 1)):
                self.assertGreater(said['open']['tables'], said['folded']['tables'])
                for state in (said['folded'], said['open']):
                    self.assertLessEqual(state['page'], size[0], said)    # no scrolling of the page
                    self.assertGreaterEqual(len(state['shown']), 3)
                    for right in state['shown']:
                        self.assertLess(max(right[:columns]), size[0], said)
                if size == DESKTOP:
                    self.assertLessEqual(said['folded']['answer'], size[1], said)
            if KEEP:
                self.pictures(path, folder)

    @staticmethod
    def pictures(path, folder):
        """To be looked at: a phone's as a frame, since a window has a least width."""
        frame = os.path.join(folder, 'phone.html')
        with open(frame, 'w', encoding='utf-8') as f:
            f.write(f'<!DOCTYPE html><body style="margin:0"><iframe src="{os.path.basename(path)}" '
                    f'style="border:0" width="{PHONE[0]}" height="2400"></iframe>')
        for width, page in ((DESKTOP[0], path), (PHONE[0], frame)):
            run_browser(folder, f'--window-size={max(width, 500)},2400', '--hide-scrollbars',
                        f'--screenshot={folder}/page-{width}.png', f'file://{page}')


if __name__ == '__main__':
    if len(sys.argv) > 1 and os.path.isdir(sys.argv[-1]):
        KEEP = os.path.abspath(sys.argv.pop())
    unittest.main()
