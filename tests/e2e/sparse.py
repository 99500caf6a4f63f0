#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""sparse.py - a guest of 2 GiB that has touched little stays sparse, also when forked; limit: 120 s"""
import os

import common
from common import Failed, Micro, check_ledger, check_move, move, say
from farfork_move import Move, there
from forked import ELSEWHERE, Clone, Parent, check_result, kill

MIB = 1 << 20
SLACK = 16 * MIB     # what its QEMU and firmware touch
TOUCH = 2            # percent, here and there in all of memory


def taken(guest):
    """Bytes that the files of its RAM take."""
    folder = f'/proc/{guest.proc.pid}/fd'
    files = {}
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if os.readlink(path).startswith('/memfd:memory-backend'):
            st = os.stat(path)
            files[st.st_ino] = st.st_blocks * 512
    if not files:
        raise Failed(f'{guest.name}: no memfd')
    return sum(files.values())


def stays_sparse(t, accel, options):
    load = f'mode=idle touch={TOUCH} report_ms=400'
    with Micro(t, 'a', accel, 'memfd', 2048, load=load) as a, \
            Micro(t, 'b', accel, 'memfd', 2048, load=load, incoming=True) as b:
        a.start_load()
        before = taken(a)
        if not 20 * MIB < before < 200 * MIB:
            raise Failed(f'the guest has touched {before >> 20} MiB, which says nothing')
        moved = move(a, b, options=options)
        check_move(moved)
        source, dest = taken(a), taken(b)
        say(f'      {moved.line()}; MiB of its file: {before >> 20}, then {source >> 20}; '
            f'at the destination {dest >> 20}')
        if source > before + SLACK:
            raise Failed(f'the source takes {source} bytes, {before} before')
        if dest > before + SLACK:
            raise Failed(f'the destination takes {dest} bytes, the source {before}')


def forks_leave_holes(t, accel):
    """Also a later fork, whose image is a private view of the file, and a move after it, by a QEMU that knows of neither."""
    load = f'mode=idle touch={TOUCH} report_ms=400'
    with Parent(t, accel, memory='memfd', mem_mib=2048, load=load) as p, \
            Micro(t, 'q', accel, 'memfd', 2048, load=load, incoming=True) as q:
        p.start_load()
        before, forked = taken(p), []
        for _ in range(2):
            with Clone(t, p, 1, *ELSEWHERE, hosts=['h1=127.0.0.1']) as c:
                check_result(c, 0, {'complete': 1})
                kill(c.base, 'f')
            forked.append(taken(p))
        check_move(move(p, q))
        moved = taken(p)
        say(f'      MiB of its file: {before >> 20}, after a fork {forked[0] >> 20}, after a second '
            f'{forked[1] >> 20}, after a move {moved >> 20}')
        for size in (*forked, moved):
            if size > before + SLACK:
                raise Failed(f'the parent takes {size} bytes, {before} before')


def attached_leaves_holes(t, accel):
    """A guest that was forked, and moves by attaching: what it has not written since is in the file alone."""
    with Parent(t, accel, memory='memfd', mem_mib=2048, load=f'mode=idle touch={TOUCH} report_ms=400') as p:
        p.start_load()
        before = taken(p)
        with Clone(t, p, 1, *ELSEWHERE, hosts=['h1=127.0.0.1']) as c:
            check_result(c, 0, {'complete': 1})
            kill(c.base, 'f')
        with Move(t, p, '--keep-source', via='attach') as m, there(t, 'moved', m.end(0, 'there')) as b:
            source, dest = taken(p), taken(b)
            say(f'      MiB of its file: {before >> 20}, after a fork and a move by attaching {source >> 20}; '
                f'at the destination {dest >> 20}')
            for size in (source, dest):
                if size > before + SLACK:
                    raise Failed(f'it takes {size} bytes, {before} before')


def holes_are_touched(t, accel, memory):
    load = f'touch={TOUCH} sweep=4 report_ms=400'
    if memory == 'hugetlb':
        t.reserve_huge(2 * 128)
    with Micro(t, 'a', accel, memory, 128, load=load) as a, \
            Micro(t, 'b', accel, memory, 128, load=load, incoming=True) as b:
        a.start_load()
        check_move(move(a, b))
        check_ledger(a, b)


def run(t):
    accel = t.best_accel()
    for options in ('', ',landing=continue'):
        with t.case(f'2 GiB, memfd{options}, {accel}'):
            stays_sparse(t, accel, options)
    with t.case(f'2 GiB, memfd, a fork and a move, {accel}'):
        forks_leave_holes(t, accel)
    with t.case(f'2 GiB, memfd, a fork and a move by attaching, {accel}'):
        attached_leaves_holes(t, accel)
    for memory in ('memfd', 'hugetlb'):
        with t.case(f'{memory}: holes are touched at any moment, {accel}'):
            holes_are_touched(t, accel, memory)


if __name__ == '__main__':
    common.main(run, 120)
