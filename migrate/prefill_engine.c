/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * prefill_engine.c - prefill's buffers and what is under way: made, given to a link, begun again
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "prefill_private.h"

#define WINDOW 2u /* more do not stay in the cache */
#define WINDOW_FAR 4u
#define FAR_US 500u

/* While one chunk is installed the next one comes; where the request for it takes long, more */
static unsigned window_of(const struct ff_pager *p)
{
    if (p->opts->window)
        return FF_MIN(p->opts->window, BUFFERS_MAX);
    return p->link->rtt_us >= FAR_US ? WINDOW_FAR : WINDOW;
}

int ff_prefill_engine_new(struct ff_pager *p, struct ff_error *err)
{
    struct ff_prefill_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return ff_error_set(err, ENOMEM, "pager: prefill engine: out of memory");
    p->prefill = e;
    e->cut_buffer = -1;
    e->window = window_of(p);
    e->buffer_bytes = 4096; /* a device registers no less, also where there is no region */
    for (unsigned i = 0; i < p->n_regions; i++)
        e->buffer_bytes = FF_MAX(e->buffer_bytes, p->region[i].chunk_bytes);
    int rc = ff_chunks_init(&e->chunks, p->n_chunks);
    size_t len = (size_t)e->window * e->buffer_bytes;
    void *m = mmap(NULL, len + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (rc || m == MAP_FAILED)
        return ff_error_set(err, ENOMEM, "pager: prefill buffers: out of memory");
    madvise(m, len + HUGE, MADV_DONTFORK); /* not a child's */
    e->map = m;
    e->map_bytes = len + HUGE;
    e->memory = e->map + (-(uintptr_t)e->map & (HUGE - 1));
    bool pushes = p->opts->prefill == FF_PREFILL_PUSH || p->opts->prefill == FF_PREFILL_AUTO;
    /* nobody writes where bytes lie that were verified */
    unsigned access = pushes && !p->opts->verify ? FF_ACCESS_REMOTE_WRITE : 0;
    if (p->opts->landing == FF_LANDING_MOVE) {
        madvise(e->memory, len, MADV_HUGEPAGE);
        /* what is pinned cannot be moved */
        bool on_demand = p->link->pins && p->link->on_demand && p->opts->odp == FF_ODP_ON;
        access |= on_demand ? FF_ACCESS_ON_DEMAND : 0;
        p->can_move = !p->link->pins || on_demand;
    }
    e->access = access;
    return ff_prefill_engine_attach(p, err);
}

int ff_prefill_engine_attach(struct ff_pager *p, struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;

    return p->link->ops->reg(p->link, e->memory, (size_t)e->window * e->buffer_bytes, e->access,
                             &e->mr, err);
}

void ff_prefill_engine_free(struct ff_prefill_engine *e)
{
    if (!e)
        return;
    if (e->map)
        munmap(e->map, e->map_bytes);
    ff_chunks_free(&e->chunks);
    free(e);
}

void ff_prefill_engine_rewind(struct ff_pager *p)
{
    ff_chunks_rewind(&p->prefill->chunks);
}

void ff_prefill_engine_restart(struct ff_pager *p)
{
    struct ff_prefill_engine *e = p->prefill;

    e->cut = NULL;
    e->cut_buffer = -1;
    e->used_bytes = 0;
    e->n_busy = e->n_due = e->n_grants = e->n_kept = 0;
    memset(e->users, 0, sizeof(e->users));
    for (unsigned i = 0; i < FF_ARRAY_LEN(e->transfer); i++) {
        struct transfer *t = &e->transfer[i];
        if (t->busy && !t->due)
            atomic_fetch_add(&p->count.bytes_again, t->n * t->r->range.psize);
        /* nobody has claimed what goes through a buffer; what is in place nobody else may bring */
        t->busy = t->due = t->busy && t->in_place;
        if (!t->due)
            continue;
        e->n_due++;
        t->n += t->rest;
        t->rest = 0;
        t->local = ff_pager_in_place(t->r, t->first, &t->lkey);
        memset(t->zero, 0, sizeof(t->zero));
        memset(t->poison, 0, sizeof(t->poison));
    }
    ff_prefill_engine_rewind(p);
}
