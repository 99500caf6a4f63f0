#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""visit_guest.py - farfork visit --serve: a guest goes to another host and comes home when it wants to

A Linux guest with farfork-guest; limit: 200 s.
"""
import contextlib
import glob
import json
import os
import select
import signal
import socket
import subprocess

import common
import guest_identity
from common import Failed, say, status, wait_for
from farfork_move import Process, listed, pid_there, wait_alone
from forked import ELSEWHERE, alive, kill
from guest_identity import in_background
from vmclone_linux import Parent


class Served:
    """farfork visit --serve, and what it says."""

    def __init__(self, t, stack, parent, *args, launcher=ELSEWHERE, faults=None):
        self.base, self.name, self.said = os.path.join(t.work, 'run'), 'v', ''
        self.out, self.read = os.path.join(t.work, 'served.out'), 0
        with open(self.out, 'w', encoding='utf-8') as out:
            self.proc = stack.enter_context(subprocess.Popen(
                [common.FARFORK, 'visit', '--serve', parent.paths['channel'], '--json', '--rundir', self.base, '--id',
                 'v', '--timeout', '40', *launcher, *args, parent.second],
                stdout=out, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                env={**Parent.env, **({'FARFORK_FAILPOINTS': faults} if faults else {})}))
        stack.callback(self.end)
        wait_for('it serves', 20, self.serves)

    def serves(self):
        if self.proc.poll() is not None:
            raise Failed(f'farfork visit --serve has ended with {self.proc.returncode}')
        with open(self.out, encoding='utf-8') as f:
            line = f.readline()
        self.read = len(line)
        return line.startswith('serving ') and line.endswith('\n')

    def hears(self, text, limit_s=60):
        """It says this on stderr."""
        def look():
            while text not in self.said and select.select([self.proc.stderr], [], [], 0)[0]:
                more = os.read(self.proc.stderr.fileno(), 4096).decode()
                if not more:
                    raise Failed(f'farfork visit --serve has ended without "{text}": {self.said}')
                self.said += more
            return text in self.said
        try:
            wait_for(f'"{text}"', limit_s, look)
        except Failed as e:
            raise Failed(f'{e}: {self.said}') from e
        self.said = self.said.partition(text)[2]

    def result(self, state):
        """Of a visit that is over."""
        def look():
            with contextlib.suppress(json.JSONDecodeError):
                with open(self.out, encoding='utf-8') as f:
                    f.seek(self.read)
                    text = f.read()
                r, end = json.JSONDecoder().raw_decode(text.lstrip())
                self.read += end + len(text) - len(text.lstrip())
                return r
            return None
        r = wait_for('a result', 60, look)
        if r['state'] != state:
            raise Failed(f'a visit ended with {r["state"]}, want {state}: {r}')
        say('      ' + ', '.join(f'{k} {x:.1f}' for k, x in r['phases_ms'].items() if x is not None) + ' ms')
        return r

    def end(self):
        """Whatever has become of it."""
        if self.proc.poll() is None:
            self.proc.kill()
            self.proc.wait(30)
        for path in glob.glob(self.base + '/v-*'):
            kill(self.base, os.path.basename(path))

    def ends(self, code):
        if self.proc.wait(30) != code:
            raise Failed(f'farfork visit --serve ended with {self.proc.returncode}, want {code}')


@contextlib.contextmanager
def linux(t):
    """A Linux guest with a port, and nobody at its other end."""
    opts = guest_identity.options(t, fw_cfg=False)
    opts += ['-qmp', f'unix:{t.work}/second,server=on,wait=off', '-device', 'virtserialport,chardev=lines,name=lines',
             '-chardev', f'socket,id=lines,path={t.work}/guest.lines,server=on,wait=off']
    with contextlib.ExitStack() as stack:
        g = guest_identity.boot(t, stack, 'guest', opts, Parent)
        g.channel.close()
        g.channel, g.second = None, t.work + '/second'
        yield g, stack


def asks(g, command):
    """It asks in the background: its console is not the same one there."""
    g.sh('rm -f /tmp/said /tmp/code')
    in_background(g, f'farfork-guest {command} > /tmp/said 2>&1; echo $? > /tmp/code')


def answered(g, code, text=''):
    got = wait_for('the answer', 60, lambda: g.sh('test ! -e /tmp/code || cat /tmp/code', 60))
    said = g.sh('cat /tmp/said')
    if got != str(code) or text not in said or (code and '/' in said):
        raise Failed(f'{g.name}: {got} "{said}", want {code} "{text}"')
    return said


def guest_in(t, name, folder):
    """The guest whose run directory is that, by its console and its own monitor."""
    g = guest_identity.Linux(t.work, name, [])
    g.paths = {'console': wait_for('its console', 10, lambda: glob.glob(folder + '/*.console'))[0]}
    g.sock_path, g.stderr = glob.glob(folder + '/*guest.qmp')[0], folder + '/1.log'
    g.connect('console')
    return g


@contextlib.contextmanager
def there(t, served):
    """The guest where it visits."""
    g = guest_in(t, 'there', wait_for('its folder', 10, lambda: glob.glob(f'{served.base}/{served.name}/h*'))[0])
    try:
        yield g
    finally:
        g.console.close()


def nothing_left(served):
    wait_for('nothing left', 20, lambda: not glob.glob(f'{served.base}/{served.name}'))


def goes(t, g, served, name):
    """It is there, by its own wish, and knows that."""
    served.name = name
    asks(g, 'visit big')
    served.hears('it runs on ')
    pid = pid_there(served)
    with there(t, served) as b:
        answered(b, 0, 'big')
    return pid


def is_back(t, served, pid):
    """In a QEMU made anew: the guest there; what was said of its visit."""
    r = served.result('home')
    nothing_left(served)
    g = guest_in(t, 'home', glob.glob(f'{served.base}/{served.name}-home-*/localhost')[0])
    g.proc = Process(next(k['pid'] for f in listed(served.base) if f['id'].startswith(served.name + '-home-')
                          for k in f['children']))
    t.at_end.callback(g.console.close)
    g._connect(15)      # pylint: disable=protected-access
    if status(g) != 'running' or alive(pid) or alive(r['pid']) or not r['parent_ended']:
        raise Failed(f'{status(g)} {r}')
    return g, r


def comes_later(t, g, served):
    """The first return fails: it hears that, goes on there, and asks again."""
    pid = goes(t, g, served, 'v-3')
    with there(t, served) as b:
        asks(b, 'return')
        answered(b, 1, 'could not bring this machine home')
        served.hears('did not come home')
        asks(b, 'return')
    g, r = is_back(t, served, pid)
    if r['tries'] != 2:
        raise Failed('one try')
    answered(g, 0)
    return g


def by_itself(t):
    with linux(t) as (g, stack):
        # nobody serves it: that is said, and nothing waits for ever
        g.sh('farfork-guest visit > /tmp/usage 2>&1', code=2)
        for command in ('visit -t 2 big', 'return -t 2'):
            asks(g, command)
            answered(g, 3, "does 'farfork visit --serve' run")
        served = Served(t, stack, g, '--permit', 'big=h1=127.0.0.1', '--permit', 'broken=h2=127.0.0.1',
                        launcher=('--launcher', 'sh -c "test {host} != h2 && exec env FF_HOST={host} {cmd}"'),
                        faults='visit.home=fail@2')     # of its second return
        asks(g, 'visit other')
        answered(g, 1, 'permits no visit by that alias')
        served.hears('asks for other, which no --permit names')
        asks(g, 'return')       # it is at home
        answered(g, 0)
        for request, text in (('fork 1', 'no vmclone --serve'), ('join', 'no vmclone --serve')):
            asks(g, request)
            answered(g, 1, text)
        asks(g, 'visit broken')
        answered(g, 1, 'its log says why')
        served.result('here')
        if status(g) != 'running':
            raise Failed(f'it is {status(g)}')
        g.sh('sleep 1000 & echo $! > /sleeper')
        pid = goes(t, g, served, 'v-2')
        with there(t, served) as b:
            b.sh('kill -0 $(cat /sleeper)')
            for request in ('visit big', 'join', 'fork 1'):
                asks(b, request)
                answered(b, 1, 'return first')
            b.sh('echo written there > /there')
            asks(b, 'return')
        g, _ = is_back(t, served, pid)
        answered(g, 0)
        if g.sh('cat /there; kill -0 $(cat /sleeper)') != 'written there':
            raise Failed('what it wrote is not here')
        g = comes_later(t, g, served)
        # a user brings it home, and that was the last visit
        pid = goes(t, g, served, 'v-4')
        served.proc.send_signal(signal.SIGINT)
        g, _ = is_back(t, served, pid)
        served.ends(0)
        asks(g, 'visit -t 2 big')
        answered(g, 3)


def heard(sock, limit_s=2):
    """All that comes until nothing does for so long."""
    got = b''
    while select.select([sock], [], [], limit_s)[0] and (more := sock.recv(65536)):
        got += more
    return got


def reader_is_late(t):
    """Who reads a port at home reads what was written before; where the guest is home the rest comes."""
    with linux(t) as (g, stack):
        lines = stack.enter_context(socket.socket(socket.AF_UNIX))
        lines.connect(t.work + '/guest.lines')
        served = Served(t, stack, g, '--permit', 'big=h1=127.0.0.1')
        g.sh('n=$(grep -lx lines /sys/class/virtio-ports/*/name); n=${n%/name}; '
             'echo "seq 1 1500000 > /dev/${n##*/} & echo \\$! > /pid; wait; touch /written" > /writer')
        in_background(g, 'sh /writer')
        wait_for('a writer that waits for the reader', 40, lambda: g.sh(
            't() { cut -d" " -f14,15 /proc/$(cat /pid)/stat; }; a=$(t); sleep 1; test "$a" != "$(t)" || echo 1'))
        g.sh('test ! -e /written')
        pid = goes(t, g, served, 'v-1')
        got = heard(lines)
        if not got:
            raise Failed('nothing was read at home')
        with there(t, served) as b:
            asks(b, 'return')
        g, _ = is_back(t, served, pid)
        for _ in range(2):      # a port that was full when QEMU loaded it, with no reader, goes on after a reader has left
            lines.close()
            lines = stack.enter_context(socket.socket(socket.AF_UNIX))
            lines.connect(glob.glob(os.path.dirname(g.sock_path) + '/*guest.lines')[0])
        then = b''
        while not then.endswith(b'\n1500000\n'):
            if not select.select([lines], [], [], 40)[0]:
                raise Failed(f'the port is silent after {then[-20:]}')
            then += lines.recv(65536)
        wait_for('its end', 20, lambda: g.sh('test ! -e /written || echo 1'))
        # what nobody had read where it came to is dropped there, and may end within a number
        n = [int(x) for part in (got, then) for x in part.split(b'\n')[1:-1]]
        if n[-1] != 1500000 or any(a >= b for a, b in zip(n, n[1:])):
            raise Failed(f'the port: {n[:2]} to {n[-2:]}, {[p for p in zip(n, n[1:]) if p[0] >= p[1]][:3]}')
        say(f'      {len(got)} bytes were read while it was away, {len(then)} then')


def home_dies(t):
    """Its farfork visit is killed: it hears that nobody brings it home. vmclone --serve is not the one to ask."""
    with linux(t) as (g, stack):
        served = Served(t, stack, g, '--permit', 'big=h1=127.0.0.1')
        goes(t, g, served, 'v-1')
        served.proc.kill()
        with there(t, served) as b:
            wait_alone(served.base)
            asks(b, 'return')
            answered(b, 1, 'no farfork visit --serve is there any more')


def refused(t):
    for args, text in ((['--serve', 'x'], 'usage'), (['--permit', 'a=b', 'x', 'h'], 'usage'),
                       (['--serve', 'x', '--permit', 'b', 'y'], 'ALIAS=HOST'),
                       (['--serve', 'x', '--permit', 'a b=c', 'y'], 'ALIAS=HOST'),
                       (['--serve', 'x', '--permit', 'a=b', '--permit', 'a=c', 'y'], 'twice'),
                       (['--serve', 'x', '--until', 'true', 'y'], '--until'),
                       (['--serve', '/no/such', 'y'], 'org.farfork.0')):
        out = subprocess.run([common.FARFORK, 'visit', *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, timeout=20, check=False)
        if out.returncode != 2 or text not in out.stdout:
            raise Failed(f'{args}: {out.returncode}, want "{text}": {out.stdout[:300]}')


def run(t):
    common.need_files(common.VMLINUX, common.INITRD)
    t.lan = guest_identity.Lan(os.path.join(t.work, 'lan'))
    t.at_end.callback(t.lan.close)
    t.lan.start()
    for name, case in (('refused', refused), ('there and home by itself', by_itself),
                       ('a reader at home is late', reader_is_late), ('farfork visit is killed', home_dies)):
        with t.case(name):
            case(t)


if __name__ == '__main__':
    common.main(run, limit_s=200)
