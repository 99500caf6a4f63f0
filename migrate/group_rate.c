/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * group_rate.c - how fast a group is sent to, from what its agents get; see group.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      as fast as the slowest agent that is no outlier can hear: one that gets less than half of
 *              what the one in the middle gets has a link, or a CPU, of its own kind. The rest of its
 *              image comes by its link.
 * Limits       up to LOSS_FEW of 1000 lost the rate grows, from LOSS_MANY on it is what the slowest got:
 *              a lost packet costs a page, which prefill brings as fast.
 */
#include <stdlib.h>

#include "cleanup.h"
#include "group.h"

#define LOSS_FEW 20u
#define LOSS_MANY 80u
#define HALF 500u

static unsigned permille_lost(const struct ff_group_got *g)
{
    uint64_t lost = FF_MIN(g->lost, UINT32_MAX), all = FF_MIN(g->packets, UINT32_MAX) + lost;

    return all ? (unsigned)(lost * 1000 / all) : 0; /* whatever an agent says: at most 1000 */
}

static int by_loss(const void *a, const void *b)
{
    return (int)permille_lost(a) - (int)permille_lost(b);
}

void ff_group_rate_turn(struct ff_group_rate *r, struct ff_group_got *got, unsigned n, bool is_full)
{
    if (!n)
        return;
    qsort(got, n, sizeof(*got), by_loss);
    unsigned middle = permille_lost(&got[n / 2]), last = n - 1;

    while (last > n / 2 && 1000 - permille_lost(&got[last]) < (1000 - middle) / 2)
        last--;
    unsigned lost = permille_lost(&got[last]);
    r->useless = middle > HALF && r->bytes_s == FF_GROUP_RATE_MIN ? r->useless + 1 : 0;
    if (lost > LOSS_MANY) {
        r->had_loss = true;
        r->bytes_s = FF_MAX(r->bytes_s * (1000 - FF_MIN(lost, HALF)) / 1000, FF_GROUP_RATE_MIN);
    } else if (lost < LOSS_FEW && is_full) {
        r->bytes_s = FF_MIN(r->had_loss ? r->bytes_s + r->bytes_s / 8 : 2 * r->bytes_s,
                            FF_GROUP_RATE_MAX);
    }
}
