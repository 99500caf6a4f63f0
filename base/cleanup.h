/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * cleanup.h - release at the end of a scope, and small helpers for every folder
 */
#ifndef FF_BASE_CLEANUP_H
#define FF_BASE_CLEANUP_H

#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define FF_PRINTF(a, b) __attribute__((format(printf, a, b)))
#define FF_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define FF_MIN(a, b) ((a) < (b) ? (a) : (b))
#define FF_MAX(a, b) ((a) > (b) ? (a) : (b))

static inline void ff_cleanup_free(void *p)
{
    free(*(void **)p);
}

static inline void ff_close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

#define FF_AUTO_FREE __attribute__((cleanup(ff_cleanup_free)))
#define FF_AUTO_CLOSE __attribute__((cleanup(ff_close_fd)))

/* CLOCK_MONOTONIC in ns */
static inline uint64_t ff_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline uint64_t ff_now_ms(void)
{
    return ff_now_ns() / 1000000u;
}

/* Fractions of a millisecond, too */
static inline double ff_now_exact_ms(void)
{
    return (double)ff_now_ns() / 1e6;
}

/* CLOCK_BOOTTIME in ns: goes on while the host is suspended, as its peers do */
static inline uint64_t ff_boot_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#endif
