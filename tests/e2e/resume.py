#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""resume.py - the link breaks when the guest has moved, and the move goes on over another

By itself, by migrate-recover and migrate with resume, after GO was lost, at the end, again and
again; and what commands do while there is no link. Each move ends with a guest that finds its
memory right, and has run on one side alone. Limit: 300 s.
"""
import json
import os
import socket
import time

import common
from break_after_go import silent
from common import Failed, Micro, check_ledger, hmp, say, wait_for
from memory import Memory
from quit import quit_and_code, quits_without_waking
from road import Road

MIB = 64
SLOW = 'dest.prefill=delay:100000@1-60'     # then it gets on
SLOWER = 'dest.prefill=delay:100000'
BREAKS = 12


def pair(t, name, accel, memory_kind='anon', faults='slow', source_faults=None, extra=()):
    faults = {'slow': SLOW, 'slower': SLOWER}.get(faults, faults)
    return (Micro(t, name + '-a', accel, memory_kind, MIB, faults=source_faults),
            Micro(t, name + '-b', accel, memory_kind, MIB, incoming=True, faults=faults,
                  extra=extra))


def here(port, options=''):
    return f'rdma-postcopy:{common.place.host}:{port}{common.place.options}{options}'


def begin(src, dst, options='', by=None):
    """Move until the guest runs at the destination, and little of its memory is there. The URI."""
    src.start_load()
    uri = common.listen(dst, options=options)
    if by:
        by.to = int(uri.split(',')[0].rsplit(':', 1)[1])
        uri = here(by.port)
    src.qmp('migrate', uri=uri + options)
    for g in (dst, src):
        common.wait_migration(g, 'postcopy-active')
    present(dst, 4)
    return uri


def present(dst, mib):
    """So many MiB more have come."""
    def now():
        return common.migration(dst)['x-rdma-postcopy']['present-bytes']
    had = now()
    wait_for(f'{mib} MiB more', 60, lambda: now() >= had + (mib << 20))


def state(guest, want, limit_s=20):
    """query-migrate once it says so, whatever it says until then"""
    return wait_for(f'{guest.name}: {want}', limit_s,
                    lambda: (m := common.migration(guest)).get('status') == want and m)


def both_paused(src, dst):
    for g in (src, dst):
        info = state(g, 'postcopy-paused')
        if not info.get('error-desc'):
            raise Failed(f'{g.name}: paused without a reason')
        say(f'      {g.name}: {info["error-desc"]}')
    x = common.migration(dst)['x-rdma-postcopy']
    if x['present-bytes'] >= x['total-bytes']:
        raise Failed('all memory was there before the break: slow prefill down more')
    common.check_given_away(src)


def is_resumed(src, dst, times=1):
    """All is there, after so many breaks, and each side said what QEMU's own post-copy says"""
    for g in (src, dst):
        info = state(g, 'completed', 60)
        if info.get('error-desc'):
            raise Failed(f'{g.name}: complete, and says {info["error-desc"]}')
        x = info['x-rdma-postcopy']
        if x['breaks'] != times or not x['paused-time']:
            raise Failed(f'{g.name}: {x["breaks"]} breaks, {x["paused-time"]} ns (want {times})')
        names = common.event_names(g)
        common.in_order(names, ['postcopy-active', *times * ['postcopy-paused', 'postcopy-recover',
                                                             'postcopy-active'], 'completed'],
                        g.name)
    common.check_given_away(src)
    check_ledger(src, dst)


def pause(guest):
    guest.qmp('migrate-pause')


def resume(src, uri):
    src.qmp('migrate', uri=uri, resume=True)


# --- by itself ---

def alone(t, accel, kind, side):
    src, dst = pair(t, f'alone-{accel}-{kind}', accel, kind)
    with src, dst:
        begin(src, dst, ',landing=continue' if kind == 'memfd' else '')
        common.break_link(src if side == 'source' else dst)
        is_resumed(src, dst)


def again_and_again(t, accel):
    src, dst = pair(t, 'often', accel, faults='slower')
    with src, dst:
        begin(src, dst, ',chunk=1M')
        for i in range(BREAKS):
            common.break_link((src, dst)[i % 2])
            wait_for(f'break {i + 1} is over', 20, lambda n=i + 1: all(
                common.event_names(g).count('postcopy-recover') == n
                and common.migration(g)['status'] == 'postcopy-active' for g in (src, dst)))
            present(dst, 1)
        is_resumed(src, dst, BREAKS)


def road_closed(t, accel):
    """For a while nobody gets through. Monitors answer, and commands that could do harm do none."""
    src, dst = pair(t, f'road-{accel}', accel)
    with src, dst, Road(0) as road:
        begin(src, dst, by=road)
        road.close()
        both_paused(src, dst)
        silent(dst, 'much of its memory is missing')
        for g in (src, dst):
            hmp(g, 'info migrate')
            hmp(g, 'info status')
            g.qmp('query-cpus-fast')
        common.refuses(src, 'cannot cancel', 'migrate_cancel')
        common.refuses(dst, '', 'migrate', uri='rdma-postcopy:127.0.0.1:1')
        common.refuses(src, '', 'migrate', uri='rdma-postcopy:127.0.0.1:1')
        both_paused(src, dst)
        road.open()
        is_resumed(src, dst)


# --- by hand ---

def paused_at_source(t, accel):
    src, dst = pair(t, 'hand-src', accel)
    with src, dst:
        uri = begin(src, dst)
        pause(src)
        both_paused(src, dst)
        silent(dst, 'much of its memory is missing')    # longer than it would take by itself
        both_paused(src, dst)
        resume(src, uri)
        is_resumed(src, dst)


def paused_at_destination(t, accel):
    """The source tries all the time; it finds who listens again at the same address."""
    src, dst = pair(t, 'hand-dst', accel)
    with src, dst:
        uri = begin(src, dst)
        pause(dst)
        both_paused(src, dst)
        silent(dst, 'much of its memory is missing')
        both_paused(src, dst)
        dst.qmp('migrate-recover', uri=uri)
        is_resumed(src, dst)


def elsewhere(t, accel):
    """To another port; the link that breaks after that comes back there too."""
    src, dst = pair(t, f'port-{accel}', accel, faults='slower')
    with src, dst:
        old = begin(src, dst)
        pause(src)
        both_paused(src, dst)
        common.refuses(dst, 'rdma-postcopy', 'migrate-recover', uri='tcp:127.0.0.1:0')
        common.refuses(dst, 'PORT', 'migrate-recover', uri='rdma-postcopy:127.0.0.1:x')
        dst.qmp('migrate-recover', uri=old)             # where it listens by now
        dst.qmp('migrate-recover', uri=here(0))
        port = int(common.migration(dst)['socket-address'][0]['port'])
        if here(port) == old:
            raise Failed('it listens at the same port')
        common.refuses(src, 'PORT', 'migrate', uri='rdma-postcopy:127.0.0.1:x', resume=True)
        both_paused(src, dst)
        resume(src, here(port))
        for g in (src, dst):
            wait_for('resumed', 20, lambda g=g: 'postcopy-recover' in common.event_names(g))
        common.break_link(dst)
        is_resumed(src, dst, 2)


def time_is_up(t, accel):
    """Both gave up waiting by themselves; nothing is lost by that."""
    src, dst = pair(t, 'late', accel)
    with src, dst, Road(0) as road:
        begin(src, dst, ',reconnect=1', by=road)
        road.close()
        both_paused(src, dst)
        for g in (src, dst):
            wait_for('advice', 20, lambda g=g: 'migrate-recover' in
                     common.migration(g)['error-desc'])
        both_paused(src, dst)
        road.open()
        silent(dst, 'nobody connects by himself now')
        both_paused(src, dst)
        resume(src, here(road.port))
        is_resumed(src, dst)


def never(t, accel):
    """reconnect=0: as if there were no resuming"""
    src, dst = pair(t, 'never', accel)
    with src, dst:
        uri = begin(src, dst, ',reconnect=0')
        for g in (src, dst):
            common.refuses(g, 'reconnect=0', 'migrate-pause')
        common.break_link(src)
        both_paused(src, dst)
        common.refuses(src, 'no other can begin', 'migrate', uri=uri, resume=True)
        common.refuses(dst, 'reconnect=0', 'migrate-recover', uri=uri)


class OutOfBand:
    """A second monitor of @guest, which answers while its main thread does not."""

    def __init__(self, path):
        self.path = path
        self.options = ['-qmp', f'unix:{path},server=on,wait=off']
        self.file = None

    def connect(self):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(20)
        s.connect(self.path)
        self.file = s.makefile('rw')
        self.say({'execute': 'qmp_capabilities', 'arguments': {'enable': ['oob']}})

    def takes(self, command):
        """Whether it does what it is told"""
        try:
            self.say(command)
        except Failed:
            return False
        return True

    def say(self, command):
        self.file.write(json.dumps(command) + '\n')
        self.file.flush()
        while True:
            answer = json.loads(self.file.readline())
            if 'error' in answer:
                raise Failed(f'{command}: {answer["error"]}')
            if 'return' in answer:
                return


def missing_page(dst):
    """The address in the guest of a page that has not come"""
    m = Memory(dst)
    try:
        start, size, _ = m.blocks['pc.ram']
        there = m.present(start, size // common.PAGE)
    finally:
        m.close()
    # the guest fills its memory from the bottom: what is high and below its end was touched
    page = max(i for i, is_there in enumerate(there) if not is_there and i < len(there) * 3 // 4)
    return page * common.PAGE


def ask_for(dst, address):
    """Its main thread reads what is there, and waits for it."""
    dst.qmp_sock.sendall(json.dumps({
        'execute': 'human-monitor-command',
        'arguments': {'command-line': f'xp /1gx {address:#x}'}}).encode() + b'\n')
    wait_for('main thread that waits for memory', 20, lambda: waits(dst))


def answer_of(dst):
    answer = dst._message()                             # pylint: disable=protected-access
    while 'event' in answer:
        dst.events.append(answer)
        answer = dst._message()                         # pylint: disable=protected-access
    say(f'      {answer["return"].strip()}')


def main_thread_waits(t, accel):
    """It waits for a page with QEMU's big lock; out of band the move can be resumed."""
    oob = OutOfBand(os.path.join(t.work, f'oob-{accel}'))
    src, dst = pair(t, f'oob-{accel}', accel, extra=oob.options)
    with src, dst:
        oob.connect()
        uri = begin(src, dst, ',prefill=off')
        pause(dst)
        both_paused(src, dst)
        ask_for(dst, missing_page(dst))
        oob.say({'exec-oob': 'migrate-pause'})
        oob.say({'exec-oob': 'migrate-recover', 'arguments': {'uri': uri}})
        answer_of(dst)
        for g in (src, dst):
            state(g, 'postcopy-active')
        if quit_and_code(dst, 30) != 1:                 # prefill=off: it does not fetch the rest
            raise Failed(f'{dst.name}: {dst.tail}')


def waits_as_it_begins(t, accel):
    """It waits for a page when GO comes, and the link breaks: the guest begins over another."""
    oob = OutOfBand(os.path.join(t.work, f'oob-go-{accel}'))
    mark = os.path.join(t.work, f'no-go-{accel}')
    src, dst = pair(t, f'oob-go-{accel}', accel, faults=None, extra=oob.options,
                    source_faults='source.go=delay:3000000@1')
    with src, dst, Road(0) as road:
        oob.connect()
        src.start_load()
        uri = common.listen(dst, options=f',until-go={mark}')
        road.to = int(uri.split(',')[0].rsplit(':', 1)[1])
        src.qmp('migrate', uri=here(road.port))
        common.wait_migration(src, 'postcopy-active')   # GO is next
        address = missing_page(dst)
        road.stall()                                    # pages do not get through; GO does
        ask_for(dst, address)
        if not os.path.exists(mark):
            raise Failed('GO came before its main thread waited: delay it more')
        wait_for('GO', 20, lambda: not os.path.exists(mark))
        if not waits(dst):
            raise Failed('its main thread does not wait as GO comes')
        wait_for('a pause', 20, lambda: oob.takes({'exec-oob': 'migrate-pause'}))
        wait_for('paused destination', 20, lambda: oob.takes(
            {'exec-oob': 'migrate-recover', 'arguments': {'uri': uri}}))
        answer_of(dst)
        for g in (src, dst):
            state(g, 'completed', 60)
        common.check_given_away(src)
        check_ledger(src, dst)


def waits(guest):
    with open(f'/proc/{guest.pid}/task/{guest.pid}/wchan', encoding='ascii') as f:
        return f.read().strip() == 'handle_userfault'


# --- GO, and the end ---

def go_lost(t, accel):
    """The destination says that it never came: the guest goes on at the source, and can be moved."""
    src, dst = pair(t, 'lost', accel, source_faults='source.gone=fail@1')
    with src, dst, Micro(t, 'lost-c', accel, mem_mib=MIB, incoming=True) as good:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        said = state(src, 'failed')['error-desc']
        say(f'      source: {said}')
        if dst.exit_code(20) != 1 or 'nothing ran here' not in dst.tail or dst.log().lines:
            raise Failed(f'{dst.name}: {dst.proc.returncode}: {dst.tail}')
        common.check_still_running(src)
        common.check_move(common.move(src, good))
        check_ledger(src, good)


def go_lost_for_long(t, accel):
    """Nobody runs the guest until they can talk; the source's time is up before."""
    src, dst = pair(t, 'long', accel,
                    source_faults='source.go=delay:2000000@1,source.gone=fail@1')
    with src, dst, Road(0) as road:
        src.start_load()
        uri = common.listen(dst, options=',reconnect=1')
        road.to = int(uri.split(',')[0].rsplit(':', 1)[1])
        src.qmp('migrate', uri=here(road.port, ',reconnect=1'))
        common.wait_migration(src, 'postcopy-active')   # GO is next
        road.refuse()
        for g in (src, dst):
            wait_for('advice', 20, lambda g=g: 'migrate-recover' in
                     common.migration(g).get('error-desc', ''))
            silent(g, 'nobody may run it')
        common.check_given_away(src)
        if dst.log().lines:
            raise Failed(f'{dst.name}: it ran')
        road.open()
        resume(src, here(road.port))
        state(src, 'failed')
        if dst.exit_code(20) != 1:
            raise Failed(f'{dst.name}: {dst.proc.returncode}: {dst.tail}')
        common.check_still_running(src)


def running_lost(t, accel):
    """GO was read: it is the destination's guest, whatever the source heard of that."""
    src, dst = pair(t, 'running', accel, faults='dest.running=delay:5000000,' + SLOW)
    with src, dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        wait_for('RESUME', 30, lambda: 'RESUME' in common.event_names(dst))
        common.break_link(src)
        is_resumed(src, dst)


def done_lost_and_paused(t, accel):
    """migrate-pause comes when nothing but the source's last word is missing: it is asked for."""
    src, dst = pair(t, 'done-hand', accel, faults=None,
                    source_faults='source.done=delay:5000000@1,source.done=fail@1')
    with src, dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        wait_for('the last page', 60, lambda: (x := common.migration(dst).get('x-rdma-postcopy'))
                 and x['present-bytes'] == x['total-bytes'] > 0)
        pause(dst)
        for g in (src, dst):
            state(g, 'completed', 60)
        if 'postcopy-paused' in common.event_names(dst):
            raise Failed(f'{dst.name}: it was not complete yet')
        common.in_order(common.event_names(src), ['postcopy-paused', 'postcopy-recover',
                                                  'completed'], src.name)
        check_ledger(src, dst)


def done_lost(t, accel):
    """The source learns it from a destination that is complete by then."""
    src, dst = pair(t, 'done', accel, faults=None, source_faults='source.done=fail@1')
    with src, dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        for g in (src, dst):
            state(g, 'completed', 60)
        common.in_order(common.event_names(src), ['postcopy-paused', 'postcopy-recover',
                                                  'completed'], src.name)
        if 'postcopy-paused' in common.event_names(dst):
            raise Failed(f'{dst.name}: DONE was not what was lost')
        common.check_given_away(src)
        check_ledger(src, dst)


# --- quit ---

def quits(t, accel, who):
    """While it waits by itself it goes on when it can, and ends then."""
    src, dst = pair(t, f'quit-{who}', accel)
    with src, dst, Road(0) as road:
        begin(src, dst, by=road)
        road.close()
        both_paused(src, dst)
        one = src if who == 'source' else dst
        one.qmp_sock.sendall(b'{"execute": "quit"}\n')     # it answers when it ends
        if one.exit_code(2) is not None:
            raise Failed(f'{one.name}: it did not wait: {one.tail}')
        road.open()
        if one.exit_code(60) != 0:
            raise Failed(f'{one.name}: {one.proc.returncode}: {one.tail}')
        other = dst if who == 'source' else src
        state(other, 'completed', 60)
        if who == 'source':
            check_ledger(src, dst)


def quits_by_hand(t, accel):
    """Nobody will resume it: it ends within seconds, and shows nobody zeros."""
    src, dst = pair(t, f'quit-hand-{accel}', accel)
    with src, dst:
        begin(src, dst)
        pause(dst)
        both_paused(src, dst)
        silent(dst, 'much of its memory is missing')
        quits_without_waking(dst)
        pause(src)
        if quit_and_code(src) != 0:
            raise Failed(f'{src.name}: {src.tail}')


def run(t):
    accel = t.best_accel()
    for a in t.accels():
        for kind, side in (('anon', 'source'), ('memfd', 'destination')):
            with t.case(f'resumes by itself, broken at the {side}, {kind}, {a}'):
                alone(t, a, kind, side)
        with t.case(f'the road is closed for a while, {a}'):
            road_closed(t, a)
        with t.case(f'by hand at another port, {a}'):
            elsewhere(t, a)
        with t.case(f'the main thread waits for a page, {a}'):
            main_thread_waits(t, a)
        with t.case(f'the main thread waits for a page as GO comes, {a}'):
            waits_as_it_begins(t, a)
    cases = {
        f'{BREAKS} breaks': again_and_again,
        'paused at the source': paused_at_source,
        'paused at the destination': paused_at_destination,
        'the time is up, then by hand': time_is_up,
        'reconnect=0': never,
        'GO is lost': go_lost,
        'GO is lost, and nobody can ask for a while': go_lost_for_long,
        'GO is read, RUNNING is lost': running_lost,
        'DONE is lost': done_lost,
        'DONE is lost, and the destination paused by hand': done_lost_and_paused,
        'the destination quits while it waits': lambda t, a: quits(t, a, 'destination'),
        'the source quits while it waits': lambda t, a: quits(t, a, 'source'),
        'the destination quits when paused by hand': quits_by_hand,
    }
    for name, case in cases.items():
        with t.case(f'{name}, {accel}'):
            case(t, accel)


if __name__ == '__main__':
    common.main(run, 300)
