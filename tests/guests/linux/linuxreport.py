#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""linuxreport.py - read what guestload reported, and judge it

usage: linuxreport.py FILE [--need mem,disk,tcp]        exit 0: all is well, 1: it is not

As a module: lines = load(path); problems = verdict(lines, need); summary(lines).
The file may be written to while it is read: a torn last line is left out. Lines
that are not ours (a console shares the port) are left out as well, but a line
that begins like ours and does not parse, in the middle, is a problem.
"""
import argparse
import json
import sys

ERRORS = ('mem_errors', 'clock_errors', 'disk_errors', 'tcp_errors', 'rpc_errors')
GROWING = ('uptime_ms', 'mem_checked', 'mem_passes', 'counter', 'disk_writes', 'disk_reads',
           'tcp_lines', 'tcp_conns', 'rpc_calls', 'max_gap_ms') + ERRORS
WORKERS = {'mem': ('mem_checked',), 'counter': ('counter',),
           'disk': ('disk_writes', 'disk_reads'), 'tcp': ('tcp_lines',), 'rpc': ('rpc_calls',)}
BEGIN = b'{"farfork":"linux"'
SILENT_MS = 5000                # limit of the guest's own time between two lines


class Torn(dict):
    """A line in the middle that does not parse; text under the key `torn`."""


def parse(data):
    """List of reports, in order, of the bytes of a report file."""
    whole, _, _ = data.rpartition(b'\n')
    lines = []
    for raw in whole.split(b'\n'):
        at = raw.find(BEGIN)
        if at < 0:
            continue
        try:
            lines.append(json.loads(raw[at:].strip(b'\r ')))
        except ValueError:
            lines.append(Torn(torn=raw[at:].decode(errors='replace')))
    return lines


def load(path):
    try:
        with open(path, 'rb') as f:
            return parse(f.read())
    except FileNotFoundError:
        return []


def sound(lines):
    return [x for x in lines if not isinstance(x, Torn)]


def last(path):
    """Newest whole report, or None."""
    lines = sound(load(path))
    return lines[-1] if lines else None


def verdict(lines, need=('mem', 'counter'), silent_ms=SILENT_MS):
    """List of problems; empty if none. Each worker of `need` must have got on.

    silent_ms=0 allows any silence: for a guest that waits for a broken link.
    """
    problems = [f'line does not parse: {x["torn"]!r}' for x in lines if isinstance(x, Torn)]
    lines = sound(lines)
    if not lines:
        return problems + ['no report at all']
    end = lines[-1]
    if end['first_error'] is not None:
        problems.append(f'first error: {end["first_error"]}')
    problems += [f'{key} is {end[key]}' for key in ERRORS if end[key]]
    for a, b in zip(lines, lines[1:]):
        if b['seq'] != a['seq'] + 1:
            problems.append(f'report {a["seq"]} is followed by {b["seq"]}')
        problems += [f'{key} went back from {a[key]} to {b[key]} at report {b["seq"]}'
                     for key in GROWING if b[key] < a[key]]
        if silent_ms and b['uptime_ms'] - a['uptime_ms'] > silent_ms:
            problems.append(f'silent for {b["uptime_ms"] - a["uptime_ms"]} ms (limit {silent_ms})'
                            f' before report {b["seq"]}')
    for worker in need:
        problems += [f'{worker}: {key} stood still at {end[key]}' for key in WORKERS[worker]
                     if end[key] <= lines[0][key]]
    return problems


def since(lines, seq):
    """The reports from number `seq` on."""
    return [x for x in lines if isinstance(x, Torn) or x['seq'] >= seq]


def summary(lines):
    lines = sound(lines)
    if not lines:
        return {'reports': 0}
    end = dict(lines[-1], reports=len(lines))
    del end['farfork']
    return end


def main():
    p = argparse.ArgumentParser(description='judge a report file of the Linux test guest')
    p.add_argument('file')
    p.add_argument('--need', default='mem,counter', help='workers that must have got on')
    o = p.parse_args()
    need = [w for w in o.need.split(',') if w]
    unknown = [w for w in need if w not in WORKERS]
    if unknown:
        p.error(f'--need {",".join(unknown)}: not one of {", ".join(WORKERS)}')
    lines = load(o.file)
    problems = verdict(lines, need)
    print(json.dumps(summary(lines)))
    for problem in problems[:20]:
        print(f'report: {problem}')
    if len(problems) > 20:
        print(f'report: and {len(problems) - 20} more')
    sys.exit(1 if problems else 0)


if __name__ == '__main__':
    main()
