#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""guest_identity.py - farfork-guest in the Linux guest: children share nothing; limit: 300 s

The fork is QEMU's own migration to a file, which each child starts from while the parent goes on.
Command lines and messages are those of vm/identity.c; the host's end of the channel is
played here.
"""
import contextlib
import json
import os
import re
import select
import socket
import struct
import subprocess
import threading
import time

import common
from common import BUILD, INITRD, QEMU, VMLINUX, Failed, say, wait_for

from linuxguest import APPEND
from qemu import Guest

PLAN = os.path.join(BUILD, 'tests', 'clone', 'plan')
FW_CFG_BYTES = 4096
BOOT_S, COMMAND_S, FORK_S = 90, 40, 60
PARENT_MAC, PARENT_IP = '52:54:00:77:00:02', '10.77.0.2'
# what no two machines may share, and how the guest is asked for it
ASK = {
    'mac': 'cat /sys/class/net/eth0/address',
    'ip': "ip -4 addr show dev eth0 | sed -n 's/^ *inet \\([^ ]*\\).*/\\1/p'",
    'link-local': "ip -6 addr show dev eth0 scope link | sed -n 's/^ *inet6 \\([^ ]*\\).*/\\1/p'",
    'hostname': 'hostname',
    'machine-id': 'cat /etc/machine-id',
    'boot_id': 'cat /proc/sys/kernel/random/boot_id',
    'ssh key': 'cat /etc/ssh/ssh_host_test_key',
    'random': 'head -c 16 /dev/urandom | od -An -tx1',
}

# Over eth1 and eth2 a bond, over that a bridge, over that a VLAN; over eth0 a VLAN and a macvlan. Two
# have an address that was given by hand, one of them the NIC's. All are up
UPPER = 'bond0 br0 br0.5 eth0.5 mv0'
BUILD_UPPER = f"""
for m in bonding bridge 8021q macvlan; do for f in /modules/$m.*; do insmod $f; done; done 2> /dev/null
ip link add bond0 type bond; ip link add br0 type bridge
echo active-backup > /sys/class/net/bond0/bonding/mode
for d in eth1 eth2; do ip link set $d master bond0; done
ip link set bond0 up; ip link set bond0 master br0
ip link set br0 address $(cat /sys/class/net/eth1/address); ip link set br0 up
ip link add link br0 br0.5 type vlan id 5; ip link set br0.5 address 52:54:00:77:99:05
ip link add link eth0 eth0.5 type vlan id 5; ip link add link eth0 mv0 type macvlan
for d in br0.5 eth0.5 mv0; do ip link set $d up; done
ip -6 addr add fd00::5/64 dev br0.5; ip addr add 10.78.0.1/24 dev br0
"""
ADDRESSES = f"for d in eth0 eth1 eth2 {UPPER}; do cat /sys/class/net/$d/address; done; "
ADDRESSES += "ip -6 addr show scope link | sed -n 's/^ *inet6 \\([^ ]*\\).*/\\1/p'"


class Lan(threading.Thread):
    """The other end of every NIC: takes all frames, and answers DHCP, each MAC its own address."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path, self.leases = path, {}
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(path)

    def run(self):
        while True:
            try:
                frame, sender = self.sock.recvfrom(65536)
            except OSError:
                return
            answer = self.answer(frame)
            if answer and sender:
                with contextlib.suppress(OSError):
                    self.sock.sendto(answer, sender)

    def answer(self, frame):
        # UDP over IPv4 without options, to port 67; a BOOTP request with the magic cookie
        if frame[12:15] != b'\x08\x00\x45' or frame[23] != 17 or frame[36:38] != b'\0\x43':
            return None
        bootp = frame[42:]
        kind = re.search(rb'\x35\x01(.)', bootp[240:], re.DOTALL)
        mac = bootp[28:34]
        if bootp[236:240] != b'\x63\x82\x53\x63' or not kind:
            return None
        ip = self.leases.setdefault(mac.hex(':'), f'10.77.1.{len(self.leases) + 1}')
        server = socket.inet_aton('10.77.0.1')
        options = (b'\x63\x82\x53\x63\x35\x01' + (b'\x02' if kind[1] == b'\x01' else b'\x05') +
                   b'\x36\x04' + server + b'\x33\x04\0\0\x0e\x10\x01\x04\xff\xff\0\0' +
                   b'\x03\x04' + server + b'\xff')
        reply = (b'\x02' + bootp[1:16] + socket.inet_aton(ip) + server + bytes(4) + bootp[28:44] +
                 bytes(192) + options)
        udp = struct.pack('>HHHH', 67, 68, 8 + len(reply), 0) + reply
        head = struct.pack('>BBHHHBBH4s4s', 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, server,
                           b'\xff' * 4)
        total = sum(struct.unpack('>10H', head))
        total = (total & 0xffff) + (total >> 16)
        head = head[:10] + struct.pack('>H', ~total & 0xffff) + head[12:]
        return b'\xff' * 6 + b'\x02\x77\0\0\0\x01' + b'\x08\0' + head + udp

    def close(self):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class Linux(Guest):
    """A QEMU with the Linux guest, its console and its channel as sockets of this process."""

    program, env = QEMU, None

    def __init__(self, work, name, options):
        # pylint: disable=super-init-not-called
        self.name, self.events, self.pending = name, [], b''
        self.stderr = os.path.join(work, name + '.stderr')
        self.sock_path = os.path.join(work, name + '.qmp')
        self.qmp_sock = self.proc = self.console = self.channel = None
        self.paths = {k: os.path.join(work, f'{name}.{k}') for k in ('console', 'channel')}
        self.options = options
        net = f'local.type=unix,local.path={work}/{name}.net'
        self.argv = [self.program, *(re.sub(r'local\.type=unix,local\.path=[^,]*', net, o)
                             for o in options), '-qmp', f'unix:{self.sock_path},server=on,wait=off']
        for k, path in self.paths.items():
            self.argv += ['-chardev', f'socket,id={k},path={path},server=on,wait=off']
        self.seen, self.marks = b'', 1000
        self.heard = b''

    def connect(self, which):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(10)
        s.connect(self.paths[which])
        setattr(self, which, s)

    def close(self):
        for s in (self.console, self.channel):
            if s:
                s.close()
        super().close()

    def wait_console(self, pattern, limit_s):
        end = time.monotonic() + limit_s
        while not (found := re.search(pattern, self.seen)):
            left = end - time.monotonic()
            if left <= 0:
                raise Failed(f'{self.name}: console: no {pattern} within {limit_s} s: '
                             f'{self.seen[-800:].decode(errors="replace")}')
            if select.select([self.console], [], [], left)[0]:
                data = self.console.recv(65536)
                if not data:
                    raise Failed(f'{self.name}: console closed: {self.complaint()}')
                self.seen += data
        self.seen = self.seen[found.end():]
        return found

    def sh(self, command, limit_s=COMMAND_S, code=0):
        """What the command prints on the guest's console."""
        self.marks += 1
        # the marks are made by the shell: the terminal's echo of this line has none
        line = f'echo; echo "@$(({self.marks}))<"; {command}; echo "@$(({self.marks})):$?:"\n'
        self.console.sendall(line.encode())
        self.wait_console(rb'@%d<\r\n' % self.marks, limit_s)
        found = self.wait_console(rb'(?s)^(.*?)@%d:(\d+):' % self.marks, limit_s)
        out = found[1].decode(errors='replace').replace('\r', '').strip()
        if int(found[2]) != code:
            raise Failed(f'{self.name}: {command}: exit code {int(found[2])}, want {code}: {out}')
        return out

    def say(self, text):
        self.channel.sendall(text.encode())

    def hear(self, limit_s=COMMAND_S):
        """The next line from the guest."""
        end = time.monotonic() + limit_s
        while b'\n' not in self.heard:
            left = end - time.monotonic()
            if left <= 0:
                raise Failed(f'{self.name}: the guest says nothing within {limit_s} s; console: '
                             f'{self.sh("cat /tmp/*.err", 10)}')
            if select.select([self.channel], [], [], left)[0]:
                data = self.channel.recv(65536)
                if not data:
                    raise Failed(f'{self.name}: channel closed: {self.complaint()}')
                self.heard += data
        line, self.heard = self.heard.split(b'\n', 1)
        return line.decode()


def options(t, fw_cfg, genid=True):
    placeholder = os.path.join(t.work, 'placeholder')
    with open(placeholder, 'wb') as f:
        f.truncate(FW_CFG_BYTES)
    append = f'{APPEND} nosoftlockup farfork.load=off farfork.guest=on farfork.ip={PARENT_IP}/24,10.77.0.1'
    return ['-name', 'web', '-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot',
            '-accel', 'tcg', '-cpu', 'max', '-m', '128M', '-machine', 'q35',
            '-kernel', VMLINUX, '-initrd', INITRD, '-append', append,
            '-serial', 'chardev:console', '-device', 'virtio-serial-pci',
            '-device', 'virtserialport,chardev=channel,name=org.farfork.0',
            '-netdev', 'dgram,id=n0,local.type=unix,local.path=own,remote.type=unix,'
            f'remote.path={t.work}/lan',
            '-device', f'virtio-net-pci,netdev=n0,mac={PARENT_MAC},romfile=',
            *(['-device', 'vmgenid,guid=auto'] if genid else []),
            *(['-fw_cfg', f'name=opt/org.farfork/clone,file={placeholder}'] if fw_cfg else [])]


def plan(t, opts, fork, count, **how):
    rundir = os.path.join(t.work, fork)
    os.mkdir(rundir)
    done = subprocess.run([PLAN], input=json.dumps({
        'fork': fork, 'argv': ['qemu', *opts], 'children': count, 'identity': how,
        'rundir': rundir}),
                          capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise Failed(done.stderr.strip())
    return json.loads(done.stdout)


def boot(t, stack, name, opts, kind=Linux):
    g = stack.enter_context(kind(t.work, name, opts))
    g.connect('console')
    g.connect('channel')
    g.wait_console(rb'farfork: console ready', BOOT_S)
    # a kernel that complains (of a queue whose link is down, for one) would do so in an answer
    g.sh('stty -echo; PS1=; dmesg -n 1; mkdir -p /etc/ssh /etc/farfork.d')
    # the guest has no ssh-keygen: one that does what farfork-guest expects
    g.sh('printf \'#!/bin/sh\\nset -C; for f; do :; done; [ "$f" != -A ] || '
         'f=/etc/ssh/ssh_host_test_key; cat /proc/sys/kernel/random/uuid > "$f"; : > "$f.pub"\\n\' > '
         '/bin/ssh-keygen; chmod +x /bin/ssh-keygen; ssh-keygen -A')
    g.sh('cat /proc/sys/kernel/random/uuid > /etc/machine-id; hostname web; '
         'echo 127.0.1.1 web > /etc/hosts')
    g.sh('mkdir -p /etc/udhcpc; printf \'#!/bin/sh\\n[ "$1" != bound ] || { '
         'ip addr add $ip/$mask dev $interface; ip route add default via $router; }\\n\' > '
         '/etc/udhcpc/default.script; chmod +x /etc/udhcpc/default.script')
    g.sh('echo \'echo "$FARFORK_NUMBER of $FARFORK_COUNT: $FARFORK_USER" > /tmp/hook; '
         'while [ -e /tmp/hold ]; do sleep 0.1; done\' > /etc/farfork.d/test.sh')
    return g


def fork(t, stack, parent, p, name):
    """Children of a parent that goes on, by QEMU's own migration."""
    state = os.path.join(t.work, f'{name}.state')
    parent.qmp('migrate', uri=f'file:{state}')
    common.wait_migration(parent, 'completed')
    parent.qmp('cont')
    children = []
    for k, child in enumerate(p['children'], 1):
        for f in child['private']:
            common.write_file(f['path'], f['text'])
        # as in a child of vmclone, or the guest announces its parent's addresses
        quiet = ['-global', 'migration.announce-rounds=0', '-incoming', f'file:{state}']
        c = stack.enter_context(Linux(t.work, f'{name}{k}', child['argv'][1:] + quiet))
        c.connect('console')
        children.append(c)
    for c in children:
        wait_for(f'{c.name} runs', FORK_S, lambda c=c: c.qmp('query-status')['running'])
    os.unlink(state)
    return children


def in_background(machine, command):
    """The shell of the console knows nothing of it, and says nothing when it ends."""
    machine.sh(f'( ( {command} ) < /dev/null & )')


def ask(machines):
    """{what: [answer of each machine]}"""
    # a link-local address comes a moment after the link
    got = {what: [wait_for(f'{what} in {m.name}', COMMAND_S, lambda m=m, c=command: m.sh(c))
                  for m in machines] for what, command in ASK.items()}
    got['generation id'] = [m.qmp('query-vm-generation-id')['guid'] for m in machines]
    return got


def check_differ(got):
    for what, values in got.items():
        say(f'      {what}: {", ".join(values)}')
        if not all(values) or len(set(values)) != len(values):
            raise Failed(f'{what}: not all differ: {values}')


def check_as_planned(p, k, child, ip=None):
    s = p['children'][k - 1]['summary']
    want = {'mac': s['macs'][0], 'ip': ip or f'10.77.0.{10 + k}/24', 'hostname': s['hostname']}
    for what, value in want.items():
        if child.sh(ASK[what]) != value:
            raise Failed(f'{child.name}: {what} {child.sh(ASK[what])}, want {value}')
    for what, command, value in (
            ('route', 'ip route show', 'default via 10.77.0.1 dev eth0'),
            ('hosts', 'cat /etc/hosts', f'127.0.1.1 {s["hostname"]}'),
            ('hook', 'cat /tmp/hook', f'{k} of {len(p["children"])}: some "data"'),
            ('kernel', 'dmesg', 'crng reseeded due to virtual machine fork')):
        if value not in child.sh(command):
            raise Failed(f'{child.name}: {what}: no "{value}" in {child.sh(command)}')


def check_upper(machines, known):
    """Nothing has an address that another machine has, all are up, and what was set by hand is there."""
    for m in machines:
        own = set(m.sh(ADDRESSES).split())
        if own & known:
            raise Failed(f'{m.name} has {own & known} of another machine')
        known |= own
        down = m.sh(f'for d in {UPPER}; do ip link show $d; done | grep "[0-9]: " | grep -v "[<,]UP" || :')
        left = m.sh('ip -6 addr show dev br0.5; ip route')
        if down or 'fd00::5/64' not in left or 'default via 10.77.0.1 dev eth0' not in left:
            raise Failed(f'{m.name}: down: {down}; left: {left}')
    return known


def check_no_room(machine, itself):
    """A list of NICs that cannot be made, or is not whole, is not one without NICs: nothing is said."""
    machine.sh('sed "s/^\\"fork\\".*/\\"fork\\": \\"none\\",/" /run/farfork/message > /tmp/whole; '
               'sed "s/^{\\"mac_old/ &/" /tmp/whole > /tmp/part; farfork-guest apply /tmp/part', code=1)
    # for the message that is given; and for its copy; and for what is known; and for the lock's pid
    for pages in (1, 2, 3, 4):
        machine.sh(f'mount -t tmpfs -o size={4 * pages}k none /run/farfork')
        machine.sh('farfork-guest apply /tmp/whole', code=1)
        machine.sh('[ ! -e /run/farfork/lock ] && umount /run/farfork')
    machine.sh('farfork-guest exit 9')
    if (heard := machine.hear()) != f'exit 9 {itself}':
        raise Failed(f'{machine.name} says {heard}')


def waited(t, stack):
    """`farfork-guest wait` by fw_cfg; then one of the children is forked again."""
    opts = options(t, fw_cfg=True)
    for n in (1, 2):
        opts += ['-netdev', f'hubport,id=n{n},hubid={n}',
                 '-device', f'virtio-net-pci,netdev=n{n},mac=52:54:00:77:01:0{n},romfile=']
    parent = boot(t, stack, 'parent', opts)
    for command in BUILD_UPPER.strip().split('\n'):
        parent.sh(command)
    known = check_upper([parent], set())
    parent.sh('farfork-guest id', code=1)
    parent.sh('farfork-guest wait -t 1', code=3)
    parent.sh('farfork-guest exit 0', code=1)
    in_background(parent, 'farfork-guest wait > /tmp/wait 2> /tmp/wait.err; echo $? >> /tmp/wait')
    before = {what: parent.sh(command) for what, command in ASK.items() if what != 'random'}
    p = plan(t, opts, 'one', 2, ip=['10.77.0.{n+10}/24,10.77.0.1', '10.78.0.{n+10}/24'], user='some "data"')
    if p['missing']:
        raise Failed(f'missing: {p["missing"]}')
    children = fork(t, stack, parent, p, 'child')
    for k, c in enumerate(children, 1):
        wait_for(f'{c.name} is itself', FORK_S, lambda c=c: c.sh('cat /tmp/wait') == '0')
        check_as_planned(p, k, c)
        if c.sh('farfork-guest id') != f'one {k} 2' or c.sh('cat /tmp/wait.err'):
            raise Failed(f'{c.name}: {c.sh("farfork-guest id; cat /tmp/wait.err")}')
    check_differ(ask([parent, *children]))
    known = check_upper(children, known)
    for k, c in enumerate(children, 1):     # of eth1
        if c.sh(ASK['ip'].replace('eth0', 'br0')) != f'10.78.0.{10 + k}/24':
            raise Failed(f'{c.name}: {c.sh("ip -4 addr")}')
    after = {what: parent.sh(command) for what, command in ASK.items() if what != 'random'}
    if before != after or parent.sh('cat /tmp/wait'):
        raise Failed(f'the parent has changed: {before} {after}')
    children[0].sh('farfork-guest wait -t 2', code=3)      # nothing new

    # a second generation, of a child: by the same fw_cfg entry
    in_background(children[0],
                  'farfork-guest wait > /tmp/wait 2> /tmp/wait.err; echo $? >> /tmp/wait')
    children[0].sh('rm /tmp/hook; touch /tmp/hold')
    in_background(children[0], 'farfork-guest exit 7')     # nobody hears it yet
    # it opens the port when it knows whose word this is
    wait_for('exit has the port', COMMAND_S, lambda: children[0].sh(
        'for p in $(ps | grep "[e]xit 7" | sed "s/^ *//; s/ .*//"); do readlink /proc/$p/fd/3; done; :'))
    own = p['children'][0]['argv'][1:]
    at = own.index('-readconfig')       # clone_argv() drops it
    again = plan(t, own[:at] + own[at + 2:], 'two', 1)
    grandchild = fork(t, stack, children[0], again, 'grandchild')[0]
    wait_for('hook', FORK_S, lambda: grandchild.sh('cat /tmp/hook || :') == '1 of 1:')
    grandchild.connect('channel')
    heard = grandchild.hear()       # not its own; it had the port when "link" was due
    wait_for('end of exit', COMMAND_S, lambda: not grandchild.sh('ps | grep "[e]xit 7" || :'))
    grandchild.sh('rm /tmp/hold')
    if (heard, grandchild.hear()) != ('exit 7 one 1', 'ready two 1'):
        raise Failed(f'grandchild says {heard} and no more')
    wait_for('grandchild is itself', FORK_S, lambda: grandchild.sh('cat /tmp/wait') == '0')
    check_upper([grandchild], known)
    if grandchild.sh('farfork-guest id') != 'two 1 1':
        raise Failed(f'grandchild: {grandchild.sh("farfork-guest id")}')
    got = ask([parent, *children, grandchild])
    # nobody gave it an address of its own
    if got.pop('ip')[3] != '10.77.0.11/24' or grandchild.sh('hostname') != 'web-1-1':
        raise Failed(f'grandchild: {got}')
    check_differ(got)
    check_no_room(grandchild, 'two 1')


def asked(t, stack):
    """`farfork-guest fork N` by the channel alone: numbers, refusal, join."""
    opts = options(t, fw_cfg=False)
    parent = boot(t, stack, 'asker', opts)
    parent.sh('farfork-guest fork', code=2)
    parent.sh('farfork-guest fork -t 2 1', code=3)
    if parent.hear() != 'fork 1':
        raise Failed('no request')
    in_background(parent, 'farfork-guest fork 3 > /tmp/n 2> /tmp/n.err; echo $? >> /tmp/n')
    if parent.hear() != 'fork 3':
        raise Failed('no request')
    parent.say('failed no host has room\n')
    wait_for('refusal', COMMAND_S, lambda: parent.sh('cat /tmp/n') == '1')
    if 'no host has room' not in parent.sh('cat /tmp/n.err'):
        raise Failed(f'refused with {parent.sh("cat /tmp/n.err")}')

    parent.sh('rm /tmp/n')
    in_background(parent, 'farfork-guest fork 2 some \'"data"\' > /tmp/n 2> /tmp/n.err')
    want = 'fork 2 some "data"'
    heard = parent.hear()
    if heard != want:
        raise Failed(f'request "{heard}", want "{want}"')
    p = plan(t, opts, 'call', 2, ip=['dhcp'], user='some "data"')
    children = fork(t, stack, parent, p, 'called')
    parent.sh('mount -t tmpfs -o size=4k none /run/farfork; head -c 4096 /dev/zero > /run/farfork/full')
    parent.say('forked\n' + p['parent'])
    wait_for('no room', COMMAND_S, lambda: 'no room' in parent.sh('cat /tmp/n.err'))
    parent.sh('mount -o remount,size=1m /run/farfork')
    wait_for('number in the parent', COMMAND_S, lambda: parent.sh('cat /tmp/n'))
    parent.sh(': > /tmp/n.err')
    for k, c in enumerate(children, 1):
        c.connect('channel')
        c.say('forked\n' + p['children'][k - 1]['message'])
        for line in ('link', 'ready'):
            heard = c.hear()
            if heard != f'{line} call {k}':
                raise Failed(f'{c.name} says "{heard}", want "{line} call {k}"')
    for k, m in enumerate([parent, *children]):
        wait_for(f'number in {m.name}', COMMAND_S, lambda k=k, m=m: m.sh('cat /tmp/n') == str(k))
        if m.sh('cat /tmp/n.err') or m.sh('farfork-guest id') != f'call {k} 2':
            raise Failed(f'{m.name}: {m.sh("cat /tmp/n.err; farfork-guest id")}')
    for k, c in enumerate(children, 1):
        mac = p['children'][k - 1]['summary']['macs'][0]
        check_as_planned(p, k, c, ip=f'{t.lan.leases.get(mac)}/16')
    check_differ(ask([parent, *children]))

    in_background(parent, 'farfork-guest join > /tmp/join; echo $? >> /tmp/join')
    verb, word = parent.hear().split()
    if verb != 'join':
        raise Failed('no join')
    # the answer to somebody who did not wait for it, then this one's
    parent.say(f'joining {word}9\nexited 9 9\njoined\njoining {word}\n')
    for k, c in enumerate(children, 1):
        c.sh(f'farfork-guest exit {k - 1}')
        if c.hear() != f'exit {k - 1} call {k}':
            raise Failed(f'{c.name}: no exit')
        parent.say(f'exited {k} {k - 1}\n')
    parent.say('joined\n')
    wait_for('join', COMMAND_S, lambda: parent.sh('cat /tmp/join').split() == '1 0 2 1 1'.split())
    if parent.hear() != 'joined':
        raise Failed('what was joined is not confirmed')
    in_background(parent, 'farfork-guest join > /tmp/again 2>&1; echo $? >> /tmp/again')
    parent.say(f'joining {parent.hear().split()[1]}\nexited 1 0\n')
    wait_for('the first line', COMMAND_S, lambda: '1 0' in parent.sh('cat /tmp/again'))
    parent.channel.close()      # nobody will ever answer
    parent.channel = None
    wait_for('end of join', COMMAND_S, lambda: 'no vmclone --serve is there' in parent.sh(
        'cat /tmp/again') and parent.sh('cat /tmp/again').split()[-1] == '1')


def run(t):
    common.need_files(PLAN, VMLINUX, INITRD)
    t.lan = Lan(os.path.join(t.work, 'lan'))
    t.at_end.callback(t.lan.close)
    t.lan.start()
    for name, case in (('wait, by fw_cfg; a second generation', waited),
                       ('fork and join, by the channel', asked)):
        with t.case(name), contextlib.ExitStack() as stack:
            case(t, stack)


if __name__ == '__main__':
    common.main(run, 300, needs=lambda: None)
