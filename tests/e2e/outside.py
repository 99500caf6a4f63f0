#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""outside.py - the memory of QEMUs as another process finds it (vm/outside.h); limit: 150 s

Debian's own QEMU 7.2, which shows no addresses, and 10.0, which does; every kind of memory.
"""
import json
import os
import re
import subprocess
import common
from common import Failed, Micro, check_ledger, hmp, migration, status, wait_for, wait_migration
from stocks import Stock

LOOK = os.path.join(common.BUILD, 'tests', 'e2e', 'outside_look')
MIB = 1 << 20
MEM_MIB = 64
STOCK = os.path.join(common.BUILD, 'tests', 'e2e', 'stock-qemu')     # see e2e.mk
VERSIONS = {'7.2': Stock, '10.0': Micro}
SLOW = 2 * MIB      # bytes a second, while the destination is looked at


def look(guest, *words):
    """What outside_look says; the test's own monitor leaves its turn to it."""
    out = subprocess.run([LOOK, f'{guest.sock_path}2', *words], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, timeout=40, check=False)
    if out.returncode:
        raise Failed(f'outside_look: exit {out.returncode}: {out.stderr}')
    return json.loads(out.stdout)


def guest(t, version, name, accel, memory='anon', machine='pc', extra=(), **more):
    second = ['-qmp', f'unix:{t.work}/{name}.qmp2,server=on,wait=off']
    return VERSIONS[version](t, name, accel, memory, mem_mib=MEM_MIB, machine=machine,
                             extra=[*extra, *second], **more)


def file_backend(path, share):
    return ['-object', f'memory-backend-file,id=ram,size={MEM_MIB}M,share={share},mem-path={path}']


def addresses(g):
    """What QEMU itself knows: {block: address}; nothing in 7.2."""
    rows = [r.split() for r in hmp(g, 'info ramblock').splitlines()]
    if 'HVA' not in rows[0]:
        return {}
    return {r[0]: int(r[-2], 16) for r in rows[1:] if r}


def check_block(g, b, want):
    got = {k: b.get(k) for k in want}
    if got != want:
        raise Failed(f'{b["name"]}: {b}, want {want}')
    known = addresses(g).get(b['name'])
    if known and known != b['hva']:
        raise Failed(f'{b["name"]}: {b["hva"]:#x}, but QEMU says {known:#x}')
    if not b['hva']:
        raise Failed(f'{b["name"]}: no address')


SHARED = {'file': True, 'shared': True, 'hugetlb': False, 'same': True, 'located': True}
PRIVATE = {'file': False, 'shared': False, 'hugetlb': False, 'readable': True, 'located': True}


def one_kind(t, version, accel, kind, want, **more):
    with guest(t, version, f'{kind}-{version}', accel, **more) as g:
        g.start_load()
        g.qmp('stop')       # two readers of one instant
        seen = look(g)
        if len(seen['blocks']) != 1 or seen['all'] < 2:
            raise Failed(f'blocks: {seen}')
        check_block(g, seen['blocks'][0], want)


def kinds(t, version, accel):
    # a folder that is no tmpfs, where there is one
    disk = os.path.join(t.work, 'ram') if not os.access('/var/tmp', os.W_OK) else \
        f'/var/tmp/{os.path.basename(t.work)}.ram'
    machine = 'pc,memory-backend=ram'
    one_kind(t, version, accel, 'anon', PRIVATE)
    one_kind(t, version, accel, 'memfd', SHARED, memory='memfd')
    one_kind(t, version, accel, 'tmpfs', SHARED, machine=machine,
             extra=file_backend(f'{t.work}/ram', 'on'))
    one_kind(t, version, accel, 'private', PRIVATE, machine=machine,
             extra=file_backend(f'{t.work}/ram', 'off'))
    os.unlink(f'{t.work}/ram')
    t.at_end.callback(lambda: os.path.exists(disk) and os.unlink(disk))
    one_kind(t, version, accel, 'disk', SHARED, machine=machine, extra=file_backend(disk, 'on'))


def numa(t, version, accel):
    """Two backends of one length: the right one each, without a monitor too."""
    size = MEM_MIB // 2
    extra = [w for i in (0, 1) for w in (
        '-object', f'memory-backend-memfd,id=n{i},size={size}M,share=on',
        '-numa', f'node,memdev=n{i}')]
    with guest(t, version, f'numa-{version}', accel, extra=extra) as g:
        g.start_load()
        g.qmp('stop')
        blocks = {b['name']: b for b in look(g)['blocks']}
        if set(blocks) != {'n0', 'n1'} or blocks['n0']['hva'] == blocks['n1']['hva']:
            raise Failed(f'blocks: {blocks}')
        for i, b in enumerate(blocks.values()):
            check_block(g, b, SHARED)
            at = int(re.search(r'is (0x[0-9a-f]+)', hmp(g, f'gpa2hva {i * size * MIB:#x}'))[1], 16)
            if at != b['hva']:
                raise Failed(f'{b["name"]}: {b["hva"]:#x}, guest address {i} says {at:#x}')


def run(t):
    accel = t.best_accel()
    for version in VERSIONS:
        with t.case(f'{version}: kinds of memory'):
            kinds(t, version, accel)
        with t.case(f'{version}: two backends of one length'):
            numa(t, version, accel)
    with t.case('10.0: hugetlb'):
        t.reserve_huge(MEM_MIB)
        one_kind(t, '10.0', accel, 'hugetlb', {**SHARED, 'hugetlb': True}, memory='hugetlb')


def needs():
    common.need_userfaultfd()
    common.need_files(LOOK, STOCK)


if __name__ == '__main__':
    common.main(run, 150, needs)
