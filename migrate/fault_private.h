/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fault_private.h - what fault.c and fault_engine.c share
 */
#ifndef FF_MIGRATE_FAULT_PRIVATE_H
#define FF_MIGRATE_FAULT_PRIVATE_H

#include "pager.h"
#include "wants.h"

#define EARLY 256u /* what comes on top is claimed at once */
#define WAITERS 64u /* more than vCPUs, mostly; of others the time is not known */

struct slot {
    struct ff_want want;
    uint8_t *local; /* where the page is read to */
    uint64_t posted_ns;
    uint8_t zero, poison; /* one granule: the page */
    bool busy;
    bool kept; /* it was read, and there is no memory to install it */
    bool due;  /* the link broke that was to bring it: to be posted again */
    bool beside; /* it was posted behind a READ of fault_around.h */
};

#define FF_AROUND_BYTES (64u << 10)
#define FF_AROUNDS 4u

/* Pages that one READ brings: [first + done, first + n) are to be installed still */
struct ff_around {
    uint32_t region, n, done;
    uint64_t first, posted_ns;
    uint8_t *local;
    bool busy, kept; /* as a slot */
    uint8_t zero[FF_AROUND_BYTES / 4096 / 8], poison[FF_AROUND_BYTES / 4096 / 8];
};

struct ff_fault_engine {
    uint8_t *memory; /* n_slots pages of slot_bytes */
    struct ff_mr mr; /* goes with the link */
    uint32_t slot_bytes, n_slots;
    uint32_t n_busy, n_kept; /* reads in flight; slots that are kept */
    uint64_t retry_ns;
    struct slot slot[FF_QUEUE_DEPTH];
    struct ff_want early[EARLY]; /* faults from before the image was frozen */
    unsigned n_early;
    uint64_t last_progress_ns;
    uint64_t awake_ns; /* when poll() returned, or the thread looked again */
    unsigned n_served, n_due;
    bool broken; /* the link, or the image */

    uint8_t *around_memory; /* FF_AROUNDS of FF_AROUND_BYTES */
    struct ff_mr around_mr; /* goes with the link */
    struct ff_around around[FF_AROUNDS];
    unsigned n_around;         /* under way; n_busy counts them, too */
    uint64_t alone_ns, beside_ns; /* what a fault's READ takes, as a moving average; 0: not known */
    unsigned n_beside;            /* of them, since it was judged last */
    unsigned hold, hold_next;     /* so many faults have none around them */
    unsigned n_posted;

    struct ff_want waiter[WAITERS]; /* on pages that prefill has claimed: for the statistics */
    unsigned n_waiters;

    pthread_mutex_t lock; /* guards asked, n_asked: handed over by another thread */
    struct ff_page_ref asked[FF_WIRE_FIRST_MAX];
    unsigned n_asked;
};

/* The link is broken: from here on this thread does not touch it. True: there is another by now;
 * what was in flight is not any more, and its claims are still ours, but for an agent's */
bool ff_fault_follow_link(struct ff_pager *p);

/* The thread ends: a hole that it was to fill is one again, which needs nobody once nothing is watched */
void ff_fault_leave_holes(struct ff_pager *p);

#endif
