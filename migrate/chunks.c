/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * chunks.c - which chunk prefill asks for next; see chunks.h
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bitmap.h"
#include "chunks.h"
#include "cleanup.h"
#include "pager.h"

int ff_chunks_init(struct ff_chunks *c, uint64_t n)
{
    *c = (struct ff_chunks){.asked = ff_bitmap_new(n), .n = n};
    return c->asked ? 0 : -ENOMEM;
}

void ff_chunks_free(struct ff_chunks *c)
{
    free(c->asked);
    c->asked = NULL;
}

void ff_chunks_rewind(struct ff_chunks *c)
{
    memset(c->asked, 0, (c->n + 63) / 64 * sizeof(*c->asked));
    c->n_asked = c->cursor = 0;
}

static struct ff_pager_region *region_of(struct ff_pager *p, uint64_t chunk)
{
    unsigned i = 0;
    while (i + 1 < p->n_regions && chunk >= p->region[i + 1].first_chunk)
        i++;
    return &p->region[i];
}

struct ff_pager_region *ff_chunk_pages(struct ff_pager *p, uint64_t chunk, uint64_t *first,
                                       uint64_t *n)
{
    struct ff_pager_region *r = region_of(p, chunk);
    uint64_t per_chunk = r->chunk_bytes / r->range.psize;

    *first = (chunk - r->first_chunk) * per_chunk;
    *n = FF_MIN(per_chunk, r->claims.n_pages - *first);
    return r;
}

/* If not, what was made ready for it is not needed any more */
static bool any_missing(struct ff_pager *p, uint64_t chunk)
{
    uint64_t first, n;
    struct ff_pager_region *r = ff_chunk_pages(p, chunk, &first, &n);

    for (uint64_t i = 0; i < n; i++)
        if (ff_claim_get(&r->claims, first + i) == FF_CLAIM_MISSING)
            return true;
    ff_pager_give_back(r, first, n);
    return false;
}

/* The next from the cursor on that nobody asked for, of @has; c->n: there is none */
static uint64_t next_of(const struct ff_chunks *c, const uint64_t *has)
{
    uint64_t at = ff_bitmap_next_clear(c->asked, c->n, c->cursor), first = at;

    while (has && at < c->n && !ff_bitmap_get(has, at)) {
        at = ff_bitmap_next_clear(c->asked, c->n, at + 1 == c->n ? 0 : at + 1);
        if (at == first)
            return c->n;
    }
    return at;
}

bool ff_chunks_next(struct ff_chunks *c, struct ff_pager *p, const uint64_t *has, uint64_t *chunk)
{
    uint64_t hint = atomic_exchange(&p->hint, 0);

    if (hint)
        c->cursor = hint - 1;
    while (ff_chunks_left(c)) {
        uint64_t next = next_of(c, has);
        if (next == c->n)
            return false;
        ff_bitmap_set(c->asked, next);
        c->n_asked++;
        c->cursor = next + 1 == c->n ? 0 : next + 1;
        if (any_missing(p, next)) {
            *chunk = next;
            return true;
        }
    }
    return false;
}
