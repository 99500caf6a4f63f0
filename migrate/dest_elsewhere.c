/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_elsewhere.c - a destination whose memory is another process's: farfork-elsewhere.h
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "cleanup.h"
#include "dest_private.h"
#include "farfork-elsewhere.h"
#include "pager_elsewhere.h"
#include "thread.h"

#define LOOK_NS 100000000ull /* whether it was cancelled */

int ff_dest_elsewhere(struct ff_dest *d, struct ff_error *err)
{
    if (d->regions.n)
        return ff_error_set(err, EINVAL, "destination: memory elsewhere: say so before any region");
    d->regions.elsewhere = true;
    return 0;
}

void ff_dest_on_complete(struct ff_dest *d, int (*fn)(void *opaque, struct ff_error *err), void *opaque)
{
    d->on_complete = fn;
    d->on_complete_opaque = opaque;
}

void ff_dest_on_discard(struct ff_dest *d,
                        int (*fn)(void *opaque, const struct iovec *part, unsigned n, struct ff_error *err),
                        void *opaque)
{
    d->on_discard = fn;
    d->on_discard_opaque = opaque;
}

void ff_dest_on_pass(struct ff_dest *d,
                     int (*fn)(void *opaque, uint32_t region, uint64_t offset, uint32_t len, uint8_t *into,
                               uint8_t *zero, struct ff_error *err),
                     void *opaque)
{
    d->on_pass = fn;
    d->on_pass_opaque = opaque;
}

void ff_dest_session_text(const struct ff_dest *d, char out[FF_SESSION_TEXT])
{
    ff_session_text(d->session, out);
}

void ff_dest_on_table(struct ff_dest *d,
                      int (*fn)(void *opaque, const struct ff_region *r, unsigned n,
                                struct ff_error *err),
                      void *opaque)
{
    d->on_table = fn;
    d->on_table_opaque = opaque;
}

int dest_take_table(struct ff_dest *d, struct ff_error *err)
{
    FF_AUTO_FREE struct ff_region *r = calloc(FF_MAX(d->peer.n_regions, 1u), sizeof(*r));

    if (!r)
        return ff_error_set(err, ENOMEM, "destination: table of regions: out of memory");
    for (unsigned i = 0; i < d->peer.n_regions; i++) {
        const struct ff_wire_region *w = &d->peer.regions[i];

        r[i] = (struct ff_region){.name = w->name, .len_bytes = w->len_bytes, .psize = w->psize,
                                  .fd = -1, .zero_fill = true};
    }
    return d->on_table(d->on_table_opaque, r, d->peer.n_regions, err);
}

/* Exclusive with the end of the pager */
int ff_dest_adopt(struct ff_dest *d, int uffd, struct ff_error *err)
{
    int rc = 0;

    pthread_mutex_lock(&d->pager_lock);
    if (!d->regions.elsewhere || !d->pager_used)
        rc = ff_error_set(err, EINVAL, "destination: adopt: after ff_dest_start(), and where memory is elsewhere");
    else if (ff_elsewhere_is_adopted(&d->pager))
        rc = ff_error_set(err, EBUSY, "destination: adopt: there is a userfaultfd already");
    if (rc)
        close(uffd);
    else
        rc = ff_elsewhere_adopt(&d->pager, uffd, err);
    if (!rc && d->has_state)
        ff_pager_image_frozen(&d->pager);
    pthread_mutex_unlock(&d->pager_lock);
    return rc;
}

bool dest_may_fetch(const struct ff_dest *d)
{
    return !d->regions.elsewhere || ff_elsewhere_is_adopted(&d->pager);
}

int ff_dest_wait_complete(struct ff_dest *d, int timeout_ms, struct ff_error *err)
{
    uint64_t end = timeout_ms < 0 ? UINT64_MAX : ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct ff_pager *p = &d->pager;
    int rc = 0;

    if (!d->regions.elsewhere || !atomic_load(&d->pager_used))
        return ff_error_set(err, EINVAL, "destination: wait: nothing has started");
    pthread_mutex_lock(&p->lock);
    while (!ff_pager_was_complete(p)) {
        if (atomic_load(&d->cancelled))
            rc = ff_error_set(err, ECANCELED, "canceled");
        else if (p->state == FF_PAGER_FAILED)
            rc = ff_error_set(err, p->why.code, "%s", p->why.text);
        else if (ff_now_ns() >= end)
            rc = ff_error_set(err, ETIMEDOUT, "destination: memory is not complete after %d ms",
                              timeout_ms);
        if (rc)
            break;
        /* who cancels may be inside a callback that has the lock */
        ff_cond_wait_until(&p->changed, &p->lock, FF_MIN(end, ff_now_ns() + LOOK_NS));
    }
    pthread_mutex_unlock(&p->lock);
    return rc;
}
