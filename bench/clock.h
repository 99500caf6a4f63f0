/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * clock.h - what each program here needs that measures times
 */
#ifndef FF_BENCH_CLOCK_H
#define FF_BENCH_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* For qsort(3) */
static inline int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

#endif
