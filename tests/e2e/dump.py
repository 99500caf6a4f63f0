#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""dump.py - a guest whose source has died, or is away: what is here can be dumped, and nothing else

Every page in the dump is one that has come, byte for byte, and every page that has come is in it. What
is missing is left out: nobody takes zeros for it, and nobody waits for it. The guest is as before: it
goes on when the source comes back. Limit: 120 s.
"""
import os
import struct

import common
from break_after_go import silent
from common import PAGE, Failed, say, wait_for
from memory import Memory
from resume import MIB, begin, both_paused, is_resumed, pair, pause

LOW = 1 << 20                   # below are ROMs, and holes


def loads(path):
    """(physical address, bytes in the file, where) of each PT_LOAD of an ELF file"""
    with open(path, 'rb') as f:
        head = f.read(64)
        if head[:5] != b'\x7fELF\x02':
            raise Failed(f'{path}: no 64-bit ELF file')
        phoff, shoff = struct.unpack_from('<QQ', head, 32)
        n = struct.unpack_from('<H', head, 56)[0]
        if n == 0xffff:         # then the first section says how many
            f.seek(shoff + 44)
            n = struct.unpack('<I', f.read(4))[0]
        f.seek(phoff)
        rows = [struct.unpack('<IIQQQQQQ', f.read(56)) for _ in range(n)]
    return [(r[4], r[5], r[2]) for r in rows if r[0] == 1]


def pages_of(path):
    """Physical page number: where in the file"""
    return {(at + i) // PAGE: where + i for at, size, where in loads(path)
            for i in range(0, size, PAGE) if at % PAGE == 0}


def check_elf(dst, path):
    """Exactly the pages of the guest's first MIB that have come, as they are; how many"""
    found = {n: at for n, at in pages_of(path).items() if LOW <= n * PAGE < MIB << 20}
    m = Memory(dst)
    try:
        start, size, _ = m.blocks['pc.ram']
        here = {i for i, is_here in enumerate(m.present(start, size // PAGE))
                if is_here and i * PAGE >= LOW}
        if here != set(found):
            raise Failed(f'{len(here)} pages are here, {len(found)} in the dump; only here '
                         f'{sorted(here - set(found))[:5]}, only there '
                         f'{sorted(set(found) - here)[:5]}')
        with open(path, 'rb') as f:
            for n, at in found.items():
                f.seek(at)
                if f.read(PAGE) != m.read(start + n * PAGE, PAGE):
                    raise Failed(f'page {n} differs in the dump')
    finally:
        m.close()
    if not 0 < len(found) < ((MIB << 20) - LOW) // PAGE:
        raise Failed(f'{len(found)} pages in the dump')
    return len(found)


def kdump_pages(path):
    """Physical page numbers that a file of kdump-raw-zlib says it has"""
    with open(path, 'rb') as f:
        head = f.read(448)
        block, sub, bitmaps = struct.unpack_from('<III', head, 428)
        if head[:8] != b'KDUMP   ':
            raise Failed(f'{path}: no kdump file')
        f.seek((1 + sub) * block + bitmaps * block // 2)
        bits = f.read(bitmaps * block // 2)
    return {i * 8 + b for i, byte in enumerate(bits) if byte for b in range(8) if byte >> b & 1}


def dump(dst, name, **more):
    path = os.path.join(os.path.dirname(dst.sock_path), name)
    dst.qmp('dump-guest-memory', paging=False, protocol='file:' + path, **more)
    wait_for('the dump', 30, lambda: dst.qmp('query-dump')['status'] != 'active')
    if dst.qmp('query-dump')['status'] != 'completed':
        raise Failed(f'{name}: {dst.qmp("query-dump")}')
    if not dst.qmp('query-status')['running']:
        raise Failed(f'{name}: the guest is {common.status(dst)} afterwards')
    return path


def check_dumps(dst):
    path = dump(dst, f'{dst.name}.elf')
    n = check_elf(dst, path)
    raw = kdump_pages(dump(dst, f'{dst.name}.kdump', format='kdump-raw-zlib', detach=True))
    if raw != set(pages_of(path)):
        raise Failed(f'{len(raw)} pages in the kdump, {len(pages_of(path))} in the ELF file')
    common.refuses(dst, 'without paging', 'dump-guest-memory', paging=True,
                   protocol=f'file:{path}.no')
    say(f'      {n} pages of the first {MIB} MiB are here, and in the dump')


def source_dies(t, accel, options):
    src, dst = pair(t, f'dies-{accel}{options[-1:]}', accel)
    with src, dst:
        begin(src, dst, options)
        src.proc.kill()
        wait_for('the pause', 20, lambda: common.migration(dst)['status'] == 'postcopy-paused')
        silent(dst, 'much of its memory is missing')
        info = common.migration(dst)
        lost = sum(m['pages'] * m['page-size'] for m in info['x-rdma-postcopy']['missing'])
        if 'pages are not here: pc.ram' not in info['error-desc'] or not lost:
            raise Failed(f'it does not say what is lost: {info}')
        say(f'      {info["error-desc"]}')
        check_dumps(dst)
        silent(dst, 'much of its memory is missing yet')


def source_comes_back(t, accel):
    src, dst = pair(t, f'back-{accel}', accel)
    with src, dst:
        uri = begin(src, dst)
        pause(dst)
        both_paused(src, dst)
        silent(dst, 'much of its memory is missing')
        check_dumps(dst)
        dst.qmp('migrate-recover', uri=uri)
        is_resumed(src, dst)


def run(t):
    for accel in t.accels():
        with t.case(f'the source dies, {accel}'):
            source_dies(t, accel, '')
        with t.case(f'the source is away, and comes back after the dump, {accel}'):
            source_comes_back(t, accel)
    with t.case(f'the source dies, reconnect=0, {t.best_accel()}'):
        source_dies(t, t.best_accel(), ',reconnect=0')


if __name__ == '__main__':
    common.main(run, 120)
