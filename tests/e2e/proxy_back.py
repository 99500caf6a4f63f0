#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""proxy_back.py - a move by proxies ends before GO: the guest goes on at the source; limit: 200 s

Also where the source's proxy has lost its place in QEMU's stream, or is killed. --others does so with
10.0 and the newest of Debian's, too.
"""
import signal
import sys
import common
from common import Failed, say
from proxy_move import check_here, proxies, two
from stocks import NEWEST, OLDEST, TRIXIE, qemu_of

SLOW_THERE = 'dest.ready=delay:3000000'
SOON_S = 20                 # a guest that waits for a limit of some proxy's stands still for longer


def say_pause(here):
    took = (here.must('here')['ms'] - here.must('failed')['ms']) / 1000
    say(f'      back {took:.1f} s after the failure')
    if took > SOON_S:
        raise Failed(f'it took {took:.1f} s')


def fails(t, name, fault, text, stock):
    """In the source's proxy, after the package."""
    with t.case(f'{name}, {stock}'), \
            two(t, f'{fault.split("=")[0]}-{stock}', stock=stock) as (a, b), \
            proxies(t, a, b, faults=(fault, SLOW_THERE)) as (here, there):
        check_here(a, here, there)
        say_pause(here)
        if text not in here.must('failed')['reason']:
            raise Failed(f'want {text}: {here.told()}')


def killed(t, name, faults, stock):
    """The source's proxy; its keeper does what it would have done."""
    with t.case(f'the proxy is killed {name}, {stock}'), \
            two(t, f'killed-{name[:4]}-{stock}', stock=stock) as (a, b), \
            proxies(t, a, b, faults=faults) as (here, there):
        here.wait('package')
        here.p.kill()
        for thread in here.threads:         # of its output, which the keeper has, too
            thread.join(60)
        say_pause(here)
        there.end(1, 90)
        common.check_still_running(a)
        if here.find('go'):
            raise Failed('it was killed too late')


def in_the_pass(t, name, stop, stock):
    """precopy=1: nothing has stopped the guest by then, and nothing does."""
    with t.case(f'in the pass, {name}, {stock}'), \
            two(t, f'pass-{name[:4]}-{stock}', stock=stock) as (a, b), \
            proxies(t, a, b, ',precopy=1') as (here, there):
        here.wait('connected')
        there.p.send_signal(signal.SIGSTOP)     # it takes no more, so that the pass goes on
        common.wait_for('some of the pass', 30,
                        lambda: common.migration(a).get('ram', {}).get('transferred', 0) > 1 << 20)
        stop(here.p)
        for thread in here.threads if name == 'killed' else ():
            thread.join(60)     # of its output, which the keeper has, too
        here.wait('here')
        there.p.send_signal(signal.SIGCONT)
        there.end(1, 90)
        if here.find('passed'):
            raise Failed(f'it was too late: {here.told()}')
        say_pause(here)
        common.check_still_running(a)
        stops = [e for e in a.events if e['event'] == 'STOP']
        if stops:
            raise Failed(f'the guest stood still: {stops}')


def run(t):
    for stock in (OLDEST, TRIXIE, NEWEST) if '--others' in sys.argv else (OLDEST,):
        fails(t, 'device state that is too long', 'proxy.package=fail@1', 'device state of', stock)
        fails(t, 'a stream that cannot be followed', 'proxy.unit=fail@2', 'injected', stock)
        killed(t, 'with the package', ('source.state=delay:3000000', None), stock)
        killed(t, 'before GO', (None, SLOW_THERE), stock)
        in_the_pass(t, 'ended', lambda p: p.terminate(), stock)
        in_the_pass(t, 'killed', lambda p: p.kill(), stock)


def needs():
    common.need_userfaultfd()
    common.need_files(qemu_of(OLDEST))


if __name__ == '__main__':
    common.main(run, 200, needs)
