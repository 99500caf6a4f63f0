#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""firmware.py - UEFI variables: each child has its own, in a file that its user alone can read

OVMF writes its variables to flash, which is a disk to QEMU: a file, raw or qcow2. A child writes to an
overlay of its own; a guest that was moved to the file that it had. Limit: 400 s.
"""
import glob
import hashlib
import os
import subprocess
import tempfile

import common
import forked
from attaching import Move
from common import Failed, Skip
from forked import Clone, Parent, check_nothing_left, check_result, kill
from lineplace import OVMF, VARIABLES, Console, make_variables
from visits import Visit, end_homes, until

GUID = '3c1f0e52-6f0e-4d3c-9a52-0f1e2d3c4b5a'
MIB = 256


def store_of(path):
    """The variables as the firmware would find them, through all overlays."""
    with tempfile.NamedTemporaryFile(dir='/dev/shm') as f:
        subprocess.run(['qemu-img', 'convert', '-U', '-O', 'raw', path, f.name], check=True, timeout=20)
        return f.read()


def variable_in(path, name):
    """A value that it has there, the newest: that of the last one written; '': none"""
    store, raw = store_of(path), name.encode('utf-16-le') + b'\0\0'
    at = store.rfind(raw)
    return '' if at < 0 else store[at + len(raw):at + len(raw) + 4].decode('ascii', 'replace')


def flush(ask):
    """QEMU keeps an image's tables to itself until then."""
    out = ask('human-monitor-command', {'command-line': 'qemu-io pflash1 flush'})
    if out.strip():
        raise Failed(f'flush: {out}')


def set_variable(console, name, value):
    console.raw = b''
    console.sock.send(f'setvar {name} -guid {GUID} -bs -nv ={value.encode().hex()}\r'
                      'echo done,%lasterror%\r'.encode())
    console.wait('done,0x0', 60)


def serial_there(folder, number):
    return common.wait_for('its console', 20, lambda: glob.glob(f'{folder}/{number}.*serial'))[0]


def flash_of(pid):
    """The file of its variables."""
    with open(f'/proc/{pid}/cmdline', encoding='utf-8') as f:
        words = f.read().split('\0')
    drive = [w for w in words if 'if=pflash' in w and 'readonly' not in w][0]
    return drive.split('file=')[1].split(',')[0]


class Uefi(Parent):
    def __init__(self, t, name, fmt, machine):
        own = os.path.join(t.work, name)
        self.serial, self.variables = own + '.serial', f'{own}.vars.{fmt}'
        make_variables(fmt)(self.variables)
        super().__init__(t, 'tcg', mem_mib=MIB, machine=machine, extra=(
            '-drive', f'if=pflash,format=raw,readonly=on,file={OVMF}/OVMF_CODE_4M.fd',
            '-drive', f'if=pflash,format={fmt},file={self.variables}',
            '-serial', f'unix:{self.serial},server=on,wait=off',
            # else it waits for servers to boot from
            '-fw_cfg', 'name=opt/org.tianocore/IPv4Support,string=no',
            '-fw_cfg', 'name=opt/org.tianocore/IPv6Support,string=no'))
        at = self.argv.index('-kernel')
        del self.argv[at:at + 4]                    # no kernel, no command line for it
        at = self.argv.index('-bios')
        del self.argv[at:at + 2]


def children(t, parent):
    scratch = os.path.join(t.work, 'scratch')
    os.makedirs(scratch, exist_ok=True)
    frozen = store_of(parent.variables)
    with Clone(t, parent, 2, '--scratch', scratch) as c:
        check_result(c, 0, {'complete': 2})
        own = []
        for row in c.children:
            n = row['child']
            with Console(serial_there(os.path.dirname(row['qmp']), n)) as shell:
                set_variable(shell, 'ffown', f'own{n}')
                shell.recall('here')
            flush(lambda *how, row=row: forked.ask(row['qmp'], *how))
            path = flash_of(row['pid'])
            own.append(path)
            if os.stat(path).st_mode & 0o777 != 0o600:
                raise Failed(f'{path}: mode {os.stat(path).st_mode:o}, want 0600')
        got = [variable_in(path, 'ffown') for path in own]
        if got != ['own1', 'own2'] or any(variable_in(p, 'ffbefore') != 'here' for p in own):
            raise Failed(f'variables of the children: {got}')
        if hashlib.sha256(store_of(parent.variables)).digest() != hashlib.sha256(frozen).digest():
            raise Failed('what is frozen has changed')
        overlay = c.result['disks'][0]['parent-overlay']
        if os.stat(overlay).st_mode & 0o777 != os.stat(parent.variables).st_mode & 0o777:
            raise Failed(f'{overlay}: mode {os.stat(overlay).st_mode:o}')
        set_variable(parent.shell, 'ffown', 'mine')
        flush(lambda name, how: parent.qmp(name, **how))
        if variable_in(overlay, 'ffown') != 'mine' or variable_in(own[0], 'ffown') != 'own1':
            raise Failed('a child and its parent share variables')
        kill(c.base, 'f')
        check_nothing_left(c)
    if os.listdir(scratch):
        raise Failed(f'left: {os.listdir(scratch)}')
    return overlay


def move(t, parent, variables):
    with Move(t, parent) as m:
        m.end(0, 'there')
        with Console(serial_there(m.result['rundir'], 1)) as shell:
            shell.recall('here')
            set_variable(shell, 'ffmoved', 'that')
        flush(lambda *how: forked.ask(f'{m.result["rundir"]}/1.qmp', *how))
        if variable_in(variables, 'ffmoved') != 'that' or variable_in(variables, 'ffown') != 'mine':
            raise Failed(f'{variables}: not the variables that it has there')
        kill(m.base, m.name)
        check_nothing_left(m)


def visit(t):
    """QEMU writes to flash itself: that counts as written, also where the first return is in vain."""
    with Uefi(t, 'visit', 'raw', 'q35') as home, Console(home.serial) as shell:
        shell.wait_shell(lambda: home.qmp('system_reset'))
        shell.remember('here')
        set_variable(shell, 'ffbefore', 'here')
        option, end = until(t, 'end')
        with Visit(t, home, *option, faults='visit.home=fail@1') as v:
            v.away()
            with Console(serial_there(v.folder_there(), 1)) as there:
                there.recall('here')
                set_variable(there, 'ffaway', 'that')
            common.write_file(end, '')
            v.end(0, 'home')
            with Console(serial_there(v.folder_home(), 1)) as shell:
                shell.recall('here')
                set_variable(shell, 'ffafter', 'home')
            flush(lambda *how: forked.ask(f'{v.folder_home()}/1.qmp', *how))
            got = {n: variable_in(home.variables, n) for n in ('ffbefore', 'ffaway', 'ffafter')}
            if got != {'ffbefore': 'here', 'ffaway': 'that', 'ffafter': 'home'}:
                raise Failed(f'variables: {got}')
            end_homes(v.base)


def uefi(t, name, fmt, machine):
    with Uefi(t, name, fmt, machine) as parent, Console(parent.serial) as parent.shell:
        parent.shell.wait_shell(lambda: parent.qmp('system_reset'))
        parent.shell.remember('here')
        set_variable(parent.shell, 'ffbefore', 'here')
        variables = children(t, parent)
        move(t, parent, variables)


def run(t):
    if not os.path.exists(VARIABLES):
        raise Skip(f'no {VARIABLES}: apt install ovmf')
    for name, fmt, machine in (('q35', 'raw', 'q35'), ('pc', 'qcow2', 'pc')):
        with t.case(f'OVMF, {name}, variables in a {fmt} file'):
            uefi(t, name, fmt, machine)
    with t.case('OVMF, a visit'):
        visit(t)


if __name__ == '__main__':
    common.main(run, limit_s=400)
