#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""rpcserver.py - the accelerator that a guest calls (gl_rpc.c): one session, results in the order of the calls

usage: rpcserver.py ADDRESS PORT

Prints "listening", and on SIGUSR1 and at its end one line of JSON: calls, bytes (either way), sessions, longest_gap_ms
between two calls, and bins: [[ms of CLOCK_MONOTONIC, calls in the 50 ms from then on], ...]. It ends with the session,
or by SIGTERM.
"""
import json
import signal
import socket
import struct
import sys
import time

HEAD = struct.Struct('<QII')
BIN_MS = 50


class Ended(Exception):
    pass


def exactly(conn, n):
    data = bytearray(n)
    view = memoryview(data)
    at = 0
    while at < n:
        got = conn.recv_into(view[at:])
        if not got:
            raise Ended
        at += got
    return data


def serve(conn, said):
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    last = None
    while True:
        head = exactly(conn, HEAD.size)
        seq, length, _ = HEAD.unpack(head)
        if seq != said['session_calls'] + 1:
            raise Ended
        arguments = exactly(conn, length)
        conn.sendall(head + arguments[::-1])
        now = time.monotonic() * 1000
        if last is not None:
            said['longest_gap_ms'] = max(said['longest_gap_ms'], now - last)
        last = now
        said['calls'] += 1
        said['session_calls'] += 1
        said['bytes'] += length
        at = int(now) // BIN_MS * BIN_MS
        said['bins'][at] = said['bins'].get(at, 0) + 1


def main():
    said = {'calls': 0, 'bytes': 0, 'sessions': 0, 'longest_gap_ms': 0.0, 'bins': {}}

    def end(*_):
        raise Ended
    def say(*_):
        print(json.dumps({**said, 'bins': sorted(said['bins'].items())}), flush=True)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGUSR1, say)
    try:
        with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
            print('listening', flush=True)
            conn = server.accept()[0]
            said['sessions'] += 1
            said['session_calls'] = 0
            serve(conn, said)
    except (Ended, ConnectionError):
        pass
    say()


if __name__ == '__main__':
    main()
