/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hist.h - latency histogram with a relative error of at most 1/8
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      values 0..7 have a bucket each; above, every octave [2^k, 2^(k+1))
 *              is cut into 8 equal buckets. A percentile is the upper edge of its
 *              bucket, so it is never reported too low; max is exact.
 * Threads      one writer; readers see counts that may lag (relaxed atomics), which
 *              is harmless: nothing else is inferred from a count.
 * Limits       values up to 2^40 ns (18 min) are told apart; larger ones share a bucket.
 */
#ifndef FF_BASE_HIST_H
#define FF_BASE_HIST_H

#include <stdatomic.h>
#include <stdint.h>

#define FF_HIST_BUCKETS (8 + (40 - 3) * 8 + 1)

struct ff_hist {
    _Atomic uint64_t count[FF_HIST_BUCKETS];
    _Atomic uint64_t total, sum, max;
};

void ff_hist_add(struct ff_hist *h, uint64_t value);

/* @permille: 500 is the median, 1000 the exact maximum; 0 for an empty histogram */
uint64_t ff_hist_at(const struct ff_hist *h, unsigned permille);

#endif
