#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""libvirt_hosts.py - "hosts" with Debian 12's libvirtd and QEMU, as they are after an installation

    with Host(work, 'one', 1) as a, Host(work, 'two', 2) as b:
        connect(a, b)
        a.virsh('list')

A host is one set of namespaces (mount, network, PID, IPC, UTS) with a root of its own: its /etc,
/var, /run, /dev and /tmp are nobody else's, /usr is an overlay of the packages that e2e.mk unpacks
and this machine's. QEMU runs as libvirt-qemu, sandboxed, in the mount namespace that libvirt makes
for it, behind virtlogd. libvirt's configuration is Debian's, but for a host's UUID (libvirt
refuses to move between equal ones) and a listener for qemu+tcp. There is no cgroup in it.

Process 1 of a host is this file. With it all that the host ever started ends, and it ends with
the program that made the Host, however that ends; mounts go with the namespace.
"""
import ctypes
import os
import select
import shutil
import socket
import subprocess
import sys
import time

LIBVIRT_UID = 64055         # Debian's, of libvirt-qemu
ROOT = '/host'              # where a host's root is put together, in its own mount namespace
NODES = (('null', 1, 3), ('zero', 1, 5), ('full', 1, 7), ('random', 1, 8), ('urandom', 1, 9),
         ('tty', 5, 0))
WAIT_S = 30
HELD = '/run/libvirtd.held'     # it is there: libvirtd may end
ENDED = '/run/libvirtd.ended'   # it has, and is started when this is gone
DAEMONS = ((['virtlogd'], 'virtlogd-sock'), (['libvirtd', '--listen'], 'libvirt-sock'))


class HostError(Exception):
    pass


def packages(build):
    """The folders of e2e.mk; what is first hides what comes later."""
    return [os.path.realpath(os.path.join(build, 'tests', 'e2e', n))
            for n in ('stock-libvirt', 'stock-qemu')]


def cannot():
    """'' where hosts can be, else why not."""
    with open('/etc/os-release', encoding='utf-8') as f:
        if 'VERSION_CODENAME=bookworm\n' not in f.read():
            return "these packages need Debian 12's libraries: run it there"
    out = subprocess.run(['unshare', '--mount', '--net', '--pid', '--ipc', '--uts', '--fork',
                          'true'], stderr=subprocess.PIPE, text=True, check=False)
    if os.geteuid() or out.returncode:
        return f'no namespaces: run it as root; {out.stderr.strip()}'
    with open('/proc/filesystems', encoding='ascii') as f:
        if '\toverlay\n' not in f.read():
            return 'no overlay file system: modprobe overlay'
    return ''


class Host:
    """work: a folder that it may fill; number: of its address, 10.19.0.number."""

    def __init__(self, work, name, number, build='build', shared=None):
        self.name, self.number = name, number
        self.address = f'10.19.0.{number}'
        self.work = os.path.join(work, f'host-{name}')
        self.shared = shared        # a folder that has the same path there
        self.packages = packages(build)
        self.log = os.path.join(self.work, 'log')
        self.proc = self.pid = None

    def __enter__(self):
        os.makedirs(self.work)
        with open(self.log, 'wb') as log:
            self.proc = subprocess.Popen(
                ['setpriv', '--pdeathsig', 'KILL', 'unshare', '--mount', '--net', '--pid', '--ipc',
                 '--uts', '--fork', '--kill-child', sys.executable, os.path.abspath(__file__),
                 'host', self.name, str(self.number), self.work, self.shared or '', *self.packages],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        try:
            line = self.proc.stdout.readline()
            if line != b'ready\n':
                raise HostError(f'host {self.name}: {self.complaint()}')
            with open(f'/proc/{self.proc.pid}/task/{self.proc.pid}/children',
                      encoding='ascii') as f:
                self.pid = int(f.read())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc):
        self.proc.kill()            # process 1 gets SIGKILL then, and all others with it
        self.proc.wait(WAIT_S)
        self.proc.stdout.close()
        if self.pid:                # the PID namespace has ended when its process 1 is gone
            try:
                fd = os.pidfd_open(self.pid)
            except ProcessLookupError:
                return
            try:
                if not select.select([fd], [], [], WAIT_S)[0]:
                    raise HostError(f'host {self.name} does not end')
            finally:
                os.close(fd)

    def complaint(self):
        try:
            with open(self.log, encoding='utf-8', errors='replace') as f:
                return f.read().strip()[-1500:]
        except OSError as e:
            return str(e)

    def inside(self, *argv):
        """argv of a program that runs there; it ends with nsenter, which is its parent."""
        return ['nsenter', '-t', str(self.pid), '-m', '-n', '-p', '-i', '-u', '--',
                'setpriv', '--pdeathsig', 'KILL', '--', *argv]

    def run(self, *argv, limit_s=WAIT_S, fails=False):
        """What a program there prints; fails: it may."""
        out = subprocess.run(self.inside(*argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=limit_s, check=False)
        if out.returncode and not fails:
            raise HostError(f'host {self.name}: {" ".join(argv)}: {out.stdout.strip()}')
        return out.stdout

    def virsh(self, *argv, **more):
        return self.run('virsh', '-q', '-c', 'qemu:///system', *argv, **more)

    def restart_libvirtd(self, meanwhile=lambda: None):
        """As a package's update does: it ends, meanwhile() runs, and it is there again."""
        self.run('touch', HELD)
        self.run('pkill', '-TERM', '-x', 'libvirtd')
        end = time.monotonic() + WAIT_S
        while not os.path.exists(self.path(ENDED)):
            if time.monotonic() > end:
                raise HostError(f'host {self.name}: libvirtd does not end')
            time.sleep(0.02)
        meanwhile()
        self.run('rm', ENDED)
        while 'error' in self.virsh('list', fails=True):
            if time.monotonic() > end:
                raise HostError(f'host {self.name}: libvirtd does not come back')
            time.sleep(0.02)

    def path(self, path):
        """A file of that host, seen from here."""
        return f'/proc/{self.pid}/root{path}'

    def read(self, path):
        with open(self.path(path), encoding='utf-8', errors='replace') as f:
            return f.read()

    def qemu_log(self, domain):
        try:
            return self.read(f'/var/log/libvirt/qemu/{domain}.log')
        except OSError as e:
            return str(e)


def connect(a, b):
    """A cable between two hosts."""
    a.run('ip', 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth1')
    # by descriptor of this process: a PID says nothing inside
    subprocess.run(['nsenter', '-t', str(a.pid), '-n', 'ip', 'link', 'set', 'eth1', 'netns',
                    str(b.pid)], check=True, timeout=WAIT_S)
    b.run('ip', 'link', 'set', 'eth1', 'name', 'eth0')
    for h in (a, b):
        h.run('ip', 'address', 'add', f'{h.address}/24', 'dev', 'eth0')
        h.run('ip', 'link', 'set', 'eth0', 'up')
        with open(h.path('/etc/hosts'), 'a', encoding='ascii') as f:
            f.write(''.join(f'{o.address} {o.name}\n' for o in (a, b)))


# --- inside ---

def mount(*argv):
    subprocess.run(['mount', *argv], check=True)


def overlay(work, name, target, lower):
    """Nothing is written to what is below."""
    upper = os.path.join(work, 'upper-' + name)
    os.makedirs(upper + '/up')
    os.makedirs(upper + '/work')
    lower = ':'.join(p for p in lower if os.path.isdir(p))
    mount('-t', 'overlay', 'overlay', '-o',
          f'lowerdir={lower},upperdir={upper}/up,workdir={upper}/work', target)


def make_root(work, shared, packs):
    """All of a host's files, at ROOT."""
    mount('--make-rprivate', '/')
    scratch = os.path.join(work, 'scratch')     # a tmpfs: some file systems cannot be an upper one
    os.makedirs(scratch)
    mount('-t', 'tmpfs', 'scratch', scratch)
    root = os.path.join(work, 'root')
    os.makedirs(root)
    mount('-t', 'tmpfs', '-o', 'mode=755', 'root', root)
    for d in ('usr', 'etc', 'var', 'run', 'tmp', 'dev', 'proc', 'sys', 'old', 'root'):
        os.mkdir(f'{root}/{d}')
    for d in ('bin', 'sbin', 'lib', 'lib64'):
        os.symlink(f'usr/{d}', f'{root}/{d}')
    overlay(scratch, 'usr', f'{root}/usr', [f'{p}/usr' for p in packs] + ['/usr'])
    overlay(scratch, 'lib', f'{root}/usr/lib',
            [f'{p}/{d}' for p in packs for d in ('usr/lib', 'lib')] + ['/usr/lib'])
    overlay(scratch, 'etc', f'{root}/etc', [f'{p}/etc' for p in packs] + ['/etc'])
    for p in reversed(packs):
        if os.path.isdir(f'{p}/var'):
            shutil.copytree(f'{p}/var', f'{root}/var', symlinks=True, dirs_exist_ok=True)
    for d in ('lib', 'log', 'cache', 'tmp'):
        os.makedirs(f'{root}/var/{d}', exist_ok=True)
    os.symlink('/run', f'{root}/var/run')
    for d in ('tmp', 'var/tmp'):
        os.chmod(f'{root}/{d}', 0o1777)
    mount('-t', 'proc', 'proc', f'{root}/proc')
    mount('-t', 'sysfs', 'sysfs', f'{root}/sys')
    make_dev(f'{root}/dev')
    for path in filter(None, {shared, os.path.dirname(os.path.abspath(__file__)),
                              sys.prefix, sys.base_prefix}):
        if path.startswith('/usr/') or path == '/usr':
            continue
        os.makedirs(root + path, exist_ok=True)
        mount('--rbind', path, root + path)
    return root


def make_dev(dev):
    mount('-t', 'tmpfs', '-o', 'mode=755', 'dev', dev)
    for name, major, minor in NODES:
        os.mknod(f'{dev}/{name}', 0o20666, os.makedev(major, minor))
        os.chmod(f'{dev}/{name}', 0o666)
    if os.path.exists('/dev/kvm'):
        os.mknod(f'{dev}/kvm', 0o20666, os.stat('/dev/kvm').st_rdev)
        os.chmod(f'{dev}/kvm', 0o666)
    for d in ('pts', 'shm', 'mqueue', 'net'):
        os.mkdir(f'{dev}/{d}')
    mount('-t', 'devpts', '-o', 'newinstance,ptmxmode=0666,mode=620', 'devpts', f'{dev}/pts')
    mount('-t', 'tmpfs', '-o', 'mode=1777', 'shm', f'{dev}/shm')
    os.symlink('pts/ptmx', f'{dev}/ptmx')
    for i, name in enumerate(('stdin', 'stdout', 'stderr')):
        os.symlink(f'/proc/self/fd/{i}', f'{dev}/{name}')
    os.symlink('/proc/self/fd', f'{dev}/fd')


def enter(root):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(155, root.encode(), f'{root}/old'.encode()):        # pivot_root, x86-64
        raise OSError(ctypes.get_errno(), 'pivot_root')
    os.chdir('/')
    subprocess.run(['umount', '-l', '/old'], check=True)
    os.rmdir('/old')


def append(path, text):
    with open(path, 'a', encoding='ascii') as f:
        f.write(text)


def configure(name, number):
    """What the packages' scripts do after unpacking, and a network's listener."""
    append('/etc/group', f'libvirt-qemu:x:{LIBVIRT_UID}:\nlibvirt:x:{LIBVIRT_UID - 1}:\n')
    append('/etc/passwd', f'libvirt-qemu:x:{LIBVIRT_UID}:{LIBVIRT_UID}::/var/lib/libvirt:'
           '/usr/sbin/nologin\n')
    for path, text in (('/etc/hostname', f'{name}\n'), ('/etc/machine-id', f'{number:032x}\n'),
                       ('/etc/hosts', '127.0.0.1 localhost\n')):
        if os.path.islink(path) or os.path.exists(path):
            os.unlink(path)
        append(path, text)
    append('/etc/libvirt/libvirtd.conf',
           f'host_uuid = "00000000-0000-4000-8000-{number:012x}"\n'
           'listen_tls = 0\nlisten_tcp = 1\nauth_tcp = "none"\n'
           'log_outputs = "3:stderr"\n')
    socket.sethostname(name)
    subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)
    for d in ('images', 'qemu'):
        os.makedirs(f'/var/lib/libvirt/{d}', exist_ok=True)
    for d in ('/var/lib/libvirt/qemu', '/var/cache/libvirt/qemu'):
        os.makedirs(d, exist_ok=True)
        os.chown(d, LIBVIRT_UID, LIBVIRT_UID)
    os.environ.update(PATH='/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin', HOME='/root')
    for key in [k for k in os.environ if k.startswith(('XDG_', 'DBUS_', 'LD_'))]:
        del os.environ[key]


def wait_socket(path, proc):
    end = time.monotonic() + WAIT_S
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(path)
            return
        except OSError as e:
            if proc.poll() is not None or time.monotonic() > end:
                raise SystemExit(f'{proc.args[0]}: no {path}: {e}; {proc.returncode}') from None
            time.sleep(0.02)


def daemon(argv, path):
    p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    wait_socket(f'/run/libvirt/{path}', p)
    return p


def inside(name, number, work, shared, *packs):
    enter(make_root(work, shared, packs))
    configure(name, int(number))
    ours = [daemon(*d) for d in DAEMONS]
    print('ready', flush=True)
    while True:                     # process 1: every orphan is its child
        pid, code = os.wait()
        for i, p in enumerate(ours):
            if p.pid != pid:
                continue
            if not os.path.exists(HELD):
                raise SystemExit(f'{p.args[0]} ended: {code}')
            os.rename(HELD, ENDED)
            while os.path.exists(ENDED):
                time.sleep(0.02)
            ours[i] = daemon(*DAEMONS[i])


# --- a relay that understands nothing ---

def listener(where):
    kind, _, rest = where.partition(':')
    s = socket.socket(socket.AF_UNIX if kind == 'unix' else socket.AF_INET)
    if kind == 'unix':
        s.bind(rest)
    else:
        host, _, port = rest.rpartition(':')
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((host, int(port)))
    s.listen(1)
    return s


def connected(where):
    kind, _, rest = where.partition(':')
    s = socket.socket(socket.AF_UNIX if kind == 'unix' else socket.AF_INET)
    host, _, port = rest.rpartition(':')
    s.connect(rest if kind == 'unix' else (host, int(port)))
    return s


def relay(here, there):
    """Carries one connection to here on to there; prints the bytes of both ways at its end."""
    s = listener(here)
    print('listening', flush=True)
    one = s.accept()[0]
    s.close()
    two = connected(there)
    other, count = {one: two, two: one}, {one: 0, two: 0}
    ways = [one, two]
    while ways:
        for side in select.select(ways, [], [])[0]:
            try:
                data = side.recv(1 << 20)
                other[side].sendall(data)
                if not data:
                    other[side].shutdown(socket.SHUT_WR)
            except OSError:         # the reader is gone
                data = b''
            count[side] += len(data)
            if not data:
                ways.remove(side)
    print(count[one], count[two], flush=True)


if __name__ == '__main__':
    {'host': inside, 'relay': relay}[sys.argv[1]](*sys.argv[2:])
