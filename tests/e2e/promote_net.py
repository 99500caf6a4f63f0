#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""promote_net.py - a child that takes its parent's place has the parent's tap and forwarded ports from then on; limit: 100 s"""
import glob
import os
import socket
import subprocess

import common
from common import Failed, wait_for
from farfork_move import There
from forked import Clone, ForkParent, alive, kill
from promote import LOAD, MIB, Promote

TAP = f'ffp{os.getpid() % 100000}'


def taps_of(pid):
    """The interfaces that it has open."""
    found = []
    for path in glob.glob(f'/proc/{pid}/fdinfo/*'):
        with open(path, encoding='ascii') as f:
            found += [line.split()[1] for line in f if line.startswith('iff:')]
    return found


def link_up():
    subprocess.run(['ip', 'link', 'set', TAP, 'up'], check=True, timeout=20)
    with open(f'/sys/class/net/{TAP}/carrier', encoding='ascii') as f:
        if f.read() != '1\n':
            raise Failed(f'{TAP}: nobody has it')


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


def promoted(t, fails):
    port = free_port()
    nics = ['-netdev', f'user,id=n1,hostfwd=tcp:127.0.0.1:{port}-:22', '-device', 'e1000,netdev=n1',
            '-netdev', f'tap,id=n0,ifname={TAP},script=no,downscript=no', '-device', 'virtio-net-pci,netdev=n0']
    with ForkParent(t, t.best_accel(), mem_mib=MIB, load=LOAD, extra=nics) as parent:
        parent.start_load()
        with Clone(t, parent, 1) as c:
            if c.end():
                raise Failed(f'vmclone: {c.err}')
            with Promote(t, 'f.1', faults='attach.replaced=fail@1' if fails else None) as p:
                if fails:
                    p.end(1, 'here')
                    if TAP not in taps_of(parent.proc.pid) or not alive(c.children[0]['pid']):
                        raise Failed('child and parent are not what they were')
                else:
                    r = p.end(0, 'there')
                    wait_for('the end of the parent', 20, lambda: not alive(parent.proc.pid))
                    socket.create_connection(('127.0.0.1', port), 5).close()
                    if taps_of(r['pid']) != [TAP]:
                        raise Failed(f'it has {taps_of(r["pid"])}, not {TAP}')
                    with There(t, 'guest', r['rundir'], r['pid']) as guest:
                        common.check_ledger(guest, sweeps=1)
                link_up()
                kill(p.base, 'p')
            kill(c.base, 'f')


def run(t):
    if os.geteuid():
        raise common.Skip('a tap needs root')
    with t.case('its parent\'s network'):
        promoted(t, False)
    with t.case('one that fails'):
        promoted(t, True)


if __name__ == '__main__':
    common.main(run, 90, common.need_userfaultfd)
