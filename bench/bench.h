/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * bench.h - what several of the programs here need
 */
#ifndef FF_BENCH_BENCH_H
#define FF_BENCH_BENCH_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h" /* the clock */

_Noreturn static inline void die(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
    exit(1);
}

/* For qsort(3) */
static inline int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

#endif
