#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""fresh_debian.py - in a Debian 12 of nothing: `make demo`; the packages of `make deb`, installed, used, removed

Needs root and Debian's archive. Of the packages all that runs is what they brought, with Debian's own QEMU: an example that is
compiled against the library, the demo, a fork; and the demo with the QEMU of qemu-system-x86-farfork. After
the removal no file is left that was not there.

Environment  FARFORK_BUILD (default: build), with deb/
Exit code    0 passed, 1 failed, 77 it cannot run here (the reason is the last line)
"""
import contextlib
import glob
import os
import shutil
import subprocess
import sys
import tempfile
import time

TOP = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
DEBS = os.path.join(os.environ.get('FARFORK_BUILD', os.path.join(TOP, 'build')), 'deb')
OWN_QEMU = 'qemu-system-x86-farfork'
PACKAGES = ('farfork', 'libfarfork0', 'libfarfork-dev', 'farfork-guest', OWN_QEMU, 'farfork-bench', 'farfork-rdma')
# what the base system itself writes when anything is installed or removed, and what runs leave
OTHERS = ('/var/', '/tmp/', '/run/', '/proc/', '/sys/', '/dev/', '/root/', '/debs/', '/etc/ld.so.cache',
          '/etc/.pwd.lock', '/etc/group', '/etc/passwd', '/etc/shadow', '/etc/gshadow')
FORK = r'''
set -e
cd /tmp
qemu-system-x86_64 -nodefaults -display none -accel tcg -cpu max \
    -machine pc -m 64 -device isa-debugcon,iobase=0xe9,chardev=c -chardev file,id=c,path=/tmp/console \
    -kernel /usr/lib/farfork/guests/micro.elf -append report_ms=200 \
    -qmp unix:/tmp/parent.qmp,server=on,wait=off &
qemu=$!
trap 'vmclone --kill deb --quiet > /dev/null 2>&1; kill $qemu; wait $qemu || :' EXIT
for i in $(seq 300); do grep -q . /tmp/console 2> /dev/null && break; sleep 0.1; done
vmclone --id deb /tmp/parent.qmp 2
vmclone --list
'''


class Failed(Exception):
    pass


class Root:
    """A system below a folder; what is mounted there goes with it."""

    def __init__(self, path):
        self.path = path

    def run(self, command, limit_s=400):
        env = {'PATH': '/usr/sbin:/usr/bin:/sbin:/bin', 'HOME': '/root', 'LC_ALL': 'C.UTF-8',
               'DEBIAN_FRONTEND': 'noninteractive'}
        script = 'mount --bind "$1" "$1" && mount -t proc proc "$1/proc" && ' \
                 'mount -t sysfs sysfs "$1/sys" && mount -t tmpfs tmpfs "$1/run" && ' \
                 'cd "$1" && pivot_root . mnt && umount -l /mnt && exec sh -c "$2"'
        done = subprocess.run(
            ['unshare', '--mount', '--pid', '--fork', '--kill-child', 'sh', '-c', script, 'sh',
             self.path, command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, env=env, timeout=limit_s, check=False)
        if done.returncode:
            raise Failed(f'{command.strip().splitlines()[0]}: exit code {done.returncode}\n'
                         f'{done.stdout[-3000:]}')
        return done.stdout

    def files(self):
        return set(self.run('find / -xdev').splitlines())


def nodes(path):
    """The device files that guests need, as this machine has them."""
    for name in ('kvm', 'userfaultfd', 'net/tun'):
        node = f'/dev/{name}'
        with contextlib.suppress(OSError):
            st = os.stat(node)
            os.makedirs(os.path.dirname(path + node), exist_ok=True)
            os.mknod(path + node, st.st_mode, st.st_rdev)
            os.chmod(path + node, 0o666)


def check_demo(root):
    """Of a checkout, where nothing but make was installed."""
    root.run('apt-get -q update && apt-get install -y -q --no-install-recommends make')
    files = subprocess.run(['git', '-C', TOP, 'ls-files', '-z', '-co', '--exclude-standard'], check=True,
                           stdout=subprocess.PIPE).stdout
    os.mkdir(root.path + '/root/farfork')
    with subprocess.Popen(['tar', '-C', TOP, '--null', '-T', '-', '-c'], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as tar:
        with subprocess.Popen(['tar', '-C', root.path + '/root/farfork', '-x'], stdin=tar.stdout) as into:
            tar.stdin.write(files)
            tar.stdin.close()
            if into.wait():
                raise Failed('no copy of the checkout')
    start = time.monotonic()
    print(root.run('cd /root/farfork && make demo', 900)[-3000:])
    print(f'ok    make demo: {time.monotonic() - start:.0f} s')


def check(root):
    before = root.files()
    out = root.run('apt-get -q update && apt-get install -y -q --no-install-recommends '
                   f'$(ls /debs/*.deb | grep -v {OWN_QEMU}) qemu-system-x86 gcc libc6-dev pkg-config man-db bash', 600)
    print(out[-300:])
    print(root.run('farfork version; vmclone --version; farfork-guest 2>&1 | head -1'))
    root.run('man -w farfork vmclone farfork-rdma-postcopy farfork-guest')
    words = root.run("bash -c '. /usr/share/bash-completion/completions/farfork; COMP_CWORD=1; "
                     "COMP_WORDS=(farfork mo); _farfork farfork mo; echo ${COMPREPLY[*]}'")
    if words.strip() != 'move':
        raise Failed(f'completion of "farfork mo": {words}')
    out = root.run('cd /tmp && gcc -Wall -Werror /usr/share/doc/libfarfork-dev/examples/example.c -o '
                   'example $(pkg-config --cflags --libs farfork) && timeout 30 ./example')
    if 'written at the source' not in out:
        raise Failed(f'example: {out}')
    print('ok    installed; an example compiled and run')
    print(root.run('timeout 300 farfork demo'))
    print('ok    demo')
    out = root.run(FORK)
    print(out)
    if 'deb' not in out:
        raise Failed(f'no child is listed: {out}')
    print('ok    fork')
    root.run(f'apt-get install -y -q --no-install-recommends /debs/{OWN_QEMU}*.deb')
    ours = {p: set(root.run(f'dpkg -L {p}').split()) for p in PACKAGES}
    out = root.run('timeout 300 farfork demo --only micro')
    print(out)
    if 'patched by Farfork' not in out:
        raise Failed('farfork demo does not take the QEMU of its own package')
    print("ok    demo with Farfork's QEMU")
    root.run(f'apt-get purge -y -q {" ".join(PACKAGES)}')
    left = {f for p in PACKAGES for f in ours[p]} & (root.files() - before)
    left = {f for f in left if os.path.isfile(root.path + f)}
    new = {f for f in root.files() - before if 'farfork' in f or 'vmclone' in f}
    left |= {f for f in new if not f.startswith(OTHERS)}
    if left:
        raise Failed(f'left behind: {sorted(left)[:20]}')
    print('ok    removed')


def main():
    if os.geteuid():
        print('SKIP: makes a system of its own: needs root')
        return 77
    debs = [f for f in glob.glob(os.path.join(DEBS, '*.deb')) if '-dbgsym' not in f]
    if len(debs) != len(PACKAGES):
        print(f'{len(debs)} packages in {DEBS}, want {len(PACKAGES)}: make deb')
        return 1
    work = tempfile.mkdtemp(prefix='ff-debian-')
    try:
        root = Root(os.path.join(work, 'root'))
        subprocess.run([os.path.join(TOP, 'scripts', 'debian-archive'), 'root', 'bookworm', root.path],
                       check=True)
        nodes(root.path)
        shutil.copy('/etc/resolv.conf', root.path + '/etc/resolv.conf')
        other = Root(root.path + '-demo')
        subprocess.run(['cp', '-a', root.path, other.path], check=True)
        check_demo(other)
        os.mkdir(root.path + '/debs')
        for f in debs:
            shutil.copy(f, root.path + '/debs')
        check(root)
    except (Failed, subprocess.SubprocessError) as e:
        print(f'FAIL  {e}')
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == '__main__':
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
