#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""installed.py - make install brings all that farfork bench needs; nothing of the checkout is used

Environment  FARFORK_BUILD (default: build), where everything is built
Exit code    0 passed, 1 failed, 77 it cannot run here (the reason is the last line)
"""
import json
import os
import subprocess
import sys
import tempfile

import benchtest

TOP = os.path.realpath(benchtest.TOP)
BUILD = os.path.relpath(os.environ.get('FARFORK_BUILD', os.path.join(TOP, 'build')), TOP)
BENCH = ['bench', '--runs', '1', '--mem', '48', '--around', '1', '--peers', 'rdma-tcp',
         '--workload', 'random@100000', '--memory', 'anon']
LIMIT_S = 150


def run(argv, **options):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                          stderr=subprocess.STDOUT, timeout=LIMIT_S, check=False, **options)
    print(done.stdout)
    return done.returncode


def problems(prefix, results):
    with open(results, encoding='utf-8') as f:
        doc = json.load(f)
    ran = doc['groups'][0]['peers'][0]['runs'][0]
    if ran['outcome'] != 'completed':
        yield f'rdma-tcp: {ran["outcome"]}: {ran["why"]}'
    for qemu in doc['host']['qemu']:
        if not os.path.realpath(qemu).startswith(prefix):
            yield f'it ran {qemu}'
    if doc['host']['farfork'] == 'unknown' or doc['host']['commit'] != 'unknown':
        yield f'it is of {doc["host"]["farfork"]!r}, commit {doc["host"]["commit"]!r}'
    with open(os.path.join(prefix, 'lib/pkgconfig/farfork.pc'), encoding='ascii') as f:
        if TOP in f.read():
            yield 'farfork.pc names the checkout'


def main():
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(('FARFORK_', 'MAKE', 'QEMU_BIN'))}
    with tempfile.TemporaryDirectory(prefix='ff-installed-') as folder:
        folder = os.path.realpath(folder)
        prefix = os.path.join(folder, 'root', 'usr')
        if run(['make', '-C', TOP, 'install', 'install-qemu', f'BUILD={BUILD}', 'PREFIX=/usr',
                f'DESTDIR={os.path.dirname(prefix)}'], env=env):
            return 1
        code = run([os.path.join(prefix, 'bin', 'farfork'), *BENCH], cwd=folder, env=env)
        if code:
            return code
        times = os.listdir(os.path.join(folder, 'bench'))       # where it was called
        found = list(problems(prefix, os.path.join(folder, 'bench', times[0], 'results.json')))
    print('\n'.join(found))
    return bool(found)


sys.exit(main())
