#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""doctor_peer.py - farfork doctor --serve and --peer over tcp on the loopback. Limit: 90 s

Both programs against each other, and each against one that misbehaves: bytes that are wrong,
messages that are wrong, silence. No latency is asserted.
"""
import contextlib
import json
import re
import select
import signal
import socket
import struct
import subprocess
import threading

import common
import fakepeer
from common import Failed, say

MAGIC = b'FFPROBE1'
HELLO, WELCOME, KEY, BYE, REFUSE = range(1, 6)
SIZES = [4096, 64 << 10, 2 << 20]
SESSION = bytes(range(1, 17))
LIMIT_S = 20
REQ, REP = '<4sHHQQIIII', '<4sHHQII'


def check(good, text):
    if not good:
        raise Failed(text)


class Program:
    """farfork doctor ARGS, its lines as they come."""

    def __init__(self, *args):
        # pylint: disable-next=consider-using-with
        self.p = subprocess.Popen([common.FARFORK, 'doctor', *args], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.text = ''

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.kill()
        self.p.communicate()

    def wait_for(self, pattern):
        """Read until a line matches; the match."""
        while not (m := re.search(pattern, self.text, re.M)):
            ready, _, _ = select.select([self.p.stdout], [], [], LIMIT_S)
            part = self.p.stdout.read1(65536).decode() if ready else ''
            if not part:
                raise Failed(f'no "{pattern}" {"any more" if ready else "in time"} in: {self.text}')
            self.text += part
        return m

    def end(self, code, limit_s=LIMIT_S):
        try:
            self.text += self.p.communicate(timeout=limit_s)[0].decode()
        except subprocess.TimeoutExpired:
            raise Failed(f'no end within {limit_s} s: {self.text}') from None
        check(self.p.returncode == code,
              f'exit code {self.p.returncode}, want {code}: {self.text}')
        return self.text


class Server(Program):
    def __init__(self, *args):
        super().__init__('--serve', '127.0.0.1:0', *args)
        self.port = int(self.wait_for(r'^tcp: listening on 127\.0\.0\.1, port (\d+)$')[1])

    def peer(self, *args):
        return Program('--peer', f'127.0.0.1:{self.port}', *args)


# --- the two with each other ---

def figures():
    with Server('--once') as server, server.peer() as peer:
        text = peer.end(0)
        for size in ('4 KiB', '64 KiB', '2 MiB'):
            m = re.search(rf'^ +{size} +latency p50 ([\d.]+), p99 ([\d.]+), max ([\d.]+) us '
                          r'\((\d+) reads\); ([\d.]+) MiB/s \((\d+) at once\)$', text, re.M)
            check(m and all(float(x) > 0 for x in m.groups()), f'no figures of {size}: {text}')
        server.end(0)


def as_json():
    with Server() as server:
        for _ in range(2):              # one after the other
            with server.peer('--json') as peer:
                links = {x['link']: x for x in json.loads(peer.end(0))['links']}
            tcp = links['tcp']
            check(tcp['works'] and tcp['connect_ns'] > 0 and set(links) == {'tcp', 'verbs'},
                  f'{links}')
            check([s['size_bytes'] for s in tcp['sizes']] == SIZES, f'{tcp}')
            for s in tcp['sizes']:
                check(0 < s['p50_ns'] <= s['p99_ns'] <= s['max_ns'] and s['reads'] > 0
                      and s['bytes_per_second'] > 0 and s['depth'] > 0, f'{s}')
            check(links['verbs']['works'] or links['verbs']['reason'], f'{links}')
        server.wait_for(r'tcp: served a peer\n(?s:.*)tcp: served a peer\n')
        server.p.send_signal(signal.SIGINT)
        server.end(0)


def interrupted():
    with Server() as server:
        with server.peer() as peer:
            peer.wait_for(r'^ok +tcp')
            peer.p.send_signal(signal.SIGINT)
            check('canceled' in peer.end(130), peer.text)
        server.wait_for(r'^tcp: serve a peer')
        with server.peer() as peer:     # and while somebody is being served
            peer.wait_for(r'^ok +tcp')
            server.p.send_signal(signal.SIGTERM)
            server.end(0)
            check('NO       tcp' in peer.end(1), peer.text)


def wrong_use():
    for args in (['--serve', '--peer', 'h'], ['--peer'], ['--peer', ''], ['--peer', 'h:99999'],
                 ['--peer', 'h:1,chunk=1M'], ['--once'], ['--serve', '--json'], ['--qps', '0'],
                 ['--device', 'mlx5_0'], ['--serve', '1', '2']):
        with Program(*args) as p:
            p.end(2)
    with Program('--peer', f'127.0.0.1:{common.free_port()}') as p:
        check('Connection refused' in p.end(1) and 'No link works' in p.text, p.text)
    with Server() as server, Program('--serve', f'127.0.0.1:{server.port}') as second:
        check('Address already in use' in second.end(1), second.text)


# --- a peer that misbehaves ---

def message(kind, body=b'', version=1, magic=MAGIC):
    return fakepeer.frame(magic + struct.pack('<HH', kind, version) + body)


def strangers():
    cases = (('HTTP', b'GET / HTTP/1.0\r\n\r\n', 'not a Farfork peer'),
             ('a source', fakepeer.hello(), 'not a message of a probe'),
             ('magic', message(HELLO, magic=b'FFPROBE9'), 'not a message of a probe'),
             ('cut short', fakepeer.frame(MAGIC + b'\1'), 'not a message of a probe'),
             ('longer', message(HELLO, b'x'), 'length 13 is wrong'),
             ('type', message(BYE), 'type 4 (want HELLO)'),
             ('version', message(HELLO, version=2), 'version 2 (this one has 1)'))
    with Server() as server:
        for name, data, want in cases:
            with fakepeer.connect(server.port, data) as sock:
                kind, _ = fakepeer.answer(sock)
                check((kind is not None) == (name == 'version'), f'{name}: an answer: {kind}')
            line = server.wait_for(r'^tcp: serve a peer: (.*)\n')[1]
            check(want in line, f'{name}: {line}')
            server.text = ''
        # one who has a session but brings another to the queues
        with fakepeer.connect(server.port, message(HELLO)) as sock:
            fakepeer.answer(sock)
            bad = b'FFjn' + struct.pack('<HH', 1, 0) + bytes(16)
            with fakepeer.connect(server.port, bad) as queue:
                check(fakepeer.receive(queue, 1) == b'', 'a wrong session was answered')
        server.wait_for(r'^tcp: serve a peer')
        with server.peer() as peer:     # and still there for the next one
            peer.end(0)


# --- a serving side that misbehaves ---

def pattern(offset, length):
    """As in probe/probe.h."""
    seed = struct.unpack('<Q', SESSION[:8])[0]
    step, mask = 0x9e3779b97f4a7c15, (1 << 64) - 1
    return b''.join(struct.pack('<Q', (seed + (at + 1) * step) & mask)
                    for at in range(offset, offset + length, 8))


def serve_reads(queue, memory, base, wrong_at):
    """Answer READs; the one with this number has one bit that is wrong."""
    head = fakepeer.receive(queue, 8)       # the pad that shows that large packets arrive
    check(head[:4] == b'FFpd', f'no pad: {head}')
    fakepeer.receive(queue, struct.unpack('<I', head[4:])[0])
    done = 0
    while len(request := fakepeer.receive(queue, struct.calcsize(REQ))) == struct.calcsize(REQ):
        _, op, _, ident, addr, _, length, _, _ = struct.unpack(REQ, request)
        data = bytearray(memory[addr - base:addr - base + length])
        if done == wrong_at:
            data[length // 2] ^= 1
        done += 1
        queue.sendall(struct.pack(REP, b'FFrp', op, 0, ident, 0, length) + data)


@contextlib.contextmanager
def serving(welcome, key=None, memory=b'', base=0, wrong_at=-1):
    """One that serves one peer so; yields its port."""
    def one(server):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            def accept():
                sock = stack.enter_context(server.accept()[0])
                sock.settimeout(LIMIT_S)
                return sock
            control = accept()
            fakepeer.answer(control)
            control.sendall(welcome)
            if key:
                queues = [accept(), accept()]
                for queue in queues:
                    fakepeer.receive(queue, 24)
                control.sendall(key)
                threading.Thread(target=quiet, daemon=True, args=(
                    serve_reads, queues[1], memory, base, -1)).start()
                serve_reads(queues[0], memory, base, wrong_at)
            control.shutdown(socket.SHUT_WR)
            fakepeer.receive(control, 1 << 16)

    with socket.create_server(('127.0.0.1', 0)) as server:
        server.settimeout(LIMIT_S)
        thread = threading.Thread(target=one, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1]
    thread.join(LIMIT_S)


def quiet(fn, *args):
    with contextlib.suppress(OSError):
        fn(*args)


def probe_fake(want, *args, **kw):
    with serving(*args, **kw) as port, Program('--peer', f'127.0.0.1:{port}') as p:
        check(want in p.end(1), f'no "{want}" in: {p.text}')


def wrong_answers():
    hello = message(WELCOME, SESSION)
    probe_fake('refused: no ?[31m today', message(REFUSE, b'no \x1b[31m today'))
    probe_fake('version 7 (this one has 1)', message(WELCOME, SESSION, version=7))
    probe_fake('not a message of a probe', fakepeer.refuse(b'what is this'))
    probe_fake('read WELCOME: length', message(WELCOME, SESSION[:15]))
    probe_fake('no `farfork doctor --serve`', b'')
    top = (1 << 64) - 1
    for name, addr, length in (('short', 4096, 4096), ('long', 4096, (8 << 20) + 1),
                               ('wraps', top - 4096, 2 << 20)):
        try:
            probe_fake('(permitted 2097152..8388608)', hello,
                       message(KEY, struct.pack('<QII', addr, 1, length)))
        except Failed as e:
            raise Failed(f'key {name}: {e}') from None


def wrong_bytes():
    memory, base = pattern(0, 2 << 20), 1 << 20
    kw = {'key': message(KEY, struct.pack('<QII', base, 1, len(memory))), 'memory': memory,
          'base': base}
    with serving(message(WELCOME, SESSION), **kw) as port, \
            Program('--peer', f'127.0.0.1:{port}') as p:
        p.end(0)                        # as long as it says what it should
    probe_fake('byte 2048 and after it are wrong', message(WELCOME, SESSION), wrong_at=5, **kw)


def run(t):
    for name, case in (('figures', figures), ('--json, one after the other', as_json),
                       ('Ctrl-C', interrupted), ('wrong use', wrong_use),
                       ('strangers', strangers), ('wrong answers', wrong_answers),
                       ('wrong bytes', wrong_bytes)):
        with t.case(name):
            case()
    say('      verbs is tested in the lab: tests/lab/doctor_peer')


if __name__ == '__main__':
    common.main(run, 90, needs=lambda: None)
