#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""clone_smoke.py - farfork bench --clone measures a pause and two children; no figure is judged

By templating, by vmclone here and, as root, on another host.

Environment  FARFORK_BUILD (default: build)
Exit code    0 passed, 1 failed, 77 it cannot run here (the reason is the last line)
"""
import os
import subprocess
import sys
import tempfile

import benchtest
import schema

BUILD = os.path.abspath(os.environ.get('FARFORK_BUILD', os.path.join(benchtest.TOP, 'build')))
LIMIT_S = 100
WAYS = ['templating', 'vmclone', *(['vmclone, other host'] if os.geteuid() == 0 else [])]
problems = []


def want(good, text):
    if not good:
        problems.append(text)


def check(doc):
    pause, children = doc['clone']
    run = pause['ways'][0]['runs'][0]
    want(pause['kind'] == 'pause' and not run['why'], f'pause: {run["why"]}')
    for name in ('pause_ms', 'memory_ms', 'gap_ms', 'again_pause_ms'):
        want(run[name] is not None, f'pause: no {name}')
    want([w['way'] for w in children['ways']] == WAYS, f'ways: {children["ways"]}')
    for way in children['ways']:
        run = way['runs'][0]
        want(not run['why'], f'{way["way"]}: {run["why"]}')
        for name in ('first_ms', 'last_ms', 'rss_mib', 'pss_mib', 'verified_ms'):
            want(run[name], f'{way["way"]}: no {name}')
        want((run['last_ms'] or 0) >= (run['first_ms'] or 0), f'{way["way"]}: the last is first')
        if way['way'] != 'templating':
            want(0 < (run['export_ms'] or 0) < (run['first_ms'] or 0),
                 f'{way["way"]}: a child ran before the export: {run}')
        if 'other' in way['way']:
            # 48 MiB once, not twice: what N children receive is what one does
            want(40 < (run['net_mib'] or 0) < 70, f'{way["way"]}: {run["net_mib"]} MiB received')


def main():
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run(
            [os.path.join(BUILD, 'bin', 'farfork'), 'bench', '--out', out, '--clone', '--runs', '1',
             '--mem', '48', '--memory', 'memfd', '--children', '2', '--verify', '--ways', *WAYS],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT,
            timeout=LIMIT_S, check=False, env={**os.environ, 'FARFORK_BUILD': BUILD})
        print(done.stdout)
        if done.returncode == 77:
            return 77
        want(done.returncode == 0, f'exit code {done.returncode}')
        check(schema.load(os.path.join(out, 'results.json')))
    for p in problems:
        print(f'FAIL: {p}')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
