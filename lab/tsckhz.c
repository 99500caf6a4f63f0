/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tsckhz.c - print this machine's time-stamp counter rate in kHz
 *
 * A guest under TCG sees the host's counter, and finds out its rate by waiting for timers, with
 * errors when the host is busy; so it is told (tsc_early_khz=). Of three measurements the one
 * with the least uncertain ends counts.
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

#define SPAN_NS 30000000    /* an error of 1 us at the ends is then 3e-5 */

struct instant {
    uint64_t tsc, ns, slack;
};

/* the clock between two reads of the counter, the closest pair of some */
static struct instant now(void) {
    struct instant best = { .slack = UINT64_MAX };

    for (int i = 0; i < 20; i++) {
        struct timespec t;
        uint64_t before = __rdtsc(), after;

        clock_gettime(CLOCK_MONOTONIC_RAW, &t);
        after = __rdtsc();
        if (after - before < best.slack) {
            best.slack = after - before;
            best.tsc = before + best.slack / 2;
            best.ns = (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
        }
    }
    return best;
}

int main(void) {
    uint64_t khz = 0, slack = UINT64_MAX;

    for (int i = 0; i < 3; i++) {
        struct timespec nap = { .tv_nsec = SPAN_NS };
        struct instant a = now(), b;

        nanosleep(&nap, NULL);
        b = now();
        if (b.ns > a.ns && a.slack + b.slack < slack) {
            slack = a.slack + b.slack;
            khz = (b.tsc - a.tsc) * 1000000 / (b.ns - a.ns);
        }
    }
    if (!khz) {
        return 1;
    }
    printf("%llu\n", (unsigned long long)khz);
    return 0;
}
