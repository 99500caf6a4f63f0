#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""smoke.py - farfork bench measures four moves and writes whole results; no figure is judged

Two of them are by rdma-postcopy, one of these with a key, one by attaching, and one by a pre-copy
that cannot converge. With FARFORK_FULL=1 also a guest that does not move and one that has moved, and the
curve of threads that fault.

Environment  FARFORK_BUILD (default: build), FARFORK_FULL
Exit code    0 passed, 1 failed, 77 it cannot run here (the reason is the last line)
"""
import os
import subprocess
import sys
import tempfile

import benchtest
import schema

BUILD = os.path.abspath(os.environ.get('FARFORK_BUILD', os.path.join(benchtest.TOP, 'build')))
LIMIT_S = 150
OURS = ('attach', 'rdma-tcp', 'rdma-tcp,key')
problems = []


def want(good, text):
    if not good:
        problems.append(text)


def check(doc):
    want(doc['complete'], 'the results are not complete')
    want([len(g['floors']) for g in doc['groups']] == [1], 'not one group, one round')
    slow, *ours = (p['runs'][0] for p in doc['groups'][0]['peers'])
    want(slow['outcome'] == 'did not converge', f'pre-copy over 80 Mbit/s: {slow["outcome"]}')
    for name, run in zip(OURS, ours, strict=True):
        check_ours(name, run)
    for run in (slow, *ours):
        want(run['ledger'] == 'ok', f'ledger: {run["ledger"]}')
        want(run['timeline'] and any(r[1] for r in run['timeline'] if r[0] < 0),
             'nothing on the time line before the move')
        want(run['threads']['source'], 'no threads of the source')


def check_ours(peer, run):
    want(run['outcome'] == 'completed', f'{peer}: {run["outcome"]}: {run["why"]}')
    m = run['metrics']
    for name in ('total_ms', 'downtime_events_ms', 'downtime_guest_ms', 'touches_per_s',
                 'prefill_bytes', 'cpu_destination_s', 'peak_destination_mib'):
        want(m.get(name) is not None, f'{peer}: no {name}')
    want(any(r[1] for r in run['timeline'] if r[0] > m.get('total_ms', 0)),
         f'{peer}: nothing on the time line after the move')


def bench(out, *args):
    argv = [os.path.join(BUILD, 'bin', 'farfork'), 'bench', '--out', out, *args]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False,
                          env={**os.environ, 'FARFORK_BUILD': BUILD})
    print(done.stdout)
    return done.returncode


def check_more(out):
    """--overhead and --curve."""
    code = bench(out, '--overhead', '--runs', '1', '--mem', '48', '--workload', 'random@100000',
                 '--memory', 'anon', '--peers', 'rdma-tcp')
    want(code == 0, f'--overhead: exit code {code}')
    ways = schema.load(os.path.join(out, 'results.json'))['overhead'][0]['ways']
    want([w['way'] for w in ways] == ['never moved', 'rdma-tcp'], f'--overhead: {ways}')
    for way in ways:
        want(way['runs'][0]['work_per_s'], f'--overhead: {way}')
    code = bench(out, '--curve', '--runs', '1')
    want(code == 0, f'--curve: exit code {code}')
    for link in schema.load(os.path.join(out, 'results.json'))['curve'][0]['links']:
        want([p['threads'] for p in link['points']] == [1, 2, 4, 8, 16], f'--curve: {link}')
        want(all(p['runs'][0]['faults_per_s'] for p in link['points']), f'--curve: {link}')


def main():
    with tempfile.TemporaryDirectory() as out:
        code = bench(out, '--runs', '1', '--mem', '48', '--around', '1', '--limit', '3', '--net',
                     '80mbit', '--workload', 'random@100000', '--peers', 'pre-copy', *OURS)
        if code == 77:
            return 77
        path = os.path.join(out, 'results.json')
        if not os.path.exists(path):
            # no network namespaces, or no tc: bench has said so
            print(f'SKIP: no results, exit code {code}; run it as root')
            return 77 if code == 0 else 1
        want(code == 0, f'exit code {code}')
        check(schema.load(path))
        want(os.path.getsize(os.path.join(out, 'report.html')) > 1000, 'no report')
        if os.environ.get('FARFORK_FULL') == '1':
            check_more(out)
    for p in problems:
        print(f'FAIL: {p}')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
