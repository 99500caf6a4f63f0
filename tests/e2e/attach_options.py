#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_options.py - a move by attaching with precopy=1, of Debian's QEMU; limit: 180 s"""
import os
import re

import common
from attaching import Move, Parent, folder_there
from common import Failed, check_ledger, say
from farfork_move import check_here, say_phases, there

MIB = 128
BALLOON = ('-device', 'virtio-balloon-pci')


def check_not_logged(guest):
    """Nothing of the log of its writes is left in its QEMU."""
    pid = guest.proc.pid
    fds = [os.readlink(f'/proc/{pid}/fd/{fd}') for fd in os.listdir(f'/proc/{pid}/fd')]
    with open(f'/proc/{pid}/smaps', encoding='ascii') as f:
        flags = [line for line in f if line.startswith('VmFlags:') and ' uw' in line]
    if flags or any('userfaultfd' in fd for fd in fds):
        raise Failed(f'left in the QEMU here: {flags} {fds}')


def precopied(t, accel, memory, devices=()):
    """All memory comes once, what the guest writes meanwhile again; a move that fails leaves nothing here."""
    with Parent(t, accel, memory, devices=devices, mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a, '--options', 'precopy=1', faults='dest.ready=fail@1') as m:
            m.end(1, 'here', 'ready: injected')
            check_here(m, a)
            check_not_logged(a)
        with Move(t, a, '--options', 'precopy=1', faults='dest.prefill=delay:5000') as m:
            with there(t, f'precopied-{memory}', m.end(0, 'there')) as b:
                check_ledger(a, b, sweeps=1)
            with open(folder_there(m) + '/2.log', encoding='utf-8') as f:
                came, gone = map(int, re.search(r'precopied_bytes=(\d+) discarded_bytes=(\d+)', f.read()).groups())
            if came != m.result['bytes']['total'] or not 0 < gone < came:
                raise Failed(f'{came} bytes came while the guest ran, {gone} of them were discarded')
            say(f'      {gone >> 20} of {came >> 20} MiB again')
            say_phases(m)


def run(t):
    accel = t.best_accel()
    for name, case in (
            ('precopy=1, anonymous', lambda: precopied(t, accel, 'anon')),
            ('precopy=1, memfd', lambda: precopied(t, accel, 'memfd', BALLOON))):
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=180)
