# SPDX-License-Identifier: LGPL-2.1-or-later
#
# memory.py - look at the guest memory of a QEMU from outside, and compare two
"""
compare(src, dst) reads every RAM block of both processes, also what no guest address shows
(ROMs, shadowed RAM), so it needs the right to read /proc/PID/mem: root, or the same user
where ptrace is permitted.
"""
import os
import re
import struct

from common import PAGE, Failed, Skip, hmp


class Memory:
    """All RAM blocks of a QEMU, through /proc/PID/mem."""

    def __init__(self, guest):
        self.blocks = {}            # name: (address, bytes in use, page size)
        for row in hmp(guest, 'info ramblock').splitlines():
            m = re.match(r' *(\S+) +(\d+) ([KMG])iB +0x\S+ +(0x\S+) +0x\S+ +(0x\S+)', row)
            if m:
                psize = int(m[2]) << {'K': 10, 'M': 20, 'G': 30}[m[3]]
                self.blocks[m[1]] = (int(m[5], 16), int(m[4], 16), psize)
        if not self.blocks:
            raise Failed(f'{guest.name}: no memory blocks in `info ramblock`')
        try:
            self.mem = os.open(f'/proc/{guest.pid}/mem', os.O_RDONLY)
            self.map = os.open(f'/proc/{guest.pid}/pagemap', os.O_RDONLY)
        except PermissionError as e:
            raise Skip(f'{e}: run as root') from None

    def close(self):
        os.close(self.mem)
        os.close(self.map)

    def read(self, address, size):
        data = bytearray()
        while len(data) < size:
            part = os.pread(self.mem, size - len(data), address + len(data))
            if not part:
                raise Failed(f'short read of guest memory at {address:#x}')
            data += part
        return bytes(data)

    def present(self, address, pages):
        """For each 4 KiB page: is it mapped? Reading one that is not would be a fault."""
        raw = os.pread(self.map, 8 * pages, address // PAGE * 8)
        return [v >> 63 == 1 for v in struct.unpack(f'<{len(raw) // 8}Q', raw)]


def compare(src, dst, names=None, only_present=False, start=0):
    """Compare the memory of two QEMUs byte for byte; (bytes compared, pages left out)."""
    a, b = Memory(src), Memory(dst)
    step = 4 << 20
    done = missing = 0
    try:
        if set(a.blocks) != set(b.blocks):
            raise Failed(f'memory blocks differ: {sorted(a.blocks)} and {sorted(b.blocks)}')
        for name in names or a.blocks:
            (here, size, _), (there, size_b, _) = a.blocks[name], b.blocks[name]
            if size != size_b:
                raise Failed(f'{name}: {size} and {size_b} bytes')
            for at in range(start, size, step):
                n = min(step, size - at)
                runs = [(at, n)]
                if only_present:
                    there_is = b.present(there + at, n // PAGE)
                    runs = [(at + i * PAGE, PAGE) for i, p in enumerate(there_is) if p]
                    missing += n // PAGE - len(runs)
                for where, length in runs:
                    x, y = a.read(here + where, length), b.read(there + where, length)
                    if x != y:
                        k = next(i for i in range(length) if x[i] != y[i])
                        raise Failed(f'{name}: byte {where + k:#x} differs: {x[k]:#x} at the '
                                     f'source, {y[k]:#x} at the destination')
                    done += length
        return done, missing
    finally:
        a.close()
        b.close()
