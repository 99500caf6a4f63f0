#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_blocks.py - every RAM block of a QEMU is found from outside; limit: 100 s

Blocks of one length among them: ROMs of two NICs, VGA memory, flash, backends. Debian's 7.2 prints
no addresses, and 10.0's are kept from outside_place(). What stands at each address has to be, page
by page, what QEMU itself writes into its migration stream under the block's name.
"""
import os
import shutil
import socket
import struct
import common
from common import Failed, say
from outside import LOOK, STOCK, VERSIONS, guest, look

PAGE = 4096
ZERO, MEM_SIZE, FULL, EOS, CONTINUE = 2, 4, 8, 16, 32       # flags of the section "ram"
START, PART, END, FOOTER, CONFIGURATION, COMMAND = 1, 2, 3, 0x7e, 7, 8
FIRMWARE = '/usr/share/seabios/bios-256k.bin'
UEFI = '/usr/share/OVMF/OVMF_CODE_4M.fd', '/usr/share/OVMF/OVMF_VARS_4M.fd'


class SeaBios:
    """A guest with SeaBIOS: it maps ROMs and VGA memory; qboot does not."""

    def __enter__(self):
        at = self.argv.index('-bios')
        del self.argv[at:at + 2]
        return super().__enter__()


BOOTED = {v: type(f'Booted{c.__name__}', (SeaBios, c), {}) for v, c in VERSIONS.items()}


class Stream:
    def __init__(self, sock):
        self.file = sock.makefile('rb')

    def take(self, form):
        return struct.unpack('>' + form, self.file.read(struct.calcsize('>' + form)))[0]

    def word(self):
        return self.file.read(self.take('B')).decode()


def ram_pages(s):
    """Yield (block, offset, page) of the sections "ram", and 0 pages as zeros."""
    if s.take('I') != 0x5145564d or s.take('I') != 3:
        raise Failed('no migration stream')
    block, is_over = '', False
    while not is_over:
        kind = s.take('B')
        if kind == CONFIGURATION:
            s.file.read(s.take('I'))
            continue
        if kind == COMMAND:                 # 10.0 says that it switches over
            s.file.read((s.take('H'), s.take('H'))[1])
            continue
        if kind not in (START, PART, END):
            raise Failed(f'a section of kind {kind} before the end of RAM')
        number = s.take('I')
        if kind == START and (s.word(), s.take('Q'))[0] != 'ram':
            raise Failed('a section that iterates, and is not RAM')
        is_over = kind == END
        while not (flags := (where := s.take('Q')) & (PAGE - 1)) & EOS:
            offset = where & -PAGE
            if flags & MEM_SIZE:
                while offset > 0:
                    s.word()
                    offset -= s.take('Q')
            elif flags & (ZERO | FULL):
                block = block if flags & CONTINUE else s.word()
                yield block, offset, bytes(PAGE) if flags & ZERO and not s.file.read(1)[0] else \
                    s.file.read(PAGE)
            else:
                raise Failed(f'flags {flags:#x}')
        if s.take('B') != FOOTER or s.take('I') != number:
            raise Failed('no footer')


def check_pages(t, g, blocks):
    """Against what QEMU sends."""
    path = f'{t.work}/{g.name}.stream'
    places, seen = {b['name']: b for b in blocks}, dict.fromkeys((b['name'] for b in blocks), 0)
    with socket.socket(socket.AF_UNIX) as door, \
            open(f'/proc/{g.pid}/mem', 'rb', buffering=0) as mem:
        door.settimeout(20)
        door.bind(path)
        door.listen()
        g.qmp('migrate-set-parameters', **{'max-bandwidth': 0})
        g.qmp('migrate', uri=f'unix:{path}')
        with door.accept()[0] as sock:
            sock.settimeout(20)
            for name, offset, page in ram_pages(Stream(sock)):
                if name not in places:
                    raise Failed(f'QEMU migrates {name}, which was not found')
                if os.pread(mem.fileno(), PAGE, places[name]['hva'] + offset) != page:
                    raise Failed(f'{name}: another page at {offset:#x} of {places[name]}')
                seen[name] += PAGE
    for b in blocks:
        if seen[b['name']] < b['len']:
            raise Failed(f'{b["name"]}: {seen[b["name"]]} bytes compared: {b}')


def check(t, g, want, twins):
    blocks = look(g, 'every')
    for b in blocks:
        if b['told'] not in (0, b['hva']):
            raise Failed(f'{b["name"]}: {b["hva"]:#x}, but QEMU prints {b["told"]:#x}')
        kind, shared = want.get(b['name'], ('anonymous', False))
        if (b['kind'], b['shared'], b['file']) != (kind, shared, shared):
            raise Failed(f'want {kind}, shared {shared}: {b}')
    lengths = [b['max'] for b in blocks]
    if sum(lengths.count(n) > 1 for n in lengths) < twins or \
            not any(b['max'] > b['len'] for b in blocks):
        raise Failed(f'want {twins} blocks that have the length of another, and a resizable one: '
                     f'{blocks}')
    check_pages(t, g, blocks)
    say(f'      {len(blocks)} blocks')


def flash(t, code, variables=None):
    """Two of them, of one length where there are no @variables."""
    path = f'{t.work}/vars.fd'
    shutil.copy(variables or code, path)
    return ['-drive', f'if=pflash,format=raw,readonly=on,file={code}',
            '-drive', f'if=pflash,format=raw,file={path}']


def backends(kind, names, size_mib):
    return [w for n in names for w in ('-object', f'memory-backend-{kind},id={n},size={size_mib}M')]


def network_cards(t):
    """Two of one model, whose ROMs differ in nothing but their bytes."""
    for i in (1, 2):
        with open(f'{t.work}/rom{i}', 'wb') as f:
            f.write(bytes([i]) * 65536)
        yield from ('-device', f'e1000,romfile={t.work}/rom{i}')


def booted(t, version, accel, twins, want, memory='anon', extra=()):
    name = f'{memory}-{version}'
    second = ['-qmp', f'unix:{t.work}/{name}.qmp2,server=on,wait=off']
    with BOOTED[version](t, name, accel, memory, mem_mib=64, extra=[*extra, *second]) as g:
        g.start_load()
        g.qmp('stop')
        check(t, g, want, twins)


def run(t):
    accel = t.best_accel()
    for version in VERSIONS:
        with t.case(f'{version}: pc, flash and NICs of one length, two DIMMs'):
            booted(t, version, accel, 6, {}, extra=[
                '-device', 'VGA', *network_cards(t), *flash(t, FIRMWARE),
                '-m', 'size=64M,slots=2,maxmem=1G', *backends('ram', ('d0', 'd1', 'unused'), 32),
                '-device', 'pc-dimm,memdev=d0', '-device', 'pc-dimm,memdev=d1'])
        with t.case(f'{version}: pc, memfd, two VGAs of one length'):
            booted(t, version, accel, 2, {'ram': ('memfd', True)}, 'memfd', extra=[
                '-device', 'VGA', '-device', 'secondary-vga'])
        with t.case(f'{version}: q35, two backends of one length, UEFI that has not run'):
            common.need_files(*UEFI)
            with guest(t, version, f'q35-{version}', accel, machine='q35', extra=[
                    '-S', '-device', 'VGA', '-device', 'virtio-net-pci', '-device',
                    'virtio-net-pci', *flash(t, *UEFI), *backends('ram', ('n0', 'n1'), 32),
                    '-numa', 'node,memdev=n0', '-numa', 'node,memdev=n1']) as g:
                check(t, g, {}, 4)


def needs():
    common.need_files(LOOK, STOCK, FIRMWARE)


if __name__ == '__main__':
    common.main(run, 100, needs)
