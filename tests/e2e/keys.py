#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""keys.py - a move and a fork have keys of their own: nobody sees them, or takes part without

A launcher that writes down what passes it tells this test the key. The test looks for it in
arguments and environments of all processes, in every file, in what is printed, in QMP's answers,
and in all memory that a core dump has of processes that may have it. Limit: 150 s.
"""
import contextlib
import glob
import json
import os
import re
import socket
import subprocess
import threading
import time

import common
import fakepeer
import resume
from common import Failed, Micro, check_ledger, check_move, say, wait_for
from farfork_move import Move, there
from forked import (Child, Clone, ForkParent, Parent, ask, check_nothing_left, check_result,
                    hosts_of_their_own, kill, snapshot)
from refuse import fails, waits

MIB = 64
DUMPED_MAX = 32 << 20           # larger are the guest's memory, and its image
SLOW = 'dest.prefill=delay:300000@1-15'


def listening_launcher(folder, change='', behind=''):
    """Passes all on to the agent, its key perhaps changed; what passes is in folder/passed."""
    # the command's output ends with the command: nothing in the background holds it
    run = f'{{cmd}} <{folder}/in 3<&-'
    return ['--launcher',
            f'FF_HOST={{host}}; exec 3<&0; mkfifo {folder}/in; '
            f'(tee {folder}/passed <&3 2>/dev/null | sed -u "{change}" >{folder}/in 2>/dev/null &);'
            + (f' {run} | {behind}' if behind else f' exec {run}')]


class Listener:
    """Where such a launcher writes, beside the test's folder, and the key that it has seen."""

    def __init__(self, t, name):
        self.folder = f'{t.work}-{name}'

    def __enter__(self):
        os.mkdir(self.folder)
        return self

    def __exit__(self, *_):
        for path in glob.glob(self.folder + '/*'):
            os.unlink(path)
        os.rmdir(self.folder)

    def launcher(self, change='', behind=''):
        return listening_launcher(self.folder, change, behind)

    def key(self):
        def passed():
            with contextlib.suppress(OSError), open(self.folder + '/passed', encoding='utf-8') as f:
                line = f.readline()
                return line if line.endswith('\n') else None
            return None
        m = re.fullmatch(r'\{"key":"([0-9a-f]{64})"\}\n',
                         wait_for('key that passes the launcher', 20, passed))
        if not m:
            raise Failed('the first line to the agent has no key')
        os.unlink(self.folder + '/passed')
        return m[1]


# --- nobody sees it ---

def check_processes(key):
    """Arguments and environments, of everybody."""
    for path in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/proc/[0-9]*/environ'):
        with contextlib.suppress(OSError), open(path, 'rb') as f:
            if key.encode() in f.read():
                raise Failed(f'the key is in {path}')


def check_files(t, key):
    for folder, _, files in os.walk(t.work):
        for name in files:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                with open(path, 'rb') as f:
                    if key.encode() in f.read() or bytes.fromhex(key) in f.read():
                        raise Failed(f'the key is in {path}')


def areas(pid):
    """(start, end, in a core dump) of its private writable memory, but for what is large."""
    with open(f'/proc/{pid}/smaps', encoding='utf-8', errors='replace') as f:
        for line in f:
            m = re.match(r'([0-9a-f]+)-([0-9a-f]+) (rw.p) .* (\S*)', line)
            if m:
                at = int(m[1], 16), int(m[2], 16)
            elif re.match(r'[0-9a-f]+-[0-9a-f]+ ', line):
                at = None
            if line.startswith('VmFlags:') and at and at[1] - at[0] <= DUMPED_MAX:
                yield *at, ' dd' not in line


def memory_with(pid, needle):
    """How many areas have it: (in a core dump, left out of it)."""
    found = [0, 0]
    with open(f'/proc/{pid}/mem', 'rb', buffering=0) as mem:
        for start, end, dumped in areas(pid):
            with contextlib.suppress(OSError):
                mem.seek(start)
                data = b''.join(iter(lambda left=[end - start]: take(mem, left), b''))
                found[not dumped] += needle in data
    return tuple(found)


def take(mem, left):
    data = mem.read(min(left[0], 1 << 20))
    left[0] -= len(data)
    return data


def check_memory(pid, who, key, holds, text=True):
    """Of a process that holds the key, or none: no core dump has it, in either form."""
    forms = [('bytes', bytes.fromhex(key))] + ([('text', key.encode())] if text else [])
    kept = 0
    for name, needle in forms:
        dumped, left_out = memory_with(pid, needle)
        if dumped:
            raise Failed(f'{who}: a core dump has the key, as {name}')
        kept += left_out
    if bool(kept) != holds:
        raise Failed(f'{who}: {kept} areas with the key, want {"some" if holds else "none"}')
    say(f'      {who}: {kept} areas with the key, none of them in a core dump')


def no_object(path, who):
    names = [o['name'] for o in ask(path, 'qom-list', {'path': '/objects'})]
    if 'farfork-key' in names:
        raise Failed(f'{who}: the object that had the key is there')


def agents(base):
    """Of these, the ones that are agents: not who waits in front of one."""
    found = []
    for path in glob.glob(base + '/*/*/state.json'):
        with open(path, encoding='utf-8') as f:
            found += [int(m) for m in re.findall(r'"agent": (\d+)', f.read())]
    return found


def moved(t):
    with Parent(t, t.best_accel(), mem_mib=MIB) as a, Listener(t, 'launcher') as pipe:
        a.start_load()
        with Move(t, a, launcher=pipe.launcher(), faults=SLOW) as m:
            key = pipe.key()
            common.wait_migration(a, 'postcopy-active')
            check_processes(key)
            check_files(t, key)
            check_memory(m.proc.pid, 'farfork move', key, holds=True)
            for pid in agents(m.base):
                check_memory(pid, 'its agent', key, holds=False)
            check_memory(a.pid, 'the source', key, holds=True, text=False)
            result = m.end(0, 'there')
            if key in str(result) + m.err:
                raise Failed('farfork move prints the key')
            with there(t, 'b', result) as b:
                check_ledger(a, b)
                no_object(b.second, 'the destination')
            check_processes(key)
            check_files(t, key)


def forked(t):
    with ForkParent(t, t.best_accel(), mem_mib=MIB) as a, Listener(t, 'launcher') as pipe:
        a.start_load()
        before = snapshot(a)
        with Clone(t, a, 1, *pipe.launcher(), hosts=['h1=127.0.0.1'], faults=SLOW) as c:
            key = pipe.key()
            wait_for('a child', 30, lambda: glob.glob(c.base + '/f/h1/1.qmp'))
            check_processes(key)
            check_files(t, key)
            check_memory(c.proc.pid, 'vmclone', key, holds=True)
            for pid in wait_for('the agent', 10, lambda: agents(c.base)):
                check_memory(pid, 'its agent', key, holds=True)
            check_result(c, 0, {'complete': 1})
            if key in str(c.result) + c.err:
                raise Failed('vmclone prints the key')
            no_object(a.second, 'the parent')
            check_memory(a.pid, 'the parent', key, holds=False, text=False)
            check_processes(key)
            check_files(t, key)
            for row in c.children:
                Child(row, a).check(before)
        kill(c.base, 'f')
        check_nothing_left(c, a)


# --- nobody takes part without it ---

OTHER = r'1s/\(key\":\"\)[0-9a-f]\{8\}/\10badc0de/'


def move_with_another(t):
    with Parent(t, t.best_accel(), mem_mib=MIB) as a, Listener(t, 'launcher') as pipe:
        a.start_load()
        with Move(t, a, launcher=pipe.launcher(OTHER)) as m:
            m.end(1, 'here', 'another key')
            if m.result['parent_ended']:
                raise Failed('the source was ended')
        common.check_still_running(a)
        check_nothing_left(m)
        no_object(a.second, 'the source')
        with Move(t, a) as m:               # nothing is in the way of the next
            m.end(0, 'there')


def fork_with_another(t):
    with ForkParent(t, t.best_accel(), mem_mib=MIB) as a, Listener(t, 'launcher') as pipe:
        a.start_load()
        with Clone(t, a, 1, *pipe.launcher(OTHER), hosts=['h1=127.0.0.1']) as c:
            check_result(c, 3, {'failed': 1})
            error = c.children[0]['error']
            if 'another key' not in error:
                raise Failed(f'the child\'s error: {error}')
            say(f'      {error}')
        check_nothing_left(c, a)


def key_file(t, name, text):
    path = os.path.join(t.work, name)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 'w', encoding='ascii') as f:
        f.write(text + '\n')
    return path


def secret(path, name='k'):
    return ['-object', f'secret,id={name},file={path}']


def migrate(a, b, uri):
    start = time.monotonic()
    a.qmp('migrate', uri=uri)
    return common.Moved(a, b, start)


def by_hand(t):
    """A file at one side, a secret object at the other, which is there from the start."""
    own = key_file(t, 'own', os.urandom(32).hex())
    with Micro(t, 'a', t.best_accel(), mem_mib=MIB) as a:
        a.start_load()
        with Micro(t, 'b', t.best_accel(), mem_mib=MIB, extra=secret(own),
                   incoming='rdma-postcopy:127.0.0.1:0,key=k') as b:
            port = common.migration(b)['socket-address'][0]['port']
            migrate(a, b, f'rdma-postcopy:127.0.0.1:{port},key-file={own}')
            check_ledger(a, b)


class Between:
    """Passes what the two say to each other; a bit of the source's first bytes is another."""

    def __init__(self, port, at):
        self.to, self.at = port, at
        self.server = socket.create_server(('127.0.0.1', 0))
        self.port = self.server.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)

    def serve(self):
        with contextlib.suppress(OSError):
            here, _ = self.server.accept()
            with here, socket.create_connection(('127.0.0.1', self.to)) as there_:
                back = threading.Thread(target=self.pump, args=(there_, here), daemon=True)
                back.start()
                data = bytearray(here.recv(4096))
                data[self.at] ^= 1
                there_.sendall(data)
                self.pump(here, there_)
                back.join(10)

    @staticmethod
    def pump(from_, to):
        with contextlib.suppress(OSError):
            while data := from_.recv(65536):
                to.sendall(data)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.close()
        self.thread.join(10)


def no_hello(port):
    """Who has no key hears nothing but the answer to a handshake, that it has the wrong one."""
    with fakepeer.connect(port, fakepeer.hello()) as sock:
        sock.settimeout(20)
        said = fakepeer.receive(sock, 4096)
        if fakepeer.CTRL in said:
            raise Failed(f'an answer to HELLO without a key: {said!r}')
        return said


def refused(t):
    """Every stranger is dropped, and the destination waits for the right one."""
    own, other = (key_file(t, n, os.urandom(32).hex()) for n in ('right', 'wrong'))
    with Micro(t, 'a', t.best_accel(), mem_mib=MIB, extra=secret(other)) as a, \
            Micro(t, 'b', t.best_accel(), mem_mib=MIB, incoming=True, extra=secret(own)) as b:
        a.start_load()
        uri = common.listen(b, options=',key=k')
        port = int(re.search(r':(\d+)$', uri)[1])
        no_hello(port)
        waits(b, ['handshake'])
        fails(a, uri + ',key=k', ['has another key'])
        waits(b, ['handshake'])
        fails(a, uri, ['wants a key'])
        with Between(port, at=20) as between:
            fails(a, f'rdma-postcopy:127.0.0.1:{between.port},key-file={own}', ['handshake'])
        waits(b, ['handshake'])
        check_move(migrate(a, b, f'{uri},key-file={own}'))
        check_ledger(a, b)


def key_unknown(t):
    """A secret that is not there, or is no key; a destination that has none."""
    short = key_file(t, 'short', 'ab')
    with Micro(t, 'a', t.best_accel(), mem_mib=MIB, extra=secret(short)) as a, \
            Micro(t, 'b', t.best_accel(), mem_mib=MIB, incoming=True) as b:
        a.start_load()
        uri = common.listen(b)
        common.refuses(a, "No secret with id 'none'", 'migrate', uri=uri + ',key=none')
        text = common.refuses(a, '64 hexadecimal digits', 'migrate', uri=uri + ',key=k')
        if 'ab' in text.split(':')[-1].split():
            raise Failed(f'the message has the key: {text}')
        own = key_file(t, 'b-own', os.urandom(32).hex())
        fails(a, f'{uri},key-file={own}', ['has the destination'])
        waits(b, [])
        check_move(migrate(a, b, uri))


def stranger(port, *prefix, host='127.0.0.1'):
    """Another process says HELLO; what it hears."""
    with open(fakepeer.__file__, encoding='utf-8') as f: # which another user cannot read, perhaps
        code = f.read() + (f'print(answer(connect({port}, hello(config={fakepeer.machine_config()!r}), '
                           f'{host!r}))[0])\n')
    p = subprocess.run([*prefix, '/usr/bin/python3', '-B', '-'], input=code, capture_output=True,
                       text=True, timeout=60, check=False)
    if p.returncode:
        raise Failed(f'a stranger: {p.stderr}')
    return p.stdout.strip()


@contextlib.contextmanager
def listening_in(namespace, host):
    """Somebody on another host, who would hear all; yields the port."""
    code = (f'import socket; s = socket.create_server(({host!r}, 0))\n'
            'print(s.getsockname()[1], flush=True); print(len(s.accept()[0].recv(1)))')
    with subprocess.Popen(['ip', 'netns', 'exec', namespace, '/usr/bin/python3', '-c', code],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as p:
        try:
            yield int(p.stdout.readline())
            if p.communicate(timeout=20)[0].strip() != '0':
                raise Failed('another host heard something of the guest')
        finally:
            p.kill()


def no_key(t):
    """Without a key: another host, and another user, at either side; insecure=on; this user."""
    with hosts_of_their_own(1) as hosts, \
            Micro(t, 'a', t.best_accel(), mem_mib=MIB) as a, \
            Micro(t, 'b', t.best_accel(), mem_mib=MIB, incoming=True) as b:
        a.start_load()
        namespace, there_ = hosts[0].split('=')
        here = there_.rpartition('.')[0] + '.1'
        uri = common.listen(b, '')
        port = int(re.search(r':(\d+)$', uri)[1])
        for prefix, host, text in (
                (('ip', 'netns', 'exec', namespace), here, 'not on this host'),
                (('setpriv', '--reuid=4242', '--clear-groups'), '127.0.0.1', 'of user 4242')):
            if (said := stranger(port, *prefix, host=host)) != 'None':
                raise Failed(f'a stranger without a key gets message {said}')
            waits(b, [text, 'there is no key'])
        with listening_in(namespace, there_) as other:
            fails(a, f'rdma-postcopy:{there_}:{other}', ['not this host', 'there is no key'])
        check_move(migrate(a, b, uri))
        check_ledger(a, b)
        with Micro(t, 'c', t.best_accel(), mem_mib=MIB, incoming=True) as c:
            port = int(re.search(r':(\d+)$', common.listen(c, '', ',insecure=on'))[1])
            if stranger(port, 'ip', 'netns', 'exec', namespace, host=here) == 'None':
                raise Failed('insecure=on: no answer')


def recovered(t):
    """After a break the two go on with another key, at another port."""
    own, other = (key_file(t, n, os.urandom(32).hex()) for n in ('first', 'next'))
    oob = resume.OutOfBand(os.path.join(t.work, 'oob'))
    a, b = resume.pair(t, 'recover', t.best_accel(), extra=oob.options + secret(other))
    with a, b:
        oob.connect()
        resume.begin(a, b, f',key-file={own}')
        resume.pause(a)
        resume.both_paused(a, b)
        uri = resume.here(0)
        common.refuses(b, "No secret with id 'none'", 'migrate-recover', uri=uri + ',key=none')
        try:
            oob.say({'exec-oob': 'migrate-recover', 'arguments': {'uri': uri + ',key=k'}})
        except Failed as e:
            if 'out of band' not in str(e):
                raise
        else:
            raise Failed('a secret is looked up without the big lock')
        b.qmp('migrate-recover', uri=uri + ',key=k')
        port = int(common.migration(b)['socket-address'][0]['port'])
        no_hello(port)
        resume.resume(a, resume.here(port, f',key-file={other}'))
        resume.is_resumed(a, b)


def agent_alone(t):
    """Its first line is a key and nothing else, or it does nothing; a question without a key."""
    good = '{"key":"' + os.urandom(32).hex() + '"}\n'
    for lines, code, text in (('{"ping": true}\n', 1, '--keyed: want'),
                              (good.replace('"}', '0"}'), 1, '--keyed: want'),
                              (good.replace(':', ': '), 1, '--keyed: want'),
                              (good[:40] + 'x' + good[41:], 1, '--keyed: want'),
                              ('', 1, 'ended before its key came'),
                              (good + '{"qmp": {"child": 1, "add-key": true}}\n{"end": true}\n', 0,
                               'no such child here')):
        p = subprocess.run([common.FARFORK, 'agent', '--keyed', '--id', 'k', '--rundir',
                            os.path.join(t.work, 'run')], input=lines, capture_output=True,
                           text=True, timeout=20, check=False)
        if p.returncode != code or text not in p.stdout or (lines and lines[8:72] in p.stdout):
            raise Failed(f'{lines!r}: the agent ended with {p.returncode}: {p.stdout} {p.stderr}')
    with subprocess.Popen([common.FARFORK, 'agent', '--keyed', '--id', 'k', '--rundir',
                           os.path.join(t.work, 'run')], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as p:
        p.stdin.write(good)
        p.stdin.flush()
        check_memory(json.loads(p.stdout.readline())['pid'], 'an agent', good[8:72], holds=True)
        p.communicate(timeout=20)


def run(t):
    for name, case in (('a move', moved), ('a fork', forked),
                       ('a move whose agent has another key', move_with_another),
                       ('a fork whose agent has another key', fork_with_another),
                       ('key-file= and key= by hand', by_hand),
                       ('strangers, another key, somebody between', refused),
                       ('a key that is not there', key_unknown),
                       ('no key', no_key),
                       ('another key after a break', recovered),
                       ('an agent alone', agent_alone)):
        with t.case(name):
            case(t)


if __name__ == '__main__':
    common.main(run, limit_s=150)
