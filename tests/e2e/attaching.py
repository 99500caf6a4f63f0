# SPDX-License-Identifier: LGPL-2.1-or-later
#
# attaching.py - a QEMU of Debian's, and the processes that farfork move starts beside it and there
import fcntl
import glob
import os
import signal
import socket
import struct
import sys
import termios
import threading
import time

import common
import farfork_move
from busy_devices import QTest
from common import Failed
from forked import ENVIRON, processes_of
from stocks import Stock


class Parent(Stock):
    """With a QMP socket more, which is farfork's."""

    def __init__(self, t, accel, memory, devices=(), **more):
        self.second = os.path.join(t.work, 'parent.second')
        more = {'load': common.LOAD, 'mem_mib': 128, **more}
        super().__init__(t, 'parent', accel, memory,
                         extra=('-qmp', f'unix:{self.second},server=on,wait=off', *devices), **more)


class Move(farfork_move.Move):
    """farfork move as it is by default, and of the QEMU that forks are of."""
    environ = ENVIRON

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


class Input:
    """A UART into which bytes come from the moment on at which its guest is stopped.

    What its QEMU has read is in that UART, or lost.
    """
    BASE, SENT = 0x2f8, 12

    def __init__(self, t):
        self.paths = {k: os.path.join(t.work, f'input.{k}') for k in ('qtest', 'bytes', 'qmp')}
        self.devices = ('-qtest', f'unix:{self.paths["qtest"]},server=on,wait=off', '-qtest-log', 'none',
                        '-qmp', f'unix:{self.paths["qmp"]},server=on,wait=off',
                        '-chardev', f'socket,id=input,path={self.paths["bytes"]},server=on,wait=off',
                        '-device', f'isa-serial,chardev=input,iobase={self.BASE:#x},irq=3')
        self.taken = None
        self.thread = threading.Thread(target=self.feed)

    def start(self, stack):
        QTest(stack, self.paths['qtest']).do(f'outb {self.BASE + 2:#x} 0xc1')     # it has a FIFO
        self.sock, self.events = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        self.sock.connect(self.paths['bytes'])
        self.events.connect(self.paths['qmp'])
        self.events.sendall(b'{"execute": "qmp_capabilities"}\n')
        self.thread.start()

    def feed(self):
        def unread(sock):
            return struct.unpack('i', fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]
        with self.events.makefile() as f:
            while '"STOP"' not in f.readline():
                pass
        for n in range(self.SENT):
            self.sock.send(bytes([n]))
            time.sleep(0.02)
        a, b = socket.socketpair()
        with a, b:
            a.send(b'x')
            self.taken = self.SENT - unread(self.sock) // unread(a)

    def check(self, stack, folder):
        """Those that this QEMU had read have come to that one."""
        self.thread.join()
        q, n = QTest(stack, glob.glob(f'{folder}/*.input.qtest')[0]), 0
        while int(q.do(f'inb {self.BASE + 5:#x}'), 16) & 1:
            if int(q.do(f'inb {self.BASE:#x}'), 16) != n:
                raise Failed(f'byte {n} is another one')
            n += 1
        if n != self.taken or n == self.SENT:
            raise Failed(f'{self.taken} bytes of {self.SENT} were read here, {n} are there')
