#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""agent_safe.py - nobody gives a fork's agent another image, no child changes what others read;
limit: 240 s"""
import contextlib
import glob
import json
import mmap
import os
import re
import socket
import subprocess
import sys

import common
from common import Failed, say, status, wait_for
from forked import (Child, Clone, ForkParent, check_nothing_left, check_result, kill, snapshot)
from keys import Listener

MIB = 64        # more than what is handed over without a file


def listening_sockets(pid):
    """Inodes of the TCP sockets of a process that listen."""
    found = set()
    for name in ('tcp', 'tcp6'):
        with open(f'/proc/{pid}/net/{name}', encoding='ascii') as f:
            rows = [line.split() for line in f][1:]
        found |= {row[9] for row in rows if row[3] == '0A'}
    mine = set()
    for fd in glob.glob(f'/proc/{pid}/fd/*'):
        m = re.match(r'socket:\[(\d+)\]', os.readlink(fd) if os.path.lexists(fd) else '')
        if m:
            mine.add(m.group(1))
    return found & mine


def no_port(t, accel, memory):
    """Local forks, by files and by a link: the agent listens nowhere, from its first event on."""
    wrapper = os.path.join(t.work, 'agent')
    log = os.path.join(t.work, 'ports')
    with open(wrapper, 'w', encoding='ascii') as f:
        f.write(f'#!/bin/sh\n"{common.FARFORK}" "$@" | {sys.executable} {os.path.abspath(__file__)} '
                f'ports {log}\n')
    os.chmod(wrapper, 0o755)
    with ForkParent(t, accel, memory=memory, mem_mib=MIB) as parent:
        parent.start_load()
        before = snapshot(parent)
        with Clone(t, parent, 2, '--agent', wrapper) as c:
            check_result(c, 0, {'complete': 2})
            for row in c.children:
                Child(row, parent).check(before)
            kill(c.base, 'f')
            check_nothing_left(c, parent)
    with open(log, encoding='ascii') as f:
        seen = f.read().split()
    if len(seen) < 3 or set(seen) != {'none'}:
        raise Failed(f'while it said something the agent had these TCP ports: {seen}')
    say(f'      no port at {len(seen)} events')


def attacked(t, accel, knows):
    """Another guest's image comes to the port of an agent before the parent's does; with its key?"""
    folder = os.path.join(t.work, 'others')
    os.makedirs(folder, exist_ok=True)
    with ForkParent(t, accel, mem_mib=MIB) as parent, Listener(t, 'launcher') as pipe, \
            ForkParent(type('Work', (), {'work': folder}), accel, mem_mib=MIB) as other:
        parent.start_load()
        other.start_load()
        before = snapshot(parent)
        attacker = (f'{sys.executable} {os.path.abspath(__file__)} {"knows" if knows else "attack"} '
                    f'{other.second},{pipe.folder}')
        with Clone(t, parent, 2, *pipe.launcher(behind=attacker), hosts=['h1=127.0.0.1']) as c:
            if knows:
                check_result(c, 3, {'failed': 2})
                errors = {row['error'] for row in c.children}
                if not all('not the parent' in e for e in errors):
                    raise Failed(f'it failed for another reason: {errors}')
                say(f'      {errors.pop()[:160]}')
            else:
                check_result(c, 0, {'complete': 2})
                for row in c.children:
                    Child(row, parent).begins(before)
                kill(c.base, 'f')
            check_nothing_left(c, parent)
        if status(other) != 'running':
            raise Failed('the other guest does not run')


def breach(link, path):
    """What of a child may change that file; None: nothing."""
    again = os.open(link, os.O_RDWR | os.O_CLOEXEC)
    try:
        size = os.fstat(again).st_size
        for what, change in (('a write', lambda: os.pwrite(again, b'x', 0)),
                             ('a shorter file', lambda: os.ftruncate(again, size - 4096)),
                             ('a longer file', lambda: os.ftruncate(again, size + 4096)),
                             ('a mapping', lambda: mmap.mmap(again, 4096).close())):
            try:
                change()
            except (PermissionError, OSError):
                continue
            return f'{what} to {path}'
        return None
    finally:
        os.close(again)


def image_files(folder):
    found = []
    for link in glob.glob(folder + '/*'):
        with contextlib.suppress(FileNotFoundError):
            if re.match('/memfd:(memory-backend-memfd|farfork-image)', path := os.readlink(link)):
                found.append((link, path))
    return found


def unwritable(t, accel, memory, sealed):
    """A child has no file of its image open; what it has mapped cannot be written to where the agent has made it."""
    with ForkParent(t, accel, memory=memory, mem_mib=MIB) as parent:
        parent.start_load()
        with Clone(t, parent, 2) as c:
            check_result(c, 0, {'complete': 2})
            pid, seen = c.children[0]['pid'], 0
            wait_for('a child without files of its image', 20, lambda: not image_files(f'/proc/{pid}/fd'))
            for link, path in image_files(f'/proc/{pid}/map_files'):
                seen += 1
                done = breach(link, path) if sealed else None
                if done:
                    raise Failed(f'a child can change what others read: {done}')
            if not seen:
                raise Failed('a child has no file of its image mapped')
            say(f'      {seen} mappings of the image')
            kill(c.base, 'f')
            check_nothing_left(c, parent)


def run(t):
    accel = t.best_accel()
    with t.case('same host, memfd: no port'):
        no_port(t, accel, 'memfd')
    with t.case('same host, anon: no port'):
        no_port(t, accel, 'anon')
    with t.case('another guest was there first'):
        attacked(t, accel, knows=False)
    with t.case('another guest, with the key, was there first'):
        attacked(t, accel, knows=True)
    with t.case('memfd: children cannot write'):
        unwritable(t, accel, 'memfd', False)
    with t.case('anon: children cannot write'):
        unwritable(t, accel, 'anon', True)


# --- between an agent and vmclone: passes on what the agent says ---

def note_ports(event, log):
    """Write down whether the agent has a port now."""
    if 'pid' in event and event['event'] == 'listening':
        note_ports.pid = event['pid']
    with open(log, 'a', encoding='ascii') as f:
        try:
            ports = listening_sockets(note_ports.pid)
        except OSError:     # it ends
            return
        f.write(f'{"some" if ports else "none"}\n')


def attack(event, paths, knows=False):
    """The agent listens: another guest's image comes to it, and vmclone hears of it afterwards."""
    if event['event'] != 'listening':
        return
    path, folder = paths.split(',')
    with open(os.path.join(folder, 'passed'), encoding='utf-8') as f:
        key = json.loads(f.readline())['key']
    secret = {'qom-type': 'secret', 'id': 'farfork-key', 'data': key}
    sock, its = socket.socketpair()
    with subprocess.Popen([common.FARFORK, 'attach', '--parent', '--qmp', path], stdin=its, stdout=subprocess.DEVNULL), \
            its, sock, sock.makefile('rw') as f:
        its.close()
        target = {'uri': f'rdma-postcopy:127.0.0.1:{event["port"]}{",key=farfork-key" if knows else ""}'}
        for name, arguments in (('qmp_capabilities', {}), ('object-add', secret),
                                ('x-farfork-export', {'id': 'a', 'targets': [target]})):
            f.write(json.dumps({'execute': name, 'arguments': arguments}, separators=(',', ':')) + '\n')
            f.flush()
            next(m for m in map(json.loads, f) if 'return' in m)
        active = None
        while active not in (('active', 'completed') if knows else ('failed',)):
            f.write(json.dumps({'execute': 'query-x-farfork-exports'}) + '\n')
            f.flush()
            reply = next(m for m in map(json.loads, f) if 'return' in m)
            active = reply['return'][0]['targets'][0]['status']


def attack_with_key(event, paths):
    attack(event, paths, knows=True)


def between(how, argument):
    for line in sys.stdin:
        event = json.loads(line)
        {'ports': note_ports, 'attack': attack, 'knows': attack_with_key}[how](event, argument)
        sys.stdout.write(line)
        sys.stdout.flush()


if __name__ == '__main__':
    if len(sys.argv) == 3 and sys.argv[1] in ('ports', 'attack', 'knows'):
        between(*sys.argv[1:])
    else:
        common.main(run, limit_s=240)
