#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""metrics.py - --metrics-dir: what moves, forks and agents count, and that monitoring reads it

Debian's node_exporter and its Python reader of OpenMetrics read the files. Limit: 90 s.
"""
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import common
from attaching import Move
from common import Failed, check_ledger, say, wait_for
from farfork_move import check_here, check_left_here, there
from forked import ELSEWHERE, FORK_MIB, Child, Clone, ForkParent, check_result, kill, snapshot

ROOT = os.path.abspath(os.path.join(common.BUILD, 'tests', 'e2e', 'node-exporter'))   # see e2e.mk
EXPORTER = os.path.join(ROOT, 'usr', 'bin', 'prometheus-node-exporter')
PYTHON = os.path.join(ROOT, 'usr', 'lib', 'python3', 'dist-packages')
PROM, OPENMETRICS = 'farfork.prom', 'farfork.openmetrics'
MOVED = 'side="source",via="attach",link="tcp"'


def read(*path):
    with open(os.path.join(*path), encoding='utf-8') as f:
        return f.read()


def parse(text):
    """Samples by name and labels in order, types by name."""
    samples, types = {}, {}
    for line in text.splitlines():
        if line.startswith('# TYPE '):
            _, _, name, types[name] = line.split()
        elif line and line[0] != '#':
            head, value = line.rsplit(' ', 1)
            name, _, labels = head.partition('{')
            samples[name, tuple(sorted(labels.rstrip('}').split(',')))] = float(value)
    return samples, types


def key(text):
    return next(iter(parse(text + ' 0')[0]))


class Folder:
    """What is counted, and by how much it went up."""

    def __init__(self, t, name='metrics'):
        self.path = os.path.join(t.work, name)
        os.mkdir(self.path, 0o755)
        self.option = ('--metrics-dir', self.path)
        self.was = {}

    def now(self):
        return parse(read(self.path, PROM))[0] if os.path.exists(
            os.path.join(self.path, PROM)) else {}

    def value(self, text):
        return self.now().get(key(text), 0)

    def up(self, text):
        return self.value(text) - self.was.get(key(text), 0)

    def went_up(self, by):
        """By exactly that since the last look, no matter what else; an agent writes each second."""
        try:
            wait_for('counters', 10, lambda: all(self.up(k) == n for k, n in by.items()))
        except Failed:
            raise Failed('counted: ' + ', '.join(f'{k} {self.up(k):g}, want {n}' for k, n in
                                                 by.items() if self.up(k) != n)) from None
        self.was = self.now()
        left = [n for n in os.listdir(self.path) if n not in (PROM, OPENMETRICS)]
        if left:
            raise Failed(f'left there: {left}')


def fork(t, folder, a):
    """Two children at an agent elsewhere, which counts in the same folder."""
    before = snapshot(a)
    with Clone(t, a, 2, *folder.option, *ELSEWHERE, hosts=['h1=127.0.0.1']) as f:
        check_result(f, 0, {'complete': 2})
        kids = [Child(row, a) for row in f.children]
        for kid in kids:
            kid.begins(before)
        folder.went_up({
            'farfork_fork_started_total': 1, 'farfork_fork_succeeded_total': 1,
            'farfork_fork_children_total{outcome="running"}': 2,
            'farfork_fork_pause_seconds_count': 1, 'farfork_fork_duration_seconds_count': 1,
            'farfork_fork_child_start_seconds_count': 2,
            'farfork_agent_started_total{kind="fork"}': 1,
            'farfork_agent_images_total{outcome="complete"}': 1,
            'farfork_agent_image_seconds_count': 1, 'farfork_agent_children_started_total': 2})
        said = {how: [folder.value(f'farfork_{who}_bytes_total{{how="{how}"}}')
                      for who in ('fork_processed', 'agent_received')] for how in ('sent', 'lent')}
        if said['sent'][0] + said['lent'][0] < FORK_MIB << 20 or any(
                one != other for one, other in said.values()):
            raise Failed(f'bytes that the fork and the agent counted: {said}')
        pause = f.result['phases_ms']['freeze'] / 1e3
        if abs(folder.value('farfork_fork_pause_seconds_sum') - pause) > 1e-6:
            raise Failed(f'the pause was {pause} s')
        os.kill(kids[0].pid, signal.SIGKILL)
        folder.went_up({'farfork_agent_children_ended_total{how="signal"}': 1})
        os.kill(kids[1].pid, signal.SIGTERM)
        folder.went_up({'farfork_agent_children_ended_total{how="exit"}': 1})


def move(t, folder, a):
    """One that fails, which counts as that, with a folder that is not there, too; then one."""
    with Move(t, a, *folder.option, '--qemu', '/nonexistent', name='m1') as m1:
        m1.end(1, 'here')
        check_here(m1, a)
    folder.went_up({
        'farfork_migration_started_total{side="source"}': 1,
        'farfork_migration_failed_total{side="source",via="attach",link="none",outcome="here"}': 1,
        'farfork_migration_downtime_seconds_count{side="source",via="attach",link="none"}': 0})
    with Move(t, a, *folder.option, name='m2') as m2:
        result = m2.end(0, 'there')
        check_left_here(t, a, m2)
        with there(t, 'b', result) as b:
            check_ledger(a, b)
            folder.went_up({
                'farfork_migration_started_total{side="source"}': 1,
                f'farfork_migration_succeeded_total{{{MOVED}}}': 1,
                f'farfork_migration_processed_bytes_total{{{MOVED}}}': result['bytes']['present'],
                f'farfork_migration_faults_total{{{MOVED}}}': result['faults'],
                f'farfork_migration_link_breaks_total{{{MOVED}}}': 0,
                f'farfork_migration_downtime_seconds_count{{{MOVED}}}': 1,
                f'farfork_migration_duration_seconds_count{{{MOVED}}}': 1,
                'farfork_agent_started_total{kind="move"}': 1})
            check_figures(folder, result)
            unwritable(t, b)


def check_figures(folder, result):
    phases = result['phases_ms']
    want = {f'farfork_migration_downtime_seconds_sum{{{MOVED}}}': phases['downtime'] / 1e3,
            f'farfork_migration_duration_seconds_sum{{{MOVED}}}': phases['complete'] / 1e3,
            'farfork_migration_data_total_bytes{side="source"}': result['bytes']['total'],
            'farfork_migration_data_processed_bytes{side="source"}': result['bytes']['total'],
            'farfork_migration_data_remaining_bytes{side="source"}': 0}
    for name, value in want.items():
        if abs(folder.value(name) - value) > 1e-6:
            raise Failed(f'{name} is {folder.value(name)}, want {value}')
    begin, end = (folder.value(f'farfork_migration_{which}_time_seconds{{side="source"}}')
                  for which in ('start', 'end'))
    if not 0 < phases['complete'] / 1e3 <= end - begin < 90:
        raise Failed(f'it began at {begin} and ended at {end}')


def unwritable(t, b):
    """A folder that is not there, or full: a move goes on, and says so once."""
    with Move(t, b, '--metrics-dir', t.work + '/none', host='h2=127.0.0.1', name='m3') as m3:
        m3.end(0, 'there')
        if m3.err.count('warning: metrics: ') != 1 or 'No such file' not in m3.err:
            raise Failed(f'what is said: {m3.err}')


def one_guest(t, folder):
    with ForkParent(t, t.best_accel(), memory='memfd') as a:
        a.start_load()
        fork(t, folder, a)
        kill(os.path.join(t.work, 'run'), 'f')
        move(t, folder, a)


# --- monitoring ---

def node_exporter(t, folder):
    """Every sample of the file with its value, every type; and the collector had no error."""
    common.need_files(EXPORTER)
    port = common.free_port()
    with open(os.path.join(t.work, 'exporter.log'), 'w', encoding='utf-8') as log:
        proc = subprocess.Popen(
            [EXPORTER, '--collector.disable-defaults', '--collector.textfile',
             f'--collector.textfile.directory={folder.path}',
             f'--web.listen-address=127.0.0.1:{port}'], stdout=log, stderr=log)
    t.at_end.callback(proc.kill)

    def get():
        try:
            with urllib.request.urlopen(f'http://127.0.0.1:{port}/metrics', timeout=10) as f:
                return f.read().decode()
        except ConnectionError:
            return None
        except urllib.error.URLError as e:
            if isinstance(e.reason, ConnectionError) and proc.poll() is None:
                return None
            raise Failed(f'node_exporter: {e}: {read(t.work, "exporter.log")}') from None
    try:
        got, types = parse(wait_for('node_exporter', 20, get))
    finally:
        proc.kill()
        proc.wait(10)
    want, want_types = parse(read(folder.path, PROM))
    if got.get(('node_textfile_scrape_error', ('',))) != 0:
        raise Failed(f'it does not read the file: {read(t.work, "exporter.log")[-600:]}')
    if {k: v for k, v in got.items() if k[0].startswith('farfork_')} != same_edges(want):
        raise Failed(f'it shows other samples: {set(same_edges(want).items()) ^ set(got.items())}')
    if {k: v for k, v in types.items() if k.startswith('farfork_')} != want_types:
        raise Failed(f'it shows other types: {set(types.items()) ^ set(want_types.items())}')
    say(f'      {len(want)} samples of {len(want_types)} metrics')


def same_edges(samples):
    """It writes le="1", the file le="1.0"; both are the same number."""
    return {(name, tuple(f'le="{float(x[4:-1]):g}"' if x.startswith('le="') and x[4] != '+' else x
                         for x in labels)): v for (name, labels), v in samples.items()}


def openmetrics(folder):
    common.need_files(PYTHON)
    sys.path.insert(0, PYTHON)
    # pylint: disable=import-error,import-outside-toplevel
    from prometheus_client.openmetrics import parser
    families = list(parser.text_string_to_metric_families(read(folder.path, OPENMETRICS)))
    want, types = parse(read(folder.path, PROM))
    got = sum(len(f.samples) for f in families)
    if got != len(want) or len(families) != len(types):
        raise Failed(f'{got} samples of {len(families)} metrics, want {len(want)} of {len(types)}')
    for f in families:
        name = f.name + ('_total' if f.type == 'counter' else '')
        if types.get(name) != f.type or not f.documentation or not f.name.endswith(f.unit):
            raise Failed(f'{f.name}: type {f.type}, unit "{f.unit}", "{f.documentation}"')


def run(t):
    folder = Folder(t)
    with t.case('a fork and moves'):
        one_guest(t, folder)
    with t.case('node_exporter reads it'):
        node_exporter(t, folder)
    with t.case('a reader of OpenMetrics reads it'):
        openmetrics(folder)


if __name__ == '__main__':
    common.main(run, 90)
