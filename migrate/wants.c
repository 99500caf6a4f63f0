/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wants.c - pages that somebody waits for are claimed, and queued to be brought
 */
#include "cleanup.h"
#include "pager.h"
#include "working_set.h"

int ff_wants_find_region(const struct ff_pager *p, uint64_t addr)
{
    for (unsigned i = 0; i < p->n_regions; i++) {
        uint64_t start = (uintptr_t)p->region[i].range.host;
        if (addr >= start && addr - start < p->region[i].range.len_bytes)
            return (int)i;
    }
    return -1;
}

/* Of what was left some has come by now */
static bool has_room_left(struct ff_pager *p)
{
    struct ff_wants *q = p->wants;
    unsigned n = 0;

    if (q->n_left < FF_WANTS_LEFT)
        return true;
    for (unsigned i = 0; i < q->n_left; i++)
        if (ff_claim_get(&p->region[q->left[i].region].claims, q->left[i].page) ==
            FF_CLAIM_MISSING)
            q->left[n++] = q->left[i];
    q->n_left = n;
    return n < FF_WANTS_LEFT;
}

/* Somebody waits for it, as other hosts' children may do */
static void keep_touched(struct ff_pager *p, const struct ff_want *w, enum ff_claim was)
{
    uint64_t units = p->region[w->region].range.psize / FF_WORKING_SET_UNIT;

    if (p->touched && !w->first_touch && (was == FF_CLAIM_MISSING || was == FF_CLAIM_INFLIGHT))
        ff_working_set_add(p->touched, (struct ff_span){w->region, w->page * units, units});
}

enum ff_claim ff_wants_claim(struct ff_pager *p, struct ff_want w)
{
    struct ff_claims *c = &p->region[w.region].claims;
    struct ff_wants *q = p->wants;
    enum ff_claim was = ff_claim_get(c, w.page);

    keep_touched(p, &w, was);
    if (q->away && was == FF_CLAIM_MISSING && has_room_left(p)) {
        struct ff_pager_region *r = &p->region[w.region];
        q->left[q->n_left++] = w;
        atomic_store(&p->hint, r->first_chunk + w.page * r->range.psize / r->chunk_bytes + 1);
        return FF_CLAIM_INFLIGHT; /* as if somebody had it: whoever brings it wakes */
    }
    if (ff_claim_take(c, w.page)) {
        w.queued_ns = ff_now_ns();
        ff_wants_add(p->wants, w);
        return FF_CLAIM_MISSING;
    }
    return ff_claim_get(c, w.page);
}

void ff_wants_leave(struct ff_pager *p, struct ff_want w)
{
    struct ff_wants *q = p->wants;

    if (w.hole || q->n_left == FF_WANTS_LEFT) {
        ff_wants_add(q, w);
        return;
    }
    ff_claim_leave(&p->region[w.region].claims, w.page);
    q->left[q->n_left++] = w;
}

void ff_wants_back(struct ff_pager *p)
{
    struct ff_wants *q = p->wants;

    q->away = false; /* what finds no room is for prefill to bring, or the next fault */
    while (q->n_left && q->n < FF_WANTS_MAX)
        ff_wants_claim(p, q->left[--q->n_left]); /* if nobody has brought it */
}

void ff_wants_later(struct ff_pager *p, uint32_t region, uint64_t page, bool hole)
{
    uint64_t now = ff_now_ns();

    ff_wants_add(p->wants, (struct ff_want){
        .region = region, .page = page, .hole = hole, .since_ns = now, .queued_ns = now});
}

bool ff_wants_room(const struct ff_pager *p)
{
    return FF_WANTS_MAX - p->wants->n > FF_WANTS_EVENTS;
}

bool ff_wants_fill_hole(struct ff_pager *p, struct ff_pager_region *r, uint64_t page)
{
    /* before the claim: what is ours is not discarded, and a source that still runs may write it */
    bool frozen = atomic_load(&p->image_frozen);

    if ((r->watched && !ff_wants_room(p)) || !ff_claim_touch(&r->claims, page))
        return false;
    if (r->watched) {
        /* not complete before it is filled, or fetched: nobody would bring it afterwards */
        atomic_fetch_sub(&p->count.bytes_present, r->range.psize);
        atomic_fetch_sub(&p->count.bytes_zero, r->range.psize);
        int rc = frozen ? ff_pager_install_hole(p, r, page) : -EAGAIN;
        if (rc == -EAGAIN)
            ff_wants_later(p, (uint32_t)(r - p->region), page, frozen);
        return !rc;
    }
    /* a child that has not been told yet that all is here: the kernel fills it */
    (void)*(volatile uint8_t *)(r->range.host + page * r->range.psize);
    ff_claim_done(&r->claims, page);
    return true;
}

enum ff_claim ff_wants_page(struct ff_pager *p, uint32_t i, uint64_t page, uint64_t since_ns)
{
    struct ff_pager_region *r = &p->region[i];
    enum ff_claim was =
        ff_wants_claim(p, (struct ff_want){.region = i, .page = page, .since_ns = since_ns});

    if (was == FF_CLAIM_MISSING) {
        atomic_fetch_add(&p->count.faults, 1);
        atomic_store(&p->hint, r->first_chunk + page * r->range.psize / r->chunk_bytes + 1);
    }
    return was == FF_CLAIM_HOLE && ff_wants_fill_hole(p, r, page) ? FF_CLAIM_PRESENT : was;
}
