/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * feed_pushed.c - READs from a relay whose image no adapter may read; see feed_pushed.h
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "feed_pushed.h"
#include "wire.h"

#define SLOTS 4u /* as many chunks as prefill has buffers for, far away */

struct pushed {
    struct ff_link base;
    struct ff_link *real;
    uint8_t *land; /* SLOTS of base.max_len_bytes: the relay writes there */
    struct ff_mr mr;
    struct ff_wr wr[SLOTS];
    bool busy[SLOTS];
    uint8_t msg[FF_MSG_MAX];
};

static struct pushed *pushed_of(struct ff_link *l)
{
    return (struct pushed *)l; /* base is the first member */
}

bool ff_pushed_is(const struct ff_link *link)
{
    return link->pins || ff_failpoint("feed.pushed");
}

static int pushed_reg(struct ff_link *l, void *addr, uint64_t len, unsigned access, struct ff_mr *mr,
                      struct ff_error *err)
{
    struct ff_link *real = pushed_of(l)->real;

    return real->ops->reg(real, addr, len, access, mr, err);
}

static int pushed_post(struct ff_link *l, enum ff_queue q, const struct ff_wr *wr, struct ff_error *err)
{
    struct pushed *p = pushed_of(l);
    uint32_t i = 0;

    if (q != FF_QUEUE_PREFILL)
        return p->real->ops->post(p->real, q, wr, err);
    while (i < SLOTS && (p->busy[i] || ff_failpoint("feed.full")))
        i++;
    if (i == SLOTS)
        return ff_error_set(err, EAGAIN, "feed: %u reads in flight", SLOTS);
    const struct ff_grant g = {.region = wr->rkey - 1,
                               .id = i,
                               .offset = wr->remote,
                               .len_bytes = wr->len_bytes,
                               .addr = (uintptr_t)p->land + (uint64_t)i * l->max_len_bytes,
                               .rkey = p->mr.rkey};
    int len = ff_wire_put_grants(p->msg, &g, 1);
    int rc = len < 0 ? len : p->real->ops->send(p->real, p->msg, (uint32_t)len, err);
    p->busy[i] = !rc;
    p->wr[i] = *wr;
    return rc;
}

/* 0: a READ is complete, and @wc says so */
static int arrived(struct pushed *p, struct ff_wc *wc, struct ff_error *err)
{
    uint32_t i = wc->imm & ~(FF_IMM_ZEROS | FF_IMM_UNREADABLE);
    bool zeros = wc->imm & FF_IMM_ZEROS;

    if (wc->op != FF_WC_RECV_IMM || i >= SLOTS || !p->busy[i] ||
        (!(wc->imm & (FF_IMM_ZEROS | FF_IMM_UNREADABLE)) && wc->len_bytes != p->wr[i].len_bytes))
        return ff_error_set(err, EPROTO, "feed: 0x%x arrived unasked", wc->imm);
    if (wc->imm & FF_IMM_UNREADABLE)
        return ff_error_set(err, EIO, "it cannot read what it has got");
    if (zeros)
        memset(p->wr[i].local, 0, p->wr[i].len_bytes);
    else
        memcpy(p->wr[i].local, p->land + (size_t)i * p->base.max_len_bytes, p->wr[i].len_bytes);
    p->busy[i] = false;
    *wc = (struct ff_wc){.id = p->wr[i].id, .op = FF_WC_READ, .len_bytes = p->wr[i].len_bytes};
    return 0;
}

static int pushed_poll(struct ff_link *l, enum ff_queue q, struct ff_wc *wc, unsigned n, int timeout_ms,
                       struct ff_error *err)
{
    struct pushed *p = pushed_of(l);
    int got = p->real->ops->poll(p->real, q, wc, n, timeout_ms, err);

    for (int i = 0; q == FF_QUEUE_PREFILL && i < got; i++) {
        int rc = arrived(p, &wc[i], err);
        if (rc)
            return rc;
    }
    return got;
}

static int pushed_fd(struct ff_link *l, enum ff_queue q, short *events)
{
    struct ff_link *real = pushed_of(l)->real;

    return real->ops->fd(real, q, events);
}

static int pushed_send(struct ff_link *l, const void *msg, uint32_t len, struct ff_error *err)
{
    struct ff_link *real = pushed_of(l)->real;

    return real->ops->send(real, msg, len, err);
}

static void pushed_free(struct ff_link *l)
{
    struct pushed *p = pushed_of(l);

    p->real->ops->free(p->real); /* nobody writes there any more */
    if (p->land)
        munmap(p->land, SLOTS * (size_t)p->base.max_len_bytes);
    free(p);
}

static const struct ff_link_ops pushed_ops = {
    .name = "pushed",
    .reg = pushed_reg,
    .post = pushed_post,
    .poll = pushed_poll,
    .fd = pushed_fd,
    .send = pushed_send,
    .free = pushed_free,
};

struct ff_link *ff_pushed_new(struct ff_link *real, uint32_t max_bytes, struct ff_error *err)
{
    struct pushed *p = calloc(1, sizeof(*p));
    size_t len = SLOTS * (size_t)max_bytes;

    if (!p) {
        ff_error_set(err, ENOMEM, "feed: out of memory");
        return NULL;
    }
    p->base = *real;
    p->base.ops = &pushed_ops;
    p->base.max_len_bytes = max_bytes;
    p->base.finds_zeros = false;
    p->real = real;
    void *m = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    p->land = m == MAP_FAILED ? NULL : m;
    int rc = p->land ? 0 : ff_error_set(err, ENOMEM, "feed: out of memory");
    if (!rc)
        madvise(p->land, len, MADV_DONTFORK); /* not a child's */
    if (!rc && (!real->pushes || max_bytes > real->max_len_bytes))
        rc = ff_error_set(err, ENOTSUP, "feed: the device carries %u bytes at once (want %u, with "
                          "immediate data)", real->pushes ? real->max_len_bytes : 0, max_bytes);
    if (!rc)
        rc = real->ops->reg(real, p->land, len, FF_ACCESS_REMOTE_WRITE, &p->mr, err);
    if (!rc)
        return &p->base;
    if (p->land)
        munmap(p->land, len);
    free(p);
    return NULL;
}
