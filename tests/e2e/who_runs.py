#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""who_runs.py - a QEMU is killed at each step of a move: one side runs the guest, where one can

farfork move finds out which, and says so; by hand it is one command at the source. At the end of each
case both QEMUs are asked, and their consoles compared: never two runners. Limit: 300 s.
"""
import glob
import json
import os
import re
import signal

import common
from common import Failed, Micro, check_ledger, say, status, wait_for
from farfork_move import Move, check_here, pid_there, there, wait_source
from forked import SLOW, Parent, alive, check_nothing_left, kill, run_vmclone
from resume import state

MIB = 64
GO_DELAY = 'delay:1500000'


def nowhere(parent):
    """It has ended, or stands still and refuses to run."""
    if parent.proc.poll() is None:
        common.check_given_away(parent)


def mark_of(move):
    """The file that says that nothing ran there."""
    return glob.glob(f'{move.base}/{move.name}/*/1.until-go')


def check_marks(move, n):
    if len(mark_of(move)) != n:
        raise Failed(f'{mark_of(move)} in the run directory, want {n}')


# --- by farfork move: name, failpoints of source, destination, what it says ---

DESTINATION = (
    ('it loads the state', None, 'dest.state=kill', 'here', ''),
    ('before READY', None, 'dest.ready=kill', 'here', ''),
    ('GO read, may not run yet', None, 'dest.go=kill', 'here', 'never ran the guest'),
    ('may run', None, 'dest.run=kill', 'lost', 'SIGKILL'),
    ('it runs', None, 'dest.running=kill', 'lost', 'SIGKILL'),
    ('memory follows', None, 'dest.prefill=kill@3', 'lost', 'SIGKILL'),
)

SOURCE = (
    ('memory is published', 'source.publish=kill', None, 'lost', 'runs nowhere'),
    ('the state is to be sent', 'source.state=kill', None, 'lost', 'runs nowhere'),
    ('before GO', 'source.go=kill', None, 'lost', 'runs nowhere'),
    ('it waits for RUNNING', 'source.running=kill', SLOW, 'broken', 'pages are not here'),
    ('every page is there', 'source.done=kill', None, 'there', ''),
)


def destination_killed(t, accel, faults, want, text):
    with Parent(t, accel) as a:
        a.start_load()
        with Move(t, a, faults=faults) as m:
            m.end({'here': 1, 'lost': 3}[want], want, text)
            if want == 'here':
                check_here(m, a)
            else:
                check_nothing_left(m)
                nowhere(a)


def source_killed(t, accel, faults, there_faults, want, text):
    """Nothing stays there but a guest that runs."""
    with Parent(t, accel, faults=faults) as a:
        a.start_load()
        with Move(t, a, '--timeout', '15', faults=there_faults) as m:
            m.end({'lost': 3, 'broken': 3, 'there': 0}[want], want, text if want == 'lost' else '')
            wait_for('end of the source', 10, lambda: not alive(a.proc.pid))
            if want == 'lost':
                check_nothing_left(m)
                return
            with there(t, 'b-' + want, m.result) as b:
                if status(b) != 'running':
                    raise Failed(f'it is {status(b)} there')
                if want == 'broken':
                    missing(b, text)
                else:
                    check_ledger(a, b)
            kill(m.base, m.name)
            check_nothing_left(m)


def missing(dst, text):
    """It says how many pages of which regions it has not got."""
    info = wait_for('the pause', 20, lambda: (i := common.migration(dst))['status'] ==
                    'postcopy-paused' and i)
    x = info['x-rdma-postcopy']
    lost = sum(m['pages'] * m['page-size'] for m in x['missing'])
    names = {m['region'] for m in x['missing']}
    if text not in info['error-desc'] or 'pc.ram' not in names or 'pc.ram' not in info['error-desc']:
        raise Failed(f'it does not say what is lost: {names}, {info["error-desc"]}')
    if not 0 < lost <= x['total-bytes'] - x['present-bytes']:
        raise Failed(f'{lost} bytes are missing, {x["present-bytes"]} of {x["total-bytes"]} here')
    say(f'      {info["error-desc"]}')


def listed_never_ran(move):
    listed = wait_for('the list', 20, lambda: 'never-ran' in (
        s := run_vmclone('--list', '--rundir', move.base).stdout) and s)
    say(f'      {listed.splitlines()[-1].strip()}')
    check_marks(move, 1)


def settle(parent):
    """Tell the source that nothing ran: it knows where its guest was sent."""
    said = common.refuses(parent, 'was sent to', 'x-rdma-postcopy-not-started',
                          uri='rdma-postcopy:127.0.0.1:1')
    uri = re.search(r'was sent to ([^,]+),', said).group(1)
    parent.qmp('x-rdma-postcopy-not-started', uri=uri)
    wait_source(parent, 'failed')


def mover_killed(t, accel):
    """Nobody is left to find out: the agent keeps what says that nothing ran, and one command acts."""
    with Parent(t, accel, faults='source.go=' + GO_DELAY) as a:
        a.start_load()
        with Move(t, a, faults='dest.go=kill') as m:
            wait_source(a, 'postcopy-active')
            m.proc.kill()
            m.proc.communicate(timeout=30)
            wait_source(a, 'postcopy-paused')
            listed_never_ran(m)
            common.check_given_away(a)
            settle(a)
            kill(m.base, m.name)
            check_here(m, a)


def agent_killed(t, accel):
    """Nobody saw its end: no side runs the guest by itself, until somebody looks at the list."""
    with Parent(t, accel, faults='source.go=' + GO_DELAY) as a:
        a.start_load()
        with Move(t, a, '--timeout', '5', '--options', 'reconnect=1', faults='dest.go=kill') as m:
            wait_source(a, 'postcopy-active')
            listed = run_vmclone('--list', '--json', '--rundir', m.base).stdout
            os.kill(json.loads(listed)[0]['agent'], signal.SIGKILL)
            m.end(3, 'unclear', 'neither QEMU was ended')
            common.check_given_away(a)
            listed_never_ran(m)
            settle(a)
            kill(m.base, m.name)
            check_here(m, a)


# --- by hand ---

def by_hand(t, accel, faults, runs_here):
    """The one command at the source, when the destination has ended."""
    mark = os.path.join(t.work, f'mark-{accel}-{runs_here}')
    src = Micro(t, f'hand-{accel}-{runs_here}-a', accel, mem_mib=MIB)
    dst = Micro(t, f'hand-{accel}-{runs_here}-b', accel, mem_mib=MIB, incoming=True, faults=faults)
    with src, dst:
        src.start_load()
        uri = common.listen(dst, options=f',until-go={mark}')
        if not os.path.exists(mark):
            raise Failed('there is no file of until-go')
        common.refuses(src, 'waits here', 'x-rdma-postcopy-not-started', uri=uri)
        src.qmp('migrate', uri=uri)
        state(src, 'postcopy-paused')
        dst.exit_code(10)
        if os.path.exists(mark) != runs_here:
            raise Failed(f'the file of until-go is {"not " * runs_here}there')
        common.check_given_away(src)
        if runs_here:
            src.qmp('x-rdma-postcopy-not-started', uri=uri.split(',')[0])
            state(src, 'failed')
            wait_for('a guest that runs', 5, lambda: status(src) == 'running')
            check_ledger(src, sweeps=1)


def cannot_remove(t, accel):
    """A destination whose file stays must not run the guest, and says so."""
    folder = os.path.join(t.work, 'folder')
    os.mkdir(folder)
    src = Micro(t, 'stays-a', accel, mem_mib=MIB)
    dst = Micro(t, 'stays-b', accel, mem_mib=MIB, incoming=True, faults='dest.go=fail')
    with src, dst:
        src.start_load()
        uri = common.listen(dst, options=f',until-go={folder}/mark')
        src.qmp('migrate', uri=uri)
        info = state(src, 'failed')
        if 'never got GO' not in info['error-desc'] or not os.path.exists(folder + '/mark'):
            raise Failed(f'{info}, {os.listdir(folder)}')
        wait_for('a guest that runs', 5, lambda: status(src) == 'running')
        check_ledger(src, sweeps=1)


def run(t):
    accel = t.best_accel()
    for name, src, dst, want, text in DESTINATION:
        with t.case(f'destination killed, {name}: {want}, {accel}'):
            destination_killed(t, accel, dst, want, text)
    for name, src, dst, want, text in SOURCE:
        with t.case(f'source killed, {name}: {want}, {accel}'):
            source_killed(t, accel, src, dst, want, text)
    with t.case(f'farfork move killed, then the destination, {accel}'):
        mover_killed(t, accel)
    with t.case(f'agent killed, then the destination, {accel}'):
        agent_killed(t, accel)
    for a in t.accels():
        with t.case(f'by hand: killed before it may run, {a}'):
            by_hand(t, a, 'dest.go=kill', True)
        with t.case(f'by hand: killed when it may run, {a}'):
            by_hand(t, a, 'dest.run=kill', False)
    with t.case(f'the file cannot be removed, {accel}'):
        cannot_remove(t, accel)


if __name__ == '__main__':
    common.main(run, 300)
