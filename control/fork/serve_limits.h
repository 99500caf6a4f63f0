/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * serve_limits.h - how much a guest that forks itself may take of its hosts
 */
#ifndef FF_CONTROL_FORK_SERVE_LIMITS_H
#define FF_CONTROL_FORK_SERVE_LIMITS_H

#include <stdint.h>

#define SERVE_CHILDREN_TIMES 4 /* default of --max-children: so many times N */
#define SERVE_FORKS 60         /* of --max-forks: in a minute */
#define SERVE_FORKS_MAX 1000
#define SERVE_CHAIN 32         /* of --max-chain: QEMU looks through each image for what it reads */

struct serve_limits {
    unsigned children; /* alive at a time, of all forks */
    unsigned forks;    /* begun within a minute, 1..SERVE_FORKS_MAX */
    /* what began last, a ring */
    uint64_t begun_ms[SERVE_FORKS_MAX];
    unsigned long n;
};

/**
 * serve_limits_take() - may @want more children be forked, when @alive live?
 *
 * Return: NULL, and a fork has begun at @now_ms; or the reason, for the guest
 */
const char *serve_limits_take(struct serve_limits *l, unsigned alive, unsigned want,
                              uint64_t now_ms);

#endif
