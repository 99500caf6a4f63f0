#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""extract-vmlinux.py - take the ELF kernel out of a bzImage, for a boot by PVH

usage: extract-vmlinux.py BZIMAGE VMLINUX

Purpose   A guest under TCG that starts from the ELF image skips the decompressor,
          which there takes longer than the whole rest of the boot.
Picture   | setup sectors | protected-mode code ... | payload | 4 bytes: its size |
          where the payload begins and ends is in the setup header (protocol 2.08,
          Documentation/arch/x86/boot.rst): nothing is searched for.
Failure   exit 1 with the reason, e.g. no tool for the compression, no PVH entry.
"""
import lzma
import os
import shutil
import struct
import subprocess
import sys
import zlib

# magic, name, command that decompresses from stdin (None: done in Python)
FORMATS = (
    (b'\x28\xb5\x2f\xfd', 'zstd', ['zstd', '-dcq']),
    (b'\xfd7zXZ\x00', 'xz', None),
    (b'\x1f\x8b\x08', 'gzip', None),
    (b'\x02\x21\x4c\x18', 'lz4', ['lz4', '-dcq']),
    (b'\x89LZO', 'lzo', ['lzop', '-dcq']),
    (b'BZh', 'bzip2', ['bzip2', '-dcq']),
    (b'\x5d\x00\x00', 'lzma', None),
    (b'\x7fELF', 'uncompressed', None),
)
PT_NOTE = 4
XEN_PHYS32_ENTRY = 18


class Unusable(Exception):
    pass


def find_payload(image):
    if len(image) < 0x260 or image[0x202:0x206] != b'HdrS':
        raise Unusable('not a bzImage: no HdrS at 0x202')
    version, = struct.unpack_from('<H', image, 0x206)
    if version < 0x208:
        raise Unusable(f'boot protocol {version:#x} (minimum 0x208)')
    sectors = image[0x1f1] or 4
    offset, length = struct.unpack_from('<II', image, 0x248)
    start = (sectors + 1) * 512 + offset
    if length < 8 or start + length > len(image):
        raise Unusable(f'payload {start}+{length} beyond the file ({len(image)})')
    return image[start:start + length]


def decompress(payload):
    for magic, name, command in FORMATS:
        if not payload.startswith(magic):
            continue
        body = payload[:-4]                 # the size that the build appends
        if name == 'uncompressed':
            return name, payload
        if name == 'gzip':                  # whose own trailer is that size
            return name, zlib.decompressobj(31).decompress(payload)
        if name in ('xz', 'lzma'):
            return name, lzma.LZMADecompressor().decompress(body)
        if not shutil.which(command[0]):
            raise Unusable(f'kernel is {name}-compressed: install package {command[0]}')
        done = subprocess.run(command, input=body, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, check=False)
        if done.returncode:
            raise Unusable(f'{command[0]}: {done.stderr.decode(errors="replace").strip()}')
        return name, done.stdout
    raise Unusable(f'compression not known (first bytes {payload[:6].hex()})')


def has_pvh_entry(elf):
    """True if a PT_NOTE segment carries the Xen note that QEMU starts from."""
    phoff, = struct.unpack_from('<Q', elf, 32)
    phentsize, phnum = struct.unpack_from('<HH', elf, 54)
    for i in range(phnum):
        kind, _, offset, _, _, size = struct.unpack_from('<IIQQQQ', elf, phoff + i * phentsize)
        at, end = offset, offset + size
        while kind == PT_NOTE and at + 12 <= end:
            namesz, descsz, note = struct.unpack_from('<III', elf, at)
            if note == XEN_PHYS32_ENTRY and elf[at + 12:at + 15] == b'Xen':
                return True
            at += 12 + (namesz + 3) // 4 * 4 + (descsz + 3) // 4 * 4
    return False


def main():
    if len(sys.argv) != 3:
        sys.exit('usage: extract-vmlinux.py BZIMAGE VMLINUX')
    source, dest = sys.argv[1:]
    try:
        with open(source, 'rb') as f:
            name, elf = decompress(find_payload(f.read()))
        if elf[:5] != b'\x7fELF\x02':
            raise Unusable(f'{name} payload is no 64-bit ELF file')
        if not has_pvh_entry(elf):
            raise Unusable('no PVH entry point (the kernel needs CONFIG_PVH)')
    except (Unusable, OSError, lzma.LZMAError, zlib.error, struct.error) as e:
        sys.exit(f'extract-vmlinux: {source}: {e}')
    part = f'{dest}.part{os.getpid()}'
    with open(part, 'wb') as f:
        f.write(elf)
    os.rename(part, dest)
    print(f'extract-vmlinux: {dest}: {len(elf)} bytes, was {name}')


if __name__ == '__main__':
    main()
