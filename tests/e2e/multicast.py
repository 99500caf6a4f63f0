#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""multicast.py - vmclone sends memory once, to a multicast group, for all hosts; limit: 500 s

Hosts are network namespaces behind one bridge. Every child goes on with the ledger that its parent had
at the fork, and sweeps all of its memory.
"""
import contextlib
import shutil
import subprocess

import common
from common import Failed, say
from forked import Child, Clone, ForkParent, check_nothing_left, check_result, hosts_of_their_own, kill, \
    run_vmclone, snapshot

GROUP = '239.192.77.7'


def command(*args):
    out = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=20,
                         check=False)
    if out.returncode:
        raise common.Skip(f'{" ".join(args)}: {out.stdout.strip()}')


def namespace(host):
    return host.partition('=')[0]


def ports(hosts):
    """The bridge's port of each host, by the names of hosts_of_their_own()."""
    return ['a'.join(namespace(h).rsplit('n', 1)) for h in hosts]


def fork_to(t, accel, hosts, *args, check, launcher='ip netns exec {host} {cmd}'):
    with ForkParent(t, accel) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, len(hosts), '--launcher', launcher, *args, hosts=hosts) as c:
            check_result(c, 0, {'complete': len(hosts)})
            rows, notes = c.result['hosts'], [n for n in c.result['notes'] if 'multicast' in n]
            say('      ' + ', '.join(f'{r["multicast_bytes"] >> 20}' for r in rows) + ' of '
                f'{rows[0]["total_bytes"] >> 20} MiB by the group' + ''.join(f'; {n}' for n in notes))
            check(rows, notes)
            for row in c.children:
                Child(row, parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def must(good, what, rows, notes):
    if not good:
        raise Failed(f'{what}: {[r["multicast_bytes"] for r in rows]}, {notes}')


def told(notes):
    """But for what a busy machine may do: the parent's side stands still for a second."""
    return [n for n in notes if 'nothing more came' not in n]


def all_hear(t, accel, *args, n=3):
    def check(rows, notes):
        must(all(r['multicast_bytes'] for r in rows) and not told(notes), 'not by the group', rows, notes)
    with hosts_of_their_own(n, True) as hosts:
        fork_to(t, accel, hosts, *args, check=check)


def none_hears(t, accel, *args, n=3):
    """For a reason that vmclone knows beforehand."""
    def check(rows, notes):
        must(not any(r['multicast_bytes'] for r in rows), 'by the group', rows, notes)
        must(bool(notes) == ('auto' not in args), 'notes', rows, notes)
    with hosts_of_their_own(n, True) as hosts:
        fork_to(t, accel, hosts, *args, check=check)


@contextlib.contextmanager
def parent_on_a_port(hosts):
    """A bridge floods what comes from its own host whatever its ports say: so the parent gets a port."""
    tag = namespace(hosts[0]).rsplit('n', 1)[0]
    at = hosts[0].partition('=')[2].rpartition('.')[0] + '.1/24'
    command('ip', 'addr', 'del', at, 'dev', tag + 'br')
    command('ip', 'link', 'add', tag + 'p', 'type', 'veth', 'peer', 'name', tag + 'q')
    try:
        command('ip', 'link', 'set', tag + 'q', 'master', tag + 'br', 'up')
        command('ip', 'addr', 'add', at, 'dev', tag + 'p')
        command('ip', 'link', 'set', tag + 'p', 'up')
        command('ip', 'link', 'set', tag + 'br', 'type', 'bridge', 'mcast_snooping', '0')
        yield
    finally:
        command('ip', 'link', 'del', tag + 'p')


def filtered(t, accel, which):
    """The bridge floods no multicast to these hosts: memory comes as without it, and one note says so."""
    def check(rows, notes):
        for i, r in enumerate(rows):
            must(bool(r['multicast_bytes']) == (i not in which), f'host {i}', rows, notes)
        must(len(notes) == 1, 'notes', rows, notes)
        must(len(which) < 3 or ('filters it' in notes[0] and '3 of 3' in notes[0]), 'notes', rows, notes)
    with hosts_of_their_own(3, True) as hosts, parent_on_a_port(hosts):
        for i in which:
            command('bridge', 'link', 'set', 'dev', ports(hosts)[i], 'mcast_flood', 'off')
        fork_to(t, accel, hosts, '--multicast', GROUP, check=check)


def lossy(t, accel):
    """Where the kernel has netem packets are late and doubled as well."""
    def check(rows, notes):
        must(all(r['multicast_bytes'] for r in rows), 'not by the group', rows, notes)
    lose = ','.join(f'dest.group.packet=fail@{i * 997 + 300}-{i * 997 + 300 + 3 * i}' for i in range(12))
    with hosts_of_their_own(3, True) as hosts:
        for p in ports(hosts):
            with contextlib.suppress(common.Skip):
                command('tc', 'qdisc', 'add', 'dev', p, 'root', 'netem', 'loss', '3%', 'delay', '1ms',
                        '1ms', 'duplicate', '2%')
        fork_to(t, accel, hosts, '--multicast', GROUP, check=check,
                launcher=f'ip netns exec {{host}} env FARFORK_FAILPOINTS={lose} {{cmd}}')


def one_is_slow(t, accel):
    """A host at the end of a slow link: the group is too fast for it, or slow; all end well."""
    def check(rows, notes):
        must(all(r['multicast_bytes'] for r in rows), 'not by the group', rows, notes)
    with hosts_of_their_own(3, True) as hosts:
        command('tc', 'qdisc', 'add', 'dev', ports(hosts)[2], 'root', 'tbf', 'rate', '20mbit', 'burst',
                '20k', 'latency', '50ms')
        fork_to(t, accel, hosts, '--multicast', GROUP, check=check)


def usage():
    for group in ('10.0.0.1', '', 'x', '239.1.1.1:0', '239.1.1.1,verify=on'):
        out = run_vmclone('--multicast', group, '/nowhere', '1', 'host')
        if out.returncode != 2 or 'multicast' not in out.stdout + (out.stderr or ''):
            raise Failed(f'--multicast {group}: {out}')


def run(t):
    accel = t.best_accel()
    with t.case('usage'):
        usage()
    if not shutil.which('bridge') or not shutil.which('tc'):
        raise common.Skip('hosts behind a bridge need ip, bridge and tc (iproute2)')
    with t.case('three hosts'):
        all_hear(t, accel, '--multicast', GROUP)
    if common.FULL:
        with t.case('three hosts, auto, no tree'):
            all_hear(t, accel, '--multicast', 'auto', '--fanout', '0')
        with t.case('two hosts, auto'):
            none_hears(t, accel, '--multicast', 'auto', n=2)
        with t.case('three hosts, an IPv6 group'):
            all_hear(t, accel, '--multicast', '[ff15::77]')
    with t.case('verify=on'):
        none_hears(t, accel, '--multicast', GROUP, '--options', 'verify=on', n=2)
    with t.case('packets are lost, late and doubled'):
        lossy(t, accel)
    with t.case('one host is slow'):
        one_is_slow(t, accel)
    with t.case('one host gets no multicast'):
        filtered(t, accel, (1,))
    if common.FULL:
        with t.case('no host gets any'):
            filtered(t, accel, (0, 1, 2))


if __name__ == '__main__':
    common.main(run, limit_s=500)
