#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""returns.py - a guest visits another host, works there, and comes back with what it wrote

To the QEMU that it went from: by QMP alone, which `farfork visit` gives. Whole, with all of its memory
written, with little of it, by returns that fail and one that does not, once and again. Limit: 300 s.
"""
import contextlib
import os

import common
from common import Failed, Linux, Micro, say, wait_for
from hosts import hosts
from quit import quit_and_code
from resume import state
from take_back import LEASE_S, Fence, is_taken_back, take_back
import report

MIB = 64
SOME = 'rate=40000 sweep=2 wss=10 report_ms=100'     # a tenth of its pages, and some others
HOME_POINTS = ('dest.accepted', 'dest.pager', 'dest.state', 'dest.ready')


class Ledger:
    """What the guest printed, in its order, although it has been in a QEMU twice."""

    def __init__(self, t):
        self.path = os.path.join(t.work, 'stretches')
        self.at = {}
        open(self.path, 'wb').close()   # pylint: disable=consider-using-with

    def leaves(self, guest):
        """What came since it arrived in this QEMU, where it is no more."""
        with open(guest.console, 'rb') as f, open(self.path, 'ab') as out:
            f.seek(self.at.get(guest.console, 0))
            out.write(f.read())
            self.at[guest.console] = f.tell()

    def check(self, guest, sweeps=2):
        swept(guest, sweeps)
        self.leaves(guest)
        ok, reasons = report.verdict(report.parse(self.path))
        if not ok:
            raise Failed(f'{guest.name}: the guest found its memory wrong: {"; ".join(reasons[:5])}')


def swept(guest, sweeps):
    """Here: so often."""
    guest.wait(f'reports of {guest.name}', lambda log: report.is_ready(log.lines), 60)
    guest.wait_sweeps(sweeps, 120)


def stats(guest):
    return common.migration(guest)['x-rdma-postcopy']


def visit(home, away, options='', first=None):
    """Until it runs there. The answer of query-migrate at home."""
    uri = common.listen(away, options=',visit=on' + options)
    if first:
        away.qmp('x-rdma-postcopy-working-set', first=first)
    home.qmp('migrate', uri=uri)
    for g in (away, home):
        common.wait_migration(g, 'postcopy-active')
    wait_for('the guest runs there', 20, lambda: common.status(away) == 'running')
    common.check_given_away(home)
    return common.migration(home)


def way_back(home, options=''):
    """Home listens: the URI."""
    home.qmp('x-rdma-postcopy-return', uri=f'rdma-postcopy:{common.place.host}:0{common.place.options}{options}')
    port = common.migration(home)['socket-address'][-1]['port']
    return f'rdma-postcopy:{common.place.host}:{port}{common.place.options}'


def came_home(home, away, runs='running'):
    """All that it wrote is home, and nobody needs the QEMU there."""
    back, info = (state(g, 'completed', 60) for g in (away, home))
    if stats(home).get('return-status') != 'completed':
        raise Failed(f'{home.name}: {info}')
    for g, want in ((home, runs), (away, 'postmigrate')):
        wait_for(f'{g.name}: {want}', 10, lambda g=g, want=want: common.status(g) == want)
    common.check_given_away(away)
    return back


def come_back(home, away):
    away.qmp('migrate', uri=way_back(home))
    return came_home(home, away)


def figures(out, there, back):
    x, y = there['x-rdma-postcopy'], back['x-rdma-postcopy']
    say(f'      out: downtime {out["downtime"]} ms; there {x["fault-bytes"] >> 10} KiB of '
        f'{x["total-bytes"] >> 10}; back: downtime {back["downtime"]} ms, '
        f'{(y["prefill-bytes"] + y["fault-bytes"]) >> 10} KiB')


def once(t, accel, memory, load, work):
    log = Ledger(t)
    with Micro(t, f'home-{accel}', accel, memory, MIB, load=load) as home, \
            Micro(t, f'away-{accel}', accel, memory, MIB, load=load, incoming=True) as away:
        home.start_load()
        visit(home, away)
        log.leaves(home)
        work(away)
        out, there = (common.migration(g) for g in (home, away))
        back = come_back(home, away)
        log.leaves(away)
        figures(out, there, back)
        if quit_and_code(away):
            raise Failed(f'{away.name}: {away.proc.returncode}: {away.tail}')
        log.check(home)


def again(t, accel):
    """To one host and back, to another one and back, and then away for good."""
    log = Ledger(t)
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(Micro(t, 'again-home', accel, mem_mib=MIB))
        home.start_load()
        for i in (1, 2, 3):
            away = stack.enter_context(Micro(t, f'again-{i}', accel, mem_mib=MIB, incoming=True))
            visit(home, away)
            log.leaves(home)
            swept(away, 1)
            come_back(home, away)
            log.leaves(away)
            swept(home, 1)
            away.qmp('quit')
        last = stack.enter_context(Micro(t, 'again-last', accel, mem_mib=MIB, incoming=True))
        common.check_move(common.move(home, last))
        log.leaves(home)
        log.check(last)


def still_away(home, away):
    """A return came to nothing: the guest goes on there, and this QEMU has it not."""
    wait_for('the return has failed', 30, lambda: stats(home).get('return-status') == 'failed')
    say(f'      {home.name}: {stats(home)["return-error"]}')
    wait_for('the guest runs there', 30, lambda: common.status(away) == 'running')
    common.check_given_away(home)
    if common.status(home) != 'finish-migrate':
        raise Failed(f'{home.name}: {common.status(home)}')


def failing(t, accel, memory):
    """By each point of failure at home, and at the other side: then one that succeeds."""
    log = Ledger(t)
    faults = ','.join(f'{p}=fail@1' for p in HOME_POINTS)     # each try gets one further
    with Micro(t, f'fail-home-{memory}', accel, memory, MIB, faults=faults) as home, \
            Micro(t, f'fail-away-{memory}', accel, memory, MIB, incoming=True) as away:
        home.start_load()
        visit(home, away)
        log.leaves(home)
        away.wait_progress(2, 60)
        for point in HOME_POINTS:
            say(f'      {point}')
            away.qmp('migrate', uri=way_back(home))
            common.wait_migration(away, 'failed')
            still_away(home, away)
            swept(away, 1)
        come_back(home, away)
        log.leaves(away)
        log.check(home)


def canceled(t, accel):
    """Before GO at the visited side, by a pause of the stream; and its process is killed."""
    log = Ledger(t)
    with Micro(t, 'cancel-home', accel, mem_mib=MIB, faults='dest.ready=delay:3000000@1') as home, \
            Micro(t, 'cancel-away', accel, mem_mib=MIB, incoming=True) as away:
        home.start_load()
        visit(home, away)
        log.leaves(home)
        away.wait_progress(2, 60)
        away.qmp('migrate', uri=way_back(home))
        common.wait_migration(away, 'device')
        away.qmp('migrate_cancel')
        common.wait_migration(away, 'cancelled')
        still_away(home, away)
        swept(away, 1)
        first = way_back(home)      # nobody comes there: another takes its place
        uri = way_back(home)
        away.qmp('migrate', uri=first)
        common.wait_migration(away, 'failed')
        wait_for('the guest runs there', 20, lambda: common.status(away) == 'running')
        away.qmp('migrate', uri=uri)
        came_home(home, away)
        log.leaves(away)
        log.check(home)


def pair(t, name, accel, **faults):
    return (Micro(t, name + '-home', accel, mem_mib=MIB, faults=faults.get('home')),
            Micro(t, name + '-away', accel, mem_mib=MIB, faults=faults.get('away'), incoming=True))


def go_lost(t, accel, more=''):
    """
    The visited side may not run it before home has said that it never will, or, where nobody hears that
    (more), serves it again; then another return.
    """
    log = Ledger(t)
    home, away = pair(t, 'go' + str(len(more)), accel, away='source.gone=fail@1' + more)
    with home, away:
        home.start_load()
        visit(home, away)
        log.leaves(home)
        swept(away, 1)
        away.qmp('migrate', uri=way_back(home))
        say(f'      {away.name}: {state(away, "failed")["error-desc"]}')
        # home may still wait to be asked: the way out was served again before
        wait_for('the guest runs there', 20, lambda: common.status(away) == 'running')
        common.check_given_away(home)
        swept(away, 1)
        come_back(home, away)
        log.leaves(away)
        log.check(home)


def links_break(t, accel):
    """While it is away, and when it is home and what it wrote is not: each follows another link."""
    log = Ledger(t)
    home, away = pair(t, 'links', accel, home='dest.prefill=delay:30000')
    with home, away:
        home.start_load()
        visit(home, away)
        log.leaves(home)
        common.break_link(home)
        for g in (home, away):
            wait_for('a break', 30, lambda g=g: 'postcopy-recover' in common.event_names(g))
            state(g, 'postcopy-active')
        swept(away, 1)
        away.qmp('migrate', uri=way_back(home, ',chunk=256K'))
        common.wait_migration(away, 'postcopy-active')
        wait_for('it runs at home', 20, lambda: common.status(home) == 'running')
        common.break_link(away)
        info = came_home(home, away)
        if info['x-rdma-postcopy']['breaks'] != 1:
            raise Failed(f'{away.name}: no link broke: {info}')
        log.leaves(away)
        log.check(home)


def dies_away(t, accel):
    """With fallback=go it goes on at home, as it was when it went."""
    fence = Fence(t, 'dies')
    home, away = pair(t, 'dies', accel)
    with home, away:
        home.start_load()
        uri = common.listen(away, options=f',visit=on,until-go={fence.mark}')
        home.qmp('migrate', uri=uri + fence.options(LEASE_S))
        for g in (away, home):
            common.wait_migration(g, 'postcopy-active')
        swept(away, 1)
        kept(home, True)
        way_back(home)      # it is waited for, in vain
        away.proc.kill()
        take_back(home, uri)
        is_taken_back(home, fence)
        kept(home, False)
        common.check_ledger(home)


def kept(home, is_image):
    """Whether this host's list has it as the image of a guest that is elsewhere."""
    f = hosts('--json')[0]['facts']
    images = [h for h in f['holders'] if h['pid'] == home.pid and h['of'] == 'guest elsewhere'
              and h['resident_bytes'] > MIB << 19]
    if (len(images), [g['pid'] for g in f['guests']].count(home.pid)) != ((1, 0) if is_image else (0, 1)):
        raise Failed(f'{home.name}: {f["holders"]} {f["guests"]}')


def paused(t, accel):
    """Whether it runs is said with it, both ways."""
    log = Ledger(t)
    home, away = pair(t, 'paused', accel)
    with home, away:
        home.start_load()
        home.qmp('stop')
        home.qmp('migrate', uri=common.listen(away, options=',visit=on'))
        for g in (away, home):
            common.wait_migration(g, 'postcopy-active')
        log.leaves(home)
        wait_for('it is paused there', 20, lambda: common.status(away) == 'paused')
        away.qmp('cont')
        swept(away, 1)
        for g in (home, away):      # memory that has come and gone meanwhile is none of the guest's
            g.qmp('object-add', **{'qom-type': 'memory-backend-ram', 'id': 'm0', 'size': 4 << 20})
            g.qmp('object-del', id='m0')
        away.qmp('stop')
        away.qmp('migrate', uri=way_back(home))
        came_home(home, away, 'paused')
        kept(home, False)
        log.leaves(away)
        home.qmp('cont')
        log.check(home)


def refused(t, accel):
    with Micro(t, 'no-home', accel, mem_mib=MIB) as home, \
            Micro(t, 'no-away', accel, mem_mib=MIB, incoming=True) as away, \
            Micro(t, 'no-third', accel, mem_mib=MIB, incoming=True) as third:
        home.start_load()
        common.refuses(home, 'no guest of this QEMU runs elsewhere', 'x-rdma-postcopy-return',
                       uri='rdma-postcopy:127.0.0.1:0')
        visit(home, away)
        common.refuses(away, 'goes back by rdma-postcopy', 'migrate', uri='tcp:127.0.0.1:1')
        if 'this guest visits' not in common.hmp(away, 'savevm x'):
            raise Failed(f'{away.name}: a snapshot is made')
        common.refuses(away, 'fallback=go is not for', 'migrate',
                       uri='rdma-postcopy:127.0.0.1:1,fallback=go,fence=/bin/true,record=/nowhere')
        away.qmp('migrate', uri=common.listen(third))      # it is not where the guest went from
        common.wait_migration(away, 'failed')
        say(f'      {common.migration(away)["error-desc"]}')
        wait_for('the guest runs there', 20, lambda: common.status(away) == 'running')
        common.refuses(home, 'alone', 'x-rdma-postcopy-return', uri='tcp:127.0.0.1:0')
        come_back(home, away)
        away.qmp('quit')
        swept(home, 1)


def linux(t):
    """With a disk that both can reach, memory and a counter: TCG."""
    need = ('mem', 'counter', 'disk')
    settings = common.linux_settings(t, 'linux')
    with Linux(None, settings, 'home') as home, Linux(None, settings, 'away') as away:
        home.start()
        common.linux_boot(home)
        common.linux_progress(settings, need)
        for i in (1, 2):
            away.start(incoming=True)
            visit(home, away)
            common.linux_progress(settings, need, reports=10)
            out, there = (common.migration(g) for g in (home, away))
            figures(out, there, come_back(home, away))
            common.linux_progress(settings, need, reports=10 * i)
            away.quit()
        common.linux_check(settings, need)


def run(t):
    accel = t.best_accel()
    for memory in ('anon', 'memfd'):
        with t.case(f'all of memory is written there, {memory}, {accel}'):
            once(t, accel, memory, None, lambda away: swept(away, 2))
        with t.case(f'some of it, {memory}, {accel}'):
            once(t, accel, memory, SOME, lambda away: away.wait_progress(2, 60))
    with t.case(f'again and again, {accel}'):
        again(t, accel)
    for memory in ('anon', 'memfd'):
        with t.case(f'returns that fail, {memory}, {accel}'):
            failing(t, accel, memory)
    with t.case(f'cancelled before GO, {accel}'):
        canceled(t, accel)
    for name, case in (('GO of the return is lost', go_lost),
                       ('GO of the return is lost, and no answer comes',
                        lambda t, accel: go_lost(t, accel, ',source.resume=fail')), ('links break', links_break),
                       ('the visited host dies', dies_away), ('paused', paused)):
        with t.case(f'{name}, {accel}'):
            case(t, accel)
    with t.case(f'refused, {accel}'):
        refused(t, accel)
    with t.case('Linux, with a disk, tcg'):
        linux(t)


if __name__ == '__main__':
    common.main(run, 300)
