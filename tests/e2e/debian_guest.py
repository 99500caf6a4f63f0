#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""debian_guest.py - a whole Debian 12 with a busy PostgreSQL moves ten times, and is forked into four

A client outside confirms one transaction after the other, by one TLS session from the first move to
the last check; pgbench runs inside. In the end every transaction that was confirmed is there, and the
database finds itself right: amcheck, data checksums, pgbench's sums; after a crash, too. In the
children the packages' udev rule and unit of farfork-guest give each an identity of its own, and their
databases go on and check themselves. Limit: 1700 s, for a guest without KVM on two busy cores.
"""
import concurrent.futures
import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import socket
import subprocess
import threading
import time

import common
import linuxguest
from common import Failed, Skip, check_move, move, say
from debian_machine import (BOOT_S, CHECK_S, COMMAND_S, DEBIAN, IDENTITY, PROGRESS_S, Debian, Shell,
                            check_bench, check_indexes, check_ledger, check_pages, check_system,
                            choose_accel, identity, keeps, settings, wait_for)
from forked import VMCLONE
from linuxguest import GUEST_IP, MAC

LIMIT_S = 1700
MOVES = ['', ',landing=continue', ',precopy=1', ',prefill=push', ',window=1,chunk=64K'] * 2
FORK, CHILDREN = 'deb', 4
READY_S = 600
PACE_S = 0.05
CLONE_NEWNET, ETH_P_ALL = 0x40000000, 3
OUTSIDE = f'host={GUEST_IP} dbname=bench user=bench sslmode=require connect_timeout=30'


# --- the client outside ---

class Client(threading.Thread):
    """One session of psql: a transaction, its confirmation, the next one."""

    def __init__(self, lab, work):
        super().__init__(daemon=True)
        self.log = open(os.path.join(work, 'psql.log'), 'w+', encoding='utf-8')
        self.proc = subprocess.Popen(
            lab.inside(['psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', OUTSIDE]), stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.log, text=True, bufsize=1,
            env={**os.environ, 'PGPASSWORD': 'bench'})
        self.sent = self.confirmed = 0      # transactions 1 to that one
        self.gap_s, self.gap_at, self.why = 0, 0, None
        self.ending = threading.Event()
        self.session = self.ask("SELECT pid, ssl, version, cipher FROM pg_stat_ssl WHERE pid = "
                                "pg_backend_pid();")
        if '|t|TLS' not in self.session:
            raise Failed(f'no TLS session: {self.session}')
        self.start()

    def ask(self, text, limit_s=COMMAND_S):
        """What it prints, a line."""
        self.proc.stdin.write(text + '\n')
        if not select.select([self.proc.stdout], [], [], limit_s)[0]:
            raise Failed(f'the client has no answer within {limit_s} s')
        line = self.proc.stdout.readline()
        if not line:
            self.log.seek(0)
            raise Failed(f'the client has lost its session: {self.log.read().strip()}')
        return line.strip()

    def run(self):
        try:
            while not self.ending.wait(PACE_S):
                n = self.sent = self.sent + 1
                start = time.monotonic()
                # the echo comes after the confirmation, and not at all after an error
                if self.ask(f"INSERT INTO ledger VALUES ({n}, md5('{n}'));\n\\echo {n}") != str(n):
                    raise Failed(f'the client: not the answer to {n}')
                self.confirmed = n
                gap = time.monotonic() - start
                if gap > self.gap_s:
                    self.gap_s, self.gap_at = gap, n
        except (Failed, OSError) as e:
            self.why = str(e)

    def goes_on(self, more=5):
        """So many more are confirmed."""
        want = self.confirmed + more

        def look():
            if self.why:
                raise Failed(self.why)
            return self.confirmed >= want
        wait_for(f'transaction {want} of the client', PROGRESS_S, look)

    def finish(self):
        self.ending.set()
        self.join(COMMAND_S)
        if self.why or self.is_alive():
            raise Failed(self.why or 'the client does not end')
        pid = self.ask('SELECT pg_backend_pid();')
        if pid != self.session.split('|')[0]:
            raise Failed(f'the client has another session: {pid}, was {self.session}')

    def close(self):
        self.proc.kill()
        self.proc.wait()
        self.log.close()


class Frames(threading.Thread):
    """By which tap a frame came: (tap, MAC, IPv4 address) of its sender."""

    def __init__(self, lab):
        super().__init__(daemon=True)
        self.seen, self.ending = set(), False
        libc = ctypes.CDLL(None, use_errno=True)
        with open('/proc/thread-self/ns/net', 'rb') as own, open(f'/run/netns/{lab.name}', 'rb') as there:
            if libc.setns(there.fileno(), CLONE_NEWNET):
                raise Failed(f'setns: {os.strerror(ctypes.get_errno())}')
            try:
                self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW,
                                          socket.htons(ETH_P_ALL))
            finally:
                libc.setns(own.fileno(), CLONE_NEWNET)
        self.start()

    def run(self):
        while not self.ending:
            if not select.select([self.sock], [], [], 0.5)[0]:
                continue
            frame, (device, _, direction, *_) = self.sock.recvfrom(2048)
            if not device.startswith('tap') or direction == socket.PACKET_OUTGOING:
                continue
            at = {b'\x08\x00': 26, b'\x08\x06': 28}.get(frame[12:14])      # IPv4, ARP
            sender = socket.inet_ntoa(frame[at:at + 4]) if at else ''
            self.seen.add((device, frame[6:12].hex(':'), sender))

    def check(self, tap):
        """The parent's addresses are the parent's alone, and the children have spoken."""
        others = {s for s in self.seen if s[0] != tap}
        wrong = {s for s in others if s[1] == MAC or s[2] == GUEST_IP}
        if wrong or len({s[0] for s in others}) != CHILDREN:
            raise Failed(f'by an address of the parent others have sent: {wrong}; of {others}')

    def close(self):
        self.ending = True
        self.join()
        self.sock.close()


# --- the cases ---

class Place:
    """The guest wherever it is, and what looks at it."""

    def __init__(self, t, stack, lab, accel):
        self.t, self.stack, self.lab = t, stack, lab
        self.s = settings(t, accel)
        self.here = self.shell = self.client = self.before = None

    def qemu(self, name, **how):
        q = self.stack.enter_context(Debian(self.lab, self.s, name))
        return q.start(**how)

    def boot(self, name):
        self.here = self.qemu(name)
        self.shell = self.stack.enter_context(contextlib.closing(
            Shell(self.lab, self.t.work, GUEST_IP)))
        try:
            self.shell.open(BOOT_S)
        except Failed as e:
            raise Failed(f'{e}; {self.here.tail}') from None
        check_system(self.shell)

    def talk(self):
        self.client = self.stack.enter_context(contextlib.closing(Client(self.lab, self.t.work)))
        self.client.goes_on()


def boot(place):
    start = time.monotonic()
    place.boot('a')
    shell = place.shell
    say(f'      up after {time.monotonic() - start:.0f} s: {shell.sh("uname -rv")}; '
        f'{shell.sh("systemd-analyze time | head -1")}')
    # nobody enabled it: the udev rule of the package wants it, where the fw_cfg entry is
    if shell.sh('systemctl is-active farfork-guest.service') != 'active':
        raise Failed('farfork-guest.service does not run')
    if shell.sql('SHOW data_checksums') != 'on':
        raise Failed('the database has no checksums')
    place.talk()
    say(f'      the client: {place.client.session}')
    check_bench(shell)
    place.before = identity(shell)


def move_on(place, number, options):
    src, client = place.here, place.client
    dst = place.qemu('bcdefghijklm'[number], incoming=True)
    moved = move(src, dst, options=options)
    check_move(moved)
    src.quit()
    place.here = dst
    client.goes_on()
    say(f'      {options or "default"}: {moved.line()}; confirmed {client.confirmed}')


def moves(place):
    for number, options in enumerate(MOVES):
        move_on(place, number, options)
    check_system(place.shell)
    check_bench(place.shell)
    keeps('moved', place.before, place.shell)
    check_indexes(place.shell)
    say(f'      the client waited {1000 * place.client.gap_s:.0f} ms at most, for transaction '
        f'{place.client.gap_at} of {place.client.confirmed}')


class Family:
    """The children, and what ends them."""

    def __init__(self, place):
        self.place = place
        self.rundir, self.scratch = (os.path.join(place.t.work, n) for n in ('run', 'scratch'))
        os.mkdir(self.scratch)
        self.shells, self.result = [], None

    def vmclone(self, *args, fails=False):
        done = subprocess.run(self.place.lab.inside([os.path.abspath(VMCLONE), *args, '--rundir',
                                                     self.rundir]),
                              capture_output=True, text=True, timeout=200, check=False)
        if done.returncode and not fails:
            why = re.findall(r'"error": "(.*)"', done.stdout)[:2]
            raise Failed(f'vmclone: exit code {done.returncode}: {why} {done.stderr}')
        return done.stdout

    def make(self):
        self.result = json.loads(self.vmclone(
            '--json', '--id', FORK, '--scratch', self.scratch, '--timeout', '120', '--ip',
            '10.77.0.{n+10}/24,10.77.0.1', self.place.here.second, str(CHILDREN)))
        if len(os.listdir(self.scratch)) != CHILDREN:
            raise Failed(f'overlays: {os.listdir(self.scratch)}, want {CHILDREN}')

    def console(self, row):
        folder, k = os.path.dirname(row['qmp']), row['child']
        path = f'{folder}/{k}.{os.path.basename(self.place.here.console)}'
        with open(path, encoding='utf-8', errors='replace') as f:
            return f.read()

    def open(self):
        """A shell in each that has become itself: its hook has said so on its console."""
        for row in self.result['children']:
            k = row['child']
            word = f'farfork: child {k} of {CHILDREN}'
            try:
                wait_for(f'child {k} is itself', READY_S, lambda r=row, w=word: w in self.console(r))
            except Failed as e:
                raise Failed(f'{e}; its console: {self.console(row)[-800:]}') from None
            shell = Shell(self.place.lab, self.place.t.work, f'10.77.0.{10 + k}')
            self.shells.append(shell)
            shell.open(COMMAND_S)
        return self.shells

    def close(self, fails=True):
        for shell in self.shells:
            shell.close()
        self.vmclone('--kill', FORK, fails=fails)

    def end(self):
        self.close(fails=False)
        if os.listdir(self.scratch):
            raise Failed(f'overlays of children that have ended: {os.listdir(self.scratch)}')


def check_child(shell, number, confirmed, sent, started):
    """A machine of its own, in the midst of what its parent did."""
    check_system(shell)
    applied = shell.sh('cat /var/lib/farfork/applied')
    if applied != f'{FORK} {number}':
        raise Failed(f'{shell.name}: farfork-guest has applied "{applied}"')
    if shell.sql('SELECT pg_postmaster_start_time()') != started:
        raise Failed(f'{shell.name}: its database has started anew')
    count = check_ledger(shell, confirmed, sent)
    check_bench(shell)
    check_indexes(shell)
    check_pages(shell)
    return count


def fork(place):
    client, shell = place.client, place.shell
    started = shell.sql('SELECT pg_postmaster_start_time()')
    frames = place.stack.enter_context(contextlib.closing(Frames(place.lab)))
    confirmed = client.confirmed
    family = place.stack.enter_context(contextlib.closing(Family(place)))
    family.make()
    sent = client.sent
    client.goes_on()
    say('      ' + ', '.join(f'{k} {v:.0f}' for k, v in family.result['phases_ms'].items() if v) + ' ms')
    start = time.monotonic()
    children = family.open()
    say(f'      all are themselves {time.monotonic() - start:.0f} s later')
    got = [place.before, *map(identity, children)]
    for what in IDENTITY:
        values = [g[what] for g in got]
        say(f'      {what}: {", ".join(v[-24:] for v in values)}')
        if len(set(values)) != len(values):
            raise Failed(f'{what}: not all differ: {values}')
    want = [(i['hostname'], f'10.77.0.{11 + n}/24') for n, i in enumerate(family.result['identities'])]
    if [(g['hostname'], g['address']) for g in got[1:]] != want:
        raise Failed(f'the children are not those planned: {got[1:]}, want {want}')
    keeps('forked', place.before, shell)
    with concurrent.futures.ThreadPoolExecutor(CHILDREN) as pool:
        checks = [pool.submit(check_child, c, k, confirmed, sent, started)
                  for k, c in enumerate(children, 1)]
        counts = [check.result() for check in checks]
    if len(set(counts)) != 1:
        raise Failed(f'the children are of different moments: {counts} transactions')
    say(f'      in each {counts[0]} transactions of the client; {confirmed} were confirmed before, '
        f'{sent} sent after')
    family.end()
    client.goes_on()
    frames.check(place.here.tap)
    check_bench(shell)
    check_system(shell)
    # the parent goes on in it; from here on it is the disk
    place.s.disk = family.result['disks'][0]['parent-overlay']


def power_cut(place):
    """What was confirmed is on the disk: nothing else of the guest is left."""
    client = place.client
    client.goes_on()
    place.here.process.kill()
    place.here.process.wait()
    # the client learns nothing of that: a server without power sends nothing
    client.proc.kill()
    client.join(COMMAND_S)
    confirmed, sent = client.confirmed, client.sent
    place.shell.close()
    place.boot('z')
    shell = place.shell
    if 'automatic recovery in progress' not in shell.sh('cat /var/log/postgresql/*.log'):
        raise Failed('the database does not notice that there was no power')
    check_ledger(shell, confirmed, sent)
    say(f'      {confirmed} were confirmed, each is there')
    check_bench(shell)
    check_indexes(shell)
    check_pages(shell)
    shell.run('systemctl poweroff')
    try:
        code = place.here.process.wait(COMMAND_S)
    except subprocess.TimeoutExpired:
        code = None
    if code != 0:
        raise Failed(f'the guest does not power off: {code}; {place.here.tail}')
    disk, raw = place.s.disk, os.path.join(place.t.work, 'whole.img')
    for argv in (['qemu-img', 'check', '-q', disk], ['qemu-img', 'convert', '-O', 'raw', disk, raw],
                 ['/sbin/e2fsck', '-fn', raw]):
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=CHECK_S, check=False)
        if done.returncode:
            raise Failed(f'{" ".join(argv)}: {done.stdout[-1500:]}')


def run(t):
    common.need_files(VMCLONE, common.VMLINUX, common.INITRD)
    accel = choose_accel(t)
    lab = linuxguest.Lab(f'ffe2e-{os.getpid()}-deb')
    t.at_end.callback(lab.close)
    with contextlib.ExitStack() as stack:
        place = Place(t, stack, lab, accel)
        for name, case in (('boots', boot), ('moves ten times', moves), ('forks into four', fork),
                           ('power cut', power_cut)):
            with t.case(f'{name}, {accel}'):
                case(place)
            if t.failed:
                break


def needs():
    common.need_userfaultfd()
    if os.geteuid():
        raise Skip('a guest of files of other users, taps and namespaces: run it as root')
    for program in ('ssh', 'psql', 'qemu-img'):
        if not shutil.which(program):
            raise Skip(f'no {program}: scripts/deps full installs it')
    if not os.path.exists(f'{DEBIAN}.img'):
        raise Skip(f'no {DEBIAN}.img: run make debian-guest as root')


if __name__ == '__main__':
    common.main(run, LIMIT_S, needs)
