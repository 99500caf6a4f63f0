#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""fanout_sim.py - how long a fork to very many hosts takes: discrete events, chunk by chunk

usage: fanout_sim.py [--hosts N...] [--ways star|chain|NUMBER...] [--mem MIB] [--rate RATE]
                     [--measured FILE] [--stragglers SHARE:FACTOR] [--die SHARE] [--racks SIZE:FACTOR]
                     [--seed N] [--json FILE]

Picture   each chunk of each host is one event: it is asked for when a place of the window is free and
          the feeder has it; it then occupies the feeder's link, the uplinks of both racks where they
          differ, and the host's own link, all from the same moment on, each for as long as its rate
          takes, and is there when the slowest is done. Links serve first come, first served.
Costs     of bench/fanout.py, by --measured (its --json): how long the state takes, the share of the rate
          that memory gets, and how long after it has a chunk a host feeds others with it. Without: those of docs/fanout.md.
Failures  a straggler's link has a part of the rate. A relay that dies is noticed by who it feeds when its
          connection ends; those are fed by the next host that has room, as fork_tree.c does it.
Limits    one copy of every chunk: faults, which take their own way, are not in it, nor CPUs. TCP's
          start and losses are in the share of the rate alone.
"""
import argparse
import heapq
import json
import math
import random
import sys

CHUNK = 512 << 10
WINDOW = 2
LEVEL = 3                       # chunks by which each level begins later
# assumed, where nothing was measured (docs/fanout.md)
COSTS = {'state_s': 0.25, 'share': 0.95, 'hop_chunks': 2.0}
NOTICED_S, AGAIN_S = 0.3, 0.2   # a connection that ended; vmclone's turn, and a new one
UNITS = {'k': 1e3, 'm': 1e6, 'g': 1e9}


def bits(text):
    return float(text[:-4]) * UNITS[text[-4]]


def fanout_auto(hosts, image):
    """As fork_fanout() in control/fork/fork_tree.c."""
    chunks = image // CHUNK + 1

    def time_of(k):
        left, level, depth = hosts, k, 0
        while left > 0:
            left, level, depth = left - level, level * k, depth + 1
        return (chunks + LEVEL * depth) * k
    return min(range(1, 9), key=lambda k: (time_of(k), k))


class Host:
    """One that gets the image; number 0 is the parent, which has it."""

    __slots__ = ('number', 'feeder', 'feeds', 'got', 'has', 'asked', 'under_way', 'done_s', 'dead', 'waits')

    def __init__(self, number):
        self.number, self.feeder, self.feeds = number, None, 0
        self.got = self.has = self.asked = self.under_way = 0   # chunks, in order; has: that it may feed
        self.done_s, self.dead, self.waits = None, False, []


class Sim:
    def __init__(self, hosts, fanout, o, costs):
        self.o, self.costs, self.rng = o, costs, random.Random(o.seed)
        self.chunks = math.ceil((o.mem << 20) / CHUNK)
        self.fanout = fanout
        self.hosts = [Host(i) for i in range(hosts + 1)]
        self.rate = [bits(o.rate) * costs['share'] / 8] * (hosts + 1)
        self.hop_s = costs['hop_chunks'] * CHUNK / self.rate[0]
        for i in range(1, hosts + 1):
            if self.rng.random() < o.stragglers[0]:
                self.rate[i] /= o.stragglers[1]
        self.free_out = [0.0] * (hosts + 1)
        self.free_in = [0.0] * (hosts + 1)
        racks = hosts // o.racks[0] + 1 if o.racks[0] else 0
        self.up, self.down = [0.0] * racks, [0.0] * racks
        self.events, self.count, self.sent, self.now = [], 0, 0, 0.0
        self.dying = {i for i in range(1, hosts + 1) if self.rng.random() < o.die}

    def at(self, when, what, *args):
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what, args))

    # --- the tree ---

    def room(self, but):
        """The first host of the tree that feeds fewer than fanout, and is not fed by `but`."""
        for h in self.hosts[1:]:
            if h.dead or h is but or h.feeds >= self.fanout:
                continue
            up = h
            while up.number and up is not but and not up.dead and up.feeder:
                up = up.feeder
            if not up.number:
                return h
        return self.hosts[0]

    def plan(self):
        for i, h in enumerate(self.hosts[1:]):
            parent = 0 if not self.fanout or i < self.fanout else (i - self.fanout) // self.fanout + 1
            self.feed(h, self.hosts[parent])

    def feed(self, h, feeder):
        h.feeder = feeder
        feeder.feeds += 1

    # --- a chunk ---

    def ask(self, h):
        while h.under_way < WINDOW and h.asked < self.chunks and not h.dead:
            feeder = h.feeder
            if feeder.number and feeder.has <= h.asked:
                feeder.waits.append(h)
                return
            self.send(feeder, h)

    def send(self, a, b):
        paths = [(self.free_out, a.number, self.rate[a.number]),
                 (self.free_in, b.number, self.rate[b.number])]
        size = self.o.racks[0]
        if size and a.number // size != b.number // size:
            uplink = bits(self.o.rate) / 8 * size / self.o.racks[1]
            paths += [(self.up, a.number // size, uplink), (self.down, b.number // size, uplink)]
        start = max([self.now] + [free[i] for free, i, _ in paths])
        for free, i, rate in paths:
            free[i] = start + CHUNK / rate
        b.asked += 1
        b.under_way += 1
        self.sent += not a.number
        end = max(start + CHUNK / rate for _, _, rate in paths)
        self.at(end, self.arrived, a, b)

    def arrived(self, a, b):
        if b.dead or b.feeder is not a:
            return              # the link has gone by then: it is asked for again
        b.got += 1
        b.under_way -= 1
        if b.number in self.dying and b.got > self.chunks // 2:
            self.die(b)
            return
        self.at(self.now + self.hop_s, self.feedable, b)
        if b.got == self.chunks:
            b.done_s = self.now
            b.feeder.feeds -= 1
        self.ask(b)

    def feedable(self, b):
        """A chunk has been told to those that it feeds."""
        b.has += 1
        waits, b.waits = b.waits, []
        for h in waits if not b.dead else ():
            self.ask(h)

    def die(self, h):
        h.dead = True
        h.feeder.feeds -= 1
        for fed in self.hosts[1:]:
            if fed.feeder is h and fed.done_s is None and not fed.dead:
                self.at(self.now + NOTICED_S + AGAIN_S, self.again, fed)

    def again(self, h):
        if h.dead or h.done_s is not None:
            return
        h.asked, h.under_way = h.got, 0
        self.feed(h, self.room(h))
        self.ask(h)

    def run(self):
        self.plan()
        for h in self.hosts[1:]:
            self.at(self.costs['state_s'], self.ask, h)
        self.hosts[0].has = self.chunks
        while self.events:
            self.now, _, what, args = heapq.heappop(self.events)
            what(*args)
        done = [h.done_s for h in self.hosts[1:] if not h.dead]
        return {'memory_s': max(done) if done else 0.0, 'median_s': sorted(done)[len(done) // 2] if done
                else 0.0, 'sent_images': self.sent / self.chunks,
                'dead': sum(h.dead for h in self.hosts), 'lost': sum(d is None for d in done)}


def fanout_of(way, hosts, o):
    if way == 'auto':
        return fanout_auto(hosts, o.mem << 20)
    return {'star': 0, 'chain': 1}.get(way) if way in ('star', 'chain') else int(way)


def one(hosts, way, o, costs):
    return {'hosts': hosts, 'way': way,
            **Sim(hosts, fanout_of(way, hosts, o), o, costs).run()}


def costs_of(rows, o):
    """From one host's time, and from the shortest chain that was measured."""
    by = {(r['way'], r['hosts']): r for r in rows}
    single = by.get(('chain', 1)) or by.get(('star', 1))
    if not single:
        sys.exit('fanout_sim.py: --measured: want one host by chain or star in it')
    ideal = (o.mem << 20) * 8 / bits(o.rate)
    costs = dict(COSTS, share=min(1.0, ideal / max(single['memory_s'] - COSTS['state_s'], 1e-9)))
    chains = sorted(r['hosts'] for r in rows if r['way'] == 'chain' and r['hosts'] > 1)
    if chains:
        n = chains[0]
        costs['hop_chunks'] = 0.0
        plain = one(n, 'chain', o, costs)['memory_s']
        chunk_s = CHUNK * 8 / bits(o.rate) / costs['share']
        costs['hop_chunks'] = max(0.0, (by[('chain', n)]['memory_s'] - plain) / n / chunk_s)
    return costs


def compare(rows, o, costs):
    print(f'{"hosts":>6}  {"way":<6} {"measured s":>10} {"simulated s":>11} {"off":>6}')
    for r in rows:
        if r['way'] in ('floor', 'multicast'):
            continue
        s = one(r['hosts'], r['way'], o, costs)['memory_s']
        print(f'{r["hosts"]:>6}  {r["way"]:<6} {r["memory_s"]:>10.2f} {s:>11.2f} '
              f'{(s / r["memory_s"] - 1) * 100:>+5.0f}%')


def pair(text):
    a, _, b = text.partition(':')
    return (float(a), float(b or 1))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument('--hosts', type=int, nargs='+', default=[100, 1000, 10000])
    p.add_argument('--ways', nargs='+', default=['star', 'chain', '2', 'auto'])
    p.add_argument('--mem', type=int, default=96, metavar='MIB')
    p.add_argument('--rate', default='100mbit')
    p.add_argument('--measured', metavar='FILE')
    p.add_argument('--stragglers', type=pair, default=(0.0, 1.0), metavar='SHARE:FACTOR')
    p.add_argument('--die', type=float, default=0.0, metavar='SHARE')
    p.add_argument('--racks', type=pair, default=(0, 1.0), metavar='SIZE:FACTOR')
    p.add_argument('--seed', type=int, default=1)
    p.add_argument('--json', metavar='FILE')
    o = p.parse_args()
    o.racks = (int(o.racks[0]), o.racks[1])
    costs = COSTS
    if o.measured:
        with open(o.measured, encoding='utf-8') as f:
            doc = json.load(f)
        o.mem, o.rate = doc['mem_mib'], doc['rate']
        costs = costs_of(doc['rows'], o)
        print(', '.join(f'{k} {v:.3f}' for k, v in costs.items()))
        compare(doc['rows'], o, costs)
    rows = []
    print(f'{"hosts":>6}  {"way":<6} {"fanout":>6} {"memory s":>9} {"median s":>9} {"sent":>8} {"dead":>5}')
    for n in o.hosts:
        for way in o.ways:
            r = one(n, way, o, costs)
            rows.append(r)
            print(f'{n:>6}  {way:<6} {fanout_of(way, n, o):>6} {r["memory_s"]:>9.2f} {r["median_s"]:>9.2f} '
                  f'{r["sent_images"]:>8.2f} {r["dead"]:>5}', flush=True)
            if r['lost']:
                print(f'FAIL: {r["lost"]} hosts never have all')
                return 1
    if o.json:
        with open(o.json, 'w', encoding='utf-8') as f:
            json.dump({'costs': costs, 'rows': rows}, f, indent=1)
    return 0


if __name__ == '__main__':
    sys.exit(main())
