#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""hold.py - output=hold: nobody sees what a guest sends before its source can no longer take it back

Each QEMU's netdev is a pair of sockets, of which the test has the other end. A Linux guest answers
numbered packets; QEMU announces a guest that cannot speak. What is held comes in its order when
the move is complete, and never when the guest was taken back. Limit: 200 s.
"""
import os
import socket
import struct
import threading

import abreast
import common
import linuxguest
from common import Failed, Linux, Micro, check_ledger, check_move, refuses, say, status, wait_for
from resume import MIB, SLOW, both_paused, pause, resume, state
from take_back import AT_ONCE, LEASE_S, Fence, is_taken_back, send, stops, take_back

HOLD = ',output=hold'
MAC, OUR_MAC = (bytes.fromhex(m.replace(':', '')) for m in (linuxguest.MAC, '02:77:00:00:00:01'))
GUEST_IP, OUR_IP = (socket.inet_aton(a) for a in (linuxguest.GUEST_IP, '10.77.0.1'))
ECHO_PORT, OUR_PORT = 7000, 7001
NUMBERS = 40        # more than what QEMU and the guest's kernel say on their own
BOUND = 10000       # packets
ROUNDS = 1000       # the most of one announcer
LINUX_SLOW = 'dest.prefill=delay:150000@1-60'


class Wire:
    """The other end of a netdev. It answers ARP, and keeps whatever else comes."""

    def __init__(self, t, name):
        self.guest_end, path = (os.path.join(t.work, f'{name}.{e}') for e in ('in', 'out'))
        self.frames = []
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(path)
        self.sock.settimeout(0.1)
        self.options = ('-netdev', f'dgram,id=n0,local.type=unix,local.path={self.guest_end},'
                        f'remote.type=unix,remote.path={path}',
                        '-device', f'virtio-net-pci,netdev=n0,mac={linuxguest.MAC},romfile=')
        self.ends = False
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.ends = True
        self.thread.join()
        self.sock.close()

    def read(self):
        while not self.ends:
            try:
                frame = self.sock.recv(65536)
            except TimeoutError:
                continue
            if frame[12:14] == b'\x08\x06' and frame[20:22] == b'\0\1' and frame[38:42] == OUR_IP:
                self.send(b'\x08\x06', struct.pack('!HHBBH', 1, 0x800, 6, 4, 2) + OUR_MAC + OUR_IP +
                          frame[22:32])
            self.frames.append(frame)

    def send(self, kind, payload):
        self.sock.sendto(MAC + OUR_MAC + kind + payload, self.guest_end)

    def ask(self, first, n):
        """The guest is to say each of these numbers."""
        for i in range(first, first + n):
            data = struct.pack('!I', i)
            udp = struct.pack('!HHHH', OUR_PORT, ECHO_PORT, 8 + len(data), 0) + data
            ip = struct.pack('!BBHHHBBH', 0x45, 0, 20 + len(udp), i, 0, 64, 17, 0)
            ip += OUR_IP + GUEST_IP
            words = sum(struct.unpack('!10H', ip))
            words = (words & 0xffff) + (words >> 16)
            self.send(b'\x08\0', ip[:10] + struct.pack('!H', ~words & 0xffff) + ip[12:] + udp)

    def numbers(self):
        port = struct.pack('!H', ECHO_PORT)
        return [struct.unpack('!I', f[42:46])[0] for f in list(self.frames)
                if f[12:14] == b'\x08\0' and f[23] == 17 and f[34:36] == port]

    def wait_numbers(self, want):
        want = list(want)
        wait_for(f'{len(want)} answers', 20, lambda: len(self.numbers()) >= len(want))
        if self.numbers() != want:
            raise Failed(f'the guest said {self.numbers()}, want {want}')

    def check_silent(self):
        if self.frames:
            raise Failed(f'{len(self.frames)} packets were seen, the first: {self.frames[0].hex()}')


def held(dst):
    return common.migration(dst)['x-rdma-postcopy'].get('output-held')


def wait_held(dst, packets):
    wait_for(f'{packets} packets that are held', 20, lambda: held(dst)['packets'] >= packets)


def still_moves(*guests):
    for g in guests:
        if (now := common.migration(g)['status']) != 'postcopy-active':
            raise Failed(f'{g.name}: {now}: too early for this test: slow prefill down more')


# --- a guest that speaks ---

def linux_guest(t, settings, name, wire):
    """Its netdev is its own, all else is in the settings of all."""
    s = linuxguest.Settings(**{k: v for k, v in vars(settings).items()})
    s.extra = list(s.extra) + list(wire.options)
    return Linux(None, s, name)


def begin_linux(src, dst, fence, more):
    dst.start(incoming=True, faults=LINUX_SLOW)
    send(src, dst, fence, lease_s=30, more=more)
    wait_for('a guest that runs there', 60, lambda: status(dst) == 'running')


def speaks(t):
    settings = common.linux_settings(t, 'speaks', append=f'farfork.ip={linuxguest.GUEST_IP}/24')
    settings.disk = None
    with Wire(t, 'a') as wa, Wire(t, 'b') as wb, Wire(t, 'c') as wc:
        with linux_guest(t, settings, 'a', wa) as a, linux_guest(t, settings, 'b', wb) as b, \
                linux_guest(t, settings, 'c', wc) as c:
            a.start()
            common.linux_boot(a)
            wa.ask(0, 5)
            wa.wait_numbers(range(5))
            begin_linux(a, b, Fence(t, 'held'), HOLD)
            wb.ask(0, NUMBERS)
            wait_held(b, NUMBERS // 2)
            wb.check_silent()
            say(f'      held: {held(b)}')
            still_moves(a, b)
            check_move(common.Moved(a, b, 0))
            wb.wait_numbers(range(NUMBERS))
            kinds = [f[12:14].hex() for f in wb.frames]
            if '8035' not in kinds or kinds.index('8035') > kinds.index('0800'):
                raise Failed(f'the announcement did not come first: {kinds}')
            if held(b) is not None:
                raise Failed(f'it holds {held(b)}')
            a.quit()
            wb.ask(NUMBERS, 5)
            wb.wait_numbers(range(NUMBERS + 5))

            begin_linux(b, c, Fence(t, 'passes'), '')
            wc.ask(0, NUMBERS)
            wc.wait_numbers(range(NUMBERS))
            if held(c) is not None:
                raise Failed(f'it holds {held(c)}')
            still_moves(b, c)
            check_move(common.Moved(b, c, 0))


# --- a guest that is announced ---

def pair(t, name, accel, wires):
    """Memory does not come until the test says so, since the link is paused."""
    a, b = (Micro(t, f'{name}-{n}', accel, mem_mib=MIB, incoming=n == 'b', faults=f,
                  extra=w.options)
            for n, f, w in (('a', None, wires[0]), ('b', SLOW, wires[1])))
    return a, b, Fence(t, name)


def begin(src, dst, fence, lease_s=LEASE_S):
    src.start_load()
    uri = send(src, dst, fence, lease_s=lease_s, more=HOLD)
    for g in (dst, src):
        common.wait_migration(g, 'postcopy-active')
    wait_held(dst, 1)
    pause(src)
    both_paused(src, dst)
    return uri


def bounded(t, accel):
    """As many as there may be are held, in their order the first; the others are lost."""
    with Wire(t, 'bound-a') as wa, Wire(t, 'bound-b') as wb:
        src, dst, fence = pair(t, 'bound', accel, (wa, wb))
        with src, dst:
            uri = begin(src, dst, fence, 120)
            for i in range(BOUND // ROUNDS + 1):
                dst.qmp('announce-self', initial=0, max=0, rounds=ROUNDS, step=1, id=f'n{i}')
            got = wait_for('packets that are lost', 60,
                           lambda: (h := held(dst))['packets'] + h['dropped'] > BOUND + ROUNDS and h)
            say(f'      {got}')
            if got['packets'] != BOUND:
                raise Failed(f'{got}, want {BOUND} packets')
            wb.check_silent()
            resume(src, uri)
            for g in (src, dst):
                state(g, 'completed', 60)
            wait_for('all that was held', 20, lambda: len(wb.frames) >= BOUND)
            check_ledger(src, dst)


def lost(t, accel, how):
    """Nothing that it sent is ever seen, whatever becomes of its QEMU."""
    with Wire(t, how + '-a') as wa, Wire(t, how + '-b') as wb:
        src, dst, fence = pair(t, how, accel, (wa, wb))
        with src, dst:
            uri = begin(src, dst, fence)
            say(f'      held: {held(dst)}')
            if how == 'netdev_del':
                dst.qmp('netdev_del', id='n0')
            if how == 'told':
                take_back(src, uri)
                stops(dst, src)
            elif how == 'quit':     # twice: the first lets it wait for its source, for a while
                wait_for('its end', 30,
                         lambda: dst.proc.terminate() or dst.proc.poll() is not None)
            else:
                dst.proc.kill()
            dst.exit_code(20)
            if how != 'told':
                take_back(src, uri)
            is_taken_back(src, fence)
            wb.check_silent()
            check_ledger(src)
            before = len(wa.frames)
            src.qmp('announce-self', initial=0, max=0, rounds=1, step=1)
            wait_for('the source speaks', 10, lambda: len(wa.frames) > before)


# --- refused ---

def refusals(t, accel):
    """While the guest runs at the source"""
    lab = linuxguest.Lab(f'ffe2e-hold-{os.getpid()}')
    t.at_end.callback(lab.close)
    fence = Fence(t, 'refused')
    guests = [Micro(t, f'queues-{n}', accel, mem_mib=MIB, incoming=n == 'b', extra=(
        '-netdev', f'tap,id=n0,ifname=hold-{n},script=no,downscript=no,queues=2', '-device',
        'virtio-net-pci,netdev=n0,mq=on,vectors=6,romfile=')) for n in 'ab']
    for g in guests:
        g.argv = lab.inside(g.argv)
    src, dst = guests
    with src, dst:
        src.start_load()
        uri = common.listen(dst)
        refuses(src, 'is for fallback=go', 'migrate', uri=uri + HOLD)
        src.qmp('migrate', uri=uri + fence.options() + HOLD)
        why = state(src, 'failed')['error-desc']
        if 'netdev n0: multiqueue is not supported' not in why:
            raise Failed(why)
        say(f'      {why}')
        common.check_still_running(src)
    lab.close()


def run(t):
    accel = t.best_accel()
    with t.case('what a guest says, held and not held, tcg'):
        speaks(t)
    # TCG's vCPUs do not stop while they wait for a page
    ways = [how for how in ('told', 'quit', 'kill', 'netdev_del') if how != 'told' or accel == 'kvm']
    abreast.run(t, [(f'no more than a bound, {accel}', lambda t: bounded(t, accel)),
                    *((f'taken back, {how}, {accel}', lambda t, x=how: lost(t, accel, x))
                      for how in ways),
                    (f'refused, {accel}', lambda t: refusals(t, accel))], AT_ONCE)


if __name__ == '__main__':
    common.main(run, 200)
