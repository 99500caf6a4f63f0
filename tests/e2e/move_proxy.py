#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""move_proxy.py - farfork move with Debian's own QEMU: by proxies, or says why not; limit: 200 s"""
import glob
import os
import signal

import common
from common import Failed, check_ledger, status, wait_for
from farfork_move import (Move, There, check_here, check_left_here, check_listed, listed, pid_there,
                          say_phases, there)
from forked import SLOW, processes_of
from stock_stream import Stock


class Parent(Stock):
    """With a QMP socket more, which is farfork's."""

    def __init__(self, t, accel, memory, devices=(), **more):
        self.second = os.path.join(t.work, 'parent.second')
        super().__init__(t, 'parent', accel, memory, load=common.LOAD,
                         extra=('-qmp', f'unix:{self.second},server=on,wait=off', *devices), **more)


def moves(t, accel, memory, *args):
    with Parent(t, accel, memory) as a:
        a.start_load()
        with Move(t, a, *args) as m:
            result = m.end(0, 'there')
            if not any('by proxies, since the QEMU here' in n for n in result['notes']):
                raise Failed(f'no note says which way it went: {result["notes"]}')
            check_left_here(t, a, m)
            with there(t, 'moved', result) as b:
                check_ledger(a, b, sweeps=2)
                check_listed(m.base, m.name, 'complete')
            say_phases(m)


# Root without the capability of its QEMU to look into others, so not into that QEMU
STRANGER = ('setpriv', '--bounding-set=-sys_ptrace', '--inh-caps=-sys_ptrace')


def from_stream(t, accel, faults=None, breaks=0):
    """Who may not look into the QEMU here moves it nevertheless, by QEMU's own stream."""
    common.allow_userfaultfd(t)         # for the QEMU there
    with Parent(t, accel, 'anon') as a:
        a.start_load()
        with Move(t, a, '--qemu', os.readlink(f'/proc/{a.proc.pid}/exe'), faults=faults, prefix=STRANGER) as m:
            result = m.end(0, 'there')
            if not any("by QEMU's own stream" in n and 'CAP_SYS_PTRACE' in n
                       for n in result['notes']):
                raise Failed(f'no note says which way memory went: {result["notes"]}')
            moved = result['bytes']
            if result['breaks'] < breaks or not moved['total'] or moved['total'] != moved['present']:
                raise Failed(f'{breaks} breaks or more, and all memory there: {result}')
            check_left_here(t, a, m)
            with there(t, 'streamed', result) as b:
                check_ledger(a, b, sweeps=2)
            say_phases(m)


def stream_ends(t, accel):
    """Its memory is nowhere else than in the QEMU here, which dies: no side says that the move is complete."""
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, '--from-stream', faults='tunnel.send=delay:100') as m:
            wait_for('the guest there', 20, lambda: m.proc.poll() is None and logged(m, 'running'))
            os.kill(a.proc.pid, signal.SIGKILL)
            m.end(3, 'broken', 'save what you can')
            with open(folder_there(m) + '/2.log', encoding='utf-8') as f:
                if ': incomplete' not in f.read():
                    raise Failed('the proxy there does not say that memory is missing')


def refused(t, accel):
    """Before anything is started for it, or the guest stops."""
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, '--via', 'transport') as m:
            m.end(1, 'here', 'no x-farfork-export')
            check_here(m, a)
        with Move(t, a, '--fallback', 'go', '--fence', '/bin/true', '--overlays', t.work) as m:
            m.end(1, 'here', 'cannot be taken back')
            check_here(m, a)
        a.qmp('migrate-set-capabilities', capabilities=[{'capability': 'xbzrle', 'state': True}])
        with Move(t, a) as m:
            m.end(1, 'here', 'xbzrle')
            check_here(m, a)


def paused(t, accel):
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        a.qmp('stop')
        with Move(t, a) as m:
            result = m.end(0, 'there')
            with there(t, 'paused', result) as b:
                if status(b) != 'paused':
                    raise Failed(f'it is {status(b)} there')
                b.qmp('cont')
                check_ledger(a, b, sweeps=1)


def stays(t, accel, faults, text, sig=None):
    """What ends before the switch, or at it, leaves the guest running here."""
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, faults=faults) as m:
            if sig:
                common.wait_migration(a, 'postcopy-active')     # QEMU's own word for the package
                m.proc.send_signal(sig)
            m.end(1, 'here', text)
            check_here(m, a)


def proxy_killed(t, accel):
    """Before the package: QEMU loses its stream, and goes on; nobody is told to start it again."""
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, faults='dest.pager=delay:3000000') as m:
            stuck = wait_for('the proxy there has a source', 20, lambda: logged(m, 'connected'))
            if not stuck:
                raise Failed('no source came')
            os.kill(proxy_here(m), signal.SIGKILL)
            m.end(1, 'here', 'the proxy here ended')
            check_here(m, a)


def proxy_here(move):
    return next(pid for pid, _ in processes_of(move.base) if 'source-proxy/qmp' in cmdline(pid))


def cmdline(pid):
    try:
        with open(f'/proc/{pid}/cmdline', encoding='utf-8', errors='replace') as f:
            return f.read()
    except OSError:
        return ''


def link_breaks(t, accel):
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, '--options', 'prefill=pull', faults='tcp.serve.prefill=fail@5') as m:
            m.end(0, 'there')
            if m.result['breaks'] != 1:
                raise Failed(f'one link broke: {m.result}')
            with there(t, 'after', m.result) as b:
                check_ledger(a, b, sweeps=1)


def done_unanswered(t, accel):
    """The destination has all, and waits for a source that does not come back."""
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, '--options', 'timeout=1', faults='source.done=delay:3000000') as m:
            m.end(0, 'there')
            with there(t, 'late', m.result) as b:
                check_ledger(a, b, sweeps=1)
            states = [k['state'] for k in listed(m.base)[0]['children']]
            if states != ['complete', 'complete']:
                raise Failed(f'the QEMU there and its proxy, which waits for the source: {states}')


def mover_killed(t, accel):
    """The proxies end what it began; the QEMU here is left."""
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, faults=SLOW) as m:
            common.wait_migration(a, 'postcopy-active')
            m.proc.kill()
            m.proc.communicate(timeout=30)
            common.wait_migration(a, 'completed')
            wait_for('completion, there', 20, lambda: [
                k['state'] for k in listed(m.base)[0]['children']] == ['complete'])
            with There(t, 'b', folder_there(m), pid_there(m)) as b:
                check_ledger(a, b, sweeps=1)
            wait_for('end of the proxy here', 10, lambda: not os.path.exists(
                f'{m.base}/{m.name}/source-proxy'))


def folder_there(move):
    return f'{move.base}/{move.name}/h1'


def destination_dies(t, accel):
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, faults=SLOW) as m:
            wait_for('the guest there', 20, lambda: m.proc.poll() is None and logged(m, 'running'))
            os.kill(pid_there(m), signal.SIGKILL)
            m.end(3, 'lost', 'SIGKILL')
        if status(a) == 'running':
            raise Failed('the guest runs here again')


def logged(move, event):
    """The destination's proxy has said so."""
    log = folder_there(move) + '/2.log'
    if not os.path.exists(log):
        return False
    with open(log, encoding='utf-8') as f:
        return f': {event}' in f.read()


def run(t):
    accel = t.best_accel()
    for name, case in (
            ('memfd', lambda: moves(t, accel, 'memfd')),
            ('anonymous', lambda: moves(t, accel, 'anon')),
            ('no permission here', lambda: from_stream(t, accel)),
            ('no permission here, the link breaks',
             lambda: from_stream(t, accel, 'tunnel.send=fail@40000', 1)),
            ('no permission here, all has come before the guest may run',
             lambda: from_stream(t, accel, 'dest.ready=delay:4000000')),
            ('from the stream, the QEMU here dies', lambda: stream_ends(t, accel)),
            ('paused', lambda: paused(t, accel)),
            ('refused', lambda: refused(t, accel)),
            ('interrupted', lambda: stays(t, accel, 'dest.state=delay:3000000', 'interrupted',
                                          signal.SIGINT)),
            ('the destination fails', lambda: stays(t, accel, 'dest.ready=fail@1',
                                                    'the peer closed the connection')),
            ('GO is lost', lambda: stays(t, accel, 'source.gone=fail@1', 'never got GO')),
            ('the proxy here is killed', lambda: proxy_killed(t, accel)),
            ('the link breaks', lambda: link_breaks(t, accel)),
            ('DONE is not answered', lambda: done_unanswered(t, accel)),
            ('farfork move is killed', lambda: mover_killed(t, accel)),
            ('the destination dies', lambda: destination_dies(t, accel))):
        for path in glob.glob(t.work + '/*.console'):   # of the case before
            os.unlink(path)
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=190)
