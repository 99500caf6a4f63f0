#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""fork_fails.py - a fork that fails leaves the parent as it was: limit: 280 s

What can be known beforehand is refused before the parent is paused. What fails later is taken back:
the parent's disks are the images that it had, with what it has written meanwhile, and no file is
left beside them.
"""
import contextlib
import glob
import json
import os
import shlex
import signal
import subprocess
import tempfile

import common
from common import Failed, Skip, event_names, say, wait_for
from forked import (ELSEWHERE, QEMU, RAMBLOCK, SLOW, TWO_HOSTS, Child, Clone, FakeParent, ForkParent,
                    check_nothing_left, check_result, kill, snapshot)

MIB = 32
DISK = 8 << 20
AT_ONCE = 6
FAILURES = 12


class Fork(Clone):
    """With a scratch folder of the test's."""

    def __init__(self, t, parent, n, *args, **more):
        scratch = os.path.join(t.work, 'scratch')
        os.makedirs(scratch, exist_ok=True)
        super().__init__(t, parent, n, *(() if '--scratch' in args else ('--scratch', scratch)),
                         *args, **more)


class DiskParent(ForkParent):
    """A parent with a raw and a qcow2 disk, and what is known of them before any fork."""

    def __init__(self, t, accel, **more):
        self.folder = tempfile.mkdtemp(prefix='disks', dir=t.work)
        self.images = [os.path.join(self.folder, n) for n in ('a.img', 'b.qcow2')]
        with open(self.images[0], 'wb') as f:
            f.truncate(DISK)
        qemu_img('create', '-q', '-f', 'qcow2', self.images[1], str(DISK))
        super().__init__(t, accel, mem_mib=MIB, extra=[
            '-drive', f'file={self.images[0]},if=none,id=a,format=raw',
            '-device', 'virtio-blk-pci,drive=a',
            '-blockdev', f'driver=file,node-name=bf,filename={self.images[1]}',
            '-blockdev', 'driver=qcow2,node-name=b,file=bf',
            '-device', 'virtio-blk-pci,drive=b,id=vb', '-netdev', 'hubport,id=n,hubid=0',
            '-device', 'virtio-net-pci,netdev=n,romfile='], **more)
        self.nodes = None

    def start_load(self, sweeps=0):
        super().start_load(sweeps)
        self.nodes = self.all_nodes()

    def all_nodes(self):
        return sorted(n['file'] for n in self.qmp('query-named-block-nodes'))

    def tops(self):
        return [b['inserted']['file'] for b in self.qmp('query-block') if 'inserted' in b]

    def devices(self):
        return [b['qdev'] for b in self.qmp('query-block') if 'inserted' in b]

    def io(self, disk, command):
        out = common.hmp(self, f'qemu-io -d {self.devices()[disk]} "{command}"')
        if out.strip():
            raise Failed(f'{command}: {out}')

    def as_before(self):
        """No overlay, no node more, and it runs."""
        if self.all_nodes() != self.nodes or sorted(self.tops()) != sorted(self.images):
            raise Failed(f'the parent has {self.all_nodes()}, had {self.nodes}')
        left = sorted(os.listdir(self.folder))
        if left != ['a.img', 'b.qcow2']:
            raise Failed(f'left beside the images: {left}')


def qemu_img(*args):
    out = subprocess.run(['qemu-img', *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, timeout=30, check=False)
    if out.returncode:
        raise Failed(f'qemu-img {args}: {out.stdout}')


def script(t, name, text):
    path = os.path.join(t.work, name)
    with open(path, 'w', encoding='ascii') as f:
        f.write('#!/bin/sh\n' + text)
    os.chmod(path, 0o700)
    return path


def bad_child(t, name, text):
    """A QEMU that starts, but not as a child."""
    return script(t, name, f'case "$*" in *-incoming*) {text};; esac\n'
                           f'exec {shlex.quote(QEMU)} "$@"\n')


def gated_child(t, name):
    """One that ends when it may: (program, what to call then)"""
    gate = os.path.join(t.work, name + '.gate')
    path = bad_child(t, name, f'while ! test -e {gate}; do sleep 0.05; done; '
                              'echo too bad >&2; exit 5')
    return path, lambda: common.write_file(gate, '')


def reason(clone, *texts):
    said = ' '.join([*(r['error'] or '' for r in clone.children), clone.result['error'] or ''])
    missing = [x for x in texts if x not in said]
    if missing:
        raise Failed(f'{missing} is not in what was said: {said[:400]}')
    say(f'      {said[:150]}')


@contextlib.contextmanager
def mounted(path, options):
    os.makedirs(path, exist_ok=True)
    mount = ['mount', '-t', 'tmpfs', '-o', options, 'none', path]
    if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
        raise Skip('cannot mount a tmpfs: run as root')
    try:
        yield path
    finally:
        subprocess.run(['umount', path], check=True)


def found_before(t, accel):
    """Each would fail after the freeze: the parent is not even paused, and has no overlay."""
    stock = script(t, 'no-qemu', 'echo Hello; exit 0\n')
    limited = script(t, 'limited', 'ulimit -n 40; exec "$@"\n')
    no_uffd = script(t, 'no-uffd', 'exec unshare -m sh -c \'mount --bind /dev/null '
                                   '/dev/userfaultfd && exec setpriv --bounding-set=-sys_ptrace -- "$@"\' x "$@"\n')
    cases = [
        (['--scratch', '/proc/self'], ['scratch folder /proc/', '--scratch']),
        (['--scratch', '/nonexistent'], ['scratch folder /nonexistent', 'No such file']),
        (['--qemu', '/nonexistent'], ['/nonexistent', 'No such file']),
        (['--qemu', '/bin/false'], ['/bin/false', 'exit code 1']),
        (['--qemu', stock], [stock, 'it is no QEMU']),
        (['--net', 'bridge:nobr0'], ['bridge', 'nobr0', '-netdev']),
        (['--launcher', f'{limited} {{cmd}} {{host}}', '--timeout', '15'], ['open files', 'ulimit']),
    ]
    if os.geteuid() == 0 and os.path.exists('/dev/userfaultfd'):
        cases.append((['--launcher', f': {{host}}; {no_uffd} {{cmd}}'], ['userfaultfd', 'sysctl']))
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(Skip):
            ro = stack.enter_context(mounted(os.path.join(t.work, 'ro'), 'ro'))
            cases.append((['--scratch', ro], [ro, 'Read-only file system', '--scratch']))
            cases.append((['--overlays', ro], [ro, 'Read-only file system', '--overlays']))
            small = stack.enter_context(mounted(os.path.join(t.work, 'small'), 'size=1536k'))
            cases.append((['--overlays', small], [small, 'no space left', '--overlays']))
            cases.append((['--scratch', small], [small, 'no space left', '--scratch']))
        parent = stack.enter_context(DiskParent(t, accel, memory='memfd'))
        parent.start_load()
        for args, texts in cases:
            args = [x.replace('{cmd} {host}', '{cmd}') + ' #{host}' if '{cmd} {host}' in x else x
                    for x in args]
            hosts = ['h1=127.0.0.1'] if '--launcher' in args else ()
            with Fork(t, parent, 2, *args, hosts=hosts) as c:
                check_result(c, 3, {'failed': 2})
                reason(c, *texts)
                if c.result['freeze'] or 'STOP' in event_names(parent):
                    raise Failed(f'{args}: the parent was paused')
                parent.as_before()
                check_nothing_left(c, parent)
        says_how_it_ended(t, parent)


def says_how_it_ended(t, parent):
    """Also where whoever started vmclone ignores SIGCHLD."""
    with Fork(t, parent, 1, '--launcher', 'echo too bad >&2; exit 7 # {host} {cmd}', hosts=['h1=127.0.0.1'],
              prefix=('env', '--ignore-signal=CHLD')) as c:
        check_result(c, 3, {'failed': 1})
        reason(c, 'exit code 7: too bad')


def taken_back(t, accel):
    """Children that do not start, or are interrupted: what was written to the disks meanwhile is in the
    images, as often as that happens."""
    ends, go = gated_child(t, 'ends')
    soon = bad_child(t, 'soon', 'exit 5')
    with DiskParent(t, accel, memory='memfd') as parent:
        parent.start_load()
        with Fork(t, parent, 1, '--qemu', ends) as c:
            wait_for('overlays', 40, lambda: not set(parent.tops()) & set(parent.images))
            for disk in (0, 1):
                parent.io(disk, f'write -P {0x51 + disk} 1M 3M')
            go()
            check_result(c, 3, {'failed': 1})
            reason(c, 'exit code 5: too bad')
            if c.result['disks']:
                raise Failed(f'the summary names overlays: {c.result["disks"]}, {c.result["notes"]}')
            parent.as_before()
            check_nothing_left(c, parent)
        for _ in range(FAILURES):
            with Fork(t, parent, 1, '--qemu', soon) as c:
                check_result(c, 3, {'failed': 1})
                parent.as_before()
        with Fork(t, parent, 2, *ELSEWHERE, hosts=TWO_HOSTS,
                  faults='dest.prefill=delay:500000') as c:
            wait_for('children', 40, lambda: len(glob.glob(c.base + '/f/*/*.console')) == 2)
            parent.io(0, 'write -P 0x61 5M 1M')
            c.proc.send_signal(signal.SIGINT)
            check_result(c, 3, {'failed': 2})
            reason(c, 'interrupted')
            parent.as_before()
            check_nothing_left(c, parent)
        for disk in (0, 1):
            parent.io(disk, f'read -P {0x51 + disk} 1M 3M')     # says what differs
        parent.io(0, 'read -P 0x61 5M 1M')
        before = snapshot(parent)
        with Fork(t, parent, 1) as c:          # and can be forked as any other
            check_result(c, 0, {'complete': 1})
            Child(c.children[0], parent).check(before)
            kill(c.base, 'f')


def agents_alone(folder):
    """The pids of a fork's agents; None as long as vmclone itself is written down beside them"""
    states = []
    for path in glob.glob(folder + '/*/state.json'):
        with contextlib.suppress(FileNotFoundError, ValueError), open(path, encoding='utf-8') as f:
            states.append(json.load(f))
    return None if any('unfinished' in s for s in states) else [s['agent'] for s in states]


def kept(t, accel):
    """What may be in use is not written to: children that run, an agent that was killed."""
    one = bad_child(t, 'one', 'case "$*" in */2.qmp*) exit 5;; esac')
    with DiskParent(t, accel, memory='memfd') as parent:
        parent.start_load()
        with Fork(t, parent, 2, '--qemu', one) as c:
            check_result(c, 1, {'complete': 1, 'failed': 1})
            if set(parent.tops()) & set(parent.images) or len(c.result['disks']) != 2:
                raise Failed(f'a child reads what the parent writes: {parent.tops()}')
            kill(c.base, 'f')
        tops = parent.tops()
        hangs, _ = gated_child(t, 'hangs')
        with Fork(t, parent, 1, '--qemu', hangs, name='g') as c:
            wait_for('its overlays', 40, lambda: parent.tops() != tops)
            for agent in wait_for('agents alone', 20, lambda: agents_alone(c.base + '/g')):
                os.kill(agent, signal.SIGKILL)
            check_result(c, 3, {'failed': 1})
            if parent.tops() == tops or len(c.result['disks']) != 2:
                raise Failed('written back although a child may be there')
            if not any('overlays stay' in n for n in c.result['notes']):
                raise Failed(f'it is not said: {c.result["notes"]}')
            out = kill(c.base, 'g')
            if out.returncode:
                raise Failed(f'--kill: {out}')
            check_nothing_left(c)


def in_use(t, accel):
    """Somebody reads the image that would be written to, perhaps without QEMU's locks: it is not."""
    for locking in 'auto', 'off':
        fails, go = gated_child(t, f'fails-{locking}')
        with DiskParent(t, accel, memory='memfd') as parent:
            parent.start_load()
            with Fork(t, parent, 1, '--qemu', fails) as c:
                wait_for('overlays', 40, lambda: not set(parent.tops()) & set(parent.images))
                top = os.path.join(parent.folder, 'reader.qcow2')
                qemu_img('create', '-q', '-u', '-f', 'qcow2', '-F', 'raw', '-b', parent.images[0],
                         top, str(DISK))
                with subprocess.Popen(
                        [common.QEMU, '-S', '-nodefaults', '-display', 'none', '-accel', 'qtest',
                         '-drive', f'file={top},if=virtio,format=qcow2,backing.file.locking={locking}',
                         '-qmp', 'stdio'],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
                    reader.stdin.write(b'{"execute": "qmp_capabilities"}\n')
                    reader.stdin.flush()
                    for _ in range(2):      # the greeting, and an answer: its disks are open
                        reader.stdout.readline()
                    go()
                    check_result(c, 3, {'failed': 1})
                    reader.communicate(b'{"execute": "quit"}\n', timeout=20)
                said = f'since the commit failed: {parent.images[0]}: the process {reader.pid} has it'
                if not any(said in n for n in c.result['notes']):
                    raise Failed(f'it is not said: {c.result["notes"]}')
                if set(parent.tops()) & set(parent.images):
                    raise Failed(f'written to: {parent.tops()}')
                check_nothing_left(c, parent)
        os.unlink(parent.console)


class Stops(dict):
    """What a QEMU says that has no room for its overlay from the export on."""

    def get(self, key, default=None):
        if key == 'x-farfork-export':
            self['query-status'] = {'return': {'status': 'io-error', 'running': False}}
        return super().get(key, default)


def stopped(t, _accel):
    """A parent that stops for the sake of a fork: it is said."""
    none = {'return': []}
    replies = Stops({'qmp_capabilities': {'return': {}}, 'query-block': none,
                     'x-farfork-look': {'return': {}},
                     'query-named-block-nodes': none, 'query-rx-filter': none, 'query-jobs': none,
                     'query-block-exports': none,
                     'query-x-farfork-exports': none, 'x-query-ramblock': RAMBLOCK,
                     'query-status': {'return': {'status': 'running', 'running': True}},
                     'x-farfork-export': {'return': {'pause-ns': 1}}})
    with FakeParent(t, replies) as parent, \
            Fork(t, parent, 1, '--agent', parent.beside, '--qemu', bad_child(t, 'bad', 'exit 5')) as c:
        check_result(c, 3, {'failed': 1})
        if 'the parent has stopped' not in (c.result['parent_stopped'] or ''):
            raise Failed(f'it is not said: {c.result["parent_stopped"]}')
        if 'cont' in parent.asked:
            raise Failed('it was continued without room')
        check_nothing_left(c)


def same_id(t, accel):
    with DiskParent(t, accel, memory='memfd') as parent:
        parent.start_load()
        with Fork(t, parent, 1, name='same') as c:
            check_result(c, 0, {'complete': 1})
            kill(c.base, 'same')
        with Fork(t, parent, 1, name='same') as c:
            check_result(c, 3, {'failed': 1})
            reason(c, "fork id 'same' was used before; the parent writes to", '--id')


def in_turn(t, accel):
    """Many forks of one parent, begun at once: each is made."""
    with DiskParent(t, accel, memory='memfd') as parent, contextlib.ExitStack() as stack:
        parent.start_load()
        before = snapshot(parent)
        forks = [stack.enter_context(Fork(t, parent, 1, name=f'f{i}')) for i in range(AT_ONCE)]
        for c in forks:
            check_result(c, 0, {'complete': 1})
        for i, c in enumerate(forks):
            Child(c.children[0], parent).check(before)
            kill(c.base, f'f{i}')
        # one that waits can be interrupted, and says that it waits
        with Fork(t, parent.sock_path, 1, name='w') as c:
            line = c.proc.stderr.readline()
            if 'waiting' not in line or parent.sock_path not in line:
                raise Failed(f'it says "{line}"')
            c.proc.send_signal(signal.SIGINT)
            check_result(c, 3, {'failed': 1})
            reason(c, 'interrupted')


def one_hangs(t, accel):
    """A host that hangs does not keep the others from being forked to."""
    launcher = 'test {host} != h2 || exec sleep 1000; exec {cmd}'
    with ForkParent(t, accel, mem_mib=MIB) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Fork(t, parent, 2, '--launcher', launcher, '--timeout', '1000', hosts=TWO_HOSTS) as c:
            check_result(c, 1, {'complete': 1, 'failed': 1})
            reason(c, 'while other hosts answered')
            Child(c.children[0], parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def run(t):
    accel = t.best_accel()
    for name, case in (('found before the parent is paused', found_before),
                       ('taken back after it', taken_back), ('kept', kept),
                       ('an image in use', in_use), ('the parent stops', stopped),
                       ('an id that was used before', same_id), ('forks queue', in_turn),
                       ('one host hangs', one_hangs)):
        with t.case(name):
            case(t, accel)


if __name__ == '__main__':
    common.main(run, limit_s=280)
