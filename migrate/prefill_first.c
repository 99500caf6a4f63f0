/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * prefill_first.c - what prefill fetches first, when it is known what is touched: see working_set.h
 */
#include "bitmap.h"
#include "cleanup.h"
#include "feed.h"
#include "prefill_private.h"
#include "working_set.h"

#define GAP (32u << 10) /* bytes that are here already, and cost less than another request */

uint64_t ff_prefill_stretch(const struct ff_pager_region *r, uint64_t *first, uint64_t end)
{
    uint64_t gap = r->kept ? 1 : FF_MAX(GAP / r->range.psize, 1u), after; /* kept: the source may not have it */

    while (*first < end && ff_claim_get(&r->claims, *first) != FF_CLAIM_MISSING)
        ++*first;
    after = *first; /* behind the last one that is missing */
    for (uint64_t i = *first; i < end && i < after + gap; i++)
        if (ff_claim_get(&r->claims, i) == FF_CLAIM_MISSING)
            after = i + 1;
    return after - *first;
}

void ff_prefill_leave_buffer(struct ff_prefill_engine *e)
{
    if (e->cut_buffer >= 0)
        e->users[e->cut_buffer]--;
    e->cut_buffer = -1;
    e->used_bytes = 0;
}

/* Into what is left of the buffer, or into another */
static void cut(struct ff_prefill_engine *e, struct ff_pager_region *r, uint64_t first, uint64_t end)
{
    uint32_t psize = r->range.psize, used = (e->used_bytes + psize - 1) / psize;

    if (used + (end - first) > e->buffer_bytes / psize) {
        ff_prefill_leave_buffer(e);
        used = 0;
    }
    e->cut = r;
    e->cut_from = first - used; /* less than 0, perhaps: only differences to it count */
    e->cut_first = first;
    e->cut_end = end;
}

static uint64_t chunk_of(const struct ff_pager_region *r, uint64_t page)
{
    return r->first_chunk + page * r->range.psize / r->chunk_bytes;
}

bool ff_prefill_first(struct ff_pager *p)
{
    struct ff_prefill_engine *e = p->prefill;

    while (p->first && !e->feed && e->first_span < p->first->n) {
        const struct ff_span *s = &p->first->span[e->first_span];
        struct ff_pager_region *r = &p->region[s->region];
        uint64_t units = r->range.psize / FF_WORKING_SET_UNIT, from, n;
        uint64_t first = (s->first + e->first_done) / units;
        ff_chunk_pages(p, chunk_of(r, first), &from, &n);
        uint64_t end = FF_MIN(from + n, (s->first + s->n + units - 1) / units);
        e->first_done = end * units - s->first;
        if (e->first_done >= s->n) {
            e->first_span++;
            e->first_done = 0;
        }
        if (ff_prefill_stretch(r, &first, end)) {
            cut(e, r, first, end);
            return true;
        }
    }
    return false;
}

void ff_prefill_first_chunk(struct ff_pager *p)
{
    struct ff_prefill_engine *e = p->prefill;

    for (; p->first && e->chunk_span < p->first->n; e->chunk_span++) {
        const struct ff_span *s = &p->first->span[e->chunk_span];
        struct ff_pager_region *r = &p->region[s->region];
        uint64_t chunk = chunk_of(r, s->first * FF_WORKING_SET_UNIT / r->range.psize);
        if (ff_bitmap_get(e->chunks.asked, chunk))
            continue;
        e->chunks.cursor = chunk; /* of a feed that does not have it yet, the next that it has */
        return;
    }
}
