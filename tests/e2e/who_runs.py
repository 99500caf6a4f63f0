#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""who_runs.py - a QEMU is killed at each step of a move: one side runs the guest, where one can

farfork move finds out which, and says so; by hand it is one command at the source. At the end of each
case both QEMUs are asked, and their consoles compared: never two runners. Limit: 300 s.
"""
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess

import common
from common import Failed, Micro, Skip, check_ledger, say, status, wait_for
from farfork_move import Move, check_here, listed, pid_there, there, wait_source
from forked import SLOW, Parent, alive, check_nothing_left, kill, run_vmclone
from resume import state

MIB = 64
FORKS = os.path.abspath(common.FARFORK) + ' forks'
GO_DELAY = 'delay:4000000'


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
    ('the file is to be made', None, 'dest.mark=kill@1', 'here', ''),
    ('the file is made, not on disk', None, 'dest.mark=kill@2', 'here', ''),
    ('GO read, may not run yet', None, 'dest.go=kill', 'here', 'never ran the guest'),
    ('the file is to be removed', None, 'dest.unmark=kill@1', 'here', 'never ran the guest'),
    ('the file is removed', None, 'dest.unmark=kill@2', 'lost', 'SIGKILL'),
    ('may run', None, 'dest.run=kill', 'lost', 'SIGKILL'),
    ('it runs', None, 'dest.running=kill', 'lost', 'SIGKILL'),
    ('memory follows', None, 'dest.prefill=kill@3', 'lost', 'SIGKILL'),
)

FILE = (
    ('made', 'dest.mark=fail:28@1', 'No space left on device'),
    ('on disk', 'dest.mark=fail@2', 'Input/output error'),
    ('removed', 'dest.unmark=fail@1', 'never got GO'),
    ('removed for good', 'dest.unmark=fail@2', 'never got GO'),
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


def file_fails(t, accel, faults, text):
    """Nobody runs the guest there without the file, or with it."""
    with Parent(t, accel) as a:
        a.start_load()
        with Move(t, a, faults=faults) as m:
            m.end(1, 'here', text)
            check_here(m, a)


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
    return re.search(r'  mark ([0-9a-f]{16})$', listed, re.M).group(1)


def settle(parent, mark):
    """Tell the source that nothing ran: it knows where its guest was sent."""
    said = common.refuses(parent, 'was sent to', 'x-rdma-postcopy-not-started',
                          uri='rdma-postcopy:127.0.0.1:1', mark=mark)
    uri = re.search(r'was sent to ([^,]+),', said).group(1)
    common.refuses(parent, "not this move's", 'x-rdma-postcopy-not-started', uri=uri, mark='0123456789abcdef')
    parent.qmp('x-rdma-postcopy-not-started', uri=uri, mark=mark)
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
            mark = listed_never_ran(m)
            common.check_given_away(a)
            settle(a, mark)
            kill(m.base, m.name)
            check_here(m, a)


def agent_killed(t, accel):
    """Nobody saw its end; the list says that it never ran."""
    with Parent(t, accel, faults='source.go=' + GO_DELAY) as a:
        a.start_load()
        with Move(t, a, '--timeout', '5', '--options', 'reconnect=1', faults='dest.go=kill') as m:
            wait_source(a, 'postcopy-active')
            os.kill(agent_of(m), signal.SIGKILL)
            m.end(1, 'here', 'never ran the guest')
            listed_never_ran(m)
            kill(m.base, m.name)
            check_here(m, a)


def agent_of(m):
    return wait_for('an agent', 10, lambda: [f['agent'] for f in listed(m.base)])[0]


class Host:
    """A launcher to a host that can start again: no process of it, an empty /run, another boot."""

    def __init__(self, t):
        if os.geteuid() or subprocess.run(['unshare', '-m', 'true'], check=False).returncode:
            raise Skip('another boot needs a mount namespace: root and unshare(1)')
        self.down, self.up, self.boot, script = (
            os.path.join(t.work, n) for n in ('down', 'up', 'boot', 'launcher'))
        self.lasting = os.path.join(t.work, 'lasting')
        common.write_file(self.boot, '11111111-2222-3333-4444-555555555555\n')
        common.write_file(script, f"""#!/bin/sh
shift
test -e {self.up} && exec unshare -m sh -c \
    'mount --bind {self.boot} /proc/sys/kernel/random/boot_id && exec "$@"' sh "$@"
test ! -e {self.down} && exec "$@"
exit 255
""")
        os.chmod(script, 0o700)
        self.launcher = ('--launcher', f'{script} {{host}} {{cmd}}')

    def ends(self, m, *pids):
        """Nothing of what it had in memory is left."""
        common.write_file(self.down, '')
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            wait_for(f'end of {pid}', 10, lambda pid=pid: not alive(pid))
        shutil.rmtree(m.base)

    def starts(self):
        common.write_file(self.up, '')


def sleeps(pid):
    """A thread of it is at a failpoint that delays it."""
    for path in glob.glob(f'/proc/{pid}/task/*/wchan'):
        with contextlib.suppress(OSError), open(path, encoding='ascii') as f:
            if f.read() == 'hrtimer_nanosleep':
                return True
    return False


def rebooted(t, accel, go):
    """The host of the destination starts again, before GO was read or after it."""
    host = Host(t)
    with Parent(t, accel) as a, lasting_at(host.lasting):
        a.start_load()
        with Move(t, a, '--timeout', '5', '--options', f'reconnect={10 if go else 60}',
                  launcher=host.launcher, faults='dest.prefill=delay:100000' if go else
                  'dest.go=delay:20000000') as m:
            pids = agent_of(m), pid_there(m)
            wait_source(a, 'postcopy-active')
            if go:
                wait_for('GO', 20, lambda: not glob.glob(host.lasting + '/*/*/1.until-go'))
            else:
                wait_for('GO that is read', 20, lambda: sleeps(pids[1]))
            host.ends(m, *pids)
            wait_source(a, 'postcopy-paused')
            host.starts()
            if go:
                m.end(3, 'unclear', 'neither QEMU was ended')
                common.check_given_away(a)
            else:
                m.end(1, 'here', 'never ran the guest')
                check_here(m, a)
            kill(m.base, m.name)
            if os.listdir(host.lasting):
                raise Failed(f'left behind: {glob.glob(host.lasting + "/*/*/*")}')


@contextlib.contextmanager
def lasting_at(folder):
    os.environ['FARFORK_STATEDIR'] = folder
    try:
        yield
    finally:
        del os.environ['FARFORK_STATEDIR']


def number_used_again(t):
    """A process that has the number and the time of another boot's is not that one, and is not ended. Whether one of
    another PID namespace has ended, or one that cannot be looked at, is unknown, and nothing of it is removed."""
    base, lasting = os.path.join(t.work, 'empty'), os.path.join(t.work, 'lasting-x')
    folder = os.path.join(lasting, 'x', 'h')
    os.makedirs(folder, 0o700)
    other = subprocess.Popen(['sleep', '100'])
    with other, lasting_at(lasting):
        try:
            with open(f'/proc/{other.pid}/stat', encoding='ascii') as f:
                start = int(f.read().rpartition(')')[2].split()[19])
            with open('/proc/sys/kernel/random/boot_id', encoding='ascii') as f:
                this = f.read().strip()
            ns = os.readlink('/proc/self/ns/pid')
            elsewhere = f'unshare -pf --mount-proc {FORKS}'
            unread = f"unshare -m sh -c 'mount -t tmpfs none /proc && exec \"$@\"' sh {FORKS}"
            for boot, space, by, want in ((this, ns, FORKS, 'attached'), (this, 'pid:[1]', FORKS, 'unknown'),
                                          (this, ns, elsewhere, 'unknown'), (this, ns, unread, 'unknown'),
                                          ('another', ns, FORKS, 'never-ran')):
                if by != FORKS and os.geteuid():
                    continue
                common.write_file(folder + '/1.until-go', '')
                common.write_file(folder + '/state.json', json.dumps(
                    {'id': 'x', 'node': 'h', 'image': 'none', 'agent': 1, 'start': 0, 'boot': boot,
                     'pid-namespace': space,
                     'children': [{'number': 1, 'pid': other.pid, 'start': start, 'log': '', 'qmp': '',
                                   'state': 'attached', 'until_go': folder + '/1.until-go'}]}))
                said = json.loads(subprocess.run(f'{by} --json --rundir {base}', shell=True, check=True, timeout=20,
                                                 stdout=subprocess.PIPE).stdout)
                if [k['state'] for f in said for k in f['children']] != [want]:
                    raise Failed(f'boot {boot}, {space}, {by}: {said}, want {want}')
                if want == 'unknown':
                    done = subprocess.run(f'{by} --kill x --rundir {base}', shell=True, check=False, timeout=20,
                                          stderr=subprocess.PIPE, text=True)
                    if (done.returncode != 1 or 'cannot be seen' not in done.stderr or
                            not os.path.exists(folder + '/1.until-go')):
                        raise Failed(f'--kill of what is unknown: {done}, {os.listdir(folder)}')
            if kill(base, 'x').returncode or other.poll() is not None or os.path.exists(folder):
                raise Failed(f'--kill: {os.path.exists(folder)}, the other process: {other.poll()}')
        finally:
            other.kill()


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
        common.refuses(src, 'waits here', 'x-rdma-postcopy-not-started', uri=uri, mark='')
        src.qmp('migrate', uri=uri)
        state(src, 'postcopy-paused')
        dst.exit_code(10)
        if os.path.exists(mark) != runs_here:
            raise Failed(f'the file of until-go is {"not " * runs_here}there')
        common.check_given_away(src)
        if runs_here:
            with open(mark, encoding='ascii') as f:
                src.qmp('x-rdma-postcopy-not-started', uri=uri.split(',')[0], mark=f.read().strip())
            state(src, 'failed')
            wait_for('a guest that runs', 20, lambda: status(src) == 'running')
            check_ledger(src, sweeps=1)


def cannot_remove(t, accel):
    """A destination whose file stays must not run the guest, and says so. One that cannot make it
    hears no source; what is there already is not its own."""
    folder = os.path.join(t.work, 'folder')
    os.mkdir(folder)
    src = Micro(t, 'stays-a', accel, mem_mib=MIB)
    dst = Micro(t, 'stays-b', accel, mem_mib=MIB, incoming=True, faults='dest.go=fail')
    with src, dst:
        src.start_load()
        os.symlink('elsewhere', folder + '/link')
        for name, text in ('nowhere/mark', 'No such file'), ('link', 'File exists'):
            common.refuses(dst, text, 'migrate-incoming', uri='rdma-postcopy:127.0.0.1:0,until-go='
                           f'{folder}/{name}')
        uri = common.listen(dst, options=f',until-go={folder}/mark')
        src.qmp('migrate', uri=uri)
        info = state(src, 'failed')
        if 'never got GO' not in info['error-desc'] or sorted(os.listdir(folder)) != ['link', 'mark']:
            raise Failed(f'{info}, {os.listdir(folder)}')
        wait_for('a guest that runs', 20, lambda: status(src) == 'running')
        check_ledger(src, sweeps=1)


def run(t):
    accel = t.best_accel()
    for name, src, dst, want, text in DESTINATION:
        with t.case(f'destination killed, {name}: {want}, {accel}'):
            destination_killed(t, accel, dst, want, text)
    for name, faults, text in FILE:
        with t.case(f'the file cannot be {name}, {accel}'):
            file_fails(t, accel, faults, text)
    for name, src, dst, want, text in SOURCE:
        with t.case(f'source killed, {name}: {want}, {accel}'):
            source_killed(t, accel, src, dst, want, text)
    with t.case(f'farfork move killed, then the destination, {accel}'):
        mover_killed(t, accel)
    with t.case(f'agent killed, then the destination, {accel}'):
        agent_killed(t, accel)
    for go in (False, True):
        with t.case(f"the destination's host starts again, {'after' if go else 'before'} GO, {accel}"):
            rebooted(t, accel, go)
    with t.case('a number that is used again'):
        number_used_again(t)
    for a in t.accels():
        with t.case(f'by hand: killed before it may run, {a}'):
            by_hand(t, a, 'dest.go=kill', True)
        with t.case(f'by hand: killed when it may run, {a}'):
            by_hand(t, a, 'dest.run=kill', False)
    with t.case(f'the file cannot be removed, {accel}'):
        cannot_remove(t, accel)


if __name__ == '__main__':
    common.main(run, 300)
