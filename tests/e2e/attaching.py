# SPDX-License-Identifier: LGPL-2.1-or-later
#
# attaching.py - a QEMU of Debian's, and the processes that farfork move starts beside it and there
import os

import common
from forked import processes_of
from stock_stream import Stock


class Parent(Stock):
    """With a QMP socket more, which is farfork's."""

    def __init__(self, t, accel, memory, devices=(), **more):
        self.second = os.path.join(t.work, 'parent.second')
        super().__init__(t, 'parent', accel, memory, load=common.LOAD,
                         extra=('-qmp', f'unix:{self.second},server=on,wait=off', *devices), **more)


def cmdline(pid):
    try:
        with open(f'/proc/{pid}/cmdline', encoding='utf-8', errors='replace') as f:
            return f.read()
    except OSError:
        return ''


def side_here(move):
    """The pid of the process beside the QEMU here."""
    return next(pid for pid, _ in processes_of(move.base) if 'attach\0--source' in cmdline(pid))


def folder_there(move):
    return f'{move.base}/{move.name}/h1'


def logged(move, event):
    """The process there has said so."""
    log = folder_there(move) + '/2.log'
    if not os.path.exists(log):
        return False
    with open(log, encoding='utf-8') as f:
        return f': {event}' in f.read()
