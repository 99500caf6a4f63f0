#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""proxy_move.py - two farfork proxy move the micro guest between Debian's own QEMUs; limit: 300 s

--others does so with 10.0 and the newest of Debian's, too.
"""
import contextlib
import os
import signal
import sys
import common
from common import Failed, check_ledger, say, status, wait_for
from proxies import Proxy, second_monitor
from road import Road
from stock_stream import Stock
from stocks import NEWEST, OLDEST, TRIXIE, qemu_of

MIB = 256
MI = 1 << 20


def alike(stock, machine='pc'):
    """From a version to the same: what stock_stream.OTHERS has of others"""
    return stock if isinstance(stock, tuple) else (stock, stock, machine)


def one_side(t, name, memory, version, machine, incoming, extra=(), **more):
    return Stock(t, name, t.best_accel(), memory, version, machine, incoming=incoming,
                 extra=(*extra, *second_monitor(t.work, name)), **more)


def pair(t, name, memory='memfd', stock=OLDEST, mib=None, **more):
    """Two QEMUs, not started yet. stock: a version, or (source's, destination's, machine)"""
    source, destination, machine = alike(stock)
    more['mem_mib'] = mib or MIB
    return (one_side(t, f'a-{name}', memory, source, machine, False, **more),
            one_side(t, f'b-{name}', memory, destination, machine, True, **more))


@contextlib.contextmanager
def two(t, name, *args, **more):
    a, b = pair(t, name, *args, **more)
    with a, b:
        a.start_load()
        yield a, b


@contextlib.contextmanager
def proxies(t, a, b, options='', road=None, faults=(None, None), more=()):
    """faults: failpoints of the source's, of the destination's"""
    host, options = common.place.host, common.place.options + options
    with Proxy(t, b, 'destination', f'{host}:0{options}', f'{t.work}/{b.name}.in',
               more, faults[1]) as there:
        port = there.wait('listening')['port']
        with contextlib.ExitStack() as stack:
            if road:
                road.to = port
                port = stack.enter_context(road).port
            with Proxy(t, a, 'source', f'{host}:{port}{options}', f'{t.work}/{a.name}.out',
                       more, faults[0]) as here:
                yield here, there


def check_said(a, b, here, there):
    """What both proxies and both QEMUs say of a move; the summaries"""
    sums = here.end(0), there.end(0)
    for name in ('connected', 'migrating', 'package', 'ready', 'go', 'running', 'complete'):
        here.must(name)
    if status(a) != 'postmigrate' or status(b) != 'running':
        raise Failed(f'{a.name} is {status(a)}, {b.name} is {status(b)}')
    for s in sums:
        if s['bytes'] != a.mem_mib << 20 or s['package_bytes'] != sums[0]['package_bytes']:
            raise Failed(f'summary: {s}')
    if not sums[0]['pages_dropped'] or sums[0]['tunnel_bytes'] > 64 << 20:
        raise Failed(f'main memory came by the stream: {sums[0]}')
    return sums


def check_moved(a, b, here, there):
    sums = check_said(a, b, here, there)
    check_ledger(a, b, sweeps=1)
    return sums


def check_here(a, here, there):
    """It came to nothing: the guest goes on at the source, and neither proxy is left."""
    here.end(1)
    there.end(1)
    here.must('here')
    common.check_still_running(a)


def say_counts(s, d):
    say(f'      total {s["total_ms"]:.0f} ms, down {s["downtime_ms"]:.0f} ms, faults '
        f'{d["faults"]}, late {d["late_faults"]}, requests {d["requests_taken"]} of '
        f'{d["requests"]}, dropped {s["pages_dropped"]}, tunnel {s["tunnel_bytes"]}')


def happy(t, stock=OLDEST, memory='memfd', name='', **more):
    with two(t, name or f'{memory}-{stock}', memory, stock, **more) as (a, b), \
            proxies(t, a, b) as (here, there):
        say_counts(*check_moved(a, b, here, there))
        return here.find('connected')['link']


def precopied(t, stock=OLDEST, memory='memfd'):
    """precopy=1: QEMU's own stream brings memory while the guest runs; what it wrote since is fetched."""
    with two(t, f'pass-{memory}-{stock}', memory, stock, mib=512) as (a, b), \
            proxies(t, a, b, ',precopy=1') as (here, there):
        sums = here.end(0), there.end(0)
        here.must('passed')
        e = sums[1]['engine']
        stays = e['precopied-bytes'] - e['discarded-bytes']
        fetched = e['prefill-bytes'] + e['fault-bytes']
        say(f'      {e["precopied-bytes"] / MI:.0f} MiB before the pause, {e["discarded-bytes"] / MI:.0f} '
            f'of them written since, {fetched / MI:.0f} fetched after it')
        if not 0 < stays < 512 * MI or stays + fetched + e['zero-bytes'] != 512 * MI:
            raise Failed(f'{stays} bytes came before the pause and stay; {e}')
        if status(a) != 'postmigrate' or status(b) != 'running':
            raise Failed(f'{a.name} is {status(a)}, {b.name} is {status(b)}')
        check_ledger(a, b, sweeps=1)
        limit = a.qmp('query-migrate-parameters')['downtime-limit']
        if limit != 300:
            raise Failed(f'downtime-limit is {limit}, was 300')


def idle(t, stock=OLDEST):
    """precopy=1, and memory that is nearly all zeros: its pass goes by fast, and is not the end."""
    a, b = pair(t, f'idle-{stock}', stock=stock, mib=1024)
    with a, b, proxies(t, a, b, ',precopy=1') as (here, there):
        sums = here.end(0), there.end(0)
        here.must('passed')
        if status(a) != 'postmigrate' or status(b) != 'running':
            raise Failed(f'{a.name} is {status(a)}, {b.name} is {status(b)}')
        say(f'      down {sums[0]["downtime_ms"]:.0f} ms')


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


REFUSED = ('xbzrle', 'compress', 'multifd', 'release-ram', 'block', 'x-ignore-shared',
           'background-snapshot', 'postcopy-preempt', 'postcopy-blocktime', 'mapped-ram',
           'dirty-bitmaps', 'pause-before-switchover')


def ends(t, guest, side, text, more=()):
    """Nothing has begun, and the error says why."""
    with Proxy(t, guest, side, '127.0.0.1:1', f'{t.work}/refuse', more) as p:
        p.end(1)
        if text not in p.must('failed')['reason'] or p.find('listening') or p.find('migrating'):
            raise Failed(f'want {text}: {p.told()}')


def capabilities(guest, **states):
    guest.qmp('migrate-set-capabilities', capabilities=[
        {'capability': c.replace('_', '-'), 'state': s} for c, s in states.items()])


def refused(t, stock=OLDEST):
    with two(t, f'refuse-{stock}', stock=stock) as (a, b):
        known = [c['capability'] for c in a.qmp('query-migrate-capabilities')]
        both = (a, 'source'), (b, 'destination')
        for guest, side in both:
            ends(t, guest, side, '4194303', ('--pid', '4194303'))
            for name in [c for c in REFUSED if c in known]:
                needs_it = name == 'postcopy-preempt'       # or QEMU refuses it
                capabilities(guest, **{'postcopy_ram': needs_it, name: True})
                ends(t, guest, side, name)
                capabilities(guest, **{name: False, 'postcopy_ram': False})
            guest.qmp('object-add', **{'qom-type': 'tls-creds-anon', 'id': 'tls', 'endpoint':
                                       'client' if side == 'source' else 'server'})
            guest.qmp('migrate-set-parameters', **{'tls-creds': 'tls'})
            ends(t, guest, side, 'tls-creds')
        if status(a) != 'running' or common.migration(a).get('status') or status(b) != 'inmigrate':
            raise Failed(f'{status(a)}, {common.migration(a)}; {status(b)}')


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

    def wait(self, _limit_s=None):
        pass


def child(t):
    """The destination's proxy starts the QEMU, which stays when it has ended."""
    a, b = pair(t, 'child')
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
    with t.case('a move, precopy=1'):
        precopied(t)
    with t.case('a move, precopy=1, of an idle guest'):
        idle(t)
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
            with t.case(f'a move, precopy=1, {stock}'):
                precopied(t, stock, 'anon')
            with t.case(f'a move, precopy=1, of an idle guest, {stock}'):
                idle(t, stock)
            with t.case(f'refused by name, {stock}'):
                refused(t, stock)
        killed_there(t, 'early', stock)
        killed_there(t, 'ready', stock)
        interrupted(t, 'source', stock)
        interrupted(t, 'destination', stock)


def needs():
    common.need_userfaultfd()
    common.need_files(qemu_of(OLDEST))


if __name__ == '__main__':
    common.main(run, 300, needs)
