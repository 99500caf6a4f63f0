#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""ordinary_user.py - moves and forks by a user who is in group kvm and may open /dev/userfaultfd

Root starts it: it plays a host whose udev rule gives that group the device, in a mount namespace of
its own, and goes on there as a user without any capability. Limit: 260 s.
"""
import os
import subprocess
import sys

import common
import sandbox
import stocks
from attaching import Move
from common import Failed, Micro, Skip, check_ledger, check_move, event_names
from farfork_move import there
from forked import (ELSEWHERE, Child, Clone, ForkParent, check_nothing_left, check_result, kill,
                    snapshot)
from promote import promoted

MIB = 64
LIMIT_S = 260
USER = '4242'
DEVICE = '/dev/userfaultfd'
TOP = os.path.dirname(os.path.dirname(common.HERE))
SCRIPT = f'''set -e
mkdir top build dev qemu
mount --bind "$1" top
mount --bind "$2" build
mount --bind "$6" qemu      # which is in a folder of root's
mount -t tmpfs none build/tests/e2e
ln -s "$PWD/qemu" "build/tests/e2e/$7"
mount -t tmpfs -o mode=755 none dev
mknod -m 660 dev/node c "$4" "$5"
chgrp "$3" dev/node
mount --bind dev/node {DEVICE}
exec env PATH=/usr/sbin:/usr/bin:/sbin:/bin FARFORK_TOP="$PWD/top" FARFORK_BUILD="$PWD/build" \\
    setpriv --reuid={USER} --regid={USER} --groups="$3" --inh-caps=-all --bounding-set=-all \\
    --no-new-privs /usr/bin/python3 -B top/tests/e2e/ordinary_user.py inside
'''


def by_hand(t, accel, kind):
    """Without a key: both are this user's."""
    with Micro(t, f'a-{kind}', accel, kind, MIB) as a, \
            Micro(t, f'b-{kind}', accel, kind, MIB, incoming=True) as b:
        a.start_load()
        check_move(common.move(a, b))
        check_ledger(a, b)


def farfork_move(t, accel):
    with ForkParent(t, accel, mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a) as m:
            with there(t, 'b', m.end(0, 'there')) as b:
                check_ledger(a, b)


def fork(t, accel, kind, *args, hosts=()):
    with ForkParent(t, accel, memory=kind, mem_mib=MIB) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 2, *args, hosts=hosts) as c:
            check_result(c, 0, {'complete': 2})
            for row in c.children:
                Child(row, parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def no_fork(t, accel):
    """Who may not suspend the filter may not attach: said before the guest stands still."""
    with ForkParent(t, accel, extra=sandbox.AS_LIBVIRT, mem_mib=MIB) as parent:
        parent.start_load()
        with Clone(t, parent, 1) as c:
            check_result(c, 3, {'failed': 1})
            if 'run farfork as root' not in (said := f'{c.result["error"]} {c.children}'):
                raise Failed(f'it does not say what to do: {said}')
            if 'STOP' in event_names(parent):
                raise Failed('the parent was paused')
            check_nothing_left(c, parent)


def inside(t):
    with open('/proc/self/status', encoding='ascii') as f:
        status = dict(line.rstrip('\n').split(':\t', 1) for line in f)
    if not os.geteuid() or any(int(status[c], 16) for c in ('CapPrm', 'CapEff', 'CapAmb')):
        raise Failed(f'this is no ordinary user: {status["Uid"]}, {status["CapEff"]}')
    accel = t.best_accel()
    for kind in ('anon', 'memfd'):
        with t.case(f'a move by hand, {kind}, {accel}'):
            by_hand(t, accel, kind)
    with t.case(f'farfork move, {accel}'):
        farfork_move(t, accel)
    for kind in ('anon', 'memfd'):
        with t.case(f'vmclone to this host, {kind}, {accel}'):
            fork(t, accel, kind)
        with t.case(f'farfork promote, {kind}, {accel}'):
            promoted(t, kind)
    with t.case(f'vmclone to another host, {accel}'):
        fork(t, accel, 'anon', *ELSEWHERE, hosts=['h1=127.0.0.1'])
    with t.case(f'a move under -sandbox, {accel}'):
        sandbox.move(t, accel, 'memfd')
    with t.case(f'no fork under -sandbox, {accel}'):
        no_fork(t, accel)


def outside(t):
    if os.geteuid():
        return inside(t)
    if not os.path.exists(DEVICE):
        raise Skip(f'no {DEVICE}: kernel 6.1 has it')
    if not os.path.exists('/dev/kvm'):
        raise Skip('no /dev/kvm, whose group is that of the user')
    os.chmod(t.work, 0o711)
    node = os.stat(DEVICE).st_rdev
    with t.case('as an ordinary user'):
        rc = subprocess.run(['unshare', '--mount', 'sh', '-c', SCRIPT, 'sh', TOP,
                             os.path.abspath(common.BUILD), str(os.stat('/dev/kvm').st_gid),
                             str(os.major(node)), str(os.minor(node)),
                             os.path.dirname(stocks.qemu_of(stocks.of_host())), stocks.of_host()],
                            cwd=t.work, timeout=LIMIT_S, check=False).returncode
        if rc:
            raise Failed(f'exit code {rc}; what it says is above')


if __name__ == '__main__':
    common.main(inside if sys.argv[1:] == ['inside'] else outside, LIMIT_S)
