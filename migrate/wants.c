/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wants.c - pages that somebody waits for are claimed, and queued to be brought
 */
#include "cleanup.h"
#include "pager.h"
#include "undo.h"
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
    enum ff_claim was = ff_claim_get(c, w.page);

    keep_touched(p, &w, was);
    if (p->wants->away && was == FF_CLAIM_MISSING) {
        struct ff_pager_region *r = &p->region[w.region];
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
    if (w.hole)
        ff_wants_add(p->wants, w);
    else
        ff_claim_leave(&p->region[w.region].claims, w.page);
}

void ff_wants_later(struct ff_pager *p, uint32_t region, uint64_t page, bool hole)
{
    uint64_t now = ff_now_ns();

    ff_wants_add(p->wants, (struct ff_want){
        .region = region, .page = page, .hole = hole, .since_ns = now, .queued_ns = now});
}

bool ff_wants_room(const struct ff_pager *p)
{
    return FF_WANTS_MAX - p->wants->n > FF_WANTS_EVENTS + FF_WANTS_AROUND;
}

bool ff_wants_fill_hole(struct ff_pager *p, struct ff_pager_region *r, uint64_t page)
{
    /* before the claim: what is ours is not discarded, and a source that still runs may write it */
    bool frozen = atomic_load(&p->image_frozen);

    if ((r->watched && !ff_wants_room(p)) || ff_claim_get(&r->claims, page) != FF_CLAIM_HOLE)
        return false;
    /* not complete from before it is claimed until it is filled, or fetched: nobody would bring it afterwards */
    if (r->watched)
        ff_pager_count_hole(p, r, false);
    if (!ff_claim_touch(&r->claims, page)) {
        if (r->watched)
            ff_pager_count_hole(p, r, true);
        return false;
    }
    if (r->watched) {
        if (r->kept) {
            pthread_mutex_lock(&p->keep_lock);
            ff_undo_filled(p, r, page);
            pthread_mutex_unlock(&p->keep_lock);
        }
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
        ff_wants_touched(p->wants, i, page);
        atomic_fetch_add(&p->count.faults, 1);
        atomic_store(&p->hint, r->first_chunk + page * r->range.psize / r->chunk_bytes + 1);
    }
    return was == FF_CLAIM_HOLE && ff_wants_fill_hole(p, r, page) ? FF_CLAIM_PRESENT : was;
}
