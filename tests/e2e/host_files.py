#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""host_files.py - what `make install-host` puts on a host does its work there, and doctor misses it

On a host with systemd, udevd, nftables and firewalld of Debian's (booted.py). AppArmor's parser reads
the profiles; tests/lab/apparmor.py has a kernel that enforces them. Limit: 90 s.
"""
import json
import os
import subprocess

import common
from booted import Booted, cannot_boot, tools
from common import Failed, Skip
from libvirt_hosts import HostError

TOP = os.path.dirname(os.path.dirname(common.HERE))
FARFORK = os.path.realpath(common.FARFORK)
USER, NAME = '4242', 'runner'
HERE, PEER, STRANGER = '10.20.0.1', '10.20.0.5', '10.20.0.9'
RULES = '''flush ruleset
include "/etc/farfork.nft"
table inet filter {
    chain input {
        type filter hook input priority filter; policy accept;
        ct state established,related accept
        icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
        %s
        reject with icmpx admin-prohibited
    }
}
'''
LISTEN = '''
import socket
s = socket.socket()
s.bind(("%s", %d))
s.listen(16)
print(s.getsockname()[1], flush=True)
while True:
    s.accept()
'''
CONNECT = '''
import json, socket, sys
here, sources, ports = json.loads(sys.argv[1])
said = {}
for source in sources:
    for port in ports:
        try:
            socket.create_connection((here, port), 20, (source, 0)).close()
            said[f"{source} to port {port}"] = "connected"
        except OSError as e:
            said[f"{source} to port {port}"] = str(e)
print(json.dumps(said))
'''
# as it is on most hosts, whatever this machine has now
NO_SYSCALL = 'echo 0 > /run/zero; mount --bind /run/zero /proc/sys/vm/unprivileged_userfaultfd;'


def installed(t):
    """What make puts below a folder, by path."""
    tree = os.path.join(t.work, 'tree')
    subprocess.run(['make', '-s', 'install-host', 'install-rdma', f'DESTDIR={tree}', 'PREFIX=/usr'],
                   cwd=TOP, check=True, stdout=subprocess.DEVNULL, timeout=60)
    return {p[len(tree):]: p for p in (os.path.join(d, f) for d, _, names in os.walk(tree)
                                       for f in names)}


def doctor(host, subject, mark, *words, user=None, prepare=''):
    argv = ['setpriv', f'--reuid={USER}', f'--regid={USER}', f'--groups={user}'] if user else []
    out = host.run('unshare', '--mount', 'sh', '-c', f'{prepare} exec "$@"', 'sh', *argv, FARFORK,
                   'doctor', '--json', fails=True)
    row = next((c for c in json.loads(out)['checks'] if c['subject'] == subject), None)
    if not row or row['result'] != mark or any(w not in row['why'] for w in words):
        raise Failed(f'doctor, {subject}: {row}; want {mark}, {words}')


def opens(host, group, may):
    """Whether a user of that group may open the device."""
    out = host.run('setpriv', f'--reuid={USER}', f'--regid={USER}', f'--groups={group}', 'sh', '-c',
                   ': <> /dev/userfaultfd && echo opened', fails=True)
    if ('opened' in out) != may:
        raise Failed(f'/dev/userfaultfd by a user of group {group}: {out}')


def udev(host, files):
    rule = '/usr/lib/udev/rules.d/60-farfork.rules'
    kvm = host.run('getent', 'group', 'kvm').split(':')[2]
    doctor(host, 'udev rule', 'limited', 'no 60-farfork.rules', 'package farfork')
    opens(host, kvm, False)
    host.copy(files[rule], rule)
    doctor(host, 'udev rule', 'limited', rule, 'udevadm trigger')
    host.run('udevadm', 'control', '--reload')
    host.run('udevadm', 'trigger', '--settle', '--name-match=userfaultfd')
    doctor(host, 'udev rule', 'ok', 'group kvm, mode 0660')
    opens(host, kvm, True)
    opens(host, str(int(kvm) + 1), False)
    doctor(host, 'userfaultfd', 'ok', 'by /dev/userfaultfd', user=kvm)
    doctor(host, 'sysctl', 'ok', 'enough', prepare=NO_SYSCALL)
    doctor(host, 'sysctl', 'limited', 'root alone', '/etc/sysctl.d',
           prepare=NO_SYSCALL + 'rm /dev/userfaultfd;')
    doctor(host, 'udev rule', 'limited', 'Linux has it from 6.1')


def limits(host, files):
    path = '/etc/security/limits.d/farfork-rdma.conf'
    card = 'mount -t tmpfs none /sys/class; mkdir -p /sys/class/infiniband/rxe0;'
    host.run('useradd', '--no-create-home', '--uid', USER, '--groups', 'kvm', NAME)
    login = ['prlimit', '--memlock=65536:65536', 'su', '-s', '/bin/sh', NAME, '-c', 'ulimit -l']
    before = host.run(*login).strip()
    doctor(host, 'limits.d', 'ok', 'no RDMA device')
    doctor(host, 'limits.d', 'limited', 'package farfork-rdma', prepare=card)
    host.write(path, '# memlock\n')
    doctor(host, 'limits.d', 'limited', 'package farfork-rdma', prepare=card)
    host.copy(files[path], path)
    doctor(host, 'limits.d', 'ok', path, prepare=card)
    after = host.run(*login).strip()
    # root of a container may lack CAP_SYS_RESOURCE: then PAM says what it would have done
    tried = host.run('journalctl', '--output=cat', '--identifier=su', '--grep=memlock.*soft=-1', fails=True)
    if before != '64' or (after != 'unlimited' and 'not permitted' not in tried):
        raise Failed(f'memlock at login: {before}, with {path} {after}; {tried}')


class Peer:
    """A network namespace with a cable to the host."""

    def __init__(self, host):
        self.host = host
        host.run('ip', 'netns', 'add', 'peer')
        host.run('ip', 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', 'peer')
        host.run('ip', 'address', 'add', f'{HERE}/24', 'dev', 'eth0')
        host.run('ip', 'link', 'set', 'eth0', 'up')
        host.run('ip', 'link', 'set', 'lo', 'up')
        for argv in (['address', 'add', f'{PEER}/24', 'dev', 'eth0'],
                     ['address', 'add', f'{STRANGER}/24', 'dev', 'eth0'], ['link', 'set', 'eth0', 'up']):
            host.run('ip', '-n', 'peer', *argv)
        self.listeners = []
        # any port: what the kernel chooses, as agents let it
        for port in (0, 4457, 22):
            name = f'listen-{port}'
            host.run('systemd-run', '--quiet', f'--unit={name}', 'python3', '-c', LISTEN % (HERE, port))
            line = common.wait_for(name, 20, lambda n=name: host.run(
                'journalctl', '--quiet', '--output=cat', f'--unit={n}', '--identifier=python3').strip())
            self.listeners.append(int(line))

    def check(self, what, peer, stranger):
        """Which of the ports each of the two reaches."""
        question = json.dumps((HERE, (PEER, STRANGER), self.listeners))
        said = json.loads(self.host.run('ip', 'netns', 'exec', 'peer', 'python3', '-c', CONNECT,
                                        question))
        for (way, answer), reaches in zip(said.items(), peer + stranger):
            if answer != 'connected' if reaches else 'Errno 113' not in answer:
                raise Failed(f'{what}: {way}: {answer}')


def nftables(host, files, peer):
    source = next(p for name, p in files.items() if name.endswith('/farfork.nft'))
    host.run('nft', '--check', '--file', '-', text=open(source, encoding='utf-8').read())
    peer.check('no firewall', (True, True, True), (True, True, True))
    doctor(host, 'firewall', 'ok', 'none')
    with open(source, encoding='utf-8') as f:
        host.write('/etc/farfork.nft', f.read().replace('192.0.2.0/24', f'{PEER}/32'))
    host.write('/etc/nftables.conf', RULES % '')
    host.run('sed', '-i', 's/^.*farfork.nft.*$//', '/etc/nftables.conf')
    host.run('nft', '--file', '/etc/nftables.conf')
    peer.check('a firewall', (False, False, False), (False, False, False))
    doctor(host, 'firewall', 'limited', 'port 4457', '--add-service=farfork', 'farfork.nft')
    host.write('/etc/nftables.conf', RULES % 'jump farfork')
    host.run('nft', '--file', '/etc/nftables.conf')
    peer.check('farfork.nft', (True, True, False), (False, False, False))
    doctor(host, 'firewall', 'ok', 'name port 4457')
    host.run('nft', 'flush', 'ruleset')


def firewalld(host, files, peer):
    path = '/usr/lib/firewalld/services/farfork.xml'
    policy = '/usr/share/polkit-1/actions/org.fedoraproject.FirewallD1'
    host.run('ln', '-sf', f'{policy}.server.policy.choice', f'{policy}.policy')     # as its package does
    host.copy(files[path], path)
    host.run('firewall-offline-cmd', '--check-config')
    host.run('systemctl', 'start', 'firewalld')
    common.wait_for('firewalld', 30, lambda: host.run('firewall-cmd', '--state',
                                                      fails=True).strip() == 'running')
    peer.check('firewalld', (False, False, True), (False, False, True))     # its default knows ssh
    doctor(host, 'firewall', 'limited', '--add-service=farfork')
    for argv in (['--new-zone=farfork'], ['--zone=farfork', f'--add-source={PEER}'],
                 ['--zone=farfork', '--add-service=farfork']):      # as docs/operations.md has it
        host.run('firewall-cmd', '--permanent', *argv)
    host.run('firewall-cmd', '--reload')
    peer.check('farfork.xml', (True, True, False), (False, False, True))
    doctor(host, 'firewall', 'ok', 'name port 4457')
    host.run('systemctl', 'stop', 'firewalld')


def apparmor(host, files):
    profile, parse = '/etc/apparmor.d/farfork-agent', ['apparmor_parser', '-Q', '-K']
    security = ('mount -t tmpfs none /sys/module; mkdir -p /sys/module/apparmor/parameters; '
                'echo Y > /sys/module/apparmor/parameters/enabled; mount -t tmpfs none /sys/kernel; '
                'mkdir -p /sys/kernel/security/apparmor; {}')
    loaded = 'echo "farfork-agent (enforce)" > /sys/kernel/security/apparmor/profiles;'
    doctor(host, 'apparmor', 'ok', 'not enabled')
    doctor(host, 'apparmor', 'limited', f'no {profile}', 'package farfork', prepare=security.format(''))
    for path in (profile, '/etc/apparmor.d/abstractions/farfork-qemu'):
        host.copy(files[path], path)
    doctor(host, 'apparmor', 'limited', f'apparmor_parser -r {profile}', prepare=security.format(''))
    doctor(host, 'apparmor', 'ok', 'is loaded', prepare=security.format(loaded))
    host.run(*parse, profile)
    host.write('/etc/apparmor.d/of-libvirt', 'include <tunables/global>\n'
               'profile q flags=(attach_disconnected) {\n include <abstractions/base>\n'
               ' include <abstractions/farfork-qemu>\n}\n')
    host.run(*parse, '/etc/apparmor.d/of-libvirt')
    host.run('sed', '-i', 's/^  network inet,$/  netwerk inet,/', profile)
    if not host.run(*parse, profile, fails=True).count('syntax error'):
        raise Failed('the parser takes anything')


def needs():
    if cannot_boot(common.BUILD):
        raise Skip(cannot_boot(common.BUILD))
    common.need_files(f'{tools(common.BUILD)}/usr/sbin/firewalld')


def run(t):
    files = installed(t)
    try:
        with Booted(t.work, common.BUILD, TOP) as host:
            with t.case('udev rule: group kvm has userfaultfd'):
                udev(host, files)
            with t.case('limits.d: memlock at login'):
                limits(host, files)
            peer = Peer(host)
            with t.case('farfork.nft: hosts named there come in, others do not'):
                nftables(host, files, peer)
            with t.case('farfork.xml: a zone of firewalld likewise'):
                firewalld(host, files, peer)
            with t.case('AppArmor reads the profiles'):
                apparmor(host, files)
    except HostError as e:
        raise Failed(str(e)) from None


if __name__ == '__main__':
    common.main(run, 90, needs=needs)
