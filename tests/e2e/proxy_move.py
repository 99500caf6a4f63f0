#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""proxy_move.py - two farfork proxy move the micro guest between Debian's own QEMUs; limit: 300 s

--others does so with the QEMU of Debian 13, too.
"""
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import common
from common import FARFORK, Failed, check_ledger, say, status, wait_for
from road import Road
from stock_stream import NEWEST, OLDEST, TRIXIE, Stock, qemu_of

MIB = 256


def path_of(t, name):
    """A monitor of its own for the proxy."""
    return f'{t.work}/{name}.proxy'


class Proxy:
    """One side: a farfork proxy, its events as they come."""

    def __init__(self, t, guest, side, address, path, more=(), faults=None, argv=()):
        self.side, self.events, self.noise = side, [], []
        way = 'listen' if side == 'source' else 'connect'
        self.p = subprocess.Popen(
            [FARFORK, 'proxy', f'--{side}', '--json', '--qmp', path_of(t, guest.name), f'--{way}', path, *more,
             address, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **({'FARFORK_FAILPOINTS': faults} if faults else {})})
        t.at_end.callback(self.p.kill)
        self.threads = [threading.Thread(target=self.read, daemon=True),
                        threading.Thread(target=self.hear, daemon=True)]
        for thread in self.threads:
            thread.start()

    def read(self):
        for line in self.p.stdout:
            self.events.append(json.loads(line))

    def hear(self):
        for line in self.p.stderr:
            self.noise.append(line)

    def find(self, name):
        return next((e for e in self.events if e['event'] == name), None)

    def count(self, name):
        return sum(e['event'] == name for e in self.events)

    def wait(self, name, limit_s=30):
        wait_for(f'{self.side}: event {name}', limit_s,
                 lambda: self.find(name) or self.p.poll() is not None)
        return self.must(name)

    def must(self, name):
        if not self.find(name):
            raise Failed(f'{self.side}: no {name}: {self.told()}')
        return self.find(name)

    def told(self):
        return f'{self.events[-3:]} {"".join(self.noise)[-600:]}'

    def end(self, code, limit_s=60):
        """Its summary, once it has ended with this code."""
        try:
            was = self.p.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f'{self.side}: it does not end: {self.told()}') from None
        for thread in self.threads:
            thread.join(5)
        if was != code:
            raise Failed(f'{self.side}: exit {was}, want {code}: {self.told()}')
        return self.find('ended') or {'event': 'none'}

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.p.kill()
        self.p.wait()


@contextlib.contextmanager
def two(t, name, memory='memfd', stock=OLDEST):
    accel = t.best_accel()

    def one(side, incoming):
        guest = f'{side}-{name}'
        return Stock(t, guest, accel, memory, stock, mem_mib=MIB, incoming=incoming,
                     extra=('-qmp', f'unix:{path_of(t, guest)},server=on,wait=off'))
    with one('a', False) as a, one('b', True) as b:
        a.start_load()
        yield a, b


@contextlib.contextmanager
def proxies(t, a, b, options='', road=None, faults=(None, None)):
    """faults: failpoints of the source's, of the destination's"""
    with Proxy(t, b, 'destination', f'127.0.0.1:0{options}', f'{t.work}/{b.name}.in',
               faults=faults[1]) as there:
        port = there.wait('listening')['port']
        with contextlib.ExitStack() as stack:
            if road:
                road.to = port
                port = stack.enter_context(road).port
            with Proxy(t, a, 'source', f'127.0.0.1:{port}{options}', f'{t.work}/{a.name}.out',
                       faults=faults[0]) as here:
                yield here, there


def check_moved(a, b, here, there):
    sums = here.end(0), there.end(0)
    for name in ('connected', 'migrating', 'package', 'ready', 'go', 'running', 'complete'):
        here.must(name)
    if status(a) != 'postmigrate' or status(b) != 'running':
        raise Failed(f'{a.name} is {status(a)}, {b.name} is {status(b)}')
    for s in sums:
        if s['bytes'] != MIB << 20 or s['package_bytes'] != sums[0]['package_bytes']:
            raise Failed(f'summary: {s}')
    if not sums[0]['pages_dropped'] or sums[0]['tunnel_bytes'] > 64 << 20:
        raise Failed(f'main memory came by the stream: {sums[0]}')
    check_ledger(a, b, sweeps=1)
    return sums


def check_here(a, here, there):
    """It came to nothing: the guest goes on at the source, and neither proxy is left."""
    here.end(1)
    there.end(1)
    here.must('here')
    common.check_still_running(a)


def happy(t, stock=OLDEST, memory='memfd'):
    with two(t, f'{memory}-{stock}', memory, stock) as (a, b), proxies(t, a, b) as (here, there):
        s, d = check_moved(a, b, here, there)
        say(f'      total {s["total_ms"]:.0f} ms, down {s["downtime_ms"]:.0f} ms, faults '
            f'{d["faults"]}, late {d["late_faults"]}, requests {d["requests_taken"]} of '
            f'{d["requests"]}, dropped {s["pages_dropped"]}, tunnel {s["tunnel_bytes"]}')


def broken(t, stock=OLDEST):
    """The link breaks twice after GO: neither QEMU notices."""
    slow = 'tcp.serve.prefill=delay:20000'      # 128 chunks
    road = Road(0)
    with two(t, f'break-{stock}', stock=stock) as (a, b), \
            proxies(t, a, b, ',reconnect=60', road, (slow, None)) as (here, there):
        here.wait('running')
        for n in (1, 2):
            road.close()
            for side in (here, there):
                wait_for(f'break {n}', 20, lambda s=side, n=n: s.count('paused') >= n)
            road.open()
            for side in (here, there):
                wait_for(f'link {n + 1}', 20, lambda s=side, n=n: s.count('resumed') >= n)
        there.p.send_signal(signal.SIGINT)
        there.wait('refused')
        for s in check_moved(a, b, here, there):
            if s['breaks'] != 2:
                raise Failed(f'want 2 breaks: {s}')


def killed_there(t, where, stock=OLDEST):
    """The QEMU at the destination is killed before GO."""
    name, faults, event = {
        'early': ('before the package', (None, 'dest.state=delay:2000000'), 'connected'),
        'ready': ('when it is ready', ('source.go=delay:2000000', None), 'ready')}[where]
    with t.case(f'the QEMU there is killed {name}, {stock}'), \
            two(t, f'kill-{where}-{stock}', stock=stock) as (a, b), \
            proxies(t, a, b, faults=faults) as (here, there):
        there.wait(event)
        if where == 'early':
            here.wait('package')
        b.proc.kill()
        check_here(a, here, there)


def interrupted(t, who, stock=OLDEST):
    """Ctrl-C, while the guest stands still at the source."""
    faults = ('source.state=delay:2000000', None) if who == 'source' else \
        (None, 'dest.state=delay:2000000')
    with t.case(f'Ctrl-C at the {who}, {stock}'), \
            two(t, f'int-{who}-{stock}', stock=stock) as (a, b), \
            proxies(t, a, b, faults=faults) as (here, there):
        here.wait('package')
        (here if who == 'source' else there).p.send_signal(signal.SIGINT)
        check_here(a, here, there)


def refused(t):
    """Nothing has begun, and the error says why."""
    with two(t, 'refuse') as (a, b):
        for guest, side, capability, more in (
                (a, 'source', 'multifd', ()), (b, 'destination', 'x-ignore-shared', ()),
                (a, 'source', None, ('--pid', '4194303')),
                (b, 'destination', None, ('--pid', '4194303'))):
            if capability:
                guest.qmp('migrate-set-capabilities',
                          capabilities=[{'capability': capability, 'state': True}])
            with Proxy(t, guest, side, '127.0.0.1:1', f'{t.work}/refuse', more) as p:
                p.end(1)
                if (capability or '4194303') not in p.must('failed')['reason']:
                    raise Failed(f'want {capability or "no such process"}: {p.told()}')
            if capability:
                guest.qmp('migrate-set-capabilities',
                          capabilities=[{'capability': capability, 'state': False}])
        if status(a) != 'running' or common.migration(a).get('status'):
            raise Failed(f'the source: {status(a)}, {common.migration(a)}')


def paused(t):
    """Who moves a guest that is paused finds it paused."""
    with two(t, 'paused') as (a, b):
        a.qmp('stop')
        with proxies(t, a, b) as (here, there):
            here.end(0)
            there.end(0)
            if status(b) != 'paused':
                raise Failed(f'{b.name} is {status(b)}, want paused')
            b.qmp('cont')
            check_ledger(a, b, sweeps=1)


class Orphan:
    """A QEMU that somebody else started."""

    def __init__(self, pid):
        self.pid = pid

    def poll(self):
        return None if os.path.exists(f'/proc/{self.pid}') else 0

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, _limit_s):
        pass


def child(t):
    """The destination's proxy starts the QEMU, which stays when it has ended."""
    guest = ['a-child', 'b-child']
    a, b = (Stock(t, g, t.best_accel(), 'memfd', mem_mib=MIB, incoming=g == guest[1],
                  extra=('-qmp', f'unix:{path_of(t, g)},server=on,wait=off')) for g in guest)
    with a:
        a.start_load()
        with Proxy(t, b, 'destination', '127.0.0.1:0', f'{t.work}/child.in',
                   argv=('--', *b.argv)) as there:
            b.proc = Orphan(there.wait('started')['pid'])
            t.at_end.callback(b.close)
            port = there.wait('listening')['port']
            b._connect(15)      # pylint: disable=protected-access
            with Proxy(t, a, 'source', f'127.0.0.1:{port}', f'{t.work}/child.out') as here:
                check_moved(a, b, here, there)
        b.close()


def run(t):
    with t.case('a move, tcp'):
        happy(t)
    with t.case('a move of a guest that is paused'):
        paused(t)
    with t.case('a move, anonymous memory'):
        happy(t, memory='anon')
    with t.case('a move, to a QEMU that the proxy starts'):
        child(t)
    with t.case('the link breaks twice after GO; Ctrl-C is refused then'):
        broken(t)
    with t.case('refused by name'):
        refused(t)
    for stock in (OLDEST, TRIXIE, NEWEST) if '--others' in sys.argv else (OLDEST,):
        if stock != OLDEST:
            with t.case(f'a move, {stock}'):
                happy(t, stock)
        killed_there(t, 'early', stock)
        killed_there(t, 'ready', stock)
        interrupted(t, 'source', stock)
        interrupted(t, 'destination', stock)


def needs():
    common.need_userfaultfd()
    common.need_files(qemu_of(OLDEST))


if __name__ == '__main__':
    common.main(run, 300, needs)
