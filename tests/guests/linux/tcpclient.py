#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""tcpclient.py - talk to guestload from outside, over one connection that must last

usage: tcpclient.py HOST [--port 7000] [--interval-ms 20] [--lines N]
                    [--connect-s 30] [--stall-s 60]

Purpose   See what a move does to a client: lines lost, doubled, reordered or wrong,
          a connection that broke, and for how long nothing came back.
Picture   "N\\n" -> guest -> "N COUNTER CHECKSUM\\n": N counts up, COUNTER never
          goes back, CHECKSUM chains all lines of the connection (gl_tcp.c).
Ends      on SIGTERM or SIGINT, after N lines, or when no answer came for stall-s;
          then prints one JSON line:
            lines, errors, connects, reconnects, same_connection, longest_gap_ms,
            longest_gap_at_line, last_counter, local, first_error
          longest_gap_ms is the longest time from a line sent to its answer: what a
          client feels of the downtime (a pause between two lines hides in the interval).
Exit      0: at least one line, no error, no reconnect; 1 otherwise.
"""
import argparse
import json
import select
import signal
import socket
import sys
import time

MASK = (1 << 64) - 1
LAST_S = 2          # how long the last answer may take after a SIGTERM


class Broken(Exception):
    """The connection is of no more use."""


def mix(x):
    """gl_mix() of guestload.c"""
    x = ((x ^ (x >> 32)) * 0xd6e8feb86659fd93) & MASK
    x = ((x ^ (x >> 32)) * 0xd6e8feb86659fd93) & MASK
    return x ^ (x >> 32)


class Client:
    def __init__(self, host, port, stall_s):
        self.address = (host, port)
        self.stall_s = stall_s
        self.lines = self.errors = self.connects = 0
        self.gap_ms, self.gap_line = 0.0, 0
        self.first_error = None
        self.counter = 0
        self.sock = None
        self.local = None
        self.stop_at = None           # time.monotonic() when told to stop

    def fail(self, text):
        self.errors += 1
        self.first_error = self.first_error or text

    def connect(self, limit_s):
        end = time.monotonic() + limit_s
        while not self.stop_at:
            try:
                self.sock = socket.create_connection(self.address, timeout=2)
                break
            except OSError as e:
                if time.monotonic() > end:
                    raise Broken(f'connect {self.address}: {e} (for {limit_s} s)') from e
                time.sleep(0.05)
        if self.sock:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sock.setblocking(False)
            self.connects += 1
            self.local = self.local or self.sock.getsockname()
            self.seq = self.chain = 0
            self.pending = b''

    def receive_line(self):
        """The next line; Broken if there is none for stall_s, or LAST_S after the stop."""
        start = time.monotonic()
        while b'\n' not in self.pending:
            now = time.monotonic()
            end = start + self.stall_s
            if self.stop_at:
                end = min(end, self.stop_at + LAST_S)
            if now >= end:
                raise Broken(f'no answer to line {self.seq} for {now - start:.1f} s')
            if not select.select([self.sock], [], [], min(end - now, 0.5))[0]:
                continue
            data = self.sock.recv(4096)
            if not data:
                raise Broken(f'closed by the guest after line {self.seq}')
            self.pending += data
        line, self.pending = self.pending.split(b'\n', 1)
        return line.decode('ascii', 'replace')

    def ping(self):
        self.seq += 1
        self.sock.sendall(b'%d\n' % self.seq)
        line = self.receive_line()
        if self.pending:
            raise Broken(f'more than one answer to line {self.seq}: {self.pending[:60]!r}')
        try:
            n, counter, check = line.split(' ')
            n, counter, check = int(n), int(counter), int(check, 16)
        except ValueError:
            raise Broken(f'answer to line {self.seq} is {line!r}') from None
        if n != self.seq:
            raise Broken(f'answer to line {self.seq} is for line {n}')
        self.chain = mix(self.chain ^ n ^ ((counter << 32) & MASK))
        if check != self.chain:
            raise Broken(f'line {n}: checksum {check:016x}, must be {self.chain:016x}')
        if counter < self.counter:
            self.fail(f'line {n}: counter went back from {self.counter} to {counter}')
        self.counter = counter
        self.lines += 1

    def run(self, interval_s, connect_s, limit):
        while not self.stop_at and not (limit and self.lines >= limit):
            try:
                if self.sock is None:
                    self.connect(connect_s)
                    continue
                start = time.monotonic()
                self.ping()
                took = time.monotonic() - start
                if took * 1000 > self.gap_ms:
                    self.gap_ms, self.gap_line = took * 1000, self.lines
                if not self.stop_at and interval_s > took:
                    time.sleep(interval_s - took)
            except (Broken, OSError) as e:
                self.fail(str(e))
                if self.sock is None or 'no answer' in str(e):
                    return
                self.sock.close()
                self.sock = None
                time.sleep(0.05)

    def summary(self):
        same = (self.connects == 1 and self.sock is not None
                and self.sock.getsockname() == self.local)
        return {'lines': self.lines, 'errors': self.errors, 'connects': self.connects,
                'reconnects': max(0, self.connects - 1), 'same_connection': same,
                'longest_gap_ms': round(self.gap_ms, 1), 'longest_gap_at_line': self.gap_line,
                'last_counter': self.counter, 'local': list(self.local[:2]) if self.local else None,
                'first_error': self.first_error}


def main():
    p = argparse.ArgumentParser(description='one lasting connection to guestload')
    p.add_argument('host')
    p.add_argument('--port', type=int, default=7000)
    p.add_argument('--interval-ms', type=float, default=20)
    p.add_argument('--lines', type=int, default=0, help='stop after so many (0: never)')
    p.add_argument('--connect-s', type=float, default=30)
    p.add_argument('--stall-s', type=float, default=60)
    o = p.parse_args()

    client = Client(o.host, o.port, o.stall_s)

    def stop(*_):
        client.stop_at = client.stop_at or time.monotonic()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    client.run(o.interval_ms / 1000, o.connect_s, o.lines)
    result = client.summary()
    print(json.dumps(result), flush=True)
    sys.exit(0 if result['lines'] and not result['errors'] and result['same_connection'] else 1)


if __name__ == '__main__':
    main()
