# SPDX-License-Identifier: LGPL-2.1-or-later
"""labkernel.py - what the lab is made of: QEMU, kernel, initramfs, accelerator

Everything here is found or made once and then remembered in $BUILD/lab:
    initrd-RELEASE.img     made anew when lab/* or the kernel is newer
    accel-RELEASE          kvm or tcg, and on which host and host kernel that was tried
    tsckhz                 program, made by lab.mk or here
A lock guards the making, so that labs may start at the same time.
"""
import contextlib
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
FETCH = os.path.join(TOP, 'tests', 'guests', 'linux', 'fetch-kernel')
KERNELS = {     # first choice first; the full kernels: the "cloud" ones have no rdma_rxe
    '7.2': ('trixie-backports', r'linux-binary-7\.2\.[0-9.+deb]*-amd64',
            'kernel-trixie-backports-7.2'),
    '6.12': ('trixie', r'linux-image-6\.12\.[0-9.+deb]*-amd64(-unsigned)?', 'kernel-trixie-6.12'),
    '6.1': ('bookworm', r'linux-image-6\.1\.0-[0-9]+-amd64(-unsigned)?', 'kernel-bookworm-6.1'),
}
FETCH_S = 600
TRY_KVM_S = 8       # TCG needs about 3 s: a KVM that needs longer is of no use


class Unavailable(Exception):
    """No QEMU or kernel: skipped; the text says what to do."""


def say(text):
    print(f'lab: {text}', file=sys.stderr, flush=True)


@contextlib.contextmanager
def locked(state, name):
    with open(os.path.join(state, name + '.lock'), 'w', encoding='ascii') as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def find_qemu(build):
    if platform.machine() != 'x86_64':
        raise Unavailable(f'this machine is {platform.machine()}: the lab runs on x86_64 only')
    own = os.path.join(build, 'bin', 'qemu-system-x86_64')
    for path in (os.environ.get('LAB_QEMU'), own, 'qemu-system-x86_64'):
        if path and shutil.which(path):
            return os.path.abspath(shutil.which(path))
    raise Unavailable('no qemu-system-x86_64: make qemu, or set LAB_QEMU=PROGRAM')


# --- kernel and initramfs ---

def cache_dir():
    default = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
    return os.environ.get('FARFORK_CACHE') or os.path.join(default, 'farfork')


def fetch(name):
    """Folder of that kernel, fetched if need be; or raises Unavailable."""
    suite, regex, folder = KERNELS[name]
    folder = os.path.join(cache_dir(), folder)
    if os.path.exists(os.path.join(folder, 'release')):
        return folder
    say(f'fetching kernel {name} of Debian {suite}, once (about 100 MiB)')
    try:
        done = subprocess.run([FETCH, suite, regex, folder], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=FETCH_S,
                              check=False, text=True)
    except subprocess.TimeoutExpired:
        raise Unavailable(f'kernel {name}: not fetched within {FETCH_S} s') from None
    if done.returncode:
        raise Unavailable(f'kernel {name}: not fetched: {done.stdout.strip()[-400:]}')
    return folder


def choose_kernel():
    wanted = os.environ.get('LAB_KERNEL')
    if wanted and wanted not in KERNELS:
        raise Unavailable(f'LAB_KERNEL={wanted}: permitted {", ".join(KERNELS)}')
    why = []
    for name in [wanted] if wanted else KERNELS:
        try:
            folder = fetch(name)
        except Unavailable as e:
            why.append(str(e))
            continue
        if why:
            say(f'{why[0]}; going on with {name}: one host instead of two')
        return folder
    raise Unavailable('; '.join(why))


def find_busybox():
    for path in (os.environ.get('LAB_BUSYBOX'), '/bin/busybox', '/usr/bin/busybox'):
        if path and os.access(path, os.X_OK):
            return path
    raise Unavailable('no busybox: install package busybox-static')


def find_kernel(state):
    folder = choose_kernel()
    release = open(os.path.join(folder, 'release'), encoding='ascii').read().strip()
    packages = open(os.path.join(folder, 'package'), encoding='ascii').read().split('\n')[0]
    initrd = os.path.join(state, f'initrd-{release}.img')
    busybox = find_busybox()
    parts = [os.path.join(HERE, x) for x in ('mkinitrd', 'init', 'guest', 'bin/on', 'bin/net')]
    parts += [busybox, os.path.join(folder, 'release')]

    def fresh():
        try:
            return os.stat(initrd).st_mtime >= max(os.stat(x).st_mtime for x in parts)
        except FileNotFoundError:
            return False
    if not fresh():
        with locked(state, 'initrd'):
            if not fresh():
                done = subprocess.run([parts[0], folder, busybox, initrd], check=False, text=True,
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, timeout=120)
                if done.returncode:
                    raise Unavailable(f'initramfs: {done.stdout.strip()}')
    return {'kernel_dir': folder, 'kernel': os.path.join(folder, 'vmlinux'), 'initrd': initrd,
            'release': release, 'packages': packages}


# --- accelerator ---

def tsc_khz(state):
    """The rate of the time-stamp counter, or None: then the guest measures it."""
    program = os.path.join(state, 'tsckhz')
    memory = os.path.join(state, 'tsc')
    with open('/proc/sys/kernel/random/boot_id', encoding='ascii') as f:
        boot = f.read().strip()
    with contextlib.suppress(OSError, ValueError):
        seen, khz = open(memory, encoding='ascii').read().split()
        if seen == boot:
            return int(khz)
    with locked(state, 'tsc'):
        if not os.path.exists(program):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run([os.environ.get('CC') or 'gcc', '-O2', '-D_GNU_SOURCE', '-o',
                                program, os.path.join(HERE, 'tsckhz.c')], check=True, timeout=60)
        try:
            khz = int(subprocess.run([program], stdout=subprocess.PIPE, check=True,
                                     timeout=10).stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            return None
        with open(memory, 'w', encoding='ascii') as f:
            f.write(f'{boot} {khz}\n')
    return khz


def try_kvm(s):
    """(accel, why): a lab whose command is `true`, under KVM, within the limit."""
    if not os.access('/dev/kvm', os.R_OK | os.W_OK):
        return 'tcg', '/dev/kvm is not there or not permitted'
    from labvm import LabError, Run     # pylint: disable=import-outside-toplevel,cyclic-import
    trial = dict(s, accel='kvm', boot_s=TRY_KVM_S, limit_s=TRY_KVM_S, keep=False, verbose=False,
                 klog_fails=False, quiet=True, cwd='/', env={})
    start = time.monotonic()
    try:
        with Run(trial, 'true') as run:
            code = run.go()
    except LabError as e:
        return 'tcg', f'KVM: {str(e).splitlines()[0]}'
    took = time.monotonic() - start
    return ('kvm', f'{took:.1f} s') if code == 0 else ('tcg', f'KVM: exit code {code}')


def find_accel(s):
    wanted = os.environ.get('LAB_ACCEL')
    if wanted in ('kvm', 'tcg'):
        return wanted
    path = os.path.join(s['state'], f'accel-{s["release"]}')
    key = [platform.node(), platform.release(), os.access('/dev/kvm', os.R_OK | os.W_OK)]

    def remembered():
        with contextlib.suppress(OSError, ValueError):
            with open(path, encoding='utf-8') as f:
                memory = json.load(f)
            if memory['key'] == key:
                return memory['accel']
        return None
    accel = remembered()
    if accel:
        return accel
    with locked(s['state'], 'accel'):
        accel = remembered()
        if not accel:
            accel, why = try_kvm(s)
            say(f'accelerator: {accel} ({why}); remembered in {path}')
            with open(path + '.part', 'w', encoding='utf-8') as f:
                json.dump({'key': key, 'accel': accel, 'why': why}, f)
            os.rename(path + '.part', path)
    return accel
