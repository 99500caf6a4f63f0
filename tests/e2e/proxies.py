# SPDX-License-Identifier: LGPL-2.1-or-later
#
# proxies.py - a farfork proxy beside a QEMU: started, its events as they come
"""
    Micro(t, 'b', incoming=True, extra=second_monitor(t.work, 'b'))
    with Proxy(t, b, 'destination', '127.0.0.1:0', f'{t.work}/b.in') as there:
        port = there.wait('listening')['port']
"""
import json
import os
import subprocess
import threading

import common
from common import FARFORK, Failed, wait_for


def monitor_path(folder, name):
    return os.path.join(folder, f'{name}.proxy')


def second_monitor(folder, name):
    """For the QEMU of that name: a monitor of its own for the proxy."""
    return ['-qmp', f'unix:{monitor_path(folder, name)},server=on,wait=off']


def beside(pid):
    """What runs a program in the network namespace of a process, as that process."""
    spaces = [os.readlink(f'/proc/{p}/ns/net') for p in ('self', pid)]
    return [] if spaces[0] == spaces[1] else ['nsenter', '--target', str(pid), '--net']


class Proxy:
    """One side: a farfork proxy, its events as they come."""

    def __init__(self, t, guest, side, address, path, more=(), faults=None, argv=(),
                 space=None):
        """space: pid of a process in whose network namespace it runs; None: in this one"""
        self.side, self.events, self.noise = side, [], []
        way = 'listen' if side == 'source' else 'connect'
        monitor = monitor_path(os.path.dirname(guest.console), guest.name)
        # pylint: disable=consider-using-with
        self.p = subprocess.Popen(
            common.place.argv([*(beside(space) if space else ()), FARFORK, 'proxy', f'--{side}',
                               '--json', '--qmp', monitor, f'--{way}', path, *more, address,
                               *argv], side == 'destination'),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
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
