#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""slurm.py - in jobs of a real Slurm: children live in the job, and end with it; limit: 240 s

Debian's slurmctld, and a slurmd for each host, which has name spaces of its own.
"""
import contextlib
import glob
import json
import os
import sys
import time

import batch
import common
from common import Failed, check_ledger, say, status, wait_for
from farfork_move import There
from forked import VMCLONE, Child, Clone, Parent, check_result, hosts_of_their_own, processes_of, snapshot

STEP = (batch.SLURM + '/usr/bin/srun', '--overlap', '--nodes=1', '--ntasks=1', '--cpu-bind=none')


class Job:
    """It waits on @n hosts, with a name; what is written into its folder as `do` its script runs."""

    def __init__(self, cluster, n, folder, partition='low'):
        self.cluster, self.folder = cluster, folder
        os.makedirs(folder, exist_ok=True)
        script = os.path.join(folder, 'script')
        with open(script, 'w', encoding='ascii') as f:
            f.write(f'#!/bin/bash\nuntil [ -e {folder}/do ]; do sleep 0.1; done\n. {folder}/do\nsleep 600\n')
        self.number = cluster.run('sbatch', '--parsable', '-p', partition, f'-N{n}', '--exclusive', '--mem=700', '-D', folder,
                                  '-o', f'{folder}/out', script).strip()
        wait_for('job', 20, lambda: self.state() == 'R')
        self.hosts = cluster.run('scontrol', 'show', 'hostnames', cluster.run(
            'squeue', '-h', '-j', self.number, '-o', '%N').strip()).split()

    def state(self):
        return self.cluster.run('squeue', '-h', '-j', self.number, '-o', '%t').strip()

    def on(self, host):
        """What begins a command there."""
        return (*STEP, f'--jobid={self.number}', f'--nodelist={host}')

    def do(self, text):
        with open(self.folder + '/do.new', 'w', encoding='ascii') as f:
            f.write(text)
        os.rename(self.folder + '/do.new', self.folder + '/do')

    def steps(self):
        return self.cluster.run('squeue', '-h', '-s', '-j', self.number, '-o', '%i %N').splitlines()

    def cancel(self):
        self.cluster.run('scancel', self.number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.cancel()


class JobsParent(Parent):
    """A guest in a step of a job."""

    def __init__(self, t, accel, job, host, **more):
        super().__init__(t, accel, **more)
        self.argv = [*job.on(host), *self.argv]
        self.env = {**job.cluster.env, **(self.env or {})}


def job_of(pid):
    """Of which job and step a process is."""
    with open(f'/proc/{pid}/environ', encoding='utf-8', errors='replace') as f:
        env = dict(e.partition('=')[::2] for e in f.read().split('\0'))
    number = env.get('SLURM_JOB_ID')
    with open(f'/proc/{pid}/cgroup', encoding='ascii') as f:
        if batch.GROUPS and f'/job_{number}/' not in f.read():
            number = None
    return number, env.get('SLURM_STEP_ID')


def check_family(c, parent, before, job, left_steps):
    """Its children are right, on both hosts, each in the job; and vmclone has left."""
    if {row['host'] for row in c.children} != set(job.hosts):
        raise Failed(f'{c.children}')
    for row in c.children:
        Child(row, parent).check(before)
    mine = [p for p in processes_of(c.base) if p[1][0] != STEP[0].encode()]      # but this test's own
    jobs = {pid: job_of(pid) for pid, _ in mine}
    if not mine or any(number != job.number for number, _ in jobs.values()):
        raise Failed(f'outside the job: {jobs} {mine}')
    say(f'      steps {sorted({s or "script" for _, s in jobs.values()})}')
    steps = job.steps()
    if not left_steps <= {s.split()[1] for s in steps if '.batch' not in s and '.extern' not in s}:
        raise Failed(f'steps: {steps}')


def from_script(t, cluster, accel):
    """vmclone in the job's script: no word of Slurm on its command line. --list, --kill and all else ask by srun."""
    with Job(cluster, 2, t.work + '/job') as job, JobsParent(t, accel, job, job.hosts[0]) as parent:
        parent.start_load()
        before = snapshot(parent)
        base = os.path.join(t.work, 'run')
        words = f'--rundir {base} --json --id s --timeout 40'
        job.do(f'{VMCLONE} {words} {parent.second} 4 > clone.json 2> clone.err; echo $? > clone.code\n'
               f'until [ -e kill ]; do sleep 0.1; done\n'
               f'{VMCLONE} --rundir {base} --json --list > list.json 2> list.err\n'
               f'{common.FARFORK} hosts --json > hosts.json 2> hosts.err\n'
               f'{VMCLONE} --rundir {base} --kill s > kill.out 2>&1; echo $? > kill.code\n')
        said = wait_for('vmclone', 60, lambda: read(job, 'clone.code'))
        if said != '0\n':
            raise Failed(f'vmclone: {said} {read(job, "clone.err")} {read(job, "clone.json")}')
        c = type('Done', (), {'base': base, 'children': json.loads(read(job, 'clone.json'))['children']})
        check_family(c, parent, before, job, {job.hosts[1]})
        open(job.folder + '/kill', 'w', encoding='ascii').close()
        if wait_for('--kill', 60, lambda: read(job, 'kill.code')) != '0\n':
            raise Failed(f'--kill: {read(job, "kill.out")}')
        listed = json.loads(read(job, 'list.json'))
        if sorted(len(f['children']) for f in listed) != [2, 2] or not all(f['agent_alive'] for f in listed):
            raise Failed(f'{listed} {read(job, "list.err")}')
        asked = json.loads(read(job, 'hosts.json'))
        if [h['host'] for h in asked] != job.hosts or any('facts' not in h for h in asked):
            raise Failed(f'{asked} {read(job, "hosts.err")}')
        wait_for('end of all', 20, lambda: not processes_of(base))
        wait_for('end of the step', 20, lambda: not [s for s in job.steps() if s.split()[1] == job.hosts[1]])
        if status(parent) != 'running':
            raise Failed(f'the parent is {status(parent)}')


def read(job, name):
    with contextlib.suppress(FileNotFoundError), open(os.path.join(job.folder, name), encoding='utf-8') as f:
        return f.read()
    return None


def from_step(t, cluster, accel):
    """vmclone in a step of its own, with which all that it starts ends: refused, but where it stays. A job's end is
    the end of all that it has."""
    with Job(cluster, 2, t.work + '/job2') as job, JobsParent(t, accel, job, job.hosts[0]) as parent:
        parent.start_load()
        with Clone(t, parent, 4, hosts=job.hosts, prefix=job.on(job.hosts[0]), environ=cluster.env,
                   rundir='refused') as c:
            if c.end() != 3 or 'in the job\'s script' not in c.result['error']:
                raise Failed(f'{c.result} {c.err}')
        before = snapshot(parent)
        with Clone(t, parent, 4, '--follow', hosts=job.hosts, prefix=job.on(job.hosts[0]), environ=cluster.env,
                   rundir='run2') as c:
            line = next(e for e in map(json.loads, c.proc.stdout) if 'children' in e)
            c.result = line
            check_family(c, parent, before, job, set(job.hosts))
            begun = time.monotonic()
            job.cancel()
            wait_for('end of all that the job had', 30, lambda: not processes_of(c.base))
            say(f'      all ended {time.monotonic() - begun:.1f} s after scancel')


EXAMPLES = os.path.abspath(os.path.join(os.path.dirname(__file__), '../../packaging/slurm'))


def arrived(t, name, pattern):
    """The guest whose QEMU's socket is there."""
    qmp = wait_for(f'{name} there', 60, lambda: glob.glob(pattern))[0]
    folder = os.path.dirname(qmp)
    pid = wait_for('its QEMU', 20, lambda: [p for p, argv in processes_of(qmp) if b'qemu' in argv[0]])[0]
    return There(t, name, folder, pid)


def outside(t, accel, cluster, host, name):
    """A guest of that host's, of no job."""
    own = type('Work', (), {'work': os.path.join(t.work, name)})
    os.mkdir(own.work)
    p = Parent(own, accel, extra=('-name', name))
    p.argv = [*cluster.within(host), *p.argv]
    return p


def hook(cluster, name, program, to):
    """A script of Slurm's with the environment that it does not give."""
    with open(cluster.work + '/to', 'w', encoding='ascii') as f:
        f.write(''.join(f'{h}\n' for h in to))
    words = ' '.join(f'{k}={cluster.env[k]}' for k in ('PATH', 'SLURM_CONF', 'LD_LIBRARY_PATH'))
    cluster.write(name, f'export {words} FARFORK_HOSTS={cluster.work}/to\n'
                  f'exec {EXAMPLES}/{program} "$@" > {cluster.work}/{name}.out 2>&1')


def leaves(t, accel, cluster, first, other, name, why):
    """A guest of @first's that is no job is on @other after why()."""
    with outside(t, accel, cluster, first, name) as guest:
        guest.start_load()
        why()
        with arrived(t, name + '-there', f'{cluster.work}/on-{other}/*/*/1.qmp') as there:
            check_ledger(guest, there, sweeps=1)
            if guest.proc.wait(20) != 0:
                raise Failed(f'exit code {guest.proc.returncode}')
            there.qmp('quit')
    wait_for('the end there', 20, lambda: not glob.glob(f'{cluster.work}/on-{other}/*/*/1.qmp'))


def drained(t, cluster, accel):
    """scontrol drains a host: by Slurm's trigger, what is no job goes to another one."""
    first, other = cluster.hosts[:2]
    hook(cluster, 'drain', 'farfork-drain', [other])
    cluster.run('strigger', '--set', '--node', '--drained', '--flags=PERM', f'--program={cluster.work}/drain')
    leaves(t, accel, cluster, first, other, 'drained', lambda: cluster.run(
        'scontrol', 'update', f'NodeName={first}', 'State=DRAIN', 'Reason=test'))
    if cluster.run('sinfo', '-h', '-n', first, '-p', 'low', '-o', '%E').strip() != 'test':
        raise Failed('the reason is not whose it was')
    cluster.run('scontrol', 'update', f'NodeName={first}', 'State=RESUME')
    cluster.run('strigger', '--clear', f'--user={os.getuid()}')


def before_a_job(t, cluster, accel):
    """The prolog of a job: a guest of no job's leaves before the job begins."""
    first, other = cluster.hosts[:2]
    hook(cluster, 'prolog', 'prolog', [other])

    def job():
        cluster.run('srun', f'--nodelist={first}', 'true', limit_s=90)
        with open(cluster.work + '/prolog.out', encoding='utf-8') as f:
            if '1 of 1 guests are gone' not in f.read():
                raise Failed('the job began before the guest had left')
    leaves(t, accel, cluster, first, other, 'prolog', job)
    cluster.write('prolog', 'exit 0')


def outputs(folder):
    said = {}
    for path in glob.glob(folder + '/*.out'):
        with open(path, encoding='utf-8') as f:
            said[os.path.basename(path)] = f.read()[-800:]
    return said


def preempted(t, cluster, accel):
    """A job that matters more takes the host of a guest's job: the guest goes on in a job of its own on another host;
    and from there on to the next one, when farfork-drain takes that host. It ends with its job."""
    own = type('Work', (), {'work': os.path.join(t.work, 'vm')})
    os.mkdir(own.work)
    run_as = os.path.join(own.work, 'run')
    hook(cluster, 'nothing', 'farfork-drain', cluster.hosts)     # no guest of no job is there
    guest = Parent(own, accel, extra=('-name', 'vm'))
    script = own.work + '/vm.sbatch'
    with open(EXAMPLES + '/vm.sbatch', encoding='ascii') as f, open(script, 'w', encoding='ascii') as out:
        out.write(f.read().replace('#SBATCH', f'#SBATCH --exclusive --mem=700 --output={own.work}/%j.out\n#SBATCH', 1))
    guest.argv = [batch.SLURM + '/usr/bin/sbatch', '--wait', script, 'vm', *guest.argv]
    guest.env = {**cluster.env, 'FARFORK_RUNDIR': run_as}
    been, sockets = [], set()

    def jobs(host=None):
        return cluster.run('squeue', '-h', '-n', 'farfork-vm', *(('-w', host) if host else ()), '-o', '%i').split()

    def next_host(name):
        def another():
            return [q for q in glob.glob(run_as + '/*/*/1.qmp') if q not in sockets]
        qmp = wait_for('the guest on another host', 60, another)[0]
        sockets.add(qmp)
        been.append(qmp.split('/')[-2])
        say(f'      on {been[-1]}: job {jobs(been[-1])}')
        if been[-1] == been[-2]:
            raise Failed('it is where it was')
        return arrived(t, name, qmp)

    with contextlib.ExitStack() as stack:
        stack.callback(lambda: say(f'      {outputs(own.work)}') if sys.exc_info()[0] else None)
        stack.enter_context(guest)
        guest.start_load()
        been += cluster.run('squeue', '-h', '-n', 'farfork-vm', '-o', '%N').split()
        cluster.run('srun', '-p', 'high', '--exclusive', f'--nodelist={been[0]}', 'true', limit_s=90)
        with next_host('second') as second:
            check_ledger(guest, second, sweeps=1)
            wait_for('end of the first job', 30, lambda: len(jobs()) == 1)
            if guest.proc.wait(90) != 0:    # sbatch looks now and then
                raise Failed(f'the first job: exit code {guest.proc.returncode}')
            cluster.run('sh', EXAMPLES + '/farfork-drain', been[1], env={'FARFORK_HOSTS': cluster.work + '/to'})
            with next_host('third') as third:
                check_ledger(guest, second, third, sweeps=1)
                wait_for('end of the second job', 30, lambda: len(jobs()) == 1)
                last = jobs()
                cluster.run('scancel', *last)
                wait_for('end of all', 30, lambda: not processes_of(run_as) and
                         not os.path.exists(f'/tmp/farfork-vm-{last[0]}'))
    cluster.run('scontrol', 'update', f'NodeName={been[1]}', 'State=RESUME')


def run(t):
    common.need_files(batch.SLURM + '/ready')
    accel = t.best_accel()
    work = os.path.join(t.work, 'slurm')
    os.mkdir(work)
    with hosts_of_their_own(3, True) as names, batch.Cluster(work, names) as cluster:
        cluster.add_sshd()
        cases = [('vmclone in the script', from_script), ('preempted', preempted)]
        if common.FULL:
            cases += [('vmclone in a step', from_step), ('a host is drained', drained),
                      ('the prolog of a job', before_a_job)]
        for name, case in cases:
            with t.case(name):
                case(t, cluster, accel)


if __name__ == '__main__':
    common.main(run, limit_s=240)
