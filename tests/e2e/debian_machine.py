# SPDX-License-Identifier: LGPL-2.1-or-later
"""debian_machine.py - QEMUs with a whole Debian 12 (debian.mk), a shell in it, and what is true of it

    s = settings(t, choose_accel(t))
    with Debian(lab, s, 'a') as a, contextlib.closing(Shell(lab, t.work, GUEST_IP)) as shell:
        a.start()
        shell.open(BOOT_S)
        check_system(shell)
        check_bench(shell)

Limits are those of a guest without KVM, with another machine's load beside it.
"""
import contextlib
import os
import re
import shutil
import subprocess

import common
import linuxguest
from common import Failed, say
from linuxguest import MAC

DEBIAN = os.path.join(common.BUILD, 'guests', 'debian')     # debian.mk
MEM_MIB = 512
BOOT_S, COMMAND_S, CHECK_S, PROGRESS_S = 600, 120, 600, 120
APPEND = ('root=/dev/vda rw console=ttyS0 quiet systemd.show_status=0 net.ifnames=0 '
          'no_timer_check mitigations=off panic=-1')
GENERATION = '6f0c1f52-5d0a-4a8b-9b38-5f3c3a8ce001'
IDENTITY = {
    'hostname': 'hostname',
    'machine-id': 'cat /etc/machine-id',
    'boot_id': 'cat /proc/sys/kernel/random/boot_id',
    'mac': 'cat /sys/class/net/eth0/address',
    'address': "ip -4 -o addr show dev eth0 | awk '{ print $4 }'",
    'host key': 'cat /etc/ssh/ssh_host_ed25519_key.pub',
    'random': 'od -An -tx1 -N16 /dev/urandom',
}
COMPLAINTS = 'BUG|WARNING|Oops|soft lockup|blocked for more than|I/O error|EXT4-fs (error|warning)|' \
             'rcu.*stall|segfault'


def wait_for(what, limit_s, condition):
    return linuxguest.wait_for(what, limit_s, condition, 0.5)


class Debian(common.Linux):
    """A QEMU for it; its shell is ssh's."""

    def argv(self, incoming):
        s = self.s
        a = [s.qemu, '-name', 'debian', '-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot',
             '-accel', s.accel, '-cpu', s.cpu, '-M', s.machine, '-m', str(s.memory_mib),
             '-smp', str(s.smp), *s.extra, '-kernel', s.kernel, '-initrd', s.initrd, '-append', s.append,
             '-serial', f'file:{self.console}',
             '-chardev', f'socket,id=qmp,fd={self.qmp_fd}', '-mon', 'chardev=qmp,mode=control',
             '-qmp', f'unix:{self.second},server=on,wait=off',
             '-drive', f'file={s.disk},format=qcow2,if=none,id=d0,cache={cache(s.disk)}',
             '-device', 'virtio-blk-pci,drive=d0',
             '-netdev', f'tap,id=n0,ifname={self.tap},script={s.workdir}/ifup,downscript=no',
             '-device', f'virtio-net-pci,netdev=n0,mac={MAC}',
             '-device', 'virtio-serial-pci',
             '-chardev', f'socket,id=farfork,path={s.workdir}/{self.name}.port,server=on,wait=off',
             '-device', 'virtserialport,chardev=farfork,name=org.farfork.0',
             '-device', f'vmgenid,guid={GENERATION}',
             '-fw_cfg', f'name=opt/org.farfork/clone,file={s.workdir}/placeholder',
             '-device', 'virtio-rng-pci']
        return a + (['-incoming', incoming] if incoming else [])

    @property
    def second(self):
        return os.path.join(self.s.workdir, f'{self.name}.qmp')


def cache(disk):
    return 'none' if linuxguest.can_direct(disk) else 'writeback'


def settings(t, accel):
    """One disk for all QEMUs of it: what is written goes into a file of this test."""
    machine, memory = common.backend('memfd', MEM_MIB)
    disk = os.path.join(t.work, 'disk.qcow2')
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', '-F', 'raw', '-b',
                    os.path.abspath(f'{DEBIAN}.img'), disk], check=True, timeout=20)
    if cache(disk) != 'none':
        say(f'SKIP: cache=none: {t.work} has no O_DIRECT, the disk goes through the page cache')
    with open(os.path.join(t.work, 'placeholder'), 'wb') as f:
        f.truncate(4096)
    shutil.copy(f'{DEBIAN}/key', t.work)        # ssh takes none that others may read
    ifup = os.path.join(t.work, 'ifup')
    common.write_file(ifup, '#!/bin/sh\nexec ip link set "$1" master br0 up\n')
    os.chmod(ifup, 0o700)
    return linuxguest.Settings(
        os.path.abspath(common.QEMU), f'{DEBIAN}/vmlinux', f'{DEBIAN}/initrd.img', t.work,
        machine='q35' + machine, accel=accel, cpu=common.cpu_model(accel), memory_mib=MEM_MIB, disk=disk,
        append=APPEND, extra=memory)


def choose_accel(t):
    """KVM if the small Linux guest boots with it: a nested one may run no kernel."""
    if t.kvm_reason():
        return 'tcg'
    with common.Linux(None, common.linux_settings(t, 'try', accel='kvm'), 'try') as guest:
        guest.start()
        try:
            common.linux_boot(guest, 20)
        except Failed as e:
            say(f'SKIP: everything under kvm: the Linux guest does not boot: {str(e).splitlines()[0]}')
            return 'tcg'
    return 'kvm'


class Shell:
    """root's, by one ssh session that stays."""

    def __init__(self, lab, work, address):
        self.name = address
        self.log = os.path.join(work, f'ssh-{address}.log')
        self.socket = os.path.join(work, f'ssh-{address}')
        self.base = lab.inside([
            'ssh', '-F', 'none', '-S', self.socket, '-i', f'{work}/key', '-o', 'BatchMode=yes',
            '-o', 'StrictHostKeyChecking=accept-new', '-o', f'UserKnownHostsFile={work}/hosts-{address}',
            '-o', 'ConnectTimeout=30', '-o', 'LogLevel=ERROR', f'root@{address}'])
        self.master = None

    def open(self, limit_s):
        wait_for(f'ssh to {self.name}: {self.log}', limit_s, self.is_open)
        return self

    def is_open(self):
        if not self.master or self.master.poll() is not None:
            # what a killed one leaves: the next would not listen there, and stay all the same
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.socket)
            with open(self.log, 'ab') as log:
                self.master = subprocess.Popen([*self.base, '-M', '-N'], stdin=subprocess.DEVNULL,
                                               stdout=log, stderr=log)
        return subprocess.run([*self.base, '-O', 'check'], stdin=subprocess.DEVNULL, timeout=30,
                              capture_output=True, check=False).returncode == 0

    def run(self, command, limit_s=COMMAND_S):
        """(exit code, what it printed)"""
        if self.master.poll() is not None:
            raise Failed(f'{self.name}: the ssh session has ended')
        try:
            done = subprocess.run([*self.base, command], stdin=subprocess.DEVNULL, timeout=limit_s,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        except subprocess.TimeoutExpired:
            raise Failed(f'{self.name}: {command}: no end within {limit_s} s') from None
        return done.returncode, done.stdout.strip()

    def sh(self, command, limit_s=COMMAND_S):
        code, out = self.run(command, limit_s)
        if code:
            raise Failed(f'{self.name}: {command}: exit code {code}: {out[-1500:]}')
        return out

    def sql(self, query, limit_s=COMMAND_S):
        return self.sh(f'cd /; runuser -u postgres -- psql -XAtq -v ON_ERROR_STOP=1 -d bench -c "{query}"',
                       limit_s)

    def close(self):
        if self.master and self.master.poll() is None:
            self.master.kill()
            self.master.wait()


# --- what is true of it ---

def check_system(shell):
    code, state = shell.run('systemctl is-system-running --wait', BOOT_S)
    if code:
        raise Failed(f'{shell.name}: systemd says {state}: '
                     f'{shell.run("systemctl --failed --no-legend; systemctl list-jobs")[1]}')
    bad = shell.run(f"dmesg | grep -E '{COMPLAINTS}'")[1]
    if bad:
        raise Failed(f'{shell.name}: its kernel complains: {bad[:800]}')


def check_ledger(shell, at_least, at_most):
    """The client's transactions: all that were confirmed, and none that it has not sent."""
    count, last, wrong = map(int, shell.sql(
        'SELECT count(*), coalesce(max(n), 0), count(*) FILTER (WHERE hash <> md5(n::text)) FROM ledger'
    ).split('|'))
    if count != last or wrong or not at_least <= count <= at_most:
        raise Failed(f'{shell.name}: {count} transactions up to {last}, {wrong} wrong; want each up to '
                     f'{at_least}, and none after {at_most}')
    return count


def check_bench(shell):
    """pgbench inside goes on, and its sums agree."""
    count = 'SELECT count(*) FROM pgbench_history'
    had = int(shell.sql(count))
    wait_for(f'{shell.name}: transactions of pgbench', PROGRESS_S,
             lambda: int(shell.sql(count)) > had + 3)
    shell.sh('systemctl is-active bench.service')
    sums = shell.sql('SELECT (SELECT sum(abalance) FROM pgbench_accounts), '
                     '(SELECT sum(bbalance) FROM pgbench_branches), '
                     '(SELECT sum(tbalance) FROM pgbench_tellers), '
                     '(SELECT sum(delta) FROM pgbench_history)', CHECK_S).split('|')
    if len(set(sums)) != 1:
        raise Failed(f'{shell.name}: the sums of pgbench differ: {sums}')


def check_indexes(shell):
    shell.sh('cd /; runuser -u postgres -- /usr/lib/postgresql/15/bin/pg_amcheck --heapallindexed '
             '--rootdescend -d bench', CHECK_S)


def check_pages(shell):
    """All of the cluster's, from the disk."""
    shell.sh('systemctl stop bench.service postgresql@15-main', CHECK_S)
    out = shell.sh('cd /; echo 3 > /proc/sys/vm/drop_caches; runuser -u postgres -- '
                   '/usr/lib/postgresql/15/bin/pg_checksums --check -D /var/lib/postgresql/15/main',
                   CHECK_S)
    found = re.search(r'Blocks scanned: *(\d+)\nBad checksums: *0', out)
    if not found or int(found[1]) < 1000:
        raise Failed(f'{shell.name}: pg_checksums: {out}')


def identity(shell):
    return {what: shell.sh(command) for what, command in IDENTITY.items()}


def keeps(what, before, shell):
    now = identity(shell)
    changed = {k: (before[k], now[k]) for k in now if k != 'random' and now[k] != before[k]}
    if changed:
        raise Failed(f'{what}: the guest has become another machine: {changed}')
