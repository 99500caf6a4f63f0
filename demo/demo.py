#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""demo.py - move two live guests by rdma-postcopy and show what happened

First a Debian kernel with a disk, a network and a TCP client outside, then a small guest
that touches random pages at full speed and knows what every page must hold; that one also
by QEMU's own post-copy, for comparison. All on this machine, over the loopback.
"""
import argparse
import os
import sys
import textwrap
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'tests', 'e2e'))
# pylint: disable=wrong-import-position
import common                                               # noqa: E402
import linuxguest                                           # noqa: E402
import linuxreport                                          # noqa: E402
import report                                               # noqa: E402
from common import Failed, Linux, Micro, Skip               # noqa: E402

WIDTH = 80
LIMIT_S = 300           # it takes less than 60
# a touch of over 25 us is a stall; those of the sweep are not timed, so they are one in so many
LOAD = 'report_ms=400 sweep={}'
SWEEP = {'kvm': 64, 'tcg': 16}
STALL_NS = 25000
KINDS = ('rdma-postcopy', 'post-copy', 'post-copy+preempt')
STOCK = {'post-copy': 'postcopy', 'post-copy+preempt': 'preempt'}


class Progress:
    """What is being done: a line on stderr that the next one replaces on a terminal."""

    def __init__(self):
        self.tty = sys.stderr.isatty()
        self.start = time.monotonic()

    def __call__(self, text):
        line = f'  [{time.monotonic() - self.start:4.1f} s] {text} ...'[:WIDTH - 1]
        sys.stderr.write(f'\r{line:<{WIDTH - 1}}' if self.tty else line + '\n')
        sys.stderr.flush()

    def clear(self):
        if self.tty:
            sys.stderr.write('\r' + ' ' * (WIDTH - 1) + '\r')
            sys.stderr.flush()


progress = Progress()


def say(text=''):
    progress.clear()
    for line in text.split('\n'):
        print(line[:WIDTH], flush=True)


def note(text):
    """What could not be done, and what to do about it."""
    say(textwrap.fill(f'({text})', WIDTH, initial_indent='  ', subsequent_indent='   '))


def ns(value):
    return report.human_ns(value)


def mib(value):
    return f'{value / (1 << 20):.1f} MiB'


def time_line(moved):
    """The move as numbered stretches of time, and what came how."""
    s, x = moved.src_info, moved.stats
    total, setup, down = s['total-time'], s['setup-time'], s['downtime']
    follows = x['complete-time'] / 1e6
    before = max(0, total - setup - down - follows)
    rows = [
        (0, f'setup    {setup:5d} ms', 'connect, compare; the guest runs at the source'),
        (setup + before, f'down     {down:5d} ms', 'device state moves; it runs nowhere'),
        (setup + before + down, f'memory   {follows:5.0f} ms',
         'it runs here, its memory follows'),
        (total, 'complete', 'every page is here; the source lets go'),
    ]
    out = [f'  link {x["link"]}; times from `migrate` on']
    out += [f'  {at:7.0f} ms  {what:18} {why}' for at, what, why in rows]
    out.append(f'  pages       {mib(x["prefill-bytes"])} by prefill, {mib(x["fault-bytes"])} by '
               f'fault, {mib(x["zero-bytes"])} zero')
    out.append(f'  faults      {x["faults"]}: p50 {ns(x["fault-p50"])}, p99 {ns(x["fault-p99"])}, '
               f'max {ns(x["fault-max"])}')
    return '\n'.join(out)


# --- the Linux guest ---

def boot_linux(t, lab, accel, limit_s):
    settings = common.linux_settings(t, f'linux-{accel}', accel=accel)
    guest = Linux(lab, settings, f'{accel}-a')
    try:
        guest.start()
        common.linux_boot(guest, limit_s)
    except BaseException:
        guest.close()
        raise
    return settings, guest


def start_linux(t, lab, accels):
    """(accelerator, settings, guest) of the first accelerator that boots it."""
    for accel in accels:
        progress(f'booting the Linux guest ({accel})')
        try:
            # a KVM that emulates ring 0 takes minutes: then tcg is the better choice
            return (accel,) + boot_linux(t, lab, accel, 4 if accel != accels[-1] else 40)
        except Failed:
            if accel == accels[-1]:
                raise
    return None


def linux_verdict(settings, need, client):
    """(lines, all well) of guest and client."""
    lines = linuxreport.load(settings.report)
    problems = linuxreport.verdict(lines, need)
    end = linuxreport.summary(lines)
    out = [f'  guest       memory {verdict(end["mem_errors"] == 0)} '
           f'({end["mem_checked"]} pages checked), '
           f'disk {verdict(end["disk_errors"] == 0)} ({end["disk_reads"]} reads), '
           f'clock {verdict(end["clock_errors"] == 0)}']
    if client:
        seen, code = client.finish()
        same = 'the same connection' if seen['same_connection'] else 'BROKEN'
        out.append(f'  TCP client  {verdict(code == 0)}: {same}, {seen["lines"]} lines, '
                   f'{seen["errors"]} errors, longest gap {seen["longest_gap_ms"]:.0f} ms')
        if code:
            problems.append(f'TCP client: {seen["first_error"]}')
    return out + [f'  BAD: {p}' for p in problems], not problems


def verdict(good):
    return 'ok' if good else 'NOT OK'


def show_linux(t, accels):
    need, lab, client = ['mem', 'counter', 'disk'], None, None
    try:
        lab = linuxguest.Lab(f'ffdemo-{os.getpid()}')
        t.at_end.callback(lab.close)
        need.append('tcp')
    except Skip as e:
        note(f'moving without a network: {e}')
    accel, settings, src = start_linux(t, lab, accels)
    with src, Linux(lab, settings, 'b') as dst:
        if lab:
            client = linuxguest.Client(lab)
            t.at_end.callback(client.close)
        progress('Linux guest: all workers at work')
        common.linux_progress(settings, need)
        progress('Linux guest: moving')
        dst.start(incoming=True)
        moved = common.move(src, dst)
        common.check_move(moved)
        progress('Linux guest: goes on at the destination')
        common.linux_progress(settings, need, reports=8)
        out, good = linux_verdict(settings, need, client)
    if lab:
        lab.close()
    say(f'1. A Debian kernel, {settings.memory_mib} MiB ({accel}): disk'
        f'{", network, a TCP client outside" if lab else ""}')
    say(time_line(moved))
    say('\n'.join(out))
    return good


# --- the micro guest ---

def stalls(before, after):
    """What the guest felt between two snapshots: (sum, p50, p99, max) of stalls, in ns."""
    tot = report.total(report.diff(before, after))
    hist = {b: n for b, n in tot['hist'].items() if report.bucket_low(b) >= STALL_NS}
    return [tot['stall_ns']] + [report.percentile(hist, p, tot['max_ns']) or 0
                                for p in (50, 99)] + [tot['max_ns']]


def move_micro(t, accel, kind, mem_mib):
    name, load = kind.replace('+', '-'), LOAD.format(SWEEP[accel])
    with Micro(t, f'{name}-a', accel, mem_mib=mem_mib, load=load) as src, \
            Micro(t, f'{name}-b', accel, mem_mib=mem_mib, load=load, incoming=True) as dst:
        progress(f'full-speed guest, {kind}: writing {mem_mib} MiB')
        src.start_load()
        src.wait_progress(1, 30)
        before = report.snapshot(src.log().lines)
        progress(f'full-speed guest, {kind}: moving')
        if kind in STOCK:
            moved = common.stock_move(src, dst, STOCK[kind])
        else:
            moved = common.move(src, dst)
            common.check_move(moved)
        dst.wait('a report after the move', lambda log: len(log.lines) > 0, 30)
        dst.wait_progress(1, 30)
        after = report.snapshot(report.parse(src.console, dst.console).lines)
        progress(f'full-speed guest, {kind}: checking every page')
        dst.wait_sweeps(1, 60)
        good, reasons = common.ledger(src, dst)
    return moved, stalls(before, after), good, reasons


def ms(value):
    return f'{value} ms'


def show_micro(t, accel, mem_mib):
    results = [move_micro(t, accel, kind, mem_mib) for kind in KINDS]
    say(f'2. A guest that touches random pages at full speed, {mem_mib} MiB ({accel})')
    say(time_line(results[0][0]))
    rows = [
        ('total time', [ms(m.src_info['total-time']) for m, *_ in results]),
        ('downtime', [ms(m.src_info['downtime']) for m, *_ in results]),
        ('guest stalled, in all', [ns(s[0]) for _, s, *_ in results]),
        ('  one stall: p50', [ns(s[1]) for _, s, *_ in results]),
        ('  p99', [ns(s[2]) for _, s, *_ in results]),
        ('  max', [ns(s[3]) for _, s, *_ in results]),
        ('faults', [str(m.src_info['ram']['postcopy-requests']) for m, *_ in results]),
        ('guest\'s memory', [verdict(good) for *_, good, _ in results]),
    ]
    say()
    say(f'  {"":22}' + ''.join(f'{k:>18}' for k in KINDS))
    for what, values in rows:
        say(f'  {what:22}' + ''.join(f'{v:>18}' for v in values))
    say('  (stall: a touch of over 25 us, by the guest\'s own clock; one move each, so\n'
        '  this shows how it behaves and is no benchmark)')
    for kind, (*_, reasons) in zip(KINDS, results):
        for r in reasons[:3]:
            say(f'  BAD: {kind}: {r}')
    return all(good for *_, good, _ in results)


def parse_args():
    p = argparse.ArgumentParser(
        description='Move two live guests by rdma-postcopy and show what happened.',
        epilog='Environment: FARFORK_BUILD (default: build), QEMU_BIN. Exit code: 0 when every '
               'verdict is ok, 1 when one is not, 77 when it cannot run here.')
    p.add_argument('--accel', choices=('auto', 'kvm', 'tcg'), default='auto',
                   help='auto: kvm for each guest that boots under it, else tcg')
    p.add_argument('--mem', type=int, default=256, metavar='MIB',
                   help='memory of the full-speed guest (default: %(default)s)')
    p.add_argument('--only', choices=('linux', 'micro'), help='only one of the two guests')
    return p.parse_args()


def main():
    o = parse_args()

    def run(t):
        say('Farfork: a running guest moves at once, its memory follows page by page\n')
        accels = {'auto': ['kvm', 'tcg'], 'kvm': ['kvm'], 'tcg': ['tcg']}[o.accel]
        if 'kvm' in accels:
            progress('trying KVM')
            if t.kvm_reason():
                if o.accel == 'kvm':
                    raise Skip(t.kvm_reason())
                note(f'no KVM: {t.kvm_reason()}')
                accels = ['tcg']
        good = True
        if o.only != 'micro':
            good = show_linux(t, accels)
            say()
        if o.only != 'linux':
            good = show_micro(t, accels[0], o.mem) and good
        say(f'\nverdict: {verdict(good)}, {time.monotonic() - progress.start:.0f} s')
        if not good:
            raise Failed('a verdict is not ok')

    try:
        t = common.run_program(run, LIMIT_S)
    finally:
        progress.clear()
    sys.exit(1 if t.failed else 77 if t.skipped else 0)


if __name__ == '__main__':
    main()
