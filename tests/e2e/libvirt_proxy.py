#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""libvirt_proxy.py - farfork move --domain: Debian's libvirt moves a domain, proxies its memory; limit: 300 s

Before GO whatever fails leaves the domain running at the source, and libvirt can move it again.
After GO a link that breaks is made again.
"""
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading

import common
from common import Failed, check_ledger, say, wait_for
from libvirt_hosts import Host, HostError, connect
from libvirt_move import (MEM_MIB, NAME, Domain, check_moved, domain_xml,
                          needs)

FOLDER = '/var/lib/libvirt/qemu'
LAUNCH = """import json, socket, sys
with socket.socket(socket.AF_UNIX) as s:
    s.connect(sys.argv[1])
    socket.send_fds(s, [json.dumps(sys.argv[2:]).encode()], [0, 1, 2])
    sys.exit((s.recv(1) or b'\\1')[0])
"""


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
    """Two hosts, the domain on the first."""

    def __init__(self, t, name, memory):
        self.t, self.name, self.memory = t, name, memory

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
            common.write_file(xml, domain_xml(t, t.best_accel(), self.memory))
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
        """farfork move --domain; faults: failpoints of the source's proxy, of the destination's"""
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
        if p.returncode != code or said.get('exit_code') != code:
            raise Failed(f'exit {p.returncode}, want {code}: {out}{err} {self.states()}')
        return said

    def states(self):
        return [h.virsh('domstate', NAME, '--reason', fails=True).strip()
                for h in (self.a, self.b)]

    def proxy(self, host):
        """PID, on that host, of the proxy there."""
        return host.run('pgrep', '-f', 'farfork proxy', fails=True).split()

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
        check_ledger(self.src, sweeps=1)
        self.check_clean()

    def check_clean(self):
        for h in (self.a, self.b):
            left = [n for n in os.listdir(h.path(FOLDER)) if n.endswith('.sock')]
            if left or self.proxy(h):
                raise Failed(f'{h.name}: left behind: {left} {self.proxy(h)}')

    def check_there(self, said):
        check_moved(self.a, self.b)
        check_ledger(self.src, self.dst, sweeps=1)
        self.check_clean()
        s = said['source']
        if said['state'] != 'there' or s['bytes'] != MEM_MIB << 20 or not s['pages_dropped']:
            raise Failed(f'said: {said}')
        if s['tunnel_bytes'] > 32 << 20:
            raise Failed(f'main memory came by the stream: {s}')
        say(f'      down {s["downtime_ms"]:.1f} ms, {s["total_ms"]:.0f} ms in all, faults '
            f'{s["faults"]}, tunnel {s["tunnel_bytes"]}, breaks {s["breaks"]}')


def moved(t, memory):
    with Two(t, memory, memory) as two:
        two.check_there(two.end(two.start(), 0))


def refused(t):
    """By name, before libvirt is asked; and the domain runs on."""
    with Two(t, 'refused', 'memfd') as two:
        for want, name, before, after in (
                ('nobody', 'nobody', None, None),
                ('virsh resume', NAME, 'suspend', 'resume')):
            if before:
                two.a.virsh(before, NAME)
            said = two.end(two.start(name=name), 1)
            if after:
                two.a.virsh(after, NAME)
            if want not in said['error']:
                raise Failed(f'want {want}: {said}')
            two.check_here()
        common.write_file(common.UNPRIVILEGED, '0')
        said = two.end(two.start(), 1)
        common.write_file(common.UNPRIVILEGED, '1')
        if 'vm.unprivileged_userfaultfd=1' not in said['error']:
            raise Failed(f'want the remedy: {said}')
        said = two.end(two.start('--', '--no-such-option'), 1)
        if 'no-such-option' not in said['error']:
            raise Failed(f'want what virsh says: {said}')
        two.check_here()


BEFORE_READY = ('', 'dest.state=delay:2000000')     # of the source's proxy, of the destination's
BEFORE_GO = ('source.go=delay:2000000', '')


def killed(two, what, faults):
    """It is, at the destination, while the guest stands still at the source."""
    p = two.start(faults=faults)
    two.wait_stopped()
    for pid in two.proxy(two.b) if what == 'proxy' else \
            [two.b.read(f'/run/libvirt/qemu/{NAME}.pid').strip()]:
        two.b.run('kill', '-KILL', pid)
    said = two.end(p, 1)
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


def back_and_again(t):
    """The domain that came back four times moves in the end."""
    with Two(t, 'back', 'memfd') as two:
        with t.case('the proxy there is killed after the package'):
            killed(two, 'proxy', BEFORE_READY)
        with t.case('the QEMU there is killed then'):
            killed(two, 'qemu', BEFORE_READY)
        with t.case('the QEMU there is killed when it is ready'):
            killed(two, 'qemu', BEFORE_GO)
        with t.case('Ctrl-C while the guest stands still'):
            interrupted(two)
        with t.case('the link breaks after GO, in a move with --persistent'):
            said = two.end(two.start('--', '--persistent', faults=(
                'tcp.serve.prefill=delay:20000,tcp.serve.fault=fail@40', '')), 0)
            two.check_there(said)
            if not said['source']['breaks']:
                raise Failed(f'want a break: {said}')


def run(t):
    common.allow_userfaultfd(t)
    shared = os.path.join(t.work, 'shared')
    os.makedirs(shared + '/bin')
    os.chmod(t.work, 0o755)             # QEMU runs as libvirt-qemu
    shutil.copy(common.MICRO_ELF, os.path.join(shared, 'micro.elf'))
    shutil.copy(common.FARFORK, os.path.join(shared, 'bin'))
    try:
        with t.case('a move, memfd'):
            moved(t, 'memfd')
        with t.case('a move, anonymous memory'):
            moved(t, 'anon')
        with t.case('refused by name'):
            refused(t)
        back_and_again(t)
    except HostError as e:
        raise Failed(str(e)) from e


if __name__ == '__main__':
    common.main(run, 300, needs)
