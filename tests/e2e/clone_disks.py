#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""clone_disks.py - disks of a fork, with real QEMUs and no guest; limit: 150 s

tests/e2e/plan_disks.c says what is to be done (vm/disk/disks.c); this does it: a parent, its fork by
a transaction, children. Each machine then writes to its disks at random, and each must hold what
it had at the fork and what it wrote itself, byte by byte.
"""
import contextlib
import hashlib
import json
import os
import random
import subprocess

import common
from common import BUILD, QEMU, Failed, Skip, say

from qemu import Guest, GuestError
PLAN = os.path.join(BUILD, 'tests', 'clone', 'plan')
SIZE = 4 << 20
STEP_LIMIT_S = 30


class Machine(Guest):
    """A QEMU that never runs a guest, and a model of what its disks must hold."""

    def __init__(self, work, name, argv, disks):
        # pylint: disable=super-init-not-called
        self.name, self.env, self.events, self.pending = name, None, [], b''
        self.stderr = os.path.join(work, name + '.stderr')
        self.sock_path = os.path.join(work, name + '.qmp')
        self.qmp_sock = self.proc = None
        self.options = list(argv)
        self.argv = [QEMU, *argv, '-qmp', f'unix:{self.sock_path},server=on,wait=off']
        self.model = [bytearray(d) for d in disks]

    def paths(self):
        """Of the writable disks, in the order of the command line's ids v0, v1, ..."""
        entries = [b for b in self.qmp('query-block')
                   if b.get('inserted') and not b['inserted']['ro']]
        return sorted(b['qdev'] for b in entries)

    def io(self, disk, command):
        out = self.qmp('human-monitor-command', **{
            'command-line': f'qemu-io -d {self.paths()[disk]} "{command}"'})
        if out:
            raise Failed(f'{self.name}: {command}: {out}')

    def write(self, rng):
        disk, value = rng.randrange(len(self.model)), rng.randrange(1, 256)
        length = rng.choice([512, 4096, 65536, 100352])
        at = rng.randrange(0, SIZE - length, 512)
        self.io(disk, f'write -P {value} {at} {length}')
        self.model[disk][at:at + length] = bytes([value]) * length

    def flush(self):
        for disk in range(len(self.model)):
            self.io(disk, 'flush')


def program(argv):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=STEP_LIMIT_S, check=False)
    if done.returncode:
        raise Failed(f'{argv[0]}: {done.stdout.strip()}')


def do(steps, machine=None):
    for step in steps:
        if 'argv' in step:
            program(step['argv'])
        elif 'qmp' in step:
            machine.qmp(step['qmp']['execute'], **step['qmp'].get('arguments', {}))
        elif 'create' in step:
            os.close(os.open(step['create'], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        elif 'unlink' in step:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(step['unlink'])


def plan(machine, fork, scratch, children=2, nbd=None, pidfile=None, **more):
    place = {'scratch': scratch}
    if nbd:
        place.update(nbd=nbd, pidfile=pidfile)
    request = {'fork': fork, 'argv': machine.options, 'cwd': os.getcwd(), 'children': children,
               'block': machine.qmp('query-block'),
               'nodes': machine.qmp('query-named-block-nodes'), 'place': place, **more}
    done = subprocess.run([PLAN], input=json.dumps(request), capture_output=True, text=True,
                          timeout=STEP_LIMIT_S, check=False)
    if done.returncode:
        raise Failed(done.stderr.strip() or f'plan: exit code {done.returncode}')
    return json.loads(done.stdout)


def content(image, size=SIZE):
    """What a guest sees in an image that a QEMU has open, or not."""
    raw = image + '.check'
    program(['qemu-img', 'convert', '-U', '-f', 'qcow2', '-O', 'raw', image, raw])
    with open(raw, 'rb') as f:
        data = f.read()
    os.unlink(raw)
    if len(data) != size:
        raise Failed(f'{image}: {len(data)} bytes, want {size}')
    return data


def check(name, images, model):
    for disk, image in enumerate(images):
        have, want = content(image), bytes(model[disk])
        if have != want:
            at = next(i for i in range(SIZE) if have[i] != want[i])
            raise Failed(f'{name}: disk {disk} differs at {at:#x}: {have[at]}, want {want[at]}')


class Setup:
    """A folder with images, and a parent that has them as disks."""

    def __init__(self, t, name, seed):
        self.dir = os.path.join(t.work, name)
        self.scratch = os.path.join(self.dir, 'scratch')
        os.makedirs(self.scratch)
        self.rng = random.Random(seed)
        self.stack = contextlib.ExitStack()
        self.images = {}

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stack.close()

    def image(self, name, fmt):
        """SIZE random bytes in an image; (path, bytes)"""
        path = os.path.join(self.dir, name)
        data = self.rng.randbytes(SIZE)
        raw = path + '.raw' if fmt == 'qcow2' else path
        with open(raw, 'wb') as f:
            f.write(data)
        if fmt == 'qcow2':
            program(['qemu-img', 'convert', '-f', 'raw', '-O', 'qcow2', raw, path])
            os.unlink(raw)
        return path, data

    def backed(self, name, base, base_format):
        path = os.path.join(self.dir, name)
        program(['qemu-img', 'create', '-q', '-f', 'qcow2', '-F', base_format, '-b', base, path])
        return path

    def start(self, name, argv, disks, **more):
        return self.stack.enter_context(Machine(self.dir, name, argv, disks, **more))

    def parent(self, *disk_argv, disks):
        base = ['-S', '-nodefaults', '-display', 'none', '-machine', 'q35', '-accel', 'tcg',
                '-m', '32M', *disk_argv]
        return self.start('parent', base, disks)

    def child(self, p, number, parent, name='child', extra=()):
        """Its overlays made, started; the model is what the parent holds now."""
        do(p['children'][number - 1]['steps'])
        return self.start(f'{name}{number}', p['children'][number - 1]['argv'] + list(extra),
                          parent.model)

    def serve(self, p, pidfile):
        program(p['server'])
        with open(pidfile, encoding='ascii') as f:
            pid = int(f.read())
        self.stack.callback(end, pid)


def end(pid):
    fd = os.pidfd_open(pid)
    os.kill(pid, 15)
    common.wait_for('end of the NBD server', 10, lambda: not alive(pid))
    os.close(fd)


def alive(pid):
    try:
        with open(f'/proc/{pid}/stat', encoding='ascii') as f:
            return f.read().rpartition(')')[2].split()[0] != 'Z'
    except FileNotFoundError:
        return False


def fork(parent, p):
    """What x-farfork-export does with the disks."""
    parent.qmp('transaction', actions=p['actions'])


def overlays(p):
    return [s['parent-overlay'] for s in p['summary']]


def in_order(parent, p):
    """Overlays are named by QEMU's order of disks; ours is that of v0, v1, ..."""
    order = [b['qdev'] for b in parent.qmp('query-block')
             if b.get('inserted') and not b['inserted']['ro']]
    return [order.index(q) for q in sorted(order)]


def write_all(rng, machines, count=30):
    for _ in range(count):
        rng.choice(machines).write(rng)
    for m in machines:
        m.flush()


def check_all(parent, p, children):
    order = in_order(parent, p)
    check('parent', [overlays(p)[i] for i in order], parent.model)
    for k, child in enumerate(children):
        check(child.name, [p['children'][k]['files'][i] for i in order], child.model)


def two_disks(s, raw_by='blockdev'):
    raw, a = s.image('a.img', 'raw')
    qcow2, b = s.image('b.qcow2', 'qcow2')
    if raw_by == 'blockdev':
        argv = ['-blockdev', f'driver=file,node-name=f0,filename={raw}',
                '-blockdev', 'driver=raw,node-name=d0,file=f0', '-device',
                'virtio-blk-pci,drive=d0,id=v0', '-drive',
                f'file={qcow2},if=none,id=q,format=qcow2,cache=writeback,discard=unmap',
                '-device', 'virtio-blk-pci,drive=q,id=v1']
    elif raw_by == 'short':
        argv = ['-hda', raw, '-drive', f'file={qcow2},if=virtio,cache=none']
        a, b = b, a         # in the order of their devices' paths
    else:       # as libvirt writes it
        argv = ['-drive', f'if=none,id=r,format=raw,file.driver=file,file.filename={raw}',
                '-device', 'virtio-blk-pci,drive=r,id=v0',
                '-blockdev', json.dumps({'driver': 'file', 'filename': qcow2, 'node-name': 's1',
                                         'auto-read-only': True, 'discard': 'unmap'}),
                '-blockdev', json.dumps({'node-name': 'n1', 'read-only': False, 'file': 's1',
                                         'driver': 'qcow2', 'discard': 'unmap'}),
                '-device', json.dumps({'driver': 'virtio-blk-pci', 'drive': 'n1', 'id': 'v1'})]
    return s.parent(*argv, disks=[a, b])


def forked(t, name, raw_by, nbd=None):
    with Setup(t, name, name) as s:
        parent = two_disks(s, raw_by)
        write_all(s.rng, [parent], 10)
        pidfile = os.path.join(s.dir, 'nbd.pid')
        where = {'unix': f'unix:{s.dir}/nbd.sock',
                 'tcp': f'127.0.0.1:{common.free_port()}'}.get(nbd)
        p = plan(parent, name, s.scratch, nbd=where, pidfile=pidfile)
        do(p['prepare'], parent)
        parent.write(s.rng)
        fork(parent, p)
        if where:
            s.serve(p, pidfile)
        # the parent goes on before its children are there
        at_fork = [bytes(d) for d in parent.model]
        write_all(s.rng, [parent], 10)
        children = []
        for k in (1, 2):
            children.append(s.child(p, k, parent))
            children[-1].model = [bytearray(d) for d in at_fork]
        check_all(parent, p, children)
        if where and any(s['frozen'] in json.dumps(c.argv) for c in children
                         for s in p['summary']):
            raise Failed('a child names a file of the parent\'s host')
        write_all(s.rng, [parent, *children], 40)
        check_all(parent, p, children)


def digest(path):
    with open(path, 'rb') as f:
        return hashlib.sha256(f.read()).hexdigest()


def twice(t):
    """A second fork, of a parent that lives in an overlay, while children of the first write."""
    with Setup(t, 'twice', 2) as s:
        parent = two_disks(s)
        first = plan(parent, 'one', s.scratch)
        do(first['prepare'], parent)
        fork(parent, first)
        frozen = {d['frozen']: digest(d['frozen']) for d in first['summary']}
        old = [s.child(first, k, parent, 'old') for k in (1, 2)]
        write_all(s.rng, [parent, *old], 20)
        second = plan(parent, 'two', s.scratch)
        if [d['frozen'] for d in second['summary']] != overlays(first):
            raise Failed(f'frozen the second time: {second["summary"]}, want {overlays(first)}')
        do(second['prepare'], parent)
        fork(parent, second)
        new = [s.child(second, k, parent, 'new') for k in (1, 2)]
        write_all(s.rng, [parent, *old, *new], 40)
        check_all(parent, second, new)
        order = in_order(parent, second)
        for k, child in enumerate(old):
            check(child.name, [first['children'][k]['files'][i] for i in order], child.model)
        # a template is not frozen anew, but what it has written to is
        third = plan(parent, 'three', s.scratch, stopped=True)
        if [d['frozen'] for d in third['summary']] != overlays(second):
            raise Failed(f'a disk that was written to is not frozen: {third["summary"]}')
        do(third['prepare'], parent)
        fork(parent, third)
        fourth = plan(parent, 'four', s.scratch, stopped=True)
        if [d['frozen'] for d in fourth['summary']] != overlays(second) or fourth['actions']:
            raise Failed(f'frozen anew: {fourth}')
        youngest = [s.child(fourth, k, parent, 'youngest') for k in (1, 2)]
        check_all(parent, fourth, youngest)
        for disk, command in enumerate(('write -z 65536 65536', 'discard 0 65536')):
            parent.io(disk, command)
            if len(plan(parent, 'five', s.scratch, stopped=True)['actions']) != disk + 1:
                raise Failed(f'not frozen anew after {command}')
        for path, want in frozen.items():
            if digest(path) != want:
                raise Failed(f'{path} has changed since it was frozen')


def backed_disk(t):
    """A disk with a backing file, a read-only one and a CD-ROM; the last two by NBD as well."""
    for nbd in (False, True):
        with Setup(t, f'backed{nbd}', 3) as s:
            base, data = s.image('base.qcow2', 'qcow2')
            top = s.backed('top.qcow2', base, 'qcow2')
            ro, _ = s.image('ro.img', 'raw')
            iso, _ = s.image('cd.iso', 'raw')
            parent = s.parent('-drive', f'file={top},if=none,id=q,cache=none',
                              '-device', 'virtio-blk-pci,drive=q,id=v0',
                              '-blockdev', f'driver=file,node-name=rf,filename={ro},read-only=on',
                              '-blockdev', 'driver=raw,node-name=rd,file=rf,read-only=on',
                              '-device', 'virtio-blk-pci,drive=rd,id=w0',
                              '-cdrom', iso, disks=[data])
            write_all(s.rng, [parent], 10)
            pidfile = os.path.join(s.dir, 'nbd.pid')
            p = plan(parent, 'b', s.scratch, nbd=f'unix:{s.dir}/n' if nbd else None,
                     pidfile=pidfile)
            do(p['prepare'], parent)
            fork(parent, p)
            if nbd:
                s.serve(p, pidfile)
            children = [s.child(p, k, parent) for k in (1, 2)]
            write_all(s.rng, [parent, *children], 20)
            check_all(parent, p, children)
            kept = [b for b in children[0].qmp('query-block')
                    if b.get('inserted', {}).get('ro')]
            want = {'nbd+unix' if nbd else x for x in (ro, iso)}
            if len(kept) != 2 or {b['inserted']['file'].split(':')[0] for b in kept} != want:
                raise Failed(f'read-only disks of a child: {kept}')


def prestarted(t):
    """A child that has its disks open from before the fork: it must see none of it stale."""
    with Setup(t, 'pre', 4) as s:
        parent = two_disks(s)
        p = plan(parent, 'pre', s.scratch)
        do(p['prepare'], parent)
        child = s.child(p, 1, parent, extra=('-incoming', 'defer'))
        write_all(s.rng, [parent], 20)
        fork(parent, p)
        at_fork = [bytes(d) for d in parent.model]
        write_all(s.rng, [parent], 10)
        state = os.path.join(s.dir, 'state')
        parent.qmp('migrate', uri=f'file:{state}')
        common.wait_migration(parent, 'completed')
        child.qmp('migrate-incoming', uri=f'file:{state}')
        common.wait_for('state of the child', 20,
                        lambda: child.qmp('query-status')['status'] != 'inmigrate')
        for m in (parent, child):       # both were never started: this activates their disks
            m.qmp('cont')
            m.qmp('stop')
        child.model = [bytearray(d) for d in at_fork]
        write_all(s.rng, [parent, child], 30)
        check_all(parent, p, [child])
        for m in (parent, child):
            read_back(s, m)


def read_back(s, machine):
    """What QEMU itself reads, by an export of its own: not what is in the files."""
    sock = os.path.join(s.dir, machine.name + '.nbd')
    machine.qmp('nbd-server-start', addr={'type': 'unix', 'data': {'path': sock}})
    nodes = {b['qdev']: b['inserted']['node-name'] for b in machine.qmp('query-block')
             if b.get('inserted')}
    for disk, path in enumerate(machine.paths()):
        machine.qmp('block-export-add', type='nbd', id=f'x{disk}', node_name=nodes[path],
                    name=f'x{disk}')
        raw = os.path.join(s.dir, 'read')
        program(['qemu-img', 'convert', '-f', 'raw', '-O', 'raw',
                 f'nbd+unix:///x{disk}?socket={sock}', raw])
        with open(raw, 'rb') as f:
            if f.read() != machine.model[disk]:
                raise Failed(f'{machine.name}: disk {disk}: QEMU reads something else')


def undone(t):
    """Prepared and taken back: the parent as before, nothing left."""
    with Setup(t, 'undone', 5) as s:
        parent = two_disks(s)
        before = sorted(n['file'] for n in parent.qmp('query-named-block-nodes'))
        p = plan(parent, 'u', s.scratch)
        do(p['prepare'], parent)
        common.refuses(parent, ('Duplicate', 'duplicate', 'already'),
                       p['prepare'][2]['qmp']['execute'], **p['prepare'][2]['qmp']['arguments'])
        do(p['undo'], parent)
        after = sorted(n['file'] for n in parent.qmp('query-named-block-nodes'))
        if after != before or any(os.path.exists(x) for x in overlays(p)):
            raise Failed(f'left after undo: {set(after) - set(before)}, {overlays(p)}')
        write_all(s.rng, [parent], 5)


def full(t):
    """A scratch folder, and one for the parent's overlays, without space."""
    with Setup(t, 'full', 6) as s:
        parent = two_disks(s)
        small = os.path.join(s.dir, 'small')
        os.mkdir(small)
        mount = ['mount', '-t', 'tmpfs', '-o', 'size=64k', 'none', small]
        if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
            raise Skip('cannot mount a tmpfs: run as root')
        s.stack.callback(subprocess.run, ['umount', small], check=True)
        refused(lambda: plan(parent, 'f', small), 'no space left', '--scratch')
        with contextlib.suppress(OSError), open(os.path.join(small, 'filler'), 'wb', 0) as f:
            while f.write(bytes(4096)):
                pass
        p = plan(parent, 'f', s.scratch, overlays=small)
        refused(lambda: do(p['prepare'], parent), 'No space left on device', small)
        for step in p['undo']:      # of half of it: what is not there may be refused
            with contextlib.suppress(GuestError):
                do([step], parent)
        if os.listdir(small) != ['filler']:
            raise Failed(f'left: {os.listdir(small)}')
        common.refuses(parent, 'Cannot find', 'transaction', actions=p['actions'])
        write_all(s.rng, [parent], 5)


def refused(call, *texts):
    try:
        call()
    except Failed as e:
        missing = [x for x in texts if x not in str(e)]
        if missing:
            raise Failed(f'refused with "{e}", want {missing}') from None
        return
    raise Failed(f'not refused, want {texts}')


def committed(t):
    """What the manual says for afterwards: the parent's overlay back into its image."""
    with Setup(t, 'commit', 7) as s:
        parent = two_disks(s)
        p = plan(parent, 'c', s.scratch)
        do(p['prepare'], parent)
        fork(parent, p)
        write_all(s.rng, [parent], 20)
        for d in p['summary']:
            parent.qmp('block-commit', job_id='c', device=d['parent-node'], base=d['frozen'])
            common.wait_for('commit', 30, lambda: parent.qmp('query-jobs')[0]['status'] == 'ready')
            parent.qmp('job-complete', id='c')
            common.wait_for('end of the commit', 30, lambda: not parent.qmp('query-jobs'))
            parent.qmp('blockdev-del', node_name=d['parent-node'])
            os.unlink(d['parent-overlay'])
        order = in_order(parent, p)
        parent.qmp('quit')
        parent.proc.wait(10)
        for disk, i in enumerate(order):
            image, fmt = p['summary'][i]['frozen'], p['summary'][i]['format']
            raw = os.path.join(s.dir, 'out')
            program(['qemu-img', 'convert', '-f', fmt, '-O', 'raw', image, raw])
            with open(raw, 'rb') as f:
                if f.read() != parent.model[disk]:
                    raise Failed(f'{image} is not what the parent had')


def run(t):
    common.need_files(PLAN)
    for tool in ('qemu-img', 'qemu-storage-daemon'):
        if not any(os.access(os.path.join(d, tool), os.X_OK)
                   for d in os.environ['PATH'].split(':')):
            raise Skip(f'no {tool}: install packages qemu-utils, qemu-system-common')
    for name, raw_by, nbd in (('local', 'blockdev', None), ('libvirt', 'drive', None),
                              ('short', 'short', None),
                              ('nbd-unix', 'blockdev', 'unix'), ('nbd-tcp', 'drive', 'tcp')):
        with t.case(f'two disks, {name}'):
            forked(t, name, raw_by, nbd)
    for name, case in (('forked twice', twice), ('backing file and read-only disks', backed_disk),
                       ('children started ahead', prestarted), ('undone', undone),
                       ('no space', full), ('committed', committed)):
        with t.case(name):
            case(t)
    say('each byte of each machine was compared')


if __name__ == '__main__':
    common.main(run, 150, needs=lambda: None)
