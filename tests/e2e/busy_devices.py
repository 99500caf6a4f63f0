#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""busy_devices.py - devices that are in the middle of something as their guest is moved; limit: 100 s

busy_devices.py [scsi] [usb] [gpu]: these alone. What pvscsi, USB storage behind EHCI and virtio-gpu leave
to bottom halves when the guest stops is done before their state is saved: the source's memory does not
change afterwards, and where the guest goes on nothing is missing. (QEMU refuses to save NVMe.)

The test is the driver of the two disks, through qtest: it asks for more than a throttled disk has read
when the guest stops, and what is still missing then comes at once. The guest itself keeps the GPU busy.
"""
import contextlib
import hashlib
import os
import socket
import struct
import sys
import time

import common
from attach_stream import BETWEEN, between, second
from common import Failed, Micro, check_ledger, say, status, wait_for
from memory import Memory

MIB = 64
REQUESTS_A_SECOND = 2
WATCH_S = 2             # in which a disk of that rate has read four times
HELD = 'dest.ready=delay:6000000'
PAGE = 4096


class QTest:
    def __init__(self, stack, path):
        sock = stack.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(30)
        sock.connect(path)
        self.file = stack.enter_context(sock.makefile('rw'))

    def do(self, command):
        self.file.write(command + '\n')
        self.file.flush()
        while True:
            answer = self.file.readline()
            if answer.startswith('OK'):
                return answer[2:].strip()
            if not answer or answer.startswith(('FAIL', 'ERR')):
                raise Failed(f'qtest: {command}: {answer}')

    def store(self, address, data):
        self.do(f'write {address:#x} {len(data)} 0x{data.hex()}')

    def load(self, address, form):
        """One number, or the bytes if that is a length."""
        n = form if isinstance(form, int) else struct.calcsize(form)
        data = bytes.fromhex(self.do(f'read {address:#x} {n}')[2:])
        return data if isinstance(form, int) else struct.unpack(form, data)[0]

    def enable(self, slot, bar, address):
        """Memory and bus mastering of a PCI device, @bar at @address."""
        for register, value in ((0x10 + 4 * bar, address), (4, 6)):
            self.do(f'outl 0xcf8 {0x80000000 | slot << 11 | register:#x}')
            self.do(f'outl 0xcfc {value:#x}')


def read10(block, blocks):
    return struct.pack('>BBIBHB', 0x28, 0, block, 0, blocks, 0)


READY = bytes(6)        # TEST UNIT READY, which takes a disk's UNIT ATTENTION away


class Device:
    """Memory below 1 MiB that the guest leaves is its driver's."""

    def __init__(self, t):
        self.image = os.path.join(t.work, self.name + '.img')
        self.content = b''.join(struct.pack('<Q', n) * 64 for n in range(2048))
        with open(self.image, 'wb') as f:
            f.write(self.content)

    def drive(self):
        return ('-drive', f'if=none,id={self.name},format=raw,file={self.image},readonly=on,'
                f'throttling.iops-total={REQUESTS_A_SECOND}')


class Scsi(Device):
    name = 'scsi'
    SLOT, BAR, STATE, ASKED, DONE, DATA = 0x11, 0xe0010000, 0x6a000, 0x6b000, 0x6c000, 0x70000
    READS = 6

    def argv(self, _):
        return ('-device', f'pvscsi,id=pvscsi,addr={self.SLOT:#x}', *self.drive(),
                '-device', f'scsi-hd,bus=pvscsi.0,drive={self.name}')

    def ask(self, q, n, cdb, size):
        q.store(self.ASKED + 128 * n, struct.pack(
            '<QQQQII16sB8sBBB', n, self.DATA + PAGE * n, size, 0, 0, 1 << 3, cdb, len(cdb), bytes(8), 0x20, 0, 0))
        q.store(self.STATE, struct.pack('<I', n + 1))
        q.do(f'writel {self.BAR + 0x4018:#x} 0')

    def done(self, q):
        return q.load(self.STATE + 12, '<I')

    def start(self, q):
        q.enable(self.SLOT, 0, self.BAR)
        pages = [p // PAGE for p in (self.STATE, self.ASKED, self.DONE)]
        words = struct.pack('<IIQQ248xQ248x', 1, 1, *pages)
        q.do(f'writel {self.BAR:#x} 3')         # set up rings
        for w, in struct.iter_unpack('<I', words):
            q.do(f'writel {self.BAR + 4:#x} {w:#x}')
        self.ask(q, 0, READY, 0)
        wait_for('a SCSI disk that is ready', 20, lambda: self.done(q) == 1)

    def busy(self, q):
        for n in range(1, self.READS + 1):
            self.ask(q, n, read10(8 * n, 8), PAGE)
        if self.done(q) > self.READS:
            raise Failed('the SCSI disk has read all')

    def check(self, q):
        wait_for('what was asked of the SCSI disk', 20, lambda: self.done(q) == self.READS + 1)
        for n in range(1, self.READS + 1):
            context, host, scsi = struct.unpack('<Q12xHH', q.load(self.DONE + 32 * n, 24))
            if host or scsi:
                raise Failed(f'pvscsi: request {context}: status {host:#x} {scsi:#x}')
            if q.load(self.DATA + PAGE * context, PAGE) != self.content[PAGE * context:][:PAGE]:
                raise Failed(f'pvscsi: request {context} read something else')


class Usb(Device):
    """One command, which the disk answers by eight requests, and the controller by 64 packets and a status."""
    name = 'usb'
    SLOT, BAR, OUT, IN, COMMAND, STATUS, LIST, DATA = 0x10, 0xe0000000, 0x60000, 0x60080, 0x60400, 0x60600, 0x61000, 0x64000
    PART, PARTS = 16384, 64
    ACTIVE, END = 0x80, 1

    def argv(self, _):
        return ('-device', f'usb-ehci,id=ehci,addr={self.SLOT:#x}', *self.drive(),
                '-device', f'usb-storage,bus=ehci.0,drive={self.name}')

    def operate(self, q, register, value):
        q.do(f'writel {self.BAR + 0x20 + register:#x} {value:#x}')

    def start(self, q):
        q.enable(self.SLOT, 0, self.BAR)
        for queue, other, head, endpoint in ((self.OUT, self.IN, 1, 2), (self.IN, self.OUT, 0, 1)):
            q.store(queue, struct.pack('<12I', other | 2, 512 << 16 | head << 15 | 1 << 14 | 2 << 12 | endpoint << 8,
                                       1 << 30, 0, self.END, self.END, 0, 0, 0, 0, 0, 0))
        self.operate(q, 0x40, 1)        # the ports are its own
        for value in 1 << 12 | 1 << 8, 1 << 12:
            self.operate(q, 0x44, value)        # reset the first one
        self.operate(q, 0x18, self.OUT)
        self.operate(q, 0, 8 << 16 | 1 << 5 | 1)
        self.command(q, READY, 0)
        self.wait(q, [])

    def command(self, q, cdb, size):
        q.store(self.COMMAND, struct.pack('<IIIBBB16s', 0x43425355, 7, size, 0x80, 0, len(cdb), cdb))
        parts = [(self.DATA, self.PART)] * (size // self.PART) + [(self.STATUS, 13)]
        for n, (address, length) in enumerate([(self.COMMAND, 31), *parts]):
            last = n in (0, len(parts))
            q.store(self.LIST + 32 * n, struct.pack(
                '<8I', self.END if last else self.LIST + 32 * (n + 1), self.END,
                length << 16 | 3 << 10 | bool(n) << 8 | self.ACTIVE, *range(address, address + 5 * PAGE, PAGE)))
        q.store(self.OUT + 16, struct.pack('<I', self.LIST))
        wait_for('a USB disk that takes a command', 20, lambda: not q.load(self.LIST + 8, '<I') & self.ACTIVE)
        q.store(self.IN + 16, struct.pack('<I', self.LIST + 32))

    def wait(self, q, parts):
        last = self.LIST + 32 * (len(parts) + 1)
        wait_for('what was asked of the USB disk', 20, lambda: not q.load(last + 8, '<I') & self.ACTIVE)

    def busy(self, q):
        self.command(q, read10(0, self.PART * self.PARTS // 512), self.PART * self.PARTS)
        if not q.load(self.LIST + 32 * (self.PARTS + 1) + 8, '<I') & self.ACTIVE:
            raise Failed('the USB disk has read all')

    def check(self, q):
        self.wait(q, range(self.PARTS))
        for n in range(1, self.PARTS + 2):
            if token := q.load(self.LIST + 32 * n + 8, '<I') & 0x7fff00f8:
                raise Failed(f'EHCI: packet {n} of {self.PARTS + 1}: token {token:#x}')
        signature, _, residue, state = struct.unpack('<IIIB', q.load(self.STATUS, 13))
        if (signature, residue, state) != (0x53425355, 0, 0):
            raise Failed(f'USB disk: signature {signature:#x}, {residue} bytes are missing, status {state}')
        if q.load(self.DATA, self.PART) != self.content[-self.PART:]:
            raise Failed('the USB disk read something else')


class Gpu:
    """The guest asks it for the size of its screen, again and again."""
    name = 'gpu'
    SLOT, BAR, RINGS, TABLE, COMMAND, ANSWER = 0x12, 0xe0020000, 0x80000, 0x83000, 0x83800, 0x84000

    def __init__(self, _):
        pass

    def argv(self, ioeventfd):
        return '-device', f'virtio-gpu-pci,addr={self.SLOT:#x},ioeventfd={ioeventfd}'

    def start(self, q):
        q.enable(self.SLOT, 4, self.BAR)

        def common_config(kind, register, value):
            q.do(f'write{kind} {self.BAR + register:#x} {value:#x}')
        for state in 0, 1, 3:
            common_config('b', 0x14, state)
        for select, features in ((0, 0), (1, 1)):
            common_config('l', 8, select)
            common_config('l', 0xc, features)
        common_config('b', 0x14, 0xb)
        common_config('w', 0x16, 0)
        common_config('w', 0x18, 64)
        for n, address in enumerate((self.TABLE, self.RINGS, self.RINGS + PAGE)):
            common_config('l', 0x20 + 8 * n, address)
            common_config('l', 0x24 + 8 * n, 0)
        common_config('w', 0x1c, 1)
        common_config('b', 0x14, 0xf)
        q.store(self.COMMAND, struct.pack('<I20x', 0x100))
        q.store(self.TABLE, struct.pack('<QIHHQIHH', self.COMMAND, 24, 1, 1, self.ANSWER, 408, 2, 0))
        q.store(self.RINGS, struct.pack('<H', 1))       # no interrupts
        q.store(self.RINGS + 2 * PAGE, struct.pack('<Q', self.BAR + 0x3000))

    def busy(self, q):
        self.check(q)

    def check(self, q):
        def answers():
            return q.load(self.RINGS + PAGE + 2, '<H')
        had = answers()
        wait_for('answers of the GPU', 20, lambda: answers() - had & 0xffff >= 20)
        if (kind := q.load(self.ANSWER, '<I')) != 0x1101:
            raise Failed(f'the GPU answers {kind:#x}')


ALL = {d.name: d for d in (Scsi, Usb, Gpu)}


class Machine:
    def __init__(self, t, devices, ioeventfd, stack):
        self.t, self.stack = t, stack
        self.devices = [ALL[d](t) for d in devices]
        self.argv = [w for d in self.devices for w in d.argv(ioeventfd)]
        self.drivers = {}

    def options(self, name):
        return (*self.argv, '-qtest', f'unix:{self.t.work}/{name}.qtest,server=on,wait=off', '-qtest-log', 'none')

    def micro(self, name, accel, more=(), **kinds):
        return self.stack.enter_context(Micro(self.t, name, accel, mem_mib=MIB, load=f'{common.LOAD} ring={Gpu.RINGS}',
                                              extra=[*self.options(name), *more], **kinds))

    def qtest(self, guest):
        if guest.name not in self.drivers:
            self.drivers[guest.name] = QTest(self.stack, f'{self.t.work}/{guest.name}.qtest')
        return self.drivers[guest.name]

    def start(self, guest):
        q = self.qtest(guest)
        guest.start_load()
        for step in 'start', 'busy':
            for d in self.devices:
                getattr(d, step)(q)

    def check(self, *guests):
        for g in guests:
            q = self.qtest(g)
            for d in self.devices:
                d.check(q)


def digest(guest):
    """Of its memory, as it is now."""
    m = Memory(guest)
    try:
        return {name: hashlib.md5(m.read(at, size)).hexdigest() for name, (at, size, _) in m.blocks.items()}
    finally:
        m.close()


def moved(t, accel, devices):
    with contextlib.ExitStack() as stack:
        m = Machine(t, devices, 'on', stack)
        a = m.micro('a', accel)
        b = m.micro('b', accel, incoming=True, faults=HELD)
        m.start(a)
        uri = common.listen(b)
        start = time.monotonic()
        a.qmp('migrate', uri=uri)
        wait_for('the state of its devices', 20, lambda: common.migration(b).get('x-rdma-postcopy', {}).get('fault-bytes'))
        before = digest(a)
        time.sleep(WATCH_S)     # that is what is tried
        after = digest(a)
        if common.migration(a)['status'] != 'device':
            raise Failed('it was not held before GO')
        if changed := [name for name in before if before[name] != after[name]]:
            raise Failed(f'memory of the source changes after its devices were saved: {changed}')
        common.check_move(common.Moved(a, b, start))
        m.check(b)
        check_ledger(a, b, sweeps=1)


def attached(t, accel, devices):
    """State and memory are taken from outside, by state_between."""
    with contextlib.ExitStack() as stack:
        m = Machine(t, devices, 'on', stack)
        a = m.micro('at-a', accel, more=second(t, 'at-a'))
        b = m.micro('at-b', accel, more=[*second(t, 'at-b'), '-S'], incoming=True)
        m.start(a)
        between(f'{a.sock_path}2', f'{b.sock_path}2', f'{t.work}/at.in', str(1000 * WATCH_S))
        m.check(b)
        check_ledger(a, b, sweeps=1)


def run(t):
    devices = sys.argv[1:] or list(ALL)
    accel = t.best_accel()
    say(f'      {" ".join(devices)}, {accel}')
    for name, case in ('a move', moved), ('a move from outside', attached):
        with t.case(f'{name} of a guest with busy devices'):
            case(t, accel, devices)


def needs():
    common.need_userfaultfd()
    common.need_files(BETWEEN)


if __name__ == '__main__':
    common.main(run, limit_s=100, needs=needs)
