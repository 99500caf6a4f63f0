#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""move_bytes.py - after a move both processes hold the same memory, byte for byte

The destination stays paused (-S), so nothing may differ: every RAM block of both is
compared, with all memory that the guest's addresses show (pmemsave) as a second view.
Then the destination is let go and the guest goes on. Also while prefill is slow the
monitor reads memory that is not there yet: the main thread faults. Limit: 180 s.
"""
import filecmp
import os

import common
import linuxreport
import memory
from common import Failed, Linux, Micro, check_ledger, check_move, move, say

MIB = 128
KINDS = {
    'anon': ('anon', ''),
    'memfd': ('memfd', ''),
    'memfd, landing=copy': ('memfd', ',landing=copy'),
    'memfd, landing=continue': ('memfd', ',landing=continue'),
    'hugetlb': ('hugetlb', ''),
}


def pmemsave(guest, at, size, path):
    guest.qmp('pmemsave', val=at, size=size, filename=path)
    return path


def compare_views(t, src, dst, mib):
    done, _ = memory.compare(src, dst)
    files = [pmemsave(g, 0, mib << 20, os.path.join(t.work, g.name + '.pmem'))
             for g in (src, dst)]
    if not filecmp.cmp(*files, shallow=False):
        raise Failed('the memory as the guest sees it (pmemsave) differs')
    for f in files:
        os.unlink(f)
    say(f'      {done >> 20} MiB in all RAM blocks equal, {mib} MiB by pmemsave')


def micro(t, accel, kind, options, mib=MIB):
    t.need(accel)
    if kind == 'hugetlb':
        t.reserve_huge(2 * mib)
    with Micro(t, 'a', accel, kind, mib) as a, \
            Micro(t, 'b', accel, kind, mib, incoming=True, extra=['-S']) as b:
        a.start_load()
        check_move(move(a, b, options=options), paused=True)
        compare_views(t, a, b, mib)
        b.qmp('cont')
        check_ledger(a, b)


def above_4g(t, accel):
    """A guest with memory on both sides of the hole below 4 GiB; 3.5 GiB is where it splits."""
    mib = 4096 + 256
    with Micro(t, 'a', accel, 'memfd', mib, load=common.LOAD + ' fill=1') as a, \
            Micro(t, 'b', accel, 'memfd', mib, load=common.LOAD + ' fill=1', incoming=True,
                  extra=['-S']) as b:
        a.start_load()
        check_move(move(a, b), paused=True)
        done, _ = memory.compare(a, b)
        say(f'      {done >> 20} MiB equal')
        b.qmp('cont')
        check_ledger(a, b)


def linux(t, kind, options):
    if kind == 'hugetlb':
        t.reserve_huge(2 * 192)
    settings = common.linux_settings(t, f'linux-{kind}{len(options)}', memory=kind)
    with Linux(None, settings, 'a') as a, Linux(None, settings, 'b') as b:
        a.start()
        common.linux_boot(a)
        common.linux_progress(settings, ('mem', 'counter', 'disk'))
        settings.extra = [*settings.extra, '-S']
        b.start(incoming=True)
        check_move(move(a, b, options=options), paused=True)
        compare_views(t, a, b, settings.memory_mib)
        b.qmp('cont')
        common.linux_progress(settings, ('mem', 'counter', 'disk'), reports=8)
        common.linux_check(settings, ('mem', 'counter', 'disk'))
        say(f'      {linuxreport.last(settings.report)["mem_checked"]} pages checked by the guest')


def main_thread_faults(t, accel, kind):
    """Prefill waits 150 ms a chunk; the monitor reads parts of memory in the meantime."""
    with Micro(t, 'a', accel, kind, MIB) as a, \
            Micro(t, 'b', accel, kind, MIB, incoming=True, extra=['-S'],
                  faults='dest.prefill=delay:150000@1-50') as b:
        a.start_load()
        uri = common.listen(b)
        a.qmp('migrate', uri=uri)
        common.wait_migration(a, 'postcopy-active')
        common.wait_migration(b, 'postcopy-active')
        before = common.migration(b)['x-rdma-postcopy']['faults']
        parts = []
        for i in range(16):
            at = (MIB << 20) // 16 * i + 0x1234
            parts.append((at, pmemsave(b, at, 200000, os.path.join(t.work, f'part{i}'))))
        # by virtual address too: the guest has an identity map
        b.qmp('memsave', val=0x200000, size=300000, filename=os.path.join(t.work, 'virt'))
        info = common.migration(b)
        if info['status'] != 'postcopy-active' or info['x-rdma-postcopy']['faults'] == before:
            raise Failed(f'the reads came too late to fault: {info}')
        say(f'      {info["x-rdma-postcopy"]["faults"] - before} pages fetched for the monitor')
        common.wait_migration(b, 'completed')
        common.wait_migration(a, 'completed')
        parts.append((0x200000, os.path.join(t.work, 'virt')))
        for at, path in parts:
            want = pmemsave(a, at, os.path.getsize(path), os.path.join(t.work, 'want'))
            if not filecmp.cmp(path, want, shallow=False):
                raise Failed(f'read during post-copy at {at:#x} differs from the source')
        memory.compare(a, b)
        b.qmp('cont')
        check_ledger(a, b)


def run(t):
    accels = t.accels()
    for name, (kind, options) in KINDS.items():
        with t.case(f'micro, {name}, {accels[0]}'):
            micro(t, accels[0], kind, options)
    for kind in ('anon', 'memfd'):
        with t.case(f'main thread faults, {kind}'):
            main_thread_faults(t, accels[0], kind)
    for name, (kind, options) in KINDS.items():
        if common.FULL or 'continue' in options:
            with t.case(f'linux, {name}, tcg'):
                linux(t, kind, options)
    with t.case(f'above 4 GiB, {accels[0]}'):
        above_4g(t, accels[0])


if __name__ == '__main__':
    common.main(run, 180)
