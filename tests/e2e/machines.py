#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""machines.py - machines of several kinds, and what was plugged into them, are the same elsewhere

Memory and CPUs that were plugged in are with the guest after a move, after another, and in the
children of a fork; any other difference between the two machines is refused by name, while the
guest goes on. make check has one kind of machine, FARFORK_FULL=1 the others. Limit: 150 s, or 300.
"""
import glob
import json
import os
import shlex
import subprocess
import sys

import common
import forked
from attaching import Move
from common import Failed, check_ledger, hmp
from farfork_move import check_here, check_left_here, there
from forked import ELSEWHERE, QEMU, Child, Clone, ForkParent, check_nothing_left, check_result, kill, snapshot

MIB, DIMM_MIB, MACHINE_MIB = 64, 32, 24
LIMIT_S = 300 if common.FULL else 150
ROOM = ('-m', f'size={MIB}M,slots=4,maxmem=1G', '-smp', '1,maxcpus=4')
CPU_PORTS = 0xaf00              # of a pc: ACPI's registers of CPUs: selector, then at 4 flags
EJECT = 8


def plug(guest):
    """Two DIMMs and two CPUs, of each one without an id."""
    for name in ('one', 'two'):
        guest.qmp('object-add', **{'qom-type': 'memory-backend-ram', 'id': f'mem-{name}',
                                   'size': DIMM_MIB << 20})
    guest.qmp('device_add', driver='pc-dimm', id='dimm1', memdev='mem-one', slot=2)
    guest.qmp('device_add', driver='pc-dimm', memdev='mem-two')
    for more, cpu in zip(({'id': 'cpu-late'}, {}), free_cpus(guest)):
        guest.qmp('device_add', driver=cpu['type'], **more, **cpu['props'])


def free_cpus(guest):
    return [c for c in reversed(guest.qmp('query-hotpluggable-cpus')) if 'qom-path' not in c]


def machine_of(ask):
    """What a guest sees of plugged memory and CPUs."""
    dimms = [{k: d['data'][k] for k in ('addr', 'slot', 'size', 'node', 'memdev')}
             for d in ask('query-memory-devices')]
    cpus = [c['props'] for c in ask('query-hotpluggable-cpus') if 'qom-path' in c]
    return {'dimms': sorted(dimms, key=lambda d: d['addr']), 'cpus': cpus}


def check_machine(want, ask, who):
    got = machine_of(ask)
    if got != want or len(got['dimms']) != 2 or len(got['cpus']) != 3:
        raise Failed(f'{who}: it has {got}, want {want}')


def plugged(t, accel):
    with ForkParent(t, accel, mem_mib=MIB, extra=ROOM) as a:
        plug(a)
        a.start_load()
        want = machine_of(a.qmp)
        with Clone(t, a, 2) as c:
            check_result(c, 0, {'complete': 2})
            for row in c.children:
                check_machine(want, lambda q, row=row: forked.ask(row['qmp'], q), 'a child')
            kill(c.base, 'f')
        with Move(t, a, name='m1') as m1:
            m1.end(0, 'there')
            check_left_here(t, a, m1)
            with there(t, 'b', m1.result) as b:
                check_machine(want, b.qmp, 'after a move')
                with Move(t, b, host='h2=127.0.0.1', name='m2') as m2:
                    m2.end(0, 'there')
                    with there(t, 'c', m2.result) as c:
                        check_machine(want, c.qmp, 'after two moves')
                        check_ledger(a, b, c)
                    kill(m2.base, 'm2')
                    check_nothing_left(m2)


def refuse(t, guest, text, *args):
    with Move(t, guest, *args) as m:
        m.end(1, 'here', text)
        check_here(m, guest)


def wrapper(t, name, more):
    """A QEMU as another host would have it."""
    path = os.path.join(t.work, name)
    qemu = shlex.quote(QEMU)
    common.write_file(path, '#!/bin/sh\n'  # -M none has no processor
                      f'case " $* " in *" -M none "*) exec {qemu} "$@" ;; esac\n'
                      f'exec {qemu} "$@" {more}\n')
    os.chmod(path, 0o700)
    return path


def some_flags(guest):
    """That its CPU has, and that no program of the micro guest's needs."""
    cpu = guest.qmp('query-cpus-fast')[0]['qom-path']
    return [o['name'] for o in guest.qmp('qom-list', path=cpu)
            if o['name'] in ('aes', 'popcnt', 'erms', 'clflushopt', 'clwb', 'smap', 'rdrand')
            and guest.qmp('qom-get', path=cpu, property=o['name'])]


def other_processor(t, accel):
    """The other host's lacks flags: QEMU there starts without them, or does not start."""
    model = common.cpu_model(accel)
    with ForkParent(t, accel, smp=2) as a:      # several threads have a flag of their own
        a.start_load()
        two = some_flags(a)[:2]
        names = f'does not give it: {" ".join(two)};'
        few = wrapper(t, 'few', f'-cpu {model},{two[0]}=off,{two[1]}=off')
        refuse(t, a, names, '--qemu', few)
        # TCG has no pcid, and KVM no vme on any processor where this runs
        lacks = 'TCG does' if accel == 'tcg' else 'Host does'
        none = wrapper(t, 'none', f'-cpu {model},+dca,enforce')
        refuse(t, a, f"{lacks}n't support requested features", '--qemu', none)
        with Clone(t, a, 1, '--qemu', few, *ELSEWHERE, hosts=['h1=127.0.0.1']) as c:
            code, error = c.end(), str(c.result.get('children'))
            if code != 3 or names not in error:
                raise Failed(f'vmclone ended with {code}: {c.result}')
        more = wrapper(t, 'more', f'-cpu {model},hv-relaxed=on')
        with Move(t, a, '--qemu', more) as m:   # more than here is no reason
            m.end(0, 'there')
            with there(t, 'b', m.result) as b:
                check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)


def other_devices(t, accel):
    with ForkParent(t, accel, mem_mib=MIB, extra=(*ROOM, '-smp', '2,maxcpus=4')) as a:
        a.start_load()
        a.qmp('device_add', driver='virtio-rng-pci', id='late')
        refuse(t, a, 'device late was plugged in later')
        with Clone(t, a, 1) as c:
            code = c.end()
            error = c.result.get('error') or ''
            if code != 3 or 'device late was plugged in later' not in error or 'by hand' in error:
                raise Failed(f'vmclone ended with {code}: {error} {c.err[-300:]}')


def unnamed_device(t, accel):
    with ForkParent(t, accel) as a:
        a.start_load()
        a.qmp('device_add', driver='virtio-rng-pci')
        refuse(t, a, 'device virtio-rng-pci without an id was plugged in later')


def gone_cpu(t, accel):
    with ForkParent(t, accel, smp=2, mem_mib=MIB) as a:
        a.start_load()
        hmp(a, f'o/w {CPU_PORTS:#x} 0')     # the registers of today
        hmp(a, f'o/w {CPU_PORTS:#x} 1')
        hmp(a, f'o/b {CPU_PORTS + 4:#x} {EJECT}')
        if len(a.qmp('query-cpus-fast')) != 1:
            raise Failed('the CPU is still there')
        with Move(t, a) as m:
            m.end(1, 'here', 'was unplugged, but its QEMU started with it')
            check_nothing_left(m)


# --- machines ---

def disks(t, n, name):
    words = []
    for i in range(n):
        path = os.path.join(t.work, f'{name}{i}.qcow2')
        subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', path, '8M'], check=True, timeout=20)
        words += ['-blockdev', json.dumps({'driver': 'qcow2', 'node-name': f'd{i}', 'file': {
            'driver': 'file', 'filename': path}})]
    return words


def nics(driver, *names):
    words = []
    for n in names:
        words += ['-netdev', f'user,id={n}', '-device', f'{driver},netdev={n},id=nic-{n}']
    return words


MACHINES = {
    'q35, disks with threads of their own, NICs': ('q35', 3, (
        '-object', 'iothread,id=io0', '-object', 'iothread,id=io1',
        '-device', 'virtio-blk-pci,drive=d0,iothread=io0,id=disk0,num-queues=2',
        '-device', 'virtio-blk-pci,drive=d1,iothread=io1,id=disk1',
        '-device', 'virtio-scsi-pci,iothread=io1,id=scsi', '-device', 'scsi-hd,drive=d2,id=disk2',
        *nics('virtio-net-pci', 'n0', 'n1'), *nics('e1000e', 'n2'))),
    'pc of QEMU 4.2': ('pc-i440fx-4.2', 1, (
        '-device', 'virtio-blk-pci,drive=d0,id=disk0', *nics('rtl8139', 'n0'))),
    'microvm': ('microvm,isa-serial=off', 1, (
        '-device', 'virtio-blk-device,drive=d0,id=disk0', *nics('virtio-net-device', 'n0'))),
}


def hmp_io(guest, i, command):
    top = [e['inserted']['node-name'] for e in guest.qmp('query-block')
           if f'disk{i}' in e.get('qdev', '')][0]
    out = hmp(guest, f'qemu-io {top} "{command}"')
    if 'failed' in out or 'rror' in out:
        raise Failed(f'{guest.name}: {command}: {out}')


def machine(t, accel, kind, n, words):
    extra = [*disks(t, n, kind.split(',')[0]), *words]
    with ForkParent(t, accel, machine=kind, extra=extra, mem_mib=MACHINE_MIB) as a:
        a.start_load()
        for i in range(n):
            hmp_io(a, i, f'write -P {7 + i} 64k 64k')
        before = snapshot(a)
        with Clone(t, a, 1, '--net', 'isolated') as c:
            check_result(c, 0, {'complete': 1})
            for row in c.children:
                Child(row, a).check(before)
            kill(c.base, 'f')
        with Move(t, a) as m:
            m.end(0, 'there')
            check_left_here(t, a, m)
            with there(t, 'b', m.result) as b:
                for i in range(n):
                    hmp_io(b, i, f'read -P {7 + i} 64k 64k')
                check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)


def run(t):
    accel = t.best_accel()
    cases = (
        ('memory and CPUs that were plugged in', lambda: plugged(t, accel)),
        ('a processor that lacks something', lambda: other_processor(t, accel)),
        ('another device', lambda: other_devices(t, accel)),
        ('a device without an id', lambda: unnamed_device(t, accel)),
        ('a CPU that was unplugged', lambda: gone_cpu(t, accel)),
        *((name, lambda how=how: machine(t, accel, *how)) for name, how in MACHINES.items()
          if common.FULL or sys.argv[1:] or name.startswith('q35')))
    for name, case in cases:
        if sys.argv[1:] and sys.argv[1] not in name:
            continue
        for path in glob.glob(t.work + '/*.console'):   # of the case before
            os.unlink(path)
        with t.case(f'{name}, {accel}'):
            case()


if __name__ == '__main__':
    common.main(run, LIMIT_S)
