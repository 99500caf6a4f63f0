#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""take_back.py - fallback=go: a destination that is lost, and a source that runs its guest again

The QEMU there is killed at each step after GO, hangs, or cannot be reached. The guest goes on at
the source as it was at GO, memory and disk, once nothing can run it there: never two runners.
Without a fence it goes on nowhere. Limit: 300 s.
"""
import concurrent.futures
import hashlib
import os
import signal
import subprocess

import abreast
import common
from break_after_go import silent
from common import (Failed, GuestError, Micro, check_ledger, check_move, refuses, say, status,
                    wait_for)
from memory import Memory
from resume import MIB, SLOW, both_paused, is_resumed, pause, present, resume, state
from road import Road
from sandbox import AS_LIBVIRT

LEASE_S = 6         # after two thirds the destination stops, after all of it the kernel ends it
AT_ONCE = 2         # a third of a lease is all the time that a destination has to stop
LINUX_KILLS = -9
MAY_FENCE = ['-sandbox', 'on,obsolete=deny,resourcecontrol=deny,spawn=allow']
NEVER = 'dest.prefill=delay:3000000'    # memory comes by faults alone

STEPS = (
    ('GO read, may not run yet', 'dest.go=kill'),
    ('may run', 'dest.run=kill'),
    ('it runs', 'dest.running=kill'),
    ('it asks for its second lease', NEVER + ',dest.lease=kill@2'),
    ('memory follows', 'dest.prefill=kill@3'),
    ('a page is installed', 'dest.install=kill@20'),
)


class Fence:
    """What a source with fallback=go needs: a program that writes down what it is told."""

    def __init__(self, t, name):
        folder = os.path.join(t.work, name)
        os.mkdir(folder)
        self.record, self.mark, self.told, self.code, self.hold, self.program = (
            os.path.join(folder, n) for n in ('record', 'mark', 'told', 'code', 'hold', 'fence'))
        self.ends_with(0)
        common.write_file(self.program, f'#!/bin/sh\ntest -e {self.record} || exit 9\n'
                          f'echo $FARFORK_DESTINATION $FARFORK_SESSION >>{self.told}\n'
                          f'while test -e {self.hold}; do sleep 0.05; done\n'
                          f'exit $(cat {self.code})\n')
        os.chmod(self.program, 0o700)

    def ends_with(self, code):
        common.write_file(self.code, f'{code}\n')

    def options(self, lease_s=LEASE_S):
        return f',fallback=go,lease={lease_s},fence={self.program},record={self.record}'

    def was_run(self):
        return os.path.exists(self.told)


def pair(t, name, accel, faults=None, source_faults=None, extra=(), source_extra=()):
    return (Micro(t, name + '-a', accel, mem_mib=MIB, faults=source_faults, extra=source_extra),
            Micro(t, name + '-b', accel, mem_mib=MIB, incoming=True, faults=faults, extra=extra),
            Fence(t, name))


def send(src, dst, fence, road=None, lease_s=LEASE_S, more='', there=''):
    """`migrate` to the destination, which removes a file when it may run the guest. The URI."""
    uri = common.listen(dst, options=f',until-go={fence.mark}{there}')
    if road:
        road.to = int(uri.split(',')[0].rsplit(':', 1)[1])
        uri = f'rdma-postcopy:{common.place.host}:{road.port}'
    src.qmp('migrate', uri=uri + fence.options(lease_s) + more)
    return uri


def begin(src, dst, fence, road=None, lease_s=LEASE_S):
    """... until the guest runs there, and little of its memory is there."""
    uri = send(src, dst, fence, road, lease_s)
    for g in (dst, src):
        common.wait_migration(g, 'postcopy-active')
    present(dst, 4)
    return uri


def take_back(src, uri):
    state(src, 'postcopy-paused')
    common.check_given_away(src)
    src.qmp('x-rdma-postcopy-take-back', uri=uri.split(',')[0])


def says(src, want):
    """query-migrate, which says so of x-rdma-postcopy-take-back"""
    return wait_for(f'take-back: {want}', 40, lambda: (
        m := common.migration(src))['x-rdma-postcopy'].get('take-back') == want and m)


def is_taken_back(src, fence, want='running'):
    info = state(src, 'failed', 40)
    if 'taken back' not in info['error-desc']:
        raise Failed(f'{src.name}: {info["error-desc"]}')
    say(f'      {info["error-desc"]}')
    wait_for(f'a guest that is {want}', 20, lambda: status(src) == want)
    with open(fence.record, encoding='ascii') as f, open(fence.told, encoding='ascii') as g:
        record, told = f.read(), g.read().split()
    if not record.startswith('taken-back\n') or f'session={told[1]}\n' not in record or \
            f'destination={told[0]}\n' not in record:
        raise Failed(f'the fence was told {told}, the record says {record}')


def is_nowhere_yet(src):
    if src.qmp('query-status')['running']:
        raise Failed(f'{src.name}: it runs while the destination may')


def stops(dst, src):
    """The destination does not hear its source: the guest stands still, before that may run it."""
    wait_for(f'{dst.name}: a guest that stands still', 30, lambda: status(dst) == 'paused')
    is_nowhere_yet(src)
    refuses(dst, 'may take it back', 'cont')


# --- it dies ---

def killed(t, accel, faults):
    src, dst, fence = pair(t, f'kill-{accel}-{faults.split(",")[-1].split("=")[0]}', accel, faults)
    with src, dst:
        src.start_load()
        uri = send(src, dst, fence)
        if dst.exit_code(30) != LINUX_KILLS:
            raise Failed(f'{dst.name}: {faults} did not kill it: {dst.proc.returncode}')
        take_back(src, uri)
        is_taken_back(src, fence)
        check_ledger(src)
        refuses(src, 'waits here', 'x-rdma-postcopy-take-back', uri=uri)
        again(t, src, fence, accel)


def again(t, src, fence, accel):
    """It can be moved as ever; not before the record has gone."""
    with Micro(t, src.name + 'c', accel, mem_mib=MIB, incoming=True) as dst:
        uri = common.listen(dst)
        src.qmp('migrate', uri=uri + fence.options())
        if 'remove it' not in state(src, 'failed')['error-desc']:
            raise Failed(f'{src.name}: {common.migration(src)}')
        common.check_still_running(src)
        os.unlink(fence.record)
        src.qmp('migrate', uri=uri + fence.options())
        check_move(common.Moved(src, dst, 0))
        check_ledger(src, dst)


def digest(guest):
    """Of all guest memory"""
    m, h = Memory(guest), hashlib.sha256()
    try:
        for name in sorted(m.blocks):
            at, size, _ = m.blocks[name]
            for i in range(0, size, 4 << 20):
                h.update(m.read(at + i, min(4 << 20, size - i)))
    finally:
        m.close()
    return h.hexdigest()


def bytes_as_of_go(t, accel):
    """A guest that is paused when it leaves runs there, is lost, and is paused here as it was."""
    src, dst, fence = pair(t, 'bytes', accel, NEVER)
    with src, dst:
        src.start_load()
        src.qmp('stop')
        uri = send(src, dst, fence)
        common.wait_migration(dst, 'postcopy-active')
        wait_for('a guest that is paused there', 10, lambda: status(dst) == 'paused')
        before = digest(src)
        dst.qmp('cont')
        dst.wait_progress(2, 60)
        dst.proc.kill()
        take_back(src, uri)
        is_taken_back(src, fence, 'paused')
        if digest(src) != before:
            raise Failed(f'{src.name}: its memory has changed since GO')
        src.qmp('cont')
        check_ledger(src)


def disks(t):
    """(of the source, of the destination): an image, and an overlay on it"""
    image, overlay = (os.path.join(t.work, n) for n in ('base.qcow2', 'over.qcow2'))
    for argv in (['-f', 'qcow2', image, '8M'],
                 ['-f', 'qcow2', '-b', image, '-F', 'qcow2', overlay]):
        subprocess.run(['qemu-img', 'create', '-q', *argv], check=True, timeout=20)
    return tuple(('-drive', f'file={f},format=qcow2,if=none,id=d0', '-device',
                  'virtio-blk-pci,drive=d0') for f in (image, overlay))


def io(guest, *commands, disk='d0'):
    for c in commands:
        out = common.hmp(guest, f'qemu-io {disk} "{c}"')
        if 'failed' in out or 'rror' in out:
            raise Failed(f'{guest.name}: {c}: {out}')


def disk(t, accel, lost):
    """What is written there is dropped with its overlay, or committed when the move is complete."""
    mine, theirs = disks(t)
    src, dst, fence = pair(t, f'disk-{lost}', accel, NEVER if lost else None, source_extra=mine,
                           extra=theirs)
    with src, dst:
        src.start_load()
        io(src, 'write -P 7 0 64k')
        uri = send(src, dst, fence)
        wait_for('a guest that runs', 20, lambda: status(dst) == 'running')
        io(dst, 'read -P 7 0 64k', 'write -P 8 0 64k', 'read -P 8 0 64k')
        if lost:
            pause(src)              # it lives, and is not reached: it gives its disk up
            take_back(src, uri)
            is_taken_back(src, fence)
            io(src, 'read -P 7 0 64k', 'write -P 9 1M 64k', 'read -P 9 1M 64k')
            check_ledger(src)
            return
        check_move(common.Moved(src, dst, 0))
        out = common.hmp(dst, 'commit d0')
        if out.strip():
            raise Failed(f'{dst.name}: commit: {out}')
        io(dst, 'read -P 8 0 64k')
        refuses(src, 'waits here', 'x-rdma-postcopy-take-back', uri=uri)
        check_ledger(src, dst)
        if fence.was_run():
            raise Failed('the fence was run')


# --- it lives, and is not reached ---

def unreached(t, accel):
    """Nobody hears it, and the fence does nothing: its lease alone keeps two from running."""
    src, dst, fence = pair(t, 'unreached', accel, SLOW)
    with src, dst, Road(0) as road:
        src.start_load()
        uri = begin(src, dst, fence, road)
        road.close()
        both_paused(src, dst)
        take_back(src, uri)
        stops(dst, src)
        is_taken_back(src, fence)
        silent(dst, 'its lease has ended')
        had = dst.progress()
        check_ledger(src)
        refuses(dst, 'may take it back', 'cont')
        if dst.progress() != had or status(dst) != 'paused':
            raise Failed(f'{dst.name}: it is {status(dst)}, and reports')


def told(t, accel):
    """It is reached again when the guest was taken back: it ends, and writes nothing. Filtered."""
    src, dst, fence = pair(t, 'told', accel, SLOW, extra=AS_LIBVIRT, source_extra=MAY_FENCE)
    with src, dst:
        src.start_load()
        uri = begin(src, dst, fence)
        pause(src)
        both_paused(src, dst)
        take_back(src, uri)
        stops(dst, src)
        is_taken_back(src, fence)
        if dst.exit_code(20) != 1 or 'taken its guest back' not in dst.tail:
            raise Failed(f'{dst.name}: exit code {dst.proc.returncode}: {dst.tail}')
        check_ledger(src)


def ended_by_kernel(t, accel, stop):
    """It cannot stop its guest, which waits for memory, or is stopped itself."""
    src, dst, fence = pair(t, f'kernel-{stop}', accel, NEVER)
    with src, dst:
        src.start_load()
        uri = send(src, dst, fence)
        wait_for('a guest that runs', 20, lambda: status(dst) == 'running')
        pause(src)
        if stop:
            dst.proc.send_signal(signal.SIGSTOP)
        take_back(src, uri)
        if dst.exit_code(30) != LINUX_KILLS:
            raise Failed(f'{dst.name}: exit code {dst.proc.returncode}: {dst.tail}')
        is_nowhere_yet(src)
        is_taken_back(src, fence)
        check_ledger(src)


def outage(t, accel):
    """Longer than the lease, and nobody takes anything back: the guest rests, and goes on there."""
    src, dst, fence = pair(t, 'outage', accel, SLOW)
    with src, dst, Road(0) as road:
        src.start_load()
        begin(src, dst, fence, road)
        road.close()
        both_paused(src, dst)
        stops(dst, src)
        silent(dst, 'its lease has ended')
        road.open()
        is_resumed(src, dst)
        if status(dst) != 'running' or fence.was_run() or os.path.exists(fence.record):
            raise Failed(f'{dst.name}: it is {status(dst)}')


def is_refused(dst):
    try:
        dst.qmp('cont')
    except GuestError as e:
        return 'may take it back' in str(e)
    dst.qmp('stop')     # it still had its lease
    return False


def asked_for(t, accel, last):
    """`stop` or `cont` while its lease is away: it holds when the source is heard again."""
    src, dst, fence = pair(t, f'wish-{last}', accel, SLOW)
    with src, dst, Road(0) as road:
        src.start_load()
        begin(src, dst, fence, road)
        if last == 'cont':
            dst.qmp('stop')
        road.close()
        both_paused(src, dst)
        if last == 'cont':
            wait_for('the end of the lease', 30, lambda: 'stopping the guest' in dst.tail)
            wait_for('a refusal', 20, lambda: is_refused(dst))
        else:
            stops(dst, src)
            dst.qmp('stop')
        road.open()
        for g in (src, dst):
            state(g, 'completed', 60)
        want = 'running' if last == 'cont' else 'paused'
        if status(dst) != want or fence.was_run():
            raise Failed(f'{dst.name}: it is {status(dst)}, not {want}')
        if last == 'stop':
            dst.qmp('cont')
        check_ledger(src, dst)


def slow_cont(t, accel):
    """Its lease ends while `cont` waits for a disk: that is given up after it, and nothing runs."""
    mine, theirs = disks(t)
    server = os.path.join(t.work, 'slow.nbd')
    with subprocess.Popen(['qemu-nbd', '-t', '-f', 'raw', '-k', server,
                           theirs[1].split('=', 1)[1].split(',')[0]]) as nbd:
        try:
            wait_for('a server', 20, lambda: os.path.exists(server))
            src, dst, fence = pair(t, 'slow', accel, NEVER, source_extra=mine, extra=(
                '-drive', f'file=nbd+unix:///?socket={server},format=qcow2,if=none,id=d0',
                *theirs[2:]))
            with src, dst:
                src.start_load()
                src.qmp('stop')
                send(src, dst, fence, lease_s=12)
                common.wait_migration(dst, 'postcopy-active')
                wait_for('a guest that is paused there', 10, lambda: status(dst) == 'paused')
                nbd.send_signal(signal.SIGSTOP)
                pause(src)
                pool = concurrent.futures.ThreadPoolExecutor(1)
                cont = pool.submit(dst.qmp, 'cont')
                wait_for('the end of the lease', 30, lambda: 'stopping the guest' in dst.tail)
                if cont.done():
                    raise Failed(f'{dst.name}: cont did not wait for its disk')
                nbd.send_signal(signal.SIGCONT)
                cont.result(20)     # not refused for what its disk is meanwhile
                wait_for('a guest that stands still', 20, lambda: status(dst) == 'paused')
                stops(dst, src)
                if [n for n in dst.qmp('query-named-block-nodes', flat=True) if n['active']]:
                    raise Failed(f'{dst.name}: it keeps its disks')
        finally:
            nbd.kill()


def late_go(t, accel):
    """Nothing is left of the lease that READY asked for: it waits for another before it runs."""
    mine, theirs = disks(t)
    src, dst, fence = pair(t, 'late', accel, source_faults='source.go=delay:3000000',
                           source_extra=mine, extra=theirs)
    with src, dst:
        src.start_load()
        send(src, dst, fence, lease_s=3)
        state(dst, 'completed', 30)
        if 'the guest may go on' not in dst.tail:
            raise Failed(f'{dst.name}: {dst.tail}')
        check_move(common.Moved(src, dst, 0))
        io(dst, 'write -P 8 0 64k')
        check_ledger(src, dst)


def keeps_a_disk(t, accel):
    """Somebody else there writes to its disk, which it cannot give up: it ends with the lease."""
    mine, theirs = disks(t)
    src, dst, fence = pair(t, 'keeps', accel, SLOW, source_extra=mine,
                           extra=(*theirs[:3], theirs[3] + ',share-rw=on'))
    with src, dst:
        src.start_load()
        uri = begin(src, dst, fence)
        node = dst.qmp('query-block')[0]['inserted']['node-name']
        dst.qmp('nbd-server-start', addr={'type': 'unix', 'data': {
            'path': os.path.join(t.work, 'keeps.nbd')}})
        dst.qmp('block-export-add', **{'type': 'nbd', 'id': 'e', 'node-name': node,
                                       'writable': True})
        pause(src)
        if dst.exit_code(30) != 1 or 'cannot be given up' not in dst.tail:
            raise Failed(f'{dst.name}: exit code {dst.proc.returncode}: {dst.tail}')
        take_back(src, uri)
        is_taken_back(src, fence)
        check_ledger(src)


def thinks_better(t, accel):
    """As long as the lease lasts, and the fence has not begun, the move can still go on."""
    src, dst, fence = pair(t, 'better', accel, SLOW)
    with src, dst:
        src.start_load()
        uri = begin(src, dst, fence, lease_s=60)
        refuses(dst, 'is heard', 'x-rdma-postcopy-release')
        pause(src)
        both_paused(src, dst)
        take_back(src, uri)
        says(src, 'waiting')
        resume(src, uri)
        is_resumed(src, dst)
        if fence.was_run() or os.path.exists(fence.record):
            raise Failed('the fence was run')


# --- the fence ---

def fence_fails(t, accel):
    """No fence, no guest: not by `cont`, nor by `resume`; until it succeeds."""
    src, dst, fence = pair(t, 'fence', accel, 'dest.running=kill')
    with src, dst:
        src.start_load()
        fence.ends_with(3)
        uri = send(src, dst, fence)
        dst.exit_code(30)
        for _ in range(2):
            take_back(src, uri)
            info = says(src, 'fence-failed')
            if 'it ended with 3' not in info['error-desc']:
                raise Failed(info['error-desc'])
            say(f'      {info["error-desc"]}')
            is_nowhere_yet(src)
            common.check_given_away(src)
            resume(src, uri)
            wait_for('it does not connect', 20, lambda: 'is taken back' in
                     common.migration(src)['error-desc'])
        fence.ends_with(0)
        take_back(src, uri)
        is_taken_back(src, fence)
        check_ledger(src)


def while_the_fence_runs(t, accel):
    """Whatever is asked of the source then changes nothing, and it goes nowhere before its end."""
    src, dst, fence = pair(t, 'meanwhile', accel, 'dest.running=kill')
    with src, dst:
        src.start_load()
        common.write_file(fence.hold, '')
        uri = send(src, dst, fence)
        dst.exit_code(30)
        take_back(src, uri)
        wait_for('a fence that runs', 30, fence.was_run)
        pause(src)
        is_nowhere_yet(src)
        resume(src, uri)
        refuses(src, '', 'migrate_cancel')
        is_nowhere_yet(src)
        refuses(src, '', 'cont')
        os.unlink(fence.hold)
        is_taken_back(src, fence)
        check_ledger(src)


def source_dies(t, accel):
    """All memory is there, and nobody has said so: an operator does."""
    src, dst, fence = pair(t, 'release', accel, source_faults='source.done=kill')
    with src, dst:
        src.start_load()
        refuses(dst, 'is here', 'x-rdma-postcopy-release')
        send(src, dst, fence)
        if src.exit_code(60) != LINUX_KILLS:
            raise Failed(f'{src.name}: exit code {src.proc.returncode}')
        state(dst, 'postcopy-paused')
        wait_for('a guest that stands still', 30, lambda: status(dst) == 'paused')
        refuses(dst, 'x-rdma-postcopy-release', 'cont')
        dst.qmp('x-rdma-postcopy-release')
        state(dst, 'completed')
        if status(dst) != 'running':
            raise Failed(f'{dst.name}: it is {status(dst)}')
        check_ledger(src, dst)


def without(t, accel):
    """A source that let go for good cannot take anything back, and goes on connecting."""
    src, dst, _ = pair(t, 'without', accel, SLOW)
    with src, dst, Road(0) as road:
        src.start_load()
        uri = common.listen(dst)
        road.to = int(uri.split(',')[0].rsplit(':', 1)[1])
        uri = f'rdma-postcopy:{common.place.host}:{road.port}'
        src.qmp('migrate', uri=uri)
        common.wait_migration(dst, 'postcopy-active')
        refuses(src, 'waits here', 'x-rdma-postcopy-take-back', uri=uri)
        road.close()
        both_paused(src, dst)
        says(src, 'none')
        take_back(src, uri)
        if 'without fallback=go' not in says(src, 'failed')['error-desc']:
            raise Failed(common.migration(src)['error-desc'])
        road.open()
        is_resumed(src, dst)


def refusals(t, accel):
    """While the guest runs at the source"""
    image = os.path.join(t.work, 'own.raw')
    common.write_file(image, '')
    os.truncate(image, 8 << 20)
    mine, theirs = disks(t)
    overlay = theirs[1].split(',')[0].partition('=')[2]
    subprocess.run(['qemu-io', '-f', 'qcow2', '-c', 'write -P 1 0 64k', overlay], check=True,
                   timeout=20, stdout=subprocess.DEVNULL)
    own = ('-drive', f'file={image},format=raw,if=none,id=d0', '-device', 'virtio-blk-pci,drive=d0')
    for n, extra, text in ((1, own, 'is no overlay'), (2, theirs, 'not empty'),
                           (3, (), 'reconnect=0')):
        src, dst, fence = pair(t, f'refuse-{n}', accel, extra=extra,
                               source_extra=(own, mine, ())[n - 1])
        with src, dst:
            src.start_load()
            uri = common.listen(dst, options=',reconnect=0' if n == 3 else '')
            src.qmp('migrate', uri=uri.split(',')[0] + fence.options())
            if text not in state(src, 'failed')['error-desc']:
                raise Failed(f'{common.migration(src)["error-desc"]}, want {text}')
            if 'STOP' in common.event_names(src):
                raise Failed(f'{src.name}: it was stopped')
            common.check_still_running(src)
    fence = Fence(t, 'deny')
    for n, sandbox in enumerate((AS_LIBVIRT, ('-sandbox', 'on,spawn=deny'))):
        with Micro(t, f'deny-{n}', accel, mem_mib=MIB, extra=sandbox) as src:
            src.start_load()
            refuses(src, 'elevateprivileges=allow', 'migrate',
                    uri='rdma-postcopy:127.0.0.1:1' + fence.options())
            common.check_still_running(src)
    with Micro(t, 'never', accel, mem_mib=MIB) as src:
        refuses(src, 'reconnect=0', 'migrate',
                uri='rdma-postcopy:127.0.0.1:1,reconnect=0' + fence.options())


def cases(accel, accels):
    """(name, function, its arguments after the Test)"""
    for name, faults in STEPS:
        yield f'killed, {name}, {accel}', killed, accel, faults
    for a in [a for a in accels if a != accel]:
        yield f'killed, {STEPS[2][0]}, {a}', killed, a, STEPS[2][1]
    yield f'memory is as of GO, byte for byte, {accel}', bytes_as_of_go, accel
    for lost in (True, False):
        yield f'its disk, {"lost" if lost else "complete"}, {accel}', disk, accel, lost
    if accel == 'kvm':  # TCG's vCPUs do not stop while they wait for a page
        yield 'it lives, and is not reached', unreached, accel
        yield 'it lives, and is told', told, accel
        yield 'an outage longer than the lease', outage, accel
        yield 'a disk that cannot be given up', keeps_a_disk, accel
        yield 'the lease ends while cont waits for a disk', slow_cont, accel
        for last in ('stop', 'cont'):
            yield f'asked for during an outage, {last}', asked_for, accel, last
    yield 'it cannot stop its guest, tcg', ended_by_kernel, 'tcg', False
    yield f'it is stopped itself, {accel}', ended_by_kernel, accel, True
    for name, case in (('GO comes late', late_go),
                       ('resumed while it is being taken back', thinks_better),
                       ('the fence fails', fence_fails),
                       ('other commands while the fence runs', while_the_fence_runs),
                       ('the source dies, all is there', source_dies),
                       ('without fallback=go', without), ('refused before it stops', refusals)):
        yield f'{name}, {accel}', case, accel


def run(t):
    abreast.run(t, [(name, lambda t, what=what, rest=rest: what(t, *rest))
                    for name, what, *rest in cases(t.best_accel(), t.accels())], AT_ONCE)


if __name__ == '__main__':
    common.main(run, 300)
