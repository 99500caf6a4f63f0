#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""ssh.py - vmclone and farfork move by ssh, to hosts with a network and a run directory of their own

Each host is a network namespace with an sshd in it, Debian's, which is downloaded and not installed.
"""
import contextlib
import glob
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess

import common
import farfork_move
from common import Failed, Skip, say, wait_for
from forked import (ENVIRON, QEMU, Child, Clone, ForkParent, alive, check_nothing_left, check_result,
                    hosts_of_their_own, run_vmclone, snapshot)

SSHD = os.path.abspath(os.path.join(common.BUILD, 'tests', 'e2e', 'sshd'))     # see e2e.mk
PORT = 2222
USER = 'sshd'       # what it becomes before it knows who is there
SOCKET = 'it\'s a "socket" in $HOME'    # goes through two shells


def run(*args):
    out = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         timeout=30, check=False)
    if out.returncode:
        raise Failed(f'{args[0]}: {out.stdout.strip()}')


def write(path, text):
    with open(path, 'w', encoding='utf-8') as f:
        f.write(text)
    return path


def program(name):
    return glob.glob(f'{SSHD}/usr/*bin/{name}')[0]


class Ssh:
    """Keys, and the configuration of ssh: hosts by their names, no question asked."""

    def __init__(self, t, hosts):
        self.work = t.work
        self.key, self.host_key = (os.path.join(t.work, k) for k in ('key', 'hostkey'))
        for k in (self.key, self.host_key):
            if not os.path.exists(k):
                run(program('ssh-keygen'), '-q', '-t', 'ed25519', '-N', '', '-f', k)
        text = ''.join(f'Host {name}\n HostName {address}\n' for name, address in hosts)
        self.config = write(os.path.join(t.work, 'ssh_config'), text + f'''Host *
 Port {PORT}
 IdentityFile {self.key}
 IdentitiesOnly yes
 StrictHostKeyChecking accept-new
 UserKnownHostsFile {t.work}/known_hosts
 BatchMode yes
 LogLevel ERROR
''')
        self.launcher = ('--launcher', f'{program("ssh")} -F {self.config} {{host}} {{cmd}}')

    @contextlib.contextmanager
    def server(self, name, address, within=(), path=None):
        """An sshd in the namespace of that name, or where @within brings it; what it starts has a run directory
        of its own."""
        config = write(f'{self.work}/{name}.sshd', f'''Port {PORT}
ListenAddress {address}
HostKey {self.host_key}
PidFile none
AuthorizedKeysFile {self.key}.pub
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv FARFORK_RUNDIR={self.work}/on-{name}{" PATH=" + path if path else ""} {" ".join(f"{k}={v}" for k, v in ENVIRON.items())}
''')
        with open('/etc/passwd', encoding='utf-8') as f:
            users = f.read()
        if f'\n{USER}:' not in users:
            users += f'{USER}:x:65533:65534::/run/sshd:/usr/sbin/nologin\n'
        passwd = write(f'{self.work}/passwd', users)
        lib = os.path.dirname(glob.glob(f'{SSHD}/**/libwrap.so.0', recursive=True)[0])
        # /run/sshd is a folder that it wants; who has none gets one for as long as this lasts
        script = f'mount --bind {passwd} /etc/passwd && ' \
                 f'exec env LD_LIBRARY_PATH={lib} {program("sshd")} -D -e -f {config}'
        with open(f'{self.work}/{name}.log', 'wb') as log, subprocess.Popen(
                [*(within or ('ip', 'netns', 'exec', name)), 'sh', '-c', script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log) as proc:
            try:
                wait_for('sshd', 20, lambda: answers(address) or proc.poll() is not None)
                if proc.poll() is not None:
                    with open(log.name, encoding='utf-8') as f:
                        raise Failed(f'sshd: {f.read().strip()}')
                yield proc
            finally:
                proc.terminate()


def answers(address):
    with socket.socket() as s:
        s.settimeout(1)
        return s.connect_ex((address, PORT)) == 0


def make_folder(stack):
    """sshd wants it."""
    if not os.path.isdir('/run/sshd'):
        os.makedirs('/run/sshd', mode=0o755)
        stack.callback(shutil.rmtree, '/run/sshd', ignore_errors=True)


@contextlib.contextmanager
def hosts(t, n):
    """(ssh, the hosts as vmclone has them, the servers)"""
    with contextlib.ExitStack() as stack:
        make_folder(stack)
        named = stack.enter_context(hosts_of_their_own(n))
        pairs = [h.split('=') for h in named]
        ssh = Ssh(t, pairs)
        yield ssh, named, [stack.enter_context(ssh.server(*p)) for p in pairs]


def vmclone(base, *args):
    return run_vmclone(*args, '--rundir', base)


def check_fork(t, accel):
    """Children on two hosts; listed, waited for and ended by ssh."""
    with hosts(t, 2) as (ssh, named, _), ForkParent(t, accel, second=SOCKET) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 4, *ssh.launcher, hosts=named, everywhere=False) as c:
            check_result(c, 0, {'complete': 4})
            for row in c.children:
                Child(row, parent).check(before)
            listed = json.loads(vmclone(c.base, '--list', '--json').stdout)
            if [(len(f['children']), f['parent']) for f in listed] != [(2, parent.second)] * 2:
                raise Failed(f'--list: {listed}')
            out = vmclone(c.base, '--wait', 'f', '--timeout', '1')
            if out.returncode != 1:
                raise Failed(f'--wait: {out}')
            out = vmclone(c.base, '--kill', 'f')
            if out.returncode:
                raise Failed(f'--kill: {out}')
            check_nothing_left(c, parent)
        left = glob.glob(f'{t.work}/on-*/*')
        if left:
            raise Failed(f'left on the hosts: {left}')


def check_interrupted(t, accel):
    """Ctrl-C while children are about to start: nothing is left, on any host."""
    slow = write(f'{t.work}/slow', '#!/bin/sh\ncase "$*" in *-incoming*) exec sleep 100 ;; esac\n'
                 f'exec {shlex.quote(QEMU)} "$@"\n')
    os.chmod(slow, 0o700)
    with hosts(t, 2) as (ssh, named, _), ForkParent(t, accel) as parent:
        parent.start_load()
        with Clone(t, parent, 4, *ssh.launcher, '--prestart', '--qemu', slow, hosts=named,
                   everywhere=False) as c:
            wait_for('children', 20, lambda: len(glob.glob(f'{t.work}/on-*/f/*/*.log')) == 4)
            c.proc.send_signal(signal.SIGINT)
            check_result(c, 3, {'failed': 4})
            check_nothing_left(c, parent)
            wait_for('end of what was there', 20, lambda: not glob.glob(f'{t.work}/on-*/*'))


def check_server_lost(t, accel):
    """A host's sshd and its session are killed: its children go on, and so does the other host."""
    with hosts(t, 2) as (ssh, named, servers), ForkParent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 2, *ssh.launcher, hosts=named, everywhere=False) as c:
            check_result(c, 0, {'complete': 2})
            servers[1].kill()
            servers[1].wait(10)
            out = vmclone(c.base, '--kill', 'f', '--timeout', '20')
            if out.returncode != 1 or named[1].split('=')[0] not in out.stdout:
                raise Failed(f'--kill without one of the hosts: {out}')
            say('      ' + out.stdout.strip())
            if [alive(row['pid']) for row in c.children] != [False, True]:
                raise Failed('not the children of the other host alone were ended')
            Child(c.children[1], parent).check(before)
            name, address = named[1].split('=')
            with ssh.server(name, address):
                out = vmclone(c.base, '--kill', 'f')
            if out.returncode:
                raise Failed(f'--kill: {out}')
            check_nothing_left(c, parent)


def check_move(t, accel):
    with hosts(t, 1) as (ssh, named, _):
        farfork_move.one(t, accel, memory='memfd', host=named[0], launcher=ssh.launcher)


def cases(t):
    if os.geteuid():
        raise Skip('sshd in network namespaces needs root')
    if not os.path.exists(SSHD):
        raise Skip(f'no {SSHD}: run make build/tests/e2e/sshd')
    accel = t.best_accel()
    with t.case('a fork over two hosts'):
        check_fork(t, accel)
    with t.case('interrupted'):
        check_interrupted(t, accel)
    with t.case('a host that cannot be asked any more'):
        check_server_lost(t, accel)
    with t.case('a move'):
        check_move(t, accel)


if __name__ == '__main__':
    common.main(cases, limit_s=200)
