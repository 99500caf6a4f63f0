/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * prefill_private.h - what prefill.c and prefill_engine.c share
 */
#ifndef FF_MIGRATE_PREFILL_PRIVATE_H
#define FF_MIGRATE_PREFILL_PRIVATE_H

#include "chunks.h"
#include "pager.h"

#define BUFFERS_MAX 32u
#define PLACES 8u
#define HUGE (2ull << 20)

/* What is under way: [first, first + n) of a region */
struct transfer {
    struct ff_pager_region *r;
    uint64_t first, n;
    uint64_t rest; /* pages behind them: in place claimed, and with another key; or asked for after them */
    uint8_t *local;
    uint32_t lkey;
    unsigned buffer;
    bool busy, in_place; /* in place: the claims are taken, and there is no buffer */
    bool due;  /* busy, but not posted: the queue was full, or the link that had it broke */
    bool pool; /* read into pages of the pool, which are moved in */
    bool pulled; /* asked for by READ, not by a grant */
    bool unfed;  /* by the pager's link, though a feed is used: that has not the image's */
    uint8_t zero[FF_GRANULES_MAX / 8], poison[FF_GRANULES_MAX / 8];
};

struct ff_prefill_engine {
    uint8_t *map, *memory; /* window buffers of buffer_bytes, aligned to HUGE within map */
    size_t map_bytes;
    struct ff_mr mr; /* goes with the link */
    struct ff_feed *feed; /* whose link prefill uses; NULL: the pager's */
    unsigned access; /* of it */
    uint32_t buffer_bytes;
    unsigned window, n_busy;
    unsigned users[BUFFERS_MAX];                    /* of each buffer: transfers, and the cut */
    struct transfer transfer[BUFFERS_MAX + PLACES]; /* first those with a buffer */
    struct ff_chunks chunks;
    uint64_t last_progress_ns;
    uint64_t asked_bytes; /* in all, over every link, but for what came as zeros */
    struct ff_pager_region *cut; /* what is left of the chunk that is being cut; NULL: none */
    uint64_t cut_from, cut_first, cut_end; /* the chunk; what of it is left */
    int cut_buffer;                        /* -1: none yet */
    unsigned first_span;                   /* of p->first: which comes next, and how much of it */
    uint64_t first_done;                   /* was asked for, in units */
    unsigned chunk_span;                   /* likewise: by whose chunk prefill goes on */
    bool cut_is_first;                     /* it is of a span: several share a buffer, of which */
    uint32_t used_bytes;                   /* are taken */
    struct ff_grant grant[BUFFERS_MAX];    /* to be sent */
    unsigned n_grants;
    unsigned n_due;
    struct ff_wc kept[BUFFERS_MAX + PLACES]; /* what came while there was no memory */
    unsigned n_kept;
    uint8_t msg[FF_MSG_MAX];
};

/* --- prefill_first.c --- */

/* From page @first on: pages up to the first gap of pages that nobody needs to fetch; @first moves
 * to the first that is missing. 0: none is */
uint64_t ff_prefill_stretch(const struct ff_pager_region *r, uint64_t *first, uint64_t end);

/* Cut the next pages of p->first. False: there are none, or another agent feeds this one: it reads
 * chunks alone, which their relay has as a whole */
bool ff_prefill_first(struct ff_pager *p);
void ff_prefill_leave_buffer(struct ff_prefill_engine *e); /* the cut's: they are no more */

/* The next chunk is the first of those with such pages, if nobody has asked for it */
void ff_prefill_first_chunk(struct ff_pager *p);

/* --- prefill_install.c --- */

#define BATCH 64u

/* Claim from page @i of @t on: the length of a run of pages that are ours now and alike, at most
 * @max; 0: page @i belongs to another */
uint64_t ff_prefill_claim_run(const struct transfer *t, uint64_t i, uint64_t max);

/* Install @n pages that are ours, however long that takes; BY_MOVE: @src loses its pages. 0: also
 * when the pager is to stop; or as ff_pager_install() */
enum how { BY_COPY, BY_MOVE, POISON };
int ff_prefill_install(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n,
                       uint8_t *src, enum how how);

/* Zeros of ours become holes, or as ff_prefill_install() */
int ff_prefill_put_zeros(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n);

/* A pass: @n pages of @t, which are ours, are read again when the guest is paused: 0 */
int ff_prefill_leave(struct ff_pager *p, const struct transfer *t, uint64_t i, uint64_t n);

/* @t has come: 0, or as ff_prefill_install() */
int ff_prefill_install_buffer(struct ff_pager *p, struct transfer *t);
int ff_prefill_install_in_place(struct ff_pager *p, struct transfer *t);

#endif
