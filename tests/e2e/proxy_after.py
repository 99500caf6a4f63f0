#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""proxy_after.py - what happens to a move by proxies after GO: the guest has what there is; limit: 240 s

The QEMU at the source dies: memory in a file is served on by its proxy, and each side says what is
lost. A link breaks while `cont` waits for a page. --others does so with 10.0 and the newest, too.
"""
import contextlib
import os
import signal
import socket
import struct
import sys
import time

import common
from common import Failed, say, status, wait_for
from proxies import second_monitor
from proxy_move import MIB, Stock, check_moved, proxies, two
from road import Road
from stocks import NEWEST, OLDEST, TRIXIE, qemu_of

SLOW_STREAM = 'proxy.unit=delay:2000'       # of its QEMU's pages; 65536 there are
SLOW_MEMORY = 'tcp.serve.prefill=delay:30000'
STILL_S = 2             # in which a QEMU would have begun


# --- a device that reads guest memory when the guest starts: EHCI, set up through qtest ---

class QTest:
    def __init__(self, stack, path):
        sock = stack.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(20)
        sock.connect(path)
        self.file = stack.enter_context(sock.makefile('rw'))

    def do(self, command):
        self.file.write(command + '\n')
        self.file.flush()
        answer = ''
        while not answer.startswith('OK'):
            answer = self.file.readline()
            if not answer or answer.startswith(('FAIL', 'ERR')):
                raise Failed(f'qtest: {command}: {answer}')


EHCI_SLOT, EHCI_BAR, EHCI_LIST = 0x10, 0xe0000000, 0x60000     # the list: memory that the guest leaves


def start_ehci(q):
    """Its asynchronous list: one entry, halted, which leads to itself."""
    def config(register, value):
        q.do(f'outl 0xcf8 {0x80000000 | EHCI_SLOT << 11 | register:#x}')
        q.do(f'outl 0xcfc {value:#x}')

    def operate(register, value):
        q.do(f'writel {EHCI_BAR + 0x20 + register:#x} {value:#x}')
    config(0x10, EHCI_BAR)
    config(4, 6)                        # memory, bus master
    entry = struct.pack('<12I', EHCI_LIST | 2, 1 << 15, 0, 0, 1, 1, 0x40, 0, 0, 0, 0, 0)
    q.do(f'write {EHCI_LIST:#x} {len(entry)} 0x{entry.hex()}')
    operate(0x18, EHCI_LIST)
    operate(0x40, 1)
    operate(0, 1 | 1 << 5 | 8 << 16)    # run, with that list


def cont_waits(t, stock):
    """QEMU's main thread stands still in `cont`, in a page; then the link breaks."""
    accel, road = t.best_accel(), Road(0)

    def one(side, incoming):
        name = f'{side}-cont-{stock}'
        return Stock(t, name, accel, 'memfd', stock, mem_mib=MIB, incoming=incoming, extra=(
            *second_monitor(t.work, name), '-device',
            f'usb-ehci,addr={EHCI_SLOT:#x}', '-qtest', f'unix:{t.work}/{name}.qtest,server=on,wait=off',
            '-qtest-log', 'none'))
    with one('a', False) as a, one('b', True) as b, contextlib.ExitStack() as stack:
        a.start_load()
        start_ehci(QTest(stack, f'{t.work}/{a.name}.qtest'))
        with proxies(t, a, b, ',reconnect=60', road,
                     ('tcp.serve.fault=delay:5000000@1', None)) as (here, there):
            there.wait('go')
            wait_for('a request for that page', 10, lambda: any(
                'proxy-cont' in n for n in threads_of(there.p.pid)))
            time.sleep(0.5)             # in which `cont` would end, if it did not wait
            if there.find('running'):
                raise Failed('cont did not wait')
            road.close()
            for side in (here, there):
                wait_for('the break', 20, lambda s=side: s.count('paused'))
            if 'while the guest was started' not in there.must('paused')['reason']:
                raise Failed(f'it broke another way: {there.told()}')
            road.open()
            for s in check_moved(a, b, here, there):
                if s['breaks'] != 1:
                    raise Failed(f'want 1 break: {s}')


def threads_of(pid):
    for task in os.listdir(f'/proc/{pid}/task'):
        with contextlib.suppress(OSError), open(f'/proc/{pid}/task/{task}/comm', encoding='ascii') as f:
            yield f.read()


# --- the source's QEMU dies ---

def check_goes_on(b):
    """The guest, without proxies."""
    if status(b) != 'running':
        raise Failed(f'{b.name} is {status(b)}')
    common.check_still_running(b)


def source_dies(t, name, faults, stock, memory='memfd'):
    """All that the guest needs has come from it, or is in a file."""
    with t.case(f'the source dies {name}, {stock}'), \
            two(t, f'dies-{name[:6].strip()}-{stock}', memory, stock) as (a, b), \
            proxies(t, a, b, faults=(faults, None)) as (here, there):
        here.wait('running')
        time.sleep(2)       # in which small blocks come; nothing says so
        a.proc.kill()
        here.must('running')
        if here.find('complete'):
            raise Failed('it died too late')
        sums = here.end(0), there.end(0)
        if any(s['bytes'] != MIB << 20 for s in sums):
            raise Failed(f'summary: {sums}')
        here.must('unconfirmed')
        check_goes_on(b)


def small_lost(t, stock):
    """It dies before its small blocks have come: both sides say so, and the guest has the rest."""
    with t.case(f'the source dies with pages that nobody else has, {stock}'), \
            two(t, f'small-{stock}', stock=stock) as (a, b), \
            proxies(t, a, b, faults=(f'{SLOW_STREAM},{SLOW_MEMORY}', None)) as (here, there):
        here.wait('ready' if stock == NEWEST else 'package')    # before, the newest has to answer
        a.proc.send_signal(signal.SIGSTOP)
        here.wait('running')
        a.proc.kill()
        for side in (here, there):
            if side.end(3)['bytes'] != MIB << 20:
                raise Failed(f'main memory: {side.told()}')
            reason = side.must('incomplete')['reason']
            if 'KiB of its block' not in reason:
                raise Failed(f'want how much of which block: {reason}')
        say(f'      {reason}')
        check_goes_on(b)


def memory_lost(t, stock):
    """Its memory was nowhere else: both sides say so, soon."""
    with t.case(f'the source dies with its memory, {stock}'), \
            two(t, f'anon-{stock}', 'anon', stock) as (a, b), \
            proxies(t, a, b, faults=(SLOW_MEMORY, None)) as (here, there):
        here.wait('running')
        begin = time.monotonic()
        a.proc.kill()
        here.end(3, 30)
        there.end(3, 30)
        say(f'      both ended after {time.monotonic() - begin:.1f} s: {there.must("incomplete")["reason"]}')
        if 'process' not in here.must('lost')['reason']:
            raise Failed(f'want who has ended: {here.told()}')


def destination_dies(t, stock):
    with t.case(f'the destination dies, {stock}'), \
            two(t, f'there-{stock}', stock=stock) as (a, b), \
            proxies(t, a, b, faults=(SLOW_MEMORY, None)) as (here, there):
        here.wait('running')
        begin = time.monotonic()
        b.proc.kill()
        there.end(3, 30)
        here.end(3, 30)
        say(f'      both ended after {time.monotonic() - begin:.1f} s: {there.must("incomplete")["reason"]}; '
            f'{here.must("lost")["reason"]}')
        check_never_again(a)


def check_never_again(a):
    """A QEMU from 10.0 on runs its guest when it takes its migration for failed."""
    end = time.monotonic() + STILL_S
    while time.monotonic() < end:
        if status(a) == 'running':
            raise Failed('the guest runs at the source')
        time.sleep(0.05)


def check_told(a):
    """By the keeper, once the QEMU has sent all: it takes its migration for completed."""
    check_never_again(a)
    wait_for('completed', 20, lambda: common.migration(a)['status'] == 'completed')


def proxy_dies(t, stock):
    """The source's is killed: its keeper tells its QEMU that it succeeded."""
    with t.case(f'the proxy of the source dies, {stock}'), \
            two(t, f'proxy-{stock}', stock=stock) as (a, b), \
            proxies(t, a, b, ',reconnect=2', faults=(SLOW_MEMORY, None)) as (here, there):
        here.wait('running')
        here.p.kill()
        here.p.wait()
        check_told(a)
        there.end(3)


def there_first(t, stock):
    """The destination is done while the source's QEMU still sends what nobody needs; then all there die."""
    with t.case(f'the destination is done first, {stock}'), \
            two(t, f'first-{stock}', stock=stock) as (a, b), \
            proxies(t, a, b, faults=(SLOW_STREAM, None)) as (here, there):
        there.end(0, 40)
        here.wait('there')
        if here.find('complete') or common.migration(a)['status'] != 'postcopy-active':
            raise Failed(f'the stream is over: {common.migration(a)}; {here.told()}')
        here.p.kill()
        here.p.wait()
        check_told(a)
        a.proc.kill()
        check_goes_on(b)


def run(t):
    for stock in (OLDEST, TRIXIE, NEWEST) if '--others' in sys.argv else (OLDEST,):
        with t.case(f'the link breaks while cont waits for a page, {stock}'):
            cont_waits(t, stock)
        source_dies(t, 'when its stream is over', SLOW_MEMORY, stock)
        source_dies(t, 'in the middle of its stream', f'{SLOW_STREAM},{SLOW_MEMORY}', stock)
        small_lost(t, stock)
        memory_lost(t, stock)
        destination_dies(t, stock)
        proxy_dies(t, stock)
        there_first(t, stock)


def needs():
    common.need_userfaultfd()
    common.need_files(qemu_of(OLDEST))


if __name__ == '__main__':
    common.main(run, 400 if '--others' in sys.argv else 240, needs)
