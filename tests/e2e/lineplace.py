# SPDX-License-Identifier: LGPL-2.1-or-later
"""lineplace.py - a command line of tests/e2e/lines, with what this host lacks replaced

    line = read(path)                       # Line: words, and what its head says of it
    here = Here(t, line, accel)             # images, keys and scripts, once for all its QEMUs
    argv, fds = here.argv('parent')         # of one QEMU; fds: to pass to it

What is replaced, and by what, is in RULES and FILES; all else is as the tool wrote it.
"""
import contextlib
import fcntl
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import tempfile
import threading

import common
from common import Failed, Skip
from qemu import cpu_model

NO_ARGUMENT = ('S', 'daemonize', 'enable-kvm', 'nodefaults', 'no-user-config', 'no-shutdown',
               'nographic')
OVMF = '/usr/share/OVMF'
VARIABLES = os.path.join(OVMF, 'OVMF_VARS_4M.fd')
MICRO_MIB, FIRMWARE_MIB = 64, 256
TUNSETIFF, TUN_FLAGS = 0x400454ca, 0x0002 | 0x1000 | 0x4000     # TAP, NO_PI, VNET_HDR

# (what, by what, why): on '-option value', each in turn. {}: of Here.values()
RULES = (
    (r'-id .*', '', 'Proxmox alone has it in its QEMU'),
    (r'\+pve\d+', '', 'likewise'),
    (r'-daemonize', '', 'the test keeps the process'),
    (r'-?-enable-kvm', '-accel {accel}', 'KVM need not work here'),
    (r'(-accel |,accel=)kvm', r'\g<1>{accel}', 'likewise'),
    (r'-cpu .*', '-cpu {cpu}', 'likewise'),
    (r'-m .*', '-m {mib}M', 'large guests take long'),
    (r'(-object .*memory-backend.*"?size"?[:=])\d+', r'\g<1>{bytes}', 'likewise'),
    (r',?"vhost":true,"vhostfd":"\d+"', '', 'no /dev/vhost-net need be here'),
    (r',vhost=on', '', 'likewise'),
    (r'ifname=[^,]*', 'ifname={tap}', 'one of the test'),
    (r'script=/[^,]*', 'script={true}', 'it would plug the tap into a bridge'),
    (r'-spice .*', '-display none', 'this QEMU has no SPICE, and the host no screen'),
    (r'-display (gtk|sdl).*', '-display none', 'likewise'),
    (r'-chardev (spicevmc|spiceport),(id=\w+).*', r'-chardev null,\g<2>', 'likewise'),
    (r'(-audiodev .*"driver":)"spice"', r'\g<1>"none"', 'likewise'),
    (r'-audiodev (pa|pipewire|spice),', '-audiodev none,', 'no sound'),
    (r'"qxl-vga"(.*),"max_outputs":1(,"v?ram\w+":\d+)+', r'"VGA"\g<1>', 'it needs SPICE'),
    (r'virtio-vga-gl', 'virtio-vga', 'no OpenGL'),
    (r'-vnc 127.0.0.1:\d+', '-vnc unix:{own}.vnc', 'that port may be taken'),
    (r'hostfwd=tcp:([\d.]*):\d+', r'hostfwd=tcp:\g<1>:{port}', 'likewise'),
)
# the firmware's console, where the line has nobody listen
CONSOLE = (r'-chardev (pty|null),(id=(charserial0|char0))$',
           r'-chardev socket,\g<2>,path={own}.serial,server=on,wait=off')


class Line:
    """One file: options with their values, and the entries of its head."""

    def __init__(self, path):
        self.name = os.path.splitext(os.path.basename(path))[0]
        self.options, self.head = [], {}
        with open(path, encoding='ascii') as f:
            for text in f:
                entry = re.match(r'# (\w+): +(.*)', text)
                if entry:
                    self.head[entry[1]] = entry[2]
                elif not text.startswith('#'):
                    self.options.append(self.option(shlex.split(text), path))

    @staticmethod
    def option(words, path):
        want = 1 if words[0].lstrip('-') in NO_ARGUMENT else 2
        if len(words) != want:
            raise Failed(f'{path}: {words}: want one option a line')
        return ' '.join(words)

    def has(self, option):
        return any(o.startswith(option) for o in self.options)


def make_image(fmt, size='64M'):
    def make(path):
        subprocess.run(['qemu-img', 'create', '-q', '-f', fmt, path, size], check=True, timeout=20)
    return make


def make_variables(fmt):
    """Of the firmware, as a distribution has them."""
    def make(path):
        subprocess.run(['qemu-img', 'convert', '-f', 'raw', '-O', fmt,
                        VARIABLES, path], check=True, timeout=20)
    return make


def make_bytes(data, mode=0o600):
    def make(path):
        with open(path, 'wb') as f:
            f.write(data)
        os.chmod(path, mode)
    return make


def copy_config(path):
    shutil.copy(os.path.join(common.HERE, 'lines', 'proxmox-q35.cfg'), path)


# files that the QEMUs of a line share: (name, what makes it). Any other path is each QEMU's own
FILES = (
    (r'vm-110-disk-1\.qcow2', make_variables('qcow2')),
    (r'\w*VARS\.fd', make_variables('raw')),
    (r'.*\.qcow2|diffdisk|ubuntu\.img', make_image('qcow2')),
    (r'.*\.img', make_image('raw')),
    (r'.*\.iso', make_image('raw', '1M')),
    (r'master-key\.aes', make_bytes(bytes(32))),
    (r'bootsplash\.jpg', make_bytes(b'\xff\xd8\xff\xe0' + bytes(60))),
    (r'.*\.cfg', copy_config),
    (r'Public|u', os.mkdir),
)
KEPT = ('/dev/urandom', '/dev/shm')


class Here:
    """Where the QEMUs of one line are, on this host."""

    def __init__(self, t, line, accel, without=()):
        self.line, self.accel = line, accel
        self.micro = line.head['Guest'] == 'micro'
        self.mib = MICRO_MIB if self.micro else FIRMWARE_MIB
        self.options = [o for o in line.options if not o.startswith(tuple(without))]
        self.folder = tempfile.mkdtemp(dir=t.work)
        self.true = os.path.join(self.folder, 'true')
        make_bytes(b'#!/bin/sh\nexit 0\n', 0o700)(self.true)
        self.tap = f'ffl{os.getpid() % 100000}'
        self.port = common.free_port()
        if line.head['Guest'] == 'shell' and not os.path.exists(VARIABLES):
            raise Skip(f'no {VARIABLES}: apt install ovmf')

    @property
    def made_tap(self):
        """The tap that is there before QEMU; '': none."""
        return self.tap if any('ifname=' in o and 'script=no' in o for o in self.options) else ''

    def values(self, own):
        return {'accel': self.accel, 'cpu': cpu_model(self.accel), 'mib': self.mib,
                'bytes': self.mib << 20, 'tap': self.tap, 'true': self.true, 'own': own,
                'port': self.port}

    def path(self, path, own):
        name = os.path.basename(path)
        if path in KEPT or path.startswith(self.folder):
            return path
        if name.startswith('OVMF_CODE'):
            return os.path.join(OVMF, name)
        for pattern, make in FILES:
            if re.fullmatch(pattern, name):
                mine = os.path.join(self.folder, name)
                if not os.path.exists(mine):
                    make(mine)
                return mine
        serial = name.endswith(('serial.sock', '-serial.socket', '.serial0'))
        return f'{own}.serial' if serial else f'{own}.{name}'

    def descriptor(self, option, own, fds):
        """Instead of one that the tool hands over."""
        def new(match):
            made = open_tap() if 'tap' in option else listener(f'{own}.fd{len(fds)}')
            fds.append(made)
            return f'{match[1]}{made.fileno()}'
        return re.sub(r'(\bfd"?[:=]"?)\d+', new, option)

    def argv(self, name):
        """(arguments, descriptors) of the QEMU so called."""
        own, fds, out = os.path.join(self.folder, name), [], []
        for option in self.options:
            for pattern, by, _ in RULES:
                option = re.sub(f'^{pattern}' if pattern.startswith('-') else pattern,
                                by.format(**self.values(own)), option)
            if not self.micro:
                option = re.sub(CONSOLE[0], CONSOLE[1].format(own=own), option)
            option = re.sub(r'(?<=[=":])(/[^,"]*)', lambda m: self.path(m[1], own), option)
            option = re.sub(r'^(-(?:pidfile|readconfig|cdrom|hda) )(/.*)',
                            lambda m: m[1] + self.path(m[2], own), option)
            option = self.descriptor(option, own, fds)
            out += option.split(' ', 1) if option else []
        if '-accel' not in out and not any(',accel=' in o for o in out):
            out += ['-accel', self.accel]
        return out, fds


def listener(path):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen(1)
    return sock


def open_tap():
    """A tap of the kernel's name, which goes with its last descriptor."""
    try:
        f = open('/dev/net/tun', 'r+b', buffering=0)
        fcntl.ioctl(f, TUNSETIFF, struct.pack('16sH22x', b'ffl%d', TUN_FLAGS))
    except OSError as e:
        raise Skip(f'/dev/net/tun: {e}; run as root, with the module tun') from None
    return f


@contextlib.contextmanager
def made_taps(here, hosts):
    """The tap that a line expects, here and on the other hosts."""
    def ip(where, *args):
        out = subprocess.run(['ip', *where, *args], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, timeout=20, check=False)
        if out.returncode:
            raise Failed(f'ip {args}: {out.stdout.strip()}')
    with contextlib.ExitStack() as undo:
        for where in ([], *(['-n', h.split('=')[0]] for h in hosts)) if here.made_tap else ():
            ip(where, 'tuntap', 'add', here.tap, 'mode', 'tap')
            undo.callback(ip, where, 'tuntap', 'del', here.tap, 'mode', 'tap')
        yield


class Swtpm(threading.Thread):
    """As much of swtpm as QEMU needs to start: its control channel, and a TPM that says yes."""
    # commands of QEMU's backends/tpm/tpm_ioctl.h: bytes of the argument, answer
    DONE = struct.pack('>I', 0)
    COMMANDS = {1: (0, struct.pack('>Q', 0xffff)),              # capabilities: all
                2: (4, DONE), 3: (0, DONE), 5: (4, DONE), 9: (0, DONE), 14: (0, DONE),
                16: (0, DONE), 4: (0, DONE + bytes(4)),
                17: (4, DONE + struct.pack('>III', 4096, 1024, 4096))}

    def __init__(self, path):
        super().__init__(daemon=True)
        self.server = listener(path)

    def run(self):
        with self.server, self.server.accept()[0] as sock:
            while True:
                head, fds, _, _ = socket.recv_fds(sock, 4, 1)
                if len(head) < 4:
                    return
                for fd in fds:
                    threading.Thread(target=self.answer, args=(socket.socket(fileno=fd),),
                                     daemon=True).start()
                size, reply = self.COMMANDS[struct.unpack('>I', head)[0]]
                if size:
                    sock.recv(size, socket.MSG_WAITALL)
                sock.sendall(reply)

    @staticmethod
    def answer(data):
        with data:
            while data.recv(4096):
                data.sendall(struct.pack('>HII', 0x8001, 10, 0))


class Console:
    """The firmware's serial line, at a socket."""

    def __init__(self, path):
        self.raw = b''
        self.sock = socket.socket(socket.AF_UNIX)
        common.wait_for(f'a console at {path}', 20, lambda: os.path.exists(path))
        self.sock.connect(path)
        self.sock.setblocking(False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def read(self):
        with contextlib.suppress(BlockingIOError):
            while data := self.sock.recv(65536):
                self.raw += data
        return re.sub(rb'\x1b\[[\d;?]*[A-Za-z]', b'', self.raw)

    def wait(self, text, limit_s):
        try:
            common.wait_for(f'"{text}" of the firmware', limit_s,
                            lambda: text.encode() in self.read())
        except Failed as e:
            raise Failed(f'{e}; it says {self.read()[-300:]}') from None

    def wait_shell(self, reset):
        """Until it takes commands: it says so, and counts down unless somebody presses a key.

        Now and then, mostly on a busy host, that shell ends as it starts, with a device error: long
        before any move or fork, and before anybody has written to it. Then reset() it.
        """
        for left in (2, 1, 0):
            common.wait_for('shell of the firmware', 150, lambda: re.search(
                rb'any other key to continue|No bootable option', self.read()))
            if b'No bootable' not in self.read() or not left:
                break
            common.say(f'      the firmware did not start its shell ({self.read()[-160:]}): reset')
            self.raw = b''
            reset()
        self.sock.send(b'x\r')
        self.wait('Shell>', 60)

    def remember(self, value):
        """In a variable of the shell: in the guest's memory."""
        self.sock.send(f'set -v fflines {value}\recho %fflines%,%fflines%\r'.encode())
        self.wait(f'{value},{value}', 60)

    def recall(self, value):
        """It runs, and knows that still."""
        self.raw = b''
        self.sock.send(b'echo again,%fflines%\r')
        self.wait(f'again,{value}', 60)
