#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""move_states.py - farfork move says that the guest is here only where its QEMU says so

Somebody else moves it, its QEMU has ended, the socket is another one: exit code 3, and the guest is
looked for before it is started anywhere. Limit: 120 s.
"""
import contextlib
import os
import signal
import socket
import subprocess
import threading

import common
from common import Failed, check_ledger, wait_for
from farfork_move import Move, check_here, check_left_here, there, wait_source
from forked import SLOW, Parent, check_nothing_left, kill, processes_of


class Chatter:
    """A socket that greets like QEMU's human monitor."""

    def __init__(self, t):
        self.second = os.path.join(t.work, 'hmp')
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(self.second)
        self.server.listen(1)
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        with contextlib.suppress(OSError):
            sock, _ = self.server.accept()
            with sock:
                sock.sendall(b"QEMU 10.0.0 monitor - type 'help' for more information\r\n(qemu) ")
                sock.recv(1)                # until the other end is closed

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join(10)


def gated(go):
    """A launcher that starts the agent once that file is there."""
    return ('--launcher', f'until test -e {go}; do sleep 0.05; done; : {{host}}; {{cmd}}')


def two_at_once(t, accel):
    """The second one is ready when the first has the guest on its way, and is refused then."""
    go, other = os.path.join(t.work, 'go'), os.path.join(t.work, 'other.qmp')
    with Parent(t, accel, extra=('-qmp', f'unix:{other},server=on,wait=off')) as a:
        a.start_load()
        with Move(t, other, host='h2=127.0.0.1', launcher=gated(go), name='m2') as m2:
            wait_for('the launcher', 20, lambda: len(processes_of(m2.base)) > 1)
            with Move(t, a, name='m1', faults=SLOW) as m1:
                wait_source(a, 'postcopy-active')
                m1.proc.send_signal(signal.SIGSTOP)     # it does not quit the source
                wait_source(a, 'completed')
                common.write_file(go, '')
                m2.end(3, 'unclear', 'has not confirmed that the guest is here')
                m1.proc.send_signal(signal.SIGCONT)
                m1.end(0, 'there')
                check_left_here(t, a, m1)
                with there(t, 'b', m1.result) as b:
                    check_ledger(a, b)
                kill(m1.base, 'm1')
                check_nothing_left(m1)


def other_disk(t, accel):
    """A disk goes over to an overlay, as in a fork, when the QEMU there knows the image."""
    go, image = (os.path.join(t.work, n) for n in ('go', 'disk.qcow2'))
    subprocess.run(['qemu-img', 'create', '-q', '-f', 'qcow2', image, '8M'], check=True, timeout=20)
    with Parent(t, accel, extra=('-drive', f'file={image},format=qcow2,if=none,id=d0',
                                 '-device', 'virtio-blk-pci,drive=d0')) as a:
        a.start_load()
        with Move(t, a, launcher=gated(go)) as m:
            wait_for('the launcher', 20, lambda: len(processes_of(m.base)) > 1)
            a.qmp('blockdev-snapshot-sync', **{'device': 'd0', 'snapshot-file': image + '.later'})
            common.write_file(go, '')
            m.end(1, 'here', 'the images of its disks have changed')
            check_here(m, a)
    os.unlink(go)


def no_guest(t, accel):
    """No such socket, one that nobody listens on any more, one of a human monitor."""
    with Parent(t, accel) as a:
        a.start_load()
        with Move(t, os.path.join(t.work, 'nowhere')) as m:
            if m.end(1, 'untouched', 'QMP socket of a running QEMU')['parent_pid']:
                raise Failed('it names a QEMU')
        a.proc.kill()
        a.proc.wait(20)
        with Move(t, a) as m:
            m.end(1, 'untouched', 'QMP socket of a running QEMU')
            check_nothing_left(m)
    with Chatter(t) as c, Move(t, c) as m:
        m.end(1, 'untouched', 'does not speak QMP')


def unwritten(t, accel):
    """What cannot be printed is no success, though the guest is there."""
    with Parent(t, accel) as a:
        a.start_load()
        for program, args in (('vmclone', ['--list', '--json', '--rundir', t.work + '/run']),
                              ('farfork', ['forks', '--json', '--rundir', t.work + '/run']),
                              ('farfork', ['doctor'])):
            check_unwritten(1, os.path.join(common.BUILD, 'bin', program), *args)
        with Move(t, '', name='m') as m:
            m.proc.communicate(timeout=30)
            check_unwritten(3, *m.argv[:-2], a.second, m.argv[-1])
            a.proc.wait(20)


def check_unwritten(code, *argv):
    with open('/dev/full', 'wb') as full:
        out = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
                             check=False)
    if out.returncode != code or 'not all of it was written' not in out.stderr:
        raise Failed(f'{argv}: {out.returncode}, want {code}: {out.stderr}')


def run(t):
    accel = t.best_accel()
    for name, case in (('two moves at once', lambda: two_at_once(t, accel)),
                       ('another image meanwhile', lambda: other_disk(t, accel)),
                       ('no guest behind the socket', lambda: no_guest(t, accel)),
                       ('a full output', lambda: unwritten(t, accel))):
        with t.case(name):
            case()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(t.work, 'parent.console'))


if __name__ == '__main__':
    common.main(run, limit_s=120)
