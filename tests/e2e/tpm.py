#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""tpm.py - a guest with a TPM moves, its TPM with it, to an swtpm on the other host; limit: 170 s

Debian's swtpm; the Linux guest extends a PCR, and finds it so after a move and after another.
"""
import contextlib
import os
import subprocess

import common
import guest_identity
from attaching import Move
from common import Failed, Skip, wait_for
from forked import Clone, check_nothing_left, kill
from linuxguest import APPEND
from vmclone_linux import Child

TOOLS = os.path.join(common.BUILD, 'tests', 'e2e', 'guest-tools')
LIBS = os.path.join(TOOLS, 'usr', 'lib', 'x86_64-linux-gnu')
PCR = 16
# TPM2_PCR_Extend of PCR 16 by 32 bytes, with an empty password
EXTEND = bytes.fromhex('8002 00000041 00000182 00000010 00000009 40000009 0000 00 0000'
                       '00000001 000b') + b'farfork, PCR 16, thirty-two byte'


class Swtpm:
    """One with an empty state of its own, which ends with its guest."""

    def __init__(self, t, name):
        program = os.path.join(TOOLS, 'usr', 'bin', 'swtpm')
        if not os.path.exists(program):
            raise Skip(f'no {program}: run make check, which downloads it')
        self.path = os.path.join(t.work, name + '.swtpm')
        state = os.path.join(t.work, name + '.state')
        os.mkdir(state)
        self.proc = subprocess.Popen(
            [program, 'socket', '--tpm2', '--tpmstate', f'dir={state}', '--ctrl',
             f'type=unixio,path={self.path}', '--terminate'], stdin=subprocess.DEVNULL,
            env={**os.environ, 'LD_LIBRARY_PATH': f'{LIBS}:{LIBS}/swtpm'})
        wait_for('swtpm', 10, lambda: os.path.exists(self.path) or self.proc.poll())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.kill()
        self.proc.wait(10)


def options(t, tpm):
    return ['-name', 'web', '-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot',
            '-accel', 'tcg', '-cpu', 'max', '-m', '128M', '-machine', 'q35', '-bios', 'qboot.rom',
            '-kernel', common.VMLINUX, '-initrd', common.INITRD, '-append',
            f'{APPEND} nosoftlockup farfork.load=off', '-serial', 'chardev:console',
            '-device', 'virtio-serial-pci',
            '-device', 'virtserialport,chardev=channel,name=org.farfork.0',
            '-chardev', f'socket,id=chrtpm,path={tpm.path}',
            '-tpmdev', 'emulator,id=tpm-tpm0,chardev=chrtpm', '-device', 'tpm-crb,tpmdev=tpm-tpm0',
            '-qmp', f'unix:{t.work}/parent.second,server=on,wait=off']


def pcr(machine):
    return machine.sh(f'cat /sys/class/tpm/tpm0/pcr-sha256/{PCR}')


def extend(machine):
    text = ''.join(f'\\x{b:02x}' for b in EXTEND)
    machine.sh(f"printf '{text}' > /tmp/extend; dd if=/tmp/extend of=/dev/tpm0 bs=128 2> /dev/null")


def refused(t, path):
    for args, text in (((), 'name its control socket by --tpm'),
                       (('--tpm', f'{t.work}/nobody'), 'nobody'),
                       (('--tpm', 'relative'), 'absolute')):
        with Move(t, path, *args) as m:
            m.end(1, 'here', text)
            check_nothing_left(m)
    with Clone(t, path, 1) as c:
        if c.end() != 3 or 'which no second guest can share' not in (c.result.get('error') or ''):
            raise Failed(f'vmclone: {c.result} {c.err[-300:]}')


def check_there(move, path, want):
    """It has the PCR, and can go on; returns what it is then."""
    row = {'child': 1, 'qmp': path, 'pid': move.result['pid']}
    with contextlib.closing(Child(row)) as there:
        if pcr(there) != want:
            raise Failed(f'{move.name}: PCR {pcr(there)}, want {want}')
        extend(there)
        if pcr(there) == want:
            raise Failed(f'{move.name}: the TPM does not take a command')
        return pcr(there)


def run(t):
    with contextlib.ExitStack() as stack:
        tpms = [stack.enter_context(Swtpm(t, name)) for name in ('a', 'b', 'c')]
        with t.case('a TPM there'):
            parent = guest_identity.boot(t, stack, 'parent', options(t, tpms[0]))
            before = pcr(parent)
            extend(parent)
            want = pcr(parent)
            if want == before or set(want) <= {'0'}:
                raise Failed(f'the PCR was not extended: {want}')
        if not t.passed:
            return
        with t.case('refused without an swtpm there, and a fork'):
            refused(t, f'{t.work}/parent.second')
        with t.case('two moves'):
            path = f'{t.work}/parent.second'
            for n, tpm in enumerate(tpms[1:], 1):
                m = stack.enter_context(Move(t, path, '--tpm', tpm.path, host=f'h{n}=127.0.0.1',
                                             name=f'm{n}'))
                m.end(0, 'there')
                path = f'{m.result["rundir"]}/1.qmp'
                want = check_there(m, path, want)


if __name__ == '__main__':
    common.main(run, limit_s=170)
