/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * clock.c - time that passes when a fuzzer's input says so; linked with --wrap=clock_gettime
 */
#include <time.h>

#include "clock.h"

_Atomic uint64_t later_ns;

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = __real_clock_gettime(id, t);
    uint64_t ns = (uint64_t)t->tv_nsec + later_ns % 1000000000u;

    if (id == CLOCK_REALTIME)
        return rc;
    t->tv_sec += (time_t)(later_ns / 1000000000u + ns / 1000000000u);
    t->tv_nsec = (long)(ns % 1000000000u);
    return rc;
}
