#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""libvirt_fork.py - vmclone --domain: a domain of Debian's libvirt is forked, and what fails; limit: 200 s

One host with libvirtd, as libvirt_hosts.py makes it: QEMU as libvirt-qemu, sandboxed, behind virtlogd, with
libvirt's own monitor alone. What libvirt says of the domain is compared with what QEMU says.
"""
import contextlib
import glob
import json
import os
import shutil
import subprocess

import common
import forked
import report
from common import Failed, check_ledger, say, wait_for
from libvirt_attach import child_of
from libvirt_hosts import Host, HostError
from libvirt_move import NAME, Domain, domain_xml, needs

IMAGES = '/var/lib/libvirt/images'
IMAGE = f'{IMAGES}/disk.qcow2'
RUNDIR = '/run/farfork'
SCRATCH = '/var/tmp'
MIB = 32
DISK_MIB = 16
HOLD_S = 4


def devices():
    return f"""
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='{IMAGE}'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <disk type='file' device='cdrom'>
      <target dev='hda' bus='ide'/>
      <readonly/>
    </disk>
    <interface type='user'><model type='virtio'/></interface>"""


class Kid:
    """A child, a domain of the host's libvirt."""

    def __init__(self, host, row):
        self.host, self.kid = host, child_of(host, row)
        self.name = self.kid.name

    def begins(self, before):
        self.kid.begins(before)

    def check(self, before):
        self.kid.check(before)

    def hmp(self, line):
        return self.host.virsh('qemu-monitor-command', '--hmp', self.name, line)


class Forked:
    """A host, and on it the domain."""

    def __init__(self, t, name):
        self.t, self.name, self.number = t, name, 0

    def __enter__(self):
        t = self.t
        work, self.shared = os.path.join(t.work, self.name), os.path.join(t.work, 'shared')
        os.mkdir(work)
        with contextlib.ExitStack() as stack:
            self.host = stack.enter_context(Host(work, 'one', 1, common.BUILD, self.shared))
            self.host.run('qemu-img', 'create', '-q', '-f', 'qcow2', IMAGE, f'{DISK_MIB}M')
            xml = os.path.join(self.shared, f'{self.name}.xml')
            common.write_file(xml, domain_xml(t, t.best_accel(), 'memfd', devices(), MIB,
                                              forked.LOAD))
            self.begin(xml)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *exc):
        self.stack.close()

    def begin(self, xml=None):
        """With this definition, or the one that it has."""
        if xml:
            self.host.virsh('define', xml)
        self.host.virsh('start', NAME)
        self.guest = Domain(self.host)
        self.guest.wait_ready(60)

    def start(self, n, *more, faults='', hold=None, name=NAME):
        """vmclone --domain; hold: what it is about to ask libvirt when it waits, for HOLD_S"""
        self.number += 1
        env = dict(os.environ, FARFORK_FAILPOINTS=f'books.{hold}=delay:{HOLD_S}000000' if hold else faults)
        p = subprocess.Popen(
            self.host.inside(f'{self.shared}/bin/vmclone', '--json', '--id', f'f{self.number}',
                             '--timeout', '40', '--domain', name, *more, str(n)),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        self.t.at_end.callback(p.kill)
        return p

    def end(self, p, code, states=None):
        try:
            out, err = p.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            raise Failed(f'vmclone does not end: {self.state()}') from None
        said = json.loads(out) if out.startswith('{') else {'error': err, 'children': []}
        got = [row['state'] for row in said['children']]
        if p.returncode != code or (states is not None and got != states):
            raise Failed(f'vmclone ended with {p.returncode}, want {code}: {got}: {out}{err} '
                         f'{self.guest.complaint()}')
        return said

    def vmclone(self, *argv):
        return self.host.run(f'{self.shared}/bin/vmclone', *argv, fails=True)

    def state(self):
        return self.host.virsh('domstate', NAME, '--reason', fails=True).strip()

    def qmp(self, command, **arguments):
        line = json.dumps({'execute': command, 'arguments': arguments})
        return json.loads(self.host.virsh('qemu-monitor-command', NAME, line))['return']

    def hmp(self, line):
        return self.qmp('human-monitor-command', **{'command-line': line})

    def image(self):
        """That the disk has now: libvirt and QEMU agree."""
        line, = [x.split() for x in self.host.virsh('domblklist', NAME).splitlines() if 'vda' in x]
        said = [b['inserted']['image']['filename'] for b in self.qmp('query-block') if 'inserted' in b]
        if said != [line[1]]:
            raise Failed(f'libvirt thinks that the disk is {line[1]}, QEMU has {said}')
        return line[1]

    def check_parent(self):
        """It runs, libvirt says so, and does with it what it is told."""
        wait_for('the domain runs', 10, lambda: self.state().startswith('running'))
        if NAME not in self.host.virsh('list', '--name').split():
            raise Failed('virsh list does not have it')
        self.host.virsh('suspend', NAME)
        if self.state() != 'paused (user)' or self.qmp('query-status')['running']:
            raise Failed(f'suspended: {self.state()}')
        self.host.virsh('resume', NAME)
        if not self.state().startswith('running') or not self.qmp('query-status')['running']:
            raise Failed(f'resumed: {self.state()}')
        check_ledger(self.guest, sweeps=1)

    def check_nothing_left(self):
        left = wait_for('no folder', 15, lambda: glob.glob(self.host.path(f'{RUNDIR}/*/*')) or 'none')
        files = [f for f in os.listdir(self.host.path(SCRATCH)) if f.startswith('fork-')]
        if left != 'none' or files:
            raise Failed(f'left behind: {left} {files}')
        wait_for('end of all processes', 15, lambda: not self.host.run(
            'pgrep', '-f', 'farfork (agent|attach)|vmclone', fails=True))


def io_qemu(where, device, line):
    """qemu-io's command at a device of that guest."""
    said = where.hmp(f'qemu-io -d {device} "{line}"')
    if 'rror' in said or 'failed' in said or 'differ' in said:
        raise Failed(f'{line}: {said}')


DEVICE = '/machine/peripheral/virtio-disk0/virtio-backend'


def family(f):
    """Three children of a running domain, each with memory and disk as they were."""
    io_qemu(f, DEVICE, 'write -P 1 0 64k')
    before = report.snapshot(f.guest.log().lines)
    said = f.end(f.start(3), 0, ['complete'] * 3)
    if f.image() != f'{IMAGES}/disk.qcow2.fork-f1-vda.qcow2':
        raise Failed(f'the disk is in {f.image()}')
    io_qemu(f, DEVICE, 'write -P 2 0 64k')
    f.check_parent()
    say(f'      stood still for {said["phases_ms"]["freeze"]:.0f} ms, of these '
        f'{said["freeze"]["pause-ns"] / 1e6:.1f} ms of QEMU; {said["phases_ms"]["complete"]:.0f} ms in all')
    kids = [Kid(f.host, row) for row in said['children']]
    if set(f.host.virsh('list', '--all', '--name').split()) != {NAME, *(k.name for k in kids)}:
        raise Failed(f'libvirt has {f.host.virsh("list", "--all")}')
    for k in kids:
        k.begins(before)
    for k in kids:
        io_qemu(k, DEVICE, 'read -P 1 0 64k')       # not what the parent has written since
        k.check(before)
    return kids, before


def again(f, kids, before):
    """libvirtd is restarted while children are there; they end without it; a second fork."""
    f.host.restart_libvirtd(lambda: [k.begins(before) for k in kids])
    f.check_parent()
    said = f.vmclone('--kill', 'f1')
    f.check_nothing_left()
    wait_for(f'the parent alone: {said}', 20, lambda: f.host.virsh('list', '--name').split() == [NAME])
    said = f.end(f.start(1), 0, ['complete'])
    io_qemu(Kid(f.host, said['children'][0]), DEVICE, 'read -P 2 0 64k')
    f.check_parent()
    f.vmclone('--kill', 'f2')
    f.check_nothing_left()


def fresh_start(f):
    """What the domain wrote since is there when it is started anew: libvirt knows its image."""
    f.host.virsh('destroy', NAME)
    f.begin()
    io_qemu(f, DEVICE, 'read -P 2 0 64k')
    f.image()


def refused(f):
    """By name, before the domain is touched."""
    for want, options, name in (('nobody', (), 'nobody'), ('fork id', (), NAME)):
        number = f.number + 1
        if want == 'fork id':
            f.host.run('touch', f'{IMAGES}/disk.qcow2.fork-f{number}-vda.qcow2')
        said = f.end(f.start(1, *options, name=name), 2 if name != NAME else 3)
        if want not in said['error']:
            raise Failed(f'want {want}: {said}')
    f.check_parent()
    f.check_nothing_left()


def taken_back(f):
    """No child comes up: the domain writes to its own image again, and libvirt knows."""
    was = f.image()
    f.end(f.start(2, faults='child.loaded=fail'), 3, ['failed'] * 2)
    if f.image() != was:
        raise Failed(f'the disk is in {f.image()}, it was in {was}')
    left = [n for n in os.listdir(f.host.path(IMAGES)) if f'.fork-f{f.number}-' in n]
    if left:
        raise Failed(f'left behind: {left}')
    f.check_parent()
    f.check_nothing_left()


def libvirt_refuses(f):
    """The overlay, while the domain stands still: it goes on."""
    was, p = f.image(), f.start(1, hold='snapshot')
    wait_held(f)
    f.host.run('sh', '-c', f'echo mine > {IMAGES}/disk.qcow2.fork-f{f.number}-vda.qcow2')
    said = f.end(p, 3)
    if 'already exists' not in said['error'] or f.image() != was:
        raise Failed(f'{f.image()}, was {was}: {said}')
    f.check_parent()
    f.check_nothing_left()


def wait_held(f):
    """It stands still, and libvirt is about to be asked."""
    wait_for('the domain stands still', 30, lambda: f.state().startswith('paused'))


def killed(f, hold):
    """vmclone is killed while the domain stands still: it goes on."""
    p = f.start(1, hold=hold)
    wait_held(f)
    f.host.run('pkill', '-KILL', '-x', 'vmclone', '--oldest')
    p.wait(20)
    f.check_parent()
    f.image()
    wait_for('nothing is left', 20, lambda: not f.host.run(
        'pgrep', '-f', 'farfork agent|vmclone', fails=True))
    f.vmclone('--kill', f'f{f.number}')


def restarted(f):
    """libvirtd ends while the domain stands still, and is there again after a while."""
    p = f.start(1, hold='resume')
    wait_held(f)
    f.host.restart_libvirtd(lambda: p.poll())
    f.end(p, 0, ['complete'])
    f.check_parent()
    f.image()
    f.vmclone('--kill', f'f{f.number}')
    f.check_nothing_left()


def in_turn(f):
    """Forks of one domain wait for each other; it stays as it was, or as it was asked to be."""
    for p in [f.start(1), f.start(1)]:
        f.end(p, 0, ['complete'])
    f.check_parent()
    p = f.start(1, hold='snapshot')
    wait_held(f)
    f.host.run('pkill', '-INT', '-x', 'vmclone', '--oldest')
    if not f.end(p, 3)['interrupted']:
        raise Failed('it was interrupted, and does not say so')
    f.check_parent()
    f.host.virsh('suspend', NAME)
    if not f.end(f.start(1), 0, ['complete'])['children_paused'] or f.state() != 'paused (user)':
        raise Failed(f'of a domain that is suspended: {f.state()}')
    f.host.virsh('resume', NAME)
    for _ in range(2):
        said = f.end(f.start(1, '--template'), 0, ['complete'])
        if not f.state().startswith('paused') or said['children_paused']:
            raise Failed(f'a template: {f.state()}')
        f.image()
    f.host.virsh('resume', NAME)
    f.check_parent()
    for k in range(1, f.number + 1):
        f.vmclone('--kill', f'f{k}')
    f.check_nothing_left()


def more(t, f):
    for hold in ('snapshot', 'resume'):
        with t.case(f'vmclone is killed before {hold}'):
            killed(f, hold)
    with t.case('refused'):
        refused(f)
    with t.case('libvirt refuses'):
        libvirt_refuses(f)
    with t.case('libvirtd is restarted while the domain stands still'):
        restarted(f)
    with t.case('two at a time, interrupted, suspended, as a template'):
        in_turn(f)
    with t.case('started anew'):
        fresh_start(f)


def run(t):
    common.allow_userfaultfd(t)
    shared = os.path.join(t.work, 'shared')
    os.makedirs(os.path.join(shared, 'bin'))
    os.chmod(t.work, 0o755)             # QEMU runs as libvirt-qemu
    shutil.copy(common.MICRO_ELF, os.path.join(shared, 'micro.elf'))
    for path in (common.FARFORK, forked.VMCLONE):
        shutil.copy(path, os.path.join(shared, 'bin'))
    try:
        with Forked(t, 'family') as f:
            with t.case('three children of a running domain'):
                kids, before = family(f)
            with t.case('libvirtd is restarted, children end, a second fork'):
                again(f, kids, before)
            with t.case('no child comes up'):
                taken_back(f)
            if common.FULL:
                more(t, f)
    except HostError as e:
        raise Failed(str(e)) from e


if __name__ == '__main__':
    common.main(run, 580 if common.FULL else 200, needs)
