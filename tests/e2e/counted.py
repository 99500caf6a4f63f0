# SPDX-License-Identifier: LGPL-2.1-or-later
"""counted.py - what query-migrate says of a complete move adds up"""
import json

from linuxguest import Failed


def check_stats(info, who):
    x = info['x-rdma-postcopy']
    parts = x['prefill-bytes'] + x['fault-bytes'] + x['zero-bytes'] + x['poisoned-bytes']
    # what was discarded after the pass of precopy=1 came twice
    if parts != x['total-bytes'] + x['discarded-bytes'] or x['present-bytes'] != x['total-bytes']:
        raise Failed(f'{who}: statistics do not add up: {json.dumps(x)}')
    order = [x[k] for k in ('fault-p50', 'fault-p90', 'fault-p99', 'fault-p999', 'fault-max')]
    if order != sorted(order):
        raise Failed(f'{who}: percentiles are out of order: {order}')
    ram = info.get('ram', {'remaining': 0})
    if ram['remaining']:
        raise Failed(f'{who}: {ram["remaining"]} bytes remain after completion')


def check_ram(info):
    """QEMU's own fields, at the source."""
    ram, x = info['ram'], info['x-rdma-postcopy']
    parts = [ram[f'{k}-bytes'] for k in ('precopy', 'downtime', 'postcopy')]
    content = x['prefill-bytes'] + x['fault-bytes']
    want = {'total': x['total-bytes'], 'normal-bytes': content, 'postcopy-requests': x['faults'],
            'transferred': content + x['duplicated-bytes'] + ram['downtime-bytes']}
    if any(ram[k] != v for k, v in want.items()) or sum(parts) != ram['transferred']:
        raise Failed(f'ram: {ram}, want {want}')
    if min(parts) < 0 or not ram['downtime-bytes'] or bool(x['pass-time']) != bool(
            ram['precopy-bytes']) or bool(x['pass-time']) != (ram['dirty-sync-count'] > 1):
        raise Failed(f'ram: {ram}, with a pass of {x["pass-time"]} ns')
    if 'expected-downtime' in info:
        raise Failed(f'a downtime is expected: {info}')
