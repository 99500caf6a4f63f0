#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""soak.py - guests are moved and forked again and again, while things go wrong

    soak.py [--minutes N] [--seed TEXT] [--from STEP]

Every step is drawn from the seed and its own number: a move, one with fallback=go, or a fork, and
what goes wrong in it: breaks of the link, delays, kills, faults, cancels, processes that are
stopped. After each step exactly one QEMU runs the guest, or none where README says that the guest
is lost. The guest has found its memory right ever since it began, or as of GO when it was taken back;
its disk likewise. Each step is printed before it is done. The same seed draws the same steps; what
wins a race in them is not drawn. A guest that is lost is booted anew. --from begins with that step,
and its guest.

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
from common import Failed, GuestError, say, wait_for
from forked import Child, Clone, check_nothing_left, check_result, snapshot
from resume import here
from road import Road
from soak_guests import Guest, LinuxGuest, alive
from take_back import Fence, io

STEPS_A_GUEST = 12      # then another guest, of other memory
OPTIONS = ('', '', ',prefill=push', ',precopy=1', ',chunk=1M', ',precopy=1,prefill=push')
SLOW = 'dest.prefill=delay:20000@1-80'
KEY = '5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928170\n'
# named points, and what they do there, once; some come before GO and some after it
EARLY = {
    'source': ('source.publish=fail@1', 'source.state=fail@1', 'source.gone=fail@1',
               'source.publish=delay:500000@1'),
    'destination': ('dest.accepted=fail@1', 'dest.pager=fail@1', 'dest.state=fail@1',
                    'dest.ready=fail@1', 'dest.ready=delay:2000000@1'),
}
LATE = {
    'source': ('source.done=fail@1', 'source.running=delay:1000000@1', 'tcp.serve.fault=fail@3',
               'tcp.serve.prefill=fail@2'),
    'destination': ('dest.running=delay:1000000@1', 'dest.install=fail:12@20-60', SLOW, SLOW, SLOW),
}
FINAL = ('failed', 'cancelled', 'completed')


# --- what goes wrong in a move ---

def nothing(*_):
    pass


def breaks(_src, _dst, road, draw):
    for _ in range(draw.randint(1, 4)):
        road.breaks += 1
        time.sleep(draw.uniform(0, 0.4))
        road.close()
        time.sleep(draw.choice((0, 0.05, 0.5, 2)))
        road.open()


def delays(_src, _dst, road, draw):
    road.delay_s = draw.uniform(0.001, 0.02)


def cancel(src, _dst, _road, draw):
    time.sleep(draw.uniform(0, 0.5))
    with contextlib.suppress(GuestError, Failed, OSError):      # too late: refused
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
    except (GuestError, Failed, OSError):
        return
    wait_for('both paused, or all of it over', 30, lambda: all(
        state(g) in ('postcopy-paused', 'gone', *FINAL) for g in (src, dst)))
    if state(dst) == 'postcopy-paused' and side is dst:
        dst.qmp('migrate-recover', uri=here(0))
        port = common.migration(dst)['socket-address'][0]['port']
        src.qmp('migrate', uri=here(port), resume=True)
    elif side is src and state(src) == 'postcopy-paused':
        src.qmp('migrate', uri=here(road.port), resume=True)


WRONG = {'nothing': nothing, 'breaks': breaks, 'delays': delays, 'cancel': cancel,
         'kill the source': kill_source, 'kill the destination': kill_destination,
         'stop a process': stop_one, 'pause by hand': pause_and_recover}


# --- how it ends ---

def state(g):
    """'gone' once the process is."""
    try:
        return common.migration(g).get('status', 'none') if alive(g) else 'gone'
    except (GuestError, Failed, OSError):
        common.wait_for(f'end of {g.name}', 5, lambda: not alive(g))
        return 'gone'


def runs(g):
    try:
        return alive(g) and g.qmp('query-status')['running']
    except (GuestError, Failed, OSError):
        common.wait_for(f'end of {g.name}', 5, lambda: not alive(g))
        return False


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


def ended(src, dst, how):
    """@how it ended, once it has"""
    try:
        return wait_for('end of the move', 90, how)
    except Failed as e:
        raise Failed(f'{e}: source {state(src)}, {src.tail}; destination {state(dst)}, '
                     f'{dst.tail}') from None


def settle(src, dst, may_be_lost):
    end = ended(src, dst, lambda: verdict(src, dst))
    if end == 'lost' and not may_be_lost:
        raise Failed(f'the guest is lost: {state(src)}, {state(dst)}; {src.tail}; {dst.tail}')
    if end == 'stays':
        wait_for('the guest runs at the source', 10, lambda: runs(src))
    if runs(dst if end == 'stays' else src):
        raise Failed(f'it {end}, and the other side runs it')
    if end == 'lost' and alive(src):
        common.check_given_away(src)
    return end


def draw_options(g, draw):
    """Of both ends"""
    options = draw.choice(OPTIONS) + draw.choice(('', f',key-file={g.t.key}'))
    if g.kind == 'memfd' and draw.random() < 0.5:
        options += ',landing=continue'
    return options


def counted(faults, armed, options):
    """What the table has a line for"""
    return (*filter(None, (faults, armed)), *(o.split('=/')[0] for o in options.split(',')[1:]))


def begin(g, dst, road, options, more=''):
    """`migrate` over the road"""
    g.begin(dst)
    uri = common.listen(dst, options=options)
    road.to = int(uri.split(',')[0].rsplit(':', 1)[1])
    g.now.qmp('migrate', uri=here(road.port) + options + more)


def has_moved(g, dst, road):
    src = g.now
    g.chain.append(dst)
    info = common.migration(dst)['x-rdma-postcopy']
    g.t.table['breaks', 'made on the road, in moves that went on'] += road.breaks
    g.t.table['breaks', 'survived, of all kinds'] += info['breaks']
    g.check()
    src.close()


def move(g, draw, note):
    what = draw.choice(tuple(WRONG))
    options = draw_options(g, draw)
    faults, later = (draw.choice(draw.choice((EARLY, LATE, LATE, LATE, LATE))[side])
                     for side in ('destination', 'source'))
    later = draw.choice((None, later))
    src, dst = g.now, g.qemu(incoming=True, faults=','.join(filter(None, (faults, later))))
    dst.armed = later
    note(f'move{options}, {what}; destination {faults}; source {src.armed}')
    with Road(0) as road, contextlib.ExitStack() as ends:
        ends.callback(dst.close)
        begin(g, dst, road, options)
        WRONG[what](src, dst, road, draw)
        end = settle(src, dst, what.startswith('kill'))
        if end == 'moves':
            has_moved(g, dst, road)
            ends.pop_all()
    if end == 'stays':
        g.check()
    return end, f'move, {what}', *counted(faults, src.armed, options)


# --- fallback=go: who is lost is taken back ---

def cut_off(_src, _dst, road, draw):
    time.sleep(draw.uniform(0, 0.8))
    road.close()


def stop_too_long(_src, dst, _road, draw):
    time.sleep(draw.uniform(0, 0.5))
    os.kill(dst.pid, signal.SIGSTOP)
    time.sleep(LEASE_S + 0.5)
    with contextlib.suppress(ProcessLookupError):       # Linux has killed it
        os.kill(dst.pid, signal.SIGCONT)


LEASE_S = 3
AWAY = {'nothing': nothing, 'breaks': breaks, 'kill the destination': kill_destination,
        'cut off': cut_off, 'stop the destination': stop_too_long}
DEADLY = ('dest.state=kill', 'dest.ready=kill', 'dest.go=kill', 'dest.run=kill',
          'dest.running=kill', 'dest.prefill=kill@3', 'dest.install=kill@20',
          'dest.lease=kill@2,' + SLOW)


def fate(src, dst, cut):
    """As verdict(), and 'away': the source has let go, and nobody is there"""
    s, d = state(src), state(dst)
    if s in ('failed', 'cancelled'):
        return 'stays'
    if s == 'completed':
        return 'moves' if d == 'completed' else 'lost' if d == 'gone' else None
    return 'away' if s == 'postcopy-paused' and (d == 'gone' or cut) else None


def is_back(src):
    """It is over: True; False: the destination has every page, which the source knows"""
    info = common.migration(src)
    if 'for good' in info.get('error-desc', ''):
        return False, info
    return (True, info) if info['status'] == 'failed' else None


def take_back(src, dst, road, fence):
    """'back'; the destination may live, and does not run it. Or it was complete."""
    common.check_given_away(src)
    src.qmp('x-rdma-postcopy-take-back', uri=here(road.port))
    done, info = wait_for('guest that is taken back', 60, lambda: is_back(src))
    if not done:
        road.open()
        wait_for('end of the move', 60, lambda: state(src) == 'completed')
        return 'lost' if state(dst) == 'gone' else 'moves'
    if 'taken back' not in info['error-desc'] or not fence.was_run():
        raise Failed(f'{src.name}: {info["error-desc"]}; fence {fence.was_run()}')
    wait_for('the guest runs at the source', 10, lambda: runs(src))
    if runs(dst):
        raise Failed('it was taken back, and the destination runs it')
    return 'back'


def fallback(g, draw, note):
    what, options = draw.choice((*AWAY, 'dies')), draw_options(g, draw)
    faults = draw.choice(DEADLY if what == 'dies' else (SLOW, 'dest.prefill=delay:1000000@1-6'))
    src, fence, written = g.now, Fence(g.t, g.name()), {}
    dst = g.qemu(incoming=True, faults=faults, disk=g.disk and g.image(behind=g.top()))
    note(f'fallback=go{options}, {what}; destination {faults}; source {src.armed}')
    with Road(0) as road, contextlib.ExitStack() as ends:
        ends.callback(dst.close)
        begin(g, dst, road, options, fence.options(LEASE_S))
        if g.disk:
            with contextlib.suppress(Failed, GuestError, OSError):  # forgotten, if that comes back
                wait_for('guest that runs there', 3, lambda: runs(dst))
                io(dst, *(f'write -P 0 {place * 64}k 64k' for place in g.holds))
                written = dict.fromkeys(g.holds, 0)
        AWAY.get(what, nothing)(src, dst, road, draw)
        end = ended(src, dst, lambda: fate(src, dst, what == 'cut off'))
        if end == 'away':
            end = take_back(src, dst, road, fence)
        elif fence.was_run():
            raise Failed(f'it {end}, and the fence was run')
        if end == 'moves':
            g.holds = written
            has_moved(g, dst, road)
            ends.pop_all()
        elif end == 'lost' and what == 'cut off':
            raise Failed(f'the guest is lost: {state(src)}, {state(dst)}; {src.tail}; {dst.tail}')
    if end in ('stays', 'back'):
        wait_for('the guest runs at the source', 10, lambda: runs(src))
        g.check()
    return end, f'fallback=go, {what}', *counted(faults, src.armed, options)


# --- forks ---

def kill_agent(g, c):
    """One of them: its children end with it"""
    for pid, argv in forked.processes_of(c.base):
        if b'agent' in argv:
            os.kill(pid, signal.SIGKILL)
            return


def kill_holder(g, c):
    """Who has the image"""
    for e in forked.exports_at(g.now.second)[:1]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(e['holder-pid'], signal.SIGKILL)


def signal_it(number):
    return lambda _, c: c.proc.send_signal(number)


ENDS = {'nothing': None, 'SIGINT': signal_it(signal.SIGINT), 'SIGTERM': signal_it(signal.SIGTERM),
        'SIGKILL': signal_it(signal.SIGKILL), 'kill an agent': kill_agent,
        'kill the holder': kill_holder}


class Fork(Clone):
    def __exit__(self, *exc):
        super().__exit__(*exc)
        forked.kill(self.base, self.name)


def fork(g, draw, note):
    n, end, after = draw.randint(1, 3), draw.choice(tuple(ENDS)), draw.uniform(0, 1)
    note(f'fork {n}, {end} after {after:.2f} s')
    before = snapshot(g.now)
    name = g.name()
    with Fork(g.t, g.now.second, n, rundir='run-' + name, name=name) as c:
        c.name = name
        if ENDS[end]:
            time.sleep(after)
            ENDS[end](g, c)
            c.end()
        else:
            check_result(c, 0, {'complete': n})
            for child in [Child(row, g.now) for row in c.children]:
                child.check(before)
    check_nothing_left(c)
    g.check()
    return 'runs on', f'fork, {end}'


# --- steps ---

def step(guest, draw, note):
    """What is drawn depends on nothing that came before it, but for which guest it is."""
    what = draw.choice((move, move, fork, fallback))
    if not guest.forks and what is not move:
        what = move         # what a guest has reported is not taken back
    return what(guest, draw, note)


def steps(t, seed, minutes, number):
    end, guest, kept = time.monotonic() + 60 * minutes, None, None
    try:
        while time.monotonic() < end:
            which = number - number % STEPS_A_GUEST
            if kept != which:
                if guest:
                    guest.close()
                draw = random.Random(f'{seed}/guest {which}')
                guest, kept = draw.choice((Guest, Guest, Guest, LinuxGuest))(t, number, draw), which
                say(f'guest of step {which}: {type(guest).__name__}, {guest.about}')
            guest.mark(number)
            how, *what = step(guest, random.Random(f'{seed}/{number}'),
                              lambda text, n=number: say(f'step {n}: {text}'))
            say(f'      {how}')
            t.table.update((w, how) for w in what)
            number += 1
            if how == 'lost':
                kept = None
    finally:
        if guest:
            guest.close()


def main():
    p = argparse.ArgumentParser(description='Move and fork a guest while things go wrong.')
    p.add_argument('--minutes', type=float, default=30, help='(default: %(default)s)')
    p.add_argument('--seed', default=str(int(time.time())), help='(default: the time)')
    p.add_argument('--from', type=int, default=0, dest='first', metavar='STEP')
    args = p.parse_args()

    def run(t):
        t.table, t.key = collections.Counter(), os.path.join(t.work, 'key')
        with open(os.open(t.key, os.O_WRONLY | os.O_CREAT, 0o600), 'w', encoding='ascii') as f:
            f.write(KEY)
        say(f'seed {args.seed}')
        with t.case(f'soak, seed {args.seed}, {args.minutes} minutes'):
            try:
                steps(t, args.seed, args.minutes, args.first)
            finally:
                for (what, how), n in sorted(t.table.items()):
                    say(f'      {n:5}  {what}: {how}')
    common.main(run, int(60 * args.minutes) + 600)


if __name__ == '__main__':
    main()
