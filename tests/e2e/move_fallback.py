#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""move_fallback.py - farfork move --fallback go: taken back, or its disks are committed

The QEMU there is killed: the guest goes on here as it was, and what it wrote there is gone. It is
not: what it wrote there is in its own images. farfork move is killed, or does not know how it ends:
what docs/disks.md says is to be done by hand. take_back.py has the QEMUs alone. Limit: 240 s.
"""
import contextlib
import json
import os
import shlex
import signal
import subprocess
import tempfile

import abreast
import common
from common import Failed, check_ledger, status, wait_for
from farfork_move import (Move, There, check_here, check_left_here, folder_of, listed, lose_agent,
                          pid_there, there, wait_gone, wait_source)
from forked import (FAKE_SOURCE, SLOW, FakeParent, Parent, alive, ask, check_nothing_left, fake_qemu,
                    kill, run_vmclone)
from resume import pause
from shut_down import ENDS, POWER_OFF
from take_back import AT_ONCE, MIB, Fence, io, is_nowhere_yet

LEASE_S = 4
KINDS = ('qcow2', 'raw')
TAKE_BACK = 'x-rdma-postcopy-take-back'
SECOND = '-d /machine/peripheral/v1/virtio-backend'


class Disk:
    """An image, and a folder for what is made on top of it."""

    def __init__(self, t, kind):
        self.folder = tempfile.mkdtemp(prefix='disk-', dir=t.work)
        self.image = os.path.join(t.work, f'{os.path.basename(self.folder)}.{kind}')
        subprocess.run(['qemu-img', 'create', '-q', '-f', kind, self.image, '8M'], check=True,
                       timeout=20)
        self.options = ('-drive', f'file={self.image},format={kind},if=none,id=d0', '-device',
                        'virtio-blk-pci,drive=d0')
        self.args = ('--overlays', self.folder)

    def add_blockdev(self, t):
        """A second disk, as libvirt gives it"""
        image = os.path.join(t.work, f'{os.path.basename(self.folder)}-2.qcow2')
        subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', image, '8M'], check=True,
                       timeout=20)
        self.options += ('-blockdev', f'driver=qcow2,node-name=n1,file.driver=file,'
                         f'file.filename={image}', '-device', 'virtio-blk-pci,drive=n1,id=v1')
        return image

    def has_overlays(self):
        return bool(os.listdir(self.folder))

    def overlay(self):
        name, = os.listdir(self.folder)
        return os.path.join(self.folder, name)


def back(fence):
    return ('--fallback', 'go', '--fence', fence.program, '--record', fence.record, '--lease',
            str(LEASE_S))


def killed(t, accel, kind):
    disk, fence = Disk(t, kind), Fence(t, 'killed-' + kind)
    with Parent(t, accel, extra=disk.options, mem_mib=MIB) as a:
        a.start_load()
        io(a, 'write -P 7 0 64k')
        with Move(t, a, *back(fence), *disk.args, faults='dest.running=kill') as m:
            m.end(1, 'here', 'taken back')
            check_here(m, a)
        if disk.has_overlays() or not fence.was_run():
            raise Failed(f'{os.listdir(disk.folder)}, fence {fence.was_run()}')
        io(a, 'read -P 7 0 64k', 'write -P 9 1M 64k', 'read -P 9 1M 64k')


def complete(t, accel, kind):
    """Its disks are where they were, with what it wrote on the way."""
    disk, fence = Disk(t, kind), Fence(t, 'complete-' + kind)
    with Parent(t, accel, extra=disk.options, mem_mib=MIB) as a:
        a.start_load()
        io(a, 'write -P 7 0 64k', 'write -P 7 1M 64k')
        with Move(t, a, *back(fence), *disk.args, faults=SLOW) as m:
            wait_for('an overlay', 40, disk.has_overlays)
            m.end(0, 'there')
            check_left_here(t, a, m)
            if m.result['notes'] or disk.has_overlays() or fence.was_run():
                raise Failed(f'{m.result["notes"]}, {os.listdir(disk.folder)}')
            with there(t, 'b-' + kind, m.result) as b:
                images = [e['inserted']['image']['filename'] for e in b.qmp('query-block')]
                if images != [disk.image]:
                    raise Failed(f'its disk is in {images} there')
                io(b, 'read -P 7 0 64k', 'write -P 8 0 64k', 'read -P 8 0 64k')
                check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)


def two_disks(t, accel):
    disk, fence = Disk(t, 'raw'), Fence(t, 'two')
    second = disk.add_blockdev(t)
    with Parent(t, accel, extra=disk.options, mem_mib=MIB) as a:
        a.start_load()
        io(a, 'write -P 7 0 64k')
        io(a, 'write -P 6 0 64k', disk=SECOND)
        with Move(t, a, *back(fence), *disk.args, faults=SLOW) as m:
            m.end(0, 'there')
            check_left_here(t, a, m)
            if m.result['notes'] or disk.has_overlays():
                raise Failed(f'{m.result["notes"]}, {os.listdir(disk.folder)}')
            with there(t, 'b-two', m.result) as b:
                images = [e['inserted']['image']['filename'] for e in b.qmp('query-block')]
                if images != [disk.image, second]:
                    raise Failed(f'its disks are in {images} there')
                io(b, 'read -P 7 0 64k', 'write -P 8 0 64k')
                io(b, 'read -P 6 0 64k', 'write -P 8 0 64k', disk=SECOND)
                check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)


def take_back_by_hand(a):
    uri = common.refuses(a, 'was sent to', TAKE_BACK, uri='rdma-postcopy:127.0.0.1:1')
    a.qmp(TAKE_BACK, uri=uri.split('was sent to ')[1].split(',')[0])
    wait_for('a guest that runs', 40, lambda: status(a) == 'running')


def commit_by_hand(b, overlay, image):
    """As docs/disks.md says"""
    node, = [e['inserted']['node-name'] for e in b.qmp('query-block')
             if e['inserted']['image']['filename'] == overlay]
    base, = [n['node-name'] for n in b.qmp('query-named-block-nodes', flat=True)
             if n['file'] == image and n['drv'] == 'qcow2']
    b.qmp('block-commit', **{'job-id': 'c', 'device': node, 'base-node': base})
    wait_for('a job that is ready', 20, lambda: b.qmp('query-block-jobs')[0]['ready'])
    b.qmp('job-complete', id='c')
    wait_for('its end', 20, lambda: not b.qmp('query-block-jobs'))
    os.unlink(overlay)


def mover_killed(t, accel, lost):
    """After the switch. What the guest wrote is in its overlay, and stays there."""
    disk, fence = Disk(t, 'qcow2'), Fence(t, f'mover-{lost}')
    with Parent(t, accel, extra=disk.options, mem_mib=MIB) as a:
        a.start_load()
        io(a, 'write -P 7 0 64k')
        with Move(t, a, *back(fence), *disk.args, faults=SLOW) as m:
            wait_source(a, 'postcopy-active')
            m.proc.kill()
            m.proc.communicate(timeout=30)
            overlay = disk.overlay()
            if lost:
                os.kill(pid_there(m), signal.SIGKILL)
                common.wait_migration(a, 'postcopy-paused')
                take_back_by_hand(a)
                os.unlink(overlay)
                io(a, 'read -P 7 0 64k', 'write -P 9 1M 64k')
                check_ledger(a, sweeps=1)
            else:
                common.wait_migration(a, 'completed')
                with There(t, 'b-mover', folder_of(m), pid_there(m)) as b:
                    common.wait_migration(b, 'completed')
                    io(b, 'read -P 7 0 64k', 'write -P 8 0 64k')
                    commit_by_hand(b, overlay, disk.image)
                    io(b, 'read -P 8 0 64k', 'write -P 8 64k 64k', 'flush')
                    check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)
        if not lost:
            a.close()
            out = subprocess.run(['qemu-io', '-r', '-c', 'read -P 8 0 128k', disk.image],
                                 check=True, timeout=20, capture_output=True, text=True).stdout
            if 'failed' in out:
                raise Failed(f'{disk.image}: {out}')


def fence_fails(t, accel):
    fence = Fence(t, 'fails')
    fence.ends_with(3)
    with Parent(t, accel, mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a, *back(fence), faults='dest.running=kill') as m:
            m.end(3, 'unclear', 'runs nowhere')
            if 'it ended with 3' not in m.result['error']:
                raise Failed(m.result['error'])
            is_nowhere_yet(a)
            fence.ends_with(0)
            take_back_by_hand(a)
            check_ledger(a, sweeps=1)


# --- what a source says that has lost its link; no QEMU ---

def says(source, status, why='', take_back=None):
    """From now on, and it has been read."""
    source.replies['query-migrate'] = {'return': {
        'status': status, 'error-desc': why,
        'x-rdma-postcopy': {'take-back': take_back} if take_back else {}}}
    seen = source.asked.count('query-migrate')
    wait_for(status, 20, lambda: source.asked.count('query-migrate') > seen + 1)


@contextlib.contextmanager
def paused(t, name, ends=True, takes=True):
    """(source, move): the QEMU there has ended, or its host is not heard"""
    fence, ok = Fence(t, name), {'return': {}}
    os.environ['FAKE_QEMU'] = json.dumps({
        'query-migrate': {'status': 'setup', 'socket-address': [{'port': '1'}]},
        'query-status': {'status': 'inmigrate', 'running': False}})
    replies = {**FAKE_SOURCE, 'query-migrate': ok, 'migrate': ok}
    with FakeParent(t, {**replies, TAKE_BACK: ok} if takes else replies) as p, \
            Move(t, p, '--qemu', fake_qemu(t), *back(fence), '--lease', '1') as m:
        wait_for('migrate', 20, lambda: 'migrate' in p.asked)
        says(p, 'postcopy-paused', 'no link', 'waiting')
        if ends:
            os.kill(pid_there(m), signal.SIGKILL)
        else:
            lose_agent(m)
        wait_for(TAKE_BACK, 20, lambda: TAKE_BACK in p.asked)
        yield p, m
        kill(m.base, m.name)
        check_nothing_left(m)


def source_refuses(t):
    """Only a fence that was tried means that the guest runs nowhere. What the reason says decides nothing."""
    for name, ends, state, why, exits in (
            ('pages', False, 'failed', 'take back: fence=/f', (3, 'unclear', 'the guest may run on h1')),
            ('space', True, 'not-known-here', 'taking the guest back', (3, 'unclear', 'did not take the guest back')),
            ('fence', False, 'fence-failed', 'the guest was on its way back', (3, 'unclear', 'runs nowhere')),
            ('given', True, 'given-up', 'no more', (3, 'lost', 'and the guest with it'))):
        with paused(t, name, ends) as (p, m):
            says(p, 'postcopy-paused', why, 'waiting')
            p.replies['query-migrate']['return']['x-rdma-postcopy'] = {'take-back': state}
            m.end(*exits)
            error = m.result['error']
            if why not in error or ('nowhere' in error) != (name == 'fence'):
                raise Failed(f'{why}: {error}')
    with paused(t, 'told', takes=False) as (p, m):
        m.end(3, 'unclear', 'may get the guest back')
        if p.asked.count(TAKE_BACK) != 1:
            raise Failed(f'it was told so {p.asked.count(TAKE_BACK)} times')


def resumed_between(t):
    """What was asked during one pause says nothing in the next."""
    with paused(t, 'between') as (p, m):
        says(p, 'postcopy-active')
        says(p, 'postcopy-paused', 'no link', 'waiting')
        wait_for('to be asked again', 20, lambda: p.asked.count(TAKE_BACK) == 2)
        p.replies['query-migrate']['return'].update({
            'error-desc': 'source: take back: fence=/f: it ended with 3',
            'x-rdma-postcopy': {'take-back': 'fence-failed'}})
        m.end(3, 'unclear', 'runs nowhere')


def left_while_taken_back(t):
    """By a second signal; the guest is not said to run there."""
    with paused(t, 'left', ends=False) as (p, m):
        says(p, 'postcopy-active')
        says(p, 'postcopy-paused', 'no link', 'waiting')
        wait_for('to be asked again', 20, lambda: p.asked.count(TAKE_BACK) == 2)
        m.proc.send_signal(signal.SIGINT)
        line = ''
        while 'interrupt again' not in line:
            line = m.proc.stderr.readline()
            if not line:
                raise Failed('nothing is said of the first signal')
        if 'being taken back' not in line:
            raise Failed(line)
        m.proc.send_signal(signal.SIGINT)
        m.end(3, 'unclear', 'left: the guest is being taken back from h1')


# --- it ends before it knows ---

def record_is_there(t, accel):
    """The QEMU here cannot write it, and has let go of nothing: that is no fence that failed."""
    fence = Fence(t, 'record')
    with Parent(t, accel, mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a, *back(fence), faults=SLOW) as m:
            wait_gone(a)
            common.write_file(fence.record, '')
            os.kill(pid_there(m), signal.SIGKILL)
            m.end(3, 'unclear', 'did not take the guest back')
            if 'record=' not in m.result['error'] or 'nowhere' in m.result['error'] or \
                    fence.was_run():
                raise Failed(f'{m.result["error"]}, fence {fence.was_run()}')
            is_nowhere_yet(a)
            os.unlink(fence.record)
            take_back_by_hand(a)
            check_ledger(a, sweeps=1)


def names_overlay(m, disk):
    overlay = disk.overlay()
    if not [n for n in m.result['notes'] if n.startswith(overlay) and 'keep it' in n]:
        raise Failed(f'no note names {overlay}: {m.result["notes"]}')
    return overlay


def release_as_told(m):
    """The guest there goes on, by what the error says."""
    path = m.result['error'].split('x-rdma-postcopy-release at ')[1].split(' there')[0]
    wait_for('a guest that is let go', 30, lambda: 'return' in ask(path, 'x-rdma-postcopy-release', whole=True))


def source_dies(t, accel):
    """The guest there stands still when its lease ends: not as without --fallback go."""
    disk, fence = Disk(t, 'raw'), Fence(t, 'source')
    with Parent(t, accel, extra=disk.options, mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a, *back(fence), *disk.args, faults=SLOW) as m:
            wait_gone(a)
            a.close()
            m.end(3, 'broken', 'x-rdma-postcopy-release')
            if fence.record not in m.result['error'] or not alive(m.result['pid']):
                raise Failed(f'{m.result["error"]}')
            release_as_told(m)
            names_overlay(m, disk)
            kill(m.base, m.name)
            check_nothing_left(m)


def stopped_there(t, accel):
    """By somebody: all of it is there, and in its overlay."""
    disk, fence = Disk(t, 'qcow2'), Fence(t, 'stopped')
    with Parent(t, accel, extra=disk.options, mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a, *back(fence), *disk.args, faults=SLOW) as m:
            wait_source(a, 'postcopy-active')
            with There(t, 'b-stopped', folder_of(m), pid_there(m)) as b:
                b.qmp('stop')
                m.end(3, 'unclear', 'is paused there')
                overlay = names_overlay(m, disk)
                io(b, 'write -P 8 0 64k')
                b.qmp('cont')
                commit_by_hand(b, overlay, disk.image)
                io(b, 'read -P 8 0 64k')
                check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)


def shut_down_there(t, accel, *args):
    """It has ended as its guest wanted: it is not to run again, and what it wrote is kept."""
    disk, fence = Disk(t, 'qcow2'), Fence(t, 'shut-down' + ''.join(args[:1]))
    with Parent(t, accel, extra=(*disk.options, *POWER_OFF), mem_mib=MIB) as a:
        a.start_load()
        io(a, 'write -P 7 0 64k')
        with Move(t, a, *back(fence), *disk.args, *args, '--options', 'prefill=off') as m:
            wait_source(a, 'postcopy-active')
            with There(t, 'b-down' + ''.join(args[:1]), folder_of(m), pid_there(m)) as b:
                wait_for('a guest that runs', 20, lambda: status(b) == 'running')
                io(b, 'write -P 8 0 64k', 'flush')
                ENDS['the guest'](b)
                m.end(3, 'ended', 'shut itself down on')
            if fence.was_run() or os.path.exists(fence.record):
                raise Failed('it is being taken back')
            is_nowhere_yet(a)
            overlay = disk.overlay()
            if not [n for n in m.result['notes'] if n.startswith(overlay) and 'commit' in n]:
                raise Failed(f'no note names {overlay}: {m.result["notes"]}')
            check_nothing_left(m)
        a.close()
        subprocess.run(['qemu-img', 'commit', '-q', overlay], check=True, timeout=20)
        out = subprocess.run(['qemu-io', '-r', '-c', 'read -P 8 0 64k', disk.image], check=True,
                             timeout=20, capture_output=True, text=True).stdout
        if 'failed' in out:
            raise Failed(f'{disk.image}: {out}')


def wrapper(t):
    """A program that is QEMU in a moment"""
    path = os.path.join(t.work, 'wrapper')
    common.write_file(path, f'#!/bin/sh\nexec {shlex.quote(os.path.abspath(common.QEMU))} "$@"\n')
    os.chmod(path, 0o700)
    return path


def shut_down_mover_killed(t, accel):
    """Nobody is left to hear it; the list says so, to whoever thinks of taking it back."""
    fence = Fence(t, 'down-alone')
    with Parent(t, accel, extra=POWER_OFF, mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a, *back(fence), '--options', 'prefill=off') as m:
            wait_source(a, 'postcopy-active')
            with There(t, 'b-alone', folder_of(m), pid_there(m)) as b:
                wait_for('a guest that runs', 20, lambda: status(b) == 'running')
                m.proc.kill()
                m.proc.communicate(timeout=30)
                ENDS['the guest'](b)
                wait_for('the list', 20, lambda: 'shut-down' in
                         run_vmclone('--list', '--rundir', m.base).stdout)
            kill(m.base, m.name)
            check_nothing_left(m)


def shut_down_agent_lost(t, accel, *args, extra=()):
    """Its host is silent for as long as a lease; its list is looked at before the guest is taken."""
    fence = Fence(t, 'down-lost' + ''.join((*args[:1], *extra)))
    with Parent(t, accel, extra=(*POWER_OFF, *extra), mem_mib=MIB) as a:
        a.start_load()
        with Move(t, a, *back(fence), *args, '--options', 'prefill=off') as m:
            wait_source(a, 'postcopy-active')
            with There(t, 'b-lost' + ''.join((*args[:1], *extra)), folder_of(m), pid_there(m)) as b:
                wait_for('a guest that runs', 20, lambda: status(b) == 'running')
                lose_agent(m)
                ENDS['the guest'](b)
                if extra:       # it stays, and its link has to break, too
                    pause(a)
                m.end(3, 'ended', 'shut itself down on')
                if extra and status(b) != 'shutdown':
                    raise Failed(f'{b.name}: it is {status(b)}')
            if fence.was_run():
                raise Failed('it is being taken back')
            kill(m.base, m.name)
            check_nothing_left(m)


def listed_while_it_lives(t):
    """An agent alone; no QEMU. Once it was told that all is there, it says no more of that."""
    fake, base = fake_qemu(t), os.path.join(t.work, 'run')
    down = os.path.join(t.work, 'fake.shut-down')
    common.write_file(down, '')
    with subprocess.Popen([common.FARFORK, 'agent', '--id', 'm', '--node', 'n', '--rundir', base],
                          stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as agent:
        t.at_end.callback(kill, base, 'm')

        def command(o):
            agent.stdin.write(json.dumps(o) + '\n')
            agent.stdin.flush()

        def states():
            return [k['state'] for f in listed(base) for k in f['children']]

        for n, says in enumerate(('postcopy-active', 'completed'), 1):
            path = f'{t.work}/{n}.qmp'
            command({'spawn': {'number': n, 'log': path + '.log', 'qmp': path, 'argv': [
                'env', 'FAKE_QEMU=' + json.dumps({'query-migrate': {'status': says}}), fake,
                f'unix:{path}'], 'shut_down_file': down}})
            wait_for(f'child {n}', 10, lambda path=path: os.path.exists(path))
        command({'keep': True})
        wait_for('what holds', 10, lambda: states() == ['shut-down', 'attached'])
        command({'detach': True})
        wait_for('what holds then', 10, lambda: states() == ['complete', 'complete'])
        for pid in [k['pid'] for k in listed(base)[0]['children']]:
            os.kill(pid, signal.SIGKILL)
        wait_for('an empty list', 10, lambda: not listed(base))


def refused(t, accel):
    """Before anything is started"""
    disk, fence = Disk(t, 'raw'), Fence(t, 'refused')
    with Parent(t, accel, extra=disk.options, mem_mib=MIB) as a:
        a.start_load()
        for code, args in ((2, ('--fallback', 'go')), (2, ('--fence', '/bin/true')),
                           (2, ('--fallback', 'maybe'))):
            with Move(t, a, *args) as m:
                m.proc.communicate(timeout=30)
                if m.proc.returncode != code:
                    raise Failed(f'{args}: exit code {m.proc.returncode}')
        with Move(t, a, *back(fence)) as m:
            m.end(1, 'here', '--overlays')
            check_here(m, a)


def cases(accel):
    """(name, function of a Test)"""
    yield 'the source refuses', source_refuses
    yield 'resumed between two pauses', resumed_between
    yield 'left while it is taken back', left_while_taken_back
    for kind in KINDS:
        yield f'killed, {kind}, {accel}', lambda t, k=kind: killed(t, accel, k)
        yield f'complete, {kind}, {accel}', lambda t, k=kind: complete(t, accel, k)
    yield f'two disks, {accel}', lambda t: two_disks(t, accel)
    for lost in (True, False):
        yield (f'farfork move is killed, then {"lost" if lost else "complete"}, {accel}',
               lambda t, x=lost: mover_killed(t, accel, x))
    for name, case in (('the fence fails', fence_fails), ('there is a record already', record_is_there),
                       ('the source dies', source_dies), ('stopped there', stopped_there),
                       ('shut down there', shut_down_there),
                       ('shut down there, farfork move killed', shut_down_mover_killed),
                       ('shut down there, its agent lost', shut_down_agent_lost), ('refused', refused)):
        yield f'{name}, {accel}', lambda t, c=case: c(t, accel)
    yield (f'shut down there, behind --qemu, {accel}',
           lambda t: shut_down_there(t, accel, '--qemu', wrapper(t)))
    yield (f'shut down there, behind --qemu, its agent lost, {accel}',
           lambda t: shut_down_agent_lost(t, accel, '--qemu', wrapper(t)))
    yield (f'shut down there, and its QEMU stays, its agent lost, {accel}',
           lambda t: shut_down_agent_lost(t, accel, extra=['-no-shutdown']))
    yield 'an agent alone, whose guest has shut down', listed_while_it_lives


def run(t):
    abreast.run(t, list(cases(t.best_accel())), AT_ONCE)


if __name__ == '__main__':
    common.main(run, 240)
