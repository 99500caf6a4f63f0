#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""devices_stay.py - farfork move --unplug and --plug: a guest lets a device go, and gets another one there; limit: 180 s

A Linux guest, whose kernel answers by ACPI; devices of virtio's play the part of hardware.
"""
import contextlib
import glob
import os
import subprocess
import time

import common
import linuxguest
from attaching import Move
from common import Failed, Micro, check_still_running, say, status, wait_for
from forked import ask
from guest_identity import Linux
from qemu import cpu_model

SPEC = 'virtio-rng-pci,id=hw1,bus=rp1'
PORTS = [o for n in (1, 2) for o in ('-device', f'pcie-root-port,id=rp{n},chassis={n},slot={n}')]


def linux(t, accel, name, *extra, kind=Linux):
    """With two ports to plug something in."""
    work = os.path.join(t.work, name)
    os.mkdir(work)
    g = kind(work, name, [
        '-nodefaults', '-display', 'none', '-no-reboot', '-machine', 'q35', '-accel', accel, '-cpu', cpu_model(accel),
        '-m', '192', '-kernel', common.VMLINUX, '-initrd', common.INITRD,
        '-append', 'console=ttyS0 quiet rdinit=/init panic=-1 farfork.load=off', '-serial', 'chardev:console', *PORTS,
        '-qmp', f'unix:{work}/second,server=on,wait=off', *extra])
    g.second = work + '/second'
    return g


def begin(g):
    g.connect('console')
    g.wait_console(rb'[#$] ', 90)
    g.sh('echo $$ > /pid; sleep 1000 & echo $! > /sleeper')


def devices(path):
    return {o['name'] for o in ask(path, 'qom-list', {'path': '/machine/peripheral'}) if o['type'].startswith('child<')}


def pci(g):
    """How many functions the guest sees that are no bridges."""
    return int(g.sh('n=0; for c in /sys/bus/pci/devices/*/class; do read c < $c; case $c in 0x06*) ;; *) n=$((n + 1));; '
                    'esac; done; echo $n').split()[-1])


@contextlib.contextmanager
def there(t, result):
    """The guest's console where it is now."""
    g = Linux(t.work, 'there', [])
    g.paths = {'console': wait_for('its console', 10, lambda: glob.glob(result['rundir'] + '/*.console'))[0]}
    g.stderr = result['log']
    try:
        g.connect('console')
        yield g
    finally:
        g.console.close()


def exchanged(t, accel, *way):
    with linux(t, accel, 'exchanged' + ''.join(way), '-device', SPEC, '-device', 'virtio-rng-pci,id=stays') as g:
        begin(g)
        had = pci(g)
        with Move(t, g, *way, '--unplug', 'hw1', '--plug', 'virtio-rng-pci,id=new1,bus=rp2', '--plug',
                  '{"driver":"virtio-balloon-pci","id":"new2","bus":"rp1"}', '--plug', 'no-such-device', '--plug',
                  'virtio-rng-pci,id=stays', '--plug', 'virtio-rng-pci,id=new3,help') as m:
            r = m.end(0, 'there')
            if devices(r['qmp']) != {'rp1', 'rp2', 'stays', 'new1', 'new2'} or (r['unplugged'], r['plugged']) != (1, 2):
                raise Failed(f'{devices(r["qmp"])} {r}')
            # the last one QEMU answers with a list of properties, and without an error
            if [sum(spec in n for n in r['notes']) for spec in ('no-such-device', 'id=stays:', 'id=new3,help')] != [1, 1, 1]:
                raise Failed(f'{r["notes"]}')
            with there(t, r) as b:
                wait_for('the guest sees both', 30, lambda: pci(b) == had + 1)
                if b.sh('kill -0 $(cat /sleeper) && cat /pid') == '':
                    raise Failed('it is another guest')
            with Move(t, r['qmp'], *way, '--unplug', 'new1', '--plug', SPEC.replace('rp1', 'rp2'), name='again') as again:
                r = again.end(0, 'there')      # what was plugged in goes along, and can be exchanged
                if devices(r['qmp']) != {'rp1', 'rp2', 'stays', 'hw1', 'new2'} or r['unplugged'] != 1:
                    raise Failed(f'{devices(r["qmp"])} {r}')


def plugged_later(t, accel):
    """One that is not on the command line; it is unplugged by its id all the same."""
    with linux(t, accel, 'later') as g:
        begin(g)
        had = pci(g)
        ask(g.second, 'device_add', {'driver': 'virtio-rng-pci', 'id': 'late', 'bus': 'rp1'})
        wait_for('the guest sees it', 30, lambda: pci(g) == had + 1)
        with Move(t, g) as m:
            m.end(1, 'here', 'device late was plugged in later')
        with Move(t, g, '--unplug', 'nobody') as m:
            m.end(1, 'here', 'no device of that id')
        with Move(t, g, '--unplug', 'late', name='m2') as m:
            r = m.end(0, 'there')
            if devices(r['qmp']) != {'rp1', 'rp2'}:
                raise Failed(f'{devices(r["qmp"])}')


def fails_later(t, accel):
    """The guest has let it go, and is here after all: it has it again."""
    bad = ('--launcher', 'env FF_HOST={host} FARFORK_FAILPOINTS=dest.state=fail {cmd}')
    with linux(t, accel, 'fails', '-device', SPEC) as g:
        begin(g)
        had = pci(g)
        with Move(t, g, '--unplug', 'hw1', launcher=bad) as m:
            r = m.end(1, 'here')
            if devices(g.second) != {'rp1', 'rp2', 'hw1'} or status(g) != 'running' or r['unplugged']:
                raise Failed(f'{devices(g.second)} {status(g)} {r["notes"]}')
            wait_for('the guest has it again', 30, lambda: pci(g) == had)


def refused(t, accel):
    """The micro guest has no driver that would answer."""
    work = type('Work', (), {'work': os.path.join(t.work, 'refused')})
    os.mkdir(work.work)
    g = Micro(work, 'parent', accel, mem_mib=64, machine='q35', extra=(
        *PORTS, '-device', SPEC, '-qmp', f'unix:{work.work}/second,server=on,wait=off'))
    g.second = work.work + '/second'
    with g:
        g.start_load()
        with Move(t, g, '--unplug', 'hw1', '--timeout', '6') as m:
            m.end(1, 'here', 'has not let it go within 6 s')
            check_still_running(g)
            if 'hw1' not in devices(g.second):
                raise Failed('the device is gone')


@contextlib.contextmanager
def two_networks():
    """Namespaces of two hosts on one Ethernet, each with the taps of the guest."""
    with contextlib.ExitStack() as stack:
        labs = []
        for n in 'ab':
            labs.append(linuxguest.Lab(f'ffe2e-{os.getpid()}-{n}'))
            stack.callback(labs[-1].close)
        a, b = (lab.name for lab in labs)

        def ip(*args):
            subprocess.run(['ip', *args], check=True, timeout=20)
        ip('-n', b, 'addr', 'del', '10.77.0.1/24', 'dev', 'br0')
        ip('-n', b, 'link', 'set', 'br0', 'address', '02:77:00:00:00:09')
        ip('-n', b, 'addr', 'add', '10.77.0.9/24', 'dev', 'br0')
        ip('-n', a, 'link', 'add', 'there', 'type', 'veth', 'peer', 'name', 'here', 'netns', b)
        for ns, device in ((a, 'there'), (b, 'here')):
            ip('-n', ns, 'link', 'set', device, 'master', 'br0')
            ip('-n', ns, 'link', 'set', device, 'up')
        for lab in labs:
            for device in ('standby', 'primary'):
                lab.tap(device)
        yield labs


def failover(t):
    """QEMU's failover pair: its primary leaves and comes back; a session over the standby device does not notice.
    (Linux takes functions alone as primaries, and none of virtio's: what it makes of the pair is not seen here.)"""
    nics = []
    for name, device in (('standby', 'id=net0,failover=on'), ('primary', 'id=hw0,failover_pair_id=net0,bus=rp1')):
        nics += ['-netdev', f'tap,id={name},ifname={name},script=no,downscript=no',
                 '-device', f'virtio-net-pci,{device},mac={linuxguest.MAC},netdev={name},romfile=']
    with two_networks() as (here, other):
        g = linux(t, 'tcg', 'failover', *nics)
        g.argv = [w.replace('farfork.load=off', f'farfork.ip={linuxguest.GUEST_IP}/24') for w in here.inside(g.argv)]
        with g:
            begin(g)
            wait_for('the primary device', 60, lambda: 'hw0' in devices(g.second))
            client = linuxguest.Client(here)
            try:
                time.sleep(2)
                with Move(t, g, host=f'{other.name}=10.77.0.9', launcher=('--launcher', 'ip netns exec {host} {cmd}')) as m:
                    r = m.end(0, 'there')
                    if (r['unplugged'], r['plugged']) != (1, 1) or devices(r['qmp']) != {'rp1', 'rp2', 'net0', 'hw0'}:
                        raise Failed(f'{r} {devices(r["qmp"])}')
                    time.sleep(3)
                    said, code = client.finish()
                    say(f'      {said}')
                    if code or not said['same_connection'] or said['lines'] < 20:
                        raise Failed(f'the session: {code}: {said}')
            finally:
                client.close()


def run(t):
    accel = t.best_accel()
    cases = [('a device for another', lambda: exchanged(t, 'tcg')), ('the guest does not let it go', lambda: refused(t, accel))]
    if common.FULL:
        cases += [('by the transport', lambda: exchanged(t, 'tcg', '--via', 'transport')),
                  ('plugged in later', lambda: plugged_later(t, 'tcg')),
                  ('the move fails later', lambda: fails_later(t, 'tcg')), ('a failover pair', lambda: failover(t))]
    for name, case in cases:
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=180)
