#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""doctor.py - farfork doctor; `info migrate`; all ways to write HOST. Limit: 90 s"""
import json
import os
import re
import socket
import subprocess

import common
from common import Failed, Micro, Skip, check_ledger, check_move, say

SUBJECTS = ('kvm', 'userfaultfd', 'userfaultfd features', 'kernel', 'huge pages',
            'rdma devices', 'memlock limit', 'attach', 'udev rule', 'sysctl', 'limits.d', 'firewall',
            'apparmor', 'systemd')
MARKS = ('ok', 'limited', 'NO', 'unknown')


def farfork(*args, env=None):
    return subprocess.run([common.FARFORK, *args], stdin=subprocess.DEVNULL, text=True, env=env,
                          capture_output=True, timeout=20, check=False)


def doctor():
    done = farfork('doctor')
    seen = {}
    for line in done.stdout.splitlines():
        mark, subject, why = line[:8].strip(), line[9:37].strip(), line[38:].strip()
        if mark not in MARKS or not why:
            raise Failed(f'line "{line}": want a mark, a subject and a reason')
        seen[subject] = mark
    missing = [s for s in SUBJECTS if s not in seen and s != 'userfaultfd features']
    if missing or done.stderr:
        raise Failed(f'nothing about {missing}; stderr "{done.stderr}"')
    want = 1 if 'NO' in seen.values() else 0
    if done.returncode != want:
        raise Failed(f'exit code {done.returncode}, want {want}')
    say('      ' + ', '.join(f'{s}: {m}' for s, m in seen.items()))


def not_looked_at(t):
    """A host without nft: nobody knows of its firewall."""
    os.mkdir(os.path.join(t.work, 'empty'))
    done = farfork('doctor', '--json', env={**os.environ, 'PATH': os.path.join(t.work, 'empty')})
    found = {c['subject']: c['result'] for c in json.loads(done.stdout)['checks']}
    if found['firewall'] != 'unknown':
        raise Failed(f'firewall: {found["firewall"]}, and nobody looked')


def as_json():
    lines = farfork('doctor').stdout.splitlines()
    done = farfork('doctor', '--json')
    found = json.loads(done.stdout)
    if [f'{c["result"]:8} {c["subject"]:28} {c["why"]}' for c in found['checks']] != lines:
        raise Failed(f'other than the lines: {found}')
    ports = [c['subject'] for c in found['checks'] if re.fullmatch(r'rdma \S+:\d+', c['subject'])]
    if len(ports) != len(found['rdma_ports']):
        raise Failed(f'ports {ports}: {found["rdma_ports"]}')


def usage():
    for args, code, text in ((['--help'], 0, 'doctor'), (['doctor', '--help'], 0, 'usage'),
                             (['doctor', '--speed'], 2, ''), (['no-such-command'], 2, ''),
                             (['--version'], 0, ''), ([], 2, '')):
        done = farfork(*args)
        out = done.stdout if code == 0 else done.stderr
        if done.returncode != code or text not in out or not out:
            raise Failed(f'farfork {" ".join(args)}: exit code {done.returncode} (want {code}), '
                         f'"{done.stdout}{done.stderr}"')


def bad_values():
    """Of every option with a number or a word: its name, the value and what is permitted, in one line."""
    vmclone = os.path.join(os.path.dirname(common.FARFORK), 'vmclone')
    for program, options in (
            ([common.FARFORK, 'move'], ('timeout', 'lease', 'fallback', 'via')),
            ([common.FARFORK, 'visit'], ('timeout', 'lease', 'fallback', 'budget')),
            ([common.FARFORK, 'agent'], ('timeout', 'children', 'scope')), ([common.FARFORK, 'doctor'], ('qps',)),
            ([common.FARFORK, 'evacuate'], ('jobs', 'timeout')), ([common.FARFORK, 'hosts'], ('timeout',)),
            ([common.FARFORK, 'forks'], ('timeout', 'agent')),
            ([vmclone], ('keep', 'place', 'child-memory', 'fanout', 'timeout', 'max-children', 'max-forks', 'max-chain'))):
        for option in options:
            done = subprocess.run([*program, f'--{option}', 'no-such'], stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, timeout=20, check=False)
            if done.returncode != 2 or not re.fullmatch(rf'[a-z ]+: --{option}: "no-such" \(permitted: .+\)\n',
                                                        done.stderr + done.stdout):
                raise Failed(f'{program} --{option}: {done.returncode}, {done.stderr}{done.stdout}')


def info_migrate(t, accel):
    with Micro(t, 'a', accel, mem_mib=64) as a, \
            Micro(t, 'b', accel, mem_mib=64, incoming=True) as b:
        a.start_load()
        moved = common.move(a, b)
        check_move(moved)
        x = moved.stats
        want = [f'rdma-postcopy link: {x["link"]}',
                f'memory present: {x["present-bytes"] >> 10} of {x["total-bytes"] >> 10} kbytes',
                f'fetched by prefill, by fault, twice: {x["prefill-bytes"] >> 10}, '
                f'{x["fault-bytes"] >> 10}, {x["duplicated-bytes"] >> 10} kbytes',
                f'faults: {x["faults"]} (p50 ']
        for g in (a, b):
            text = common.hmp(g, 'info migrate')
            missing = [line for line in want if line not in text]
            if missing:
                raise Failed(f'{g.name}: info migrate lacks {missing}:\n{text}')
        check_ledger(a, b)


def host(t, accel, number, listen_on, connect_to):
    with Micro(t, f'h{number}-a', accel, mem_mib=64) as a, \
            Micro(t, f'h{number}-b', accel, mem_mib=64, incoming=True) as b:
        a.start_load()
        uri = common.listen(b, listen_on)
        a.qmp('migrate', uri=f'rdma-postcopy:{connect_to}:{uri.rsplit(":", 1)[1]}')
        common.wait_migration(a, 'completed')
        common.wait_migration(b, 'completed')
        check_ledger(a, b, sweeps=1)


def need_ipv6():
    try:
        common.free_port('::1', socket.AF_INET6)
    except OSError as e:
        raise Skip(f'no IPv6 on the loopback: {e}') from None


def incoming_option(t, accel):
    """-incoming URI on the command line, as people write it."""
    with Micro(t, 'cmd-a', accel, mem_mib=64) as a, \
            Micro(t, 'cmd-b', accel, mem_mib=64, incoming='rdma-postcopy:127.0.0.1:0') as b:
        port = common.migration(b)['socket-address'][0]['port']
        a.start_load()
        common.hmp(a, f'migrate -d rdma-postcopy:127.0.0.1:{port}')
        common.wait_migration(a, 'completed')
        common.wait_migration(b, 'completed')
        check_ledger(a, b, sweeps=1)


def run(t):
    with t.case('farfork doctor'):
        doctor()
    with t.case('farfork doctor --json'):
        as_json()
    with t.case('what is not looked at is unknown'):
        not_looked_at(t)
    with t.case('farfork: help, version, wrong use'):
        usage()
    with t.case('bad values of options'):
        bad_values()
    common.need_userfaultfd()
    accel = t.best_accel()
    with t.case('info migrate'):
        info_migrate(t, accel)
    with t.case('-incoming URI and HMP migrate -d'):
        incoming_option(t, accel)
    hosts = (('[::1]', '[::1]'), ('localhost', 'localhost'), ('', '127.0.0.1'), ('', '[::1]'))
    for number, (listen_on, connect_to) in enumerate(hosts):
        with t.case(f'listen on "{listen_on}", connect to {connect_to}'):
            if '::1' in connect_to:
                need_ipv6()
            host(t, accel, number, listen_on, connect_to)


if __name__ == '__main__':
    common.main(run, 90, needs=lambda: None)
