#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""booted.py - a "host" with systemd as process 1, journald, udevd and D-Bus, as Debian starts them

    with Booted(t.work, common.BUILD) as host:
        host.run('systemctl', 'is-system-running')
        host.test('tests/e2e/on_systemd.py', 'inside')

Namespaces and a root of its own, as in libvirt_hosts.py, with the packages that e2e.mk unpacks
(host-tools) over this machine's /usr. Its cgroup is one of this machine's cgroup2, whatever else
this machine has: which controllers it has there is up to that (a kernel with cgroup v1 keeps them).
Nothing of this machine is written to but that cgroup, which is removed at the end.
"""
import contextlib
import ctypes
import json
import os
import select
import shutil
import subprocess
import sys
import time

from common import Failed
from libvirt_hosts import HostError, append, cannot, enter, make_root, mount, overlay

WAIT_S = 240 if os.environ.get('LAB') else 60
TARGET = '''[Unit]
Description=All that the test needs
Requires=basic.target
Wants=dbus.service systemd-udevd.service systemd-user-sessions.service
After=basic.target dbus.service systemd-udevd.service
AllowIsolate=yes
'''
# what asks for hardware, a network or a console that is not there
MASKED = ('systemd-timesyncd', 'systemd-networkd', 'systemd-resolved', 'systemd-pstore',
          'systemd-modules-load', 'systemd-hwdb-update', 'systemd-udev-trigger', 'systemd-random-seed',
          'systemd-sysctl', 'ifupdown-pre', 'networking', 'apparmor', 'kmod-static-nodes',
          'modprobe@', 'systemd-remount-fs')
MASKED_MOUNTS = ('dev-hugepages', 'dev-mqueue', 'sys-kernel-debug', 'sys-kernel-tracing',
                 'sys-kernel-config', 'sys-fs-fuse-connections')


def tools(build):
    return os.path.realpath(os.path.join(build, 'tests', 'e2e', 'host-tools'))


def cannot_boot(build):
    """'' where such a host can be, else why not."""
    why = cannot()
    if not why and not os.path.exists(f'{tools(build)}/ready'):
        why = 'no host-tools: make build/tests/e2e/host-tools'
    with open('/proc/filesystems', encoding='ascii') as f:
        if not why and '\tcgroup2\n' not in f.read():
            why = 'no cgroup2 in this kernel'
    return why


class Booted:
    """work: a folder that it may fill."""

    def __init__(self, work, build, top):
        self.work = os.path.join(work, 'booted')
        self.build, self.top = os.path.realpath(build), top
        self.log = os.path.join(self.work, 'log')
        self.cgroup = f'farfork-{os.getpid()}'
        self.proc = self.pid = None

    def __enter__(self):
        os.makedirs(self.work)
        qemu = os.path.realpath(os.path.join(self.build, 'bin', 'qemu-system-x86_64'))
        paths = [self.top, self.build, os.path.dirname(qemu)]
        with open(self.log, 'wb') as log:
            self.proc = subprocess.Popen(
                ['setpriv', '--pdeathsig', 'KILL', 'unshare', '--mount', '--net', '--pid', '--ipc',
                 '--uts', '--fork', '--kill-child', sys.executable, '-B', os.path.abspath(__file__),
                 'host', self.work, self.cgroup, tools(self.build), *paths],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        try:
            if self.proc.stdout.readline() != b'booting\n':
                raise HostError(f'host: {self.complaint()}')
            with open(f'/proc/{self.proc.pid}/task/{self.proc.pid}/children',
                      encoding='ascii') as f:
                self.pid = int(f.read())
            self.wait_booted()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_booted(self):
        end = time.monotonic() + WAIT_S
        said = ''
        while time.monotonic() < end:       # its socket first
            said = self.run('systemctl', 'is-system-running', '--wait', fails=True, limit_s=WAIT_S)
            if said.strip() in ('running', 'degraded'):
                return
            time.sleep(0.1)
        raise HostError(f'systemd does not come up: {said} {self.complaint()}')

    def __exit__(self, *exc):
        if self.proc.poll() is None:
            self.proc.kill()                # process 1 gets SIGKILL then, and all others with it
        self.proc.wait(WAIT_S)
        self.proc.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            if self.pid:
                fd = os.pidfd_open(self.pid)
                select.select([fd], [], [], WAIT_S)
                os.close(fd)
        subprocess.run(['unshare', '--mount', sys.executable, '-B', os.path.abspath(__file__),
                        'clean', self.work, self.cgroup], check=False)

    def complaint(self):
        with contextlib.suppress(OSError):
            with open(self.log, encoding='utf-8', errors='replace') as f:
                return f.read().strip()[-1500:]
        return ''

    def run(self, *argv, limit_s=WAIT_S, fails=False, text=None):
        """What a program there prints; fails: it may. text: its input."""
        out = subprocess.run(['nsenter', '-t', str(self.pid), '-m', '-n', '-p', '-i', '-u', '-C',
                              '--', 'setpriv', '--pdeathsig', 'KILL', '--', *argv], text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s,
                             check=False, **({'input': text} if text is not None else
                                             {'stdin': subprocess.DEVNULL}))
        if out.returncode and not fails:
            raise Failed(f'{" ".join(argv)}: exit code {out.returncode}: {out.stdout.strip()}')
        return out.stdout

    def test(self, program, *args, limit_s):
        """A test program of ours there, as a service; its exit code. What it prints is seen."""
        env = {'FARFORK_TOP': self.top, 'FARFORK_BUILD': self.build, 'HOME': '/root',
               'PATH': '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin'}
        return subprocess.run(
            ['nsenter', '-t', str(self.pid), '-m', '-n', '-p', '-i', '-u', '-C', '--',
             'systemd-run', '--quiet', '--pipe', '--wait', '--collect', '--unit=the-test',
             *(f'--setenv={k}={v}' for k, v in env.items()), f'--working-directory={self.top}',
             sys.executable, '-B', os.path.join(self.top, program), *args],
            stdin=subprocess.DEVNULL, timeout=limit_s, check=False).returncode

    def journal(self, *matches):
        lines = self.run('journalctl', '--quiet', '--output=json', '--no-pager', *matches)
        return [json.loads(line) for line in lines.splitlines()]

    def write(self, path, text, mode=0o644):
        """A file of that host."""
        path = f'/proc/{self.pid}/root{path}'
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as f:
            f.write(text)
        os.chmod(path, mode)

    def copy(self, source, path):
        with open(source, encoding='utf-8') as f:
            self.write(path, f.read())


# --- inside ---

def enter_cgroup(work, name):
    """A cgroup of its own, which is the whole tree from then on; where cgroup2 is mounted."""
    tree = os.path.join(work, 'cgroup')
    os.makedirs(tree, exist_ok=True)
    mount('-t', 'cgroup2', 'cgroup2', tree)
    os.makedirs(f'{tree}/{name}', exist_ok=True)
    return f'{tree}/{name}'


def give_controllers(tree):
    """Those that cgroup2 has here, to what is below: none is no failure."""
    with open(f'{tree}/cgroup.controllers', encoding='ascii') as f:
        names = f.read().split()
    for name in names:
        with contextlib.suppress(OSError), open(f'{tree}/cgroup.subtree_control', 'w',
                                                encoding='ascii') as f:
            f.write(f'+{name}')


def configure():
    for path, text in (('/etc/hostname', 'booted\n'), ('/etc/machine-id', f'{1:032x}\n'),
                       ('/etc/hosts', '127.0.0.1 localhost booted\n'), ('/etc/fstab', '')):
        if os.path.islink(path) or os.path.exists(path):
            os.unlink(path)
        append(path, text)
    system = '/etc/systemd/system'
    for d in os.listdir(system):        # what this machine starts
        path = f'{system}/{d}'
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    append(f'{system}/booted.target', TARGET)
    os.symlink('booted.target', f'{system}/default.target')
    for unit in [f'{m}.service' for m in MASKED] + [f'{m}.mount' for m in MASKED_MOUNTS]:
        os.symlink('/dev/null', f'{system}/{unit}')
    for name, line in (('passwd', 'messagebus:x:100:102::/nonexistent:/usr/sbin/nologin\n'),
                       ('group', 'messagebus:x:102:\n'), ('group', 'kvm:x:4243:\n')):
        with open(f'/etc/{name}', encoding='utf-8') as f:
            if not any(known.startswith(line.split(':')[0] + ':') for known in f):
                append(f'/etc/{name}', line)
    subprocess.run(['hostname', 'booted'], check=True)


def inside(work, cgroup, packs, *paths):
    root = make_root(work, '', [packs])
    for d in ('bin', 'sbin'):
        overlay(f'{work}/scratch', d, f'{root}/usr/{d}',
                [f'{packs}/usr/{d}', f'{packs}/{d}', f'/usr/{d}'])
    ours = enter_cgroup(work, cgroup)
    give_controllers(os.path.dirname(ours))
    with open(f'{ours}/cgroup.procs', 'w', encoding='ascii') as f:
        f.write('0')
    if ctypes.CDLL(None, use_errno=True).unshare(0x02000000):       # CLONE_NEWCGROUP
        raise OSError(ctypes.get_errno(), 'a cgroup namespace')
    mount('-t', 'cgroup2', 'cgroup2', f'{root}/sys/fs/cgroup')
    for path in paths:
        os.makedirs(root + path, exist_ok=True)
        mount('--rbind', path, root + path)
    mount('-t', 'tmpfs', '-o', 'mode=755', 'run', f'{root}/run')
    mount('--bind', f'{root}/proc/sys', f'{root}/proc/sys')     # this machine's kernel stays as it is
    mount('-o', 'remount,bind,ro', f'{root}/proc/sys')
    for name in ('userfaultfd', 'net/tun'):
        with contextlib.suppress(OSError):
            os.mknod(f'{root}/dev/{name}', 0o20600, os.stat(f'/dev/{name}').st_rdev)
    enter(root)
    configure()
    print('booting', flush=True)
    os.dup2(2, 1)
    os.execve('/usr/lib/systemd/systemd', ['systemd', '--log-target=console', '--log-level=notice'],
              {'container': 'farfork-test', 'PATH': '/usr/sbin:/usr/bin', 'LANG': 'C.UTF-8'})


def clean(work, cgroup):
    """What systemd made below is empty by now."""
    folder = enter_cgroup(work, cgroup)
    for path, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    if os.path.exists(folder):
        raise SystemExit(f'cgroup {cgroup}: still there')


if __name__ == '__main__':
    {'host': inside, 'clean': clean}[sys.argv[1]](*sys.argv[2:])
