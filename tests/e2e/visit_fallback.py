#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""visit_fallback.py - farfork visit --fallback go: taken back as it went, or home with what is in its overlays

The QEMU there is killed: the guest goes on here as it was, and what it wrote there is gone. It is not: its overlays are
committed before it comes home, and from then on it is not taken back. move_fallback.py has the same of a move.
Limit: 240 s.
"""
import contextlib
import os
import resource
import signal
import subprocess
import time

import abreast
import common
from attach_options import Side
from attaching import check_left_here, side_here, side_there, state_of
from common import Failed, GuestError, check_ledger, refuses, wait_for
from farfork_move import check_here, lose_agent, pid_there
from forked import SLOW, ask
from move_fallback import KINDS, LEASE_S, SECOND, TAKE_BACK, Disk, back, commit_by_hand
from take_back import AT_ONCE, MIB, Fence, io
from visits import Ledger, Parent, Visit, end_homes, goes_on, is_home, left_there, nothing_there, reports, until

GIVE_UP, VISIT, RELEASE = 'x-farfork-give-up', 'x-farfork-visit', 'x-rdma-postcopy-release'


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
    nothing_there(v)
    goes_on(a)
    io(a, 'read -P 7 0 64k', 'read -P 0 1M 64k', 'write -P 9 2M 64k', 'read -P 9 2M 64k')
    check_ledger(a, sweeps=1)


def is_home_with(w):
    """With what it wrote there, in its images. The guest."""
    home = w.ends.enter_context(is_home(w.v, w.t, w.log, w.b))
    notes = [n for n in w.v.result['notes'] if 'in another QEMU here' not in n]
    if notes or w.v.result['taken_back'] or w.disk.has_overlays() or runs_of(w.fence):
        raise Failed(f'{w.v.result}, {runs_of(w.fence)} fences, {os.listdir(w.disk.folder)}')
    io(home, 'read -P 7 0 64k', 'read -P 8 1M 64k', 'write -P 9 2M 64k', 'read -P 9 2M 64k')
    goes_on(home, w.log)
    return home


class Away:
    """A guest with a disk that visits: it wrote 7 here, and 8 there."""

    def __init__(self, t, accel, name, *args, kind='qcow2', more=(), **how):
        self.disk = kind if isinstance(kind, Disk) else Disk(t, kind)
        self.t, self.fence, self.log = t, Fence(t, name), Ledger(t)
        self.a = Parent(t, accel, extra=(*self.disk.options, *more), mem_mib=MIB)
        self.args, self.how, self.ends = args, how, contextlib.ExitStack()

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
        self.ends.close()
        if hasattr(self, 'v'):
            end_homes(self.v.base)
        for x in (getattr(self, 'b', None), getattr(self, 'v', None), self.a):
            if x:
                x.__exit__(*(how or (None, None, None)))

    def call(self):
        self.v.proc.send_signal(signal.SIGINT)

    def dies(self):
        os.kill(pid_there(self.v), signal.SIGKILL)

    def side(self, number=2):
        """The monitor of the process beside the QEMU there."""
        return f'{self.v.folder_there()}/{number}.qmp'


def refuses_at(path, text, command, **args):
    reply = ask(path, command, args, whole=True)
    if text not in reply.get('error', {}).get('desc', ''):
        raise Failed(f'{command}: {reply}, want "{text}"')


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
        for pid in (side_there(w.v), w.b.proc.pid):
            os.kill(pid, signal.SIGSTOP)
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
        w.v.end(3, 'away', GIVE_UP)
        overlay = w.disk.overlay()
        if not [n for n in w.v.result['notes'] if n.startswith(overlay) and w.fence.record in n]:
            raise Failed(f'no note names {overlay}: {w.v.result["notes"]}')
        reports(w.b)
        left_there(w.v)


def left_alone(t, accel):
    """The same, when nobody is there to leave it: some time after its command's end it is left."""
    option, end = until(t, 'alone.end')
    with Away(t, accel, 'alone', *option, '--options', f'reconnect={LEASE_S}') as w:
        lose_agent(w.v)
        w.v.hears('brought home by hand')
        common.write_file(end, '')
        w.v.hears('if that host is lost, it is taken back')
        w.v.end(3, 'away', GIVE_UP)
        reports(w.b)
        left_there(w.v)


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
        if images(w.b) != [w.disk.overlay()]:
            raise Failed(f'{images(w.b)} there')
        w.call()
        w.v.hears('cannot be taken back')
        home = is_home_with(w)
        if images(home) != [w.disk.image]:
            raise Failed(f'{images(home)} at home')
        home.qmp('quit')
        wait_for('its end', 20, lambda: home.proc.poll() is not None)
        is_clean(w.disk.image, kind)


def two_disks(t, accel):
    disk = Disk(t, 'raw')
    second = disk.add_blockdev(t)
    with Away(t, accel, 'two', kind=disk) as w:
        io(w.b, 'write -P 5 1M 64k', disk=SECOND)
        w.call()
        home = is_home_with(w)
        io(home, 'read -P 5 1M 64k', disk=SECOND)
        if images(home) != [disk.image, second]:
            raise Failed(f'{images(home)}')


def no_disks(t, accel):
    """It may be taken back until it is called home."""
    fence = Fence(t, 'none')
    with Parent(t, accel, mem_mib=MIB) as a:
        a.start_load()
        with Visit(t, a, *back(fence)) as v:
            v.away()
            os.kill(pid_there(v), signal.SIGKILL)
            v.end(3, 'here', 'taken back')
            nothing_there(v)
        check_ledger(a, sweeps=1)
        os.unlink(fence.record)
        with Visit(t, a, *back(fence), name='again') as v:
            v.away()
            v.proc.send_signal(signal.SIGINT)
            v.end(0, 'home')
            nothing_there(v)
            with v.at_home(t) as home:
                goes_on(home)
            end_homes(v.base)


def fails_first(t, accel):
    """A return that fails after its commit: it is away with its own images; the next one succeeds."""
    with Away(t, accel, 'fails', faults='visit.home=fail@1') as w:
        w.call()
        w.v.hears('did not come home')
        w.v.hears('cannot be taken back any more')
        if w.disk.has_overlays() or images(w.b) != [w.disk.image]:
            raise Failed(f'{os.listdir(w.disk.folder)}, {images(w.b)}')
        reports(w.b)
        io(w.b, 'read -P 8 1M 64k', 'write -P 6 3M 64k', 'flush')
        w.call()
        io(is_home_with(w), 'read -P 6 3M 64k')


def lost_after_commit(t, accel):
    """Nobody takes it back: its disks are newer than its memory here."""
    with Away(t, accel, 'lost', '--options', 'timeout=5', faults='visit.home=fail@1') as w:
        w.call()
        w.v.hears('cannot be taken back any more')
        w.dies()
        w.v.end(3, 'lost', 'SIGKILL')
        nothing_there(w.v)
        if runs_of(w.fence) or os.path.exists(w.fence.record):
            raise Failed('it is being taken back')
        check_left_here(w.a)


def side_killed_early(t, accel):
    """Who is beside its QEMU there is killed after its commit: that QEMU goes on with what it has, and nobody takes it back."""
    with Away(t, accel, 'early', faults='visit.home=fail@1') as w:
        w.call()
        w.v.hears('cannot be taken back any more')
        os.kill(side_there(w.v), signal.SIGKILL)
        w.v.end(3, 'broken', 'save what you can')
        if w.b.proc.poll() is not None or not w.b.qmp('query-status')['running'] or runs_of(w.fence):
            raise Failed(f'the QEMU there has ended, or stands still: {w.v.result}, {runs_of(w.fence)} fences')
        io(w.b, 'read -P 8 1M 64k')
        left_there(w.v)


def side_killed_late(t, accel):
    """The same when it runs at home, and what it wrote follows: that still comes from the QEMU there."""
    with Away(t, accel, 'late', faults=SLOW) as w:
        beside = side_there(w.v)
        w.call()
        w.v.hears('it runs here again')
        os.kill(beside, signal.SIGKILL)
        is_home_with(w)


def snapshot_over(t, accel):
    """Somebody made a snapshot there: the overlay below it is to be committed, too."""
    with Away(t, accel, 'snapshot') as w:
        w.v.proc.kill()
        w.v.proc.communicate(timeout=30)
        ask(f'{w.v.base}/{w.v.name}/source/qmp', GIVE_UP)
        wait_for('it needs no lease', 20, lambda: 'return' in ask(w.side(), RELEASE, {'heard': True}, whole=True))
        overlay = w.disk.overlay()
        w.b.qmp('blockdev-snapshot-sync', **{'node-name': nodes(w.b)[0], 'snapshot-file': os.path.join(t.work, 'over.qcow2'),
                                             'snapshot-node-name': 'over'})
        refuses_at(w.side(), f'is in an overlay: commit {overlay}', VISIT)
        left_there(w.v)


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
        io(is_home_with(w), 'read -P 6 6M 64k')


def by_hand(t, accel):
    """farfork visit was killed: nobody brings it home while it may be taken back, or before its disk is committed."""
    with Away(t, accel, 'hand') as w:
        w.v.proc.kill()
        w.v.proc.communicate(timeout=30)
        here, there = f'{w.v.base}/{w.v.name}/source/qmp', w.side()
        for command in (VISIT, 'x-farfork-let-go', 'x-farfork-returned'):
            refuses_at(here, 'may be taken back', command)
        refuses_at(there, 'never takes the guest back', VISIT)
        refuses_at(there, 'has not said yet', RELEASE, heard=True)
        ask(here, GIVE_UP)
        wait_for('it needs no lease', 20, lambda: 'return' in ask(there, RELEASE, {'heard': True}, whole=True))
        refuses_at(there, 'is in an overlay', VISIT)
        commit_by_hand(w.b, w.disk.overlay(), w.disk.image)
        if ask(here, VISIT)['session'] != ask(there, VISIT)['session']:
            raise Failed('another session')
        left_there(w.v)


def no_lease(t, accel):
    """Home has given up: without a link for longer than a lease, the guest there runs on, and so does the commit."""
    with Away(t, accel, 'lease') as w:
        w.v.proc.kill()
        w.v.proc.communicate(timeout=30)
        here, there = f'{w.v.base}/{w.v.name}/source/qmp', w.side()
        ask(here, GIVE_UP)
        wait_for('it needs no lease', 20, lambda: 'return' in ask(there, RELEASE, {'heard': True}, whole=True))
        w.b.qmp('block-commit', **{'job-id': 'c', 'device': nodes(w.b)[0]})
        os.kill(side_here(w.v), signal.SIGSTOP)
        end = time.monotonic() + LEASE_S + 2
        wait_for('the end of a lease', LEASE_S + 10, lambda: time.monotonic() > end)
        if not w.b.qmp('query-status')['running'] or len(w.b.qmp('query-block-jobs')) != 1:
            raise Failed('it stands still')
        os.kill(side_here(w.v), signal.SIGCONT)
        if w.fence.was_run() or state_of(w.a) != 't':
            raise Failed(f'the QEMU here is {state_of(w.a)}')
        left_there(w.v)


def fence_fails(t, accel):
    """It runs nowhere until somebody has looked; its overlay is named."""
    with Away(t, accel, 'fence') as w:
        w.fence.ends_with(3)
        w.dies()
        w.v.end(3, 'unclear', 'runs nowhere')
        if state_of(w.a) != 't':
            raise Failed(f'the QEMU here is {state_of(w.a)}')
        overlay = w.disk.overlay()
        if not [n for n in w.v.result['notes'] if n.startswith(overlay) and w.fence.record in n]:
            raise Failed(f'no note names {overlay}: {w.v.result["notes"]}')
        w.fence.ends_with(0)
        with Side(w.v) as side:
            said = refuses(side, 'was sent to', TAKE_BACK, uri='rdma-postcopy:127.0.0.1:1')
            side.qmp(TAKE_BACK, uri=said.split('was sent to ')[1].split(',')[0])
        wait_for('a guest that runs', 20, lambda: state_of(w.a) != 't')
        os.unlink(overlay)
        goes_on(w.a)
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
    home = w.ends.enter_context(is_home(w.v, w.t, w.log, w.b))
    if not [n for n in w.v.result['notes'] if n.startswith(overlay) and 'before you remove it' in n]:
        raise Failed(f'no note names {overlay}: {w.v.result["notes"]}')
    if not os.path.exists(overlay):
        raise Failed(f'{overlay} was removed')
    io(home, 'read -P 7 0 64k', 'read -P 8 1M 64k')
    return home


def commit_left(t, accel):
    """A commit that an earlier try has begun, and lost sight of, is followed; one that has ended is none."""
    with Away(t, accel, 'left') as w:
        node = nodes(w.b)[0]
        w.b.qmp('block-commit', **{'job-id': 'farfork-' + node.replace('#', '_'), 'device': node})
        w.call()
        is_home_with(w)
    with Away(t, accel, 'ended') as w:
        commits_unseen(w, nodes(w.b)[0], w.disk.overlay(), False)
    other = Disk(t, 'qcow2')
    other.add_blockdev(t)
    with Away(t, accel, 'node', more=other.options[-4:]) as w:
        i = [e['qdev'] == SECOND.split()[1] for e in w.b.qmp('query-block')].index(True)
        io(w.b, 'write -P 5 1M 64k', disk=SECOND)
        home = commits_unseen(w, nodes(w.b)[i], images(w.b)[i], True)
        io(home, 'read -P 5 1M 64k', disk=SECOND)


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
        wait_for('a guest that runs', 20, lambda: state_of(w.a) != 't')
        os.unlink(w.disk.overlay())
        check_ledger(w.a, sweeps=1)


def shut_down_there(t, accel):
    """It is not to run again; what it wrote is kept."""
    with Away(t, accel, 'down', '--options', 'timeout=5') as w:
        with contextlib.suppress(GuestError):
            common.hmp(w.b, 'o/h 0x604 0x2000')
        w.v.end(3, 'ended', 'shut itself down')
        overlay = w.disk.overlay()
        if w.fence.was_run() or not [n for n in w.v.result['notes'] if n.startswith(overlay) and 'commit' in n]:
            raise Failed(f'{w.v.result["notes"]}')
        nothing_there(w.v)
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
                       ('who is beside it there is killed after its commit', side_killed_early),
                       ('who is beside it there is killed when it is home', side_killed_late),
                       ('a snapshot over its overlay', snapshot_over),
                       ('a commit that fails', commit_fails), ('killed, and by hand', by_hand),
                       ('no lease after that', no_lease), ('a commit that was left', commit_left), ('the fence fails', fence_fails),
                       ('left while it is taken back', left_while_taken), ('shut down there', shut_down_there),
                       ('refused', refused)):
        yield f'{name}, {accel}', lambda t, c=case: c(t, accel)


def run(t):
    abreast.run(t, list(cases(t.best_accel())), AT_ONCE)


if __name__ == '__main__':
    common.main(run, 240)
