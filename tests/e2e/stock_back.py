#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""stock_back.py - after the package Debian's own QEMU gives the guest back; limit: 60 s

What control/proxy/versions.h says of each version, without a proxy: the test plays a destination
that takes the package and never runs. --others does so with 10.0 and the newest of Debian's.
"""
import select
import socket
import struct
import sys
import common
from common import Failed, GuestError, check_still_running, migration, status, wait_for, wait_migration
from stock_stream import Stock, version
from stocks import NEWEST, OLDEST, TRIXIE, qemu_of

PACKAGED = struct.pack('>BHH', 8, 7, 4)
PING_LOADED = struct.pack('>BHHI', 8, 2, 4, 0x42)
RUN = struct.pack('>BHH', 8, 5, 0)
SHUT = struct.pack('>HHI', 1, 4, 0)
SHUT_FAILED = struct.pack('>HHI', 1, 4, 1)
SILENT_S = 0.5


def take(sock, size):
    data = b''
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise Failed(f'the stream ended, {size - len(data)} bytes too early')
        data += more
    return data


def take_package(sock):
    """Reads to the end of the package, and little more; its bytes."""
    seen = b''
    while PACKAGED not in seen:
        more = sock.recv(1 << 16)
        if not more:
            raise Failed('the stream ended before the package')
        seen = seen[-len(PACKAGED):] + more
    seen = seen.split(PACKAGED, 1)[1]
    seen += take(sock, 4 - len(seen))
    size = struct.unpack('>I', seen[:4])[0]
    return seen[4:size + 4] + take(sock, size + 4 - len(seen))


def begin(t, guest):
    """The socket of a post-copy whose package was read, and the package."""
    path = f'{t.work}/{guest.name}.stream'
    guest.qmp('migrate-set-capabilities',
              capabilities=[{'capability': 'postcopy-ram', 'state': True}])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(20)
        guest.qmp('migrate', uri=f'unix:{path}')
        sock, _ = listener.accept()
    sock.settimeout(30)
    wait_migration(guest, 'active')
    guest.qmp('migrate-start-postcopy')
    return sock, take_package(sock)


def to_the_end(guest, sock):
    """As a destination that has everything. (migrate_cancel races with QEMU's own thread: it may leave postcopy-paused.)"""
    while select.select([sock], [], [], SILENT_S)[0] or migration(guest)['ram']['remaining']:
        if not sock.recv(1 << 20):
            raise Failed('the stream ended')
    sock.sendall(SHUT)
    wait_migration(guest, 'completed')
    wait_for('end of the migration', 20, lambda: status(guest) == 'postmigrate')
    guest.qmp('cont')


def refuses_cancel(guest):
    try:
        guest.qmp('migrate_cancel')
    except GuestError:
        return
    raise Failed('migrate_cancel was accepted')


def shut(guest, sock):
    refuses_cancel(guest)
    sock.sendall(SHUT_FAILED)
    while sock.recv(1 << 20):
        pass
    wait_migration(guest, 'failed')


def close(guest, sock):
    refuses_cancel(guest)
    sock.close()
    wait_migration(guest, 'failed')


def one(t, accel, stock, way, during):
    with Stock(t, f'back-{way.__name__}', accel, stock=stock, mem_mib=128) as guest:
        guest.start_load()
        sock, package = begin(t, guest)
        with sock:
            wait_migration(guest, during)
            if not package.endswith(RUN) or \
                    package.endswith(PING_LOADED + RUN) != (during == 'postcopy-device'):
                raise Failed(f'the package ends {package[-14:].hex()}')
            way(guest, sock)
        check_still_running(guest, sweeps=2)


def run(t):
    accel = t.best_accel()
    with t.case(f'{version(OLDEST)}: the stream to its end, SHUT and cont, {accel}'):
        one(t, accel, OLDEST, to_the_end, 'postcopy-active')


def run_others(t):
    accel = t.best_accel()
    with t.case(f'{version(TRIXIE)}: SHUT, and the stream to its end, {accel}'):
        one(t, accel, TRIXIE, shut, 'postcopy-active')
    with t.case(f'{version(NEWEST)}: the end of the socket, {accel}'):
        one(t, accel, NEWEST, close, 'postcopy-device')


if __name__ == '__main__':
    if '--others' in sys.argv:
        common.main(run_others, 120, lambda: common.need_files(qemu_of(TRIXIE), qemu_of(NEWEST)))
    common.main(run, 60, lambda: common.need_files(qemu_of(OLDEST)))
