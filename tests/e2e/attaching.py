# SPDX-License-Identifier: LGPL-2.1-or-later
#
# attaching.py - a QEMU of Debian's, and the processes that farfork move starts beside it and there
import os
import signal
import sys

import common
import farfork_move
from common import Failed
from forked import processes_of
from stocks import Stock


class Parent(Stock):
    """With a QMP socket more, which is farfork's."""

    def __init__(self, t, accel, memory, devices=(), **more):
        self.second = os.path.join(t.work, 'parent.second')
        more = {'load': common.LOAD, 'mem_mib': 128, **more}
        super().__init__(t, 'parent', accel, memory,
                         extra=('-qmp', f'unix:{self.second},server=on,wait=off', *devices), **more)


class Move(farfork_move.Move):
    """farfork move as it is by default."""

    def __init__(self, *args, **more):
        super().__init__(*args, via=None, **more)


def cmdline(pid):
    try:
        with open(f'/proc/{pid}/cmdline', encoding='utf-8', errors='replace') as f:
            return f.read()
    except OSError:
        return ''


def side_here(move):
    """The pid of the process beside the QEMU here."""
    return next(pid for pid, _ in processes_of(move.base) if 'attach\0--source' in cmdline(pid))


def side_there(move):
    """The pid of the process beside the QEMU there."""
    return next(pid for pid, _ in processes_of(move.base) if 'attach\0--destination' in cmdline(pid))


def folder_there(move, host='h1'):
    return f'{move.base}/{move.name}/{host}'


def logged(move, event, host='h1'):
    """The process there has said so."""
    log = folder_there(move, host) + '/2.log'
    if not os.path.exists(log):
        return False
    with open(log, encoding='utf-8') as f:
        return f': {event}' in f.read()


def state_of(guest):
    """Of its QEMU's first thread: 't' is held, 'T' stands still."""
    with open(f'/proc/{guest.proc.pid}/stat', encoding='ascii') as f:
        return f.read().rsplit(')', 1)[1].split()[0]


def chosen(*cases):
    """Those of whose names the command line has a part; without arguments all."""
    return [(name, case) for name, case in cases if not sys.argv[1:] or any(part in name for part in sys.argv[1:])]


def check_left_here(parent):
    """Its QEMU was ended by who held it."""
    if parent.proc.wait(20) != -signal.SIGKILL:
        raise Failed(f'{parent.name}: the QEMU here was not ended: exit code {parent.proc.returncode}')
