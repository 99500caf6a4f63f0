# SPDX-License-Identifier: LGPL-2.1-or-later
#
# stocks.py - unpatched QEMUs of Debian's, downloaded and unpacked: e2e.mk, stock-qemu
import os
import subprocess

import common
from common import Micro

OLDEST, TRIXIE, NEWEST = 'stock-qemu', 'stock-qemu-trixie', 'stock-qemu-sid'
# source, destination and the machine that both know
OTHERS = ((TRIXIE, TRIXIE, 'q35'), (OLDEST, TRIXIE, 'pc-q35-7.2'), (NEWEST, NEWEST, 'q35'),
          (TRIXIE, NEWEST, 'pc-i440fx-10.0'))
KINDS = ('anon', 'memfd', 'hugetlb', 'file')
BACKENDS = KINDS[:3]        # common.backend() knows them
OTHER_BACKENDS = {'file': ('file', 'share=on,mem-path={path}'),
                  'private file': ('file', 'share=off,mem-path={path}'),
                  'private hugetlb': ('memfd', 'share=off,hugetlb=on,hugetlbsize=2M')}


def qemu_of(stock, processor='x86_64'):
    """The program; /proc/PID/exe of it is another."""
    return os.path.join(os.path.realpath(os.path.join(common.BUILD, 'tests', 'e2e', stock)),
                        'qemu-system-' + processor)


def version(stock):
    said = subprocess.run([qemu_of(stock), '--version'], capture_output=True, text=True, check=True)
    return said.stdout.split()[3]


def modules_of(stock):
    """What the program at its root's top tells it; who copies its command line has to, too."""
    return os.path.join(os.path.dirname(qemu_of(stock)), 'usr/lib/x86_64-linux-gnu/qemu')


def of_host():
    """That of this machine's own release, whose libraries are those that all programs here have."""
    with open('/etc/os-release', encoding='ascii') as f:
        return TRIXIE if 'VERSION_CODENAME=trixie\n' in f.read() else OLDEST


def installed(stock):
    """The program itself, its options, and the environment in which it runs as if it were installed."""
    root = os.path.dirname(qemu_of(stock))
    libs = [f'{root}/usr/lib/x86_64-linux-gnu', f'{root}/lib/x86_64-linux-gnu']
    return (f'{root}/usr/bin/qemu-system-x86_64',
            [w for d in ('share/qemu', 'share/seabios', 'lib/ipxe/qemu') for w in ('-L', f'{root}/usr/{d}')],
            {**os.environ, 'LD_LIBRARY_PATH': ':'.join(libs), 'QEMU_MODULE_DIR': modules_of(stock)})


class Stock(Micro):
    """The micro guest in an unpacked QEMU of Debian's."""

    def __init__(self, test, name, accel, memory='anon', stock=OLDEST, machine='pc', qemu=None, **more):
        if memory not in BACKENDS:
            kind, options = OTHER_BACKENDS[memory]
            machine += ',memory-backend=ram'
            more['extra'] = [*more.get('extra', ()), '-object',
                             f'memory-backend-{kind},id=ram,size={more.get("mem_mib", 256)}M,'
                             + options.format(path=f'{test.work}/{name}.mem')]
            memory = 'anon'
        super().__init__(test, name, accel, memory, machine=machine, qemu=qemu or qemu_of(stock), **more)
