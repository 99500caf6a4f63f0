# SPDX-License-Identifier: LGPL-2.1-or-later
"""forked.py - what tests of vmclone and farfork share: forks, their parents, children and hosts"""
import contextlib
import glob
import itertools
import json
import os
import shutil
import socket
import subprocess
import threading

import common
import report
import stocks
from common import Failed, Micro, Skip, say, status, wait_for
from qemu import Sweeps

VMCLONE = os.path.join(common.BUILD, 'bin', 'vmclone')
MIB = 64
FORK_MIB = 40                       # more than is handed over without a file
LOAD = 'report_ms=400 sweep=1'      # children are judged by full sweeps
LIMIT_S = 400 if common.FULL else 90
SLOW = 'dest.prefill=delay:200000@1-15'       # pages come slowly, children fault
TWO_HOSTS = ['h1=127.0.0.1', 'h2=127.0.0.1']
NAMESPACES = itertools.count()
ELSEWHERE = ['--launcher', 'env FF_HOST={host} {cmd}']
# What is forked is the distribution's QEMU, as if it were installed; with $QEMU_BIN, that one
QEMU, OPTIONS, ENVIRON = (os.path.abspath(common.QEMU), [], {}) if 'QEMU_BIN' in os.environ else \
    stocks.installed(stocks.of_host())
ENVIRON = {k: v for k, v in ENVIRON.items() if os.environ.get(k) != v}


def is_script(path):
    with open(path, 'rb') as f:
        return f.read(2) == b'#!'


# A script runs it by a loader of its own (stock-qemu): other hosts are told that script, not the loader
PROGRAM = ['--qemu', QEMU] if os.path.exists(QEMU) and is_script(QEMU) else []


class Clone:
    """vmclone, started; its result once it has ended."""

    def __init__(self, t, parent, n, *args, hosts=(), faults=None, rundir='run', name='f',
                 everywhere=True, prefix=(), environ=None):
        self.base = os.path.join(t.work, rundir)
        path = parent if isinstance(parent, str) else parent.second
        self.argv = [*prefix, VMCLONE, '--json', *(('--rundir', self.base) if everywhere else ()),
                     '--id', name, '--timeout', '40', *PROGRAM, *args, path, str(n), *hosts]
        env = {**os.environ, **ENVIRON, **(environ or {}), 'FARFORK_RUNDIR': self.base,
               **({'FARFORK_FAILPOINTS': faults} if faults else {})}
        self.proc = subprocess.Popen(self.argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     stdin=subprocess.DEVNULL, env=env, text=True)
        self.result = None
        self.err = ''

    def end(self, limit_s=90):
        out, self.err = self.proc.communicate(timeout=limit_s)
        self.result = json.loads(out) if out.startswith('{') else {}
        return self.proc.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            self.proc.terminate()
            try:
                self.proc.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                self.proc.kill()
        kill(self.base, 'f')

    @property
    def children(self):
        return self.result['children']


def run_vmclone(*args, limit_s=30):
    return subprocess.run([VMCLONE, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=limit_s, check=False)


def kill(base, name):
    return run_vmclone('--kill', name, '--rundir', base)


class Child:
    """The micro guest in a child: what it says is in its run directory."""

    def __init__(self, row, parent):
        self.pid, self.qmp_path = row['pid'], row['qmp']
        self.name = f'child {row["child"]}'
        folder = os.path.dirname(row['qmp'])
        self.console = os.path.join(folder, f'{row["child"]}.{os.path.basename(parent.console)}')
        self.at = 0
        self.start = None
        self._log = report.Log()

    def qmp(self, command, **arguments):
        return ask(self.qmp_path, command, arguments)

    def log(self):
        with open(self.console, 'rb') as f:
            f.seek(self.at)
            data = f.read()
        self.at += len(data)
        self._log.feed(data)
        return self._log

    def begins(self, before, limit_s=LIMIT_S):
        """It goes on from where its parent was."""
        wait_for(f'report of {self.name}', limit_s, lambda: report.is_ready(self.log().lines))
        first = self.log().lines[0]
        was = before[first['cpu']]
        if first['seq'] <= was['seq'] or first['uptime_ms'] < was['uptime_ms']:
            raise Failed(f'{self.name} begins with report {first["seq"]}, the parent had made '
                         f'{was["seq"]}')
        self.start = Sweeps(self.name, self.log(), 1, limit_s)

    def check(self, before, limit_s=LIMIT_S):
        """And finds all of its memory right, twice since begins()."""
        if not self.start:
            self.begins(before, limit_s)
        wait_for(f'sweeps of {self.name}', 10 * limit_s, lambda: self.start.done(self.log()))
        self.start = None
        ok, reasons = report.verdict(self.log())
        if not ok:
            raise Failed(f'{self.name}: its memory is wrong: {"; ".join(reasons[:5])}')


class Parent(Micro):
    """With a QMP socket more: the first one is the test's."""

    def __init__(self, t, accel, extra=(), mem_mib=MIB, second='parent.second', **more):
        self.second = os.path.join(t.work, second)
        more.setdefault('load', LOAD)
        super().__init__(t, 'parent', accel, mem_mib=mem_mib, extra=(
            '-qmp', f'unix:{self.second},server=on,wait=off', *extra), **more)

    def exports(self):
        return exports_at(self.second)


class ForkParent(Parent):
    """Of the distribution's QEMU."""

    def __init__(self, t, accel, extra=(), env=None, mem_mib=FORK_MIB, **more):
        super().__init__(t, accel, extra=(*OPTIONS, *extra), env={**ENVIRON, **(env or {})}, mem_mib=mem_mib, qemu=QEMU,
                         **more)


def exports_at(path):
    """What holds memory of the QEMU with that socket, and gives it to agents: processes beside it."""
    return [{'holder-pid': pid} for pid in map(int, filter(str.isdigit, os.listdir('/proc')))
            if f'attach\0--parent\0--qmp\0{path}\0' in text_of(f'/proc/{pid}/cmdline')
            and any('serve' in text_of(comm) for comm in glob.glob(f'/proc/{pid}/task/*/comm'))]


def text_of(path):
    try:
        with open(path, encoding='utf-8', errors='replace') as f:
            return f.read()
    except OSError:
        return ''


def ask(path, command, arguments=None, whole=False):
    """What the QEMU whose QMP socket that is returns, or its whole reply."""
    with socket.socket(socket.AF_UNIX) as sock, sock.makefile('rw') as f:
        sock.settimeout(30)
        sock.connect(path)
        replies = []
        for name, values in (('qmp_capabilities', {}), (command, arguments or {})):
            f.write(json.dumps({'execute': name, 'arguments': values}) + '\n')
            f.flush()
            replies.append(next(m for m in map(json.loads, f) if 'return' in m or 'error' in m))
        return replies[-1] if whole else replies[-1]['return']


def snapshot(parent):
    return report.snapshot(parent.log().lines)


def alive(pid):
    try:
        with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as f:
            return f.read().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False


def weight(pid):
    """Of its session among others; '' where sessions have none."""
    try:
        with open(f'/proc/{pid}/autogroup', encoding='ascii') as f:
            return f.read().partition(' ')[2].strip()
    except OSError:
        return ''


def processes_of(base):
    """Processes that name this run directory: agents, children, launchers."""
    found = []
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            with open(path, 'rb') as f:
                text = f.read()
        except OSError:
            continue
        pid = int(path.split('/')[2])
        if base.encode() in text and alive(pid):
            found.append((pid, text.split(b'\0')[:2]))
    return found


def check_nothing_left(clone, parent=None):
    """No process, socket or folder of the fork, and no export in the parent."""
    left = wait_for('end of all processes', 15, lambda: not processes_of(clone.base) or None)
    if not left or glob.glob(clone.base + '/*'):
        raise Failed(f'left behind: {glob.glob(clone.base + "/*/*/*")}')
    if parent is None:
        return
    for e in parent.exports():
        wait_for('end of the holder', 10, lambda pid=e['holder-pid']: not alive(pid))
    if status(parent) != 'running':
        raise Failed(f'the parent is {status(parent)}')
    common.check_ledger(parent, sweeps=1)


def check_result(clone, code, want):
    """want: how many children in each state, once vmclone has ended with this code."""
    got = clone.end()
    states = {}
    for row in clone.result.get('children', []):
        states[row['state']] = states.get(row['state'], 0) + 1
    if got != code or states != want:
        raise Failed(f'vmclone ended with {got}: {states}, want {code}: {want}; '
                     f'{[r["error"] for r in clone.result.get("children", [])][:3]} '
                     f'{clone.result.get("error")} {clone.err[-600:]}')


def say_phases(clone):
    p = clone.result['phases_ms']
    say('      ' + ', '.join(f'{k} {v:.1f}' for k, v in p.items() if v is not None) + ' ms')


def own_net(undo):
    """198.18.N of nobody else's: whoever has that socket has the network, and no longer than it runs. What a test that was
    killed has left is still there."""
    left = subprocess.run(['ip', '-4', '-o', 'addr'], stdout=subprocess.PIPE, text=True, timeout=20, check=False).stdout
    for i in range(256):
        n = (os.getpid() + i) % 256
        if f' 198.18.{n}.' in left:
            continue
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f'\0farfork-test-net-{n}')
        except OSError:
            lock.close()
            continue
        undo.callback(lock.close)
        return f'198.18.{n}'
    raise Skip('no network of 198.18.0.0/16 is free')


@contextlib.contextmanager
def hosts_of_their_own(n, bridged=False):
    """Network namespaces, each at the end of a link of its own to this one: (name=address, ...).
    Bridged they reach each other, too."""
    if os.geteuid() or not shutil.which('ip'):
        raise Skip('network namespaces need root and ip(8)')
    tag = f'f{os.getpid() % 100000}{next(NAMESPACES)}'  # what is deleted is there for a moment yet

    def ip(*args):
        out = subprocess.run(['ip', *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, timeout=20, check=False)
        if out.returncode:
            raise Skip(f'ip {" ".join(args)}: {out.stdout.strip()}')
    with contextlib.ExitStack() as undo:
        hosts = []
        if bridged:
            net, bridge = own_net(undo), f'{tag}br'
            ip('link', 'add', bridge, 'type', 'bridge')
            undo.callback(subprocess.run, ['ip', 'link', 'del', bridge], timeout=20, check=False)
            ip('addr', 'add', f'{net}.1/24', 'dev', bridge)
            ip('link', 'set', bridge, 'up')
        for i in range(n):
            ns, here, there = f'{tag}n{i}', f'{tag}a{i}', f'{tag}b{i}'
            ip('netns', 'add', ns)
            undo.callback(subprocess.run, ['ip', 'netns', 'del', ns], timeout=20, check=False)
            ip('link', 'add', here, 'type', 'veth', 'peer', 'name', there, 'netns', ns)
            if bridged:
                ip('link', 'set', here, 'master', bridge)
                own = f'{net}.{2 + i}'
            else:
                net = own_net(undo)
                ip('addr', 'add', f'{net}.1/30', 'dev', here)
                own = f'{net}.2'
            ip('link', 'set', here, 'up')
            ip('-n', ns, 'addr', 'add', f'{own}/{24 if bridged else 30}', 'dev', there)
            for device in (there, 'lo'):
                ip('-n', ns, 'link', 'set', device, 'up')
            hosts.append(f'{ns}={own}')
        yield hosts


# what a QEMU says of its memory
RAMBLOCK = {'return': {'human-readable-text': (
    '              Block Name    PSize              Offset  Used  Total  HVA  RO\n'
    '                  pc.ram    4 KiB  0x0000000000000000 0x0000000008000000 '
    '0x0000000008000000 0x00007f0000000000  rw\n')}}


KEYS = ('object-add', 'object-del')     # of any QEMU, before and after a command that needs the key


BESIDE = """#!/usr/bin/env python3
import os, socket, sys, threading
if sys.argv[1:3] != ['attach', '--parent']:
    os.execv('{farfork}', ['{farfork}', *sys.argv[1:]])
a, b = socket.socket(fileno=0), socket.socket(socket.AF_UNIX)
b.connect(sys.argv[4])
def carry(x, y):
    while data := x.recv(65536):
        y.sendall(data)
    y.shutdown(socket.SHUT_RDWR)
threading.Thread(target=carry, args=(a, b), daemon=True).start()
carry(b, a)
"""


class FakeParent:
    """A QMP server that does as it is told: replies by command, or none. `beside` is for --agent: where vmclone would have a
    process beside the QEMU, this answers once more."""

    def __init__(self, t, replies):
        self.second = os.path.join(t.work, 'fake.qmp')
        self.replies = replies
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.second)
        self.server.listen(4)
        self.asked = []
        self.beside = os.path.join(t.work, 'beside')
        common.write_file(self.beside, BESIDE.format(farfork=os.path.abspath(common.FARFORK)))
        os.chmod(self.beside, 0o700)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.answer, args=[self.server.accept()[0]], daemon=True).start()

    def answer(self, sock):
        with contextlib.suppress(OSError):
            with sock, sock.makefile('rw') as f:
                f.write('{"event": "RTC_CHANGE"}\n{"QMP": {}}\n')
                f.flush()
                for line in f:
                    m = json.loads(line)
                    self.asked.append(m['execute'])
                    reply = self.replies.get(m['execute'], {'return': {}} if m['execute'] in KEYS
                                             else {'error': {'desc': 'not today'}})
                    if reply == 'end':
                        return
                    if reply is not None:
                        f.write('{"event": "STOP"}\n' + json.dumps({**reply, 'id': m['id']}) +
                                '\n')
                        f.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join(10)
        os.unlink(self.second)


PATCHED = 'x-rdma-postcopy-not-started'      # of Farfork's QEMU alone

# What a paused guest without disks says that can be moved, but for query-migrate
FAKE_SOURCE = {'qmp_capabilities': {'return': {}},
               'query-commands': {'return': [{'name': PATCHED}]},
               'query-status': {'return': {'status': 'paused', 'running': False}},
               **{q: {'return': []} for q in ('qom-list', 'query-block', 'query-named-block-nodes',
                                              'query-rx-filter', 'query-jobs', 'query-block-exports')}}

FAKE_QEMU = r"""#!/usr/bin/env python3
import json, os, re, socket, sys
path = [m[1] for a in sys.argv if (m := re.match(r'unix:(.*/\d.qmp)', a))][0]
replies = {'query-commands': [{'name': 'x-rdma-postcopy-not-started'}],
           **json.loads(os.environ['FAKE_QEMU'])}
with socket.socket(socket.AF_UNIX) as server:
    server.bind(path)
    server.listen(4)
    while True:
        sock, _ = server.accept()
        with sock, sock.makefile('rw') as f:
            f.write('{"QMP": {}}\n')
            f.flush()
            for line in f:
                m = json.loads(line)
                f.write(json.dumps({'return': replies.get(m['execute'], {}), 'id': m['id']}) + '\n')
                f.flush()
"""


def fake_qemu(t):
    """A program that answers as $FAKE_QEMU has it, at its QMP socket."""
    path = os.path.join(t.work, 'fake-qemu')
    common.write_file(path, FAKE_QEMU)
    os.chmod(path, 0o700)
    return path
