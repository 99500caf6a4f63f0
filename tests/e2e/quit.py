#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""quit.py - a QEMU ends while a guest moves: by quit, or by its guest's own power-off; limit: 160 s

While the link stands the move ends first, and disks are closed as ever. When it is broken what
can be saved is saved, within seconds, whoever waits for memory that will never come.
"""
import json
import os
import struct
import subprocess
import time

import common
from break_after_go import silent
from common import Failed, GuestError, Micro, check_ledger, hmp, say

MIB = 128
SLOW = 'dest.prefill=delay:30000'
NEVER = ',reconnect=0'          # resume.py has the rest


def pair(t, name, accel, faults=SLOW, extra=()):
    return (Micro(t, name + '-a', accel, mem_mib=MIB, extra=extra),
            Micro(t, name + '-b', accel, mem_mib=MIB, extra=extra, incoming=True, faults=faults))


def begin(src, dst, options=''):
    src.start_load()
    src.qmp('migrate', uri=common.listen(dst, options=options + NEVER) + NEVER)
    for guest in (dst, src):
        common.wait_migration(guest, 'postcopy-active')


def break_link(src, dst):
    common.break_link(src)
    common.wait_migration(dst, 'postcopy-paused')


def code_of(guest, limit_s=10):
    code = guest.exit_code(limit_s)
    if code is None:
        raise Failed(f'{guest.name}: still there after {limit_s} s')
    say(f'      {guest.name}: exit code {code}')
    return code


def quit_and_code(guest, limit_s=10):
    try:
        guest.qmp('quit')
    except GuestError:
        pass                            # it may be gone before it can answer
    return code_of(guest, limit_s)


def given_away(src, dst, state):
    """What was the destination's stays its own, and was right."""
    common.wait_migration(src, state)
    common.check_given_away(src)
    good, reasons = common.ledger(src, dst)
    if not good:
        raise Failed('; '.join(reasons[:5]))
    if quit_and_code(src) != 0:
        raise Failed(f'{src.name}: {src.tail}')


def destination(t, accel, name='dst', faults=SLOW):
    """It fetches the rest first: the source is told that it is needed no more."""
    src, dst = pair(t, name, accel, faults=faults)
    with src, dst:
        begin(src, dst)
        if quit_and_code(dst, 30) != 0:
            raise Failed(f'{dst.name}: ended with {dst.proc.returncode}: {dst.tail}')
        given_away(src, dst, 'completed')


def destination_early(t, accel):
    """Before anybody has begun to fetch the rest: that it will be fetched is what counts."""
    destination(t, accel, 'early', 'dest.running=delay:2000000')


def destination_short(t, accel):
    """While no page can be installed: the link stands, and there is memory again."""
    src, dst = pair(t, 'short', accel, faults='dest.install=fail:12@50-900')
    with src, dst:
        begin(src, dst, ',landing=copy')
        common.wait_migration(dst, 'postcopy-paused')
        common.wait_migration(src, 'postcopy-active')
        if quit_and_code(dst, 60) != 0:
            raise Failed(f'{dst.name}: ended with {dst.proc.returncode}: {dst.tail}')
        given_away(src, dst, 'completed')


def quits_without_waking(dst):
    """Much of its memory is missing, and nobody will bring it."""
    reports = dst.progress()
    if quit_and_code(dst) != 1 or 'memory was missing' not in dst.tail:
        raise Failed(f'{dst.name}: ended with {dst.proc.returncode}: {dst.tail}')
    if dst.progress() != reports:
        raise Failed(f'{dst.name}: a vCPU that waited for memory went on')


def destination_broken(t, accel):
    """vCPUs that wait for memory are not woken to read zeros."""
    src, dst = pair(t, f'broken-{accel}', accel)
    with src, dst:
        begin(src, dst, ',prefill=off')
        break_link(src, dst)
        silent(dst, 'much of its memory is missing')
        quits_without_waking(dst)
        given_away(src, dst, 'postcopy-paused')


def source(t, accel):
    """The source stays for as long as the destination needs it."""
    src, dst = pair(t, 'src', accel)
    with src, dst:
        begin(src, dst)
        if quit_and_code(src, 30) != 0:
            raise Failed(f'{src.name}: {src.tail}')
        common.wait_migration(dst, 'completed')
        check_ledger(src, dst)


def power_off(t, accel):
    """50 ms after GO, as a guest does it: its disk is closed, and the bitmap on it can be used."""
    image = os.path.join(t.work, 'off.qcow2')
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', image, '8M'], check=True, timeout=30)
    disk = ['-blockdev', f'qcow2,node-name=disk,file.driver=file,file.filename={image}',
            '-device', 'virtio-blk-pci,drive=disk']
    src, dst = pair(t, 'off', accel, extra=disk)
    with src, dst:
        src.start_load()
        src.qmp('block-dirty-bitmap-add', node='disk', name='backup', persistent=True)
        src.qmp('migrate', uri=common.listen(dst))
        common.wait_for('RESUME', 30, lambda: 'RESUME' in common.event_names(dst))
        time.sleep(0.05)
        hmp(dst, 'o/h 0x604 0x2000')    # SLP_EN of the PIIX4's PM1a control
        if code_of(dst, 30) != 0:
            raise Failed(f'{dst.name}: ended with {dst.proc.returncode}: {dst.tail}')
        common.wait_migration(src, 'completed')
    info = json.loads(subprocess.run(['qemu-img', 'info', '--output=json', image], check=True,
                                     stdout=subprocess.PIPE, timeout=30).stdout)
    bitmaps = info['format-specific']['data'].get('bitmaps', [])
    if [b['flags'] for b in bitmaps if b['name'] == 'backup'] != [['auto']]:
        raise Failed(f'the bitmap was not stored as it should: {bitmaps}')


# --- a disk whose ring has not come ---

PORT = 0xc000                   # of its legacy registers
PCI = 0x80000000 | 5 << 11      # its slot
RING = (MIB - 4) << 20          # free in the guest, for fill=50


def disk_with_iothread():
    return ['-object', 'iothread,id=io', '-blockdev',
            'null-co,node-name=disk,size=1048576,latency-ns=1000000000',
            '-device', 'virtio-blk-pci,id=disk0,drive=disk,iothread=io,addr=5,'
            'disable-modern=on,disable-legacy=off']


def drive(guest):
    """What a driver does at first; the address of the ring's list of requests."""
    for reg, value in ((0x10, PORT), (0x04, 7)):
        hmp(guest, f'o/w 0xcf8 {PCI | reg:#x}')
        hmp(guest, f'o/w 0xcfc {value:#x}')
    for size, reg, value in (('b', 18, 3), ('w', 4, 0), ('h', 14, 0), ('w', 8, RING >> 12),
                             ('b', 18, 7)):
        hmp(guest, f'o/{size} {PORT + reg:#x} {value:#x}')
    path = guest.qmp('x-query-virtio')[0]['path']
    return guest.qmp('x-query-virtio-queue-status', path=path, queue=0)['vring-avail']


def two_requests(ram, available):
    """A flush, which takes long, and a request whose header has not come."""
    descriptor, header, status, missing = '<QIHH', RING + 1024, RING + 2048, RING + (64 << 10)
    parts = {
        RING: struct.pack(descriptor, header, 16, 1, 1) + struct.pack(descriptor, status, 1, 2, 0) +
              struct.pack(descriptor, missing, 16, 1, 3) + struct.pack(descriptor, status, 1, 2, 0),
        header: struct.pack('<IIQ', 4, 0, 0),
        available: struct.pack('<HHHH', 0, 2, 0, 2),
    }
    with open(ram, 'r+b') as f:
        for at, data in parts.items():
            f.seek(at)
            f.write(data)


def waits_for_memory(guest, tid):
    with open(f'/proc/{guest.pid}/task/{tid}/wchan', encoding='ascii') as f:
        return f.read().strip() == 'handle_userfault'


def iothread(t, accel):
    """One waits for a page of its ring, and so does whoever has to flush its disk."""
    def guest(name, **more):
        ram = os.path.join(t.work, name + '.ram')
        return ram, Micro(t, name, accel, mem_mib=MIB, machine='pc,memory-backend=ram',
                          load='fill=50 ' + common.place.load,
                          extra=['-object', f'memory-backend-file,id=ram,size={MIB}M,share=on,'
                                 f'mem-path={ram}', *disk_with_iothread()], **more)
    _, src = guest('ring-a')
    ram, dst = guest('ring-b', incoming=True)
    with src, dst:
        src.start_load()
        available = drive(src)
        tid = dst.qmp('query-iothreads')[0]['thread-id']
        src.qmp('migrate', uri=common.listen(dst, options=',prefill=off' + NEVER) + NEVER)
        common.wait_migration(dst, 'postcopy-active')
        break_link(src, dst)
        two_requests(ram, available)
        # so that there is something to flush
        hmp(dst, 'qemu-io -d /machine/peripheral/disk0/virtio-backend "write 0 4k"')
        hmp(dst, f'o/h {PORT + 16:#x} 0')
        common.wait_for('iothread that waits for memory', 10, lambda: waits_for_memory(dst, tid))
        if quit_and_code(dst) != 1 or 'memory was missing' not in dst.tail:
            raise Failed(f'{dst.name}: ended with {dst.proc.returncode}: {dst.tail}')
        given_away(src, dst, 'postcopy-paused')


def run(t):
    accel = t.best_accel()
    cases = {
        'the destination quits': destination,
        'the destination quits before prefill begins': destination_early,
        'the destination quits when it is short of memory': destination_short,
        'its guest powers off 50 ms after GO': power_off,
        'the destination quits when the link is broken': destination_broken,
        'as before, and an iothread waits for a page of its ring': iothread,
        'the source quits': source,
    }
    for name, case in cases.items():
        with t.case(f'{name}, {accel}'):
            case(t, accel)
    if accel != 'tcg':                  # where a vCPU that waits cannot be stopped
        with t.case('the destination quits when the link is broken, tcg'):
            destination_broken(t, 'tcg')


if __name__ == '__main__':
    common.main(run, 160)
