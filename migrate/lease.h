/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * lease.h - fallback=go: for how long the destination may run its guest without hearing more
 */
#ifndef FF_MIGRATE_LEASE_H
#define FF_MIGRATE_LEASE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "wire.h"

struct ff_lease {
    void (*fn)(void *opaque, bool may_run); /* the caller's; see ff_dest_on_lease() */
    void *opaque;
    char refusal[256]; /* why there is no @fn */
    bool holds; /* the caller can hold what the guest sends */
    uint64_t lease_ns;  /* 0: the source let go for good */
    uint64_t silent_ns; /* a source that answers nothing for so long has gone */
    uint64_t ready_ns;  /* when READY was sent, by ff_boot_ns(), as all times here */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t until_ns; /* the lease's end; 0: there is none */
    bool begun;        /* GO was read */
    bool released;     /* nobody takes the guest back any more */
    bool revoked;      /* the source has taken it back */
    bool visits;       /* the guest is to return: WITHDRAWN ends no link */
    bool given;        /* ... and was said: released, whatever comes */
    bool said_dead;    /* the source is, says the caller: released, once there is no link */
    bool runs;         /* what @fn was told last, or is about to be told */
    bool telling;      /* @fn is being called */

    struct ff_link *link; /* to ask over; NULL: there is none */
    bool in_link;         /* the asking thread is inside it */
    uint32_t number;      /* of the last LEASE that was asked for over it */
    uint64_t asked_ns;    /* when, if it has no answer; else 0 */
    uint64_t again_ns;    /* when to ask again */

    bool prepared, ends;
    pthread_t watch, ask;
    int timer_fd, wake_fd;
    timer_t kill; /* ends this process when @fn has not stopped the guest in time */
    uint8_t buf[FF_MSG_MAX];
};

void ff_lease_init(struct ff_lease *l);
void ff_lease_free(struct ff_lease *l);

/* PUBLISH says @lease_ms, HELLO whether the guest's output is to be held; -ENOTSUP: this side's
 * caller cannot stop its guest, or hold that */
int ff_lease_take(struct ff_lease *l, uint32_t lease_ms, bool hold, int silent_ms,
                  struct ff_error *err);

/* Whatever may fail, before READY is sent, which asks for the first lease. Without a lease nothing
 * is done by this and by all that follows */
int ff_lease_prepare(struct ff_lease *l, struct ff_error *err);

/* GO was read: it answers READY. From here on the lease reads what comes over @link. When this
 * returns, @fn has been called if too little is left */
void ff_lease_begin(struct ff_lease *l, struct ff_link *link);

/* Another link, whose source was answered after @welcomed_ns; and none: the last one is broken for
 * that, and not touched any more */
void ff_lease_attach(struct ff_lease *l, struct ff_link *link, uint64_t welcomed_ns);
void ff_lease_detach(struct ff_lease *l);

/* Released: when this returns @fn has said that the guest may run, and is not called any more */
void ff_lease_settle(struct ff_lease *l);

/* DONE was sent: 0: the source has said WITHDRAWN, and was answered, or the lease was released, and
 * the link broke; -ENOTCONN: it broke. The link is the caller's to read from here on */
int ff_lease_wait_withdrawn(struct ff_lease *l, struct ff_error *err);

/* Without end: WITHDRAWN was said; or the source is gone for good, until it attaches a link */
void ff_lease_release(struct ff_lease *l);
bool ff_lease_is_released(struct ff_lease *l);
bool ff_lease_is_given(struct ff_lease *l); /* by WITHDRAWN, of a guest that visits */

/* The guest is the source's: when this returns @fn has stopped it here, for good */
void ff_lease_revoke(struct ff_lease *l);

#endif
