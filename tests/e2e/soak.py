#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""soak.py - guests are moved and forked again and again, while things go wrong

    soak.py [--minutes N] [--seed TEXT]

Every step is drawn from the seed and its own number: a move, or a fork, and what goes wrong in it:
breaks of the link, kills, faults, cancels, processes that are stopped. After each step exactly one
QEMU runs the guest, or none where README says that the guest is lost, and the guest has found its
memory right ever since it began. Each step is printed before it is done. The same seed draws the
same steps; what wins a race in them is not drawn.

Ends with 1 at the first thing that is wrong. The table of what was done, and how it ended, is
printed in any case.
"""
import argparse
import collections
import contextlib
import os
import random
import signal
import time

import common
import forked
from common import Failed, GuestError, Micro, say, wait_for
from forked import LOAD, Child, Clone, check_nothing_left, check_result, snapshot
from resume import here
from road import Road

MIB = 64
STEPS_A_GUEST = 12      # then another guest, of other memory
NEED = ('mem', 'counter', 'disk')
KINDS = ('anon', 'anon', 'memfd', 'memfd', 'hugetlb')
OPTIONS = ('', '', ',prefill=push', ',precopy=1', ',chunk=1M', ',precopy=1,prefill=push')
SLOW = 'dest.prefill=delay:20000@1-80'
# named points, and what they do there, once; some come before GO and some after it
FAULTS = {
    'source': ('source.publish=fail@1', 'source.state=fail@1', 'source.gone=fail@1',
               'source.publish=delay:500000@1', 'source.running=delay:1000000@1',
               'tcp.serve.fault=fail@3', 'tcp.serve.prefill=fail@2'),
    'destination': ('dest.accepted=fail@1', 'dest.pager=fail@1', 'dest.state=fail@1',
                    'dest.ready=fail@1', 'dest.ready=delay:2000000@1',
                    'dest.running=delay:1000000@1', 'dest.install=fail:12@20-60'),
}
FINAL = ('failed', 'cancelled', 'completed')


class Guest:
    """The QEMUs that have run one micro guest, the last of which runs it."""
    forks = True

    def __init__(self, t, number, draw):
        self.t, self.number, self.count = t, number, 0
        self.boot(draw)
        self.about = f'{self.kind}, {self.smp} CPUs, {self.accel}'

    def boot(self, draw):
        self.accel, self.kind = draw.choice(self.t.accels()), draw.choice(KINDS)
        self.smp = draw.choice((1, 1, 2))
        if self.kind == 'hugetlb':
            self.t.reserve_huge(7 * MIB)        # it, where it goes, three children, what they write
        self.chain = [self.qemu()]
        self.now.__enter__()
        self.now.start_load()

    @property
    def now(self):
        return self.chain[-1]

    def name(self):
        self.count += 1
        return f'guest{self.number}-{self.count}'

    def qemu(self, **more):
        name = self.name()
        second = os.path.join(self.t.work, name + '.second')
        q = Micro(self.t, name, self.accel, self.kind, MIB, smp=self.smp, load=LOAD,
                  extra=('-qmp', f'unix:{second},server=on,wait=off'), **more)
        q.second = second
        q.armed = None          # a fault of its own, as a source
        return q

    def begin(self, dst):
        dst.__enter__()

    def check(self):
        common.check_ledger(*self.chain, sweeps=1)

    def close(self):
        self.now.close()


class LinuxGuest(Guest):
    """Linux, which checks its memory and its disk itself; it is moved, and not forked."""
    forks = False

    def boot(self, draw):
        self.accel, self.kind, self.smp = 'tcg', draw.choice(('anon', 'memfd')), 1
        self.settings = common.linux_settings(self.t, f'linux{self.number}', memory=self.kind)
        self.chain = [self.qemu()]
        self.now.start()
        common.linux_boot(self.now)

    def qemu(self, incoming=False, faults=None):
        q = common.Linux(None, self.settings, self.name())
        q.armed, q.how = None, (incoming, faults)
        return q

    def begin(self, dst):
        dst.start(*dst.how)

    def check(self):
        common.linux_progress(self.settings, NEED)
        common.linux_check(self.settings, NEED, 120000)     # what is paused is silent


# --- what goes wrong in a move ---

def nothing(*_):
    pass


def breaks(_src, _dst, road, draw):
    for _ in range(draw.randint(1, 4)):
        time.sleep(draw.uniform(0, 0.4))
        road.close()
        time.sleep(draw.choice((0, 0.05, 0.5, 2)))
        road.open()


def cancel(src, _dst, _road, draw):
    time.sleep(draw.uniform(0, 0.5))
    with contextlib.suppress(GuestError, Failed):       # too late: refused
        src.qmp('migrate_cancel')


def kill_source(src, _dst, _road, draw):
    time.sleep(draw.uniform(0, 0.8))
    os.kill(src.pid, signal.SIGKILL)


def kill_destination(_src, dst, _road, draw):
    time.sleep(draw.uniform(0, 0.8))
    os.kill(dst.pid, signal.SIGKILL)


def stop_one(src, dst, _road, draw):
    pid = draw.choice((src, dst)).pid
    time.sleep(draw.uniform(0, 0.5))
    os.kill(pid, signal.SIGSTOP)
    time.sleep(draw.uniform(0.1, 3))
    os.kill(pid, signal.SIGCONT)


def pause_and_recover(src, dst, road, draw):
    """By hand: whoever is asked too early refuses, and nothing happens."""
    time.sleep(draw.uniform(0, 0.6))
    side = draw.choice((src, dst))
    try:
        side.qmp('migrate-pause')
    except (GuestError, Failed):
        return
    wait_for('both paused, or all of it over', 30, lambda: all(
        common.migration(g)['status'] in ('postcopy-paused', *FINAL) for g in (src, dst)))
    if common.migration(dst)['status'] == 'postcopy-paused' and side is dst:
        port = common.free_port()
        dst.qmp('migrate-recover', uri=here(port))
        src.qmp('migrate', uri=here(port), resume=True)
    elif side is src and common.migration(src)['status'] == 'postcopy-paused':
        src.qmp('migrate', uri=here(road.port), resume=True)


WRONG = {'nothing': nothing, 'breaks': breaks, 'cancel': cancel, 'kill the source': kill_source,
         'kill the destination': kill_destination, 'stop a process': stop_one,
         'pause by hand': pause_and_recover}


# --- how it ends ---

def alive(g):
    return forked.alive(g.pid)


def state(g):
    """'gone' once the process is."""
    try:
        return common.migration(g).get('status', 'none') if alive(g) else 'gone'
    except (GuestError, Failed, OSError):
        common.wait_for(f'end of {g.name}', 5, lambda: not alive(g))
        return 'gone'


def runs(g):
    return alive(g) and g.qmp('query-status')['running']


def verdict(src, dst):
    """'moves', 'stays', 'lost', or None as long as it is not over."""
    s, d = state(src), state(dst)
    if s in ('failed', 'cancelled'):
        return 'stays'
    if d == 'completed':
        return 'moves'
    if s == 'gone' and d in ('gone', 'setup', 'postcopy-paused'):
        return 'lost'           # with its source: as without a move, or for want of its pages
    if d == 'gone' and s in ('completed', 'postcopy-paused'):
        return 'lost'           # it ran there
    return None


def settle(src, dst, may_be_lost):
    try:
        end = wait_for('end of the move', 90, lambda: verdict(src, dst))
    except Failed as e:
        raise Failed(f'{e}: source {state(src)}, {src.tail}; destination {state(dst)}, '
                     f'{dst.tail}') from None
    if end == 'lost' and not may_be_lost:
        raise Failed(f'the guest is lost: {state(src)}, {state(dst)}; {src.tail}; {dst.tail}')
    if end == 'stays':
        wait_for('the guest runs at the source', 10, lambda: runs(src))
    if runs(dst if end == 'stays' else src):
        raise Failed(f'it {end}, and the other side runs it')
    if end == 'lost' and alive(src):
        common.check_given_away(src)
    return end


def move(g, draw, note):
    what = draw.choice(tuple(WRONG))
    options = draw.choice(OPTIONS)
    if g.kind == 'memfd' and draw.random() < 0.5:
        options += ',landing=continue'
    faults = draw.choice((*FAULTS['destination'], *4 * [SLOW]))
    later = draw.choice((*FAULTS['source'], *3 * [None]))
    src, dst = g.now, g.qemu(incoming=True, faults=','.join(filter(None, (faults, later))))
    dst.armed = later
    note(f'move{options}, {what}; destination {faults}; source {src.armed}')
    with Road(0) as road, contextlib.ExitStack() as ends:
        ends.callback(dst.close)
        g.begin(dst)
        uri = common.listen(dst, options=options)
        road.to = int(uri.split(',')[0].rsplit(':', 1)[1])
        src.qmp('migrate', uri=here(road.port) + options)
        WRONG[what](src, dst, road, draw)
        end = settle(src, dst, what.startswith('kill'))
        if end == 'moves':
            ends.pop_all()
            g.chain.append(dst)
            g.check()
            src.close()
    if end == 'stays':
        g.check()
    return end, f'move, {what}', *filter(None, (faults, src.armed))


# --- forks ---

def fork(g, draw, note):
    n, end = draw.randint(1, 3), draw.choice((None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
    after = draw.uniform(0, 1)
    note(f'fork {n}, {end.name + f" after {after:.2f} s" if end else "nothing"}')
    before = snapshot(g.now)
    with Clone(g.t, g.now.second, n, rundir=f'run{g.number}-{g.count}') as c:
        g.count += 1
        if end:
            time.sleep(after)
            c.proc.send_signal(end)
            c.end()
        else:
            check_result(c, 0, {'complete': n})
            for child in [Child(row, g.now) for row in c.children]:
                child.check(before)
    check_nothing_left(c)
    g.check()
    return 'runs on', f'fork, {end.name if end else "nothing"}'


# --- steps ---

def steps(t, seed, minutes, table):
    end, number, guest, left = time.monotonic() + 60 * minutes, 0, None, 0
    try:
        while time.monotonic() < end:
            draw = random.Random(f'{seed}/{number}')
            number += 1
            if not left:
                if guest:
                    guest.close()
                guest = draw.choice((Guest, Guest, Guest, LinuxGuest))(t, number, draw)
                left = STEPS_A_GUEST
                say(f'guest {number}: {type(guest).__name__}, {guest.about}')
            left -= 1
            # an armed fault would break a fork's link, and agents do not resume
            forks = guest.forks and not guest.now.armed
            how, *what = draw.choice((move, move, move, fork if forks else move))(
                guest, draw, lambda text, n=number: say(f'step {n}: {text}'))
            say(f'      {how}')
            table.update((w, how) for w in what)
            if how == 'lost':
                left = 0
    finally:
        if guest:
            guest.close()


def main():
    p = argparse.ArgumentParser(description='Move and fork a guest while things go wrong.')
    p.add_argument('--minutes', type=float, default=30, help='(default: %(default)s)')
    p.add_argument('--seed', default=str(int(time.time())), help='(default: the time)')
    args = p.parse_args()
    table = collections.Counter()

    def run(t):
        say(f'seed {args.seed}')
        with t.case(f'soak, seed {args.seed}, {args.minutes} minutes'):
            try:
                steps(t, args.seed, args.minutes, table)
            finally:
                for (what, how), n in sorted(table.items()):
                    say(f'      {n:5}  {what}: {how}')
    common.main(run, int(60 * args.minutes) + 600)


if __name__ == '__main__':
    main()
