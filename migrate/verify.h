/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verify.h - destination: a READ is complete when its bytes are right; see tags.h
 */
#ifndef FF_MIGRATE_VERIFY_H
#define FF_MIGRATE_VERIFY_H

#include "pager.h"
#include "tags.h"

/* Over p->link, asking at p->asks_addr; no thread polls, and the link of the last one is freed. Not
 * 0: there is none */
int ff_verify_new(struct ff_pager *p, struct ff_error *err);
void ff_verify_free(struct ff_verify *v); /* the link is freed; @v may be NULL */

/* What a READ brings: a region, the link by which its bytes come, and where it lies there */
struct ff_verify_of {
    const struct ff_pager_region *r;
    struct ff_link *link;
    uint64_t base;
};

int ff_verify_post(struct ff_pager *p, enum ff_queue q, const struct ff_verify_of *of,
                   const struct ff_wr *wr, struct ff_error *err);
int ff_verify_poll(struct ff_pager *p, enum ff_queue q, struct ff_wc *wc, unsigned n,
                   int timeout_ms, struct ff_error *err);

/* While another agent feeds prefill: @n things have come over that link, @in. As ff_verify_poll(), without
 * waiting; a READ over it whose bytes are wrong completes, torn. -EPROTO: it sent something unasked.
 * ff_verify_is_broken(): else it was the pager's link that failed, where tags come from */
int ff_verify_poll_fed(struct ff_pager *p, const struct ff_link *by, const struct ff_wc *in, unsigned n,
                       struct ff_wc *wc, unsigned n_wc, struct ff_error *err);
bool ff_verify_is_broken(const struct ff_pager *p, enum ff_queue q);

/* That link is freed: no READ over it completes, and tags for them mean nothing */
void ff_verify_drop(struct ff_pager *p, enum ff_queue q);

/* Until no READ over the pager's link is under way: what comes is thrown away. 0, or that link is broken */
int ff_verify_settle(struct ff_pager *p, enum ff_queue q, struct ff_error *err);

/* What a reason says on top, when nothing came on @q for too long: "" or that tags are missing */
const char *ff_verify_lacks(const struct ff_pager *p, enum ff_queue q);

/* As the link's post() of a READ of @r, and poll(). With verify=on -EBADMSG: what came is not what
 * the source has; but during the pass such a READ completes, torn, since the guest may have written
 * there in between. -ETIMEDOUT: no tag came for a READ, though they did for later ones */
static inline int ff_pager_post(struct ff_pager *p, enum ff_queue q,
                                const struct ff_pager_region *r, const struct ff_wr *wr,
                                struct ff_error *err)
{
    const struct ff_verify_of of = {.r = r, .link = p->link, .base = r->remote};

    return p->verify ? ff_verify_post(p, q, &of, wr, err) : p->link->ops->post(p->link, q, wr, err);
}

static inline int ff_pager_poll(struct ff_pager *p, enum ff_queue q, struct ff_wc *wc, unsigned n,
                                int timeout_ms, struct ff_error *err)
{
    return p->verify ? ff_verify_poll(p, q, wc, n, timeout_ms, err)
                     : p->link->ops->poll(p->link, q, wc, n, timeout_ms, err);
}

#endif
