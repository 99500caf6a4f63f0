# SPDX-License-Identifier: LGPL-2.1-or-later
#
# fakepeer.py - the first messages of the protocol, spoken by hand, right or wrong
"""
Frames as in rdma/tcp_wire.h, messages as in migrate/wire.h: all integers little-endian.

    control    | magic FFcm | length 4 | message |
    message    | type 2 | 0 2 | body |
"""
import contextlib
import functools
import re
import socket
import struct
import subprocess
import threading

CTRL = b'FFcm'
MAGIC = b'FARFORK1'
HELLO, WELCOME, REFUSE = 1, 2, 3
VERSION = 11            # FF_WIRE_VERSION in migrate/wire.h
LIMIT_S = 20


def frame(message):
    return CTRL + struct.pack('<I', len(message)) + message


@functools.cache
def machine_config():
    """What QEMU says of itself with its machine pc."""
    import common   # not everywhere: keys.py   pylint: disable=import-outside-toplevel
    text = subprocess.run([common.QEMU, '--version'], stdout=subprocess.PIPE, check=True).stdout
    version = re.search(rb'version ([0-9]+\.[0-9]+)', text)[1]
    return b'pc-i440fx-%s, x86_64, page size 4096' % version


def hello(version=VERSION, oldest=VERSION, config=None, regions=((b'pc.ram', 64 << 20, 4096),)):
    config = machine_config() if config is None else config
    body = MAGIC + struct.pack('<HHIHHH', version, oldest, 0, 0, len(regions), len(config)) + config
    for name, size, psize in regions:
        body += struct.pack('<QIH', size, psize, len(name)) + name
    return frame(struct.pack('<HH', HELLO, 0) + body)


def welcome(version=VERSION):
    return frame(struct.pack('<HHHHI', WELCOME, 0, version, 0, 0) + bytes(range(16)) +
                 struct.pack('<I', 1))


def refuse(text):
    return frame(struct.pack('<HH', REFUSE, 0) + text)


def receive(sock, size):
    data = b''
    while len(data) < size:
        try:
            part = sock.recv(size - len(data))
        except ConnectionResetError:    # closed before it read all that we sent
            break
        if not part:
            break
        data += part
    return data


def answer(sock):
    """(type, body) of the next control message; (None, what came) if there is none."""
    head = receive(sock, 8)
    if len(head) < 8 or head[:4] != CTRL:
        return None, head
    message = receive(sock, struct.unpack('<I', head[4:])[0])
    return struct.unpack('<H', message[:2])[0], message[4:]


def connect(port, data, host='127.0.0.1'):
    """A source that sends this; the open socket."""
    sock = socket.create_connection((host, port), timeout=LIMIT_S)
    sock.sendall(data)
    return sock


@contextlib.contextmanager
def destination(reply, read_first=True):
    """A destination that answers the first connection so and closes it; yields its port."""
    with socket.create_server(('127.0.0.1', 0)) as server:
        server.settimeout(LIMIT_S)

        def serve():
            with contextlib.suppress(OSError):
                sock, _ = server.accept()
                with sock:
                    sock.settimeout(LIMIT_S)
                    if read_first:
                        answer(sock)
                    sock.sendall(reply)
                    sock.shutdown(socket.SHUT_WR)
                    while sock.recv(4096):
                        pass
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
    thread.join(LIMIT_S)
