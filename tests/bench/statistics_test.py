#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""statistics_test.py - medians, ratios, the rank test and the guest's time line, by known values"""
import unittest

import benchtest        # noqa: F401  pylint: disable=unused-import
import stats


class Medians(unittest.TestCase):
    def test_odd_even_and_nothing(self):
        self.assertEqual(stats.median([5, 1, 3]), 3)
        self.assertEqual(stats.median([4, 1, 3, 2]), 2.5)
        self.assertEqual(stats.median([None, 7, None]), 7)
        self.assertIsNone(stats.median([None]))

    def test_spread(self):
        self.assertEqual(stats.spread([3, None, 1, 2]), (2, 1, 3, 3))
        self.assertIsNone(stats.spread([]))

    def test_a_median_ignores_one_outlier(self):
        self.assertEqual(stats.median([10, 11, 12, 13, 100000]), 12)


class Ratios(unittest.TestCase):
    def test_pair_by_pair_not_of_medians(self):
        # the machine was twice as slow in round 2: the ratio is 0.5 all the same
        self.assertEqual(stats.ratio([10, 20, 10], [20, 40, 20]), (0.5, 0.5, 0.5, 3))
        # of the medians it would be 2/2
        self.assertEqual(stats.ratio([1, 2, 9], [2, 1, 3]).median, 2)

    def test_a_missing_run_takes_its_partner_along(self):
        self.assertEqual(stats.pair_ratios([10, None, 30], [5, 1, 10]), [2, 3])
        self.assertIsNone(stats.ratio([1, None], [None, 2]))
        self.assertEqual(stats.pair_ratios([1, 2], [0, 1]), [2])


class Ranks(unittest.TestCase):
    def test_ties_share(self):
        self.assertEqual(stats.ranks([10, 20, 10, 30]), [1.5, 3, 1.5, 4])

    def test_known_p(self):
        # exact: of the C(10,5)=252 splits 2 are as far apart; of C(8,4)=70 also 2
        self.assertAlmostEqual(stats.rank_test([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]), 2 / 252)
        self.assertAlmostEqual(stats.rank_test([5, 6, 7, 8], [1, 2, 3, 4]), 2 / 70)
        # one pair the wrong way round: U = 1, 4 splits
        self.assertAlmostEqual(stats.rank_test([1, 2, 3, 5], [4, 6, 7, 8]), 4 / 70)
        self.assertAlmostEqual(stats.rank_test([1, 1, 1, 1], [1, 1, 1, 1]), 1)

    def test_approximation_is_near_the_exact_one(self):
        a, b = list(range(0, 40, 2)), list(range(7, 47, 2))
        self.assertGreater(len(a), 12)          # too many splits to count
        p = stats.rank_test(a, b)
        self.assertTrue(0.01 < p < 0.12, p)
        self.assertAlmostEqual(p, stats.rank_test(b, a))
        self.assertEqual(stats.rank_test([1] * 20, [1] * 20), 1.0)
        self.assertLess(stats.rank_test(list(range(20)), list(range(100, 120))), 1e-6)


class Changes(unittest.TestCase):
    def test_five_runs_apart(self):
        c = stats.change([10, 11, 12, 13, 14], [20, 21, 22, 23, 24])
        self.assertEqual((c.verdict, c.how), ('worse', 'rank test'))
        self.assertEqual(stats.change([10, 11, 12, 13, 14], [20, 21, 22, 23, 24],
                                      less_is_better=False).verdict, 'better')
        self.assertEqual(stats.change([20, 21, 22, 23, 24], [10, 11, 12, 13, 14]).verdict,
                         'better')

    def test_noise(self):
        self.assertEqual(stats.change([10, 11, 12, 13, 14], [9, 11.5, 12.5, 13.5, 14.5]).verdict,
                         'same')
        self.assertEqual(stats.change([10, 10, 10, 10], [10, 10, 10, 10]).verdict, 'same')

    def test_few_runs_need_ranges_far_apart(self):
        self.assertEqual(stats.change([1, 2], [4, 5]).verdict, 'worse')
        self.assertEqual(stats.change([4, 5], [1, 2]).verdict, 'better')
        self.assertEqual(stats.change([1, 2], [3, 4]).verdict, 'same')
        self.assertEqual(stats.change([1, 3], [2, 4]).verdict, 'same')
        self.assertEqual(stats.change([1], [100]).verdict, 'same')
        self.assertIsNone(stats.change([], [1, 2]))

    def test_zero_before(self):
        c = stats.change([0, 0], [5, 6])
        self.assertEqual((c.verdict, c.factor), ('worse', None))


class TimeLine(unittest.TestCase):
    # CPU 0 and 1; slot 12 nobody touched; CPU 1 never had a gap above 2 ms
    SLOTS = {0: [[10, 100, 50, 0], [11, 90, 900, 40, 101, 1],
                 [13, 10, 150000, 140000, 110, 2, 0, 1]],
             1: [[10, 50, 60, 0], [11, 50, 70, 0], [13, 40, 2000, 30, 101, 1]]}

    def test_lined_up(self):
        self.assertEqual(stats.line_up(self.SLOTS, 100, 1150),
                         [[-150, 150, 60, 0], [-50, 140, 900, 40], [50, 0, 0, 0],
                          [150, 50, 150000, 140030]])
        self.assertEqual(stats.line_up({}, 100, 0), [])

    def test_gap_is_that_of_the_cpu_that_had_it_best(self):
        self.assertEqual(stats.longest_gap(self.SLOTS, 100, 1200, 1400), 2000)
        self.assertEqual(stats.longest_gap({0: self.SLOTS[0]}, 100, 1200, 1400), 150000)
        self.assertEqual(stats.longest_gap({0: self.SLOTS[0]}, 100, 1000, 1050), 50)
        self.assertIsNone(stats.longest_gap({}, 100, 0, 1))

    def test_stalls_of_a_stretch(self):
        self.assertEqual(stats.stall_hist(self.SLOTS, 100, 0, 9999), {101: 2, 110: 2, 112: 1})
        self.assertEqual(stats.stall_hist(self.SLOTS, 100, 1250, 1400), {101: 1, 110: 2, 112: 1})
        self.assertEqual(stats.stall_hist(self.SLOTS, 100, 0, 1050), {})

    def test_work_lost(self):
        line = [[-200, 100, 0, 0], [-100, 100, 0, 0], [0, 0, 0, 0], [100, 50, 0, 0],
                [200, 110, 0, 0], [300, 0, 0, 0]]
        lost, usual = stats.work_lost(line, 100, 250)
        self.assertAlmostEqual(lost, 100 + 50 - 10)
        self.assertEqual(usual, 1000)
        self.assertEqual(stats.work_lost(line[2:], 100, 250), (None, None))


if __name__ == '__main__':
    unittest.main()
