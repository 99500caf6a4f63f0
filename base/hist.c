/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hist.c - latency histogram with a relative error of at most 1/8
 */
#include "hist.h"

#define RELAXED memory_order_relaxed

static unsigned bucket_of(uint64_t v)
{
    if (v < 8)
        return (unsigned)v;
    if (v >> 40)
        return FF_HIST_BUCKETS - 1;
    unsigned octave = 63u - (unsigned)__builtin_clzll(v); /* >= 3 */
    return 8 + (octave - 3) * 8 + (unsigned)((v >> (octave - 3)) & 7);
}

static uint64_t bucket_top(unsigned b)
{
    if (b < 8)
        return b;
    unsigned octave = 3 + (b - 8) / 8, sub = (b - 8) % 8;
    return (((uint64_t)8 + sub + 1) << (octave - 3)) - 1;
}

static void add_relaxed(_Atomic uint64_t *p, uint64_t n)
{
    /* one writer: a plain read and write, atomic only against torn reads */
    atomic_store_explicit(p, atomic_load_explicit(p, RELAXED) + n, RELAXED);
}

void ff_hist_add(struct ff_hist *h, uint64_t value)
{
    add_relaxed(&h->count[bucket_of(value)], 1);
    add_relaxed(&h->total, 1);
    add_relaxed(&h->sum, value);
    if (value > atomic_load_explicit(&h->max, RELAXED))
        atomic_store_explicit(&h->max, value, RELAXED);
}

uint64_t ff_hist_at(const struct ff_hist *h, unsigned permille)
{
    uint64_t total = atomic_load_explicit(&h->total, RELAXED), seen = 0;
    uint64_t max = atomic_load_explicit(&h->max, RELAXED);
    if (!total || permille >= 1000)
        return max;

    uint64_t want = (total * permille + 999) / 1000;
    for (unsigned b = 0; b < FF_HIST_BUCKETS - 1; b++) {
        seen += atomic_load_explicit(&h->count[b], RELAXED);
        if (seen >= want && seen)
            return bucket_top(b) < max ? bucket_top(b) : max;
    }
    return max;
}
