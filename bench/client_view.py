# SPDX-License-Identifier: LGPL-2.1-or-later
#
# client_view.py - one move of the Linux guest, measured from outside: UDP packets, a Redis client
"""
The guest is that of tests/guests/linux: its workers write memory and disk all the time, and a
server there answers UDP packets. The workload redis has a Redis server with most of the memory
besides, and less of the workers. The guest's network is a bridge in a namespace (netlab), in which
the client and both QEMUs run; the migration goes over that namespace's loopback. With a link
between the two, the destination has a namespace and a bridge of its own:

    namespace a   client -- br0 -- tap of the source         QEMU a
                             |                                 | eth0, the link that was asked for
    namespace b             br0 -- tap of the destination    QEMU b
"""
import json
import os
import select
import shutil
import signal
import subprocess

import common
import linuxguest
import linuxreport
import measure
import testbed
import stats
from beside import second_monitor
from common import Failed, Linux, Skip

NEED = ('mem', 'counter', 'disk')
PROGRAMS = os.path.join(common.BUILD, 'bench')
REDIS_INITRD = os.path.join(common.BUILD, 'guests', 'initrd-redis.img')
REDIS_APPEND = 'farfork.mem=8 farfork.duty=5 farfork.disk_pause_us=100000'
REDIS_REST_MIB = 128    # of the guest's memory is not for values; of the rest, 7 of 10 MiB are
KVM_BOOT_S = 15         # a KVM that emulates ring 0 takes minutes
SLOT_MS = measure.SLOT_MS


class Moved(Linux):
    """With a monitor more, for a farfork that attaches."""

    def argv(self, incoming):
        return super().argv(incoming) + second_monitor(self.s.workdir, self.name)


class Client:
    """A program inside the namespace that measures until SIGTERM, and then prints JSON."""
    append = ''
    initrd = common.INITRD

    def __init__(self, lab, *argv):
        self.name = argv[0]
        self.process = subprocess.Popen(
            lab.inside([os.path.join(PROGRAMS, argv[0]), linuxguest.GUEST_IP, *argv[1:]]),
            stdout=subprocess.PIPE)

    def wait_for_line(self, seconds):
        if not select.select([self.process.stdout], [], [], seconds)[0] \
                or not self.process.stdout.readline():
            raise Failed(f'{self.name}: not ready within {seconds} s')

    def finish(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            out, _ = self.process.communicate(timeout=75)
        except subprocess.TimeoutExpired:
            raise Failed(f'{self.name}: did not end within 75 s of a SIGTERM') from None
        if self.process.returncode:
            raise Failed(f'{self.name}: exit code {self.process.returncode}')
        return json.loads(out)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Ping(Client):
    """Numbered UDP packets."""

    def __init__(self, lab, _mem_mib):
        super().__init__(lab, 'udpping', '7000')

    @staticmethod
    def measured(seen, move):
        """(metrics, time line, problems)"""
        late_ms = (move.start_wall - seen['start']) * 1000
        return ({'udp_downtime_ms': seen['lost'] * seen['interval_us'] / 1000,
                 'udp_silence_ms': seen['silence_ms'], 'udp_rtt_p50_us': seen['rtt_p50_us'],
                 'udp_rtt_p99_us': seen['rtt_p99_us'], 'udp_rtt_max_us': seen['rtt_max_us']},
                [[round(at - late_ms, 1), n, 0, 0] for at, n in seen['slots']], [])

    @staticmethod
    def work(seen):
        """Answers by slot."""
        return [n for _, n in seen['slots'][:-1]]


class Redis(Client):
    """One who asks a Redis server for one value after the other."""
    append = REDIS_APPEND
    initrd = REDIS_INITRD

    def __init__(self, lab, mem_mib):
        items = redis_items(mem_mib)
        super().__init__(lab, 'redisload', '6379', str(items))
        self.wait_for_line(90 + mem_mib / 5)

    @staticmethod
    def measured(seen, move):
        start_us = (move.start_wall - seen['start']) * 1e6
        return answers_around(seen, start_us, (move.end_s - move.start_s) * 1e6)

    @staticmethod
    def work(seen):
        if seen['wrong']:
            raise Failed(f'{seen["wrong"]} answers were wrong')
        return [row[1] for row in time_line(pairs(seen['answers']), 0)]


def redis_items(mem_mib):
    if mem_mib < REDIS_REST_MIB + 32:
        raise Skip(f'the workload redis needs a guest of at least {REDIS_REST_MIB + 32} MiB')
    return (mem_mib - REDIS_REST_MIB) * 256 * 7 // 10


def pairs(flat):
    return list(zip(flat[::2], flat[1::2]))


def answers_around(seen, start_us, took_us):
    """(metrics, time line, problems) of what redisload saw of a move that began at start_us."""
    answers = pairs(seen['answers'])
    before = sorted(took for at, took in answers if at + took <= start_us)
    during = sorted(took for at, took in answers
                    if at + took > start_us and at < start_us + took_us)
    out = {}
    for prefix, some in (('answer_usual', before), ('answer', during)):
        for name, part in (('p50', 0.5), ('p99', 0.99), ('max', 1)):
            if some and (prefix, name) != ('answer_usual', 'max'):
                out[f'{prefix}_{name}_us'] = some[min(len(some) - 1, int(len(some) * part))]
    line = time_line(answers, start_us)
    out['work_lost_ms'], out['answers_per_s'] = stats.work_lost(line, SLOT_MS, took_us / 1000)
    problems = [f'{seen["wrong"]} answers were wrong'] if seen['wrong'] else []
    return out, line, problems


def time_line(answers, start_us):
    """[[ms after start_us, answers, the longest in us, the median], ...]; an answer counts where
    it came. The first and the last slot, which are not whole, are left out."""
    slots, width = {}, SLOT_MS * 1000
    for at, took in answers:
        slots.setdefault(int((at + took - start_us) // width), []).append(took)
    return [[n * SLOT_MS, len(some), max(some, default=0), stats.median(some) or 0]
            for n in range(min(slots) + 1, max(slots)) for some in [slots.get(n, [])]] \
        if slots else []


CLIENTS = {'linux': Ping, 'redis': Redis}


class Hosts:
    """The namespaces of source and destination: one, or two with a link between them."""

    def __init__(self, name):
        self.wire = None
        self.src = self.dst = linuxguest.Lab(name)
        try:
            if isinstance(common.place, testbed.Namespaces):
                self.dst = linuxguest.Lab(f'{name}-b')
                self.wire = self.join(self.src.name, self.dst.name)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def join(a, b):
        """One LAN of the two bridges; the client's address is on that of a. And the link: a Wire or None."""
        testbed.tool('ip', '-n', b, 'address', 'flush', 'dev', 'br0')
        testbed.tool('ip', '-n', b, 'link', 'set', 'br0', 'address', '02:77:00:00:00:02')
        testbed.tool('ip', '-n', a, 'link', 'add', 'lan0', 'type', 'veth', 'peer', 'name', 'lan0',
                    'netns', b)
        for ns in (a, b):
            testbed.tool('ip', '-n', ns, 'link', 'set', 'lan0', 'master', 'br0', 'up')
        return testbed.connect(a, b, common.place.link)

    def close(self):
        if self.wire:
            self.wire.close()
        for lab in {self.dst, self.src}:
            lab.close()


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


def watch_for(settings, seconds):
    """So long by reports of the guest, of which there are four a second."""
    return common.linux_progress(settings, NEED, reports=4 * seconds, limit_s=seconds + 60)


def settings_of(t, name, guest, qemu):
    kind = CLIENTS[guest.workload]
    common.need_files(kind.initrd)
    if kind is Redis:
        redis_items(guest.mem_mib)      # or Skip, before anything is started
    settings = common.linux_settings(t, name, guest.accel, guest.backend(), guest.mem_mib,
                                     guest.smp, kind.append)
    settings.qemu, settings.initrd = qemu, kind.initrd
    settings.extra = [*settings.extra, '-name', 'debug-threads=on']
    return settings


def move_and_measure(t, guest, peer, qemu, number, times):
    settings = settings_of(t, f'linux-{number}', guest, qemu)
    kind, client = CLIENTS[guest.workload], None
    hosts = Hosts(f'ffbench-{os.getpid()}-{number}')
    try:
        with Moved(hosts.src, settings, 'a') as src, Moved(hosts.dst, settings, 'b') as dst:
            src.start()
            common.linux_boot(src, 120)
            dst.start(incoming=True)
            watch_for(settings, 1)
            client = kind(hosts.src, guest.mem_mib)
            watch_for(settings, times.before_s)
            limit_s = times.limit_s if not peer.postcopy() else 60 + guest.mem_mib / 20
            move = measure.Move(t, src, dst, peer, limit_s)
            watch_for(settings, times.after_s)
            seen = client.finish()
            problems = linuxreport.verdict(linuxreport.load(settings.report), NEED)
    finally:
        if client:
            client.close()
        hosts.close()
    out = measure.metrics_of_move(move)
    more, line, wrong = kind.measured(seen, move)
    out.update(more)
    return measure.as_run(move, out, {}, line, problems + wrong)


def one_move(t, guest, peer, qemu, number, times):
    """As measure.one_move()."""
    common.need_files(*(os.path.join(PROGRAMS, x) for x in ('udpping', 'redisload')))
    if common.place.name != testbed.LOOPBACK and not isinstance(common.place, testbed.Namespaces):
        raise Skip(f'the workload {guest.workload} has networks of its own: not in the lab, and '
                   'not with --host')
    try:
        return measure.one_move(t, guest, peer, qemu, number, times, move_and_measure)
    finally:
        shutil.rmtree(os.path.join(t.work, f'linux-{number}'), ignore_errors=True)
