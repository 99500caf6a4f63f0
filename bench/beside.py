# SPDX-License-Identifier: LGPL-2.1-or-later
#
# beside.py - a farfork attached to a QEMU: started, its events as they come
"""
    Micro(t, 'b', incoming=True, extra=second_monitor(t.work, 'b'))
    there = Beside(t, b, 'destination', '127.0.0.1:0,insecure=on')
    port = there.wait('listening')['port']
"""
import json
import os
import subprocess
import threading

import common
from common import FARFORK, Failed, wait_for


def monitor_path(folder, name):
    return os.path.join(folder, f'{name}.second')


def second_monitor(folder, name):
    """For the QEMU of that name: a monitor more, for farfork."""
    return ['-qmp', f'unix:{monitor_path(folder, name)},server=on,wait=off']


def in_its_network(pid):
    """What runs a program in the network namespace of a process, as that process."""
    spaces = [os.readlink(f'/proc/{p}/ns/net') for p in ('self', pid)]
    return [] if spaces[0] == spaces[1] else ['nsenter', '--target', str(pid), '--net']


class Beside:
    """One side. The QEMU at the source is not ended (--keep), as it is not by its own ways: that would cost CPU
    time which no other way is charged for."""

    def __init__(self, t, guest, side, address):
        self.side, self.events, self.noise = side, [], []
        folder = os.path.dirname(guest.console)
        more = ['--keep'] if side == 'source' else ['--connect', os.path.join(folder, f'{guest.name}.stream')]
        # pylint: disable=consider-using-with
        self.p = subprocess.Popen(
            common.place.argv([*in_its_network(guest.pid), FARFORK, 'attach', f'--{side}', '--json', '--qmp',
                               monitor_path(folder, guest.name), *more, address], side == 'destination'),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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

    def wait(self, name, limit_s=30):
        wait_for(f'{self.side}: event {name}', limit_s,
                 lambda: self.find(name) or self.p.poll() is not None)
        if not self.find(name):
            raise Failed(f'attach: {self.side}: no {name}: {self.told()}')
        return self.find(name)

    def told(self):
        return f'{self.events[-3:]} {"".join(self.noise)[-600:]}'

    def close(self):
        self.p.kill()
        self.p.wait()
        for thread in self.threads:
            thread.join()
