#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""owner.py - the guest of another user is neither forked nor moved: nothing of his is run

A process of the user nobody answers as QEMU would, in two ways: it became his before it made its
socket, or after. Limit: 60 s.
"""
import contextlib
import os
import pwd
import shutil
import signal

import common
from attaching import Move
from common import Failed, Skip, wait_for
from forked import Clone, FakeParent, check_nothing_left, check_result

OK, EMPTY = {'return': {}}, {'return': []}
REPLIES = {'qmp_capabilities': OK, 'query-migrate': OK, 'qom-list': EMPTY,
           'query-commands': {'return': [{'name': 'x-rdma-postcopy-not-started'}]},
           'query-status': {'return': {'status': 'running', 'running': True}},
           'query-block': EMPTY, 'query-named-block-nodes': EMPTY, 'query-rx-filter': EMPTY,
           'query-jobs': EMPTY, 'query-block-exports': EMPTY}


def become(user):
    os.setgroups([])
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)


class Here:
    """What FakeParent asks of a test: the folder, which this process is in."""
    work = ''


@contextlib.contextmanager
def foreign(t, user, late):
    """Its QMP socket; late: the socket was made by root."""
    folder = os.path.join(t.work, 'late' if late else 'early')
    os.mkdir(folder, 0o755)
    os.chown(folder, user.pw_uid, user.pw_gid)
    pid = os.fork()
    if not pid:
        os.chdir(folder)        # the folders above it are root's alone
        if not late:
            become(user)
        parent = FakeParent(Here, REPLIES)
        if late:
            become(user)
        os.rename('fake.qmp', 'ready.qmp')
        parent.thread.join()
        os._exit(0)
    try:
        path = os.path.join(folder, 'ready.qmp')
        wait_for('its socket', 20, lambda: os.path.exists(path))
        yield path
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        shutil.rmtree(folder)


def refused(t, user, late, start, check):
    """Not by the program that is named either: what it is told to open is the other user's choice."""
    mark, program = os.path.join(t.work, 'mark'), os.path.join(t.work, 'program')
    common.write_file(program, f'#!/bin/sh\ntouch {mark}\n')
    os.chmod(program, 0o755)
    with foreign(t, user, late) as path, start(path, program) as run:
        check(run)
        error = run.result['error']
        if f'sudo -u {user.pw_name}' not in error:
            raise Failed(f'it says: {error}')
        check_nothing_left(run)
    if os.path.exists(mark):
        raise Failed('a program was run')


def run(t):
    if os.geteuid():
        raise Skip('needs root, to be another user')
    user = pwd.getpwnam('nobody')
    for late in False, True:
        with t.case(f'a fork, his {"since then" if late else "from the start"}'):
            refused(t, user, late, lambda path, program: Clone(t, path, 1, '--qemu', program),
                    lambda c: check_result(c, 3, {'failed': 1}))
        with t.case(f'a move, his {"since then" if late else "from the start"}'):
            refused(t, user, late, lambda path, program: Move(
                t, path, '--qemu', program, '--timeout', '5'), lambda m: m.end(1, 'here'))


if __name__ == '__main__':
    common.main(run, limit_s=60)
