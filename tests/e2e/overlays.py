#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""overlays.py - whose overlays are whose: none goes that a guest needs, none stays; limit: 320 s

Children that are moved, forked, that end before their own children, whose agent dies. What one has
written is read again where it must be there still.
"""
import contextlib
import glob
import os
import shlex
import signal
import stat
import subprocess

import common
from attaching import Move
from common import Failed, say, wait_for
from farfork_move import listed
from forked import (QEMU, Clone, ForkParent, alive, ask, check_nothing_left, check_result, exports_at,
                    kill, run_vmclone)

MIB = 64
OWNER, MODE = (1234, 1235), 0o640


def io(path, *commands):
    """By the only disk of the QEMU whose QMP socket that is."""
    qdev = next(b['qdev'] for b in ask(path, 'query-block') if b.get('inserted'))
    for c in commands:
        out = ask(path, 'human-monitor-command', {'command-line': f'qemu-io -d {qdev} "{c}"'})
        if 'failed' in out or 'rror' in out:
            raise Failed(f'{path}: {c}: {out}')


class Family:
    """A parent with a disk, and a scratch folder; all that is forked and moved ends with it."""

    def __init__(self, t, accel, device=''):
        self.t, self.accel, self.device = t, accel, device
        self.dir = os.path.join(t.work, 'family')
        self.scratch = os.path.join(self.dir, 'scratch')
        self.image = os.path.join(self.dir, 'disk.qcow2')
        self.base = os.path.join(t.work, 'run')
        self.stack = contextlib.ExitStack()
        self.names = []

    def __enter__(self):
        os.makedirs(self.scratch)
        self.stack.callback(subprocess.run, ['rm', '-rf', self.dir], check=True, timeout=20)
        subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', self.image, '8M'], check=True,
                       timeout=20)
        if os.geteuid() == 0:
            os.chown(self.image, *OWNER)
        os.chmod(self.image, MODE)
        self.parent = self.stack.enter_context(ForkParent(self.t, self.accel, mem_mib=MIB, extra=(
            '-drive', f'file={self.image},format=qcow2,if=none,id=d0',
            '-device', 'virtio-blk-pci,drive=d0' + self.device)))
        self.parent.start_load()
        self.stack.callback(os.unlink, self.parent.console)
        io(self.parent.second, 'write -P 1 0 64k')
        return self

    def __exit__(self, *exc):
        for name in reversed(self.names):
            kill(self.base, name)
        self.stack.close()

    def fork(self, parent, name, code=0, n=1):
        self.names.append(name)
        c = self.stack.enter_context(Clone(self.t, parent, n, '--scratch', self.scratch, name=name))
        check_result(c, code, {'complete': n} if code == 0 else {'failed': n})
        return c

    def child(self, name, parent=None):
        """One of a fork, which has written: (its QMP socket, its pid)"""
        row = self.fork(parent or self.parent, name).children[0]
        io(row['qmp'], 'read -P 1 0 64k', 'write -P 2 1M 64k')
        return row['qmp'], row['pid']

    def move(self, path, name, host, *args):
        self.names.append(name)
        m = self.stack.enter_context(Move(self.t, path, *args, host=f'{host}=127.0.0.1', name=name))
        m.end(0, 'there')
        return m.result['rundir'] + '/1.qmp', m.result['pid']

    def refuses(self, *texts):
        """A move and a fork, before anything is done."""
        c = self.fork(self.parent, 'r', code=3)
        m = self.stack.enter_context(Move(self.t, self.parent, name='rm', launcher=(
            '--launcher', 'exit 9; {host} {cmd}')))
        m.end(1, 'here')
        for said in (c.result['error'], m.result['error']):
            if any(x not in said for x in texts):
                raise Failed(f'{said}: want {texts}')
        if common.status(self.parent) != 'running' or glob.glob(self.image + '.fork-*'):
            raise Failed(f'{common.status(self.parent)}: {os.listdir(self.dir)}')

    def files(self):
        return sorted(os.path.basename(p) for p in glob.glob(self.scratch + '/*'))

    def want(self, *names):
        if self.files() != sorted(names):
            raise Failed(f'in the scratch folder: {self.files()}, want {sorted(names)}')

    def kill(self, name, code=0, text='', base=None):
        out = kill(base or self.base, name)
        if out.returncode != code or text not in out.stdout:
            raise Failed(f'--kill {name}: {out.returncode}, want {code} and "{text}": {out.stdout}')
        if text:
            say('      ' + out.stdout.strip().splitlines()[-1].replace(self.scratch + '/', ''))

    def nothing(self):
        """Of all forks, and the parent has its own overlay still."""
        wait_for('an empty scratch folder', 20, lambda: not self.files())
        check_nothing_left(self, self.parent)
        io(self.parent.second, 'read -P 1 0 64k')
        if len(glob.glob(self.image + '.fork-*')) != 1:
            raise Failed(f'overlays of the parent: {glob.glob(self.image + "*")}')


FIRST = 'fork-f-1-disk0.qcow2'
SECOND = f'{FIRST}.fork-g-disk0.qcow2'      # what a child that was forked writes to
BEFORE = f'{FIRST}.fork-e-disk0.qcow2'
GRAND = 'fork-g-1-disk0.qcow2'


def moved(t, accel):
    """A child, twice: what it wrote is there, and goes with it."""
    with Family(t, accel) as f:
        path, pid = f.child('f')
        for name, host in (('m1', 'h1'), ('m2', 'h2')):
            old = pid
            path, pid = f.move(path, name, host)
            wait_for('the end of the agent before', 20,
                     lambda name=name: [e['id'] for e in listed(f.base)] == [name])
            if alive(old):
                raise Failed('its QEMU is there still')
            f.want(FIRST)
            io(path, 'read -P 1 0 64k', 'read -P 2 1M 64k', 'write -P 3 2M 64k')
        f.kill('m2')
        f.nothing()


def list_broken(t, accel):
    """A child's list that cannot be read is no empty one: the move says so, and no file of it goes."""
    with Family(t, accel) as f:
        path, pid = f.child('f')
        record = glob.glob(f.base + '/f/*/1.overlays')[0]
        with open(record, encoding='utf-8') as r:
            text = r.read()
        common.write_file(record, text + '"half')
        f.names.append('m')
        m = f.stack.enter_context(Move(t, path, host='h1=127.0.0.1', name='m'))
        m.end(0, 'there')
        if not any(f'{record} cannot be read' in n for n in m.result['notes']):
            raise Failed(f'it is not said: {m.result["notes"]}')
        wait_for('the end of the agent before', 20, lambda: not alive(pid) and not [
            e for e in listed(f.base) if e['agent_alive'] and e['id'] == 'f'])
        f.kill('f', 1, 'cannot be read')
        f.want(FIRST)
        io(m.result['rundir'] + '/1.qmp', 'read -P 2 1M 64k')
        common.write_file(record, text)
        f.kill('m')
        f.nothing()


def forked_and_moved(t, accel):
    """The other overlay of a child that was forked goes along, and its own child needs the first."""
    with Family(t, accel) as f:
        path, _ = f.child('f')
        grand, _ = f.child('g', path)
        f.want(FIRST, SECOND, GRAND)
        path, _ = f.move(path, 'm', 'h1')
        io(path, 'read -P 2 1M 64k', 'write -P 3 2M 64k')
        f.want(FIRST, SECOND, GRAND)
        f.kill('m', 1, 'child 1 of fork g')
        f.want(FIRST, GRAND)
        io(grand, 'read -P 2 1M 64k')
        f.kill('g')
        f.nothing()


def moved_out_of_sight(t, accel):
    """To a host with run directories of its own: who needs the first overlay is not in any there."""
    with Family(t, accel) as f:
        base = os.path.join(f.dir, 'there')
        path, pid = f.child('f')
        _, grand = f.child('g', path)
        path, there = f.move(path, 'm', 'h1', '--rundir', base)
        f.stack.callback(kill, base, 'm')
        wait_for('end of the first agent', 20,
                 lambda: [e['id'] for e in listed(f.base)] == ['g'] and not alive(pid))
        io(path, 'read -P 2 1M 64k', 'write -P 3 2M 64k')
        f.kill('m', 1, f'stays: the process {grand}', base)
        if alive(there):
            raise Failed('its QEMU is there still')
        f.want(FIRST, GRAND)
        f.kill('g')
        f.want(FIRST)
        f.kill('m', base=base)
        f.nothing()


def forked_there(t, accel):
    """A child that was moved is forked: the overlay that it goes on in is its own."""
    with Family(t, accel) as f:
        path, _ = f.child('f')
        path, _ = f.move(path, 'm', 'h1')
        f.child('g', path)
        f.want(FIRST, SECOND, GRAND)
        f.kill('g')
        f.want(FIRST, SECOND)
        io(path, 'read -P 2 1M 64k')
        f.kill('m')
        f.nothing()


def killed_first(t, accel):
    """The child before its own children, which can be forked again."""
    with Family(t, accel) as f:
        path, _ = f.child('f')
        grand, _ = f.child('g', path)
        f.kill('f', 1, f'{FIRST} stays: child 1 of fork g')
        f.want(FIRST, GRAND)
        if [e['id'] for e in listed(f.base)] != ['f', 'g']:
            raise Failed(f'--list: {listed(f.base)}')
        io(grand, 'read -P 2 1M 64k')
        f.child('h', grand)
        f.kill('g', 1, 'child 1 of fork h')
        f.kill('f', 1, 'child 1 of fork h')
        f.kill('h')
        f.nothing()


def ended_first(t, accel):
    """As killed_first(), but each ends by itself, and nobody looks after them."""
    with Family(t, accel) as f:
        path, pid = f.child('f')
        _, grand = f.child('g', path)
        os.kill(pid, signal.SIGTERM)
        wait_for('end of its agent', 20, lambda: not [
            e for e in listed(f.base) if e['agent_alive'] and e['id'] == 'f'])
        f.want(FIRST, GRAND)
        os.kill(grand, signal.SIGTERM)
        f.nothing()


def ended_meanwhile(t, accel):
    """A child ends after the freeze, before its own child has opened anything: that runs all the
    same. It was forked before: two of its overlays lie upon each other."""
    late, go = (os.path.join(t.work, name) for name in ('late-qemu', 'go'))
    common.write_file(late, f'#!/bin/sh\ncase "$*" in *-incoming*) until test -e {go}; do\n'
                      'sleep 0.1; done;; esac\n'
                      f'exec {shlex.quote(QEMU)} "$@"\n')
    os.chmod(late, 0o700)
    with Family(t, accel) as f:
        path, pid = f.child('f')
        f.child('e', path)
        f.kill('e')
        f.want(FIRST, BEFORE)
        f.names.append('g')
        g = f.stack.enter_context(Clone(t, path, 1, '--scratch', f.scratch, '--qemu', late,
                                        name='g'))
        wait_for('the freeze', 40, lambda: exports_at(path))
        wait_for('the child that is late', 20, lambda: os.path.exists(f'{f.scratch}/{GRAND}'))
        os.kill(pid, signal.SIGTERM)
        wait_for('end of its agent', 20, lambda: not [
            e for e in listed(f.base) if e['agent_alive'] and e['id'] == 'f'])
        f.want(FIRST, BEFORE, GRAND)
        common.write_file(go, '')
        check_result(g, 0, {'complete': 1})
        io(g.children[0]['qmp'], 'read -P 2 1M 64k')
        f.kill('g')
        f.nothing()


def agent_gone(t, accel, sig, child_too):
    """A child that outlives its agent, or ends alone: --kill removes what it had."""
    with Family(t, accel) as f:
        path, pid = f.child('f')
        agent = listed(f.base)[0]['agent']
        os.kill(agent, sig)
        wait_for('end of the agent', 20, lambda: not alive(agent))
        if not alive(pid):
            raise Failed('the child ended with its agent')
        if child_too:
            os.kill(pid, signal.SIGTERM)
            wait_for('end of the child', 20, lambda: not alive(pid))
        else:
            io(path, 'read -P 2 1M 64k')
        f.want(FIRST)
        f.kill('f')
        f.nothing()


def modes(t, accel):
    """Overlays are for who could see the disk, and are made where nothing was."""
    with Family(t, accel) as f:
        f.child('f')
        of = os.stat(os.path.join(f.scratch, FIRST))
        if stat.S_IMODE(of.st_mode) != 0o600:
            raise Failed(f'{FIRST}: mode {of.st_mode:o}')
        of, image = os.stat(glob.glob(f.image + '.fork-f*')[0]), os.stat(f.image)
        if [of.st_uid, of.st_gid, of.st_mode] != [image.st_uid, image.st_gid, image.st_mode]:
            raise Failed(f'the parent\'s overlay: {of}, its image: {image}')
        victim = os.path.join(f.dir, 'victim')
        for name, link in (('x', f.scratch + '/fork-x-1-disk0.qcow2'),
                           ('y', f.image + '.fork-y-disk0.qcow2')):
            os.symlink(victim, link)
            c = f.fork(f.parent, name, code=3)
            said = f'{c.result["error"]} {c.children[0]["error"]}'
            if 'the file exists' not in said or not os.path.islink(link) or \
                    os.path.exists(victim):
                raise Failed(f'{said}: {os.listdir(f.dir)} {f.files()}')
            os.unlink(link)
            io(f.parent.second, 'read -P 1 0 64k')
        if run_vmclone('--list', '--rundir', f.base).stdout.count('complete') < 1:
            raise Failed('the first child is not listed')
        f.kill('f')
        f.want()


def renamed(t, accel):
    """Another file by the name of its image: neither forked nor moved."""
    with Family(t, accel) as f:
        old, new, top = f.image + '.old', f.image + '.new', f.image + '.top'
        subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', new, '8M'], check=True, timeout=20)
        os.link(f.image, old)
        os.replace(new, f.image)
        f.refuses(f'image {f.image}: there is another file by that name now')
        f.parent.qmp('blockdev-snapshot-sync', **{'device': 'd0', 'snapshot-file': top})
        io(f.parent.second, 'read -P 1 0 64k')


def shared(t, accel):
    """A disk of a cluster's: not forked, nor moved while another process here has it open."""
    with Family(t, accel, ',share-rw=on') as f:
        with open(f.image, 'rb'):
            f.refuses('disk d0', 'share-rw=on')
        with Move(t, f.parent, name='m') as m:
            m.end(0, 'there')


def run(t):
    accel = t.best_accel()
    for name, case in (
            ('owners and modes', lambda: modes(t, accel)),
            ('another file by the name of the image', lambda: renamed(t, accel)),
            ('a disk that others share', lambda: shared(t, accel)),
            ('a child is moved, twice', lambda: moved(t, accel)),
            ('its list cannot be read', lambda: list_broken(t, accel)),
            ('a child is forked, then moved', lambda: forked_and_moved(t, accel)),
            ('a child is forked, then moved out of sight', lambda: moved_out_of_sight(t, accel)),
            ('a child is moved, then forked', lambda: forked_there(t, accel)),
            ('a child is killed before its own', lambda: killed_first(t, accel)),
            ('a child ends before its own', lambda: ended_first(t, accel)),
            ('a child ends while it is forked', lambda: ended_meanwhile(t, accel)),
            ('the agent dies', lambda: agent_gone(t, accel, signal.SIGKILL, False)),
            ('the agent dies, and the child', lambda: agent_gone(t, accel, signal.SIGKILL, True)),
            ('the agent is ended', lambda: agent_gone(t, accel, signal.SIGTERM, False))):
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, 320)
