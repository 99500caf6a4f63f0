/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * bitmap.h - bits in an array of 64-bit words; one thread at a time
 */
#ifndef FF_BASE_BITMAP_H
#define FF_BASE_BITMAP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static inline uint64_t *ff_bitmap_new(uint64_t n_bits)
{
    return calloc((n_bits + 63) / 64 + 1, sizeof(uint64_t));
}

static inline void ff_bitmap_set(uint64_t *map, uint64_t bit)
{
    map[bit / 64] |= 1ull << (bit % 64);
}

static inline bool ff_bitmap_get(const uint64_t *map, uint64_t bit)
{
    return map[bit / 64] & (1ull << (bit % 64));
}

/* The first clear bit of [0, @n_bits) at or after @from, going around the end once; there
 * must be one, else @n_bits is returned */
static inline uint64_t ff_bitmap_next_clear(const uint64_t *map, uint64_t n_bits, uint64_t from)
{
    for (int around = 0; around < 2; around++, from = 0) {
        for (uint64_t i = from; i < n_bits;) {
            uint64_t left = ~map[i / 64] >> (i % 64);
            if (left) {
                i += (uint64_t)__builtin_ctzll(left);
                if (i < n_bits)
                    return i;
                break;
            }
            i = (i / 64 + 1) * 64;
        }
    }
    return n_bits;
}

#endif
