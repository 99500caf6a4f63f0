#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""move_verbs.py - inside the lab: a live guest moves from hosta to hostb over RDMA verbs

Run by `make check-lab` (lab/lab starts it); exit 0, 1, or 77 outside a lab with two hosts.
The micro guest touches random pages all the while and checks what it reads.
"""
import os
import shutil
import sys
import tempfile
import time

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, 'tests', 'guests', 'micro'))
from qemu import Guest, GuestError      # noqa: E402
import report                           # noqa: E402

BUILD = os.path.join(TOP, os.environ.get('FARFORK_BUILD', 'build'))
URI = 'rdma-postcopy:10.8.0.2:4444,link=verbs'
MOVE_S, BOOT_S, SWEEP_S = 60, 60, 120


class OnHost(Guest):
    """A guest whose QEMU runs on one of the lab's hosts."""

    def __init__(self, host, work, name, extra=()):
        # rate: a lab under TCG has little to give; sweep=2 checks all of memory soon
        super().__init__(os.path.join(BUILD, 'bin', 'qemu-system-x86_64'),
                         os.path.join(BUILD, 'guests', 'micro.elf'), 'tcg', work, name=name,
                         bios='qboot.rom', mem_mib=64, extra=extra,
                         options='report_ms=1000 rate=2000 sweep=1')
        self.argv = ['ip', 'netns', 'exec', host] + self.argv


def move(work):
    with OnHost('hosta', work, 'src') as src:
        src.wait_ready(BOOT_S)
        with OnHost('hostb', work, 'dst', ['-incoming', URI]) as dst:
            src.qmp('migrate', uri=URI)
            end = time.monotonic() + MOVE_S
            while True:
                info = src.qmp('query-migrate')
                if info.get('status') in ('completed', 'failed', 'postcopy-paused'):
                    break
                if time.monotonic() > end:
                    raise GuestError(f'not complete after {MOVE_S} s: {info}')
                time.sleep(0.05)
            if info['status'] != 'completed':
                raise GuestError(f"{info['status']}: {info.get('error-desc')}")
            x = info['x-rdma-postcopy']
            if x['link'] != 'verbs' or x['present-bytes'] != x['total-bytes']:
                raise GuestError(f'not all of it over verbs: {x}')
            dst.wait_sweeps(1, SWEEP_S)
            log = report.Log()
            for guest in (src, dst):
                with open(guest.console, 'rb') as f:
                    log.feed(f.read())
            ok, reasons = report.verdict(log)
            if not ok:
                raise GuestError(f'the guest complains: {reasons}')
            print(f"moved over verbs in {info['total-time']} ms, {info['downtime']} ms down, "
                  f"{x['faults']} faults (p50 {x['fault-p50'] // 1000} us, "
                  f"p99 {x['fault-p99'] // 1000} us), memory ok")


def main():
    if os.environ.get('LAB_HOSTS') != '2':
        print('needs two hosts with RDMA: run it by `make check-lab`')
        return 77
    work = tempfile.mkdtemp()
    try:
        move(work)
    except GuestError as e:
        print(f'FAILED: {e}')
        return 1
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
