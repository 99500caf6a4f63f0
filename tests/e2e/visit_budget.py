#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""visit_budget.py - farfork visit --budget: what a guest touched on one visit is there before it touches it on the next

tests/loop/budgets.c has the order, and how much comes; limit: 200 s.
"""
import contextlib
import glob
import os
import signal
import subprocess

import common
from common import Failed, say, wait_for
from forked import ask
from visits import Ledger, Parent, Visit, end_homes, goes_on, is_home, reports

MIB = 32
SOME = 'rate=10000 sweep=4 wss=20 report_ms=500'       # a fifth of its pages, the same each time, and few others
PAGES = 1200                                            # so many of that fifth, at least
BUDGET = 16
CHUNK = 2 << 20


def file_of(v, pid):
    """Where what this guest touched is kept; None: nothing is."""
    found = glob.glob(os.path.join(v.base, f'.working-set-{pid}-*'))
    return found[0] if found else None


def known_of(v):
    """What is known after this visit, of the QEMU in which the guest is then."""
    path = file_of(v, v.pid_home())
    if not path or os.stat(path).st_mode & 0o777 != 0o600:
        raise Failed(f'{path}: not kept, or for others to see')
    with open(path, encoding='ascii') as f:
        header, _, known = f.read().partition('\n')
    if header != 'farfork working set 1' or '=' not in known:
        raise Failed(f'{path}: {header}, {known[:100]}')
    b = v.result['bytes']
    say(f'      {v.result["faults"]} faults; {b["by_prefill"] >> 10} KiB by prefill, {b["by_faults"] >> 10} by faults; '
        f'known: {known.count(",") + 1} spans')
    return known.rstrip()


def there(v):
    """What the process beside the QEMU there counts."""
    return ask(v.folder_there() + '/2.qmp', 'query-migrate')['x-rdma-postcopy']


def checked(t, stack, a, guest, log, name, enough, *args):
    """One visit, until that function of its statistics is true: (what its command says, what is known after it, the guest
    at home)"""
    with Visit(t, a, *args, name=name) as v:
        stack.callback(end_homes, v.base)
        v.away()
        log.leaves(guest)
        with v.guest(t, 'there-' + name) as b:
            reports(b)
            wait_for('enough', 60, lambda: enough(there(v)))
            v.proc.send_signal(signal.SIGINT)
            home = stack.enter_context(is_home(v, t, log, b))
        return v.result, known_of(v), home


def short(t, a, name, *args):
    """A short one: (notes, what is known, its file)"""
    with Visit(t, a, '--until', 'sleep 0.3', *args, name=name) as v:
        v.end(0, 'home')
        return notes_of(v), known_of(v), file_of(v, v.pid_home())


def notes_of(v):
    """Where the guest is then is always noted."""
    return [n for n in v.result['notes'] if 'the guest is in another QEMU here' not in n]


def learned(t, accel):
    log = Ledger(t)
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(Parent(t, accel, mem_mib=MIB, load=SOME))
        a.start_load()
        first, touched, home = checked(t, stack, a, a, log, 'm1', lambda x: x['faults'] >= PAGES)
        if first['bytes']['by_prefill'] or any('touched' in n for n in first['notes']):
            raise Failed(f'{first}')
        second, known, home = checked(t, stack, a, home, log, 'm2',
                                      lambda x: x['prefill-bytes'] + x['duplicated-bytes'] >= BUDGET << 20, '--budget', str(BUDGET))
        if not known.startswith(touched):
            raise Failed(f'the QEMU there was not told {touched[:100]}: {known[:100]}')
        if second['faults'] > first['faults'] * 3 // 4 or any('touched' in n for n in second['notes']):
            raise Failed(f'{second["faults"]} faults after {first["faults"]}: {second["notes"]}')
        if not BUDGET << 19 <= second['bytes']['by_prefill'] <= (BUDGET << 20) + CHUNK:
            raise Failed(f'a budget of {BUDGET} MiB: {second["bytes"]}')
        if not 0 < second['bytes']['back'] <= second['bytes']['present'] * 3 // 4:
            raise Failed(f'what it did not write came back: {first["bytes"]} {second["bytes"]}')
        goes_on(home, log)


def not_to_be_read(t, accel):
    """What is known is somebody else's: that is said, and the guest visits all the same."""
    with Parent(t, accel, mem_mib=MIB, load=SOME) as a, contextlib.ExitStack() as stack:
        a.start_load()
        stack.callback(end_homes, os.path.join(t.work, 'run'))
        _, _, path = short(t, a, 'm1')
        common.write_file(path, 'farfork working set 1\npc.ram=0+fffffffffffff,1;=;' + 'x' * 300000 + '\n')
        notes, known, path = short(t, a, 'long', '--budget', '1')
        if 'x' in known or notes:
            raise Failed(f'it is passed on: {known[:100]}; {notes}')
        common.write_file(path, 'something else\n')
        os.chmod(path, 0o600)
        notes, _, path = short(t, a, 'else', '--budget', '1')
        if not any('does not come first' in n for n in notes):
            raise Failed(f'{notes}')
        os.unlink(path)
        os.mkdir(path)
        with Visit(t, a, '--until', 'sleep 0.3', '--budget', '1', name='folder') as v:
            home = stack.enter_context(is_home(v, t, None))
            if 'does not come first' not in ''.join(notes_of(v)):
                raise Failed(f'{notes_of(v)}')
            known_of(v)
        goes_on(home)


def refused():
    for args, text in ((['--budget', '0'], '--budget: "0"'), (['--budget', '16777217'], '(permitted: 1..16777216)'), (['--budget', '1G'], '"1G"'),
                       (['--options', 'budget=1M'], '--options budget=1M: not with a visit')):
        out = subprocess.run([common.FARFORK, 'visit', *args, 'x', 'h'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, timeout=20, check=False)
        if out.returncode != 2 or text not in out.stdout:
            raise Failed(f'{args}: {out.returncode}, want "{text}": {out.stdout[:300]}')


def run(t):
    accel = t.best_accel()
    for name, case in (('refused', refused), ('learned, and there the next time', lambda: learned(t, accel)),
                       ('what cannot be read, or kept', lambda: not_to_be_read(t, accel))):
        with t.case(name):
            case()


if __name__ == '__main__':
    common.main(run, limit_s=200)
