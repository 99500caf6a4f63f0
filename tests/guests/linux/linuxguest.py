# SPDX-License-Identifier: LGPL-2.1-or-later
"""linuxguest.py - start QEMUs with the Linux test guest and talk QMP to them

For the tests that move or fork this guest; used by linux_selftest.py.

    lab = Lab('name')                        # a namespace with a bridge (netlab)
    a = Qemu(lab, settings, 'a'); a.launch(); a.qmp('query-status')
    b = Qemu(lab, settings, 'b'); b.launch(incoming='defer')

Every wait has a limit and raises Failed with the end of QEMU's and the guest's
output. A QEMU that is left over is ended by close(), by its own process handle.
"""
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NETLAB = os.path.join(HERE, 'netlab')
GUEST_IP = '10.77.0.2'
GUEST_IP6 = 'fd77::2'
MAC = '52:54:00:77:00:02'
APPEND = ('console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off no_timer_check '
          'random.trust_cpu=on audit=0 apparmor=0 cryptomgr.notests')


class Failed(Exception):
    """Something did not happen in time, or QEMU refused."""


class Skip(Exception):
    """This machine cannot run it; the text says what to do."""


def tail(path, count=15):
    try:
        with open(path, errors='replace') as f:
            return ''.join(f'  | {x.rstrip()}\n' for x in f.readlines()[-count:])
    except OSError as e:
        return f'  | ({e})\n'


def wait_for(what, seconds, condition, interval=0.05):
    """What condition() returned once it was true; Failed after so many seconds."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failed(f'{what}: not within {seconds} s')
        time.sleep(interval)


class Settings:
    """What all QEMUs of one test have in common."""

    def __init__(self, qemu, kernel, initrd, workdir, firmware=(), machine='q35', accel='tcg',
                 cpu='max', memory_mib=192, smp=1, append='', disk=None, report=None, extra=(),
                 iothread=False, vhost=False, disk_format='raw'):
        self.__dict__.update(locals())
        del self.__dict__['self']
        self.report = report or os.path.join(workdir, 'report')


class Lab:
    """A netlab namespace. Skip if this machine cannot have one."""

    def __init__(self, name):
        self.name = name
        done = subprocess.run([NETLAB, 'up', name], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode == 77:
            raise Skip(done.stderr.strip().removeprefix('netlab: skip: '))
        if done.returncode:
            raise Failed(done.stderr.strip())

    def tap(self, name):
        subprocess.run([NETLAB, 'tap', self.name, name], check=True)

    def inside(self, argv):
        return ['ip', 'netns', 'exec', self.name] + argv

    def close(self):
        subprocess.run([NETLAB, 'down', self.name], check=False)


class Client:
    """tcpclient.py inside the namespace."""

    def __init__(self, lab, interval_ms=10):
        self.process = subprocess.Popen(
            lab.inside([sys.executable, os.path.join(HERE, 'tcpclient.py'),
                        GUEST_IP, '--interval-ms', str(interval_ms)]),
            stdout=subprocess.PIPE, text=True)

    def finish(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            out, _ = self.process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            self.close()
            raise Failed('tcpclient: did not end within 15 s of a SIGTERM') from None
        return json.loads(out), self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Qemu:
    """One QEMU process, named `a`, `b`, ...; its files are in the workdir."""

    def __init__(self, lab, settings, name):
        self.lab, self.s, self.name = lab, settings, name
        self.process = self.sock = None
        self.buffer = b''
        self.events = []
        self.console = os.path.join(settings.workdir, f'{name}.console')
        self.log = os.path.join(settings.workdir, f'{name}.log')

    def argv(self, incoming):
        s = self.s
        a = [s.qemu]
        for d in s.firmware:
            a += ['-L', d]
        a += ['-name', f'farfork-{self.name}', '-nodefaults', '-no-user-config', '-display', 'none',
              '-no-reboot', '-accel', s.accel, '-cpu', s.cpu, '-m', str(s.memory_mib),
              '-M', s.machine, '-smp', str(s.smp), '-serial', f'file:{self.console}',
              '-kernel', s.kernel, '-initrd', s.initrd,
              '-chardev', f'socket,id=qmp,fd={self.qmp_fd}', '-mon', 'chardev=qmp,mode=control',
              '-append', ' '.join(x for x in (APPEND, self.net_append(), s.append) if x),
              '-device', 'virtio-serial-pci',
              '-chardev', f'file,id=report,path={s.report},append=on',
              '-device', 'virtserialport,chardev=report,name=farfork.report',
              '-device', 'virtio-rng-pci']
        if s.disk:
            direct = 'on' if can_direct(s.disk) else 'off'
            a += ['-blockdev', f'driver=file,node-name=f0,filename={s.disk},cache.direct={direct}',
                  '-blockdev', f'driver={s.disk_format},node-name=d0,file=f0,cache.direct={direct}',
                  '-device', 'virtio-blk-pci,drive=d0' + (',iothread=io0' if s.iothread else '')]
        if s.iothread:
            a += ['-object', 'iothread,id=io0']
        if self.lab:
            self.lab.tap(self.tap)
            a += ['-netdev', f'tap,id=n0,ifname={self.tap},script=no,downscript=no'
                  + (',vhost=on' if s.vhost else ''),
                  '-device', f'virtio-net-pci,netdev=n0,mac={MAC},romfile=']
        if incoming:
            a += ['-incoming', incoming]
        return a + list(s.extra)

    @property
    def tap(self):
        return f'tap-{self.name}'

    def net_append(self):
        return f'farfork.ip={GUEST_IP}/24,10.77.0.1 farfork.ip6={GUEST_IP6}/64' if self.lab else ''

    def launch(self, incoming=None, env=None):
        """env: more for the environment, e.g. fault points."""
        self.sock, theirs = socket.socketpair()
        self.qmp_fd = theirs.fileno()
        argv = self.argv(incoming)
        if self.lab:
            argv = self.lab.inside(argv)
        with open(self.log, 'ab') as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            pass_fds=[self.qmp_fd],
                                            env={**os.environ, **(env or {})})
        theirs.close()
        self.sock.setblocking(False)
        self.read(lambda m: 'QMP' in m, 20, 'greeting')
        self.qmp('qmp_capabilities')

    def describe(self):
        state = 'running' if self.process.poll() is None else f'exit {self.process.returncode}'
        return (f'QEMU {self.name} ({state}):\n{tail(self.log)}'
                f' console of {self.name}:\n{tail(self.console, 8)}')

    def read(self, match, seconds, what):
        """The next message that matches; events on the way are kept in self.events."""
        end = time.monotonic() + seconds
        while True:
            while b'\n' in self.buffer:
                line, self.buffer = self.buffer.split(b'\n', 1)
                message = json.loads(line)
                if 'event' in message:
                    self.events.append(message)
                if match(message):
                    return message
            left = end - time.monotonic()
            if left <= 0:
                raise Failed(f'{self.name}: {what}: not within {seconds} s\n{self.describe()}')
            if select.select([self.sock], [], [], left)[0]:
                try:
                    data = self.sock.recv(65536)
                except ConnectionResetError:
                    data = b''
                if not data:
                    self.wait_exit(2)
                    raise Failed(f'{self.name}: {what}: QEMU is gone\n{self.describe()}')
                self.buffer += data

    def collect(self):
        """Events that have come, also of a QEMU that stands still."""
        with contextlib.suppress(Failed):
            self.read(lambda _: False, 0.1, 'an event more')

    def qmp(self, command, arguments=None, seconds=30, **more):
        """The command's return value; arguments as a dict, or as keywords without dashes."""
        message = {'execute': command}
        if arguments or more:
            message['arguments'] = {**(arguments or {}), **more}
        self.sock.setblocking(True)
        self.sock.sendall(json.dumps(message).encode() + b'\n')
        self.sock.setblocking(False)
        answer = self.read(lambda m: 'return' in m or 'error' in m, seconds, command)
        if 'error' in answer:
            raise Failed(f'{self.name}: {command}: {answer["error"]["desc"]}')
        return answer['return']

    def capabilities(self, **states):
        """capabilities(postcopy_ram=True): underscores for dashes. They outlive a move."""
        self.qmp('migrate-set-capabilities',
                 capabilities=[{'capability': n.replace('_', '-'), 'state': s}
                               for n, s in states.items()])

    def wait_migration(self, states, seconds, failed=('failed', 'cancelled')):
        """query-migrate once its status is in `states`."""
        def look():
            m = self.qmp('query-migrate')
            status = m.get('status')
            if status in states:
                return m
            if status in failed:
                raise Failed(f'{self.name}: migration {status}: {m.get("error-desc", "no reason")}'
                             f'\n{self.describe()}')
            return None
        return wait_for(f'{self.name}: migration {"/".join(states)}', seconds, look, 0.02)

    def wait_status(self, status, seconds):
        return wait_for(f'{self.name}: status {status}', seconds,
                        lambda: self.qmp('query-status')['status'] == status, 0.02)

    def wait_exit(self, seconds):
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def quit(self, seconds=10):
        """End it politely; Failed if it does not go."""
        try:
            self.qmp('quit')
        except Failed:
            pass
        if self.wait_exit(seconds) is None:
            raise Failed(f'{self.name}: quit: still there after {seconds} s')
        self.close()

    def close(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.sock:
            self.sock.close()
            self.sock = None


def can_direct(path):
    try:
        os.close(os.open(path, os.O_RDWR | os.O_DIRECT))
        return True
    except OSError:
        return False


def find_qemu(path):
    """The program to run, or Skip."""
    found = shutil.which(path)
    if not found:
        raise Skip(f'no {path}: give --qemu PROGRAM')
    return found
