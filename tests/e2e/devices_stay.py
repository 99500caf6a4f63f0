#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""devices_stay.py - farfork move --unplug and --plug: a guest lets a device go, and gets another one there; limit: 180 s

A Linux guest, whose kernel answers by ACPI; devices of virtio's play the part of hardware.
"""
import contextlib
import glob
import os

import common
from common import Failed, Micro, check_still_running, status, wait_for
from farfork_move import Move
from forked import ask
from guest_identity import Linux
from qemu import cpu_model

SPEC = 'virtio-rng-pci,id=hw1,bus=rp1'
PORTS = [o for n in (1, 2) for o in ('-device', f'pcie-root-port,id=rp{n},chassis={n},slot={n}')]


def linux(t, accel, name, *extra):
    """With two ports to plug something in."""
    work = os.path.join(t.work, name)
    os.mkdir(work)
    g = Linux(work, name, [
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


def exchanged(t, accel):
    with linux(t, accel, 'exchanged', '-device', SPEC, '-device', 'virtio-rng-pci,id=stays') as g:
        begin(g)
        had = pci(g)
        with Move(t, g, '--unplug', 'hw1', '--plug', 'virtio-rng-pci,id=new1,bus=rp2', '--plug',
                  '{"driver":"virtio-balloon-pci","id":"new2","bus":"rp1"}', '--plug', 'no-such-device') as m:
            r = m.end(0, 'there')
            if devices(r['qmp']) != {'rp1', 'rp2', 'stays', 'new1', 'new2'} or (r['unplugged'], r['plugged']) != (1, 2):
                raise Failed(f'{devices(r["qmp"])} {r}')
            if len([n for n in r['notes'] if 'no-such-device' in n]) != 1:
                raise Failed(f'{r["notes"]}')
            with there(t, r) as b:
                wait_for('the guest sees both', 30, lambda: pci(b) == had + 1)
                if b.sh('kill -0 $(cat /sleeper) && cat /pid') == '':
                    raise Failed('it is another guest')


def plugged_later(t, accel):
    """One that is not on the command line; it is unplugged by its id all the same."""
    with linux(t, accel, 'later') as g:
        begin(g)
        ask(g.second, 'device_add', {'driver': 'virtio-rng-pci', 'id': 'late', 'bus': 'rp1'})
        wait_for('the guest sees it', 30, lambda: pci(g) == 2)
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
            if devices(g.second) != {'rp1', 'rp2', 'hw1'} or status(g) != 'running' or r['unplugged'] != 1:
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
        with Move(t, g, '--unplug', 'hw1', '--timeout', '3') as m:
            m.end(1, 'here', 'has not let it go within 3 s')
            check_still_running(g)
            if 'hw1' not in devices(g.second):
                raise Failed('the device is gone')


def run(t):
    accel = t.best_accel()
    cases = [('a device for another', lambda: exchanged(t, 'tcg')), ('the guest does not let it go', lambda: refused(t, accel))]
    if common.FULL:
        cases += [('plugged in later', lambda: plugged_later(t, 'tcg')), ('the move fails later', lambda: fails_later(t, 'tcg'))]
    for name, case in cases:
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=180)
