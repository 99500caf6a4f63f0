#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""sandbox.py - QEMU's own system call filter, as libvirt asks for it: moves need nothing more

A fork needs fork(2), which is spawn=allow; everything else stays denied, in children too. A call
that the filter ends a process for would end the QEMU, or what it forked. Limit: 170 s.
"""
import common
from common import Failed, Micro, check_ledger, check_move, event_names
from farfork_move import Move, there
from forked import Child, Clone, Parent, check_nothing_left, check_result, kill, snapshot

MIB = 64
DENY = 'obsolete=deny,elevateprivileges=deny,resourcecontrol=deny'
AS_LIBVIRT = ['-sandbox', f'on,{DENY},spawn=deny']
MAY_FORK = ['-sandbox', f'on,{DENY},spawn=allow']


def filtered(pid, where):
    """It has its own filter."""
    with open(f'/proc/{pid}/status', encoding='ascii') as f:
        if 'Seccomp:\t2\n' not in f.read():
            raise Failed(f'{where} has no filter')


def move(t, accel, kind, options=''):
    with Micro(t, f'a-{kind}', accel, kind, MIB, extra=AS_LIBVIRT) as a, \
            Micro(t, f'b-{kind}', accel, kind, MIB, extra=AS_LIBVIRT, incoming=True) as b:
        a.start_load()
        for g in (a, b):
            filtered(g.pid, g.name)
        check_move(common.move(a, b, options=options))
        check_ledger(a, b)


def farfork_move(t, accel):
    """The guest has the filter where it comes, too."""
    with Parent(t, accel, extra=AS_LIBVIRT, mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a) as m:
            result = m.end(0, 'there')
            filtered(result['pid'], 'the guest there')
            with there(t, 'b', result) as b:
                check_ledger(a, b)


def no_fork(t, accel):
    """spawn=deny: said before the guest stands still."""
    with Parent(t, accel, extra=AS_LIBVIRT, mem_mib=MIB) as parent:
        parent.start_load()
        with Clone(t, parent, 1) as c:
            check_result(c, 3, {'failed': 1})
            said = f'{c.result.get("error")} {c.children[0]["error"]}'
            if 'spawn=allow' not in said:
                raise Failed(f'it does not say what to do: {said}')
        if 'STOP' in event_names(parent):
            raise Failed('the parent was paused')
        check_nothing_left(c, parent)


def fork(t, accel, kind):
    with Parent(t, accel, memory=kind, extra=MAY_FORK, mem_mib=MIB) as parent:
        parent.start_load()
        before = snapshot(parent)
        filtered(parent.pid, parent.name)
        with Clone(t, parent, 2) as c:
            check_result(c, 0, {'complete': 2})
            for row in c.children:
                filtered(row['pid'], f'child {row["child"]}')
                Child(row, parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def run(t):
    accel = t.best_accel()
    for kind, options in (('anon', ''), ('memfd', ',precopy=1')):
        with t.case(f'a move as under libvirt, {kind}{options}'):
            move(t, accel, kind, options)
    with t.case('farfork move'):
        farfork_move(t, accel)
    with t.case('spawn=deny: no fork'):
        no_fork(t, accel)
    for kind in ('anon', 'memfd'):
        with t.case(f'spawn=allow: a fork, {kind}'):
            fork(t, accel, kind)


if __name__ == '__main__':
    common.main(run, 170)
