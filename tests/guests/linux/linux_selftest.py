#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""linux_selftest.py - prove the Linux test guest and its harness with QEMU's own migration

usage: linux_selftest.py --qemu QEMU --kernel VMLINUX --initrd INITRD [-L DIR]...
                   [--machine q35,pc] [--moves precopy,postcopy] [--keep] [--guestload FILE]

On each machine type: boot with disk, tap and virtio-serial; a TCP client connects;
then the guest is moved from process to process, over TCP on the loopback of the
namespace, sharing the disk file. All four workers must go on without an error and
the connection must stay the same. With --guestload it first runs that program on
this host and spoils its memory and its disk: a worker that does not notice fails.

Exit 0: all passed. 1: failed, with the reason. 77: cannot run here, with the reason.
"""
import argparse
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import linuxguest
import linuxreport as report
from linuxguest import Client, Failed, Lab, Qemu, Settings, Skip, wait_for

DISK_BYTES = 64 << 20
NEED = ('mem', 'counter', 'disk', 'tcp')
BOOT_S = 90                     # generous: a loaded builder under TCG
MOVE_S = 180


def say(text):
    print(f'selftest: {text}', flush=True)


def wait_progress(settings, what, after=None, reports=4, seconds=60):
    """Wait until there are so many reports beyond `after`, and every worker got on."""
    base = after or {'seq': 0}
    keys = [k for w in NEED for k in report.WORKERS[w]]

    def look():
        now = report.last(settings.report)
        if not now or now['seq'] < base['seq'] + reports:
            return None
        return now if all(now[k] > base.get(k, 0) for k in keys) else None
    try:
        return wait_for(what, seconds, look)
    except Failed as e:
        raise Failed(f'{e}; last report: {report.last(settings.report)}') from None


def move(kind, src, dst):
    """Move the guest; returns the source's query-migrate at the end."""
    dst.launch(incoming='defer')
    try:
        dst.capabilities(postcopy_ram=kind == 'postcopy')
    except Failed as e:
        raise Skip(f'{e} (post-copy needs userfaultfd: root, or vm.unprivileged_userfaultfd=1)'
                   ) from None
    src.capabilities(postcopy_ram=kind == 'postcopy')
    for side in (src, dst):
        side.qmp('migrate-set-parameters', {'max-bandwidth': 0, 'downtime-limit': 300})
    dst.qmp('migrate-incoming', uri='tcp:127.0.0.1:0')
    address = dst.qmp('query-migrate')['socket-address'][0]
    start = time.monotonic()
    src.qmp('migrate', uri=f'tcp:127.0.0.1:{address["port"]}')
    if kind == 'postcopy':
        if src.wait_migration(('active', 'completed'), 30)['status'] == 'completed':
            raise Failed('pre-copy ended before post-copy could start')
        src.qmp('migrate-start-postcopy')
    done = src.wait_migration(('completed',), MOVE_S)
    dst.wait_migration(('completed',), MOVE_S)
    dst.wait_status('running', 30)
    done['took_s'] = time.monotonic() - start
    if kind == 'postcopy' and not done['ram'].get('postcopy-requests'):
        say('note: not one page was asked for in post-copy')
    return done


def run_machine(o, machine, workdir):
    disk = os.path.join(workdir, 'disk.raw')
    with open(disk, 'wb') as f:
        f.truncate(DISK_BYTES)
    lab = Lab(f'ffself-{os.getpid()}')
    guests, client = [], None
    settings = Settings(o.qemu, o.kernel, o.initrd, workdir, firmware=o.L, machine=machine,
                        accel=o.accel, cpu=o.cpu, smp=o.smp, disk=disk, append=o.append)
    try:
        start = time.monotonic()
        guests.append(Qemu(lab, settings, 'a'))
        guests[0].launch()
        try:
            first = wait_for('first report', BOOT_S, lambda: report.last(settings.report), 0.02)
        except Failed as e:
            raise Failed(f'{e}\n{guests[0].describe()}') from None
        boot_s = time.monotonic() - start
        say(f'{machine}: first report after {boot_s:.2f} s '
            f'(guest uptime {first["uptime_ms"] / 1000:.2f} s)')
        client = Client(lab)
        now = wait_progress(settings, 'all four workers at work')
        for i, kind in enumerate(o.moves):
            guests.append(Qemu(lab, settings, 'bcdefgh'[i]))
            src, dst = guests[-2:]
            done = move(kind, src, dst)
            src.quit()
            after = report.last(settings.report)
            say(f'{machine}: {kind} in {done["took_s"]:.2f} s, '
                f'downtime {done.get("downtime", "?")} ms, '
                f'{done["ram"].get("postcopy-requests", 0)} pages asked for')
            now = wait_progress(settings, f'all four workers after {kind}', after, reports=12)
        summary, rc = client.finish()
        say(f'{machine}: client {json.dumps(summary)}')
        say(f'{machine}: guest {json.dumps(report.summary(report.load(settings.report)))}')
        problems = report.verdict(report.load(settings.report), NEED)
        if rc or summary['errors'] or summary['reconnects'] or not summary['same_connection']:
            problems.append(f'client: {summary}')
        if abs(summary['lines'] - now['tcp_lines']) > 500:
            problems.append(f'client has {summary["lines"]} lines, guest {now["tcp_lines"]}')
        guests[-1].quit()
        if problems:
            raise Failed('\n  '.join(problems))
    finally:
        if client:
            client.close()
        for g in guests:
            g.close()
        lab.close()


def find_pattern(pid):
    """Address of a page of the memory worker: words 127 apart are equal, neighbours differ."""
    with open(f'/proc/{pid}/maps') as f:
        areas = [line.split() for line in f]
    areas = [a for a in areas if a[1] == 'rw-p' and len(a) == 5]
    areas = [tuple(int(x, 16) for x in a[0].split('-')) for a in areas]
    start, end = max(areas, key=lambda a: a[1] - a[0])
    with open(f'/proc/{pid}/mem', 'rb', 0) as mem:
        page = start + ((end - start) // 2 & ~4095)
        for at in range(page, page + (64 << 12), 4096):
            mem.seek(at)
            w = struct.unpack('<512Q', mem.read(4096))
            if all(w[k] == w[k + 127] != w[k + 1] for k in (1, 5)):
                return at
    raise Failed('host check: no page with the pattern found')


def run_host(guestload, workdir):
    """Spoil memory and disk of a guestload on this host: it must notice both."""
    path, disk = os.path.join(workdir, 'host.report'), os.path.join(workdir, 'host.disk')
    with open(disk, 'wb') as f:
        f.truncate(4 << 20)
    process = subprocess.Popen([guestload, 'mem=16', 'duty=25', f'disk={disk}', 'port=0',
                                f'report={path}'], stderr=subprocess.DEVNULL)
    try:
        wait_for('host: at work', 20, lambda: (report.last(path) or {}).get('mem_passes', 0) > 2
                 and report.last(path)['disk_writes'] > 50)
        clean = report.verdict(report.load(path), ('mem', 'counter', 'disk'))
        if clean:
            raise Failed(f'host: problems before anything was spoilt: {clean}')
        at = find_pattern(process.pid)
        with open(f'/proc/{process.pid}/mem', 'r+b', 0) as mem:
            mem.seek(at)
            mem.write(bytes(4096))
        wait_for('host: a zeroed page was noticed', 20, lambda: report.last(path)['mem_errors'])
        with open(disk, 'r+b') as f:
            for block in range(64):
                f.seek(block * 16384 + 2048)
                f.write(b'spoilt')
        wait_for('host: spoilt disk blocks were noticed', 20,
                 lambda: report.last(path)['disk_errors'])
        if not report.verdict(report.load(path)):
            raise Failed('host: linuxreport.py does not see the errors')
        say(f'host: noticed, e.g. {report.last(path)["first_error"]}')
    finally:
        process.kill()
        process.wait()


def main():
    p = argparse.ArgumentParser(description='prove the Linux test guest with stock migration')
    p.add_argument('--qemu', required=True)
    p.add_argument('--kernel', required=True)
    p.add_argument('--initrd', required=True)
    p.add_argument('-L', action='append', default=[], help='firmware directory, may be repeated')
    p.add_argument('--machine', default='q35,pc')
    p.add_argument('--moves', default='precopy,postcopy')
    p.add_argument('--accel', default='tcg')
    p.add_argument('--cpu', default='max')
    p.add_argument('--smp', type=int, default=1)
    p.add_argument('--append', default='', help='more for the kernel command line')
    p.add_argument('--guestload', help='this program, to run the check on the host first')
    p.add_argument('--keep', action='store_true', help='keep the files')
    o = p.parse_args()
    o.moves = [m for m in o.moves.split(',') if m]
    if set(o.moves) - {'precopy', 'postcopy'} or len(o.moves) > 7:
        p.error('--moves: up to 7 of precopy, postcopy')

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))     # through every finally
    workdir = tempfile.mkdtemp(prefix='farfork-selftest.')
    rc = 1
    try:
        for path in (o.kernel, o.initrd):
            if not os.path.exists(path):
                raise Skip(f'no {path}: make -f tests/guests/linux/linux.mk')
        o.qemu = linuxguest.find_qemu(o.qemu)
        if o.guestload:
            run_host(o.guestload, workdir)
        for machine in o.machine.split(','):
            sub = os.path.join(workdir, machine)
            os.mkdir(sub)
            run_machine(o, machine, sub)
        say('passed')
        rc = 0
    except Skip as e:
        say(f'skip: {e}')
        rc = 77
    except Failed as e:
        say(f'FAILED: {e}')
    finally:
        if o.keep:
            say(f'files are in {workdir}')
        else:
            shutil.rmtree(workdir)
    sys.exit(rc)


if __name__ == '__main__':
    main()
