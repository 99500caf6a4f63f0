#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""move_parents.py - farfork move of a QEMU that has more than its command line says

What it was told at run time, files that it writes, jobs on its disks, a disk that the other host has
only a copy of, and who would start it again; limit: 200 s.
"""
import contextlib
import glob
import itertools
import os
import shutil
import subprocess

import common
from common import Failed, check_ledger, status, wait_for
from farfork_move import HOST, Move, check_here, one, there
from forked import Clone, Parent, check_result, kill, run_vmclone


def left_alone(t, accel):
    """Files that the QEMU here writes stay as they are; its folder is gone."""
    files = [os.path.join(t.work, n) for n in ('a.pcap', 'a.trace')]

    def before(_):
        os.chdir(was)
        os.rmdir(folder)
        for path in files:
            with open(path, 'ab') as f:
                f.write(b'of the QEMU here')

    def after(b):
        for path in files:
            with open(path, 'rb') as f:
                if b'of the QEMU here' not in f.read():
                    raise Failed(f'{path} was emptied')
            if not glob.glob(f'{os.path.dirname(b.second)}/1.{os.path.basename(path)}'):
                raise Failed(f'no file of its own for {path}')
        if os.readlink(f'/proc/{b.proc.pid}/cwd') != '/':
            raise Failed('it does not run in /')
    folder, was = os.path.join(t.work, 'gone'), os.getcwd()
    os.mkdir(folder)
    os.chdir(folder)
    try:
        one(t, accel, extra=('-netdev', 'user,id=n0', '-object',
                             f'filter-dump,id=f0,netdev=n0,file={files[0]}', '-trace',
                             f'enable=qdev_reset,file={files[1]}'), before=before, after=after)
    finally:
        os.chdir(was)


def told(t, accel):
    """What it was told at run time is noted, by moves and forks, while it runs; else nothing is."""
    image = os.path.join(t.work, 'told.qcow2')
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', image, '8M'], check=True, timeout=20)
    own = ('-drive', f'file={common.QEMU},format=raw,if=virtio,read-only=on,iops=77',     # by a name that QEMU makes
           '-drive', f'file={image},format=qcow2,if=none,id=d0,bps=4096', '-device', 'virtio-blk-pci,drive=d0',
           '-object', 'throttle-group,id=tg,x-iops-total=7', '-object', 'iothread,id=io',
           '-device', 'virtio-balloon-pci,id=bal', '-device', 'i6300esb')
    changes = (
        ('human-monitor-command', {'command-line': 'block_set_io_throttle d0 50 0 0 9 0 0'},
         'disk d0: the limits of block_set_io_throttle (bps=50 iops=9)'),
        ('qom-set', {'path': '/objects/tg', 'property': 'limits', 'value': {'iops-total': 8}},
         '/objects/tg: its limit iops-total is 8 by qom-set, and 7'),
        ('qom-set', {'path': '/objects/io', 'property': 'poll-max-ns', 'value': 5},
         '/objects/io: poll-max-ns is 5 by qom-set, and 32768'),
        ('qom-set', {'path': '/machine/peripheral/bal', 'property': 'guest-stats-polling-interval', 'value': 3},
         'guest-stats-polling-interval is 3 by qom-set, and 0'),
        ('object-add', {'qom-type': 'iothread', 'id': 'late'}, 'object late (iothread) was added later'),
        ('chardev-add', {'id': 'later', 'backend': {'type': 'null', 'data': {}}}, 'chardev later was added later'),
        ('block-dirty-bitmap-add', {'node': 'd0', 'name': 'bits'}, 'dirty bitmap bits'),
        ('blockdev-snapshot-internal-sync', {'device': 'd0', 'name': 'snap'}, None))

    def check(what, notes, want):
        missing = [w for w in want if not any(w in n for n in notes)]
        if missing or len(notes) != len(want):
            raise Failed(f'{what}: want notes with {missing}: {notes}')
    wants = [w for _, _, w in changes if w]
    with Parent(t, accel, extra=own) as a:
        a.start_load()
        with Clone(t, a, 1) as c:
            if c.end():
                raise Failed(f'{c.result} {c.err}')
            kept = [n for n in c.result['notes'] if 'identity:' not in n]
            check('a fork', kept, ['-device i6300esb: its action'])
        os.sched_setaffinity(a.proc.pid, {min(os.sched_getaffinity(0))})
        pinned = [] if os.sched_getaffinity(0) == os.sched_getaffinity(a.proc.pid) else ['CPU affinity']
        node = [d['inserted']['node-name'] for d in a.qmp('query-block') if d['device'] == 'd0'][0]
        for command, arguments, _ in changes:
            a.qmp(command, **({**arguments, 'node': node}
                              if 'node' in arguments else arguments))
        common.write_file(f'/proc/{a.proc.pid}/oom_score_adj', '500')
        wants += ['-device i6300esb: its action', 'oom_score_adj 500']
        out = run_vmclone('--rundir', c.base, '--id', 'g', a.second, '1').stdout    # first of all
        first = list(itertools.takewhile(lambda line: line.startswith('note: '), out.splitlines()))
        check('a fork', [n for n in first if 'identity:' not in n], wants + ['internal snapshot snap'])
        kill(c.base, 'g')
        with Move(t, a) as m:
            m.end(0, 'there')
            check('a move', m.result['notes'], wants)
            if pinned and not any(pinned[0] in n for n in m.result['notes']):
                raise Failed(f'{m.result["notes"]}')


def waited_for(t, accel):
    """Whoever started its QEMU tidies up when that ends: it stays, and runs nobody."""
    image = os.path.join(t.work, 'waits.img')
    common.write_file(image, 'its disk')
    a = Parent(t, accel)
    a.argv = ['sh', '-c', 'setpriv --pdeathsig KILL "$@"; rm "$0"', image, *a.argv]
    with a:
        a.start_load()
        with Move(t, a) as m:
            m.end(0, 'there')
            if m.result['parent_ended'] or f'{a.proc.pid}: sh' not in str(m.result['notes']):
                raise Failed(f'who waits for it is not named: {m.result["notes"]}')
            with there(t, 'b', m.result) as b:
                check_ledger(a, b)
        if status(a) != 'postmigrate' or not os.path.exists(image):
            raise Failed('the QEMU here has ended')
        with contextlib.suppress(common.GuestError):
            a.qmp('cont')
            raise Failed('it runs its guest again')
        a.qmp('quit')
        a.proc.wait(20)
        if os.path.exists(image):
            raise Failed('nobody tidied up, so this tests nothing')


def keep_source(t, accel):
    with Parent(t, accel) as a:
        a.start_load()
        with Move(t, a, '--keep-source') as m:
            m.end(0, 'there')
            if m.result['parent_ended'] or a.proc.poll() is not None or 'was kept' not in str(m.result['notes']):
                raise Failed(f'it was not kept: {m.result["notes"]}')


def needs_its_folder(t, accel):
    """An option names a file in a folder that is gone: refused, by moves and forks."""
    folder, was = os.path.join(t.work, 'gone'), os.getcwd()
    os.mkdir(folder)
    common.write_file(os.path.join(folder, 'text'), 'x')
    os.chdir(folder)
    try:
        parent = Parent(t, accel, extra=('-fw_cfg', 'name=opt/x,file=text')).__enter__()
    finally:
        os.chdir(was)
    with contextlib.ExitStack() as undo:
        undo.push(parent.__exit__)
        shutil.rmtree(folder)
        parent.start_load()
        with Move(t, parent) as m:
            m.end(1, 'here', 'name=opt/x,file=text names a file')
            check_here(m, parent)
        with Clone(t, parent, 1) as c:
            if c.end() == 0 or 'name=opt/x,file=text names a file' not in c.result['error']:
                raise Failed(f'{c.result}')
            if c.result['freeze']:
                raise Failed('it was paused')


def busy(t, accel):
    """A job or an export that writes to its disk: nothing is started, for a move or a fork; a reader is noted."""
    nbd = os.path.join(t.work, 'busy.nbd')
    null = 'driver=null-co,size=1073741824,read-zeroes=on,node-name='
    with Parent(t, accel, extra=('-blockdev', null + 'd0', '-device', 'virtio-blk-pci,drive=d0,share-rw=on',
                                 '-blockdev', null + 'copy')) as a:
        a.start_load()
        a.qmp('nbd-server-start', addr={'type': 'unix', 'data': {'path': nbd}})

        def refused_both(what):
            text = what + ' of disk '
            with Move(t, a, launcher=('--launcher', 'exit 9; {host} {cmd}')) as m:
                m.end(1, 'here', text)
            with Clone(t, a, 1) as c:
                check_result(c, 3, {'failed': 1})
                if what not in c.result['error']:
                    raise Failed(f'{c.result}: want "{what}"')

        a.qmp('blockdev-mirror', job_id='j', device='d0', target='copy', sync='full', speed=1)
        refused_both("job 'j' (mirror)")
        a.qmp('block-job-cancel', device='j', force=True)
        wait_for('end of the job', 20, lambda: not a.qmp('query-jobs'))
        a.qmp('block-export-add', type='nbd', id='e', node_name='d0', writable=True)
        refused_both("export 'e' (nbd)")
        a.qmp('block-export-del', id='e')
        wait_for('end of the export', 20, lambda: not a.qmp('query-block-exports'))
        a.qmp('block-export-add', type='nbd', id='r', node_name='d0')
        with Move(t, a) as m:
            m.end(0, 'there')
            if "export 'r' (nbd) of disk " not in ' '.join(m.result['notes']):
                raise Failed(f'no note of the reader: {m.err} {m.result}')
            kill(m.base, m.name)


def copied(t, accel):
    """The host has a copy by the name of its disk: nothing is started there, but for one who knows."""
    image, copy = (os.path.join(t.work, n) for n in ('there.raw', 'copy.raw'))
    for path in image, copy:
        with open(path, 'wb') as f:
            f.truncate(1 << 20)
    with open(os.path.join(t.work, 'over'), 'w', encoding='ascii') as f:
        f.write(f'#!/bin/sh\nmount --bind {copy} {image} && exec env FF_HOST="$@"\n')
    os.chmod(f.name, 0o700)
    over = ('--launcher', f'unshare -m {f.name} {{host}} {{cmd}}')
    with Parent(t, accel, extra=('-drive', f'file={image},format=raw,if=none,id=d0',
                                 '-device', 'virtio-blk-pci,drive=d0')) as a:
        a.start_load()
        with Move(t, a, launcher=over) as m:
            m.end(1, 'here', f'image {image}: nothing shows that it is the same file on h1')
            check_here(m, a)
            with Clone(t, a, 2, *over, hosts=[HOST]) as c:
                check_result(c, 3, {'failed': 2})
                if f'image {image}: nothing shows' not in str(c.result):
                    raise Failed(f'{c.result}')
            if glob.glob(t.work + '/.farfork-same-*'):
                raise Failed(f'left: {os.listdir(t.work)}')
        with Move(t, a, '--same-disks', launcher=over) as m:
            m.end(0, 'there')
            kill(m.base, m.name)


def run(t):
    accel = t.best_accel()
    for name, case in (
            ('what it was told', lambda: told(t, accel)),
            ('files that it writes', lambda: left_alone(t, accel)),
            ('its folder is gone, and needed', lambda: needs_its_folder(t, accel)),
            ('jobs and exports of its disks', lambda: busy(t, accel)),
            ('a copy of its disk there', lambda: copied(t, accel)),
            ('a parent process that waits', lambda: waited_for(t, accel)),
            ('--keep-source', lambda: keep_source(t, accel))):
        for path in glob.glob(t.work + '/*.console'):   # of the case before
            os.unlink(path)
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=200)
