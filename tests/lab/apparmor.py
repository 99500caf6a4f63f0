#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""apparmor.py - inside the lab: a kernel that enforces packaging/farfork-agent

A guest is forked by vmclone, and one is moved: agents, children and the QEMU there run in the profile, and nothing that
they need is denied. What the profile denies is tried by a shell in it. Limit: 300 s.
"""
import glob
import os
import subprocess

import labplace                     # first: it knows where those of tests/e2e are
import common
from common import Failed, Skip, say
from farfork_move import Move
from forked import Clone, Parent, ask, check_nothing_left, check_result, kill

PACKAGING = os.path.join(labplace.TOP, 'packaging')
TOOLS = os.path.realpath(os.path.join(common.BUILD, 'tests', 'e2e', 'host-tools'))
SECURITY = '/sys/kernel/security'
MIB = 32
# (what, a line for sh, whether the profile denies it)
TRIES = (('read the hashes of passwords', 'cat /etc/shadow', True),
         ('write to /etc', 'echo x > /etc/farfork-was-here', True),
         ('write to /usr', 'echo x > /usr/bin/farfork-was-here', True),
         ('change a profile', 'echo x > /etc/apparmor.d/farfork-agent', True),
         ('keys of ssh', 'cat /root/.ssh/id_x', True),
         ('authorize a key', 'echo x >> /root/.ssh/authorized_keys', True),
         ('what a shell reads', 'echo x >> /root/.bashrc', True),
         ('a program out of /tmp', '/tmp/farfork-program', True),
         ('mount', 'mount -t tmpfs none /mnt', True),
         ('sysctl', 'echo 1 > /proc/sys/vm/unprivileged_userfaultfd', True),
         ('physical memory', 'head -c 1 /dev/mem', True),
         ('another profile', 'echo changeprofile unconfined > /proc/self/attr/apparmor/current', True),
         ('systemd', 'cat < /run/systemd/private', True),
         ('a unit', 'mkdir -p /run/systemd/transient && echo x > /run/systemd/transient/x.service', True),
         ('a folder of units', 'mkdir -p /run/made && mv -T /run/made /run/systemd/generator.late', True),
         ('a rule of udev', 'mkdir -p /run/udev/rules.d && echo x > /run/udev/rules.d/x.rules', True),
         ('what vmclone runs', 'echo x > /run/farfork/.vmclone/f/hosts.json', True),
         ('a folder of what vmclone runs', 'mkdir -p /srv/made && mv -T /srv/made /srv/.vmclone', True),
         ('a folder above', 'mv -T /root/.config /root/.was && mv -T /root/.was /root/.config', True),
         ('a folder of the root', 'mkdir /farfork-root', True),
         ('memory of another guest',
          'sleep 60 & (exec 3<>/proc/$!/mem); rc=$?; kill $!; exit $rc', True),
         ('what vmclone has recorded', 'ls /run/farfork/.vmclone/f', False),
         ('the same program out of /usr', 'cat /dev/null', False),
         ('a disk in /srv', 'echo x > /srv/farfork-disk && cat /srv/farfork-disk', False),
         ('the list of users', 'grep -q root /etc/passwd', False))


class Slow(common.Place):
    """A kernel under TCG."""
    load, accels, patience = labplace.Lab.load, labplace.Lab.accels, labplace.Lab.patience


def with_tools(*argv):
    """A program of host-tools."""
    return ['env', f'LD_LIBRARY_PATH={TOOLS}/usr/lib/x86_64-linux-gnu', *argv]


def load():
    if not os.path.exists(f'{SECURITY}/apparmor') and \
            subprocess.run(['mount', '-t', 'securityfs', 'none', SECURITY], check=False).returncode:
        raise Skip('no securityfs')
    if not os.path.exists(f'{SECURITY}/apparmor/profiles'):
        raise Skip("this kernel's AppArmor is off: LAB_APPEND='apparmor=1 security=apparmor'")
    common.need_files(f'{TOOLS}/sbin/apparmor_parser')
    os.makedirs('/etc/apparmor.d/local', exist_ok=True)
    subprocess.run(['cp', '-an', f'{TOOLS}/etc/apparmor.d', '/etc'], check=True)
    subprocess.run(['cp', f'{PACKAGING}/farfork-agent', '/etc/apparmor.d'], check=True)
    done = subprocess.run(with_tools(f'{TOOLS}/sbin/apparmor_parser', '-r',
                                     '/etc/apparmor.d/farfork-agent'), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Failed(f'apparmor_parser: {done.stdout}')


def confined(pid):
    with open(f'/proc/{pid}/attr/apparmor/current', encoding='ascii') as f:
        return f.read().strip() == 'farfork-agent (enforce)'


def check_confined(what, pid):
    if not confined(pid):
        raise Failed(f'{what}, process {pid}, is not confined')


def agents():
    """Those that run now."""
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            with open(path, 'rb') as f:
                words = f.read().split(b'\0')
        except OSError:
            continue
        if words[0].endswith(b'/farfork') and words[1:2] == [b'agent']:
            yield int(path.split('/')[2])


def denied():
    """What the kernel logged since the last look."""
    log = subprocess.run(['dmesg', '--read-clear'], stdout=subprocess.PIPE, text=True,
                         check=True).stdout
    return [line for line in log.splitlines() if 'apparmor="DENIED"' in line]


def needs_nothing_denied(what):
    lines = denied()
    if lines:
        raise Failed(f'{what}: denied: {" ".join(lines[:5])}')


def deny():
    for path in ('/root/.ssh', '/root/.config', '/srv', '/run/systemd', '/run/farfork/.vmclone/f'):
        os.makedirs(path, exist_ok=True)
    for path in ('/root/.ssh/id_x', '/run/systemd/private'):
        with open(path, 'w', encoding='ascii') as f:
            f.write('secret')
    subprocess.run(['cp', '/usr/bin/true', '/tmp/farfork-program'], check=True)
    for what, line, denies in TRIES:
        for inside in (True, False):
            if what in ('another profile', 'physical memory', 'systemd') and not inside:
                continue                # others than AppArmor forbid that, or permit it
            argv = with_tools(f'{TOOLS}/usr/bin/aa-exec', '-p', 'farfork-agent', '--') \
                if inside else []
            rc = subprocess.run([*argv, 'sh', '-c', line], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, check=False).returncode
            if bool(rc) != (denies and inside):
                raise Failed(f'{what}, {"in" if inside else "without"} the profile: exit code {rc}')
    say(f'      {len(denied())} lines in the log')


def fork(t):
    denied()
    with Parent(t, 'tcg', memory='memfd', mem_mib=MIB, load=common.place.load) as parent:
        with Clone(t, parent, 2) as c:
            check_result(c, 0, {'complete': 2})
            for row in c.children:
                check_confined('a child', row['pid'])
                if ask(row['qmp'], 'query-status')['status'] != 'running':
                    raise Failed(f'{row} does not run')
            for pid in agents():
                check_confined('an agent', pid)
            if confined(parent.proc.pid):
                raise Failed('the parent is confined')
            needs_nothing_denied('fork')
            kill(c.base, 'f')
            check_nothing_left(c, parent)
    needs_nothing_denied('end of the fork')


def move(t):
    """The QEMU that a guest is moved to is started by an agent, in its profile."""
    denied()
    with Parent(t, 'tcg', mem_mib=MIB, load=common.place.load) as parent:
        with Move(t, parent) as m:
            r = m.end(0, 'there')
            check_confined('the QEMU there', r['pid'])
            for pid in agents():
                check_confined('an agent', pid)
            if ask(r['qmp'], 'query-status')['status'] != 'running':
                raise Failed('it does not run there')
            needs_nothing_denied('move')
    needs_nothing_denied('end of the guest')


def tried(what, t):
    """A QEMU below TCG may miss a limit of seconds when its host is busy; a denial is no such thing."""
    for left in (2, 1, 0):
        try:
            return what(t)
        except Failed as e:
            lines = denied()
            if not left or lines or 'denied' in str(e) or 'confined' in str(e):
                raise Failed(f'{e}; denied: {lines}') from None
            say(f'      again: {e}')


def run(t):
    load()
    with t.case('what the profile denies, and nothing else'):
        deny()
    with t.case('vmclone'):
        tried(fork, t)
    with t.case('farfork move'):
        tried(move, t)


if __name__ == '__main__':
    common.place = Slow()
    common.main(run, 300, labplace.need_lab)
