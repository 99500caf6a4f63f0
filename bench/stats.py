# SPDX-License-Identifier: LGPL-2.1-or-later
#
# stats.py - statistics of few runs: medians, ratios pair by pair, what is beyond noise
"""
No distribution is assumed: a handful of runs on a machine that does other things as well.
None stands for what a run does not have, and is left out.
"""
import itertools
import math
from collections import namedtuple

ALPHA = 0.05            # of the rank test
MIN_RUNS = 4            # each side: with fewer, no order of the ranks is rarer than ALPHA

Range = namedtuple('Range', 'median low high n')
Change = namedtuple('Change', 'old new factor verdict how p')


def known(values):
    return [v for v in values if v is not None]


def median(values):
    values = sorted(known(values))
    if not values:
        return None
    mid = len(values) // 2
    return values[mid] if len(values) % 2 else (values[mid - 1] + values[mid]) / 2


def spread(values):
    """Range of the values, or None if there are none."""
    values = known(values)
    return Range(median(values), min(values), max(values), len(values)) if values else None


def pair_ratios(a, b):
    """The i-th of a by the i-th of b: what both were exposed to cancels out."""
    return [x / y for x, y in zip(a, b) if x is not None and y]


def ratio(a, b):
    """Range of the ratios pair by pair, or None."""
    return spread(pair_ratios(a, b))


# --- the rank test ---

def ranks(values):
    """From 1; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    out = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for i in order[at:end + 1]:
            out[i] = (at + end) / 2 + 1
        at = end + 1
    return out


def rank_test(a, b):
    """Two-sided p of the Wilcoxon-Mann-Whitney test: how often a random split of all the values
    in two would differ by as much. Exact where that is quick, else by the normal approximation."""
    r = ranks(a + b)
    n, m = len(a), len(b)
    mean = n * (n + m + 1) / 2
    off = abs(sum(r[:n]) - mean)
    if math.comb(n + m, n) <= 200000:
        splits = [abs(sum(s) - mean) for s in itertools.combinations(r, n)]
        return sum(d >= off - 1e-9 for d in splits) / len(splits)
    total = n + m
    ties = sum(c ** 3 - c for c in (r.count(x) for x in set(r)))
    var = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    return math.erfc(max(0, off - 0.5) / math.sqrt(2 * var)) if var else 1.0


def change(old, new, less_is_better=True):
    """What became of a figure: verdict better, worse, same (within noise), or None where one
    side has no value. It changed if the rank test says so, or, with too few runs for one, if
    the ranges from min to max are further apart than either is wide: two ranges of two runs
    do not overlap one time in three by chance."""
    old, new = known(old), known(new)
    a, b = spread(old), spread(new)
    if not a or not b:
        return None
    factor = b.median / a.median if a.median else None
    p = None
    if min(a.n, b.n) >= MIN_RUNS:
        how, p = 'rank test', rank_test(old, new)
        changed = p <= ALPHA
    elif min(a.n, b.n) >= 2:
        apart = max(b.low - a.high, a.low - b.high)
        how, changed = 'ranges', apart > max(a.high - a.low, b.high - b.low)
    else:
        how, changed = 'one run says nothing', False
    if not changed or a.median == b.median:
        verdict = 'same'
    else:
        verdict = 'better' if (b.median < a.median) == less_is_better else 'worse'
    return Change(a, b, factor, verdict, how, p)


# --- the guest's time line ---

def line_up(slots, slot_ms, start_ms):
    """Slots of each CPU, {cpu: [[number, touches, gap_us, stall_us, ...], ...]}, as one time line
    [[t_ms, touches, gap_us, stall_us], ...]: t 0 is start_ms of the guest's clock, touches and
    stalls are of all CPUs, the gap is the longest. What nobody touched in is there too, with 0."""
    numbers = [s[0] for rows in slots.values() for s in rows]
    if not numbers:
        return []
    out = {n: [round(n * slot_ms - start_ms, 1), 0, 0, 0] for n in range(min(numbers),
                                                                         max(numbers) + 1)}
    for rows in slots.values():
        for n, touches, gap_us, stall_us, *_ in rows:
            out[n][1] += touches
            out[n][2] = max(out[n][2], gap_us)
            out[n][3] += stall_us
    return [out[n] for n in sorted(out)]


def within(rows, slot_ms, start_ms, end_ms):
    """The slots that overlap a stretch of the guest's clock."""
    return [r for r in rows if (r[0] + 1) * slot_ms > start_ms and r[0] * slot_ms < end_ms]


def longest_gap(slots, slot_ms, start_ms, end_ms):
    """In us: the longest time between two touches that ended between two moments of the guest's
    clock; of several CPUs the one that had it best, since a pause of the machine hits all."""
    return min((max((r[2] for r in within(rows, slot_ms, start_ms, end_ms)), default=0)
                for rows in slots.values()), default=None)


def stall_hist(slots, slot_ms, start_ms, end_ms):
    """{bucket: stalls} of all CPUs between two moments of the guest's clock."""
    hist = {}
    for rows in slots.values():
        for row in within(rows, slot_ms, start_ms, end_ms):
            for i, count in enumerate(row[5:]):
                if count:
                    hist[row[4] + i] = hist.get(row[4] + i, 0) + count
    return hist


def work_lost(line, slot_ms, end_ms):
    """(ms of work lost from t 0 to end_ms, touches per second before), by the median before;
    None without a time before."""
    before = [row[1] for row in line if row[0] + slot_ms <= 0]
    usual = median(before)
    if not usual:
        return None, None
    during = [row[1] for row in line if 0 <= row[0] < end_ms]
    return sum((1 - x / usual) * slot_ms for x in during), usual * 1000 / slot_ms
