#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""vmclone.py - vmclone forks a running guest; what fails leaves nothing behind; limit: 480 s

Every child goes on with the ledger that its parent had at the fork, and sweeps all of its memory.
Other hosts are played by launchers that run on this one.
"""
import contextlib
import glob
import itertools
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time

import common
import report
from common import Failed, Micro, Skip, say, status, wait_for

VMCLONE = os.path.join(common.BUILD, 'bin', 'vmclone')
MIB = 128
LIMIT_S = 400 if common.FULL else 90
SLOW = 'dest.prefill=delay:30000'       # pages come slowly, children fault
TWO_HOSTS = ['h1=127.0.0.1', 'h2=127.0.0.1']
NAMESPACES = itertools.count()
ELSEWHERE = ['--launcher', 'env FF_HOST={host} {cmd}']


class Clone:
    """vmclone, started; its result once it has ended."""

    def __init__(self, t, parent, n, *args, hosts=(), faults=None, rundir='run', name='f',
                 everywhere=True):
        self.base = os.path.join(t.work, rundir)
        path = parent if isinstance(parent, str) else parent.second
        self.argv = [VMCLONE, '--json', *(('--rundir', self.base) if everywhere else ()),
                     '--id', name, '--timeout', '40', *args, path, str(n), *hosts]
        env = {**os.environ, 'FARFORK_RUNDIR': self.base,
               **({'FARFORK_FAULTS': faults} if faults else {})}
        self.proc = subprocess.Popen(self.argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                     stdin=subprocess.DEVNULL, env=env, text=True)
        self.result = None
        self.err = ''

    def end(self, limit_s=90):
        out, self.err = self.proc.communicate(timeout=limit_s)
        self.result = json.loads(out) if out.startswith('{') else {}
        return self.proc.returncode

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            self.proc.terminate()
            try:
                self.proc.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                self.proc.kill()
        kill(self.base, 'f')

    @property
    def children(self):
        return self.result['children']


def run_vmclone(*args, limit_s=30):
    return subprocess.run([VMCLONE, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=limit_s, check=False)


def kill(base, name):
    return run_vmclone('--kill', name, '--rundir', base)


class Child:
    """The micro guest in a child: what it says is in its run directory."""

    def __init__(self, row, parent):
        self.pid, self.qmp_path = row['pid'], row['qmp']
        self.name = f'child {row["child"]}'
        folder = os.path.dirname(row['qmp'])
        self.console = os.path.join(folder, f'{row["child"]}.{os.path.basename(parent.console)}')
        self.at = 0
        self.start = None
        self._log = report.Log()

    def log(self):
        with open(self.console, 'rb') as f:
            f.seek(self.at)
            data = f.read()
        self.at += len(data)
        self._log.feed(data)
        return self._log

    def begins(self, before, limit_s=LIMIT_S):
        """It goes on from where its parent was."""
        wait_for(f'report of {self.name}', limit_s, lambda: report.is_ready(self.log().lines))
        first = self.log().lines[0]
        was = before[first['cpu']]
        if first['seq'] <= was['seq'] or first['uptime_ms'] < was['uptime_ms']:
            raise Failed(f'{self.name} begins with report {first["seq"]}, the parent had made '
                         f'{was["seq"]}')
        self.start = report.snapshot(self.log().lines)

    def check(self, before, limit_s=LIMIT_S):
        """And finds all of its memory right, twice since begins()."""
        if not self.start:
            self.begins(before, limit_s)
        wait_for(f'sweeps of {self.name}', limit_s, lambda: all(
            now['sweeps'] >= self.start[c]['sweeps'] + 2
            for c, now in report.snapshot(self.log().lines).items()))
        self.start = None
        ok, reasons = report.verdict(self.log())
        if not ok:
            raise Failed(f'{self.name}: its memory is wrong: {"; ".join(reasons[:5])}')


class Parent(Micro):
    """With a QMP socket more: the first one is the test's."""

    def __init__(self, t, accel, extra=(), mem_mib=MIB, second='parent.second', **more):
        self.second = os.path.join(t.work, second)
        super().__init__(t, 'parent', accel, mem_mib=mem_mib, extra=(
            '-qmp', f'unix:{self.second},server=on,wait=off', *extra), **more)


def snapshot(parent):
    return report.snapshot(parent.log().lines)


def alive(pid):
    try:
        with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as f:
            return f.read().rpartition(')')[2].split()[0] != 'Z'
    except OSError:
        return False


def weight(pid):
    """Of its session among others; '' where sessions have none."""
    try:
        with open(f'/proc/{pid}/autogroup', encoding='ascii') as f:
            return f.read().partition(' ')[2].strip()
    except OSError:
        return ''


def one_start(rows):
    """Whether any two of them have the same addresses, and so come from one program's start."""
    first = []
    for row in rows:
        with open(f'/proc/{row["pid"]}/maps', encoding='ascii') as f:
            first.append(f.readline().split('-')[0])
    return len(set(first)) < len(first)


def processes_of(base):
    """Processes that name this run directory: agents, children, launchers."""
    found = []
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            with open(path, 'rb') as f:
                text = f.read()
        except OSError:
            continue
        pid = int(path.split('/')[2])
        if base.encode() in text and alive(pid):
            found.append((pid, text.split(b'\0')[:2]))
    return found


def check_nothing_left(clone, parent=None):
    """No process, socket or folder of the fork, and no export in the parent."""
    left = wait_for('end of all processes', 15, lambda: not processes_of(clone.base) or None)
    if not left or glob.glob(clone.base + '/*'):
        raise Failed(f'left behind: {glob.glob(clone.base + "/*/*/*")}')
    if parent is None:
        return
    for e in parent.qmp('query-x-farfork-exports'):
        wait_for('end of the holder', 10, lambda pid=e['holder-pid']: not alive(pid))
    if status(parent) != 'running':
        raise Failed(f'the parent is {status(parent)}')
    common.check_ledger(parent, sweeps=1)


def check_result(clone, code, want):
    """want: how many children in each state, once vmclone has ended with this code."""
    got = clone.end()
    states = {}
    for row in clone.result.get('children', []):
        states[row['state']] = states.get(row['state'], 0) + 1
    if got != code or states != want:
        raise Failed(f'vmclone ended with {got}: {states}, want {code}: {want}; '
                     f'{[r["error"] for r in clone.result.get("children", [])][:3]} '
                     f'{clone.result.get("error")} {clone.err[-600:]}')


def say_phases(clone):
    p = clone.result['phases_ms']
    say('      ' + ', '.join(f'{k} {v:.1f}' for k, v in p.items() if v is not None) + ' ms')


# --- cases ---

def family(t, accel, memory, n, *args, hosts=(), smp=1, mem_mib=MIB):
    """n children run, their ledgers are right, they outlive vmclone; then they are ended."""
    with Parent(t, accel, memory=memory, smp=smp, mem_mib=mem_mib) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, n, *args, hosts=hosts) as c:
            check_result(c, 0, {'complete': n})
            say_phases(c)
            if any(row['first_instruction_ms'] is None for row in c.children):
                raise Failed(f'a child never ran: {c.children}')
            if status(parent) != 'running':
                raise Failed(f'the parent is {status(parent)}')
            lent = sum(h['lent_bytes'] for h in c.result['hosts'])
            if bool(lent) != (memory == 'memfd' and not hosts):
                raise Failed(f'{lent} bytes are lent of {memory}')
            kids = [Child(row, parent) for row in c.children]
            if one_start(c.children) != (n > max(1, len(hosts))):
                raise Failed('children of one host were not forked off one QEMU, or one was')
            for k in kids:      # many share few CPUs: all sweep at once
                k.begins(before)
            for k in kids:
                k.check(before)
            listed = json.loads(run_vmclone('--list', '--json', '--rundir', c.base).stdout)
            states = [k['state'] for f in listed for k in f['children']]
            if len(listed) != max(1, min(n, len(hosts))) or states != ['complete'] * n:
                raise Failed(f'--list: {listed}')
            if any(not f['agent_alive'] or not f['detached'] for f in listed):
                raise Failed(f'--list: {listed}')
            weights = [weight(f['agent']) for f in listed]
            if any(w not in ('', 'nice 0') for w in weights):   # more than a session's
                raise Failed(f'children weigh {weights} now that all of them run')
            out = run_vmclone('--wait', 'f', '--timeout', '1', '--rundir', c.base)
            if out.returncode != 1 or 'still run' not in out.stdout:
                raise Failed(f'--wait: {out}')
            # one that ends by itself is no trouble to the others; the last one takes all with it
            os.kill(kids[0].pid, signal.SIGTERM)
            wait_for('end of a child', 20, lambda: not alive(kids[0].pid))
            out = kill(c.base, 'f') if n > 1 else run_vmclone('--wait', 'f', '--rundir', c.base)
            if out.returncode:
                raise Failed(f'--kill: {out}')
            check_nothing_left(c, parent)


def grandchild(t, accel):
    """A child is forked: it was forked off another QEMU, and has a command line of its own."""
    with Parent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 2) as c:
            check_result(c, 0, {'complete': 2})
            child = Child(c.children[1], parent)
            with Clone(t, c.children[1]['qmp'], 2, name='g') as g:
                check_result(g, 0, {'complete': 2})
                for row in g.children:
                    Child(row, child).check(before)
                child.check(before)
                kill(g.base, 'g')
            kill(c.base, 'f')
            check_nothing_left(c, parent)


@contextlib.contextmanager
def hosts_of_their_own(n):
    """Network namespaces, each at the end of a link of its own to this one: (name=address, ...)."""
    if os.geteuid() or not shutil.which('ip'):
        raise Skip('network namespaces need root and ip(8)')
    tag = f'f{os.getpid() % 100000}{next(NAMESPACES)}'  # what is deleted is there for a moment yet

    def ip(*args):
        out = subprocess.run(['ip', *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, timeout=20, check=False)
        if out.returncode:
            raise Skip(f'ip {" ".join(args)}: {out.stdout.strip()}')
    with contextlib.ExitStack() as undo:
        hosts = []
        for i in range(n):
            ns, here, there = f'{tag}n{i}', f'{tag}a{i}', f'{tag}b{i}'
            ip('netns', 'add', ns)
            undo.callback(subprocess.run, ['ip', 'netns', 'del', ns], timeout=20, check=False)
            ip('link', 'add', here, 'type', 'veth', 'peer', 'name', there, 'netns', ns)
            ip('addr', 'add', f'198.18.{i}.1/30', 'dev', here)
            ip('link', 'set', here, 'up')
            ip('-n', ns, 'addr', 'add', f'198.18.{i}.2/30', 'dev', there)
            ip('-n', ns, 'link', 'set', there, 'up')
            hosts.append(f'{ns}=198.18.{i}.2')
        yield hosts


def namespaces(t, accel, n_hosts, n):
    with hosts_of_their_own(n_hosts) as hosts:
        family(t, accel, 'anon', n, '--launcher', 'ip netns exec {host} {cmd}', hosts=hosts)


def reason(clone, text):
    """Every child that is not there says this."""
    said = [r['error'] for r in clone.children if r['state'] == 'failed']
    if not said or not all(s and text in s for s in said):
        raise Failed(f'"{text}" is not what was said: {said}')
    say(f'      {said[0]}')


def one_host_fails(t, accel):
    """A host that cannot be reached: the children of the other one run."""
    launcher = 'test {host} != h2 || { echo no route to {host} >&2; exit 255; }; exec {cmd}'
    with Parent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 4, '--launcher', launcher, hosts=TWO_HOSTS) as c:
            check_result(c, 1, {'complete': 2, 'failed': 2})
            reason(c, 'host h2: the agent there ended with exit code 255: no route to h2')
            for row in c.children:
                if row['state'] == 'complete':
                    Child(row, parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def no_host(t, accel):
    with Parent(t, accel) as parent:
        parent.start_load()
        with Clone(t, parent, 2, '--launcher', 'sleep 100; {host} {cmd}', '--timeout', '1',
                   hosts=TWO_HOSTS) as c:
            check_result(c, 3, {'failed': 2})
            reason(c, 'no answer within 1 s')
            check_nothing_left(c, parent)
        with Clone(t, parent, 1, hosts=['h1=192.0.2.1'], name='g') as c:
            check_result(c, 3, {'failed': 1})       # ssh is not there, or does not get there
            check_nothing_left(c, parent)


def child_does_not_start(t, accel, *args):
    """A QEMU that ends at once, for one child of two, then for both."""
    one = os.path.join(t.work, 'qemu-one')
    with open(one, 'w', encoding='ascii') as f:
        f.write('#!/bin/sh\ncase "$*" in *number=2,*) echo too bad >&2; exit 5;; esac\n'
                f'exec {shlex.quote(os.path.abspath(common.QEMU))} "$@"\n')
    os.chmod(one, 0o700)
    with Parent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 2, '--qemu', one, *args) as c:
            check_result(c, 1, {'complete': 1, 'failed': 1})
            reason(c, 'exit code 5: too bad')
            Child(c.children[0], parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)
        for qemu, text in (('/bin/false', 'exit code 1'), ('/no-such-qemu', 'No such file')):
            with Clone(t, parent, 2, '--qemu', qemu, *args) as c:
                check_result(c, 3, {'failed': 2})
                reason(c, text)
                check_nothing_left(c, parent)


def interrupted(t, accel):
    """Ctrl-C before the fork and after it; vmclone killed."""
    with Parent(t, accel) as parent:
        parent.start_load()
        with Clone(t, parent, 2, '--launcher', 'sleep 100; {host} {cmd}', hosts=TWO_HOSTS) as c:
            wait_for('launchers', 20, lambda: len(processes_of(c.base)) > 1)
            c.proc.send_signal(signal.SIGINT)
            check_result(c, 3, {'failed': 2})
            reason(c, 'interrupted')
            check_nothing_left(c, parent)
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            with Clone(t, parent, 2, *ELSEWHERE, hosts=TWO_HOSTS, faults=SLOW) as c:
                wait_for('a child that runs', 40, lambda b=c.base: glob.glob(b + '/f/*/*.console'))
                wait_for('the export', 20, lambda: parent.qmp('query-x-farfork-exports'))
                c.proc.send_signal(sig)
                if sig != signal.SIGKILL:
                    check_result(c, 3, {'failed': 2})
                    reason(c, 'interrupted')
                else:
                    c.proc.communicate(timeout=30)
                check_nothing_left(c, parent)
            if sig == signal.SIGKILL:       # nobody withdraws it: it is there, and has failed
                parent.qmp('x-farfork-unexport', id='f')


class Follow(Clone):
    """vmclone --follow: one object a line; the first one is the fork."""

    def __init__(self, t, parent, n, *args, **more):
        super().__init__(t, parent, n, '--follow', *args, **more)
        self.heard = b''
        self.result = self.event('forked', 90)

    def event(self, name, limit_s=30):
        end = time.monotonic() + limit_s
        while b'\n' not in self.heard:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.proc.stdout], [], [], left)[0]:
                raise Failed(f'no event {name} within {limit_s} s')
            data = os.read(self.proc.stdout.fileno(), 65536)
            if not data:
                raise Failed(f'no event {name}, vmclone has ended: {self.proc.wait(20)}')
            self.heard += data
        line, self.heard = self.heard.split(b'\n', 1)
        e = json.loads(line)
        if e['event'] != name:
            raise Failed(f'event {e}, want {name}')
        return e

    def ended(self, child, text, limit_s=30):
        e = self.event('ended', limit_s)
        if e['child'] != child or e['code'] != 255 or text not in e['error']:
            raise Failed(f'{e}, want the end of {child}: {text}')
        say(f'      {e["error"]}')

    def finish(self, code, text=''):
        out, err = self.proc.communicate(timeout=40)
        if self.proc.returncode != code or out or self.heard or text not in err:
            raise Failed(f'exit code {self.proc.returncode}, want {code}: {self.heard} {out}{err}')

    def kill_child(self, child, sig):
        os.kill(self.children[child - 1]['pid'], sig)


def agents(base):
    """The agent's process of each host; not the one that waits for it."""
    found = []
    for path in sorted(glob.glob(base + '/*/*/state.json')):
        with open(path, encoding='utf-8') as f:
            found.append(json.load(f)['agent'])
    return found


def detached(clone):
    return all(f['detached'] for f in json.loads(
        run_vmclone('--list', '--json', '--rundir', clone.base).stdout))


def let_go(c, parent, before):
    """Who followed has gone: the agents are alone, and the last child's memory is right."""
    wait_for('agents that were let go', 20, lambda: detached(c))
    Child(c.children[-1], parent).check(before)
    kill(c.base, 'f')
    check_nothing_left(c, parent)


def followed(t, accel):
    """vmclone stays, and says how each child ends; the parent is forked again meanwhile. When
    vmclone is interrupted or killed children go on."""
    with Parent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Follow(t, parent, 2, *ELSEWHERE, hosts=TWO_HOSTS) as c, \
                Follow(t, parent, 1, rundir='run2') as d:
            c.kill_child(1, signal.SIGKILL)
            c.ended(1, 'SIGKILL')
            d.kill_child(1, signal.SIGTERM)         # in good order, but without a word
            d.ended(1, 'without a word')
            d.finish(1)
            check_nothing_left(d)
            if c.proc.poll() is not None:
                raise Failed(f'vmclone has ended before its last child: {c.proc.poll()}')
            c.proc.send_signal(signal.SIGINT)
            c.finish(1, 'children that have not ended go on')
            let_go(c, parent, before)
        with Follow(t, parent, 1) as c:
            c.proc.kill()
            c.proc.communicate(timeout=20)
            let_go(c, parent, before)


def follow_host_lost(t, accel):
    """An agent that is killed, one that is not heard of any more: it is said, and soon."""
    with Parent(t, accel) as parent:
        parent.start_load()
        with Follow(t, parent, 3, '--timeout', '8', *ELSEWHERE,
                    hosts=[*TWO_HOSTS, 'h3=127.0.0.1']) as c:
            pids = agents(c.base)
            os.kill(pids[0], signal.SIGKILL)
            c.ended(1, 'the agent there ended')
            os.kill(pids[1], signal.SIGSTOP)
            c.ended(2, 'no answer for 8 s')
            if c.proc.poll() is not None:
                raise Failed('vmclone has ended before the last child')
            c.kill_child(3, signal.SIGKILL)
            c.ended(3, 'SIGKILL')
            c.finish(1)
            os.kill(pids[1], signal.SIGCONT)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def parent_dies(t, accel):
    """After the freeze: children get all of their memory from the process forked off it."""
    with Parent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 2, *ELSEWHERE, hosts=TWO_HOSTS, faults=SLOW) as c:
            wait_for('children', 40, lambda: len(glob.glob(c.base + '/f/*/*.console')) == 2)
            e = wait_for('the export', 20, lambda: parent.qmp('query-x-farfork-exports'))[0]
            parent.close()
            check_result(c, 0, {'complete': 2})
            if not c.result['parent_ended']:
                raise Failed('it is not said that the parent has ended')
            for row in c.children:
                Child(row, parent).check(before)
            kill(c.base, 'f')
            wait_for('end of the holder', 10, lambda: not alive(e['holder-pid']))
            check_nothing_left(c)


def memory_lost(t, accel):
    """The process that serves memory dies: children end, and none of them is left."""
    with Parent(t, accel) as parent:
        parent.start_load()
        with Clone(t, parent, 2, *ELSEWHERE, hosts=TWO_HOSTS, faults=SLOW) as c:
            wait_for('children', 40, lambda: len(glob.glob(c.base + '/f/*/*.console')) == 2)
            e = wait_for('the export', 20, lambda: parent.qmp('query-x-farfork-exports'))[0]
            os.kill(e['holder-pid'], signal.SIGKILL)
            check_result(c, 3, {'failed': 2})
            reason(c, 'lost')
            check_nothing_left(c, parent)


class FakeParent:
    """A QMP server that does as it is told: replies by command, or none."""

    def __init__(self, t, replies):
        self.second = os.path.join(t.work, 'fake.qmp')
        self.replies = replies
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.second)
        self.server.listen(1)
        self.asked = []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        with contextlib.suppress(OSError):
            sock, _ = self.server.accept()
            with sock, sock.makefile('rw') as f:
                f.write('{"event": "RTC_CHANGE"}\n{"QMP": {}}\n')
                f.flush()
                for line in f:
                    m = json.loads(line)
                    self.asked.append(m['execute'])
                    reply = self.replies.get(m['execute'], {'error': {'desc': 'not today'}})
                    if reply == 'end':
                        return
                    if reply is not None:
                        f.write('{"event": "STOP"}\n' + json.dumps({**reply, 'id': m['id']}) +
                                '\n')
                        f.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join(10)
        os.unlink(self.second)


def out_of_sight(t, accel):
    """Hosts whose run directories are theirs alone: listed, waited for, ended from here."""
    launcher = f'test ! -e {t.work}/down-{{host}} && env FARFORK_RUNDIR={t.work}/on-{{host}} {{cmd}}'
    args = ('--launcher', launcher)
    down = os.path.join(t.work, 'down-h2')

    def vmclone(*args, code=0, text=''):
        out = run_vmclone(*args, '--rundir', c.base)
        if out.returncode != code or text not in out.stdout:
            raise Failed(f'vmclone {args}: {out.returncode}, want {code} and "{text}": {out.stdout}')
        return out.stdout

    def fork(n):
        clone = Clone(t, parent, n, *args, hosts=TWO_HOSTS, everywhere=False)
        check_result(clone, 0, {'complete': n})
        return clone
    with Parent(t, accel) as parent:
        parent.start_load()
        with fork(3) as c:
            listed = json.loads(vmclone('--list', '--json'))
            said = sorted((f['node'], len(f['children']), f['agent_alive']) for f in listed)
            if said != [('h1', 2, True), ('h2', 1, True)]:
                raise Failed(f'--list: {listed}')
            vmclone('--wait', 'f', '--timeout', '1', code=1, text='h1: exit code 1')
            with open(down, 'w', encoding='ascii'):
                pass
            vmclone('--list', code=1, text='on h1')
            vmclone('--kill', 'f', code=1, text='h2: exit code 1')
            here = [alive(row['pid']) for row in c.children]
            if here != [False, True, False]:
                raise Failed(f'children alive without h2: {here}')
            os.unlink(down)
            if 'on h1' in vmclone('--list', text='f  on h2'):
                raise Failed('--list still knows a child that has ended')
            vmclone('--kill', 'f')
            vmclone('--kill', 'f', code=3, text='no fork f')
            check_nothing_left(c)
        with fork(2) as c:      # those that end by themselves
            os.kill(c.children[0]['pid'], signal.SIGTERM)
            threading.Timer(1, os.kill, (c.children[1]['pid'], signal.SIGTERM)).start()
            vmclone('--wait', 'f')
            check_nothing_left(c)
        with fork(2) as c:
            for row in c.children:
                os.kill(row['pid'], signal.SIGTERM)
            wait_for('end of all', 20, lambda: not glob.glob(f'{t.work}/on-h?/*'))
            vmclone('--list', text='no forks')
            check_nothing_left(c, parent)


def strange_parents(t):
    ok = {'return': {}}
    none = {'qmp_capabilities': ok, 'query-commands': {'return': [{'name': 'stop'}]}}
    able = {'return': [{'name': 'x-farfork-export'}]}
    nothing = {'query-block': {'return': []}, 'query-named-block-nodes': {'return': []},
               'query-rx-filter': {'return': []}, 'query-x-farfork-exports': {'return': []},
               'query-status': {'return': {'status': 'running', 'running': True}}}
    for replies, text in (
            (none, 'has no x-farfork-export: the parent has to be started with Farfork'),
            ({'qmp_capabilities': 'end'}, 'has ended'),
            ({**none, **nothing, 'query-commands': able}, 'x-farfork-export: not today'),
            ({**none, **nothing, 'query-commands': able, 'x-farfork-export': 'end'}, 'has ended'),
            ({**none, **nothing, 'query-commands': able, 'x-farfork-export': None},
             'no answer within 2 s')):
        with FakeParent(t, replies) as parent, \
                Clone(t, parent, 1, '--timeout', '2', '--qemu', '/bin/false') as c:
            check_result(c, 3, {'failed': 1})
            if text not in (c.result['error'] or ''):
                raise Failed(f'"{text}" is not what was said: {c.result["error"]}')
            say(f'      {c.result["error"]}')
            check_nothing_left(c)
            if ('x-farfork-unexport' in parent.asked) != ('within 2 s' in text):
                raise Failed(f'asked {parent.asked}')


def usage(t):
    for args, text in ((['x'], 'usage'), (['x', '0'], 'number of children'),
                       (['x', '2', '-bad'], 'usage'), (['x', '2', 'a;b'], 'want HOST'),
                       (['--net', 'tap', 'x', '1'], 'isolated'),
                       (['--launcher', 'ssh', 'x', '1', 'h'], '{cmd}'),
                       (['--options', 'window=0', 'x', '1'], '--options'),
                       (['--id', '../x', 'x', '1'], '--id'), (['--list', 'x'], 'usage'),
                       (['--hostfile', '/no-such-file', 'x', '1'], 'No such file')):
        out = run_vmclone(*args)
        if out.returncode != 2 or text not in out.stdout:
            raise Failed(f'{args}: {out.returncode}, want "{text}": {out.stdout[:300]}')
    for args, code, text in ((['/no-such-socket', '1'], 3, 'QMP socket of a running QEMU'),
                             (['--kill', 'nobody'], 3, 'no fork nobody'),
                             (['--wait', 'nobody'], 3, 'no fork nobody'),
                             (['--list'], 0, 'no forks'),
                             (['x', '3', 'h1:1', 'h2:1'], 3, 'room for 2')):
        out = run_vmclone('--rundir', os.path.join(t.work, 'none'), *args)
        if out.returncode != code or text not in out.stdout:
            raise Failed(f'{args}: {out.returncode}, want "{text}": {out.stdout[:300]}')


def run(t):
    accel = t.best_accel()
    with t.case('usage'):
        usage(t)
    with t.case('parents that do not answer as they should'):
        strange_parents(t)
    with t.case('same host, memfd: lent'):
        family(t, accel, 'memfd', 2)
    with t.case('same host, anon, started ahead'):
        family(t, accel, 'anon', 3, '--prestart')
    with t.case('two hosts, four children'):
        family(t, accel, 'memfd', 4, *ELSEWHERE, hosts=TWO_HOSTS)
    with t.case('two network namespaces'):
        namespaces(t, accel, 2, 4)
    with t.case('four network namespaces, eight children'):
        namespaces(t, accel, 4, 8)
    with t.case('hosts that cannot be seen from here'):
        out_of_sight(t, accel)
    many = 50 if common.FULL else 16
    with t.case(f'{many} children'):
        family(t, accel, 'memfd', many, mem_mib=32)
    with t.case('a child is forked'):
        grandchild(t, accel)
    with t.case('one host cannot be reached'):
        one_host_fails(t, accel)
    with t.case('no host can be reached'):
        no_host(t, accel)
    with t.case('a child does not start'):
        child_does_not_start(t, accel)
    with t.case('a child that is started ahead does not start'):
        child_does_not_start(t, accel, '--prestart')
    with t.case('interrupted, killed'):
        interrupted(t, accel)
    with t.case('children are followed'):
        followed(t, accel)
    with t.case('a host is lost while its children are followed'):
        follow_host_lost(t, accel)
    with t.case('the parent dies'):
        parent_dies(t, accel)
    with t.case('memory is lost'):
        memory_lost(t, accel)


if __name__ == '__main__':
    common.main(run, limit_s=900 if common.FULL else 480)
