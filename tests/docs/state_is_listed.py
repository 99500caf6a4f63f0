#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""state_is_listed.py - docs/operations.md says of each option and query-* of QEMU what a move or fork does with it

The tables under "What another QEMU has of it", against `-help` and `query-qmp-schema` of the QEMU that is built,
in both directions.

Exit code    0 the same, 1 something differs, 77 no QEMU is built
"""
import json
import os
import re
import subprocess
import sys

TOP = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
QEMU = os.path.join(os.environ.get('FARFORK_BUILD', os.path.join(TOP, 'build')), 'bin', 'qemu-system-x86_64')
PAGE, HEAD = 'docs/operations.md', '## What another QEMU has of it'
ELSEWHERE = {'-spice', 'query-accelerators', 'query-firmware-log', 'x-query-opcount'}   # not in every build
ALIASES = {'-help': '-h', '-fdb': '-fda', '-hdb': '-hda', '-hdd': '-hdc', '-M': '-machine'}


def run(*args):
    return subprocess.run([QEMU, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=30, check=True).stdout


def options():
    """Also the second ones of "-h or -help" and of "-fda/-fdb"."""
    found = set()
    for line in run('-help').splitlines():
        m = re.match(r'-(-?[\w-]+)(?:(?: or |/)-([\w-]+))?', line)
        if m:
            found |= {'-' + name.lstrip('-') for name in m.groups() if name}
    return {ALIASES.get(o, o) for o in found}


def queries():
    """A QEMU that is told to quit may end before it has written all of a long answer: it is read first."""
    asked = ''.join(json.dumps({'execute': c}) + '\n' for c in ('qmp_capabilities', 'query-qmp-schema'))
    with subprocess.Popen([QEMU, '-M', 'none', '-nodefaults', '-display', 'none', '-qmp', 'stdio'], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as qemu:
        try:
            qemu.stdin.write(asked)
            qemu.stdin.flush()
            answers = map(json.loads, qemu.stdout)
            schema = next(a['return'] for a in answers if isinstance(a.get('return'), list))
        finally:
            qemu.kill()
    return {e['name'] for e in schema if e['meta-type'] == 'command' and re.match('(x-)?query-', e['name'])}


def listed():
    """What the first cells of the rows name."""
    with open(os.path.join(TOP, PAGE), encoding='utf-8') as f:
        part = f.read().partition(HEAD + '\n')[2].partition('\n## ')[0]
    rows = [line.split('|')[1] for line in part.splitlines() if line.startswith('| `')]
    return [name for row in rows for name in re.findall(r'`([^`]+)`', row)]


def main():
    if not os.path.exists(QEMU):
        print(f'SKIP: no {QEMU}: make qemu')
        return 77
    names, known = listed(), options() | queries()
    problems = [f'{n}: not in the tables of {PAGE}' for n in sorted(known - set(names))]
    problems += [f'{n}: QEMU has no such' for n in sorted(set(names) - known - ELSEWHERE)]
    problems += [f'{n}: twice' for n in sorted({n for n in names if names.count(n) > 1})]
    print(f'{len(known)} options and queries of QEMU, {len(names)} in {PAGE}')
    for p in problems:
        print(f'DIFFERS: {p}')
    return 1 if problems or not known else 0


if __name__ == '__main__':
    sys.exit(main())
