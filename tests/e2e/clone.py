#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""clone.py - a running guest is forked, and both go on; limit: 900 s

The test plays vmclone's part: it starts agents (tests/e2e/image_agent.c) and children, and tells the
parent to export itself. Every guest, parent and child, goes on with the ledger that it had at the
fork, and sweeps all of its memory.
"""
import contextlib
import json
import os
import subprocess
import threading
import time

import common
import report
from common import Failed, Micro, say, status, wait_for

AGENT = os.path.join(common.BUILD, 'tests', 'e2e', 'image_agent')
MIB = 64
NIC = ['-device', 'e1000,romfile=']
SLOW = 'dest.prefill=delay:400000@1-10'      # of an agent: pages come slowly, children fault


class Agent:
    """An agent and what it says; ends when told to, or with `kill`.

    at_source: on the host where sources are, else on that of destinations.
    more: options of the address, of both sides.
    """

    def __init__(self, t, name, link=None, faults=None, at_source=False, more=''):
        common.need_files(AGENT)
        self.name = name
        self.at_source = at_source
        self.host = common.place.source_host if at_source else common.place.host
        self.options = (f',link={link}' if link else common.place.options or ',link=tcp') + more
        self.socket = os.path.join(t.work, name + '.sock')
        self.events = []
        self.stderr = os.path.join(t.work, name + '.stderr')
        env = {**os.environ, **({'FARFORK_FAILPOINTS': faults} if faults else {})}
        with open(self.stderr, 'wb') as err:
            argv = [AGENT, f'{self.host}:0{self.options}', self.socket]
            self.proc = subprocess.Popen(common.place.argv(argv, not at_source),
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err,
                                         env=env)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        try:
            self.port = self.wait('listening')['port']
        except BaseException:
            self.__exit__()
            raise

    def read(self):
        for row in self.proc.stdout:
            self.events.append(json.loads(row))

    def find(self, event, **more):
        return next((e for e in self.events if e['event'] == event
                     and all(e.get(k) == v for k, v in more.items())), None)

    def wait(self, event, limit_s=30, **more):
        def look():
            if self.proc.poll() is not None and self.reader.is_alive():
                self.reader.join(5)
            e = self.find(event, **more)
            bad = self.find('failed') or (self.find('lost') if event != 'lost' else None)
            if not e and (bad or self.proc.poll() is not None):
                raise Failed(f'{self.name}: want {event}, got {self.events[-1:]}; {self.tail}')
            return e
        return wait_for(f'{self.name}: {event} {more or ""}', limit_s, look)

    @property
    def tail(self):
        with open(self.stderr, errors='replace') as f:
            return f.read().strip()[-500:]

    def target(self, lend, options='', port=None):
        uri = f'rdma-postcopy:{self.host}:{port or self.port}{self.options}{options}'
        return {'uri': uri, 'socket': self.socket} if lend else {'uri': uri}

    def kill(self):
        self.proc.kill()
        self.proc.wait(10)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            self.proc.stdin.close()         # it ends by itself
            try:
                self.proc.wait(20)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait(10)
        self.reader.join(5)
        self.proc.stdout.close()
        if os.path.exists(self.socket):
            os.unlink(self.socket)


def child(t, agent, number, accel, memory='anon', options='', mem_mib=None, smp=1, extra=(),
          faults=None):
    return Micro(t, f'{agent.name}-{number}', accel, memory=memory, mem_mib=mem_mib or MIB, smp=smp,
                 extra=extra, faults=faults, incoming=f'farfork-clone:{agent.socket},number={number}{options}',
                 at_source=agent.at_source)


def export(parent, name, *targets, **more):
    r = parent.qmp('x-farfork-export', id=name, targets=list(targets), **more)
    say(f'      pause {r["pause-ns"] / 1e6:.1f} ms: stop {r["stop-ns"] / 1e6:.1f}, state '
        f'{r["state-ns"] / 1e6:.1f}, memory {r["memory-ns"] / 1e6:.1f} of which fork '
        f'{r["fork-ns"] / 1e6:.1f}; lent {r["lent-bytes"] >> 20} MiB')
    return r


def exports(parent, name):
    return next((e for e in parent.qmp('query-x-farfork-exports') if e['id'] == name), None)


def wait_exported(parent, name, limit_s=60):
    """All agents have all of it, and the holder is gone."""
    def look():
        e = exports(parent, name)
        bad = [x for x in e['targets'] if x['status'] == 'failed']
        if bad:
            raise Failed(f'{parent.name}: export {name}: {bad[0]["error"]}')
        return not e['alive'] and e
    e = wait_for(f'{parent.name}: end of export {name}', limit_s, look)
    if any(x['status'] != 'completed' for x in e['targets']):
        raise Failed(f'{parent.name}: ended, but not complete: {e}')
    if os.path.exists(f'/proc/{e["holder-pid"]}'):
        raise Failed(f'{parent.name}: holder {e["holder-pid"]} is still there')
    return e


def check_went_on(before, guest, sweeps=1):
    """A child begins where its parent was at the fork: counters are those of then, or a little on.

    before: the parent's last report from ahead of the fork. Then sweep all memory.
    """
    guest.wait('a report', lambda log: report.is_ready(log.lines), 60)
    first = {}
    for line in guest.log().lines:
        first.setdefault(line['cpu'], line)
    for cpu, line in first.items():
        was = before[cpu]
        if line['seq'] <= was['seq'] or line['uptime_ms'] < was['uptime_ms']:
            raise Failed(f'{guest.name}: cpu {cpu} begins with report {line["seq"]}, the parent '
                         f'had made {was["seq"]}')
    guest.wait_sweeps(sweeps, 120)
    ok, reasons = report.verdict(guest.log())
    if not ok:
        raise Failed(f'{guest.name}: the guest found its memory wrong: {"; ".join(reasons[:5])}')


def check_parent(parent, sweeps=1):
    if status(parent) != 'running':
        raise Failed(f'{parent.name}: {status(parent)}')
    common.check_ledger(parent, sweeps=sweeps)


def snapshot(parent):
    return report.snapshot(parent.log().lines)


def enter(stack, guests):
    return [stack.enter_context(g) for g in guests]


def complete(guests, limit_s=60):
    for g in guests:
        common.wait_migration(g, 'completed', limit_s)
        if status(g) != 'running':
            raise Failed(f'{g.name}: {status(g)} when complete')


# --- cases ---

def family(t, accel, memory, n, lend, n_agents=1):
    """n children, over so many agents; the parent goes on."""
    tag = f'{accel}-{memory}-{n}-{n_agents}'
    mib = MIB if n < 8 else MIB // 2
    if memory == 'hugetlb':
        t.reserve_huge((3 + n) * mib + 32)
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, f'p-{tag}', accel, memory=memory, mem_mib=mib))
        parent.start_load()
        agents = enter(stack, [Agent(t, f'a{i}-{tag}') for i in range(n_agents)])
        before = snapshot(parent)
        r = export(parent, 'f', *[a.target(lend) for a in agents])
        if bool(r['lent-bytes']) != (lend and memory != 'anon'):
            raise Failed(f'{r["lent-bytes"]} bytes are lent of {memory}')
        kids = enter(stack, [child(t, agents[i % n_agents], i, accel, memory, mem_mib=mib)
                             for i in range(n)])
        for k in kids:
            check_went_on(before, k)
        complete(kids)
        e = wait_exported(parent, 'f')
        check_parent(parent)
        for a in agents:
            c = a.wait('complete')
            if memory != 'anon' and lend and c['lent'] < mib << 20:
                raise Failed(f'{a.name}: {c}')
            if c['fetched'] + c['zero'] + c['lent'] < c['total']:
                raise Failed(f'{a.name}: {c}')
        say(f'      sent to each agent: {[x["transferred-bytes"] >> 20 for x in e["targets"]]} MiB')
        # they need neither the agent nor the parent any more
        for a in agents:
            a.kill()
        parent.close()
        for k in kids:
            k.wait_sweeps(0, 60)
            if not report.verdict(k.log())[0]:
                raise Failed(f'{k.name}: wrong without its agent: {report.verdict(k.log())[1]}')


def forked_again(t, accel, memory):
    """A second fork while children of the first still fetch; forks of a parent that has run on."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, f'again-{memory}', accel, memory=memory, mem_mib=MIB,
                                           smp=2))
        parent.start_load()
        agents = enter(stack, [Agent(t, f'again{i}-{memory}', faults=SLOW) for i in range(3)])
        kids, before = [], []
        for i, a in enumerate(agents):
            before.append(snapshot(parent))
            export(parent, f'f{i}', a.target(lend=False))
            kids.append(stack.enter_context(child(t, a, i, accel, memory, smp=2)))
        alive = [exports(parent, f'f{i}')['alive'] for i in range(3)]
        if not all(alive):
            raise Failed(f'the exports were to overlap: alive {alive}')
        for k, b in zip(kids, before):
            check_went_on(b, k)
        complete(kids)
        for i in range(3):
            wait_exported(parent, f'f{i}')
        check_parent(parent)


def template(t, accel, memory):
    """The parent stays paused; its children run, also those of a later fork, which is lent too."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, f'tpl-{memory}', accel, memory=memory, mem_mib=MIB))
        parent.start_load()
        before = snapshot(parent)
        for i in range(2):
            a = stack.enter_context(Agent(t, f'tpl{i}-{memory}'))
            r = export(parent, f'f{i}', a.target(lend=True), template=True)
            if status(parent) != 'paused' or (memory == 'memfd') != (r['lent-bytes'] > 0):
                raise Failed(f'{parent.name}: {status(parent)}, {r}')
            k = stack.enter_context(child(t, a, i, accel, memory))
            check_went_on(before, k)
            complete([k])
            wait_exported(parent, f'f{i}')
        reports = parent.progress()
        if parent.progress() != reports or status(parent) != 'paused':
            raise Failed('the template runs')
        parent.qmp('cont')
        check_parent(parent)
        # it is an ordinary parent again: paused by hand, its children are paused
        parent.qmp('stop')
        a = stack.enter_context(Agent(t, f'tpl2-{memory}'))
        export(parent, 'f2', a.target(lend=False))
        k = stack.enter_context(child(t, a, 2, accel, memory))
        common.wait_migration(k, ('postcopy-active', 'completed'))
        if status(k) != 'paused' or status(parent) != 'paused':
            raise Failed(f'child of a paused parent: {status(k)}, parent {status(parent)}')
        k.qmp('cont')
        check_went_on(snapshot(parent), k)


def parent_killed(t, accel):
    """Children go on with what the holder has."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, 'orphan', accel, mem_mib=MIB))
        parent.start_load()
        a = stack.enter_context(Agent(t, 'orphan-a', faults=SLOW))
        before = snapshot(parent)
        r = export(parent, 'f', a.target(lend=False))
        kids = enter(stack, [child(t, a, i, accel) for i in range(2)])
        for k in kids:
            common.wait_migration(k, ('postcopy-active', 'completed'))
        parent.close()
        if a.find('complete'):
            raise Failed('the image was to be on its way when the parent was killed')
        for k in kids:
            check_went_on(before, k)
        complete(kids)
        wait_for('end of the holder', 10, lambda: not os.path.exists(f'/proc/{r["holder-pid"]}'))


def agent_killed_early(t, accel):
    """All memory is here, the agent dies while a child loads: it starts, and runs, all the same."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, 'early', accel, memory='memfd', mem_mib=MIB))
        parent.start_load()
        a = stack.enter_context(Agent(t, 'early-a'))
        before = snapshot(parent)
        export(parent, 'f', a.target(lend=True))
        a.wait('complete')
        k = stack.enter_context(child(t, a, 1, accel, 'memfd', faults='child.loaded=delay:1500000'))
        a.wait('child', number=1, what='attached')      # it loads now
        a.kill()
        check_went_on(before, k)
        complete([k])
        check_parent(parent)


def holder_killed(t, accel, how):
    """Children that miss memory end, and say why; the parent goes on."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, f'lost-{how}', accel, mem_mib=MIB))
        parent.start_load()
        never = ',reconnect=0'      # fork_resume.py has the rest
        a = stack.enter_context(Agent(t, f'lost-a-{how}', faults=SLOW, more=never))
        r = export(parent, 'f', a.target(lend=False))
        kids = enter(stack, [child(t, a, i, accel) for i in range(2)])
        for k in kids:
            common.wait_migration(k, 'postcopy-active')
        if how == 'kill':
            os.kill(r['holder-pid'], 9)
        elif how == 'unexport':
            parent.qmp('x-farfork-unexport', id='f')
        else:
            a.kill()
        for k in kids:
            code = k.exit_code(30)
            if code != 1 or 'its memory is lost' not in k.tail:
                raise Failed(f'{k.name}: ended with {code}: {k.tail}')
            say(f'      {k.tail.splitlines()[-1]}')
            ok, reasons = report.verdict(k.log()) if k.log().lines else (True, [])
            if not ok:
                raise Failed(f'{k.name}: {reasons}')
        wait_for('end of the holder', 10, lambda: not os.path.exists(f'/proc/{r["holder-pid"]}'))
        e = wait_for('the export to be over', 10, lambda: (exports(parent, 'f') or {'alive': False})
                     if not (exports(parent, 'f') or {}).get('alive') else None)
        if (how == 'unexport') != ('targets' not in e):
            raise Failed(f'{parent.name}: after {how}: {e}')
        if 'targets' in e:
            x = e['targets'][0]
            if x['status'] != 'failed' or not x.get('error'):
                raise Failed(f'{parent.name}: after {how}: {e}')
            say(f'      {x["error"]}')
        check_parent(parent)


def quits(guest):
    with contextlib.suppress(common.GuestError):
        guest.qmp('quit')
    if guest.exit_code(10) != 0:
        raise Failed(f'{guest.name}: ended with {guest.proc.poll()}: {guest.tail}')


def child_quits(t, accel):
    """While memory is missing: one child quits, one is killed, one goes on."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, 'quit', accel, mem_mib=MIB))
        parent.start_load()
        a = stack.enter_context(Agent(t, 'quit-a', faults=SLOW))
        before = snapshot(parent)
        export(parent, 'f', a.target(lend=False))
        kids = enter(stack, [child(t, a, i, accel) for i in range(3)])
        for k in kids:
            common.wait_migration(k, 'postcopy-active')
        quits(kids[0])
        kids[1].close()
        for i in range(2):
            a.wait('child', number=i, what='lost')
        if a.find('complete'):
            raise Failed('memory was to be missing still')
        check_went_on(before, kids[2])
        complete(kids[2:])
        wait_exported(parent, 'f')


def early_children(t, accel):
    """Children that are there before the image wait; one of them is sent away."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, 'early', accel, memory='memfd', mem_mib=MIB,
                                           extra=NIC))
        parent.start_load()
        a = stack.enter_context(Agent(t, 'early-a'))
        kids = enter(stack, [child(t, a, i, accel, 'memfd', ',net=isolated', extra=NIC)
                             for i in range(3)])
        for k in kids:
            if common.migration(k).get('status') != 'setup' or status(k) != 'inmigrate':
                raise Failed(f'{k.name}: {common.migration(k)}, {status(k)}')
            common.refuses(k, '', 'migrate', uri='tcp:127.0.0.1:1')
        quits(kids[2])
        before = snapshot(parent)
        start = time.monotonic()
        export(parent, 'f', a.target(lend=True))
        for i, k in enumerate(kids[:2]):
            a.wait('child', number=i, what='running')
        say(f'      both run {(time.monotonic() - start) * 1e3:.0f} ms after the command')
        for k in kids[:2]:
            check_went_on(before, k)
        complete(kids[:2])
        check_parent(parent)


def grandchild(t, accel):
    """A child is forked in turn: of memory that is private already."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, 'gp', accel, memory='memfd', mem_mib=MIB))
        parent.start_load()
        a = stack.enter_context(Agent(t, 'gp-a', faults=SLOW))
        export(parent, 'f', a.target(lend=False))
        k = stack.enter_context(child(t, a, 1, accel, memory='memfd'))
        common.wait_migration(k, 'postcopy-active')
        b = stack.enter_context(Agent(t, 'gp-b'))
        common.refuses(k, 'lacks memory yet', 'x-farfork-export', id='g', targets=[b.target(True)])
        complete([k])
        k.start_load(sweeps=1)
        before = snapshot(k)
        export(k, 'g', b.target(lend=True))
        kk = stack.enter_context(child(t, b, 2, accel, memory='memfd'))
        check_went_on(before, kk)
        complete([kk])
        check_parent(k)
        check_parent(parent)


def overlay(t, accel):
    """Disks are frozen in the same pause; when that fails, nothing happened."""
    def drive(name):
        disk = os.path.join(t.work, name)
        with open(disk, 'wb') as f:
            f.truncate(1 << 20)
        return ['-blockdev', f'raw,node-name=d,file.driver=file,file.filename={disk}',
                '-device', 'virtio-blk-pci,drive=d']

    def action(node, number):
        return {'type': 'blockdev-snapshot-sync',
                'data': {'node-name': node, 'snapshot-file': os.path.join(t.work, f'over{number}'),
                         'snapshot-node-name': f'o{number}', 'format': 'qcow2'}}

    def nodes(guest):
        return {n['node-name'] for n in guest.qmp('query-named-block-nodes', flat=True)}
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, 'overlay', accel, memory='memfd', mem_mib=64,
                                           extra=drive('disk.raw')))
        parent.start_load()
        a = stack.enter_context(Agent(t, 'overlay-a'))
        common.refuses(parent, 'none', 'x-farfork-export', id='f', targets=[a.target(True)],
                       actions=[action('d', 1), action('none', 2)])
        if 'o1' in nodes(parent) or exports(parent, 'f'):
            raise Failed(f'after a failed action: {nodes(parent)}')
        check_parent(parent)
        before = snapshot(parent)
        export(parent, 'f', a.target(lend=True), actions=[action('d', 3)])
        if 'o3' not in nodes(parent):
            raise Failed(f'no overlay: {nodes(parent)}')
        k = stack.enter_context(child(t, a, 1, accel, 'memfd', mem_mib=64,
                                      extra=drive('child.raw')))
        check_went_on(before, k)
        complete([k])
        check_parent(parent)


def refused(t, accel):
    """The parent runs on, and says why."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, 'refused', accel, memory='memfd', mem_mib=MIB))
        parent.start_load()
        good = {'uri': f'rdma-postcopy:127.0.0.1:{common.free_port()},link=tcp'}

        def no(texts, targets=(good,), **more):
            more.setdefault('id', 'x')
            say('      ' + common.refuses(parent, texts, 'x-farfork-export', targets=list(targets),
                                          **more))
            if parent.qmp('query-x-farfork-exports') or status(parent) != 'running':
                raise Failed(f'after a refusal: {status(parent)}')
        no('targets', targets=[])
        no('id', id='')
        no('rdma-postcopy:HOST:PORT', targets=[{'uri': 'tcp:127.0.0.1:1'}])
        no('port', targets=[{'uri': 'rdma-postcopy:127.0.0.1:x'}])
        # the actions fail: nothing is forked
        no('', actions=[{'type': 'blockdev-snapshot',
                         'data': {'node': 'none', 'overlay': 'none2'}}])
        parent.qmp('migrate-set-capabilities',
                   capabilities=[{'capability': 'xbzrle', 'state': True}])
        no('xbzrle')
        parent.qmp('migrate-set-capabilities',
                   capabilities=[{'capability': 'xbzrle', 'state': False}])
        common.refuses(parent, 'no export', 'x-farfork-unexport', id='nobody')
        check_parent(parent)
        # a target that is not there: the export is made, and says so
        export(parent, 'y', good)
        e = wait_for('the end of the holder', 30, lambda: not exports(parent, 'y')['alive']
                     and exports(parent, 'y'))
        if e['targets'][0]['status'] != 'failed' or 'connect' not in e['targets'][0]['error']:
            raise Failed(f'{e}')
        say('      ' + e['targets'][0]['error'])
        parent.qmp('x-farfork-unexport', id='y')
        # it can be moved as before
        dst = stack.enter_context(Micro(t, 'refused-b', accel, memory='memfd', mem_mib=MIB,
                                        incoming=True))
        common.check_move(common.move(parent, dst))
        common.check_ledger(parent, dst)
        common.refuses(parent, 'took this guest away', 'x-farfork-export', id='z', targets=[good])
    named = os.path.join(t.work, 'named.ram')
    with Micro(t, 'named', accel, mem_mib=64,
               extra=['-object', f'memory-backend-file,id=m,size=64M,share=on,mem-path={named}',
                      '-machine', 'memory-backend=m']) as parent:
        parent.start_load()
        say('      ' + common.refuses(parent, 'can map its file', 'x-farfork-export', id='x',
                                      targets=[good]))
        check_parent(parent)


def wrong_child(t, accel):
    """A child of another size is refused, and the others go on."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, 'wrong', accel, mem_mib=MIB))
        parent.start_load()
        a = stack.enter_context(Agent(t, 'wrong-a'))
        bad = stack.enter_context(child(t, a, 7, accel, mem_mib=MIB * 2))
        before = snapshot(parent)
        export(parent, 'f', a.target(lend=False))
        good = stack.enter_context(child(t, a, 8, accel))
        if bad.exit_code(30) != 1 or 'nothing ran here' not in bad.tail:
            raise Failed(f'{bad.name}: ended with {bad.proc.poll()}: {bad.tail}')
        say(f'      {bad.tail.splitlines()[-1]}')
        check_went_on(before, good)
        complete([good])


def run(t):
    best = t.best_accel()
    for accel in t.accels() if common.FULL else [best]:
        with t.case(f'1 child, lent memfd, {accel}'):
            family(t, accel, 'memfd', 1, lend=True)
        with t.case(f'2 children, anon by tcp, {accel}'):
            family(t, accel, 'anon', 2, lend=False)
    if common.FULL:
        with t.case(f'8 children, lent memfd, {best}'):
            family(t, best, 'memfd', 8, lend=True)
        with t.case(f'template, memfd, {best}'):
            template(t, best, 'memfd')
        with t.case(f'8 children, memfd by tcp, two agents, {best}'):
            family(t, best, 'memfd', 8, lend=False, n_agents=2)
        with t.case(f'three forks at once, anon, {best}'):
            forked_again(t, best, 'anon')
        with t.case(f'unexport, {best}'):
            holder_killed(t, best, 'unexport')
    cases = {
        '2 children, hugetlb, lent': lambda: family(t, best, 'hugetlb', 2, lend=True),
        'children before the image': lambda: early_children(t, best),
        'the parent is killed': lambda: parent_killed(t, best),
        'the agent is killed while a child loads': lambda: agent_killed_early(t, best),
        'the holder is killed': lambda: holder_killed(t, best, 'kill'),
        'the agent is killed': lambda: holder_killed(t, best, 'agent'),
        'refused': lambda: refused(t, best),
        'a child that differs': lambda: wrong_child(t, best),
    }
    if common.FULL:     # by vmclone, of the distribution's QEMU: vmclone.py, overlays.py, clone_states.py
        cases |= {
            'three forks at once, memfd': lambda: forked_again(t, best, 'memfd'),
            'template, anon': lambda: template(t, best, 'anon'),
            'children that quit': lambda: child_quits(t, best),
            'a child of a child': lambda: grandchild(t, best),
            'overlays': lambda: overlay(t, best),
        }
    for name, case in cases.items():
        with t.case(f'{name}, {best}'):
            case()


if __name__ == '__main__':
    common.main(run, 900)
