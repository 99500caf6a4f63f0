#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""on_systemd.py - on a host with systemd: scopes of agents and children, and the journal

systemd is process 1 of namespaces (booted.py). The cases run there as a service, as a job of an
automation would; what the service starts outlives it. Limit: 110 s.
"""
import glob
import json
import os
import signal
import subprocess
import sys

import common
from booted import Booted, cannot_boot
from common import Failed, Skip, say, wait_for
from farfork_move import Move, there
from forked import (VMCLONE, Clone, Parent, alive, ask, check_nothing_left, check_result, kill,
                    run_vmclone)
from libvirt_hosts import HostError

TOP = os.path.dirname(os.path.dirname(common.HERE))
LAB = os.environ.get('LAB')     # a kernel under TCG has all controllers of cgroup2, and is slow
LIMIT_S = 400 if LAB else 110
USER = '4242'
MIB = 32


def output(*argv, fails=False):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    if done.returncode and not fails:
        raise Failed(f'{" ".join(argv)}: exit code {done.returncode}: {done.stdout}')
    return done.stdout


def unit_of(pid):
    """Its path below the tree of systemd."""
    with open(f'/proc/{pid}/cgroup', encoding='ascii') as f:
        return next(line[4:].strip() for line in f if line.startswith('0::/'))


def scope(name, *more, node='localhost'):
    return f'farfork.slice/farfork-{":".join((name, node, *more))}.scope'


def check_unit(what, pid, want):
    got = unit_of(pid)
    # systemd escapes nothing of these names in the file system
    if got != want:
        raise Failed(f'{what}, process {pid}, is in {got}, not {want}')


def active(unit):
    return output('systemctl', 'is-active', unit, fails=True).strip() == 'active'


def journal(*matches):
    return [json.loads(line) for line in output(
        'journalctl', '--quiet', '--no-pager', '--output=json', *matches, fails=True).splitlines()]


def wait_journal(what, test, *matches):
    return wait_for(what, 10, lambda: [e for e in journal(*matches) if test(e)])


def agents(base):
    """{id: pid}"""
    found = {}
    for path in glob.glob(f'{base}/*/*/state.json'):
        with open(path, encoding='utf-8') as f:
            state = json.load(f)
        found[state['id']] = state['agent']
    return found


def one(t, accel):
    """Agent and children in one scope, seen by systemd-cgls, limited by the slice; in the journal."""
    unit = scope('f').split('/')[1]
    with Parent(t, accel, memory='memfd', mem_mib=MIB) as parent:
        with Clone(t, parent, 2) as c:
            check_result(c, 0, {'complete': 2})
            for row in c.children:
                check_unit('a child', row['pid'], scope('f'))
                check_runs(row)
            check_unit('the agent', agents(c.base)['f'], scope('f'))
            check_unit('the parent', parent.proc.pid, unit_of(os.getpid()))
            tree = output('systemd-cgls', '--no-pager', '--full', '--unit', 'farfork.slice')
            if unit not in tree or any(f'{row["pid"]} ' not in tree for row in c.children):
                raise Failed(f'systemd-cgls: {tree}')
            want = {(None, 'listening'), (None, 'forked'), (None, 'detached'),
                    *((str(n), what) for n in (1, 2) for what in ('started', 'running'))}

            def told():
                lines = journal('FARFORK_FORK=f')
                return want <= {(e.get('FARFORK_CHILD'), e['FARFORK_EVENT']) for e in lines} and lines
            lines = wait_for(f'journal: {want}', 10, told)
            hosts = {e['FARFORK_HOST'] for e in lines}
            if hosts != {'localhost', 'booted'}:
                raise Failed(f'journal: {hosts}')
            of_agent = [e for e in lines if e.get('_SYSTEMD_UNIT') == unit]
            if len(of_agent) < 5:
                raise Failed(f'{len(of_agent)} lines of {unit}: {lines[:3]}')
            say(f'      {lines[-1]["MESSAGE"]}')
            # whom the agent tells when it has nobody else
            pid = c.children[0]['pid']
            os.kill(pid, signal.SIGKILL)
            e = wait_journal('line about the end', lambda e: e['FARFORK_EVENT'] == 'ended',
                             'FARFORK_FORK=f', 'FARFORK_CHILD=1')[0]
            if (e['FARFORK_PID'], e['PRIORITY']) != (str(pid), '4') or 'SIGKILL' not in e['MESSAGE']:
                raise Failed(f'the end of a child: {e}')
            kill(c.base, 'f')
            check_nothing_left(c, parent)
        wait_for('end of the scope', 10, lambda: not active(unit))


def check_runs(row):
    if ask(row['qmp'], 'query-status')['status'] != 'running':
        raise Failed(f'{row} does not run')


def stop(t, accel, mode, survive):
    """systemctl stop of the agent's scope ends its children, or not, as --scope says."""
    with Parent(t, accel, memory='memfd', mem_mib=MIB) as parent:
        with Clone(t, parent, 2, '--scope', mode) as c:
            check_result(c, 0, {'complete': 2})
            pids = [row['pid'] for row in c.children]
            for n, row in enumerate(c.children, 1):
                more = (str(row.get('child', n)),) if mode == 'each' else ()
                check_unit(f'child {n}', row['pid'], scope('f', *more))
            agent = agents(c.base)['f']
            check_unit('the agent', agent, scope('f'))
            output('systemctl', 'stop', scope('f').split('/')[1])
            wait_for('end of the agent', 20, lambda: not alive(agent))
            if survive:
                for row in c.children:
                    check_runs(row)
                output('systemctl', 'stop', scope('f', '1').split('/')[1])
            wait_for('end of the children', 20, lambda: not alive(pids[0]))
            if alive(pids[1]) != survive:
                raise Failed(f'the other child {"ended" if survive else "goes on"}')
            if survive:
                output('systemctl', 'stop', scope('f', '2').split('/')[1])
                wait_for('its end', 20, lambda: not alive(pids[1]))


def move(t, accel):
    with Parent(t, accel, mem_mib=MIB) as a:
        with Move(t, a) as m:
            with there(t, 'b', m.end(0, 'there')) as b:
                node = os.path.basename(os.path.dirname(glob.glob(f'{m.base}/m/*/state.json')[0]))
                check_unit('the guest', b.proc.pid, scope('m', node=node))
                if common.status(b) != 'running':
                    raise Failed(f'the guest there is {common.status(b)}')
                wait_journal('line about the move', lambda e: e['FARFORK_EVENT'] == 'there',
                             'FARFORK_FORK=m')


def none(t, accel):
    """By name, and in a batch system's job by default."""
    with Parent(t, accel, memory='memfd', mem_mib=MIB) as parent:
        for job, options in (None, ('--scope', 'none')), ('7', ()):
            try:
                if job:
                    os.environ['SLURM_JOB_ID'] = job
                with Clone(t, parent, 1, *options) as c:
                    check_result(c, 0, {'complete': 1})
                    check_unit('the child', c.children[0]['pid'], unit_of(os.getpid()))
                    kill(c.base, 'f')
            finally:
                os.environ.pop('SLURM_JOB_ID', None)


def outlives(t, accel):
    """Who ran vmclone is a service; its end, which kills all that is in it, leaves the children."""
    with Parent(t, accel, memory='memfd', mem_mib=MIB) as parent:
        base = os.path.join(t.work, 'job')
        out = output('systemd-run', '--quiet', '--pipe', '--wait', '--collect', '--unit=a-job',
                     VMCLONE, '--json', '--quiet', '--rundir', base,
                     '--id', 'j', parent.second, '1')
        row = json.loads(out[out.index('{'):])['children'][0]
        check_unit('the child', row['pid'], scope('j'))
        check_runs(row)
        run_vmclone('--rundir', base, '--kill', 'j')
        wait_for('end of the child', 20, lambda: not alive(row['pid']))


def refused(t, accel):
    """A scope of that name is there: by default the agent stays where it is, by name it is an error."""
    unit = scope('f').split('/')[1]
    sleeper = subprocess.Popen(['systemd-run', '--quiet', '--scope', f'--unit={unit}', 'sleep', '600'])
    try:
        wait_for('the other scope', 20, lambda: active(unit))
        with Parent(t, accel, memory='memfd', mem_mib=MIB) as parent:
            with Clone(t, parent, 1) as c:
                check_result(c, 0, {'complete': 1})
                check_unit('the child', c.children[0]['pid'], unit_of(os.getpid()))
                kill(c.base, 'f')
                check_nothing_left(c, parent)
            with Clone(t, parent, 1, '--scope', 'one') as c:
                code = c.end()
                if code != 3 or unit not in json.dumps(c.result):
                    raise Failed(f'exit code {code}: {c.result}')
                check_nothing_left(c, parent)
        wait_journal('warning', lambda e: e['PRIORITY'] == '4' and unit in e['MESSAGE'],
                     'FARFORK_EVENT=scope')
    finally:
        sleeper.terminate()
        sleeper.wait(20)


def starts_again(t, accel):
    """A unit that starts its QEMU again: refused, then moved as the reason says."""
    a = Parent(t, accel, memory='memfd', mem_mib=MIB)
    a.argv = ['systemd-run', '--quiet', '--wait', '--pipe', '--collect', '--unit=a-guest',
              '--property=Restart=always', *a.argv]
    with a:
        a.start_load()
        with Move(t, a) as m:
            m.end(1, 'here', 'Restart=always')
        folder = '/run/systemd/system/a-guest.service.d'        # as systemctl edit does
        os.makedirs(folder)
        common.write_file(os.path.join(folder, 'override.conf'), '[Service]\nRestart=no\n')
        output('systemctl', 'daemon-reload')
        with Move(t, a, name='m2') as m:
            m.end(0, 'there')
            wait_for('end of its QEMU here', 20, lambda: not active('a-guest'))


def inside(t):
    accel = t.best_accel()
    row = next(c for c in json.loads(output(common.FARFORK, 'doctor', '--json', fails=True))['checks']
               if c['subject'] == 'systemd')
    with t.case('doctor'):
        if row['result'] != 'ok' or 'farfork.slice' not in row['why']:
            raise Failed(str(row))
    with t.case(f'one scope, the journal, {accel}'):
        one(t, accel)
    for mode, survive in (('one', False), ('each', True)):
        with t.case(f'systemctl stop, --scope {mode}, {accel}'):
            stop(t, accel, mode, survive)
    with t.case(f'farfork move, {accel}'):
        move(t, accel)
    with t.case(f'a unit that starts its QEMU again, {accel}'):
        starts_again(t, accel)
    with t.case(f'--scope none, {accel}'):
        none(t, accel)
    with t.case(f'children outlive the service that forked, {accel}'):
        outlives(t, accel)
    with t.case(f'a scope that cannot be, {accel}'):
        refused(t, accel)


def needs():
    common.need_userfaultfd()
    if cannot_boot(common.BUILD):
        raise Skip(cannot_boot(common.BUILD))


def ordinary_user(host):
    """His own manager, when it outlasts his logins."""
    user = ['systemd-run', '--quiet', '--pipe', '--wait', '--collect', f'--uid={USER}']
    agent = [*user, os.path.realpath(common.FARFORK), 'agent', '--id', 'u', '--node', 'n1']
    host.run('useradd', '--no-create-home', '--home-dir', '/tmp', '--uid', USER, 'runner')

    def doctor(mark, word):
        out = host.run(*user, os.path.realpath(common.FARFORK), 'doctor', fails=True)
        line = next(s for s in out.splitlines() if ' systemd ' in s)
        if not line.startswith(mark) or word not in line:
            raise Failed(f'doctor: {line}; want {mark}, {word}')

    doctor('limited', 'enable-linger')
    said = host.run(*agent, fails=True, text='{"end":true}\n')
    if '"listening"' not in said:
        raise Failed(f'an agent of a user who does not linger: {said}')
    said = host.run(*agent, '--scope', 'one', fails=True, text='{"end":true}\n')
    if '"listening"' in said or 'enable-linger' not in said:
        raise Failed(f'--scope one of a user who does not linger: {said}')
    host.write('/var/lib/systemd/linger/runner', '')        # as loginctl does
    host.run('systemctl', 'start', f'user@{USER}.service')
    doctor('ok', 'farfork.slice')
    # it stays until the journal, which asks /proc where a process is, has read its line
    keep(host, 'of-a-user', *agent[len(user):], '--scope', 'one', more=[f'--uid={USER}'])
    wait_for("the journal's line of an agent in a scope of its user", 60,
             lambda: 'farfork-u:n1.scope' in {e.get('_SYSTEMD_USER_UNIT') for e in host.journal(
                 'FARFORK_FORK=u', 'FARFORK_EVENT=listening')})
    host.run('systemctl', 'stop', 'of-a-user')


def keep(host, unit, *agent, more=()):
    """An agent whose command is there until the unit is stopped."""
    host.run('systemd-run', '--quiet', '--collect', f'--unit={unit}', *more, 'sh', '-c',
             'sleep infinity | "$@"', 'sh', *agent)


def container(host):
    """Where pids are others, and the socket of the host's systemd is to be seen."""
    said = host.run('unshare', '--pid', '--fork', '--mount-proc', 'sh', '-c', '"$@"; exit $?', 'sh',
                    os.path.realpath(common.FARFORK), 'agent', '--id', 'c', '--scope', 'one', fails=True,
                    text='{"end":true}\n')
    if 'systemd does not run here' not in said or '"listening"' in said:
        raise Failed(f'an agent in another PID namespace: {said}')


def limits(host):
    """What is said of the slice, and of a scope, holds: as far as this kernel has the controller."""
    unit, folder = 'farfork-l:n1.scope', '/sys/fs/cgroup/farfork.slice'
    keep(host, 'of-an-agent', os.path.realpath(common.FARFORK), 'agent', '--id', 'l', '--node', 'n1')
    wait_for('the scope', 60, lambda: host.run('systemctl', 'is-active', unit,
                                               fails=True).strip() == 'active')
    host.run('systemctl', 'set-property', '--runtime', 'farfork.slice', 'TasksMax=4000', 'MemoryMax=3G')
    host.run('systemctl', 'set-property', '--runtime', unit, 'TasksMax=400', 'CPUQuota=50%')
    there, lacks = host.run('cat', '/sys/fs/cgroup/cgroup.controllers').split(), set()
    for path, want in ((f'{folder}/pids.max', '4000'), (f'{folder}/memory.max', '3221225472'),
                       (f'{folder}/{unit}/pids.max', '400'), (f'{folder}/{unit}/cpu.max', '50000 100000')):
        controller = os.path.basename(path).split('.')[0]
        if controller not in there:
            lacks.add(controller)
        elif host.run('cat', path).strip() != want:
            raise Failed(f'{path}: {host.run("cat", path)}, not {want}')
    if lacks:
        say(f'SKIP: limits by {", ".join(sorted(lacks))}: not in cgroup2 of this kernel; make check-full '
            'has one')
    host.run('systemctl', 'stop', 'of-an-agent')
    wait_for('end of the scope', 60, lambda: host.run('systemctl', 'is-active', unit,
                                                      fails=True).strip() != 'active')


def outside(t):
    try:
        with Booted(t.work, common.BUILD, TOP) as host:
            host.copy(os.path.join(TOP, 'packaging', 'farfork.slice'),
                      '/etc/systemd/system/farfork.slice')
            host.run('systemctl', 'daemon-reload')
            with t.case('units that systemd reads without a word'):
                said = host.run('systemd-analyze', 'verify', '--man=no',
                                '/etc/systemd/system/farfork.slice')
                if said.strip():
                    raise Failed(said)
            with t.case('an ordinary user'):
                ordinary_user(host)
            with t.case("a container that has its host's /run"):
                container(host)
            with t.case('limits'):
                limits(host)
            if LAB:
                return      # guests have run elsewhere
            with t.case('on a host with systemd'):
                rc = host.test('tests/e2e/on_systemd.py', 'inside', limit_s=LIMIT_S)
                if rc:
                    raise Failed(f'exit code {rc}; what it says is above')
    except HostError as e:
        raise Failed(str(e)) from None


if __name__ == '__main__':
    sys.exit(common.main(inside if sys.argv[1:] == ['inside'] else outside, LIMIT_S,
                         **({} if sys.argv[1:] == ['inside'] else {'needs': needs})))
