# SPDX-License-Identifier: LGPL-2.1-or-later
#
# forks.py - one fork of the micro guest into children, by vmclone or as stock QEMU can
"""
    run = one_fork(t, way, guest, n)         # a run of clone_groups.py, never a Failed

Picture (host's clock)
    0  the command      vmclone is started; stock: `migrate` to a file at the parent
       export_ms        x-farfork-export reaches the parent (event STOP less stop-ns)
       first_ms         a first byte on the console of a child; last_ms: of the last child
       complete_ms      vmclone: every page is on the host; each child needs nothing more
       verified_ms      every child has swept all of its memory from page 0, and found it right
The parent is a fresh one for each fork: what it did before changes what a fork costs.
"""
import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import time

import common
import testbed
import report
from common import Failed, Micro
from qemu import GuestError

VMCLONE = os.path.join(common.BUILD, 'bin', 'vmclone')
BIRTHS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'first_output.py')
LIMIT_S = 60
# what guests do: (while they are measured, in all memory?)
LOADS = {'busy': 'mode=random first=mix wss=10 sweep=1 report_ms=2000 beat_ms=2',
         'idle': 'mode=random rate=1000 wss=1 sweep=0 report_ms=2000 beat_ms=2'}
# phases of vmclone's JSON, from the export on
PHASES = {'prepare_ms': 'prepare', 'freeze_ms': 'freeze', 'ship_ms': 'ship_state',
          'start_ms': 'start', 'complete_ms': 'complete'}
FIGURES = ('first_ms', 'last_ms', 'export_ms', 'prepare_ms', 'freeze_ms', 'save_ms', 'ship_ms',
           'start_ms', 'complete_ms', 'verified_ms', 'rss_mib', 'pss_mib', 'net_mib',
           'pages_by_fault', 'child_faults')


class Way:
    """stock: None, templating or mapped-ram; else vmclone with arguments."""

    def __init__(self, name, stock=None, memory='memfd', ahead=False, elsewhere=False, args=(),
                 pool=False):
        self.name, self.stock, self.memory, self.pool = name, stock, memory, pool
        self.ahead, self.elsewhere, self.args = ahead, elsewhere, tuple(args)


WAYS = [Way('templating', 'templating'), Way('mapped-ram', 'mapped-ram'),
        Way('vmclone'), Way('vmclone, anon', memory='anon'),
        Way('vmclone --prestart', ahead=True, args=['--prestart']),
        Way('vmclone, other host', elsewhere=True),
        Way('--prestart, other host', ahead=True, elsewhere=True, args=['--prestart']),
        Way('vmclone, pool', pool=True), Way('pool, other host', elsewhere=True, pool=True)]
BY_NAME = {w.name: w for w in WAYS}


def children_of(result):
    """[(pid, console)] of what vmclone --json says of a parent called parent."""
    return [(c['pid'], os.path.join(os.path.dirname(c['qmp']), f'{c["child"]}.parent.console'))
            for c in result['children']]


class Births:
    """first_output.py, and what it has said: {path: when}."""

    def __init__(self, folder):
        self.seen, self.some = {}, threading.Condition()
        # pylint: disable=consider-using-with
        self.process = subprocess.Popen(['python3', BIRTHS, folder], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != 'ready\n':
            raise Failed('first_output.py: it does not start; what it says is above')
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for row in self.process.stdout:
            path, when = json.loads(row)
            with self.some:
                self.seen[path] = when
                self.some.notify_all()

    def wait(self, n, limit_s=60):
        with self.some:
            if not self.some.wait_for(lambda: len(self.seen) >= n, limit_s):
                raise Failed(f'{len(self.seen)} of {n} children ran within {limit_s} s')
        return dict(self.seen)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
        self.reader.join(10)
        self.process.stdout.close()


def event_s(guest, name, start):
    """When an event came that is not older than start, by the monotonic clock; None: it did not."""
    guest.qmp('query-name')             # collects what has come
    off = time.time() - time.monotonic()
    for e in guest.events:
        at = e['timestamp']['seconds'] + e['timestamp']['microseconds'] / 1e6 - off
        if e['event'] == name and at > start - 0.001:
            return at
    return None


def reason(out):
    """What vmclone's JSON says went wrong."""
    if not out.startswith('{'):
        return ''
    doc = json.loads(out)
    rows = [doc, *doc['hosts'], *doc['children']]
    return '; '.join(dict.fromkeys(r['error'] for r in rows if r['error']))[:500]


def end_all(processes):
    """All at once: those that still run would slow down the end of each."""
    for p in processes:
        p.kill()
    for p in processes:
        p.wait(60)


# --- the parent ---

class Fork:
    """A parent and its children, all ended at the end."""

    def __init__(self, t, way, accel, mem_mib, load, n, tag):
        self.t, self.way, self.accel, self.mem_mib, self.n = t, way, accel, mem_mib, n
        self.tag, self.load = tag, load
        self.folder = os.path.join(t.work, tag)
        self.second = os.path.join(self.folder, 'parent.second')
        self.stack, self.parent, self.net = contextlib.ExitStack(), None, None
        self.freeze = self.births = None
        self.figures = dict.fromkeys(FIGURES)

    def __enter__(self):
        os.mkdir(self.folder)
        try:
            self.up()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *exc):
        return self.stack.__exit__(*exc)

    def up(self):
        self.stack.callback(subprocess.run, ['rm', '-rf', self.folder], check=False)
        if self.way.elsewhere:
            self.net = self.stack.enter_context(testbed.Namespaces('0ms'))
        was = common.place
        try:
            if self.net:
                common.place = self.net
            self.parent = self.make_parent()
        finally:
            common.place = was
        self.stack.enter_context(self.parent)
        self.parent.wait_ready(120 + self.mem_mib / 20)
        if self.way.pool:
            self.keep()

    def make_parent(self):
        extra = ['-qmp', f'unix:{self.second},server=on,wait=off']
        work = type('Work', (), {'work': self.folder})
        memory, machine = self.way.memory, 'pc'
        if self.way.stock == 'templating':
            memory, machine = 'anon', 'pc,memory-backend=ram'
            extra += ['-object', f'memory-backend-file,id=ram,size={self.mem_mib}M,share=on,'
                      f'mem-path={self.folder}/ram']
        elif self.way.stock:
            memory = 'anon'
        return Micro(work, 'parent', self.accel, memory=memory, mem_mib=self.mem_mib,
                     machine=machine, load=self.load + ' fill=100', extra=extra)

    def rx_bytes(self):
        """What the children's host has received so far."""
        out = subprocess.run(['ip', '-n', self.net.ns[1], '-s', '-j', 'link', 'show', 'eth0'],
                             stdout=subprocess.PIPE, check=True, timeout=20).stdout
        return json.loads(out)[0]['stats64']['rx']['bytes']

    def born(self, births, start):
        when = births.wait(self.n).values()
        self.figures['first_ms'] = (min(when) - start) * 1000
        self.figures['last_ms'] = (max(when) - start) * 1000

    # --- vmclone ---

    def where(self):
        """(options, hosts) of a fork, and of a pool for it."""
        args, hosts = ['--json', '--rundir', os.path.join(self.folder, 'run')], []
        if self.net:
            args += ['--launcher', 'ip netns exec {host} {cmd}']
            hosts = [f'{self.net.ns[1]}={self.net.host}']
        return args, hosts

    def where_it_runs(self):
        """Beside the parent, whose memory a process that vmclone starts serves."""
        return self.net.argv([], False) if self.net else []

    def keep(self):
        """Until as many children wait as are forked, whose consoles are there by then, empty."""
        args, hosts = self.where()
        self.births = self.stack.enter_context(Births(self.folder))
        # pylint: disable=consider-using-with
        pool = subprocess.Popen([*self.where_it_runs(), VMCLONE, '--keep', str(self.n), *args, self.second, *hosts],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.stack.callback(pool.stdout.close)
        self.stack.callback(pool.wait, 60)
        self.stack.callback(pool.terminate)
        line = pool.stdout.readline()
        if not line or json.loads(line)['event'] != 'ready':
            raise Failed(f'vmclone --keep: {line}')

    def clone(self, name='f'):
        base = os.path.join(self.folder, 'run')
        args, hosts = self.where()
        argv = [*self.where_it_runs(), VMCLONE, '--quiet', '--timeout', '60', *args, *self.way.args]
        if not self.way.pool:
            argv += ['--id', name]
        before = self.rx_bytes() if self.net else 0
        self.stack.callback(subprocess.run, [VMCLONE, '--kill', name, '--rundir', base],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        with (contextlib.nullcontext(self.births) if self.births else
              Births(self.folder)) as births:
            start = time.monotonic()
            with subprocess.Popen([*argv, self.second, str(self.n), *hosts], text=True,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE) as p:
                try:
                    out, err = p.communicate(timeout=LIMIT_S)
                finally:
                    if p.poll() is None:
                        p.terminate()   # and with it what a pool has given it
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            p.wait(60)
                        p.kill()
            if p.returncode:
                raise Failed(f'vmclone: exit code {p.returncode}: '
                             f'{reason(out) or err.strip()[-500:]}')
            self.born(births, start)
        result = json.loads(out)
        if self.way.pool:
            self.stack.callback(subprocess.run, [VMCLONE, '--kill', result['id'], '--rundir', base],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            if 'an ordinary fork' in err:
                raise Failed(err.strip()[-500:])
        self.take(result, start)
        if self.net:
            self.figures['net_mib'] = (self.rx_bytes() - before) / (1 << 20)
        return start, children_of(result)

    def take(self, result, start):
        f, self.freeze = self.figures, result['freeze']
        for ours, theirs in PHASES.items():
            f[ours] = result['phases_ms'].get(theirs)
        stop = event_s(self.parent, 'STOP', start)
        f['export_ms'] = (stop - start) * 1000 - result['freeze']['stop-ns'] / 1e6
        if f['complete_ms'] is not None:
            f['complete_ms'] += f['export_ms']
        f['pages_by_fault'] = sum(h['pages_by_fault'] for h in result['hosts'])
        f['child_faults'] = sum(h['child_faults'] for h in result['hosts'])

    # --- stock QEMU ---

    def capability(self):
        name = {'templating': 'x-ignore-shared', 'mapped-ram': 'mapped-ram'}[self.way.stock]
        return {'capabilities': [{'capability': name, 'state': True}]}

    def stock_argv(self, number):
        """The parent's, with what must differ, as vmclone changes it."""
        argv = [a.replace('share=on', 'share=off').replace(
            'parent.console', f'{number}.console').replace('parent.qmp', f'{number}.qmp').replace(
                'parent.second', f'{number}.second') for a in self.parent.argv]
        return [*argv, '-incoming', 'defer']

    def tell(self, children, state):
        """Which capability, and where the state is: as soon as each child listens."""
        text = ''.join(json.dumps(x) + '\n' for x in (
            {'execute': 'qmp_capabilities'},
            {'execute': 'migrate-set-capabilities', 'arguments': self.capability()},
            {'execute': 'migrate-incoming', 'arguments': {'uri': f'file:{state}'}})).encode()
        left, end = list(range(1, len(children) + 1)), time.monotonic() + LIMIT_S
        while left:
            for i in list(left):
                s = socket.socket(socket.AF_UNIX)
                try:
                    s.connect(f'{self.folder}/{i}.qmp')
                    s.sendall(text)
                    left.remove(i)
                    self.stack.callback(s.close)
                except OSError:
                    s.close()
            if time.monotonic() > end:
                raise Failed(f'{len(left)} children do not listen')
            time.sleep(0.001)

    def stock(self):
        state, children = os.path.join(self.folder, 'state'), []
        self.parent.qmp('migrate-set-capabilities', **self.capability())
        # it stops the guest after one pass; one that is stopped before has children that are, too
        self.parent.qmp('migrate-set-parameters', max_bandwidth=0, downtime_limit=2000000)
        argvs = [self.stock_argv(i + 1) for i in range(self.n)]
        started = []
        self.stack.callback(end_all, started)
        with Births(self.folder) as births:
            start = time.monotonic()
            self.parent.qmp('migrate', uri=f'file:{state}')
            while common.migration(self.parent)['status'] != 'completed':
                if time.monotonic() > start + LIMIT_S:
                    raise Failed('the parent is not saved')
                time.sleep(0.0005)
            self.figures['save_ms'] = (time.monotonic() - start) * 1000
            for i, argv in enumerate(argvs):
                with open(f'{self.folder}/{i + 1}.stderr', 'wb') as err:
                    # pylint: disable=consider-using-with
                    p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=err, stderr=err)
                started.append(p)
                children.append((p.pid, f'{self.folder}/{i + 1}.console'))
            try:
                self.tell(children, state)
                self.born(births, start)
            except Failed as e:
                with open(f'{self.folder}/1.stderr', errors='replace', encoding='utf-8') as f:
                    raise Failed(f'{e}: {f.read().strip()[-300:]}') from None
        return start, children


# --- children ---

def mib_of(pid, what):
    with open(f'/proc/{pid}/smaps_rollup', encoding='ascii') as f:
        return int(re.search(rf'^{what}: +(\d+) kB', f.read(), re.M)[1]) / 1024


def verify(children, n_sweeps=2, limit_s=LIMIT_S):
    """Until each has swept all memory from page 0 on, and found it right."""
    logs = {path: [0, report.Log()] for _, path in children}
    base, end = {}, time.monotonic() + limit_s
    while logs:
        for path, (at, log) in list(logs.items()):
            with open(path, 'rb') as f:
                f.seek(at)
                data = f.read()
            logs[path][0] += len(data)
            log.feed(data)
            snap = report.snapshot(log.lines)
            first = base.setdefault(path, snap) if snap else None
            if first and all(snap[c]['sweeps'] >= first[c]['sweeps'] + n_sweeps for c in first):
                good, reasons = report.verdict(log)
                if not good:
                    raise Failed(f'a child found its memory wrong: {"; ".join(reasons[:3])}')
                del logs[path]
        if time.monotonic() > end:
            raise Failed(f'{len(logs)} children have not swept their memory within {limit_s} s')
        time.sleep(0.05)


def judge_idle(children):
    """Those that sweep nothing are right as far as they have come."""
    for _, path in children:
        log = report.parse(path)
        good, reasons = report.verdict(log) if log.lines else (True, [])
        if not good:
            raise Failed(f'a child found its memory wrong: {"; ".join(reasons[:3])}')


def fork_and_measure(t, way, group, tag):
    load = LOADS[group['load']]
    with Fork(t, way, group['accel'], group['mem_mib'], load, group['children'], tag) as f:
        start, children = f.stock() if way.stock else f.clone()
        if group['load'] == 'idle':
            time.sleep(1)
        for figure, what in (('rss_mib', 'Rss'), ('pss_mib', 'Pss')):
            f.figures[figure] = sum(mib_of(pid, what) for pid, _ in children) / len(children)
        if group['load'] == 'busy' and group['verify']:
            verify(children)
            f.figures['verified_ms'] = (time.monotonic() - start) * 1000
        else:
            judge_idle(children)
        return f.figures


def one_fork(t, way, group, tag):
    try:
        run = fork_and_measure(t, way, group, tag)
        run = {k: round(v, 3) if isinstance(v, float) else v for k, v in run.items()}
        return {**run, 'why': ''}
    except (Failed, GuestError, OSError, subprocess.SubprocessError) as e:
        return {**dict.fromkeys(FIGURES), 'why': str(e)}
