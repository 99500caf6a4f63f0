#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""hosts.py - farfork hosts: what each host says of itself, all at once; who is silent; limit: 100 s

Hosts are network namespaces, and programs that play one.
"""
import json
import os
import subprocess

import common
from common import Failed, Skip, say
from forked import Clone, ForkParent, check_result, hosts_of_their_own, kill, run_vmclone

HERE = 'env FF_HOST={host} {cmd}'


def hosts(*args, code=0, env=None):
    out = subprocess.run([common.FARFORK, 'hosts', *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, timeout=60, check=False,
                         env={**os.environ, **(env or {})})
    if out.returncode != code:
        raise Failed(f'farfork hosts {args}: exit code {out.returncode}, want {code}: {out.stdout}{out.stderr}')
    return json.loads(out.stdout) if '--json' in args else out.stdout + out.stderr


def facts():
    """They are what the kernel says."""
    row = hosts('--json')[0]
    f = row['facts']
    with open('/proc/meminfo', encoding='ascii') as m:
        total = int(m.readline().split()[1]) << 10
    if row['host'] != 'localhost' or f['memory_bytes'] != total or not 0 < f['available_bytes'] <= total or \
            f['cpus'] != os.sysconf('SC_NPROCESSORS_ONLN') or f['kernel'] != os.uname().release or \
            not [q for q in f['qemus'] if q['program'].endswith('/bin/qemu-system-x86_64') and
                 q['version'].count('.') == 2] or \
            f['kvm'] != os.access('/dev/kvm', os.R_OK | os.W_OK):
        raise Failed(f'{row}')


def guests_and_forks(t, accel):
    with ForkParent(t, accel, extra=('-name', 'guest=a-name,debug-threads=on')) as parent:
        parent.start_load()
        with Clone(t, parent, 2, '--launcher', HERE, hosts=['h1=127.0.0.1']) as c:
            check_result(c, 0, {'complete': 2})
            f = hosts('--json', '--rundir', c.base)[0]['facts']
            mine = [g for g in f['guests'] if g['pid'] == parent.pid]
            if len(mine) != 1 or mine[0]['name'] != 'a-name' or mine[0]['resident_bytes'] < 32 << 20:
                raise Failed(f'its guest: {f["guests"]}')
            if not {k['pid'] for k in c.children} <= {g['pid'] for g in f['guests']}:
                raise Failed(f'its children {c.children}: {f["guests"]}')
            if [(k['id'], k['parent'], k['image'], k['children']) for k in f['forks']] != [
                    ('f', parent.second, 'complete', 2)]:
                raise Failed(f'its forks: {f["forks"]}')
            kill(c.base, 'f')
            if hosts('--json', '--rundir', c.base)[0]['facts']['forks']:
                raise Failed('a fork that has ended is there')


def many(t):
    """All at once: each waits here until all have begun; and each trouble is in its row."""
    path = os.path.join(t.work, 'hosts')
    with open(path, 'w', encoding='ascii') as f:
        f.write('# three\nslow1\nslow2:3\nslow3=10.0.0.3\n')
    begun = os.path.join(t.work, 'begun')
    os.mkdir(begun)
    rows = hosts('--json', '--hostfile', path, '--launcher',
                 f'touch {begun}/{{host}}; until [ $(ls {begun} | wc -l) = 3 ]; do sleep 0.05; done; exec {{cmd}}')
    if [(r['host'], r['address'], r['slots']) for r in rows] != [
            ('slow1', 'slow1', 0), ('slow2', 'slow2', 3), ('slow3', '10.0.0.3', 0)]:
        raise Failed(f'{rows}')
    rows = hosts('--json', '--timeout', '6', '--launcher',
                 'case {host} in mute) sleep 30;; none) exit 255;; odd) echo hello;; '
                 'bad) echo "no such program" >&2; exit 127;; *) exec {cmd};; esac',
                 'mute', 'none', 'odd', 'bad', 'good', code=1)
    errors = {r['host']: r.get('error') for r in rows}
    want = {'mute': 'no answer within 6 s', 'none': 'exit code 255', 'odd': 'exit code 0', 'bad': 'no such program'}
    if errors['good'] or any(text not in (errors[host] or '') for host, text in want.items()):
        raise Failed(f'{errors}')
    say(f'      {errors}')
    text = hosts('--launcher', HERE, 'a', 'b:4')
    if len(text.splitlines()) != 3 or '4 slots' not in text:
        raise Failed(text)


def batch_job():
    rows = hosts('--json', '--launcher', HERE, env={'SLURM_JOB_NODELIST': 'node[1-2]'})
    if [r['host'] for r in rows] != ['node1', 'node2']:
        raise Failed(f'{rows}')


def probed():
    with hosts_of_their_own(2, True) as names:
        rows = hosts('--json', '--probe', '--launcher', 'ip netns exec {host} {cmd}', *names)
        for r in rows:
            p = r['probe']
            say(f'      {p}')
            if p['link'] != 'tcp' or not 0 < p['p50_ns'] <= p['p99_ns'] or p['bytes_per_second'] < 1 << 20:
                raise Failed(f'{r}')
        # it says another address than it has
        rows = hosts('--json', '--probe', '--launcher', 'ip netns exec {host} {cmd}',
                     names[0].partition('=')[0] + '=127.0.0.1')
        if 'no link to 127.0.0.1 works' not in rows[0]['probe']:
            raise Failed(f'{rows}')
    left = subprocess.run(['pgrep', '-f', 'doctor --serve :0 --once'], stdout=subprocess.PIPE, check=False, text=True)
    if left.stdout.strip():
        raise Failed(f'what was started there is left: {left.stdout}')


def placed(t, accel):
    """Each host has a run directory of its own, and promises of its own: so one of them has little memory left."""
    launcher = ('--launcher', f'env FARFORK_RUNDIR={t.work}/on-{{host}} {{cmd}}')
    gib = 1 << 30

    def here(*args):
        return hosts('--here', '--json', *args, env={'FARFORK_RUNDIR': t.work + '/on-small'})
    had = here()['available_bytes']
    if had < 13 * gib:
        raise Skip(f'{had >> 20} MiB of memory are available, and 13 GiB are wanted')
    left = 27 * gib // 5        # of it: for two children, not for three
    if not here('--reserve', f'other,small:{had - left}')['granted'] or here()['reserved_bytes'] != had - left or \
            here('--reserve', f'third,small:{6 * gib}')['granted']:
        raise Failed(f'{here()}')
    with ForkParent(t, accel) as parent:
        parent.start_load()
        for n, how, code, want in ((6, 'spread', 2, None), (3, 'pack', 0, {'large': 3}),
                                   (4, 'spread', 0, {'large': 3, 'small': 1})):
            with Clone(t, parent, n, '--place', how, '--child-memory', '2048', *launcher, everywhere=False, rundir='on-here',
                       hosts=['small=127.0.0.1', 'large=127.0.0.1:3']) as c:
                if c.end() != code or (code and 'have memory and slots for 5' not in c.err):
                    raise Failed(f'{n} {how}: {c.result} {c.err}')
                if not code:
                    on = [k['host'] for k in c.children]
                    got = {h: on.count(h) for h in on}
                    f = hosts('--here', '--json', env={'FARFORK_RUNDIR': t.work + '/on-large'})
                    say(f'      {n} {how}: {got}, {f["reserved_bytes"] >> 20} MiB still promised')
                    if got != want or not 5 * gib < f['reserved_bytes'] < 13 * gib // 2:
                        raise Failed(f'{how}: {got}, want {want}; {f}')
                    run_vmclone('--kill', 'f', '--rundir', c.base)
        if here()['reserved_bytes'] != had - left:
            raise Failed(f'what has ended is promised something: {here()}')


def usage():
    for args in (('--here', 'a'), ('--reserve', 'a,b:1'), ('--here', '--reserve', 'a:1'), ('--timeout', '0'), ('--launcher', 'ssh', 'a'), ('--hostfile', '/nowhere')):
        hosts(*args, code=2)


def run(t):
    accel = t.best_accel()
    for name, case in (('what the kernel says', facts), ('guests and forks', lambda: guests_and_forks(t, accel)),
                       ('many hosts', lambda: many(t)), ('the hosts of a batch job', batch_job),
                       ('children are placed', lambda: placed(t, accel)), ('latency and rate', probed), ('wrong arguments', usage)):
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=100)
