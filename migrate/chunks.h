/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * chunks.h - which chunk prefill asks for next, counted over all regions; the prefill thread's
 */
#ifndef FF_MIGRATE_CHUNKS_H
#define FF_MIGRATE_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

struct ff_pager;
struct ff_pager_region;

struct ff_chunks {
    uint64_t *asked; /* bitmap */
    uint64_t n, n_asked, cursor;
};

int ff_chunks_init(struct ff_chunks *c, uint64_t n); /* 0 or -ENOMEM */
void ff_chunks_free(struct ff_chunks *c);
void ff_chunks_rewind(struct ff_chunks *c); /* nothing was asked for */

/* From the cursor on, around the end: the next one in which a page is missing, of those in @has
 * (bitmap; NULL: all). The cursor jumps to the chunk of the last fault first. false: there is none
 * left, or none of @has */
bool ff_chunks_next(struct ff_chunks *c, struct ff_pager *p, const uint64_t *has, uint64_t *chunk);

static inline bool ff_chunks_left(const struct ff_chunks *c)
{
    return c->n_asked < c->n;
}

/* The pages of @chunk within its region: [*first, *first + *n) */
struct ff_pager_region *ff_chunk_pages(struct ff_pager *p, uint64_t chunk, uint64_t *first,
                                       uint64_t *n);

#endif
