#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""fanout_sim_test.py - the simulator of forks to many hosts: what can be known without it"""
import os
import subprocess
import sys
import types
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'bench'))

import fanout_sim as sim

EXACT = {'state_s': 0.0, 'share': 1.0, 'hop_chunks': 0.0}
MEM, RATE = 64, '512mbit'
IMAGE_S = (MEM << 20) * 8 / 512e6
CHUNK_S = sim.CHUNK * 8 / 512e6


def run(hosts, way, costs=None, **more):
    o = types.SimpleNamespace(mem=MEM, rate=RATE, seed=1, stragglers=(0.0, 1.0), die=0.0,
                              racks=(0, 1.0))
    vars(o).update(more)
    return sim.one(hosts, way, o, costs or EXACT)


class Times(unittest.TestCase):
    def near(self, got, want):
        self.assertAlmostEqual(got, want, delta=2 * CHUNK_S)

    def test_one_host(self):
        for way in ('star', 'chain', '2', 'auto'):
            self.near(run(1, way)['memory_s'], IMAGE_S)

    def test_star_shares_one_link(self):
        r = run(16, 'star')
        self.near(r['memory_s'], 16 * IMAGE_S)
        self.assertEqual(r['sent_images'], 16)

    def test_chain_adds_a_chunk_a_host(self):
        r = run(32, 'chain')
        self.near(r['memory_s'], IMAGE_S + 31 * CHUNK_S)
        self.assertEqual(r['sent_images'], 1)

    def test_tree_shares_each_link(self):
        r = run(62, '2')                # five levels
        self.assertGreater(r['memory_s'], 2 * IMAGE_S)
        self.assertLess(r['memory_s'], 2 * IMAGE_S + 12 * CHUNK_S)

    def test_costs(self):
        slow = run(8, 'chain', {'state_s': 3.0, 'share': 0.5, 'hop_chunks': 1.5})['memory_s']
        self.near(slow, 3 + 2 * IMAGE_S + 7 * (1 + 1.5) * 2 * CHUNK_S)

    def test_auto_is_the_best_of_its_kind(self):
        for hosts in (2, 40, 400):
            auto = run(hosts, 'auto')['memory_s']
            for way in ('chain', '2', '3'):
                self.assertLess(auto, run(hosts, way)['memory_s'] * 1.05)


class Failures(unittest.TestCase):
    def test_relays_die(self):
        for seed in range(2):
            for way in ('chain', '2'):
                r = run(60, way, die=0.2, seed=seed)
                self.assertGreater(r['dead'], 0)
                self.assertEqual(r['lost'], 0)

    def test_stragglers_and_racks_only_delay(self):
        self.assertGreater(run(40, 'chain', stragglers=(0.1, 8))['memory_s'], 7 * IMAGE_S)
        self.assertGreater(run(40, '2', racks=(10, 20))['memory_s'], run(40, '2')['memory_s'])
        self.assertEqual(run(40, '2', racks=(10, 20))['lost'], 0)

    def test_a_seed_is_a_run(self):
        self.assertEqual(run(50, '2', die=0.3, seed=7), run(50, '2', die=0.3, seed=7))


class Program(unittest.TestCase):
    def test_prints(self):
        out = subprocess.run([sys.executable, sim.__file__, '--hosts', '4', '--ways', 'star', 'auto'],
                             stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
        self.assertEqual([line.split()[:3] for line in out.splitlines()[1:]],
                         [['4', 'star', '0'], ['4', 'auto', '1']])


if __name__ == '__main__':
    unittest.main()
