#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""fanout.py - one guest forked to many hosts, each at the end of a link of a set rate

usage: fanout.py [--hosts N...] [--ways star|chain|NUMBER|multicast...] [--mem MIB] [--rate RATE] [--runs N]
                 [--busy|--still|--verify] [--json FILE] [--plots FOLDER]

Picture   bridge, in a namespace of its own
            |  |  |  ...     a namespace each: the parent's, and every host's; what leaves one, and
                             what reaches it, goes at RATE (tbf)
Ways      star: the parent sends the image to each; chain, 2, 3: vmclone --fanout 1, 2, 3;
          multicast: vmclone --multicast, and a chain for what is missing then
Figures   run: from the command to the first byte on the last child's console; complete: to the last
          page of the last host; sent: what left the parent's link, in images; faults: of children,
          p50 and p99 those of the host that has the longest; CPU: of this machine, all processes, so
          leave it alone meanwhile. The floor is plain sockets that carry one image
          over the same links: from the parent to one host, and along a chain, piece by piece.
          --plots: over the number of hosts, PNG and SVG
Guests    have vCPUs that run when nobody else wants a CPU (SCHED_IDLE): they do not halt, and many on few
          CPUs would be what is measured. Still they are: KVM lets go of such a vCPU up to 0.2 s late here, and
          agents wait. --busy: they touch all of their memory at full speed, and no CPU is kept from them; --still: parent and children are stopped once all children
          have run, so that what is measured is how memory is spread, and no faults come from then on;
          --verify: they use their memory, and each child sweeps all of it afterwards, twice, and finds it
          right
Exit code 0 measured, 1 something failed, 77 it cannot run here
"""
import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)),
                os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'tests', 'e2e')]

import common
import forks
import plots
import testbed
from common import Failed, Micro, Skip

VMCLONE = os.path.abspath(forks.VMCLONE)
NET = '10.80'
PIECE = 64 << 10
LIMIT_S = 900
TOUCHES_ALL = 'mode=random wss=100 sweep=0 report_ms=2000 beat_ms=2'
LOOK_S = 0.1
CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


class Hosts(testbed.Namespaces):
    """Behind one bridge, in the last namespace; the first is the parent's."""

    def __init__(self, n, rate):
        super().__init__(rate)
        self.n = n
        self.bridge = f'fffan-{os.getpid()}-br'
        self.ns = [*(f'fffan-{os.getpid()}-{i}' for i in range(n + 1)), self.bridge]

    def address(self, i):
        return f'{NET}.{i // 200}.{i % 200 + 1}'

    def argv(self, argv, incoming):
        return ['ip', 'netns', 'exec', self.ns[0], *argv]

    def up(self):
        tool, link = testbed.tool, self.link
        tool('ip', 'netns', 'add', self.bridge)
        tool('ip', '-n', self.bridge, 'link', 'add', 'br0', 'type', 'bridge')
        tool('ip', '-n', self.bridge, 'link', 'set', 'br0', 'up')
        for i, ns in enumerate(self.ns[:-1]):
            tool('ip', 'netns', 'add', ns)
            tool('ip', '-n', ns, 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', f'p{i}', 'netns',
                 self.bridge)
            tool('ip', '-n', ns, 'address', 'add', f'{self.address(i)}/16', 'dev', 'eth0')
            tool('ip', '-n', self.bridge, 'link', 'set', f'p{i}', 'master', 'br0')
            for name, device in ((ns, 'lo'), (ns, 'eth0'), (self.bridge, f'p{i}')):
                size = ('gso_max_size', str(link.largest_packet())) if device != 'lo' else ()
                tool('ip', '-n', name, 'link', 'set', device, 'up', *size)
                if device != 'lo':
                    tool('ip', 'netns', 'exec', name, 'tc', 'qdisc', 'add', 'dev', device, 'root',
                         *link.tbf())

    def sent_bytes(self):
        out = subprocess.run(['ip', '-n', self.ns[0], '-s', '-j', 'link', 'show', 'eth0'],
                             stdout=subprocess.PIPE, check=True, timeout=20).stdout
        return json.loads(out)[0]['stats64']['tx']['bytes']


def busy_s():
    """CPU time of this machine so far, but for idle."""
    with open('/proc/stat', encoding='ascii') as f:
        words = [int(x) for x in f.readline().split()[1:9]]
    return (sum(words) - words[3] - words[4]) / os.sysconf('SC_CLK_TCK')


# --- the floor: no guest, no Farfork ---

def in_netns(ns, fn):
    """fn(), in a thread of that namespace."""
    out = []

    def main():
        with open(f'/run/netns/{ns}', 'rb') as there:
            if LIBC.setns(there.fileno(), CLONE_NEWNET):
                raise Failed(f'setns: {os.strerror(ctypes.get_errno())}')
        out.append(fn())
    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    thread.join(20)
    if not out:
        raise Failed(f'floor: {ns}: no connection')
    return out[0]


def receive_on(listener, out, total):
    """Take total bytes, and hand each piece on to out (None: nobody)."""
    conn, _ = listener.accept()
    left, buf = total, bytearray(PIECE)
    with conn:
        while left:
            at = 0
            while at < PIECE and left - at:
                n = conn.recv_into(memoryview(buf)[at:], min(PIECE - at, left - at))
                if not n:
                    raise Failed('floor: the connection ended')
                at += n
            if out:
                out.sendall(memoryview(buf)[:at])
            left -= at


def floor(place, total, n):
    """Seconds and CPU seconds until a chain of n hosts has so many bytes, by plain sockets."""
    ready = [in_netns(place.ns[i], lambda i=i: socket.create_server((place.address(i), 7)))
             for i in range(1, n + 1)]
    senders = [in_netns(place.ns[i], lambda i=i: socket.create_connection((place.address(i + 1), 7), 10))
               for i in range(n)]
    threads = []
    cpu, start = busy_s(), time.monotonic()
    for i in range(n):
        threads.append(threading.Thread(target=receive_on, daemon=True, args=(
            ready[i], senders[i + 1] if i + 1 < n else None, total)))
        threads[-1].start()
    piece = bytes(PIECE)
    for at in range(0, total, PIECE):
        senders[0].sendall(memoryview(piece)[:min(PIECE, total - at)])
    for t in threads:
        t.join(LIMIT_S)
        if t.is_alive():
            raise Failed(f'floor: {n} hosts: no end within {LIMIT_S} s')
    took = time.monotonic() - start
    for s in (*ready, *senders):
        s.close()
    return {'complete_s': took, 'cpu_s': busy_s() - cpu}


# --- a fork ---

NAMED = ('-name', 'fanout,debug-threads=on')    # so that vCPUs are found


def named_qemu(folder):
    """The children's program."""
    path = os.path.join(folder, 'qemu')
    with open(path, 'w', encoding='ascii') as f:
        f.write(f'#!/bin/sh\nexec {os.path.abspath(common.QEMU)} "$@" {" ".join(NAMED)}\n')
    os.chmod(path, 0o755)
    return path


class IdleCpus(threading.Thread):
    """vCPUs, and nothing else of a QEMU, run when nobody else does."""

    def __init__(self):
        super().__init__(daemon=True)
        self.seen, self.over = set(), threading.Event()

    def look(self):
        for pid in (p for p in os.listdir('/proc') if p.isdigit()):
            with contextlib.suppress(OSError):
                with open(f'/proc/{pid}/comm', encoding='ascii', errors='replace') as f:
                    if not f.read().startswith('qemu-system'):
                        continue
                for tid in os.listdir(f'/proc/{pid}/task'):
                    with open(f'/proc/{pid}/task/{tid}/comm', encoding='ascii', errors='replace') as f:
                        if tid not in self.seen and f.read().startswith('CPU '):
                            os.sched_setscheduler(int(tid), os.SCHED_IDLE, os.sched_param(0))
                            self.seen.add(tid)

    def run(self):
        while not self.over.wait(LOOK_S):
            self.look()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


def stop_all(births, n, parent, folder):
    """Once all children have run: their QEMUs stand still, and the parent's guest does."""
    births.wait(n, 300)
    parent.qmp('stop')
    for pid in (p for p in os.listdir('/proc') if p.isdigit() and int(p) != parent.pid):
        with contextlib.suppress(OSError):
            with open(f'/proc/{pid}/comm', encoding='ascii', errors='replace') as f:
                if not f.read().startswith('qemu-system'):
                    continue
            with open(f'/proc/{pid}/cmdline', encoding='utf-8', errors='replace') as f:
                if folder in f.read():
                    os.kill(int(pid), signal.SIGSTOP)


def one(t, place, way, o, accel, tag):
    n, folder = place.n, os.path.join(t, tag)
    os.mkdir(folder)
    second = os.path.join(folder, 'parent.second')
    fanout = {'star': '0', 'chain': '1', 'multicast': '1'}.get(way, way)
    more = [*(('--multicast', '239.192.77.8') if way == 'multicast' else ()),
            *(('--options', o.options) if o.options else ()),
            *(('--qemu', named_qemu(folder)) if not o.busy else ())]
    hosts = [f'{place.ns[i]}={place.address(i)}' for i in range(1, n + 1)]
    with contextlib.ExitStack() as stack:
        common.place = place
        parent = stack.enter_context(Micro(
            type('Work', (), {'work': folder}), 'parent', accel, memory='anon', mem_mib=o.mem,
            load=(TOUCHES_ALL if o.busy else forks.LOADS['busy' if o.verify else 'idle']) + ' fill=100',
            extra=['-qmp', f'unix:{second},server=on,wait=off', *NAMED]))
        parent.wait_ready(120)
        if not o.busy:
            stack.enter_context(IdleCpus())
        base = os.path.join(folder, 'run')
        stack.callback(subprocess.run, [VMCLONE, '--kill', 'f', '--rundir', base],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        births = stack.enter_context(forks.Births(folder))
        if o.still:
            threading.Thread(target=stop_all, args=(births, n, parent, folder), daemon=True).start()
        sent, cpu, start = place.sent_bytes(), busy_s(), time.monotonic()
        done = subprocess.run(
            place.argv([VMCLONE, '--json', '--quiet', '--rundir', base, '--id', 'f', '--timeout', '300',
                        '--fanout', fanout, *more, '--launcher', 'ip netns exec {host} {cmd}', second,
                        str(n), *hosts], False), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            raise Failed(f'vmclone: exit code {done.returncode}: '
                         f'{forks.reason(done.stdout) or done.stderr[-500:]}')
        took, cpu, sent = time.monotonic() - start, busy_s() - cpu, place.sent_bytes() - sent
        result = json.loads(done.stdout)
        rows, phases = result['hosts'], result['phases_ms']
        if o.verify:
            forks.verify(forks.children_of(result), limit_s=LIMIT_S)
            print(f'  {n} hosts, {way}: {n} children have found all of their memory right', flush=True)
        image = rows[0]['total_bytes']
        return {'way': way, 'hosts': n, 'took_s': took, 'cpu_s': cpu, 'sent_images': sent / image,
                'run_s': max(births.wait(n).values()) - start,
                'complete_s': (phases['prepare'] + phases['complete']) / 1000,
                'memory_s': phases['complete'] / 1000, 'image_mib': image / (1 << 20),
                'fed_mib': sum(r['fed_bytes'] for r in rows) / (1 << 20),
                'multicast_mib': sum(r['multicast_bytes'] for r in rows) / (1 << 20),
                'faults': sum(r['child_faults'] for r in rows),
                'fault_p50_ms': max(r['fault_p50_us'] for r in rows) / 1000,
                'fault_p99_ms': max(r['fault_p99_us'] for r in rows) / 1000}


def median(runs, key):
    return statistics.median(r[key] for r in runs)


def show(rows):
    print(f'{"hosts":>5}  {"way":<6} {"run s":>7} {"memory s":>9} {"x one host":>10} {"sent":>6} '
          f'{"CPU s":>7} {"faults":>7} {"p50 ms":>7} {"p99 ms":>7}')
    single = {r['way']: r['memory_s'] for r in rows if r['hosts'] == 1}
    for r in rows:
        by = single.get(r['way']) or single.get('star')
        print(f'{r["hosts"]:>5}  {r["way"]:<6} {r.get("run_s", 0):>7.2f} {r["memory_s"]:>9.2f} '
              f'{r["memory_s"] / by if by else 0:>10.2f} {r.get("sent_images", 0):>6.2f} '
              f'{r["cpu_s"]:>7.2f} {r.get("faults", 0):>7.0f} {r.get("fault_p50_ms", 0):>7.2f} '
              f'{r.get("fault_p99_ms", 0):>7.2f}')


COLOURS = {'floor': '#808080', 'star': '#d55e00', 'chain': '#0072b2', 'multicast': '#009e73'}
PLOTS = [('memory_s', 'all memory is there', 's'), ('run_s', 'all children run', 's'),
         ('sent_images', 'out of the parent', 'images'), ('cpu_s', 'CPU of all hosts', 's'),
         ('fault_p99_ms', 'faults, p99 of the slowest host', 'ms')]


def draw(rows, folder):
    ways = list(dict.fromkeys(r['way'] for r in rows))
    made = []
    for key, title, unit in PLOTS:
        series = [(way, [(r['hosts'], r[key]) for r in rows if r['way'] == way and key in r],
                   COLOURS.get(way, plots.MORE[i % len(plots.MORE)])) for i, way in enumerate(ways)]
        made.append((title, f'fanout-{key}', plots.lines_plot(
            title, 'hosts', unit, [s for s in series if s[1]], ['set logscale x 2', 'set yrange [0:*]'],
            'linespoints')))
    os.makedirs(folder, exist_ok=True)
    plots.draw_each(made, folder)


def measure(t, o, rows):
    accel = 'kvm' if os.path.exists('/dev/kvm') else 'tcg'
    for n in o.hosts:
        with Hosts(n, o.rate) as place:
            f = floor(place, o.mem << 20, n)
            rows.append({'way': 'floor', 'hosts': n, 'memory_s': f['complete_s'], 'cpu_s': f['cpu_s']})
            for way in o.ways:
                runs = [one(t, place, way, o, accel, f'{n}-{way}-{i}') for i in range(o.runs)]
                rows.append({'way': way, 'hosts': n, 'runs': runs,
                             **{k: median(runs, k) for k in runs[0] if k not in ('way', 'hosts')}})
                print(f'  {n} hosts, {way}: {rows[-1]["memory_s"]:.2f} s')


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--hosts', type=int, nargs='+', default=[1, 2, 4, 8, 16, 32])
    p.add_argument('--ways', nargs='+', default=['star', 'chain', '2'])
    p.add_argument('--mem', type=int, default=96, metavar='MIB')
    p.add_argument('--rate', default='100mbit')
    p.add_argument('--options', help='of vmclone')
    p.add_argument('--runs', type=int, default=1)
    p.add_argument('--plots', metavar='FOLDER')
    guests = p.add_mutually_exclusive_group()
    guests.add_argument('--busy', action='store_true')
    guests.add_argument('--still', action='store_true')
    guests.add_argument('--verify', action='store_true')
    p.add_argument('--json', metavar='FILE')
    o = p.parse_args()
    if os.geteuid():
        print('SKIP: network namespaces need root')
        return 77
    if o.plots and not shutil.which('gnuplot'):
        print('SKIP: plots need gnuplot (package gnuplot-nox)')
        return 77
    rows, rc = [], 0
    with tempfile.TemporaryDirectory(prefix='ff-fanout-') as t:
        try:
            measure(t, o, rows)
        except Skip as e:
            print(f'SKIP: {e}')
            return 77
        except (Failed, subprocess.SubprocessError, OSError) as e:
            print(f'FAIL: {e}')
            rc = 1          # what was measured before is shown all the same
    show(rows)
    if o.json:
        with open(o.json, 'w', encoding='utf-8') as f:
            json.dump({'mem_mib': o.mem, 'rate': o.rate, 'rows': rows}, f, indent=1)
    if o.plots and rows:
        draw(rows, o.plots)
    return rc


if __name__ == '__main__':
    sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
