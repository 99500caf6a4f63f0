# SPDX-License-Identifier: LGPL-2.1-or-later
"""soak_guests.py - guests of soak.py: the QEMUs that have run one of them, its ledger, its disk"""
import os
import subprocess

import common
import forked
from common import Micro
from forked import LOAD
from take_back import io

MIB = 64
NEED = ('mem', 'counter', 'disk')
KINDS = ('anon', 'anon', 'memfd', 'memfd', 'hugetlb')
PLACES = 32         # on its disk, each of 64 KiB


class Guest:
    """The micro guest, and the QEMUs that have run it, the last of which does. Where it has a disk,
    QEMU writes to it before each step, and reads after it what it must hold."""
    forks = True

    def __init__(self, t, number, draw):
        self.t, self.number, self.count = t, number, 0
        self.holds, self.chain = {}, []
        try:
            self.boot(draw)
        except BaseException:
            self.close()
            raise
        self.about = f'{self.kind}, {self.smp} CPUs, {self.accel}, ' \
                     f'{"a disk" if self.disk else "no disk"}'

    def boot(self, draw):
        self.accel, self.kind = draw.choice(self.t.accels()), draw.choice(KINDS)
        self.smp, self.disk = draw.choice((1, 1, 2)), draw.choice((None, True))
        if self.kind == 'hugetlb':
            self.t.reserve_huge(7 * MIB)        # it, where it goes, three children, what they write
        if self.disk:
            self.disk = self.image()
        self.chain = [self.qemu()]
        self.now.__enter__()
        self.now.start_load()

    @property
    def now(self):
        return self.chain[-1]

    def name(self):
        self.count += 1
        return f'guest{self.number}-{self.count}'

    def image(self, behind=None):
        path = os.path.join(self.t.work, self.name() + '.qcow2')
        subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2',
                        *(('-u', '-b', behind, '-F', 'qcow2') if behind else ()), path,
                        f'{PLACES * 64}k'], check=True, timeout=20)
        return path

    def top(self):
        """The image that it writes to; forks put others on top"""
        return self.now.qmp('query-block')[0]['inserted']['file']

    def qemu(self, disk=None, **more):
        name = self.name()
        second = os.path.join(self.t.work, name + '.second')
        extra = ['-qmp', f'unix:{second},server=on,wait=off']
        if self.disk:
            disk = disk or (self.top() if more else self.disk)
            extra += ['-drive', f'file={disk},format=qcow2,if=none,id=d0', '-device',
                      'virtio-blk-pci,drive=d0']
        q = Micro(self.t, name, self.accel, self.kind, MIB, smp=self.smp, load=LOAD, extra=extra,
                  **more)
        q.second = second
        q.armed = None          # a fault of its own, as a source
        return q

    def begin(self, dst):
        dst.__enter__()

    def mark(self, number):
        """Before a step"""
        if self.disk:
            place, self.holds[number % PLACES] = number % PLACES, number % 255 + 1
            io(self.now, f'write -P {self.holds[place]} {place * 64}k 64k')

    def check(self):
        common.check_ledger(*self.chain, sweeps=1)
        for place, value in self.holds.items():
            io(self.now, f'read -P {value} {place * 64}k 64k')

    def close(self):
        for q in self.chain[-2:]:
            q.close()


class LinuxGuest(Guest):
    """Linux, which checks its memory and its disk itself; it is moved, and not forked."""
    forks = False

    def boot(self, draw):
        self.accel, self.kind, self.smp = 'tcg', draw.choice(('anon', 'memfd')), 1
        self.disk = None        # of QEMU's; it has its own
        self.settings = common.linux_settings(self.t, f'linux{self.number}', memory=self.kind)
        self.chain = [self.qemu()]
        self.now.start()
        common.linux_boot(self.now)

    def qemu(self, incoming=False, faults=None):    # pylint: disable=arguments-differ
        q = common.Linux(None, self.settings, self.name())
        q.armed, q.how = None, (incoming, faults)
        return q

    def begin(self, dst):
        dst.start(*dst.how)

    def check(self):
        common.linux_progress(self.settings, NEED)
        common.linux_check(self.settings, NEED, 120000)     # what is paused is silent


def alive(g):
    return forked.alive(g.pid)
