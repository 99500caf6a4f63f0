#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""sandbox.py - QEMU's own system call filter, as libvirt asks for it: moves and forks need nothing more

What is denied stays so in children. A call that the filter ends a process for would end the QEMU, or its copy. Limit: 170 s.
"""
import json

import common
from attaching import Move
from common import Failed, Micro, check_ledger, check_move
from farfork_move import there
from forked import (QEMU, Child, Clone, ForkParent, check_nothing_left, check_result, kill, run_vmclone,
                    snapshot)

MIB = 64
DENY = 'obsolete=deny,elevateprivileges=deny,resourcecontrol=deny'
AS_LIBVIRT = ['-sandbox', f'on,{DENY},spawn=deny']


def rights(pid):
    """NO_NEW_PRIVS, and how many filters its system calls pass"""
    with open(f'/proc/{pid}/status', encoding='ascii') as f:
        status = dict(line.rstrip('\n').split(':\t', 1) for line in f)
    return status['NoNewPrivs'], status['Seccomp_filters']


def filtered(pid, where, agent=False):
    """It has its own filter, and that of its agent."""
    if (n := rights(pid)[1]) != ('2' if agent else '1'):
        raise Failed(f'{where} has {n} filters')


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
    with ForkParent(t, accel, extra=AS_LIBVIRT, mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a) as m:
            result = m.end(0, 'there')
            filtered(result['pid'], 'the guest there', agent=True)
            with there(t, 'b', result) as b:
                check_ledger(a, b)


def fork(t, accel, kind):
    with ForkParent(t, accel, memory=kind, extra=AS_LIBVIRT, mem_mib=MIB) as parent:
        parent.start_load()
        before = snapshot(parent)
        filtered(parent.pid, parent.name)
        with Clone(t, parent, 2) as c:
            check_result(c, 0, {'complete': 2})
            for row in c.children:
                filtered(row['pid'], f'child {row["child"]}', agent=True)
                Child(row, parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def taken_out(t, accel):
    """A QEMU that rewrites its own command line: without the -sandbox that its kernel knows of."""
    with ForkParent(t, accel, extra=AS_LIBVIRT, mem_mib=MIB) as parent:
        parent.start_load()
        with open(f'/proc/{parent.pid}/stat', encoding='ascii') as f:
            at = int(f.read().rpartition(')')[2].split()[45])           # arg_start
        with open(f'/proc/{parent.pid}/cmdline', 'rb') as f:
            words = f.read()
        before = '\0'.join(AS_LIBVIRT).encode()
        other = b'--global\0no-such-driver-at-all.'.ljust(len(before) - 2, b'a') + b'=1'      # QEMU warns of it, at most
        with open(f'/proc/{parent.pid}/mem', 'r+b', buffering=0) as f:
            f.seek(at + words.index(before))
            f.write(other)
        with Clone(t, parent, 1) as c:
            check_result(c, 3, {'failed': 1})
            if 'no -sandbox is on its command line' not in (c.result.get('error') or ''):
                raise Failed(f'it is forked without -sandbox: {c.result}')
        with Move(t, parent) as m:
            m.end(1, 'here', 'no -sandbox is on its command line')
        with Move(t, parent, '--unconfined', name='m2') as m:
            if rights(m.end(0, 'there')['pid']) != ('0', '0'):
                raise Failed('--unconfined: it has a filter')


def agents(t, accel):
    """Agents and children have a filter without -sandbox; not where children start a helper."""
    with ForkParent(t, accel, mem_mib=MIB) as parent:
        parent.start_load()
        for args, want in (((), ('1', '1')), (('--qemu', QEMU), ('0', '0'))):
            with Clone(t, parent, 2, *args) as c:
                check_result(c, 0, {'complete': 2})
                listed = json.loads(run_vmclone('--list', '--json', '--rundir', c.base).stdout)
                for pid in [listed[0]['agent']] + [row['pid'] for row in c.children]:
                    if rights(pid) != want:
                        raise Failed(f'{args}: {pid} has {rights(pid)}, want {want}')
                kill(c.base, 'f')
                check_nothing_left(c, parent)


def run(t):
    accel = t.best_accel()
    for kind, options in (('anon', ''), ('memfd', ',precopy=1')):
        with t.case(f'a move as under libvirt, {kind}{options}'):
            move(t, accel, kind, options)
    with t.case('farfork move'):
        farfork_move(t, accel)
    with t.case('-sandbox is taken out of the command line'):
        taken_out(t, accel)
    with t.case('agents'):
        agents(t, accel)
    for kind in ('anon', 'memfd'):
        with t.case(f'a fork, {kind}'):
            fork(t, accel, kind)


if __name__ == '__main__':
    common.main(run, 170)
