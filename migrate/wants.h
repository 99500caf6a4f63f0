/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wants.h - the fault thread's: pages that it has claimed and is to bring, first come, first served
 */
#ifndef FF_MIGRATE_WANTS_H
#define FF_MIGRATE_WANTS_H

#include <stdbool.h>
#include <stdint.h>

#define FF_WANTS_MAX 8192u
#define FF_WANTS_EVENTS 32 /* that are read at once */
#define FF_WANTS_AROUND 64u /* of fault_around.h, when a link breaks */

struct ff_want {
    uint32_t region;
    bool first_touch;
    bool around; /* nobody has touched it: fault_around.h */
    bool hole; /* there was no memory for its zeros when it was touched */
    uint64_t page;
    uint64_t since_ns; /* when the event was read */
    uint64_t queued_ns; /* when it was claimed */
};

struct ff_wants {
    struct ff_want want[FF_WANTS_MAX];
    unsigned first, n;
    unsigned n_holes; /* of them */
    uint32_t touched_region; /* somebody waits for this page, and nothing was asked for around it yet; */
    uint64_t touched_page;
    bool was_touched; /* else there is none */
    bool away; /* an agent's link is: what is wanted is claimed by nobody, so that others may bring it.
                * Children's notes say who waits (children.c) */
};

/* Somebody waits for a page that was MISSING */
static inline void ff_wants_touched(struct ff_wants *q, uint32_t region, uint64_t page)
{
    q->touched_region = region;
    q->touched_page = page;
    q->was_touched = true;
}

/* With room: n < FF_WANTS_MAX */
static inline void ff_wants_add(struct ff_wants *q, struct ff_want w)
{
    q->want[(q->first + q->n++) % FF_WANTS_MAX] = w;
    q->n_holes += w.hole;
}

/* The oldest; n > 0 */
static inline struct ff_want ff_wants_take(struct ff_wants *q)
{
    struct ff_want w = q->want[q->first];

    q->first = (q->first + 1) % FF_WANTS_MAX;
    q->n--;
    q->n_holes -= w.hole;
    return w;
}

#endif
