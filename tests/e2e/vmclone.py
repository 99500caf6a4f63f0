#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""vmclone.py - vmclone forks a running guest; what fails leaves nothing behind; limit: 900 s

Every child goes on with the ledger that its parent had at the fork, and sweeps all of its memory.
Other hosts are played by launchers that run on this one.
"""
import glob
import json
import os
import select
import shlex
import signal
import subprocess
import threading
import time

import common
from common import Failed, say, status, wait_for
from forked import (ELSEWHERE, FORK_MIB, QEMU, RAMBLOCK, SLOW, TWO_HOSTS, Child, Clone, FakeParent, ForkParent,
                    alive, ask, check_nothing_left, check_result, hosts_of_their_own, kill,
                    processes_of, run_vmclone, say_phases, snapshot, weight)


def family(t, accel, memory, n, *args, hosts=(), smp=1, mem_mib=FORK_MIB):
    """n children run, their ledgers are right, they outlive vmclone; then they are ended."""
    with ForkParent(t, accel, memory=memory, smp=smp, mem_mib=mem_mib) as parent:
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
    with ForkParent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 2) as c:
            check_result(c, 0, {'complete': 2})
            child = Child(c.children[1], parent)
            with Clone(t, c.children[1]['qmp'], 2, name='g') as g:
                check_result(g, 0, {'complete': 2})
                for row in g.children:
                    Child(row, parent).check(before)
                child.check(before)
                kill(g.base, 'g')
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def media(t, accel):
    """What is in a parent's drives by now is in those of a child, and nothing else."""
    path, other = os.path.join(t.work, 'cd.iso'), os.path.join(t.work, 'other.iso')
    for name in (path, other):
        with open(name, 'wb') as f:
            f.truncate(1 << 20)
    extra = ['-cdrom', path]
    for name, bus in (('out', 'ide.0'), ('changed', 'ide.1,unit=1')):
        extra += ['-drive', f'if=none,id={name},file={path},format=raw,media=cdrom',
                  '-device', f'ide-cd,drive={name},bus={bus}']
    with ForkParent(t, accel, extra=extra) as parent:
        parent.start_load()
        before = snapshot(parent)
        drives = [b['device'] for b in parent.qmp('query-block') if 'inserted' in b]
        for drive in drives:
            if drive == 'changed':
                parent.qmp('blockdev-change-medium', device=drive, filename=other, force=True)
            else:
                parent.qmp('eject', device=drive, force=True)
        with Clone(t, parent, 1) as c:
            check_result(c, 0, {'complete': 1})
            left = {b['device']: b.get('inserted', {}).get('file')
                    for b in ask(c.children[0]['qmp'], 'query-block')}
            if len(drives) != 3 or any(left[d] != (other if d == 'changed' else None)
                                       for d in drives):
                raise Failed(f'{drives}: {left}')
            Child(c.children[0], parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def namespaces(t, accel, n_hosts, n):
    with hosts_of_their_own(n_hosts) as hosts:
        family(t, accel, 'anon', n, '--launcher', 'ip netns exec {host} {cmd}', hosts=hosts)


def reason(clone, *texts):
    """Every child that is not there says one of these."""
    said = [r['error'] for r in clone.children if r['state'] == 'failed']
    if not said or not all(s and any(text in s for text in texts) for s in said):
        raise Failed(f'none of {texts} is what was said: {said}')
    say(f'      {said[0]}')


def one_host_fails(t, accel):
    """A host that cannot be reached: the children of the other one run."""
    launcher = 'test {host} != h2 || { echo no route to {host} >&2; exit 255; }; exec {cmd}'
    with ForkParent(t, accel) as parent:
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
    with ForkParent(t, accel) as parent:
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
        f.write('#!/bin/sh\ncase "$*" in */2.qmp*) echo too bad >&2; exit 5;; esac\n'
                f'exec {shlex.quote(QEMU)} "$@"\n')
    os.chmod(one, 0o700)
    with ForkParent(t, accel) as parent:
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
    with ForkParent(t, accel) as parent:
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
                wait_for('the export', 20, parent.exports)
                c.proc.send_signal(sig)
                if sig != signal.SIGKILL:
                    check_result(c, 3, {'failed': 2})
                    reason(c, 'interrupted')
                else:
                    c.proc.communicate(timeout=30)
                check_nothing_left(c, parent)


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
    with ForkParent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Follow(t, parent, 2, *ELSEWHERE, hosts=TWO_HOSTS) as c, \
                Follow(t, parent, 1, rundir='run2') as d:
            c.kill_child(1, signal.SIGKILL)
            c.ended(1, 'SIGKILL')
            d.kill_child(1, signal.SIGTERM)         # in good order, but without a word
            d.ended(1, 'without farfork-guest exit')
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
    with ForkParent(t, accel) as parent:
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
    with ForkParent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 2, *ELSEWHERE, hosts=TWO_HOSTS, faults=SLOW) as c:
            wait_for('children', 40, lambda: len(glob.glob(c.base + '/f/*/*.console')) == 2)
            e = wait_for('the export', 20, parent.exports)[0]
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
    with ForkParent(t, accel) as parent:
        parent.start_load()
        with Clone(t, parent, 2, *ELSEWHERE, hosts=TWO_HOSTS, faults=SLOW) as c:
            wait_for('children', 40, lambda: len(glob.glob(c.base + '/f/*/*.console')) == 2)
            e = wait_for('the export', 20, parent.exports)[0]
            os.kill(e['holder-pid'], signal.SIGKILL)
            check_result(c, 3, {'failed': 2})
            # by the parent's word, or the agent's: a child of that host runs already, or none does
            reason(c, "the parent's memory does not get there",
                   "the parent's memory did not get there", 'that was missing there is lost')
            check_nothing_left(c, parent)


def holder_ends(t, accel):
    """Before it has reached the agent, which cannot know: said long before --timeout."""
    never = 'source.lend=delay:60000000'
    with ForkParent(t, accel, memory='memfd', faults=never) as parent:
        parent.start_load()
        with Clone(t, parent, 2, faults=never) as c:
            e = wait_for('the export', 40, parent.exports)[0]
            os.kill(e['holder-pid'], signal.SIGKILL)
            begin = time.monotonic()
            check_result(c, 3, {'failed': 2})
            if time.monotonic() - begin > 25:
                raise Failed(f'it took {time.monotonic() - begin:.0f} s')
            reason(c, 'the process that held the memory has ended')
            check_nothing_left(c, parent)


def no_way_there(t, accel):
    """The launcher reaches a host, the parent's memory does not: its cable is cut. Memory comes
    slowly to the other one, which is not silent meanwhile."""
    with hosts_of_their_own(2) as hosts, ForkParent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        ns = hosts[1].partition('=')[0]
        link = 'ip link set dev $(ls /sys/class/net | grep -v lo) down'
        subprocess.run(['ip', 'netns', 'exec', ns, 'sh', '-c', link], timeout=20, check=True)
        with Clone(t, parent, 2, '--launcher', 'ip netns exec {host} {cmd}', hosts=hosts,
                   faults=SLOW) as c:
            check_result(c, 1, {'complete': 1, 'failed': 1})
            reason(c, 'No route to host')
            Child(c.children[0], parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


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
    with ForkParent(t, accel) as parent:
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
            killed = vmclone('--kill', 'f', code=1, text='h2: exit code 1')
            here = [alive(row['pid']) for row in c.children]
            if here != [False, True, False]:
                raise Failed(f'children alive without h2: {here}')
            os.unlink(down)
            if 'on h1' in (left := vmclone('--list', text='f  on h2')):
                raise Failed(f'--list still knows a child that has ended: {left}; --kill: {killed}')
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
    none = {'qmp_capabilities': ok, 'x-farfork-look': ok}
    nothing = {'query-block': {'return': []}, 'query-named-block-nodes': {'return': []},
               'x-query-ramblock': RAMBLOCK, 'query-jobs': {'return': []}, 'query-block-exports': {'return': []},
               'query-rx-filter': {'return': []}, 'query-x-farfork-exports': {'return': []},
               'query-status': {'return': {'status': 'running', 'running': True}}}
    for replies, text in (
            (none, 'names no memory'),
            ({'qmp_capabilities': 'end'}, 'has ended'),
            ({**none, **nothing}, 'x-farfork-export: not today'),
            ({**none, **nothing, 'x-farfork-export': 'end'}, 'has ended'),
            ({**none, **nothing, 'x-farfork-export': None},
             'no answer within 2 s')):
        with FakeParent(t, replies) as parent, \
                Clone(t, parent, 1, '--timeout', '2', '--agent', parent.beside, '--qemu', QEMU) as c:
            check_result(c, 3, {'failed': 1})
            if text not in (c.result['error'] or ''):
                raise Failed(f'"{text}" is not what was said: {c.result["error"]}')
            say(f'      {c.result["error"]}')
            check_nothing_left(c)
            if ('x-farfork-unexport' in parent.asked) != ('within 2 s' in text):
                raise Failed(f'asked {parent.asked}')


def usage(t):
    for args, text in ((['x'], 'usage'), (['x', '0'], 'number of children'),
                       (['x', '2', '-bad'], '--help'), (['x', '2', 'a;b'], 'want HOST'),
                       (['--net', 'tap', 'x', '1'], 'isolated'), (['--keep', '0', 'x'], '--keep: "0" (permitted: 1..10000)'),
                       (['--fanout', '33', 'x', '1'], '(permitted: 0..32)'), (['--place', 'here', 'x', '1'], 'permitted: pack|spread'),
                       (['--launcher', 'ssh', 'x', '1', 'h'], '{cmd}'),
                       (['--options', 'window=0', 'x', '1'], '--options'),
                       (['--id', '../x', 'x', '1'], '--id'), (['--list', 'x'], 'usage'),
                       (['--hostfile', '/no-such-file', 'x', '1'], 'No such file')):
        out = run_vmclone(*args)
        lines = out.stdout.count('\n')
        if out.returncode != 2 or text not in out.stdout or (lines > 2) != (text == 'usage'):
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
    if common.FULL:
        with t.case('four network namespaces, eight children'):
            namespaces(t, accel, 4, 8)
    with t.case('hosts that cannot be seen from here'):
        out_of_sight(t, accel)
    many = 50 if common.FULL else 8
    with t.case(f'{many} children'):
        family(t, accel, 'memfd', many, mem_mib=16)
    with t.case('a child is forked'):
        grandchild(t, accel)
    with t.case('media were ejected, changed'):
        media(t, accel)
    with t.case('one host cannot be reached'):
        one_host_fails(t, accel)
    with t.case('no host can be reached'):
        no_host(t, accel)
    with t.case('a child does not start'):
        child_does_not_start(t, accel)
    if common.FULL:
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
    with t.case('the holder ends before it has reached the agent'):
        holder_ends(t, accel)
    with t.case('the way to a host is cut'):
        no_way_there(t, accel)


if __name__ == '__main__':
    common.main(run, limit_s=900)
