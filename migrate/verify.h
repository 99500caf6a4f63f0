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

int ff_verify_post(struct ff_pager *p, enum ff_queue q, const struct ff_pager_region *r,
                   const struct ff_wr *wr, struct ff_error *err);
int ff_verify_poll(struct ff_pager *p, enum ff_queue q, struct ff_wc *wc, unsigned n,
                   int timeout_ms, struct ff_error *err);

/* What a reason says on top, when nothing came on @q for too long: "" or that tags are missing */
const char *ff_verify_lacks(const struct ff_pager *p, enum ff_queue q);

/* As the link's post() of a READ of @r, and poll(). With verify=on -EBADMSG: what came is not what
 * the source has; but during the pass such a READ completes, torn, since the guest may have written
 * there in between. -ETIMEDOUT: no tag came for a READ, though they did for later ones */
static inline int ff_pager_post(struct ff_pager *p, enum ff_queue q,
                                const struct ff_pager_region *r, const struct ff_wr *wr,
                                struct ff_error *err)
{
    return p->verify ? ff_verify_post(p, q, r, wr, err) : p->link->ops->post(p->link, q, wr, err);
}

static inline int ff_pager_poll(struct ff_pager *p, enum ff_queue q, struct ff_wc *wc, unsigned n,
                                int timeout_ms, struct ff_error *err)
{
    return p->verify ? ff_verify_poll(p, q, wc, n, timeout_ms, err)
                     : p->link->ops->poll(p->link, q, wc, n, timeout_ms, err);
}

#endif
