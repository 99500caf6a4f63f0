# SPDX-License-Identifier: LGPL-2.1-or-later
#
# stocks.py - unpatched QEMUs of Debian's, downloaded and unpacked: e2e.mk, stock-qemu
import os

import common

OLDEST, TRIXIE, NEWEST = 'stock-qemu', 'stock-qemu-trixie', 'stock-qemu-sid'


def qemu_of(stock):
    """The program; /proc/PID/exe of it is another."""
    return os.path.join(os.path.realpath(os.path.join(common.BUILD, 'tests', 'e2e', stock)),
                        'qemu-system-x86_64')


def modules_of(stock):
    """What the program at its root's top tells it; who copies its command line has to, too."""
    return os.path.join(os.path.dirname(qemu_of(stock)), 'usr/lib/x86_64-linux-gnu/qemu')
