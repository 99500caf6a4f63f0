#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""promote.py - a child of a fork takes its parent's place; limit: 300 s

The ledger of the child goes on where its parent was; what fails before GO leaves both as they were. At no moment do two run
in one place, and where none runs somebody says so.
"""
import contextlib
import glob
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import time

import common
from attaching import logged, side_there, state_of
from common import Failed, say, wait_for
from farfork_move import Move, There
from forked import ENVIRON, Child, Clone, ForkParent, alive, ask, check_result, kill, processes_of, snapshot
from overlays import io

MIB = 64
LOAD = 'report_ms=400 sweep=1'
GUESTS = itertools.count()
WAITS_MS = (60, 200, 350, 550, 800, 1200)
STOPPED = 'attach.replaced=delay:4000000'      # the parent stands still, and GO has not come


class Promote(Move):
    """farfork promote, started."""

    def __init__(self, t, child, *args, faults=None, base=None, environ=None):
        # pylint: disable=super-init-not-called
        self.base, self.name, self.command = os.path.join(t.work, 'run'), 'p', 'promote'
        self.base = base or self.base
        env = {**os.environ, **ENVIRON, **(environ or {}), **({'FARFORK_FAILPOINTS': faults} if faults else {})}
        self.proc = subprocess.Popen([common.FARFORK, 'promote', '--json', *(('--rundir', self.base) if not environ else ()), '--id',
                                      self.name, '--timeout', '40', *args, *([child] if isinstance(child, str) else child)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                     env=env, text=True)
        self.result, self.err = {}, ''


def is_running(path):
    try:
        return ask(path, 'query-status')['status'] == 'running'
    except OSError:
        return False


@contextlib.contextmanager
def family(t, n=2, *args, memory='memfd', extra=()):
    """A parent and n children of it, which run: (parent, fork, children, what their ledgers were)"""
    with ForkParent(t, t.best_accel(), memory=memory, mem_mib=MIB, load=LOAD, extra=extra) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, n, *args) as c:
            check_result(c, 0, {'complete': n})
            yield parent, c, [Child(row, parent) for row in c.children], before


def check_promoted(t, p, parent, child, sweep=True):
    """The guest is the child, and has the parent's socket."""
    r = p.end(0, 'there')
    say(f'      {r["came_bytes"] >> 10} KiB of {r["bytes"]["total"] >> 10} came; the guest stood still for '
        f'{r["phases_ms"]["downtime"]:.0f} ms')
    parent.proc.wait(20)
    wait_for('end of the child', 10, lambda: not alive(child.pid))
    if not r['replaced_ended'] or os.path.realpath(parent.second) != r['qmp'] or not is_running(parent.second):
        raise Failed(f'{parent.second} leads to {os.path.realpath(parent.second)}: {r}')
    if sweep:
        with There(t, f'guest{next(GUESTS)}', r['rundir'], r['pid']) as guest:
            common.check_ledger(guest, sweeps=1)
    return r


def check_as_before(p, parent, child):
    """Both go on, and nothing is left of the promotion."""
    wait_for('a parent that runs', 20, lambda: is_running(parent.second))
    wait_for('a child that runs', 20, lambda: is_running(child.qmp_path))
    wait_for('its end', 20, lambda: not os.path.exists(f'{p.base}/p') and not [x for x, _ in processes_of(f'{p.base}/p/')])
    common.check_ledger(parent, sweeps=1)


def promoted(t, memory):
    with family(t, memory=memory) as (parent, c, kids, before):
        kids[0].begins(before)
        with Promote(t, 'f.1') as p:
            check_promoted(t, p, parent, kids[0])
            kids[1].check(before)
        kill(c.base, 'f')


def disks(t, drive):
    """What the child wrote is the guest's; its overlay stays, the sibling has what it had."""
    folder = os.path.join(t.work, 'scratch')
    os.makedirs(folder, exist_ok=True)
    image = os.path.join(folder, 'disk.qcow2')
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', image, '8M'], check=True, timeout=20)
    devices = (*drive.format(image).split(), '-device', 'virtio-blk-pci,drive=d0')
    with family(t, 2, '--scratch', folder, extra=devices) as (parent, c, kids, _):
        io(kids[0].qmp_path, 'write -P 2 1M 64k')
        io(kids[1].qmp_path, 'write -P 3 1M 64k')
        io(parent.second, 'write -P 4 1M 64k')
        with Promote(t, kids[0].qmp_path) as p:
            r = check_promoted(t, p, parent, kids[0])
            io(parent.second, 'read -P 2 1M 64k', 'write -P 5 2M 64k', 'flush')
            io(kids[1].qmp_path, 'read -P 3 1M 64k', 'read -P 0 2M 64k')
            overlay, = r['overlays']
            given, = r['given_up']
            if not os.path.exists(given) or given == image:
                raise Failed(f'{given} was what the parent wrote to')
            kill(c.base, 'f')
            kill(p.base, 'p')
            wait_for('their end', 20, lambda: not [x for x, _ in processes_of(p.base)])
            out = subprocess.run(['qemu-io', '-f', 'qcow2', '-c', 'read -P 5 2M 64k', '-c', 'read -P 2 1M 64k', overlay],
                                 check=True, timeout=20, capture_output=True, text=True).stdout
            if 'failed' in out:
                raise Failed(out)
            os.unlink(overlay)
            os.unlink(given)
            os.unlink(image)


def committed(t):
    """Into the image below, once nobody else uses that; while a sibling does, it stays."""
    folder = os.path.join(t.work, 'scratch')
    os.makedirs(folder, exist_ok=True)
    image = os.path.join(folder, 'disk.qcow2')
    devices = ('-drive', f'file={image},format=qcow2,if=none,id=d0', '-device', 'virtio-blk-pci,drive=d0')
    for n in (2, 1):
        subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', image, '8M'], check=True, timeout=20)
        with family(t, n, '--scratch', folder, extra=devices) as (parent, c, kids, _):
            io(parent.second, 'write -P 4 1M 64k')
            io(kids[0].qmp_path, 'write -P 2 1M 64k')
            with Promote(t, 'f.1', '--commit') as p:
                r = check_promoted(t, p, parent, kids[0], sweep=False)
                if len(r['overlays']) != n - 1 or os.path.exists(f'{folder}/fork-f-1-disk0.qcow2') != (n == 2):
                    raise Failed(f'{r["overlays"]}: {r["notes"]}')
                io(parent.second, 'read -P 2 1M 64k', 'write -P 5 2M 64k', 'flush')
                for k in kids[1:]:
                    io(k.qmp_path, 'read -P 0 1M 64k')
                kill(c.base, 'f')
                kill(p.base, 'p')
                wait_for('their end', 20, lambda p=p: not [x for x, _ in processes_of(p.base)])
        disk, = r['overlays'] or [image]
        subprocess.run(['qemu-io', '-f', 'qcow2', '-c', 'read -P 5 2M 64k', '-c', 'read -P 2 1M 64k', disk], check=True, timeout=20,
                       stdout=subprocess.DEVNULL)
        for path in {disk, image, *r['given_up']}:
            os.unlink(path)


def stays(t, faults, text):
    """Before GO: the next try succeeds."""
    with family(t, 1) as (parent, c, (child,), before):
        with Promote(t, 'f.1', faults=faults) as p:
            p.end(1, 'here', text)
            check_as_before(p, parent, child)
        child.check(before)
        with Promote(t, 'f.1') as p:
            check_promoted(t, p, parent, child)
        kill(c.base, 'f')


def wait_held(p, parent):
    """The pid of the process that has the parent stand still, before GO."""
    def is_held():
        for _ in range(10):     # not for a moment, in which somebody makes a system call there
            if state_of(parent) != 't':
                return False
            time.sleep(0.02)
        return logged(p, 'package', 'localhost')
    wait_for('a parent that is held', 30, is_held)
    return side_there(p)


def side_killed(t):
    """The process that holds the parent, before GO: farfork promote lets it go on."""
    with family(t, 1) as (parent, c, (child,), before):
        with Promote(t, 'f.1', faults=STOPPED) as p:
            os.kill(wait_held(p, parent), signal.SIGKILL)
            p.end(1, 'here')
            check_as_before(p, parent, child)
        child.check(before)
        kill(c.base, 'f')


def killed_after_go(t):
    """The process beside the new QEMU, while memory is missing: never two run, and it is said."""
    with family(t, 1) as (parent, c, (child,), _):
        with Promote(t, 'f.1', faults='dest.prefill=delay:300000@1-40') as p:
            wait_for('a guest that runs there', 60, lambda: logged(p, 'running', 'localhost'))
            os.kill(side_there(p), signal.SIGKILL)
            out, err = p.proc.communicate(timeout=90)
            r = json.loads(out)
            say(f'      {r["state"]}: {r["error"]} {r["notes"]}')
            if p.proc.returncode != 3 or parent.proc.wait(20) != -signal.SIGKILL or (alive(child.pid) and state_of_pid(child.pid) != 't'):
                raise Failed(f'exit code {p.proc.returncode}: {r} {err}')
            for pid, _ in processes_of(f'{p.base}/p/'):
                os.kill(pid, signal.SIGKILL)
            wait_for('their end', 20, lambda: not processes_of(f'{p.base}/p/'))
            shutil.rmtree(f'{p.base}/p')
        kill(c.base, 'f')


def parent_killed(t):
    """Before it was held the child stays what it was, and it is said; while it is held the child takes its place all the same."""
    for faults, held in (('dest.state=delay:1500000', False), (STOPPED, True)):
        with family(t, 1) as (parent, c, (child,), before):
            with Promote(t, 'f.1', faults=faults) as p:
                if held:
                    wait_held(p, parent)
                else:
                    wait_for('a child that is sent', 30, lambda p=p: logged(p, 'connected', 'localhost'))
                parent.proc.kill()
                parent.proc.wait(20)
                r = p.end(*((0, 'there') if held else (1, 'here')))
                if not r['replaced_ended'] or not (held or any(parent.second in n for n in r['notes'])):
                    raise Failed(f'it is not said: {r["notes"]}')
                if held and (not is_running(parent.second) or alive(child.pid)):
                    raise Failed('no guest, or two')
                kill(p.base, 'p')
            if not held:
                wait_for('a child that runs', 20, lambda child=child: is_running(child.qmp_path))
                child.check(before)
            kill(c.base, 'f')


def decided(p, parent, child):
    """'promoted', or 'before': as it is once nothing changes any more. Never both, never none."""
    guest = f'{p.base}/p/localhost/1.qmp'
    here = glob.glob(f'{p.base}/p/*/1.qmp')
    guest = here[0] if here else guest
    if is_running(guest) and not alive(parent.proc.pid) and not alive(child.pid):
        return 'promoted'
    if parent.proc.poll() is None and is_running(child.qmp_path) and is_running(parent.second) and not os.path.exists(guest):
        return 'before'
    return None


def command_killed(t):
    """farfork promote, at moments of no choice: what was begun ends one way or the other."""
    seen = {}
    for wait_ms in WAITS_MS:
        with family(t, 1) as (parent, c, (child,), _):
            with Promote(t, 'f.1', '--timeout', '8', faults='attach.replaced=delay:300000') as p:
                time.sleep(wait_ms / 1000)
                p.proc.kill()
                p.proc.communicate(timeout=30)
                is_now = wait_for('a decision', 60, lambda: decided(p, parent, child))
                seen[is_now] = seen.get(is_now, 0) + 1
                kill(p.base, 'p')
            kill(c.base, 'f')
    say(f'      {seen}')
    if not seen.get('promoted'):
        raise Failed('none was promoted')


def state_of_pid(pid):
    with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as f:
        return f.read().rpartition(')')[2].split()[0]


def written_kib(pid):
    """What a child has written: pages of its views of the image that are none of the image's files."""
    total, is_view = 0, False
    with contextlib.suppress(OSError), open(f'/proc/{pid}/smaps', encoding='ascii', errors='replace') as f:
        for line in f:
            if '-' in line.split()[0]:
                is_view = '/memfd:' in line and ' rw-p ' in line
            elif line.startswith('Anonymous:') and is_view:
                total += int(line.split()[1])
    return total


def travels(t, mib, percent):
    """Of a guest that writes a part of its memory no more than that travels."""
    with ForkParent(t, t.best_accel(), memory='memfd', mem_mib=mib, load=f'report_ms=400 wss={percent}') as parent:
        parent.start_load()
        with Clone(t, parent, 1) as c:
            check_result(c, 0, {'complete': 1})
            child = Child(c.children[0], parent)
            wait_for('a child that has written that', 60, lambda: written_kib(child.pid) > mib * percent * 8)
            with Promote(t, 'f.1') as p:
                wrote = 0
                while p.proc.poll() is None:
                    wrote = written_kib(child.pid) or wrote
                    time.sleep(0.02)
                r = check_promoted(t, p, parent, child, sweep=False)
                say(f'      {mib} MiB, {wrote} KiB written, {r["came_bytes"] >> 10} KiB came: {r["phases_ms"]}')
                if r['came_bytes'] > wrote * 1024 * 1.1:
                    raise Failed(f'{r["came_bytes"]} bytes came, {wrote} KiB were written')
                with There(t, f'guest{next(GUESTS)}', r['rundir'], r['pid']) as guest:
                    common.check_ledger(guest)
                kill(p.base, 'p')
            kill(c.base, 'f')


def from_elsewhere(t, has_image):
    """A child of another host: the image is at home where another child of the fork is, else all of it travels."""
    def base(host):
        return os.path.join(t.work, f'run-{host}')
    launcher = ('--launcher', f'env FF_HOST={{host}} FARFORK_RUNDIR={t.work}/run-{{host}} {{cmd}}')
    with ForkParent(t, t.best_accel(), memory='memfd', mem_mib=MIB, load='report_ms=400 sweep=1 mode=readonly') as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 2, *launcher, hosts=['h1=127.0.0.1:1', 'h2=127.0.0.1:1'] if has_image else ['h2=127.0.0.1'],
                   everywhere=False) as c:
            check_result(c, 0, {'complete': 2})
            kids = [Child(row, parent) for row in c.children]
            with Promote(t, [kids[1].qmp_path, 'h1=127.0.0.1'], *launcher, base=base('h1'), environ={'FARFORK_RUNDIR': base('h2')}) as p:
                r = p.end(0, 'there')
                say(f'      {r["came_bytes"] >> 10} KiB of {r["bytes"]["total"] >> 10} came')
                if r['image_was_there'] != has_image or (r['came_bytes'] > MIB << 18) == has_image:
                    raise Failed(f'{r}')
                parent.proc.wait(20)
                wait_for('end of the child', 10, lambda: not alive(kids[1].pid))
                if os.path.realpath(parent.second) != r['qmp'] or not is_running(parent.second):
                    raise Failed(f'{parent.second} leads to {os.path.realpath(parent.second)}: {r}')
                with There(t, f'guest{next(GUESTS)}', r['rundir'], r['pid']) as guest:
                    common.check_ledger(guest, sweeps=1)
                kids[0].check(before)
                kill(p.base, 'p')
            for host in ('h1', 'h2'):
                kill(base(host), 'f')


def refused(t):
    """A port that two QEMUs cannot have: the new one does not start."""
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    with family(t, 1, extra=('-netdev', f'socket,id=n0,listen=127.0.0.1:{port}', '-device', 'virtio-net-pci,netdev=n0')) \
            as (parent, c, (child,), _):
        with Promote(t, 'f.1') as p:
            p.end(1, 'here')
            check_as_before(p, parent, child)
        with Promote(t, 'f.7') as none:
            if none.proc.wait(20) != 1 or 'no such child' not in none.proc.stderr.read():
                raise Failed('there is no such child')
        kill(c.base, 'f')


def run(t):
    for memory in ('memfd', 'anon'):
        with t.case(memory):
            promoted(t, memory)
    with t.case('a disk, by -drive'):
        disks(t, '-drive file={},format=qcow2,if=none,id=d0')
    with t.case('a disk, by -blockdev'):
        disks(t, '-blockdev driver=file,filename={},node-name=f0 -blockdev driver=qcow2,file=f0,node-name=d0')
    with t.case('a disk that is committed'):
        committed(t)
    with t.case('what travels'):
        travels(t, 1024 if common.FULL else 256, 1 if common.FULL else 4)
    with t.case('from another host, the image is at home'):
        from_elsewhere(t, True)
    with t.case('from another host, the image is not at home'):
        from_elsewhere(t, False)
    with t.case('the child cannot be saved'):
        stays(t, 'attach.state=fail', 'injected')
    with t.case('the parent cannot be held'):
        stays(t, 'attach.replaced=fail', 'injected')
    with t.case('who holds the parent is killed'):
        side_killed(t)
    with t.case('who holds the parent is killed after GO'):
        killed_after_go(t)
    with t.case('the parent is killed meanwhile'):
        parent_killed(t)
    with t.case('farfork promote is killed'):
        command_killed(t)
    with t.case('what cannot be promoted'):
        refused(t)


if __name__ == '__main__':
    common.main(run, 300, common.need_userfaultfd)
