#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""visit_fallback.py - farfork visit --fallback go: taken back as it went, or home with what is in its overlays

The QEMU there is killed: the guest goes on here as it was, and what it wrote there is gone. It is not: its overlays are
committed before it comes home, and from then on it is not taken back. move_fallback.py has the same of a move.
Limit: 240 s.
"""
import os
import resource
import signal
import subprocess
import time

import abreast
import common
from common import Failed, GuestError, check_ledger, refuses, status, wait_for
from farfork_move import check_here, lose_agent, pid_there
from forked import Parent, check_nothing_left, kill
from move_fallback import KINDS, LEASE_S, SECOND, TAKE_BACK, Disk, back, commit_by_hand, take_back_by_hand
from resume import pause
from shut_down import ENDS, POWER_OFF
from take_back import AT_ONCE, MIB, Fence, io, is_nowhere_yet
from visits import Ledger, Visit, reports, say_visit, until

RETURN = 'x-rdma-postcopy-return'


def all_is_home(a):
    """The way out says postcopy-paused meanwhile: it has no link any more."""
    wait_for('all is home', 60, lambda: common.migration(a)['status'] == 'completed')


def nodes(guest):
    return [e['inserted']['node-name'] for e in guest.qmp('query-block')]


def images(guest):
    return [e['inserted']['image']['filename'] for e in guest.qmp('query-block')]


def runs_of(fence):
    """How often the fence was run"""
    if not fence.was_run():
        return 0
    with open(fence.told, encoding='ascii') as f:
        return len(f.read().splitlines())


def is_clean(path, kind='qcow2'):
    """Nobody has it open."""
    if kind != 'raw':
        subprocess.run(['qemu-img', 'check', '-q', '-f', kind, path], check=True, timeout=20)


def is_taken_back(v, a, disk, fence):
    """As it went: it wrote 7 here, and 8 there."""
    v.end(3, 'here', 'taken back')
    if not v.result['taken_back'] or runs_of(fence) != 1 or disk.has_overlays():
        raise Failed(f'{v.result}, {runs_of(fence)} fences, {os.listdir(disk.folder)}')
    check_nothing_left(v)
    wait_for('a guest that runs', 20, lambda: status(a) == 'running')
    io(a, 'read -P 7 0 64k', 'read -P 0 1M 64k', 'write -P 9 2M 64k', 'read -P 9 2M 64k')
    check_ledger(a, sweeps=1)


def is_home(v, a, disk, fence, log, b):
    """With what it wrote there, in its images"""
    v.end(0, 'home')
    say_visit(v)
    if v.result['notes'] or v.result['taken_back'] or disk.has_overlays() or runs_of(fence):
        raise Failed(f'{v.result}, {runs_of(fence)} fences, {os.listdir(disk.folder)}')
    check_nothing_left(v)
    log.leaves(b)
    io(a, 'read -P 7 0 64k', 'read -P 8 1M 64k', 'write -P 9 2M 64k', 'read -P 9 2M 64k')
    log.check(a, sweeps=1)


class Away:
    """A guest with a disk that visits: it wrote 7 here, and 8 there."""

    def __init__(self, t, accel, name, *args, kind='qcow2', home=None, more=(), **how):
        self.t, self.disk, self.fence, self.log = t, Disk(t, kind), Fence(t, name), Ledger(t)
        self.a = Parent(t, accel, extra=(*self.disk.options, *more), mem_mib=MIB, **(home or {}))
        self.args, self.how = args, how

    def __enter__(self):
        self.a.__enter__()
        try:
            self.a.start_load()
            io(self.a, 'write -P 7 0 64k')
            self.v = Visit(self.t, self.a, *back(self.fence), *self.disk.args, *self.args, **self.how)
            self.v.away()
            self.log.leaves(self.a)
            self.b = self.v.guest(self.t).__enter__()
            reports(self.b)
            io(self.b, 'read -P 7 0 64k', 'write -P 8 1M 64k', 'flush')
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *how):
        for x in (getattr(self, 'b', None), getattr(self, 'v', None), self.a):
            if x:
                x.__exit__(*(how or (None, None, None)))

    def call(self):
        self.v.proc.send_signal(signal.SIGINT)

    def dies(self):
        os.kill(pid_there(self.v), signal.SIGKILL)


def killed(t, accel, kind):
    option, _end = until(t, 'end')
    with Away(t, accel, 'killed', *option, kind=kind) as w:
        w.dies()
        w.v.hears('is lost: the guest is taken back')
        is_taken_back(w.v, w.a, w.disk, w.fence)
        if w.v.result['until_code'] != 128 + signal.SIGTERM:
            raise Failed(f'its command goes on: {w.v.result}')


def host_lost(t, accel):
    """Its agent is not heard, and its QEMU stands still: the kernel ends that with its lease."""
    with Away(t, accel, 'host', '--options', 'timeout=2') as w:
        lose_agent(w.v)
        w.v.hears('or is taken back if there is no link either')
        os.kill(w.b.proc.pid, signal.SIGSTOP)
        w.v.hears('is lost: the guest is taken back')
        is_taken_back(w.v, w.a, w.disk, w.fence)


def agent_lost(t, accel):
    """It works on there, and its host may be lost: a second signal leaves it, and its overlay is named."""
    with Away(t, accel, 'agent') as w:
        lose_agent(w.v)
        w.v.hears('brought home by hand')
        w.call()
        w.v.hears('if that host is lost, it is taken back')
        w.call()
        w.v.end(3, 'away', 'fallback=off')
        overlay = w.disk.overlay()
        if not [n for n in w.v.result['notes'] if n.startswith(overlay) and w.fence.record in n]:
            raise Failed(f'no note names {overlay}: {w.v.result["notes"]}')
        reports(w.b)
        kill(w.v.base, w.v.name)
        check_nothing_left(w.v)


def left_alone(t, accel):
    """The same, when nobody is there to leave it: some time after its command's end it is left."""
    option, end = until(t, 'alone.end')
    with Away(t, accel, 'alone', *option, '--options', f'reconnect={LEASE_S}') as w:
        lose_agent(w.v)
        w.v.hears('brought home by hand')
        common.write_file(end, '')
        w.v.hears('if that host is lost, it is taken back')
        w.v.end(3, 'away', 'fallback=off')
        reports(w.b)
        kill(w.v.base, w.v.name)
        check_nothing_left(w.v)


def called_when_lost(t, accel):
    """The call finds nobody there: it gives nothing up."""
    with Away(t, accel, 'called') as w:
        os.kill(w.v.proc.pid, signal.SIGSTOP)
        w.dies()
        wait_for('its end', 10, lambda: not os.path.exists(f'/proc/{w.b.proc.pid}') or not w.b.proc.poll() is None)
        w.call()
        os.kill(w.v.proc.pid, signal.SIGCONT)
        is_taken_back(w.v, w.a, w.disk, w.fence)


def home_again(t, accel, kind):
    with Away(t, accel, 'home', kind=kind) as w:
        if images(w.b) != [w.disk.overlay()] or images(w.a) != [w.disk.image]:
            raise Failed(f'{images(w.b)} there, {images(w.a)} here')
        w.call()
        w.v.hears('cannot be taken back')
        is_home(w.v, w.a, w.disk, w.fence, w.log, w.b)
        w.a.qmp('quit')
        wait_for('its end', 20, lambda: w.a.proc.poll() is not None)
        is_clean(w.disk.image, kind)


def two_disks(t, accel):
    disk, fence, log = Disk(t, 'raw'), Fence(t, 'two'), Ledger(t)
    second = disk.add_blockdev(t)
    with Parent(t, accel, extra=disk.options, mem_mib=MIB) as a:
        a.start_load()
        io(a, 'write -P 7 0 64k')
        io(a, 'write -P 6 0 64k', disk=SECOND)
        with Visit(t, a, *back(fence), *disk.args) as v:
            v.away()
            log.leaves(a)
            with v.guest(t) as b:
                reports(b)
                io(b, 'write -P 8 1M 64k')
                io(b, 'read -P 6 0 64k', 'write -P 5 1M 64k', disk=SECOND)
                v.proc.send_signal(signal.SIGINT)
                is_home(v, a, disk, fence, log, b)
        io(a, 'read -P 6 0 64k', 'read -P 5 1M 64k', disk=SECOND)
        if images(a) != [disk.image, second]:
            raise Failed(f'{images(a)}')


def no_disks(t, accel):
    """It may be taken back until its return begins: also when home waits for it in vain."""
    fence = Fence(t, 'none')
    with Parent(t, accel, mem_mib=MIB) as a:
        a.start_load()
        with Visit(t, a, *back(fence)) as v:
            v.away()
            a.qmp(RETURN, uri='rdma-postcopy:127.0.0.1:0,link=tcp,insecure=on')
            os.kill(pid_there(v), signal.SIGKILL)
            v.end(3, 'here', 'taken back')
            check_nothing_left(v)
        check_ledger(a, sweeps=1)
        os.unlink(fence.record)
        log = Ledger(t)
        log.at[a.console] = os.path.getsize(a.console)
        with Visit(t, a, *back(fence), name='again') as v:
            v.away()
            v.proc.send_signal(signal.SIGINT)
            v.end(0, 'home')
            check_nothing_left(v)


def fails_first(t, accel):
    """A return that fails after its commit: it is away with its own images; the next one succeeds."""
    with Away(t, accel, 'fails', home={'faults': 'dest.state=fail@1'}) as w:
        w.call()
        w.v.hears('did not come home')
        w.v.hears('cannot be taken back any more')
        if w.disk.has_overlays() or images(w.b) != [w.disk.image]:
            raise Failed(f'{os.listdir(w.disk.folder)}, {images(w.b)}')
        reports(w.b)
        io(w.b, 'read -P 8 1M 64k', 'write -P 6 3M 64k', 'flush')
        w.call()
        is_home(w.v, w.a, w.disk, w.fence, w.log, w.b)
        io(w.a, 'read -P 6 3M 64k')


def lost_after_commit(t, accel):
    """Nobody takes it back, not by hand either: its disks are newer than its memory here."""
    with Away(t, accel, 'lost', '--options', 'timeout=5', home={'faults': 'dest.state=fail@1'}) as w:
        w.call()
        w.v.hears('cannot be taken back any more')
        w.dies()
        w.v.end(3, 'lost', 'SIGKILL')
        check_nothing_left(w.v)
        refused_by_hand(w.a)
        if runs_of(w.fence) or os.path.exists(w.fence.record):
            raise Failed('it is being taken back')
        is_nowhere_yet(w.a)


def refused_by_hand(a):
    uri = refuses(a, 'was sent to', TAKE_BACK, uri='rdma-postcopy:127.0.0.1:1')
    a.qmp(TAKE_BACK, uri=uri.split('was sent to ')[1].split(',')[0])
    wait_for('its answer', 20, lambda: common.migration(a)['x-rdma-postcopy'].get('take-back') == 'given-up')


def commit_fails(t, accel):
    """No room in the image: it goes on there, in its overlay, and the next return commits it."""
    with Away(t, accel, 'full', kind='raw', restore_signals=False) as w:
        io(w.b, 'write -P 6 6M 64k', 'flush')
        resource.prlimit(pid_there(w.v), resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))
        w.call()
        w.v.hears('did not come home: commit ' + w.disk.overlay())
        w.v.hears('cannot be taken back any more')
        if images(w.b) != [w.disk.overlay()]:
            raise Failed(f'{images(w.b)}')
        reports(w.b)
        io(w.b, 'read -P 8 1M 64k', 'read -P 6 6M 64k')
        resource.prlimit(pid_there(w.v), resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        w.call()
        is_home(w.v, w.a, w.disk, w.fence, w.log, w.b)
        io(w.a, 'read -P 6 6M 64k')


def needs_no_lease(b):
    try:
        b.qmp('x-rdma-postcopy-release', heard=True)
    except GuestError:
        return False
    return True


def give_up(a, b, key):
    """By hand: home waits, and takes nothing back. The port."""
    a.qmp(RETURN, uri=f'rdma-postcopy:127.0.0.1:0,link=tcp,fallback=off,key-file={key}')
    wait_for('it needs no lease', 20, lambda: needs_no_lease(b))
    return common.migration(a)['socket-address'][-1]['port']


def key_of(t):
    path = os.path.join(t.work, 'key')
    common.write_file(path, '0f' * 32 + '\n')
    os.chmod(path, 0o600)
    return path


def home_by_hand(t, accel):
    """farfork visit was killed: as VISITS in farfork(1) has it. Not before its disk is committed."""
    key = key_of(t)
    with Away(t, accel, 'hand') as w:
        w.v.proc.kill()
        w.v.proc.communicate(timeout=30)
        refuses(w.b, 'in an overlay', 'migrate', uri='rdma-postcopy:127.0.0.1:9,link=tcp')
        refuses(w.b, 'has to let go', 'x-rdma-postcopy-release')
        refuses(w.b, 'has not said yet', 'x-rdma-postcopy-release', heard=True)
        port = give_up(w.a, w.b, key)
        commit_by_hand(w.b, w.disk.overlay(), w.disk.image)
        w.b.qmp('migrate', uri=f'rdma-postcopy:127.0.0.1:{port},link=tcp,key-file={key}')
        all_is_home(w.a)
        wait_for('it is home', 10, lambda: status(w.a) == 'running')
        w.log.leaves(w.b)
        kill(w.v.base, w.v.name)
        check_nothing_left(w.v)
        io(w.a, 'read -P 7 0 64k', 'read -P 8 1M 64k')
        w.log.check(w.a, sweeps=1)


def no_lease(t, accel):
    """Home has given up: without a link for longer than a lease, the guest there runs on, and so does the commit."""
    with Away(t, accel, 'lease') as w:
        w.v.proc.kill()
        w.v.proc.communicate(timeout=30)
        give_up(w.a, w.b, key_of(t))
        node, = nodes(w.b)
        w.b.qmp('block-commit', **{'job-id': 'c', 'device': node})
        pause(w.a)
        end = time.monotonic() + LEASE_S + 2
        wait_for('the end of a lease', LEASE_S + 10, lambda: time.monotonic() > end)
        if status(w.b) != 'running' or len(w.b.qmp('query-block-jobs')) != 1:
            raise Failed(f'{status(w.b)}')
        refused_by_hand(w.a)
        is_nowhere_yet(w.a)
        kill(w.v.base, w.v.name)
        check_nothing_left(w.v)


def fence_fails(t, accel):
    """It runs nowhere until somebody has looked; its overlay is named."""
    with Away(t, accel, 'fence') as w:
        w.fence.ends_with(3)
        w.dies()
        w.v.end(3, 'unclear', 'runs nowhere')
        is_nowhere_yet(w.a)
        overlay = w.disk.overlay()
        if not [n for n in w.v.result['notes'] if n.startswith(overlay) and w.fence.record in n]:
            raise Failed(f'no note names {overlay}: {w.v.result["notes"]}')
        check_nothing_left(w.v)
        w.fence.ends_with(0)
        take_back_by_hand(w.a)
        os.unlink(overlay)
        io(w.a, 'read -P 7 0 64k', 'read -P 0 1M 64k')
        check_ledger(w.a, sweeps=1)


def commits_unseen(w, node, overlay, stays_open):
    """Nobody follows it to its end. A note names the overlay, which stays."""
    w.b.qmp('block-commit', **{'job-id': 'c', 'device': node})
    wait_for('ready', 20, lambda: w.b.qmp('query-block-jobs')[0]['ready'])
    w.b.qmp('job-complete', id='c')
    wait_for('its end', 20, lambda: not w.b.qmp('query-block-jobs'))
    if (overlay in [n['file'] for n in w.b.qmp('query-named-block-nodes', flat=True)]) != stays_open:
        raise Failed(f'{overlay}: want {stays_open}')
    w.call()
    w.v.end(0, 'home')
    if not [n for n in w.v.result['notes'] if n.startswith(overlay) and 'before you remove it' in n]:
        raise Failed(f'no note names {overlay}: {w.v.result["notes"]}')
    if not os.path.exists(overlay):
        raise Failed(f'{overlay} was removed')
    io(w.a, 'read -P 7 0 64k', 'read -P 8 1M 64k')


def commit_left(t, accel):
    """A commit that an earlier try has begun, and lost sight of, is followed; one that has ended is none."""
    with Away(t, accel, 'left') as w:
        node = nodes(w.b)[0]
        w.b.qmp('block-commit', **{'job-id': 'farfork-' + node.replace('#', '_'), 'device': node})
        w.call()
        is_home(w.v, w.a, w.disk, w.fence, w.log, w.b)
    with Away(t, accel, 'ended') as w:
        commits_unseen(w, nodes(w.b)[0], w.disk.overlay(), False)
    other = Disk(t, 'qcow2')
    other.add_blockdev(t)
    with Away(t, accel, 'node', more=other.options[-4:]) as w:
        i = [e['qdev'] == SECOND.split()[1] for e in w.b.qmp('query-block')].index(True)
        io(w.b, 'write -P 5 1M 64k', disk=SECOND)
        commits_unseen(w, nodes(w.b)[i], images(w.b)[i], True)
        io(w.a, 'read -P 5 1M 64k', disk=SECOND)


def left_while_taken(t, accel):
    """A signal leaves that to the QEMU here."""
    with Away(t, accel, 'left') as w:
        common.write_file(w.fence.hold, '')
        w.dies()
        w.v.hears('is lost: the guest is taken back')
        wait_for('its fence', 30, w.fence.was_run)
        w.call()
        w.v.end(3, 'unclear', 'left: the guest is being taken back')
        os.unlink(w.fence.hold)
        wait_for('a guest that runs', 20, lambda: status(w.a) == 'running')
        os.unlink(w.disk.overlay())
        check_ledger(w.a, sweeps=1)


def shut_down_there(t, accel):
    """It is not to run again; what it wrote is kept."""
    with Away(t, accel, 'down', '--options', 'timeout=5', more=POWER_OFF) as w:
        ENDS['the guest'](w.b)
        w.v.end(3, 'ended', 'shut itself down')
        overlay = w.disk.overlay()
        if w.fence.was_run() or not [n for n in w.v.result['notes'] if n.startswith(overlay) and 'commit' in n]:
            raise Failed(f'{w.v.result["notes"]}')
        check_nothing_left(w.v)
        w.a.close()
        subprocess.run(['qemu-img', 'commit', '-q', overlay], check=True, timeout=20)
        out = subprocess.run(['qemu-io', '-r', '-c', 'read -P 8 1M 64k', w.disk.image], check=True, timeout=20,
                             capture_output=True, text=True).stdout
        if 'failed' in out:
            raise Failed(f'{w.disk.image}: {out}')


def refused(t, accel):
    disk, fence = Disk(t, 'raw'), Fence(t, 'refused')
    for args, text in ((('--fallback', 'go', 'x', 'h'), '--fence'), (('--fence', '/bin/true', 'x', 'h'), '--fallback go'),
                       (('--fallback', 'maybe', 'x', 'h'), 'permitted: off|go'), (('--lease', '0', 'x', 'h'), 'permitted: 1..3600'),
                       (('--options', 'fallback=go', 'x', 'h'), '--options'),
                       (('--serve', '/x', *back(fence), 'x'), 'not with --serve')):
        out = subprocess.run([common.FARFORK, 'visit', *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, timeout=20, check=False)
        if out.returncode != 2 or text not in out.stdout:
            raise Failed(f'{args}: {out.returncode}, want "{text}": {out.stdout[:300]}')
    with Parent(t, accel, extra=disk.options, mem_mib=MIB) as a:
        a.start_load()
        with Visit(t, a, *back(fence)) as v:
            v.end(1, 'here', '--overlays')
            check_here(v, a)


def cases(accel):
    """(name, function of a Test)"""
    for kind in KINDS:
        yield f'killed, {kind}, {accel}', lambda t, k=kind: killed(t, accel, k)
        yield f'home again, {kind}, {accel}', lambda t, k=kind: home_again(t, accel, k)
    for name, case in (('two disks', two_disks), ('no disks', no_disks), ('called when it is lost', called_when_lost),
                       ('its host is lost', host_lost), ('its agent is lost', agent_lost),
                       ('its agent is lost, and nobody is here', left_alone),
                       ('a return that fails', fails_first), ('lost after its commit', lost_after_commit),
                       ('a commit that fails', commit_fails), ('killed, and home by hand', home_by_hand),
                       ('no lease after that', no_lease), ('a commit that was left', commit_left), ('the fence fails', fence_fails),
                       ('left while it is taken back', left_while_taken), ('shut down there', shut_down_there),
                       ('refused', refused)):
        yield f'{name}, {accel}', lambda t, c=case: c(t, accel)


def run(t):
    abreast.run(t, list(cases(t.best_accel())), AT_ONCE)


if __name__ == '__main__':
    common.main(run, 240)
