#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""guest_agent.py - qemu-ga answers after a fork and a move, and memory that was plugged in is in use

Debian's qemu-ga in the Linux guest, with a DIMM that was plugged in while it ran and that it uses, and a
disk with cloud-init's NoCloud data. Its children have all of that, and data of their own; the same
after a move. Limit: 280 s. (CPUs: machines.py. Under TCG this kernel takes none that was not there at
its boot.)
"""
import contextlib
import glob
import json
import os
import random
import shutil
import socket
import subprocess

import common
import guest_identity
from attaching import Move
from common import Failed, Skip, wait_for
from forked import Clone, check_nothing_left, check_result, kill
from linuxguest import APPEND
from vmclone_linux import Child

TOOLS = os.path.join(common.BUILD, 'tests', 'e2e', 'guest-tools')
AGENT_PORT = 'org.qemu.guest_agent.0'
MIB, DIMM_MIB = 160, 128
MAC = '52:54:00:77:00:02'
SEED = {'meta-data': 'instance-id: i-of-the-parent\nlocal-hostname: web\n',
        'user-data': '#cloud-config\nfqdn: web.example.org\n',
        'network-config': 'version: 2\nethernets:\n  lan:\n    match: {macaddress: "52:54:00:77:00:02"}\n'
                          '    dhcp4: true\n'}

# the file's first line, wherever the disk has it
READ_ID = r"tr '\0' '\n' < /dev/vda | grep -m 1 ^instance-id"

# --- the guest ---

def add_agent(t):
    """An initrd with qemu-ga, and what it needs of this system."""
    program = os.path.join(TOOLS, 'usr', 'sbin', 'qemu-ga')
    if not os.path.exists(program):
        raise Skip(f'no {program}: run make check, which downloads it')
    tree = os.path.join(t.work, 'tree')
    out = subprocess.run(['ldd', program], stdout=subprocess.PIPE, text=True, timeout=20, check=True)
    files = {'/bin/qemu-ga': program}
    for line in out.stdout.splitlines():
        path = next((w for w in line.split() if w.startswith('/')), None)
        if 'not found' in line:
            raise Skip(f'qemu-ga: {line.strip()}: install the package of that library')
        if path:
            files[path] = path
    for there, here in files.items():
        os.makedirs(tree + os.path.dirname(there), exist_ok=True)
        shutil.copy(here, tree + there)
    more = subprocess.run(f'cd {tree} && find . | cpio --quiet -o -H newc -R 0:0', shell=True,
                          stdout=subprocess.PIPE, timeout=60, check=True).stdout
    path = os.path.join(t.work, 'initrd')
    with open(path, 'wb') as f:
        with open(common.INITRD, 'rb') as first:
            shutil.copyfileobj(first, f)
        f.write(more)
    return path


def make_seed(t):
    """As cloud-localds makes it."""
    if not shutil.which('genisoimage'):
        raise Skip('no genisoimage: apt install genisoimage')
    folder, path = os.path.join(t.work, 'seed'), os.path.join(t.work, 'seed.iso')
    os.mkdir(folder)
    for name, text in SEED.items():
        common.write_file(os.path.join(folder, name), text)
    subprocess.run(['genisoimage', '-quiet', '-output', path, '-volid', 'cidata', '-joliet', '-rock',
                    *(os.path.join(folder, name) for name in SEED)], check=True, timeout=20)
    return path


def options(t):
    return ['-name', 'web', '-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot',
            '-accel', 'tcg', '-cpu', 'max', '-m', f'size={MIB}M,slots=2,maxmem=1G',
            '-machine', 'q35', '-bios', 'qboot.rom', '-kernel', common.VMLINUX,
            '-initrd', add_agent(t), '-append',
            f'{APPEND} nosoftlockup farfork.load=off farfork.guest=on',
            '-serial', 'chardev:console', '-device', 'virtio-serial-pci',
            '-device', 'virtserialport,chardev=channel,name=org.farfork.0',
            '-chardev', f'socket,id=agent,path={t.work}/agent,server=on,wait=off',
            '-device', f'virtserialport,chardev=agent,name={AGENT_PORT}',
            '-drive', f'file={make_seed(t)},format=raw,if=none,id=seed,readonly=on',
            '-device', 'virtio-blk-pci,drive=seed',
            '-netdev', 'user,id=n0', '-device', f'virtio-net-pci,netdev=n0,mac={MAC},romfile=',
            '-qmp', f'unix:{t.work}/parent.second,server=on,wait=off']


# --- the agent ---

class Agent:
    """The host's end of its port."""

    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(path)
        self.file = self.sock.makefile('rb')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.sock.close()

    def sync(self):
        """It answers, and to this; whatever it had half of is dropped."""
        number = random.getrandbits(31)
        self.sock.sendall(b'\xff' + json.dumps({'execute': 'guest-sync', 'arguments':
                                                {'id': number}}).encode() + b'\n')
        for line in self.file:
            answer = json.loads(line.lstrip(b'\xff'))
            if answer.get('return') == number:
                return
        raise Failed('the agent has closed its port')

    def ask(self, command):
        self.sock.sendall(json.dumps({'execute': command}).encode() + b'\n')
        return json.loads(self.file.readline())['return']


def check_agent(path, who):
    try:
        with Agent(path) as agent:
            agent.sync()
            if not agent.ask('guest-get-vcpus'):
                raise Failed(f'{who}: the agent knows of no CPU')
    except OSError as e:
        raise Failed(f'{who}: the agent does not answer: {e}') from None


# --- what is in use ---

def total_kib(machine):
    return int(machine.sh("sed -n 's/MemTotal: *\\([0-9]*\\).*/\\1/p' /proc/meminfo"))


def plug(parent):
    before = total_kib(parent)
    parent.qmp('object-add', **{'qom-type': 'memory-backend-ram', 'id': 'mem1',
                                'size': DIMM_MIB << 20})
    parent.qmp('device_add', driver='pc-dimm', id='dimm1', memdev='mem1')
    wait_for('the DIMM', 60, lambda: total_kib(parent) >= before + (DIMM_MIB - 8 << 10))
    # more than there was at the start
    parent.sh('mkdir /big; mount -t tmpfs -o size=200M big /big')
    parent.sh(f'dd if=/dev/zero bs=1M count={(before >> 10) + 4} 2> /dev/null | tr "\\0" f > /big/file', 120)
    return parent.sh('md5sum < /big/file', 120)


def check_use(machine, digest):
    if machine.sh('md5sum < /big/file', 120) != digest:
        raise Failed(f'{machine.name}: other memory')


# --- NoCloud ---

def check_seed(row, result, machine):
    """What cloud-init would read there."""
    want = result['identities'][row['child'] - 1]
    with open(f'/proc/{row["pid"]}/cmdline', encoding='utf-8') as f:
        path = [w.split('file=')[1].split(',')[0] for w in f.read().split('\0')
                if 'id=seed' in w][0]
    if os.stat(path).st_mode & 0o777 != 0o600:
        raise Failed(f'{path}: mode {os.stat(path).st_mode:o}')
    for tree in ('-R', '-J'):
        got = {name: subprocess.run(['isoinfo', '-i', path, tree, '-x', f'/{name}'], timeout=20,
                                    stdout=subprocess.PIPE, text=True, check=True).stdout
               for name in SEED}
        expected = {'meta-data': f'instance-id: {want["uuid"]}\nlocal-hostname: {want["hostname"]}\n',
                    'user-data': f'#cloud-config\nfqdn: {want["hostname"]}.example.org\n',
                    'network-config': SEED['network-config'].replace(MAC, want['macs'][0])}
        if got != expected:
            raise Failed(f'{machine.name}: {got}, want {expected}')
    seen = machine.sh(READ_ID)
    if seen != f'instance-id: {want["uuid"]}':
        raise Failed(f'{machine.name}: it reads {seen}')
    return path


def forked(t, stack, parent, digest):
    scratch = os.path.join(t.work, 'scratch')
    os.mkdir(scratch)
    with open(os.path.join(t.work, 'seed.iso'), 'rb') as f:
        seed = f.read()
    agent = stack.enter_context(Agent(f'{t.work}/agent'))
    agent.sync()
    agent.sock.sendall(b'{"execute": "guest-in')     # half of a command, in each child
    with Clone(t, f'{t.work}/parent.second', 2, '--scratch', scratch) as c:
        check_result(c, 0, {'complete': 2})
        for row in c.children:
            with contextlib.closing(Child(row)) as child:
                check_agent(f'{os.path.dirname(row["qmp"])}/{row["child"]}.agent', child.name)
                check_use(child, digest)
                check_seed(row, c.result, child)
        agent.sync()
        if any('cloud-init' in n for n in c.result['notes']):
            raise Failed(f'{c.result["notes"]}')
        kill(c.base, 'f')
        check_nothing_left(c)
    agent.__exit__()
    if os.listdir(scratch):
        raise Failed(f'left: {os.listdir(scratch)}')
    with open(os.path.join(t.work, 'seed.iso'), 'rb') as f:
        if f.read() != seed:
            raise Failed("the parent's data were changed")
    if 'i-of-the-parent' not in parent.sh(READ_ID):
        raise Failed('the parent reads other data')


def moved(t, parent, digest):
    with Move(t, f'{t.work}/parent.second') as m:
        m.end(0, 'there')
        row = {'child': 1, 'qmp': f'{m.result["rundir"]}/1.qmp', 'pid': m.result['pid']}
        with contextlib.closing(Child(row)) as there:
            check_agent(glob.glob(f'{m.result["rundir"]}/1.agent')[0], 'after a move')
            check_use(there, digest)
        kill(m.base, m.name)
        check_nothing_left(m)
    parent.close()


def run(t):
    with contextlib.ExitStack() as stack:
        with t.case('a DIMM is plugged in, the agent runs'):
            parent = guest_identity.boot(t, stack, 'parent', options(t))
            digest = plug(parent)
            guest_identity.in_background(parent, (
                f'n=$(grep -l {AGENT_PORT} /sys/class/virtio-ports/*/name); n=${{n%/name}}; '
                'qemu-ga -m virtio-serial -p /dev/${n##*/} -t /tmp > /tmp/ga.log 2>&1'))
            check_agent(f'{t.work}/agent', 'parent')
        if not t.passed:
            return
        with t.case('a fork'):
            forked(t, stack, parent, digest)
        with t.case('a move'):
            moved(t, parent, digest)


if __name__ == '__main__':
    common.main(run, limit_s=280)
