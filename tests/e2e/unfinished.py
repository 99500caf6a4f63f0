#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""unfinished.py - a vmclone that is killed before the freeze: what it made is listed, and goes

It runs qemu-img for each overlay of the parent; one that ends its vmclone does so at an exact moment.
Limit: 100 s.
"""
import glob
import json
import os
import shutil
import signal
import stat

import common
from common import Failed, wait_for
from farfork_move import listed
from fork_fails import DiskParent, Fork, script
from forked import check_nothing_left, check_result, kill, run_vmclone


def path_with(t, name, text):
    """PATH with a qemu-img that does this before it makes the Nth overlay of the parent."""
    folder = os.path.join(t.work, name)
    os.mkdir(folder)
    script(t, os.path.join(name, 'qemu-img'),
           f'case "$*" in *" /proc/self/fd/"*) test -e {folder}/n || echo 0 > {folder}/n\n'
           f'N=$(($(cat {folder}/n) + 1)); echo $N > {folder}/n\n{text};; esac\n'
           f'exec {shutil.which("qemu-img")} "$@"\n')
    return folder + ':' + os.environ['PATH']


class PathFork(Fork):
    """With a PATH of its own."""

    def __init__(self, t, path, *args, **more):
        before = os.environ['PATH']
        os.environ['PATH'] = path
        try:
            super().__init__(t, *args, **more)
        finally:
            os.environ['PATH'] = before


def check_listed(base, parent):
    """The fork and nothing else, with names that are beside the images."""
    rows = listed(base)
    if [[r['id'], r['agent_alive'], r['children']] for r in rows] != [['f', False, []]]:
        raise Failed(f'--list: {rows}')
    names = [o['overlay'] for o in rows[0]['unfinished']]
    if len(names) != 2 or not set(overlays(parent)) <= set(names):
        raise Failed(f'--list: {names}, there is {overlays(parent)}')
    said = run_vmclone('--list', '--rundir', base).stdout
    if 'unfinished' not in said or not all(n in said for n in names):
        raise Failed(f'--list: {said}')
    return names


def overlays(parent):
    return glob.glob(parent.folder + '/*.fork-*')


def want_kill(base, code, *texts):
    out = kill(base, 'f')
    if out.returncode != code or not all(x in out.stdout for x in texts):
        raise Failed(f'--kill: {out.returncode}, want {code} and {texts}: {out.stdout}')


def killed(t, accel, run):
    """At the first qemu-img a file is there; at the second one the parent has a node of the first."""
    path = path_with(t, f'kills{run}', f'test $N != {run} || kill -KILL $PPID')
    with DiskParent(t, accel, memory='memfd') as parent:
        parent.start_load()
        with PathFork(t, path, parent, 2) as c:
            if c.proc.wait(timeout=60) != -signal.SIGKILL:
                raise Failed(f'vmclone ended with {c.proc.returncode}')
            wait_for('end of its agent', 20, lambda: len(listed(c.base)) == 1)
            check_listed(c.base, parent)
            if not overlays(parent) or (len(parent.all_nodes()) > len(parent.nodes)) != (run == 2):
                raise Failed(f'killed too early: {overlays(parent)} {parent.all_nodes()}')
            want_kill(c.base, 0)
            parent.as_before()
            check_nothing_left(c, parent)
        with Fork(t, parent, 1) as c:
            check_result(c, 0, {'complete': 1})
            kill(c.base, 'f')


def parent_gone(t, accel):
    """It never wrote to them."""
    path = path_with(t, 'gone', 'test $N != 2 || kill -KILL $PPID')
    with DiskParent(t, accel, memory='memfd') as parent:
        parent.start_load()
        with PathFork(t, path, parent, 1) as c:
            c.proc.wait(timeout=60)
            wait_for('end of its agent', 20, lambda: len(listed(c.base)) == 1)
            os.kill(parent.proc.pid, signal.SIGKILL)
            parent.proc.wait(timeout=20)
            want_kill(c.base, 0)
            if overlays(parent):
                raise Failed(f'left: {overlays(parent)}')
            check_nothing_left(c)


def asked(t, accel):
    """Killed when it had asked for the freeze: overlays that are disks of the parent stay."""
    path = path_with(t, 'gated', f'while test $N = 2 -a ! -e {t.work}/go; do sleep 0.05; done')
    record = os.path.join(t.work, 'run/.vmclone/f/_new/state.json')
    with DiskParent(t, accel, memory='memfd') as parent:
        parent.start_load()
        with PathFork(t, path, parent, 1) as c:
            wait_for('the record', 40, lambda: os.path.exists(record) and len(overlays(parent)) == 2)
            with open(record, encoding='utf-8') as f:
                state = json.load(f)
            if stat.S_IMODE(os.stat(record).st_mode) != 0o600 or [
                    r for r in listed(c.base) if 'unfinished' in r]:
                raise Failed(f'of a fork that is being made: {listed(c.base)}')
            common.write_file(os.path.join(t.work, 'go'), '')
            check_result(c, 0, {'complete': 1})
            if os.path.exists(record):
                raise Failed('the fork is made, and called unfinished')
            kill(c.base, 'f')
            for gone in False, True:
                os.makedirs(os.path.dirname(record), 0o700)
                common.write_file(record, json.dumps({**state, 'asked': True}))
                os.chmod(os.path.dirname(os.path.dirname(record)), 0o700)
                if gone:
                    os.kill(parent.proc.pid, signal.SIGKILL)
                    parent.proc.wait(timeout=20)
                want_kill(c.base, int(gone), *(overlays(parent) + ['has ended'] if gone else []))
                if len(overlays(parent)) != 2:
                    raise Failed(f'the parent\'s disks: {overlays(parent)}')
                check_nothing_left(c, None if gone else parent)


def run(t):
    accel = t.best_accel()
    for name, case in (('killed at the first overlay', lambda: killed(t, accel, 1)),
                       ('killed at the second one', lambda: killed(t, accel, 2)),
                       ('and the parent ends', lambda: parent_gone(t, accel)),
                       ('killed when it had asked', lambda: asked(t, accel))):
        with t.case(name):
            case()
        console = os.path.join(t.work, 'parent.console')
        if os.path.exists(console):
            os.unlink(console)


if __name__ == '__main__':
    common.main(run, limit_s=100)
