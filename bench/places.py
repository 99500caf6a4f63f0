# SPDX-License-Identifier: LGPL-2.1-or-later
#
# places.py - where the two QEMUs of a benchmark run: this host, two namespaces, the lab
"""
    with places.make('10gbit,0.2ms,0.1%', host=None) as place:
        common.place = place

A place is what tests/e2e/common.py calls one, with a name, and argv() for other programs too.
"""
import json
import math
import os
import re
import subprocess
import time

import common
from common import Failed, Skip

LOOPBACK = 'loopback'
LIMIT_S, LEAST_S = 10, 3
RATE = re.compile(r'(\d+(?:\.\d+)?)(k|m|g)bit')


def tool(*argv):
    """Run ip, tc or net: Skip when this host cannot do it."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    except FileNotFoundError:
        raise Skip(f'no {argv[0]}: install package iproute2') from None
    if done.returncode:
        raise Skip(f'{" ".join(argv)}: {" ".join(done.stdout.split())}; needs root, and the kernel '
                   'modules veth, sch_tbf and sch_netem')


class Link:
    """What --net says: rate, round-trip time, loss; each may be left out."""

    def __init__(self, text):
        self.rate = self.rtt_ms = self.loss = None
        for part in text.split(','):
            if RATE.fullmatch(part):
                self.rate = part
            elif re.fullmatch(r'\d+(\.\d+)?ms', part):
                self.rtt_ms = float(part[:-2])
            elif re.fullmatch(r'\d+(\.\d+)?%', part):
                self.loss = float(part[:-1])
            else:
                raise ValueError(f'{part!r} is no rate (10gbit), time (0.2ms) or loss (0.1%)')

    def bits(self):
        number, unit = RATE.fullmatch(self.rate).groups()
        return float(number) * {'k': 1e3, 'm': 1e6, 'g': 1e9}[unit]

    def qdisc(self):
        """Arguments of tc for one direction; [] for nothing."""
        if self.rtt_ms or self.loss:
            rate = ['rate', self.rate] if self.rate else []
            loss = ['loss', f'{self.loss}%'] if self.loss else []
            # packets on the way in a round trip, of 1500 bytes, and as many that queue
            limit = max(1000, int((self.bits() if self.rate else 1e11) * 1e-3
                                  * (self.rtt_ms or 1) / 8 / 1500 * 2))
            return ['netem', 'delay', f'{(self.rtt_ms or 0) * 500:.0f}us', *loss, *rate,
                    'limit', str(limit)]
        if self.rate:
            # a bucket that lasts for 4 ms, a timer tick
            burst = max(262144, int(self.bits() / 8 * 0.004))
            return ['tbf', 'rate', self.rate, 'burst', str(burst), 'latency', '20ms']
        return []


def limit_s(place, mem_mib):
    """What a pre-copy may take: twice what the link needs for all memory, or LIMIT_S."""
    link = getattr(place, 'link', None)
    if not link or not link.rate:
        return LIMIT_S
    return max(math.ceil(2 * mem_mib * (8 << 20) / link.bits()), LEAST_S)


class Here(common.Place):
    """Both over the loopback, or an own address that was named."""

    def __init__(self, host=None):
        self.host = host or '127.0.0.1'
        self.name = LOOPBACK if not host else host

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass


def connect(a, b, link):
    """A link between two namespaces: eth0, 10.79.0.1 and 10.79.0.2."""
    tool('ip', '-n', a, 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', b)
    qdisc = link.qdisc()
    for i, ns in enumerate((a, b)):
        tool('ip', '-n', ns, 'address', 'add', f'10.79.0.{i + 1}/24', 'dev', 'eth0')
        tool('ip', '-n', ns, 'link', 'set', 'eth0', 'up')
        if qdisc:
            tool('ip', 'netns', 'exec', ns, 'tc', 'qdisc', 'add', 'dev', 'eth0', 'root', *qdisc)


class Namespaces(common.Place):
    """A host each, and a link between them."""
    host = '10.79.0.2'

    def __init__(self, net):
        self.name, self.link = net, Link(net)
        self.ns = [f'ffbench-{os.getpid()}-{x}' for x in 'ab']

    def argv(self, argv, incoming):
        return ['ip', 'netns', 'exec', self.ns[bool(incoming)], *argv]

    def __enter__(self):
        try:
            self.up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def up(self):
        a, b = self.ns
        for ns in self.ns:
            tool('ip', 'netns', 'add', ns)
            tool('ip', '-n', ns, 'link', 'set', 'lo', 'up')
        connect(a, b, self.link)

    def __exit__(self, *exc):
        for ns in self.ns:
            if os.path.exists(f'/run/netns/{ns}'):
                subprocess.run(['ip', 'netns', 'del', ns], timeout=60, check=False)


class Lab(common.Place):
    """Inside `make lab`: its two hosts, which have RDMA devices."""
    host = '10.8.0.2'
    patience = 3

    def __init__(self, net):
        self.name, self.link = net, Link(net) if net != LOOPBACK else None
        if self.link and (self.link.rate or not (self.link.rtt_ms or self.link.loss)):
            raise Skip('the lab has delay and loss, but no rate: it is slow as it is')
        if net == LOOPBACK:
            self.name = 'lab'

    def argv(self, argv, incoming):
        return ['ip', 'netns', 'exec', 'hostb' if incoming else 'hosta', *argv]

    def __enter__(self):
        if self.link:
            tool('net', 'delay', f'{(self.link.rtt_ms or 0) / 2}ms', 'loss',
                 f'{self.link.loss or 0}%')
        return self

    def __exit__(self, *exc):
        if self.link:
            tool('net', 'clear')

    def read_floor(self):
        """READs of 4 KiB, one after the other, by perftest, which never sleeps."""
        argv = ['ib_read_lat', '-x', '1', '-s', '4096', '-n', '500', '-d']
        for _ in range(10):     # whether its server listens yet is not to be seen: try again
            with subprocess.Popen(self.argv([*argv, 'rxeb'], True), stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as server:
                time.sleep(0.3)
                out = subprocess.run(self.argv([*argv, 'rxea', self.host], False), timeout=60,
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                     check=False)
                server.kill()
            row = re.search(r'^ *4096 .*$', out.stdout, re.M)
            if row:
                # bytes, iterations, min, max, typical, average, deviation, 99 %, 99.9 %
                figures = [float(x) for x in row[0].split()]
                return {'verbs_read_p50_us': figures[4], 'verbs_read_p99_us': figures[7]}
        raise Failed(f'ib_read_lat: no figures: {" ".join(out.stdout.split())[-200:]}')


def make(net, host=None):
    if os.environ.get('LAB_HOSTS') == '2':
        return Lab(net)
    if os.environ.get('LAB_HOSTS'):
        raise Skip('a benchmark in the lab needs its two hosts: kernel 7.2')
    return Here(host) if net == LOOPBACK else Namespaces(net)


def floors(program, place):
    """What place can do at best, as bench/floors prints it."""
    out = subprocess.run(place.argv([program, 'local'], False), stdout=subprocess.PIPE, text=True,
                         timeout=120, check=False)
    if out.returncode:
        raise Failed(f'{program} local: exit code {out.returncode}')
    found = json.loads(out.stdout)
    with subprocess.Popen(place.argv([program, 'serve', place.host], True),
                          stdout=subprocess.PIPE, text=True) as server:
        try:
            port = server.stdout.readline().strip()
            out = subprocess.run(place.argv([program, 'tcp', place.host, port], False),
                                 stdout=subprocess.PIPE, text=True, timeout=120, check=False)
            if out.returncode:
                raise Failed(f'{program} tcp: exit code {out.returncode}')
        finally:
            server.kill()
    found.update(json.loads(out.stdout))
    if isinstance(place, Lab):
        found.update(place.read_floor())
    return found
