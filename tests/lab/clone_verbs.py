#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""clone_verbs.py - inside the lab: a running guest on hosta is forked over RDMA verbs

Two children on hostb, by an agent there, and one on hosta that the memory is lent to. All go on
with the ledger that the parent had at the fork, and sweep all of their memory, and the parent
writes on as fast as it can. Then what registering memory means for a holder: copies, the memlock
limit; a guest that itself came over verbs; a link that breaks; one image to two agents by multicast. --more
has the other kind of memory, and a holder that is killed. Limit: 900 s.
"""
import contextlib
import os
import re
import sys

import labplace                     # first: it knows where those of tests/e2e are
import clone
import common
from clone import Agent, check_parent, check_went_on, child, export, exports
from common import Failed, Micro, say
from keys import key_file
from move_verbs import may_pin

MIB = 64
FULL_SPEED = 'report_ms=400 sweep=4'


def over_verbs(agent):
    c = agent.wait('complete', 120)
    if c['link'] != 'verbs':
        raise Failed(f'{agent.name}: over {c["link"]}')
    return c


def memory_mib(pid, what):
    """Anonymous: in no file, shared or not; Private_Dirty: shared with nobody."""
    with open(f'/proc/{pid}/smaps_rollup', encoding='ascii') as f:
        return int(re.search(fr'^{what}: +(\d+) kB', f.read(), re.M)[1]) >> 10


def hosts(t, memory):
    """The holder serves both hosts at once; what it lends it must not copy."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, f'p-{memory}', 'tcg', memory, MIB, load=FULL_SPEED))
        parent.start_load()
        far = stack.enter_context(Agent(t, f'far-{memory}', faults=clone.SLOW))
        near = stack.enter_context(Agent(t, f'near-{memory}', at_source=True))
        before = clone.snapshot(parent)
        r = export(parent, 'f', far.target(lend=False), near.target(lend=True))
        if memory == 'memfd':
            far.wait('image', 60)
            own = memory_mib(r['holder-pid'], 'Anonymous')
            say(f'      holder: {own} MiB outside of files')
            if own >= MIB:
                raise Failed('the holder has copied the image')
        kids = clone.enter(stack, [child(t, a, i, 'tcg', memory, mem_mib=MIB)
                                   for i, a in enumerate((far, far, near))])
        for k in kids:
            check_went_on(before, k)
        clone.complete(kids)
        clone.wait_exported(parent, 'f')
        check_parent(parent)
        c = over_verbs(far)
        say(f'      far: {c["fetched"] >> 20} MiB fetched, {c["faults"]} pages by faults, '
            f'{c["child_faults"]} faults of children')
        if c['lent'] or c['fetched'] + c['zero'] < c['total']:
            raise Failed(f'{far.name}: {c}')
        c = near.wait('complete') if memory == 'memfd' else over_verbs(near)
        handed_over = c['link'] == 'none' and c['lent'] == c['total']
        if handed_over != (memory == 'memfd') or (c['lent'] and not handed_over):
            raise Failed(f'{near.name}: {c}')


def memlock(t):
    """Too little of it: said, or on-demand paging, by which nothing is copied either."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(may_pin(Micro(t, 'p-lock', 'tcg', mem_mib=MIB), 16))
        parent.start_load()
        a = stack.enter_context(Agent(t, 'off'))
        export(parent, 'off', a.target(False, ',odp=off'))
        e = common.wait_for('the end of its holder', 30, lambda: not exports(parent, 'off')['alive']
                            and exports(parent, 'off'))['targets'][0]
        if e['status'] != 'failed' or 'memlock limit is 16 MiB' not in e['error']:
            raise Failed(f'{e}')
        say(f'      {e["error"]}')
        a = stack.enter_context(Agent(t, 'odp', faults=clone.SLOW))
        before = clone.snapshot(parent)
        # paused: what it wrote would leave the holder alone with what was shared
        r = export(parent, 'odp', a.target(False), template=True)
        a.wait('image', 60)
        own = memory_mib(r['holder-pid'], 'Private_Dirty')
        say(f'      on demand, holder: {own} MiB of its own')
        if own >= MIB:
            raise Failed('the holder has copied the image')
        k = stack.enter_context(child(t, a, 1, 'tcg'))
        check_went_on(before, k)
        clone.complete([k])
        parent.qmp('cont')
        check_parent(parent)
        over_verbs(a)


def came_over_verbs(t):
    """The RDMA libraries in the parent have opened the device, which a holder cannot use."""
    with contextlib.ExitStack() as stack:
        src = stack.enter_context(Micro(t, 'came-a', 'tcg', 'memfd', 32))
        dst = stack.enter_context(Micro(t, 'came-b', 'tcg', 'memfd', 32, incoming=True))
        src.start_load()
        common.check_move(common.move(src, dst))
        common.check_ledger(src, dst, sweeps=1)
        src.close()
        before = clone.snapshot(dst)
        a = stack.enter_context(Agent(t, 'came', link='auto,insecure=on', at_source=True))
        export(dst, 'f', a.target(lend=False))
        say(f'      over {a.wait("image", 60)["link"]}')
        k = stack.enter_context(child(t, a, 1, 'tcg', 'memfd', mem_mib=32))
        check_went_on(before, k)
        clone.complete([k])
        clone.wait_exported(dst, 'f')
        check_parent(dst)


def broken(t, memory):
    """The agent loses its link, and its next five: the holder registers its memory anew for each."""
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, f'p-broken-{memory}', 'tcg', memory, MIB))
        parent.start_load()
        a = stack.enter_context(Agent(t, f'broken-{memory}', faults=clone.SLOW +
                                      ',dest.prefill=fail@6,dest.resume=fail@1-5'))
        before = clone.snapshot(parent)
        export(parent, 'f', a.target(lend=False))
        kids = clone.enter(stack, [child(t, a, i, 'tcg', memory, mem_mib=MIB) for i in range(2)])
        a.wait('resumed', 60)
        if not a.find('paused') or a.find('complete'):
            raise Failed(f'{a.name}: {a.events}')
        for k in kids:
            check_went_on(before, k)
        clone.complete(kids)
        clone.wait_exported(parent, 'f')
        check_parent(parent)
        over_verbs(a)


def by_multicast(t):
    """UD: the parent's adapter sends the image once, and both agents' hear it. Of some packets of each
    one agent loses all, and what it lacks comes by READs."""
    key = key_file(t, 'multicast.key', '5a' * 32)
    options = f'verbs,key-file={key},multicast=239.7.7.7'
    lost = 'dest.group.packet=fail@100-160,dest.group.packet=fail@900-903'
    with contextlib.ExitStack() as stack:
        parent = stack.enter_context(Micro(t, 'p-multicast', 'tcg', mem_mib=32))
        parent.start_load()
        agents = [stack.enter_context(Agent(t, f'hears-{i}', options, f)) for i, f in enumerate((None, lost))]
        before = clone.snapshot(parent)
        export(parent, 'f', *(a.target(lend=False) for a in agents))
        kids = clone.enter(stack, [child(t, a, 1, 'tcg', mem_mib=32) for a in agents])
        for k in kids:
            check_went_on(before, k)
        clone.complete(kids)
        clone.wait_exported(parent, 'f')
        check_parent(parent)
        for a in agents:
            c = over_verbs(a)
            say(f'      {a.name}: {c["by_group"] >> 10} KiB by the group, {c["fetched"] >> 10} in all, '
                f'{c["packets_lost"]} packets lost {c["no_group"]}')
            if not c['by_group']:
                raise Failed(f'{a.name}: {c}')
        if not c['packets_lost']:
            raise Failed(f'no packet was lost: {c}')


def run(t):
    clone.MIB = MIB     # of its guests
    more = '--more' in sys.argv
    forked, breaks = ('anon', 'memfd') if more else ('memfd', 'anon')
    with t.case(f'2 children there, 1 here, {forked}'):
        hosts(t, forked)
    with t.case(f'the link breaks, {breaks}'):
        broken(t, breaks)
    if more:
        with t.case('the holder is killed'):
            clone.holder_killed(t, 'tcg', 'kill')
        return
    with t.case('to two agents at once, by multicast'):
        labplace.need_two_hosts()
        by_multicast(t)
    with t.case('memlock'):
        memlock(t)
    with t.case('a guest that came over verbs, link=auto'):
        came_over_verbs(t)


if __name__ == '__main__':
    labplace.main(run, 900)
