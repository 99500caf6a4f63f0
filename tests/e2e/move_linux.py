#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""move_linux.py - a Linux guest moves with its disk, its network and a TCP client outside

Memory checksummer, counter, disk worker and TCP session go on without an error, over the
same connection; what the client felt is printed, not judged. Limit: 150 s.
"""
import contextlib
import os
import subprocess

import common
import linuxguest
from common import Failed, Linux, Skip, check_move, move, say

NEED = ('mem', 'counter', 'disk', 'tcp')


def announced(dst_tap, lab):
    """Packets that the destination's tap sent to the bridge: the announcement is among them."""
    path = f'/sys/class/net/{dst_tap}/statistics/rx_packets'
    out = subprocess.run(lab.inside(['cat', path]), stdout=subprocess.PIPE, text=True, check=False)
    return int(out.stdout or 0)


def ring_pages(guest):
    """The pages in which rings of the guest's drivers begin."""
    pages = set()
    for device in guest.qmp('x-query-virtio'):
        for queue in range(guest.qmp('x-query-virtio-status', path=device['path'])['num-vqs']):
            q = guest.qmp('x-query-virtio-queue-status', path=device['path'], queue=queue)
            if q['vring-desc']:
                pages |= {q[ring] // common.PAGE
                          for ring in ('vring-desc', 'vring-avail', 'vring-used')}
    return pages


def check_first_touch(moved):
    """The rings come first, as what CPUs point at does, which is less than 64 pages for one CPU."""
    rings, first = len(ring_pages(moved.src)), moved.stats['first-touch-pages']
    say(f'      pages of rings: {rings}; sent first: {first}')
    if rings < 64 or first < rings:
        raise Failed(f'{first} pages were sent first, the rings have {rings} (want 64 at least)')


def one(t, name, memory, options, smp=1, **more):
    def by_transport(a, b):
        moved = move(a, b, options=options)
        check_move(moved)
        check_first_touch(moved)
        say(f'      {moved.line()}')
    under_load(t, common.linux_settings(t, name, memory=memory, smp=smp, **more), by_transport)


def under_load(t, settings, move_it, qemu=Linux, beside=contextlib.nullcontext, need=NEED):
    """move_it(a, b): the guest is in b then, or, if it returns that, in a; qemu: the class of both; beside(lab): what else runs
    in its network meanwhile; need: what gets on in it"""
    lab = linuxguest.Lab(f'ffe2e-{os.getpid()}-{len(t.passed) + len(t.failed)}')
    t.at_end.callback(lab.close)
    with beside(lab), qemu(lab, settings, 'a') as a, qemu(lab, settings, 'b') as b:
        a.start()
        common.linux_boot(a)
        client = linuxguest.Client(lab)
        try:
            common.linux_progress(settings, need)
            b.start(incoming=True)
            (move_it(a, b) or a).quit()
            common.linux_progress(settings, need, reports=12)
            seen, code = client.finish()
        finally:
            client.close()
        say(f'      client: {seen["lines"]} lines, longest gap {seen["longest_gap_ms"]} ms at '
            f'line {seen["longest_gap_at_line"]}; packets from the destination: '
            f'{announced(b.tap, lab)}')
        if code or seen['errors'] or not seen['same_connection']:
            raise Failed(f'TCP client: {seen}')
        common.linux_check(settings, need)
    lab.close()


def need_vhost():
    if not os.access('/dev/vhost-net', os.R_OK | os.W_OK):
        raise Skip('no /dev/vhost-net: modprobe vhost_net')


def run(t):
    with t.case('anon, tcg'):
        one(t, 'anon', 'anon', '')
    with t.case('memfd, landing=continue, iothread=, tcg'):
        one(t, 'memfd', 'memfd', ',landing=continue', iothread=True)
    with t.case('anon, vhost=on, tcg'):
        need_vhost()
        one(t, 'vhost', 'anon', '', vhost=True)
    if common.FULL:
        with t.case('anon, 2 CPUs, tcg'):
            one(t, 'smp', 'anon', '', 2)


if __name__ == '__main__':
    common.main(run, 150)
