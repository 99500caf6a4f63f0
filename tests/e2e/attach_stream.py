#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_stream.py - a guest goes on in another QEMU from a state and a stream of ours; limit: 60 s

Debian's own QEMU 7.2, 10.0, and from the older to the newer one. The destination is an ordinary one:
-incoming defer. All memory is in the stream; there is no pager. A disk that both open shows who has it.
"""
import json
import os
import subprocess
import common
from common import Failed, Micro, check_ledger, check_still_running, say, status
from stocks import Stock

BETWEEN = os.path.join(common.BUILD, 'tests', 'e2e', 'state_between')
STOCK = os.path.join(common.BUILD, 'tests', 'e2e', 'stock-qemu')     # see e2e.mk
VERSIONS = {'7.2': Stock, '10.0': Micro}
WAYS = (('7.2', '7.2', 'pc', 'anon'), ('10.0', '10.0', 'q35', 'memfd'), ('7.2', '10.0', 'pc-i440fx-7.2', 'anon'))
MEM_MIB = 64


def between(*words):
    """What state_between prints."""
    out = subprocess.run([BETWEEN, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         timeout=50, check=False)
    if out.returncode:
        raise Failed(f'state_between: exit {out.returncode}: {out.stderr}')
    say(f'      {out.stderr.strip()} {out.stdout.strip()}')
    return json.loads(out.stdout or '{}')


def second(t, name):
    """A monitor for state_between, beside the test's own."""
    return ['-qmp', f'unix:{t.work}/{name}.qmp2,server=on,wait=off']


def guest(t, version, name, accel, machine, memory, disk, incoming=False):
    extra = [*second(t, name), '-vga', 'std', '-device', 'virtio-blk-pci,drive=disk',
             '-blockdev', f'driver=file,node-name=disk,filename={disk}'] + ['-S'] * incoming
    return VERSIONS[version](t, name, accel, memory, mem_mib=MEM_MIB, machine=machine, extra=extra,
                             incoming=incoming)


def can_open(disk):
    """Whether nobody holds the disk's lock."""
    return not subprocess.run(['qemu-io', '-f', 'raw', '-c', 'write -q 0 512', disk], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=20, check=False).returncode


def one(t, accel, src, dst, machine, memory):
    name = f'{src}-{dst}'
    disk = f'{t.work}/{name}.raw'
    with open(disk, 'wb') as f:
        f.truncate(1 << 20)
    with guest(t, src, f'a-{name}', accel, machine, memory, disk) as a, \
            guest(t, dst, f'b-{name}', accel, machine, memory, disk, incoming=True) as b:
        a.start_load()
        between(f'{a.sock_path}2')          # gives up, and takes back
        check_still_running(a, sweeps=0)
        if can_open(disk):
            raise Failed('the source runs without the lock of its disk')
        seen = between(f'{a.sock_path}2', f'{b.sock_path}2', f'{t.work}/{name}.in')
        if seen['blocks'] < 3 or seen['state'] < 4096:
            raise Failed(f'blocks and bytes: {seen}')
        if status(a) != 'paused' or status(b) != 'running':
            raise Failed(f'source {status(a)}, destination {status(b)}')
        if can_open(disk):
            raise Failed('the destination runs without the lock of its disk')
        a.qmp('quit')
        check_ledger(a, b, sweeps=1)


def refused(t, version, accel):
    """Before the guest is stopped: QEMU saves no state of such memory, and says nothing of it."""
    extra = [*second(t, f'mem-{version}'), '-object', 'memory-backend-ram,id=more,size=16M',
             '-device', 'virtio-mem-pci,id=plugged,memdev=more', '-m', f'{MEM_MIB}M,maxmem=1G']
    with VERSIONS[version](t, f'mem-{version}', accel, mem_mib=MEM_MIB, extra=extra) as a:
        try:
            between(f'{a.sock_path}2')
        except Failed as e:
            if 'plugged (virtio-mem-pci)' not in str(e):
                raise
        else:
            raise Failed('a guest with virtio-mem was saved')
        if status(a) != 'running':
            raise Failed(f'the guest is {status(a)}')


def run(t):
    accel = t.best_accel()
    for version in VERSIONS:
        with t.case(f'{version}: virtio-mem, {accel}'):
            refused(t, version, accel)
    for src, dst, machine, memory in WAYS:
        with t.case(f'{src} to {dst}, {machine}, {memory}, {accel}'):
            one(t, accel, src, dst, machine, memory)


def needs():
    common.need_files(BETWEEN, STOCK)


if __name__ == '__main__':
    common.main(run, 60, needs)
