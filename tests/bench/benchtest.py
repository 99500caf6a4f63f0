# SPDX-License-Identifier: LGPL-2.1-or-later
#
# benchtest.py - what the tests of the benchmark share: its modules, and results made by hand
import os
import sys

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
sys.path[:0] = [os.path.join(TOP, d) for d in ('bench', 'demo', 'tests/e2e')]


def run(number, outcome='completed', **metrics):
    if outcome == 'completed':
        metrics.setdefault('total_ms', 100.0 + number)
    return {'round': number, 'outcome': outcome, 'why': '', 'metrics': metrics, 'ledger': 'ok',
            'threads': {'source': {'CPU 0/KVM': 1.0, 'mig/src/main': 0.25}, 'destination': {}},
            'hist': [[120, 5], [140, 1]],
            'timeline': [[-100.0, 1000, 10, 0], [0.0, 400, 60000, 50000], [100.0, 1000, 9, 0]],
            'link': ''}


def peer(name, *runs):
    return {'peer': name, 'runs': list(runs)}


def totals(name, values):
    return peer(name, *[run(i, total_ms=v) for i, v in enumerate(values)])


def group(*peers, **other):
    return {'workload': 'random', 'mem_mib': 256, 'smp': 1, 'memory': 'anon', 'net': 'loopback',
            'accel': 'kvm', 'slot_ms': 100, 'floors': [{'tcp_mib_s': 3000.0}],
            'peers': list(peers), **other}


def results(*groups, **host):
    return {'schema': 'farfork-bench', 'version': 1, 'started': '2026-01-01T00:00:00+00:00',
            'ended': '2026-01-01T00:10:00+00:00', 'complete': True, 'command': ['--runs', '5'],
            'host': {'cpu': 'a CPU', 'cpus': 2, 'kernel': '6.0', 'memory_mib': 1000, 'thp': 'never',
                     'qemu': {'qemu': 'QEMU emulator version 10.0'}, 'farfork': 'farfork 0',
                     'commit': 'abc', 'load_before': [0, 0, 0], 'load_after': [0, 0, 0], **host},
            'settings': {}, 'groups': list(groups), 'skipped': []}
