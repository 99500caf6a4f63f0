#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""demo.py - move running guests, and show what happened

First a Debian kernel with a disk, a network and a TCP client outside moves, and vmclone forks it
into three. A small guest that touches random pages at full speed and knows what every
page must hold moves by the command `farfork move`. Last that guest moves by each way of QEMU's own, too, for
comparison. All on this machine, over the loopback. Memory is warm on both sides, and a stall is
measured, as `farfork bench` does.

Any QEMU will do: it is attached to. One with the transport moves its guests by that.
"""
import argparse
import glob
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, '..', d) for d in ('tests/e2e', 'bench')]
# pylint: disable=wrong-import-position
import common                                               # noqa: E402
import linuxguest                                           # noqa: E402
import linuxreport                                          # noqa: E402
import measure                                              # noqa: E402
import report                                               # noqa: E402
import warm                                                 # noqa: E402
from beside import monitor_path, second_monitor             # noqa: E402
from common import Failed, Linux, Skip, wait_for            # noqa: E402
from forks import VMCLONE                                   # noqa: E402
from peers import Peer, has_transport                       # noqa: E402

WIDTH = 80
NUMBERS = itertools.count(1)
LIMIT_S = 900           # it takes less than 90; a link that breaks is waited for
MOVE_S = 120            # each move
# of the full-speed guest's life: reports before the move tell its clock, by the soonest that came
BEFORE_S, AFTER_S = 3, 1
# (column, peer): of a QEMU with the transport, and of any
PATCHED = (('rdma-postcopy', 'rdma-tcp'), ('with a key', 'rdma-tcp,key'), ('attach', 'attach'), ('preempt', 'preempt'))
ANY = (('farfork', 'attach'), ('with a key', 'attach,key'), ('preempt', 'preempt'))
NEED = ['mem', 'counter', 'disk']
CHILDREN = 3
BOOT_S = 60             # under TCG it takes 3 to 25
FILL_S = 60
FORK_S, SELF_S = 60, 90         # until all memory is there; until a child has its identity
IDENTITY_BYTES = 4096           # docs/guest.md


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


def time_line(move):
    """A measure.Move as numbered stretches of time, and what came how."""
    x = move.way.numbers(move.infos[1])
    total, down, follows = move.total_ms(), move.event_downtime_ms(), move.postcopy_ms()
    before = max(0, total - down - follows)
    rows = [
        (0, f'setup    {before:5.0f} ms', 'connect, compare; the guest runs at the source'),
        (before, f'down     {down:5.0f} ms', 'device state moves; it runs nowhere'),
        (before + down, f'memory   {follows:5.0f} ms', 'it runs here, its memory follows'),
        (total, 'complete', 'every page is here; the source lets go'),
    ]
    out = [f'  {at:7.0f} ms  {what:18} {why}' for at, what, why in rows]
    out.append(f'  pages       {mib(x["prefill-bytes"])} by prefill, {mib(x["fault-bytes"])} by '
               f'fault, {mib(x["zero-bytes"])} zero')
    out.append(f'  faults      {x["faults"]}: p50 {ns(x["fault-p50"])}, p99 {ns(x["fault-p99"])}, '
               f'max {ns(x["fault-max"])}')
    if x['breaks']:
        out.append(f'  the link    broke {x["breaks"]} times, and another one came: {x["paused-time"] / 1e9:.1f} s '
                   'without')
    return '\n'.join(out)


def verdict(good):
    return 'ok' if good else 'NOT OK'


def act(title, show, *args):
    """One part of the demonstration: whether all went well. What goes wrong ends it, not the others."""
    try:
        return show(*args)
    except (Failed, common.GuestError, OSError, subprocess.SubprocessError) as e:
        say(f'{title}: not shown')
        say(textwrap.fill(f'{type(e).__name__ if not str(e) else e}', WIDTH, initial_indent='  NOT OK: ',
                          subsequent_indent='  '))
        say()
        return False


# --- the Linux guest ---

class Parent(Linux):
    """With what a fork needs, as docs/guest.md has it, and a monitor for vmclone."""

    def argv(self, incoming):
        folder = self.s.workdir
        port = os.path.join(folder, f'{self.name}.port')
        net = [] if self.lab else ['-netdev', 'user,id=n0,restrict=on', '-device',
                                   f'virtio-net-pci,netdev=n0,mac={linuxguest.MAC},romfile=']
        return [*super().argv(incoming), *net, *second_monitor(folder, self.name),
                '-device', 'vmgenid,guid=auto',
                '-fw_cfg', f'name=opt/org.farfork/clone,file={folder}/placeholder',
                '-chardev', f'socket,id=port,path={port},server=on,wait=off',
                '-device', 'virtserialport,chardev=port,name=org.farfork.0']


def boot_linux(t, lab, accel, limit_s):
    append = 'farfork.guest=wait' + ('' if lab else f' farfork.ip={linuxguest.GUEST_IP}/24')
    settings = common.linux_settings(t, f'linux-{accel}', accel=accel, memory='memfd',
                                     append=append)
    with open(os.path.join(settings.workdir, 'placeholder'), 'wb') as f:
        f.truncate(IDENTITY_BYTES)
    guest = Parent(lab, settings, f'{accel}-a')
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
            return (accel,) + boot_linux(t, lab, accel, 4 if accel != accels[-1] else BOOT_S)
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


def show_linux(t, accels, patched):
    need, lab, client = list(NEED), None, None
    try:
        lab = linuxguest.Lab(f'ffdemo-{os.getpid()}')
        t.at_end.callback(lab.close)
        need.append('tcp')
    except Skip as e:
        note(f'moving without a network: {e}')
    accel, settings, src = start_linux(t, lab, accels)
    with warm.Warm(settings.memory_mib, hold=True), src, Parent(lab, settings, 'b') as dst:
        if lab:
            client = linuxguest.Client(lab)
            t.at_end.callback(client.close)
        progress('Linux guest: all workers at work')
        common.linux_progress(settings, need)
        dst.start(incoming=True)
        progress('Linux guest: moving')
        move = measure.Move(t, src, dst, Peer('rdma-tcp' if patched else 'attach'), MOVE_S)
        progress('Linux guest: goes on at the destination')
        common.linux_progress(settings, need, reports=8)
        out, good = linux_verdict(settings, need, client)
        say(f'{next(NUMBERS)}. A Debian kernel, {settings.memory_mib} MiB ({accel}): disk'
            f'{", network, a TCP client outside" if lab else ""}')
        say(time_line(move))
        say('\n'.join(out) + '\n')
        src.close()
        good = act('The fork of that guest', show_fork, t, settings, dst) and good
    if lab:
        lab.close()
    return good


# --- its fork ---

def vmclone(t, *args):
    """(exit code, output, complaint)"""
    done = subprocess.run([VMCLONE, *args, '--rundir', os.path.join(t.work, 'run')],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=FORK_S, check=False)
    return done.returncode, done.stdout, done.stderr.strip()


def who(console, times=1):
    """What a guest has said of itself for the last time, if so often: (host name, address)."""
    try:
        with open(console, errors='replace', encoding='utf-8') as f:
            found = re.findall(r'farfork: I am (\S+) (\S*)\r?\n', f.read())
    except FileNotFoundError:
        return None
    return found[-1] if len(found) >= times else None


def at_work(path):
    """Its memory and its disk, once all workers of a child have got on."""
    base = wait_for(f'report in {path}', SELF_S, lambda: linuxreport.last(path))
    keys = [k for w in NEED for k in linuxreport.WORKERS[w]]

    def look():
        now = linuxreport.last(path)
        return all(now[k] > base[k] for k in keys) and now
    end = wait_for(f'work in {path}: {linuxreport.last(path)}', SELF_S, look)
    return end['mem_errors'] == 0, end['disk_errors'] == 0


def child_row(child, name):
    """(what it is called, host name, address, memory, disk)"""
    folder, n = os.path.dirname(child['qmp']), child['child']
    host, address = wait_for(f'word of child {n}', SELF_S,
                             lambda: who(os.path.join(folder, f'{n}.{name}.console')))
    return (f'child {n}', host, address, *at_work(os.path.join(folder, f'{n}.report')))


def show_fork(t, settings, parent):
    """Of the guest that has moved."""
    common.need_files(VMCLONE)
    progress(f'Linux guest: forking it into {CHILDREN}')
    t.at_end.callback(vmclone, t, '--kill', 'demo')
    code, out, complaint = vmclone(
        t, '--json', '--id', 'demo', '--hostname', 'child-{n}', '--ip', '10.77.0.{n+10}/24',
        '--scratch', settings.workdir, monitor_path(settings.workdir, parent.name), str(CHILDREN))
    if code:
        raise Failed(f'vmclone: exit code {code}: {complaint or out[-500:]}')
    result = json.loads(out)
    progress('Linux guest: children take on their identities, and go on')
    rows = [child_row(c, parent.name) for c in result['children']]
    rows.insert(0, ('parent', *who(os.path.join(settings.workdir, f'{settings.accel}-a.console')),
                    *at_work(settings.report)))
    ms = result['phases_ms']
    say(f'{next(NUMBERS)}. That guest, forked into {CHILDREN} by vmclone: all go on from its last instruction')
    say(f'  the parent paused {ms["freeze"]:.0f} ms; memory shared after {ms["complete"]:.0f} '
        'ms, copied on write')
    say(f'  {"":10}{"host name":14}{"address":18}memory  disk')
    for what, host, address, memory, disk in rows:
        say(f'  {what:10}{host:14}{address:18}{verdict(memory):8}{verdict(disk)}')
    say()
    distinct = all(len(set(column)) == len(rows) for column in list(zip(*rows))[1:3])
    if not distinct:
        say('  BAD: two of them have the same name or address')
    return distinct and all(memory and disk for *_, memory, disk in rows)


# --- the micro guest ---

def show_command(t, accel, mem_mib, patched):
    """By the command that a user types; the other host is this one, without ssh."""
    progress('full-speed guest: filling memory')
    guest = measure.Guest('random', mem_mib, 1, 'memfd', accel)
    with guest.start(t, 'guest', common.QEMU) as src:
        src.wait_ready(FILL_S)
        progress('full-speed guest: farfork move')
        base = os.path.join(t.work, 'run')
        t.at_end.callback(vmclone, t, '--kill', 'move')
        done = subprocess.run(
            [common.FARFORK, 'move', '--rundir', base, '--id', 'move', *(['--via', 'transport'] if patched else []),
             '--launcher', 'env FF_HOST={host} {cmd}', monitor_path(t.work, 'guest'), 'host2=127.0.0.1'],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MOVE_S, check=False)
        if done.returncode:
            raise Failed(f'farfork move: exit code {done.returncode}: {done.stderr or done.stdout}')
        progress('full-speed guest: goes on at the destination')
        console = wait_for('its console', SELF_S, lambda: glob.glob(f'{base}/move/host2/*.console'))[0]

        def goes_on():
            log = report.parse(src.console, console)
            return len(log.lines) > 1 and log
        good, reasons = report.verdict(wait_for('reports of the guest there', SELF_S, goes_on))
    vmclone(t, '--kill', 'move')
    say(f'{next(NUMBERS)}. A guest that touches random pages at full speed, {mem_mib} MiB ({accel})')
    say('  $ farfork move guest.qmp host2')
    for line in done.stdout.rstrip().split('\n'):
        say(textwrap.fill(line.strip().replace(base, '/run/farfork'), WIDTH, initial_indent='  ', subsequent_indent='    '))
    say(f'  it goes on there, its pages as written: {verdict(good)}\n')
    for reason in reasons[:3]:
        say(f'  BAD: {reason}')
    return good


def micro_moves(t, accel, mem_mib, kinds):
    """A run of bench's for each kind."""
    guest = measure.Guest('random', mem_mib, 1, 'anon', accel)
    progress('full-speed guest: warming memory')
    with warm.Warm(mem_mib, hold=True):
        for i, (name, peer) in enumerate(kinds):
            progress(f'full-speed guest, {name}: filling memory, moving')
            yield measure.one_move(t, guest, Peer(peer), common.QEMU, i,
                                   measure.Times(BEFORE_S, AFTER_S, LIMIT_S))


def show_micro(t, accel, mem_mib, kinds):
    runs = list(micro_moves(t, accel, mem_mib, kinds))

    def cells(name, show):
        return [show(r['metrics'][name]) if r['metrics'].get(name) is not None else '-'
                for r in runs]

    def us(value):
        return ns(value * 1000)

    def ms(value):
        return f'{value:.0f} ms'

    say(f'{next(NUMBERS)}. The same, by each way')
    say(f'  {"":22}' + ''.join(f'{name:>14}' for name, _ in kinds))
    for what, values in (
            ('total time', cells('total_ms', ms)), ('downtime', cells('downtime_events_ms', ms)),
            ('guest stalled, in all', cells('stall_total_ms', ms)),
            ('  one stall: p50', cells('stall_p50_us', us)),
            ('  p99', cells('stall_p99_us', us)), ('  max', cells('stall_max_us', us)),
            ('faults', cells('faults', str)),
            ('pages, as touched', [verdict(r['outcome'] == 'completed') for r in runs])):
        say(f'  {what:22}' + ''.join(f'{v:>14}' for v in values))
    say('  (preempt: QEMU\'s own post-copy. Stall: a touch of over 25 us, by the guest\'s\n'
        '  own clock. `farfork move` uses a key. One move each shows how it behaves;\n'
        '  `farfork bench` compares)')
    for (name, _), r in zip(kinds, runs):
        if r['metrics'].get('breaks'):
            say(f'  {name}: the link broke {r["metrics"]["breaks"]} times, and another one came: '
                f'{r["metrics"]["paused_ms"] / 1000:.1f} s without')
        if r['outcome'] != 'completed':
            say(f'  BAD: {name}: {r["why"]}')
    return all(r['outcome'] == 'completed' for r in runs)


def version_of(qemu):
    said = subprocess.run([qemu, '--version'], capture_output=True, text=True, timeout=60, check=False).stdout
    return said.split('\n')[0].removeprefix('QEMU emulator version ')


def parse_args():
    p = argparse.ArgumentParser(
        description='Move running guests, fork one, and show what happened.',
        epilog='Environment: FARFORK_BUILD (default: build), QEMU_BIN: any QEMU. Exit code: 0 when every '
               'verdict is ok, 1 when one is not, 77 when it cannot run here.')
    p.add_argument('--accel', choices=('auto', 'kvm', 'tcg'), default='auto',
                   help='auto: kvm for each guest that boots under it, else tcg')
    p.add_argument('--mem', type=int, default=256, metavar='MIB',
                   help='memory of the full-speed guest (default: %(default)s)')
    p.add_argument('--only', choices=('linux', 'micro'), help='only one of the two guests')
    return p.parse_args()


def show_all(t, o, accels, patched):
    """Whether all went well."""
    good = True
    if o.only != 'micro':
        good = act('A Debian kernel that moves', show_linux, t, accels, patched)
    if o.only != 'linux':
        good = act('A guest that moves by farfork move', show_command, t, accels[0], o.mem, patched) and good
        good = act('A guest that moves by each way', show_micro, t, accels[0], o.mem, PATCHED if patched else ANY) and good
        say()
    return good


def main():
    o = parse_args()

    def run(t):
        if not os.path.exists(warm.BASELINES):
            raise Skip(f'no {warm.BASELINES}: run make demo, or install package farfork-bench')
        patched = has_transport(common.QEMU)
        say('Farfork: a running guest moves at once, its memory follows page by page')
        say(f'QEMU {version_of(common.QEMU)}{", patched by Farfork" if patched else ", as it is"}\n')
        load, cpus = os.getloadavg()[0], len(os.sched_getaffinity(0))
        if load > cpus:
            note(f'other work keeps this machine busy: load {load:.0f} on {cpus} CPUs. Times will be '
                 'longer than a user sees, and vary')
        accels = {'auto': ['kvm', 'tcg'], 'kvm': ['kvm'], 'tcg': ['tcg']}[o.accel]
        if 'kvm' in accels:
            progress('trying KVM')
            if t.kvm_reason():
                if o.accel == 'kvm':
                    raise Skip(t.kvm_reason())
                note(f'no KVM: {t.kvm_reason()}')
                accels = ['tcg']
        good = show_all(t, o, accels, patched)
        say(f'verdict: {verdict(good)}, {time.monotonic() - progress.start:.0f} s')
        if not good:
            raise Failed('a verdict is not ok')

    try:
        t = common.run_program(run, LIMIT_S)
    finally:
        progress.clear()
    sys.exit(1 if t.failed else 77 if t.skipped else 0)


if __name__ == '__main__':
    main()
