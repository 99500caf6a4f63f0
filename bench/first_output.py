#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""first_output.py - when children of a fork say their first: first_output.py FOLDER

Prints `ready`, then a JSON line [path, seconds of CLOCK_MONOTONIC] for each console (*.console)
that comes to be anywhere in FOLDER, once it holds its first byte, which only that child's guest can
have written. Ends with its input. With real-time priority where it may: children take every CPU.
"""
import ctypes
import json
import os
import select
import struct
import sys
import time

MODIFY, MOVED_TO, CREATE, ISDIR, ONESHOT = 0x2, 0x80, 0x100, 0x40000000, 0x80000000
HEAD = struct.Struct('iIII')
PRIORITY = 10


class Watch:
    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), 'inotify_init1')
        self.paths, self.said = {}, set()

    def add(self, path, mask):
        wd = self.libc.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(mask))
        if wd >= 0:                     # else it has gone again
            self.paths[wd] = path

    def folder(self, path, there):
        """there: what is in it already is new, too."""
        self.add(path, CREATE | MOVED_TO)
        try:
            for entry in os.scandir(path):
                if entry.is_dir(follow_symlinks=False):
                    self.folder(entry.path, there)
                elif there:
                    self.file(entry.path)
        except OSError:
            pass

    def file(self, path):
        if not path.endswith('.console') or path in self.said:
            return
        self.add(path, MODIFY | ONESHOT)
        if os.path.exists(path) and os.path.getsize(path):
            self.say(path)              # it was quicker

    def say(self, path):
        if path not in self.said:
            self.said.add(path)
            print(json.dumps([path, time.monotonic()]), flush=True)

    def hear(self):
        data, at = os.read(self.fd, 65536), 0
        while at < len(data):
            wd, mask, _, size = HEAD.unpack_from(data, at)
            name = os.fsdecode(data[at + HEAD.size:at + HEAD.size + size].rstrip(b'\0'))
            at += HEAD.size + size
            path = self.paths.get(wd)
            if path is None:
                continue
            if mask & MODIFY:
                self.say(path)
            elif mask & (CREATE | MOVED_TO) and mask & ISDIR:
                self.folder(os.path.join(path, name), True)
            elif mask & (CREATE | MOVED_TO):
                self.file(os.path.join(path, name))


def main():
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError:
        pass
    w = Watch()
    w.folder(sys.argv[1], False)
    print('ready', flush=True)
    while True:
        ready, _, _ = select.select([w.fd, 0], [], [])
        if w.fd in ready:
            w.hear()
        if 0 in ready and not os.read(0, 1):
            return


if __name__ == '__main__':
    main()
