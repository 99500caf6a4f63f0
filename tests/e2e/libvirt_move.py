#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""libvirt_move.py - Debian's libvirt moves a domain by post-copy, as it is; limit: 90 s

Over tcp, then over unix sockets with a relay on both sides, where farfork would be. What libvirt
does then with sockets, and when, is what `farfork move --domain` builds upon.
"""
import os
import subprocess
import sys

import common
import libvirt_hosts
from common import Failed, Skip, report, say, wait_for
from libvirt_hosts import Host, HostError, connect
from qemu import Guest

NAME = 'micro'
UUID = '6b0d4f9e-19a1-4c5e-9d35-2f6f0c1d0e01'
MEM_MIB = 128
CONSOLE = f'/var/log/libvirt/qemu/{NAME}.console'
SOCKET = '/var/lib/libvirt/qemu/migration.sock'     # libvirt-qemu may make one there
PORT = 49300
LOG = '/var/log/libvirt/monitor.log'                # what libvirtd and QEMU tell each other
MEMFD = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"


def domain_xml(t, accel, memory, devices='', mem_mib=MEM_MIB, load=common.LOAD):
    cpu = '' if accel == 'tcg' else """
  <cpu mode='host-passthrough'><feature policy='disable' name='arch-capabilities'/></cpu>"""
    return f"""<domain type='{'kvm' if accel == 'kvm' else 'qemu'}'>
  <name>{NAME}</name>
  <uuid>{UUID}</uuid>
  <memory unit='MiB'>{mem_mib}</memory>{MEMFD if memory == 'memfd' else ''}
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{t.work}/shared/micro.elf</kernel>
    <cmdline>{load}</cmdline>
  </os>
  <features><acpi/></features>{cpu}
  <on_reboot>destroy</on_reboot>
  <devices>
    <serial type='file'>
      <source path='{CONSOLE}'/>
      <target type='isa-debug'><model name='isa-debugcon'/></target>
      <address type='isa' iobase='0xe9'/>
    </serial>{devices}
  </devices>
</domain>
"""


class Domain(Guest):
    """What the domain wrote on one host; started by virsh, so without a QMP of its own."""

    def __init__(self, host):               # pylint: disable=super-init-not-called
        self.host, self.name = host, f'{NAME} on {host.name}'
        self.console = host.path(CONSOLE)
        self.proc = host.proc
        self._log = report.Log()
        self._log_at = 0

    def complaint(self):
        return self.host.qemu_log(NAME)[-1500:]


class Relay:
    """A relay on a host; at its end it tells what it carried."""

    def __init__(self, host, here, there):
        self.proc = subprocess.Popen(
            host.inside(sys.executable, os.path.abspath(libvirt_hosts.__file__), 'relay', here,
                        there), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        if self.proc.stdout.readline() != 'listening\n':
            raise Failed('relay: does not listen')
        return self

    def __exit__(self, *exc):
        self.proc.kill()
        self.proc.wait(10)
        self.proc.stdout.close()

    def carried(self):
        """Bytes to the destination, and back."""
        self.proc.wait(20)
        there, back = self.proc.stdout.readline().split()
        return int(there), int(back)


def migrate(a, b, *more):
    """Post-copy at once: at this bandwidth (MiB/s) pre-copy takes 8 s at least."""
    a.run('virt-admin', '-c', 'libvirtd:///system', 'daemon-log-outputs', f'1:file:{LOG}')
    a.run('virt-admin', '-c', 'libvirtd:///system', 'daemon-log-filters',
          '1:qemu.qemu_monitor 4:*')
    argv = ['virsh', 'migrate', '--live', '--postcopy', '--bandwidth', str(MEM_MIB // 8), NAME,
            f'qemu+tcp://{b.name}/system', *more]
    with subprocess.Popen(a.inside(*argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as virsh:
        try:
            wait_for('migration that takes post-copy', 30, lambda: virsh.poll() is not None or
                     'error' not in a.virsh('migrate-postcopy', NAME, fails=True))
            out = virsh.communicate(timeout=40)[0]
        except subprocess.TimeoutExpired:
            raise Failed('virsh migrate does not end') from None
        finally:
            virsh.kill()
    if virsh.returncode:
        raise Failed(f'virsh migrate: {out.strip()}')
    said = a.read(LOG)
    for what in ('"uri":"fd:migrate"', '"status": "postcopy-active"', '"status": "completed"'):
        if what not in said:
            raise Failed(f'libvirtd and QEMU at the source never said {what}')


def check_moved(a, b):
    """Running there, shut off here, and the numbers of a post-copy move."""
    state = [h.virsh('domstate', NAME, '--reason').strip() for h in (a, b)]
    if state != ['shut off (migrated)', 'running (migrated)']:
        raise Failed(f'states: {state}')
    info = dict(line.split(':', 1) for line in
                a.virsh('domjobinfo', NAME, '--completed').splitlines() if ':' in line)
    info = {k: ' '.join(v.split()) for k, v in info.items()}
    say('      ' + ', '.join(f'{k}: {info.get(k)}' for k in
        ('Time elapsed', 'Total downtime', 'Data processed', 'Memory processed',
         'Postcopy requests')))
    if info.get('Operation') != 'Outgoing migration' or 'Total downtime' not in info or \
            info.get('Memory total', '0 ').split()[0] == '0':
        raise Failed(f'domjobinfo: {info}')


def one(t, kind, accel, memory, relays):
    work = os.path.join(t.work, kind)
    os.mkdir(work)
    shared = os.path.join(t.work, 'shared')
    with Host(work, 'one', 1, common.BUILD, shared) as a, \
            Host(work, 'two', 2, common.BUILD, shared) as b:
        connect(a, b)
        xml = os.path.join(shared, f'{kind}.xml')
        common.write_file(xml, domain_xml(t, accel, memory))
        a.virsh('define', xml)          # persistent: the source keeps the job's numbers
        a.virsh('start', NAME)
        src, dst = Domain(a), Domain(b)
        src.wait_ready(60)
        if relays:
            with Relay(b, f'tcp:{b.address}:{PORT}', f'unix:{SOCKET}') as there, \
                    Relay(a, f'unix:{SOCKET}', f'tcp:{b.address}:{PORT}') as here:
                migrate(a, b, '--migrateuri', f'unix://{SOCKET}')
                carried = here.carried()
                if carried != there.carried() or carried[0] < 1 << 20 or not carried[1]:
                    raise Failed(f'carried: {carried}')
                say(f'      relays: {carried[0]} bytes there, {carried[1]} back')
        else:
            migrate(a, b)
        check_moved(a, b)
        common.check_ledger(src, dst, sweeps=1)


def run(t):
    common.allow_userfaultfd(t)
    accel = t.best_accel()
    os.mkdir(os.path.join(t.work, 'shared'))
    os.chmod(t.work, 0o755)             # QEMU runs as libvirt-qemu
    with open(common.MICRO_ELF, 'rb') as f, \
            open(os.path.join(t.work, 'shared', 'micro.elf'), 'wb') as out:
        out.write(f.read())
    for kind, memory, relays in (('tcp', 'memfd', False), ('unix', 'anon', True)):
        with t.case(f'{kind}, {memory}, {accel}'):
            try:
                one(t, kind, accel, memory, relays)
            except HostError as e:
                raise Failed(str(e)) from e


def needs():
    common.need_userfaultfd()
    common.need_files(*(f'{p}/{n}' for p, n in zip(
        libvirt_hosts.packages(common.BUILD), ('usr/sbin/libvirtd', 'usr/bin/qemu-system-x86_64'))))
    why = libvirt_hosts.cannot()
    if why:
        raise Skip(why)


if __name__ == '__main__':
    common.main(run, 90, needs)
