#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""break_before_go.py - a side that dies or fails before GO; limit: 120 s

Destination: the source says failed and why, its guest goes on, a later move works.
Source: the destination ends with the reason, and the guest never ran there.
"""
import os

import common
from common import Failed, Micro, check_ledger, check_move, check_still_running, say
from cancel import MIB, ended
from quit import quit_and_code

DEST_POINTS = ('dest.accepted', 'dest.pager', 'dest.state', 'dest.ready')


def failed(src, limit_s=30):
    info = common.wait_migration(src, 'failed', limit_s)
    if not info.get('error-desc'):
        raise Failed(f'{src.name}: failed without a reason: {info}')
    check_still_running(src)
    return info['error-desc']


def destination(t, src, accel, point, action):
    name = f'{point}-{action}'.replace('.', '-')
    with Micro(t, name, accel, mem_mib=MIB, incoming=True, faults=f'{point}={action}') as dst:
        src.qmp('migrate', uri=common.listen(dst))
        say(f'      source: {failed(src)}')
        if action == 'kill':
            if dst.exit_code(10) != -9:
                raise Failed(f'{dst.name}: {point} did not kill it: {dst.proc.returncode}')
        else:
            ended(dst)
        if dst.log().lines:
            raise Failed(f'{dst.name}: the guest ran here')


def source_fails(t, accel, point):
    name = point.replace('.', '-')
    with Micro(t, name + '-a', accel, mem_mib=MIB, faults=f'{point}=fail@1') as src, \
            Micro(t, name + '-b', accel, mem_mib=MIB, incoming=True) as dst, \
            Micro(t, name + '-c', accel, mem_mib=MIB, incoming=True) as good:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        say(f'      source: {failed(src)}')
        ended(dst)
        check_move(common.move(src, good))
        check_ledger(src, good)


def waits_to_be_asked(dst):
    """It cannot know that no GO was sent: it never runs the guest, and stays to say so."""
    info = common.wait_migration(dst, 'postcopy-paused')
    say(f'      {dst.name}: {info["error-desc"]}')
    dst.qmp('cont')                     # a wish for later, which never comes
    if common.status(dst) != 'inmigrate' or 'RESUME' in common.event_names(dst):
        raise Failed(f'{dst.name}: {common.status(dst)}, {common.event_names(dst)}')
    if quit_and_code(dst) != 0:
        raise Failed(f'{dst.name}: {dst.proc.returncode}: {dst.tail}')


def source_dies(t, accel, point, options='', end=ended):
    name = point.replace('.', '-') + '-kill' + options.strip(',').replace('=', '')
    with Micro(t, name + '-a', accel, mem_mib=MIB, faults=f'{point}=kill') as src, \
            Micro(t, name + '-b', accel, mem_mib=MIB, incoming=True) as dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst, options=options))
        if src.exit_code(20) != -9:
            raise Failed(f'{src.name}: {point} did not kill it')
        end(dst)
        if dst.log().lines:
            raise Failed(f'{dst.name}: the guest ran here')


def disks_taken(t, accel):
    """Somebody has the disk when the guest should go on: it does not, before the disk is free."""
    image = os.path.join(t.work, 'disk.raw')
    with open(image, 'wb') as f:
        f.truncate(1 << 20)
    disk = ['-blockdev', f'driver=file,node-name=f0,filename={image},locking=on',
            '-device', 'virtio-blk-pci,drive=f0,romfile=']
    with Micro(t, 'disk-a', accel, mem_mib=MIB, extra=disk) as src, \
            Micro(t, 'disk-b', accel, mem_mib=MIB, extra=disk, incoming=True,
                  faults='dest.ready=delay:60000000') as dst:
        src.start_load()
        src.qmp('migrate', uri=common.listen(dst))
        common.wait_migration(src, 'device')
        with Micro(t, 'disk-c', accel, mem_mib=MIB, extra=[*disk, '-S']):
            dst.proc.kill()
            common.wait_migration(src, 'failed')
            common.wait_for(f'{src.name}: paused', 10, lambda: common.status(src) == 'paused')
            say(f'      {common.refuses(src, "lock", "cont")}')
            if 'RESUME' in common.event_names(src):
                raise Failed(f'{src.name}: the guest went on without its disk')
        src.qmp('cont')
        check_still_running(src)


def run(t):
    accel = t.best_accel()
    with Micro(t, 'a', accel, mem_mib=MIB) as src:
        src.start_load()
        for point in DEST_POINTS:
            for action in ('kill', 'fail'):
                with t.case(f'destination: {point}={action}'):
                    destination(t, src, accel, point, action)
        with t.case('the same source moves after all that'):
            with Micro(t, 'good', accel, mem_mib=MIB, incoming=True) as dst:
                check_move(common.move(src, dst))
                check_ledger(src, dst)
    with t.case('the source goes on only when its disks do'):
        disks_taken(t, accel)
    for point in ('source.publish', 'source.state'):
        with t.case(f'source: {point}=fail'):
            source_fails(t, accel, point)
    for point in ('source.publish', 'source.state'):
        with t.case(f'source: {point}=kill'):
            source_dies(t, accel, point)
    with t.case('source: source.go=kill'):
        source_dies(t, accel, 'source.go', end=waits_to_be_asked)
    with t.case('source: source.go=kill, reconnect=0'):
        source_dies(t, accel, 'source.go', ',reconnect=0')


if __name__ == '__main__':
    common.main(run, 120)
