#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""attach_after_go.py - a move by attaching whose guest was let go of: no monitor makes it run here; limit: 200 s

Debian's own QEMU 7.2. Arguments: parts of the names of cases; default: all.
"""
import contextlib
import json
import os
import signal
import subprocess
import time

import common
from attaching import Move, Parent, chosen, folder_there, logged, side_here, side_there, state_of
from common import Failed, GuestError, check_ledger, wait_for
from farfork_move import There, check_here, listed, pid_there, there
from forked import SLOW
from stocks import OLDEST, Stock, qemu_of


def killed_with_go(t, accel):
    """From just before GO the kernel ends the QEMU here with who holds it, and the one there never got the guest."""
    with Parent(t, accel, 'anon') as a:
        a.start_load()
        with Move(t, a, faults='source.go=kill') as m:
            m.end(3, 'lost', 'never ran it: the guest runs nowhere')
            if a.proc.wait(10) != -signal.SIGKILL:
                raise Failed('the QEMU here goes on without who held it')


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
                raise Failed(f'the QEMU there and the process beside it, which waits for the source: {states}')


def mover_killed(t, accel):
    """The processes beside the QEMUs end what it began; then the QEMU here ends."""
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, faults=SLOW) as m:
            wait_for('the guest there', 20, lambda: m.proc.poll() is None and logged(m, 'running'))
            m.proc.kill()
            m.proc.communicate(timeout=30)
            if a.proc.wait(30) != -signal.SIGKILL:
                raise Failed('the QEMU here was not ended')
            wait_for('completion, there', 20, lambda: [
                k['state'] for k in listed(m.base)[0]['children']] == ['complete'])
            with There(t, 'b', folder_there(m), pid_there(m)) as b:
                check_ledger(a, b, sweeps=1)
            wait_for('end of the process here', 10, lambda: not os.path.exists(f'{m.base}/{m.name}/source'))


def link_breaks(t, accel):
    with Parent(t, accel, 'memfd') as a:
        a.start_load()
        with Move(t, a, '--keep-source', '--options', 'prefill=pull', faults='tcp.serve.prefill=fail@5') as m:
            result = m.end(0, 'there')
            if state_of(a) != 'T' or not any('stands still' in n for n in result['notes']):
                raise Failed(f'the QEMU here is kept, and stands still: {state_of(a)}, {result["notes"]}')
            if m.result['breaks'] != 1:
                raise Failed(f'one link broke: {m.result}')
            with there(t, 'after', m.result) as b:
                check_ledger(a, b, sweeps=1)


def after_go(t, accel, kills_here):
    """The guest is there: its QEMU here does not run it, also where who holds it is killed."""
    with Parent(t, accel, 'anon') as a:
        a.start_load()
        with Move(t, a, faults=SLOW) as m:
            wait_for('the guest there', 20, lambda: m.proc.poll() is None and logged(m, 'running'))
            if state_of(a) != 't':
                raise Failed('the QEMU here is not held')
            os.kill(side_here(m) if kills_here else pid_there(m), signal.SIGKILL)
            m.end(3, 'lost' if not kills_here else 'broken')
            if kills_here and a.proc.wait(10) != -signal.SIGKILL:
                raise Failed('the QEMU here goes on without who held it')
        if a.proc.wait(10) != -signal.SIGKILL:
            raise Failed('the QEMU here goes on')


def side_there_dies(t, accel, kills, code, state, text):
    """Before the guest may run it goes on here; later its QEMU there says `completed`, and has not all of its memory."""
    with Parent(t, accel, 'anon') as a:
        a.start_load()
        # who serves its memory here waits for another link, in its own folder
        with Move(t, a, faults=kills or SLOW, name='m' if kills else 'broken') as m:
            if not kills:
                wait_for('the guest there', 20, lambda: m.proc.poll() is None and logged(m, 'running'))
                os.kill(side_there(m), signal.SIGKILL)
            m.end(code, state, text)
            if state == 'here':
                check_here(m, a)


def wrapped(t, accel):
    """With --qemu the program that started the QEMU there may end, and that QEMU does not: the end of the one tells
    the source nothing of the other."""
    pid, program = os.path.join(t.work, 'wrapped.pid'), os.path.join(t.work, 'wrapper')
    with Parent(t, accel, 'anon') as a:
        common.write_file(program, '#!/bin/sh\nsetsid sh -c \'echo $$ > "$0"; exec "$@"\' ' +
                          f'{pid} {qemu_of(OLDEST)} "$@" &\nwait\n')
        os.chmod(program, 0o700)
        a.start_load()
        with Move(t, a, '--qemu', program, '--options', 'reconnect=2', faults='dest.go=kill', name='wrapped') as m:
            m.end(3, 'unclear', 'may never have run')
            with open(pid, encoding='ascii') as f:
                os.kill(int(f.read()), signal.SIGKILL)
        if state_of(a) not in 'tT':
            raise Failed('the guest runs here, and its QEMU there was alive')


class Side:
    """A farfork attach, started by hand, and its events."""

    def __init__(self, side, qmp, *args, faults=None):
        env = {**os.environ, **({'FARFORK_FAILPOINTS': faults} if faults else {})}
        self.proc = subprocess.Popen([common.FARFORK, 'attach', '--json', '--' + side, '--qmp', qmp, *args],
                                     stdout=subprocess.PIPE, text=True, env=env)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.proc.kill()
        self.proc.communicate(timeout=30)

    def event(self, name):
        e = None
        for line in self.proc.stdout:
            e = json.loads(line)
            if e['event'] == name:
                return e
        raise Failed(f'no event {name}: {e}')


def nobody_knows(t, accel):
    """Neither SIGCONT nor a command that its monitor got meanwhile makes the QEMU here run."""
    second, path = os.path.join(t.work, 'b.second'), os.path.join(t.work, 'b.stream')
    with Parent(t, accel, 'anon') as a, \
            Stock(t, 'b', accel, incoming=True, mem_mib=128, extra=('-qmp', f'unix:{second},server=on,wait=off')):
        a.start_load()
        with Side('destination', second, '--connect', path, '127.0.0.1:0,reconnect=1', faults=SLOW) as there_, \
                Side('source', a.second, f'127.0.0.1:{there_.event("listening")["port"]},reconnect=1') as here:
            there_.event('running')
            there_.proc.kill()
            here.event('lost')
            a.qmp_sock.sendall(b'{"execute":"cont"}\n')
            os.kill(a.proc.pid, signal.SIGCONT)
            time.sleep(0.3)         # nothing happens: that can be waited for by time alone
            if state_of(a) != 't':
                raise Failed(f'the QEMU here is {state_of(a)}')
            here.proc.terminate()
            here.event('ended')
            if here.proc.wait(20) != 3 or state_of(a) != 'T':
                raise Failed(f'exit code {here.proc.returncode}, the QEMU here is {state_of(a)}')


def shut_down_there(t, accel):
    """Before all of its memory was there: it has ended, and its agent knows why."""
    with Parent(t, accel, 'anon') as a:
        a.start_load()
        with Move(t, a, '--options', 'prefill=off') as m:
            wait_for('the guest there', 20, lambda: m.proc.poll() is None and logged(m, 'running'))
            with There(t, 'down', folder_there(m), pid_there(m)) as b, contextlib.suppress(GuestError):
                common.hmp(b, 'o/h 0x604 0x2000')       # SLP_EN of the PIIX4's PM1a control
            m.end(3, 'ended', 'shut itself down on')


def run(t):
    accel = t.best_accel()
    for name, case in chosen(
            ('who attaches here is killed with GO', lambda: killed_with_go(t, accel)),
            ('DONE is not answered', lambda: done_unanswered(t, accel)),
            ('farfork move is killed', lambda: mover_killed(t, accel)),
            ('the link breaks', lambda: link_breaks(t, accel)),
            ('who holds the QEMU here is killed', lambda: after_go(t, accel, True)),
            ('who attaches there is killed with GO', lambda: side_there_dies(t, accel, 'dest.go=kill', 1, 'here',
                                                                             'never ran the guest')),
            ('likewise, and another program started the QEMU there', lambda: wrapped(t, accel)),
            ('who attaches there is killed', lambda: side_there_dies(t, accel, None, 3, 'broken', 'waits for ever')),
            ('nobody knows', lambda: nobody_knows(t, accel)),
            ('shut down there', lambda: shut_down_there(t, accel)),
            ('the destination dies', lambda: after_go(t, accel, False))):
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=200)
