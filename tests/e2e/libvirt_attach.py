#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""libvirt_attach.py - farfork move --domain: Debian's libvirt restores a domain, whose memory follows; limit: 300 s

Before GO whatever fails leaves the domain running at the source, and it can be moved again.
After GO a link that breaks is made again.
"""
import contextlib
import json
import os
import pty
import select
import shutil
import socket
import subprocess
import sys
import threading

import common
import forked
import report
from common import Failed, check_ledger, say, wait_for
from libvirt_hosts import LIBVIRT_UID, Host, HostError, connect
from libvirt_move import CONSOLE, MEM_MIB, NAME, Domain, domain_xml, needs

FOLDER = '/var/lib/libvirt/qemu'
LAUNCH = """import json, socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.connect(sys.argv[1])
    socket.send_fds(s, [json.dumps(sys.argv[2:]).encode()], [0, 1, 2])
    sys.exit((s.recv(1) or b'\\1')[0])
"""


SERIAL = """
    <serial type='pty'><target type='isa-serial' port='0'/></serial>"""
DISK = """
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/><source file='{}'/><target dev='vda' bus='virtio'/>
    </disk>"""


class Launcher:
    """As ssh to a host: a program there has this one's input and outputs, and lives on without it."""

    def __init__(self, t, host):
        self.host, self.faults = host, ''
        self.path = os.path.join(host.shared, f'launch-{len(os.listdir(host.shared))}')
        script = self.path + '.py'
        common.write_file(script, LAUNCH)
        self.template = f'{sys.executable} {script} {self.path} {{host}} {{cmd}}'
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.path)
        self.listener.listen(1)
        t.at_end.callback(self.listener.close)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.one, args=self.listener.accept()[:1],
                                 daemon=True).start()

    def one(self, s):
        with s:
            data, fds, _, _ = socket.recv_fds(s, 1 << 16, 3)
            env = dict(os.environ, FARFORK_FAILPOINTS=self.faults)
            with subprocess.Popen(self.host.inside(*json.loads(data)[1:]), stdin=fds[0],
                                  stdout=fds[1], stderr=fds[2], env=env) as p:
                for fd in fds:
                    os.close(fd)
                code = p.wait()
            with contextlib.suppress(OSError):
                s.send(bytes([code & 255]))


class Two:
    """Two hosts, the domain on the first. disk: it has one, as on NFS, where libvirt keeps no count of who uses it."""

    def __init__(self, t, name, memory, disk=False):
        self.t, self.name, self.memory = t, name, memory
        self.image = os.path.join(t.work, 'shared', f'{name}.raw') if disk else None

    def __enter__(self):
        t, self.stack = self.t, contextlib.ExitStack()
        work = os.path.join(t.work, self.name)
        os.mkdir(work)
        shared = os.path.join(t.work, 'shared')
        with contextlib.ExitStack() as stack:
            self.a = stack.enter_context(Host(work, 'one', 1, common.BUILD, shared))
            self.b = stack.enter_context(Host(work, 'two', 2, common.BUILD, shared))
            connect(self.a, self.b)
            xml = os.path.join(shared, f'{self.name}.xml')
            common.write_file(xml, domain_xml(t, t.best_accel(), self.memory,
                                              DISK.format(self.image) + SERIAL if self.image else ''))
            if self.image:
                common.write_file(self.image, '')
                os.truncate(self.image, 1 << 20)
            for h in (self.a, self.b) if self.image else ():
                with open(h.path('/etc/libvirt/qemu.conf'), 'a', encoding='ascii') as f:
                    f.write('\nremember_owner = 0\n')
                h.restart_libvirtd()
            self.a.virsh('define', xml)
            self.a.virsh('start', NAME)
            self.src, self.dst = Domain(self.a), Domain(self.b)
            self.src.wait_ready(60)
            self.launcher = Launcher(t, self.b)
            self.farfork = os.path.join(shared, 'bin', 'farfork')
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *exc):
        self.stack.close()

    def start(self, *more, faults=('', ''), name=NAME):
        """farfork move --domain; faults: failpoints of the source's process, of the destination's"""
        self.launcher.faults = faults[1]
        argv = [self.farfork, 'move', '--json', '--launcher', self.launcher.template, '--options',
                'reconnect=30', '--domain', name, f'qemu+tcp://{self.b.name}/system', *more]
        p = subprocess.Popen(self.a.inside(*argv), stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=dict(os.environ, FARFORK_FAILPOINTS=faults[0]))
        self.t.at_end.callback(p.kill)
        return p

    def end(self, p, code, limit_s=60):
        """What it says, once it has ended with this code."""
        try:
            out, err = p.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f'farfork move does not end: {self.states()}') from None
        said = json.loads(out.splitlines()[-1]) if out else {}
        if p.returncode != code or said.get('exit_code', code) != code:
            raise Failed(f'exit {p.returncode}, want {code}: {out}{err} {self.states()}')
        return said

    def states(self):
        return [h.virsh('domstate', NAME, '--reason', fails=True).strip()
                for h in (self.a, self.b)]

    def side(self, host):
        """PID, on that host, of who attaches there."""
        return host.run('pgrep', '-f', 'farfork attach', fails=True).split()

    def qemu(self, host):
        return host.read(f'/run/libvirt/qemu/{NAME}.pid').strip()

    def wait_stopped(self):
        wait_for('the guest stands still', 30,
                 lambda: self.a.virsh('domstate', NAME).strip() == 'paused')

    def check_here(self):
        """It runs at the source, libvirt says so, and does with it what it is told."""
        wait_for('the domain runs', 10,
                 lambda: self.a.virsh('domstate', NAME).strip() == 'running')
        self.a.virsh('suspend', NAME)
        self.a.virsh('resume', NAME)
        wait_for('nothing there', 20, lambda: NAME not in self.b.virsh('list', '--all', '--name'))
        self.check_owner()
        check_ledger(self.src, sweeps=1)
        self.check_clean()

    def check_owner(self):
        """The QEMU that runs may write to the image, whatever libvirt made of the other one's end."""
        if self.image and os.stat(self.image).st_uid != LIBVIRT_UID:
            raise Failed(f'the image is of user {os.stat(self.image).st_uid}')

    def check_clean(self):
        for h in (self.a, self.b):
            left = [n for n in os.listdir(h.path(FOLDER)) if n.endswith('.save')]
            if left or self.side(h):
                raise Failed(f'{h.name}: left behind: {left} {self.side(h)}')

    def wait_ready(self):
        """It stands still there, loaded."""
        self.wait_stopped()
        wait_for('it is held there', 30, lambda: 'State:\tt ' in self.b.read(f'/proc/{self.qemu(self.b)}/status'))

    def turn(self):
        """From here on it goes the other way."""
        self.a, self.b = self.b, self.a
        self.src, self.dst = Domain(self.a), Domain(self.b)
        self.launcher = Launcher(self.t, self.b)

    def check_there(self, said, here='shut off (destroyed)', there='running (unpaused)', persistent=False,
                    runs=True):
        """libvirt says so on both hosts; every write of the guest is there."""
        if self.states()[1] != there or here != self.states()[0] and here:
            raise Failed(f'states: {self.states()}')
        self.check_owner()
        if not runs:
            self.b.virsh('resume', NAME)
        check_ledger(self.src, self.dst, sweeps=1)
        self.check_clean()
        if (NAME in self.b.virsh('list', '--all', '--persistent', '--name').split()) != persistent:
            raise Failed(f'persistent there: want {persistent}')
        s = said['source']
        if said['state'] != 'there' or s['bytes'] < MEM_MIB << 20 or said['note']:
            raise Failed(f'said: {said}')
        say(f'      down {s["downtime_ms"]:.1f} ms, {s["total_ms"]:.0f} ms in all, faults '
            f'{s["faults"]}, breaks {s["breaks"]}')


def moved(t, memory):
    with Two(t, memory, memory) as two:
        two.check_there(two.end(two.start(), 0))


def persistent(t):
    """Anonymous memory, and the domain's definition goes along; it stays when it was ready to come back, and then comes
    back paused."""
    with Two(t, 'anon', 'anon', disk=True) as two:
        said = two.end(two.start('--', '--persistent', '--undefinesource'), 0)
        two.check_there(said, here='', persistent=True)
        two.turn()
        said = two.end(two.start(faults=('source.gone=fail@1', '')), 1)
        say(f'      {said["error"]}')
        wait_for('nothing there', 20, lambda: NAME not in two.b.virsh('list', '--all', '--name'))
        two.check_owner()
        two.a.virsh('suspend', NAME)
        two.check_there(two.end(two.start(), 0), there='paused (migrating)', runs=False)
        two.turn()
        with t.case('children are domains'):
            forked_domain(two)


def refused(t, two):
    """By name, before libvirt is asked; and the domain runs on."""
    del t
    for name, more, code, want in (('nobody', (), 1, 'nobody'),
                                   (NAME, ('--', '--copy-storage-all'), 2, '')):
        said = two.end(two.start(*more, name=name), code)
        if want not in said.get('error', ''):
            raise Failed(f'want {want}: {said}')
    common.write_file(common.UNPRIVILEGED, '0')
    said = two.end(two.start(), 1)
    common.write_file(common.UNPRIVILEGED, '1')
    if 'vm.unprivileged_userfaultfd=1' not in said['error']:
        raise Failed(f'want the remedy: {said}')
    two.check_here()


BEFORE_READY = ('', 'dest.state=delay:2000000')     # of the source's side, of the destination's
BEFORE_GO = ('source.go=delay:2000000', '')


def killed(two, host, what, faults):
    """It is, while the guest stands still at the source."""
    p = two.start(faults=faults)
    two.wait_stopped()
    if faults == BEFORE_GO:
        two.wait_ready()
    for pid in two.side(host) if what == 'side' else [two.qemu(host)]:
        host.run('kill', '-KILL', pid)
    said = two.end(p, 1)
    two.check_here()
    say(f'      {said["error"]}')


def go_lost(two):
    said = two.end(two.start(faults=('source.gone=fail@1', '')), 1)
    two.check_here()
    say(f'      {said["error"]}')


def interrupted(two):
    p = two.start(faults=BEFORE_READY)
    two.wait_stopped()
    for pid in two.a.run('pgrep', '-f', 'farfork move').split():
        two.a.run('kill', '-INT', pid)
    said = two.end(p, 1)
    if 'signal' not in said['error']:
        raise Failed(f'said: {said}')
    two.check_here()


def resumed_here(two):
    """After its state was saved: it would go on there as it was before."""
    p = two.start(faults=('attach.rest=delay:3000000', ''))
    two.wait_stopped()
    quiet = [0]

    def no_virsh():
        quiet[0] = 0 if two.a.run('pgrep', '-x', 'virsh', fails=True).strip() else quiet[0] + 1
        return quiet[0] > 4     # those of the move follow each other at once
    wait_for('all is saved', 20, no_virsh)
    two.a.virsh('resume', NAME)
    said = two.end(p, 1)
    if 'somebody resumed it' not in said['error']:
        raise Failed(f'said: {said}')
    two.check_here()


def changed(two):
    """While its state is saved the domain gets another definition: it would be another one there."""
    p = two.start(faults=('source.publish=delay:2000000', ''))
    wait_for('the domain there', 20, lambda: NAME in two.b.virsh('list', '--all', '--name'))
    two.a.virsh('desc', NAME, '--live', 'another one')
    said = two.end(p, 1)
    if 'definition' not in said['error']:
        raise Failed(f'said: {said}')
    two.check_here()


def resumed(two):
    """Somebody resumes it on both hosts, ready there and not let go here: it runs nowhere before GO, and there alone."""
    p = two.start(faults=BEFORE_GO)
    two.wait_ready()
    with contextlib.ExitStack() as at_end:
        for host in (two.a, two.b):
            virsh = subprocess.Popen(host.inside('virsh', '-c', 'qemu:///system', 'resume', NAME),
                                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL)
            at_end.callback(virsh.wait)
            at_end.callback(virsh.kill)
        two.check_there(two.end(p, 0))


def libvirtd_restarted(two):
    """On both hosts, while the QEMUs stand still."""
    p = two.start(faults=BEFORE_GO)
    two.wait_ready()
    for host in (two.a, two.b):
        host.restart_libvirtd()
    two.check_there(two.end(p, 0), here='', persistent=True)    # it had come without --persistent


def link_breaks(two):
    said = two.end(two.start(faults=('tcp.serve.prefill=delay:20000,tcp.serve.fault=fail@40', '')), 0)
    two.check_there(said)
    if not said['source']['breaks']:
        raise Failed(f'want a break: {said}')


def back_and_again(t):
    """The domain that came back each time moves in the end, to and fro."""
    with Two(t, 'back', 'memfd') as two:
        for name, case in (
                ('refused by name', lambda: refused(t, two)),
                ('who attaches there is killed after the state', lambda: killed(two, two.b, 'side', BEFORE_READY)),
                ('the QEMU there is killed then', lambda: killed(two, two.b, 'qemu', BEFORE_READY)),
                ('the QEMU there is killed when it is ready', lambda: killed(two, two.b, 'qemu', BEFORE_GO)),
                ('who attaches there is killed when it is ready', lambda: killed(two, two.b, 'side', BEFORE_GO)),
                ('who attaches here is killed', lambda: killed(two, two.a, 'side', BEFORE_READY)),
                ('GO is lost', lambda: go_lost(two)),
                ('Ctrl-C while the guest stands still', lambda: interrupted(two)),
                ('virsh resume here while its state is saved', lambda: resumed_here(two)),
                ('its definition changes', lambda: changed(two)),
                ('virsh resume on both hosts before GO', lambda: resumed(two))):
            with t.case(name):
                case()
        two.turn()
        with t.case('libvirtd is restarted on both hosts'):
            libvirtd_restarted(two)
        two.turn()
        with t.case('the link breaks after GO'):
            link_breaks(two)


def child_of(host, row):
    """A child, a domain of that host's libvirt."""
    name = row['qmp'].partition(':')[2]
    fake = type('Parent', (), {'console': os.path.basename(f'{CONSOLE}-{name}')})
    kid = forked.Child({**row, 'qmp': host.path(CONSOLE)}, fake)
    kid.console, kid.name = host.path(f'{CONSOLE}-{name}'), name
    return kid


def vmclone(two, *argv, code=0):
    p = subprocess.run(two.a.inside(os.path.join(two.t.work, 'shared', 'bin', 'vmclone'), '--json', *argv),
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       timeout=90, check=False)
    if p.returncode != code:
        raise Failed(f'vmclone ended with {p.returncode}, want {code}: {p.stdout}{p.stderr}')
    return json.loads(p.stdout) if p.stdout.startswith('{') else p.stdout


def domains(host):
    return set(host.virsh('list', '--name').split())


def check_console(host, name):
    """`virsh console` of it, which wants a terminal."""
    ours, its = pty.openpty()
    with subprocess.Popen(host.inside('virsh', '-c', 'qemu:///system', 'console', name), stdin=its, stdout=its, stderr=its) as p:
        os.close(its)
        said = b''
        try:
            wait_for(f'the console of {name}', 20, lambda: select.select([ours], [], [], 0)[0])
            while b'Connected to domain' not in said:
                said += os.read(ours, 4096)
        except OSError:
            raise Failed(f'virsh console {name}: {said!r}') from None
        finally:
            p.terminate()
            os.close(ours)


def forked_domain(two):
    """Children are domains of libvirt's here and there, and end as domains; the parent goes on, and so does its disk."""
    before = report.snapshot(two.src.log().lines)
    said = vmclone(two, '--id', 'f1', '--timeout', '40', '--launcher', two.launcher.template,
                   '--domain', NAME, '3', 'localhost', two.b.name)
    names = [row['qmp'].partition(':')[2] for row in said['children']]
    say(f'      {said["freeze"]["pause-ns"] / 1e6:.1f} ms of pause, {said["phases_ms"]["complete"]:.0f} ms in all')
    homes = (two.a, two.b, two.a)
    if domains(two.a) != {NAME, names[0], names[2]} or domains(two.b) != {names[1]}:
        raise Failed(f'{domains(two.a)} and {domains(two.b)}: {names}')
    kids = [child_of(host, row) for host, row in zip(homes, said['children'])]
    for kid in kids:
        kid.begins(before)
    disks = [h.virsh('domblklist', n).split()[-1] for h, n in zip((two.a, *homes), (NAME, *names))]
    ids = {h.virsh('domuuid', n).strip() for h, n in zip((two.a, *homes), (NAME, *names))}
    states = {h.virsh('domstate', n).strip() for h, n in zip(homes, names)}
    if len(ids) != 4 or len(set(disks)) != 4 or two.image in disks or states != {'running'}:
        raise Failed(f'{ids} {disks} {states}')
    for host, name in zip(homes, names):
        check_console(host, name)
    two.a.virsh('destroy', names[0])
    wait_for('its agent knows that it has ended', 10,
             lambda: 'ended' in [c['state'] for f in json.loads(vmclone(two, '--list')) for c in f['children']])
    for name in (NAME, names[2]):
        two.a.virsh('suspend', name)        # each sweeps all of its memory: one at a time
    kids[1].check(before)
    vmclone(two, '--kill', 'f1')
    wait_for('no child', 20, lambda: domains(two.a) == {NAME} and not domains(two.b))
    two.a.virsh('resume', NAME)
    check_ledger(two.src, sweeps=1)
    wait_for('no process beside them', 20, lambda: not two.side(two.a) and not two.side(two.b))


def run(t):
    common.allow_userfaultfd(t)
    shared = os.path.join(t.work, 'shared')
    os.makedirs(shared + '/bin')
    os.chmod(t.work, 0o755)             # QEMU runs as libvirt-qemu
    shutil.copy(common.MICRO_ELF, os.path.join(shared, 'micro.elf'))
    for path in (common.FARFORK, forked.VMCLONE):
        shutil.copy(path, os.path.join(shared, 'bin'))
    try:
        with t.case('persistent, to and fro, and paused'):
            persistent(t)
        back_and_again(t)
    except HostError as e:
        raise Failed(str(e)) from e


if __name__ == '__main__':
    common.main(run, 300, needs)
