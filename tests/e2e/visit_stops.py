#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""visit_stops.py - farfork visit with several hosts: from each the guest comes home before it goes to the next

What one host had of the guest is gone there when it is at the next; limit: 150 s.
"""
import contextlib
import json
import os
import signal
import subprocess

import common
from common import Failed, say
from farfork_move import pid_there
from forked import ELSEWHERE, alive, hosts_of_their_own
from visits import Ledger, Parent, Visit, end_homes, goes_on, nothing_there, reports

IN_NAMESPACE = ('--launcher', 'ip netns exec {host} {cmd}')


def until(t):
    """A command that says where the guest is, and ends with a file of that name."""
    return '--until', f'echo "$FARFORK_HOST" >> {t.work}/stops; ' \
                      f'until test -e "{t.work}/go-$FARFORK_HOST" || ! kill -0 $PPID; do sleep 0.05; done'


def results(v, code):
    """What it printed, by stop."""
    out, v.err = v.proc.communicate(timeout=90)
    if v.proc.returncode != code:
        raise Failed(f'farfork visit ended with {v.proc.returncode}, want {code}: {v.err[-600:]}')
    found, text = [], out.strip()
    while text:
        r, end = json.JSONDecoder().raw_decode(text)
        found.append(r)
        text = text[end:].lstrip()
    return found


def goes_round(t, accel):
    """A to B to C and back to A."""
    log = Ledger(t)
    with hosts_of_their_own(2) as hosts, Parent(t, accel) as a, contextlib.ExitStack() as homes:
        a.start_load()
        guest = a
        names = [h.partition('=')[0] for h in hosts]
        before = []
        with Visit(t, a, *until(t), host=hosts, launcher=IN_NAMESPACE) as v:
            for i, name in enumerate(names, 1):
                v.hears(f'it runs on {name}')
                v.name = f'm-{i}'
                if [pid for pid in before if alive(pid)]:
                    raise Failed(f'on {name}, and its QEMU of before goes on: {before}')
                log.leaves(guest)
                before.append(pid_there(v))
                with v.guest(t, name) as b:
                    reports(b, 5)
                    common.write_file(f'{t.work}/go-{name}', '')
                    v.hears('it runs here again')
                    log.leaves(b)
                    guest = homes.enter_context(v.at_home(t))
            got = results(v, 0)
            homes.callback(end_homes, v.base)
            nothing_there(v)
        if [(r['id'], r['host'], r['state']) for r in got] != [(f'm-{i}', n, 'home') for i, n in enumerate(names, 1)]:
            raise Failed(f'{got}')
        with open(f'{t.work}/stops', encoding='ascii') as f:
            if f.read().split() != names:
                raise Failed('its command ran elsewhere')
        for r in got:
            say(f'      {r["host"]}: {r["bytes"]["present"] >> 10} KiB there, {r["bytes"]["back"] >> 10} KiB back')
        goes_on(guest, log)


def goes_no_further(t, accel):
    """A signal, and a host that is not there: it is home, and the rest is left out."""
    with Parent(t, accel) as a, contextlib.ExitStack() as homes:
        a.start_load()
        homes.callback(end_homes, os.path.join(t.work, 'run'))
        with Visit(t, a, '--until', 'sleep 1000', host=['h1=127.0.0.1', 'h2=127.0.0.1'], launcher=ELSEWHERE) as v:
            v.away()
            v.proc.send_signal(signal.SIGINT)
            got = results(v, 0)
            v.name = 'm-1'
            nothing_there(v)
            guest = homes.enter_context(v.at_home(t))
        if [r['state'] for r in got] != ['home'] or 'does not go on to h2' not in v.err:
            raise Failed(f'{got} {v.err}')
        refuses = ('--launcher', 'sh -c "test {host} != h2 && exec env FF_HOST={host} {cmd}"')
        with Visit(t, a, '--until', 'true', host=['h1=127.0.0.1', 'h2=127.0.0.1', 'h3=127.0.0.1'], launcher=refuses) as v:
            got = results(v, 1)
            v.name = 'm-1'
            guest = homes.enter_context(v.at_home(t, 'again'))
        if [r['state'] for r in got] != ['home', 'here'] or 'does not go on to h3' not in v.err:
            raise Failed(f'{got} {v.err}')
        goes_on(guest)


def refused():
    for args, text in ((['x', 'h1', 'h2'], '2 hosts: want --until'), (['--serve', 'port', 'x', 'h1'], 'usage'), (['x'], 'usage')):
        out = subprocess.run([common.FARFORK, 'visit', *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             timeout=20, check=False)
        if out.returncode != 2 or text not in out.stdout:
            raise Failed(f'{args}: {out.returncode}, want "{text}": {out.stdout[:300]}')


def run(t):
    accel = t.best_accel()
    with t.case('refused'):
        refused()
    with t.case('to two hosts, and home'):
        goes_round(t, accel)
    with t.case('it goes no further'):
        goes_no_further(t, accel)


if __name__ == '__main__':
    common.main(run, limit_s=150)
