# SPDX-License-Identifier: LGPL-2.1-or-later
#
# outside.py - one move of the Linux guest, measured from outside by a UDP ping-pong
"""
The guest is that of tests/guests/linux: its workers write memory and disk all the time, and a
server there answers UDP packets. bench/udpping sends one each 500 us from the namespace that is
their network (netlab); the migration goes over that namespace's loopback.
"""
import json
import os
import shutil
import signal
import subprocess

import common
import linuxguest
import linuxreport
import measure
from common import Failed, Linux, Skip

WORKLOAD = 'linux'
NEED = ('mem', 'counter', 'disk')
UDPPING = os.path.join(common.BUILD, 'bench', 'udpping')
PORT = '7000'
KVM_BOOT_S = 15         # a KVM that emulates ring 0 takes minutes


class Ping:
    """udpping inside the namespace."""

    def __init__(self, lab):
        self.process = subprocess.Popen(lab.inside([UDPPING, linuxguest.GUEST_IP, PORT]),
                                        stdout=subprocess.PIPE, text=True)

    def finish(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            out, _ = self.process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            raise Failed('udpping: did not end within 15 s of a SIGTERM') from None
        if self.process.returncode:
            raise Failed(f'udpping: exit code {self.process.returncode}')
        return json.loads(out)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def find_accel(t, wanted):
    """kvm if the guest boots under it soon, else tcg; once a program."""
    if wanted != 'auto':
        return wanted
    if not hasattr(t, 'linux_accel'):
        t.linux_accel = 'tcg'
        if not t.kvm_reason():
            settings = common.linux_settings(t, 'probe', accel='kvm')
            with Linux(None, settings, 'a') as g:
                try:
                    g.start()
                    common.linux_boot(g, KVM_BOOT_S)
                    t.linux_accel = 'kvm'
                except Failed:
                    pass
    return t.linux_accel


def metrics_of_ping(seen):
    return {'udp_downtime_ms': seen['lost'] * seen['interval_us'] / 1000,
            'udp_silence_ms': seen['silence_ms'], 'udp_rtt_p50_us': seen['rtt_p50_us'],
            'udp_rtt_p99_us': seen['rtt_p99_us'], 'udp_rtt_max_us': seen['rtt_max_us']}


def watch_for(settings, seconds):
    """So long by reports of the guest, of which there are four a second."""
    return common.linux_progress(settings, NEED, reports=4 * seconds, limit_s=seconds + 60)


def move_and_measure(t, guest, peer, qemu, number, times):
    name = f'linux-{number}'
    lab = linuxguest.Lab(f'ffbench-{os.getpid()}-{number}')
    ping = None
    try:
        settings = common.linux_settings(t, name, guest.accel, guest.backend(), guest.mem_mib,
                                         guest.smp)
        settings.qemu = qemu
        settings.extra = [*settings.extra, '-name', 'debug-threads=on']
        with Linux(lab, settings, 'a') as src, Linux(lab, settings, 'b') as dst:
            src.start()
            common.linux_boot(src, 120)
            dst.start(incoming=True)
            watch_for(settings, 1)
            ping = Ping(lab)
            watch_for(settings, times.before_s)
            limit_s = times.limit_s if not peer.postcopy() else 60 + guest.mem_mib / 20
            move = measure.Move(src, dst, peer, limit_s)
            watch_for(settings, times.after_s)
            seen = ping.finish()
            problems = linuxreport.verdict(linuxreport.load(settings.report), NEED)
    finally:
        if ping:
            ping.close()
        lab.close()
    out = measure.metrics_of_move(move)
    out.update(metrics_of_ping(seen))
    late_ms = (move.start_wall - seen['start']) * 1000
    return measure.as_run(move, out, {}, [[round(at - late_ms, 1), n, 0, 0]
                                          for at, n in seen['slots']], problems)


def one_move(t, guest, peer, qemu, number, times):
    """As measure.one_move()."""
    common.need_files(UDPPING)
    if common.place.name != 'loopback':
        raise Skip(f'the {WORKLOAD} workload has a network of its own: --net loopback')
    try:
        return measure.one_move(t, guest, peer, qemu, number, times, move_and_measure)
    finally:
        shutil.rmtree(os.path.join(t.work, f'linux-{number}'), ignore_errors=True)
