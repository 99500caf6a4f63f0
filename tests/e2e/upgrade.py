#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""upgrade.py - a guest moves to a newer version of QEMU, and back

That is how a host is upgraded: its guests move away. The machine type is one that both versions
have, the CPU one that is alike in both. Limit: 280 s.
"""
import contextlib
import copy
import glob
import os

import common
import move_linux
from common import (Failed, Linux, Micro, Skip, check_ledger, check_move, check_still_running, move,
                    say)

CPU = 'qemu64'


def versions():
    """(version, program) of each QEMU that was built, the oldest first."""
    found = []
    for path in glob.glob(os.path.join(common.BUILD, 'qemu-*', 'build', 'qemu-system-x86_64')):
        name = path.split(os.sep)[-3].removeprefix('qemu-')
        found.append((name, path))
    return sorted(found, key=lambda f: [int(n) for n in f[0].split('.')])


def runs(guest, version):
    """The test would prove nothing if one program were the other."""
    now = guest.qmp('query-version')['qemu']
    if f'{now["major"]}.{now["minor"]}' != version:
        raise Failed(f'{guest.name} is QEMU {now}, want {version}')


def micro(t, accel, road, machine, memory='anon', options=''):
    """Along the road of versions; the guest is whole at the end of it."""
    with contextlib.ExitStack() as stack:
        went = []
        for version, program in road:
            guest = stack.enter_context(Micro(
                t, f'h{len(went)}', accel, memory, qemu=program, machine=machine,
                incoming=bool(went), mem_mib=64, extra=['-cpu', CPU]))
            runs(guest, version)
            went.append(guest)
            if len(went) == 1:
                guest.start_load()
                continue
            moved = move(*went[-2:], options=options)
            check_move(moved)
            say(f'      to {version}: {moved.line()}')
            guest.wait('a report', lambda log: len(log.lines) > 0, 60)
        check_ledger(*went)


def linux(t, name, road, machine):
    """With a disk, a tap and a TCP client outside."""
    settings = common.linux_settings(t, name, machine=machine)
    settings.cpu = CPU
    programs = dict(zip('ab', road))

    def qemu(lab, of_both, side):
        own = copy.copy(of_both)
        own.qemu = programs[side][1]
        return Linux(lab, own, side)

    def move_it(a, b):
        for guest in (a, b):
            runs(guest, programs[guest.name][0])
        moved = move(a, b)
        check_move(moved)
        say(f'      {moved.line()}')
    move_linux.under_load(t, settings, move_it, qemu)


def unlike(t, accel, here, there):
    """A machine type without a version is another one there: refused, and the guest runs on."""
    with Micro(t, 'a', accel, mem_mib=64, qemu=here[1]) as a, \
            Micro(t, 'b', accel, mem_mib=64, qemu=there[1], incoming=True) as b:
        a.start_load()
        a.qmp('migrate', uri=common.listen(b))
        reason = common.wait_migration(a, 'failed')['error-desc']
        say(f'      {reason}')
        for version, _ in (here, there):
            if f'pc-i440fx-{version}' not in reason:
                raise Failed(f'the reason does not name the machine of {version}')
        check_still_running(a)


def pair(t, old, new):
    accel = t.best_accel()
    machines = f'pc-i440fx-{old[0]}', f'pc-q35-{old[0]}'
    there = f'{old[0]} to {new[0]}'
    with t.case(f'{there} and back, twice, anon, {accel}'):
        micro(t, accel, (old, new, old, new, old), machines[0])
    with t.case(f'{there} and back, memfd, landing=continue, {accel}'):
        micro(t, accel, (old, new, old), machines[1], 'memfd', ',landing=continue')
    with t.case(f'{there} and back, precopy=1, {accel}'):
        micro(t, accel, (old, new, old), machines[1], 'anon', ',precopy=1')
    with t.case(f'{there}, Linux, tcg'):
        linux(t, 'newer', (old, new), machines[1])
    with t.case(f'{new[0]} to {old[0]}, Linux, tcg'):
        linux(t, 'older', (new, old), machines[1])
    with t.case(f'{there}: machine types without a version, {accel}'):
        unlike(t, accel, old, new)


def run(t):
    built = versions()
    if len(built) < 2:
        raise Skip(f'QEMU of two versions is wanted, built: {[v for v, _ in built]}: run make '
                   'qemu-versions')
    for old, new in zip(built, built[1:]):
        pair(t, old, new)


if __name__ == '__main__':
    common.main(run, 280)
