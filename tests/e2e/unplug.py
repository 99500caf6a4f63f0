#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""unplug.py - memory is unplugged while the guest moves; limit: 80 s

What was a DIMM keeps its memory until the migration has ended, however it was unplugged and
deleted meanwhile; then it is given back.
"""
import common
from common import Failed, Micro, check_ledger, check_still_running, hmp

MIB = 64
DIMM_MIB = 64
SLOTS = 0x0a00                  # ACPI's registers of memory slots: selector, then at 20 control
EJECT = 8


def guest(t, name, accel, **more):
    extra = ['-m', f'size={MIB}M,slots=2,maxmem={MIB + 4 * DIMM_MIB}M',
             '-object', f'memory-backend-ram,id=mem1,size={DIMM_MIB}M',
             '-device', 'pc-dimm,id=dimm1,memdev=mem1']
    return Micro(t, name, accel, mem_mib=MIB, load='fill=50 ' + common.place.load, extra=extra,
                 **more)


def unplug(g):
    """As a guest does it that was asked to, and then an operator."""
    hmp(g, f'o/w {SLOTS:#x} 0')
    hmp(g, f'o/b {SLOTS + 20:#x} {EJECT}')
    if g.qmp('query-memory-devices'):
        raise Failed(f'{g.name}: the DIMM is still there')
    g.qmp('object-del', id='mem1')


def check_gone(g):
    ram = hmp(g, 'info ramblock')
    if 'mem1' in ram:
        raise Failed(f'{g.name}: the memory of the DIMM is still there: {ram}')


def at_destination(t, accel):
    with guest(t, 'dst-a', accel) as src, \
            guest(t, 'dst-b', accel, incoming=True, faults='dest.prefill=delay:50000') as dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        common.wait_migration(dst, 'postcopy-active')
        unplug(dst)
        x = common.migration(dst)['x-rdma-postcopy']
        if x['present-bytes'] > (MIB + DIMM_MIB // 2) << 20:
            raise Failed('too late to prove anything: slow prefill down more')
        common.wait_migration(dst, 'completed')
        common.wait_migration(src, 'completed')
        check_ledger(src, dst)
        check_gone(dst)


def at_source(t, accel):
    """Before the pause: another guest than the destination knows is not moved there."""
    with guest(t, 'src-a', accel) as src, \
            guest(t, 'src-b', accel, incoming=True, faults='dest.pager=delay:5000000') as dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        common.wait_migration(dst, 'active')
        unplug(src)
        why = common.wait_migration(src, 'failed').get('error-desc', '')
        if 'unplugged' not in why:
            raise Failed(f'{src.name}: failed: {why}')
        check_still_running(src)
        check_gone(src)


def run(t):
    accel = t.best_accel()
    with t.case(f'at the destination, {accel}'):
        at_destination(t, accel)
    with t.case(f'at the source, before the pause, {accel}'):
        at_source(t, accel)


if __name__ == '__main__':
    common.main(run, 80)
