# SPDX-License-Identifier: LGPL-2.1-or-later
#
# road.py - a way between two hosts that can be closed, and opened again
"""
    with Road(port) as road:            # road.port leads to 127.0.0.1:port
        road.refuse()                   # it takes no other connection
        road.close()                    # every connection on it breaks; it takes no other
        road.stall()                    # of the connections there are only the first still works
        road.open()
    road.delay_s = 0.05             # whatever comes on it waits for so long
"""
import contextlib
import select
import socket
import threading
import time


class Road:
    def __init__(self, to):
        self.to = to
        self.lock = threading.Lock()
        self.pairs = {}                 # in the order in which they came
        self.stalled = set()
        self.threads = []
        self.listener = self.taker = None
        self.port = 0
        self.delay_s = 0
        self.breaks = 0                 # who breaks it may count that

    def __enter__(self):
        self.open()
        return self

    def __exit__(self, *exc):
        self.close()
        for t in self.threads:
            t.join(10)

    def open(self):
        self.listener = socket.create_server(('127.0.0.1', self.port), backlog=16)
        self.port = self.listener.getsockname()[1]
        self.taker = self._start(self._accept, self.listener)

    def refuse(self):
        """It takes no other connection; those that it has go on"""
        with self.lock:
            listener, self.listener = self.listener, None
        if listener:
            listener.shutdown(socket.SHUT_RDWR)
            self.taker.join(15)

    def stall(self):
        with self.lock:
            self.stalled.update(list(self.pairs)[1:])

    def close(self):
        self.refuse()
        with self.lock:
            pairs = list(self.pairs)
        for s in (s for pair in pairs for s in pair):
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def _start(self, fn, *args):
        thread = threading.Thread(target=fn, args=args, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def _accept(self, listener):
        with listener:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                try:
                    far = socket.create_connection(('127.0.0.1', self.to), 10)
                except OSError:
                    near.close()
                    continue
                for s in (near, far):
                    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self.lock:
                    is_open = self.listener is listener
                    if is_open:
                        self.pairs[near, far] = None
                if not is_open:
                    near.close()
                    far.close()
                    return
                self._start(self._carry, near, far)

    def _carry(self, near, far):
        other = {near: far, far: near}
        with near, far, contextlib.suppress(OSError):
            while True:
                for s in select.select([near, far], [], [])[0]:
                    data = s.recv(1 << 18)
                    if not data:
                        raise OSError
                    time.sleep(self.delay_s)
                    if (near, far) not in self.stalled:
                        other[s].sendall(data)
        with self.lock:
            self.pairs.pop((near, far), None)
