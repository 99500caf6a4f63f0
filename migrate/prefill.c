/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * prefill.c - the prefill thread: fetch in chunks what nobody has touched; see pager.h
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      chunks, counted over all regions:
 *                |--asked--|--asked--|     |     |--asked--|     |     |
 *                                    ^ cursor          ^ last fault: the cursor jumps there
 *              The next chunk is the first one from the cursor on, around the end, that
 *              nobody asked for yet. A chunk whose pages were all fetched by faults is not.
 * Limits       window chunks in flight. BATCH pages are claimed and installed at a time: a
 *              fault on one of them waits for that ioctl, about 60 us, not for the chunk.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bitmap.h"
#include "cleanup.h"
#include "fault.h"
#include "pager.h"

#define BATCH 64u

struct buffer {
    uint64_t chunk;
    bool busy;
    uint8_t zero[FF_GRANULES_MAX / 8];
};

struct ff_prefill_engine {
    uint8_t *memory; /* window buffers of buffer_bytes */
    struct ff_mr mr; /* goes with the link */
    uint32_t buffer_bytes;
    unsigned window, n_busy;
    struct buffer buffer[FF_QUEUE_DEPTH];
    uint64_t *asked; /* bitmap of chunks */
    uint64_t cursor, n_asked;
    uint64_t last_progress_ns;
};

int ff_prefill_engine_new(struct ff_pager *p, struct ff_error *err)
{
    struct ff_prefill_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return ff_error_set(err, ENOMEM, "pager: prefill engine: out of memory");
    p->prefill = e;
    e->window = p->opts->window;
    for (unsigned i = 0; i < p->n_regions; i++)
        e->buffer_bytes = FF_MAX(e->buffer_bytes, p->region[i].chunk_bytes);
    e->asked = ff_bitmap_new(p->n_chunks);
    void *m = mmap(NULL, (size_t)e->window * e->buffer_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!e->asked || m == MAP_FAILED)
        return ff_error_set(err, ENOMEM, "pager: prefill buffers: out of memory");
    e->memory = m;
    return p->link->ops->reg(p->link, m, (size_t)e->window * e->buffer_bytes, 0, &e->mr, err);
}

void ff_prefill_engine_free(struct ff_prefill_engine *e)
{
    if (!e)
        return;
    if (e->memory)
        munmap(e->memory, (size_t)e->window * e->buffer_bytes);
    free(e->asked);
    free(e);
}

static struct ff_pager_region *region_of(struct ff_pager *p, uint64_t chunk)
{
    unsigned i = 0;
    while (i + 1 < p->n_regions && chunk >= p->region[i + 1].first_chunk)
        i++;
    return &p->region[i];
}

/* The pages of @chunk within its region: [*first, *first + *n) */
static struct ff_pager_region *chunk_pages(struct ff_pager *p, uint64_t chunk, uint64_t *first,
                                           uint64_t *n)
{
    struct ff_pager_region *r = region_of(p, chunk);
    uint64_t per_chunk = r->chunk_bytes / r->range.psize;

    *first = (chunk - r->first_chunk) * per_chunk;
    *n = FF_MIN(per_chunk, r->claims.n_pages - *first);
    return r;
}

static bool any_missing(struct ff_pager *p, uint64_t chunk)
{
    uint64_t first, n;
    struct ff_pager_region *r = chunk_pages(p, chunk, &first, &n);

    for (uint64_t i = 0; i < n; i++)
        if (ff_claim_get(&r->claims, first + i) == FF_CLAIM_MISSING)
            return true;
    return false;
}

/* The next chunk to ask for; false: there is none left */
static bool next_chunk(struct ff_pager *p, uint64_t *chunk)
{
    struct ff_prefill_engine *e = p->prefill;
    uint64_t hint = atomic_exchange(&p->hint, 0);

    if (hint)
        e->cursor = hint - 1;
    while (e->n_asked < p->n_chunks) {
        uint64_t c = ff_bitmap_next_clear(e->asked, p->n_chunks, e->cursor);
        ff_bitmap_set(e->asked, c);
        e->n_asked++;
        e->cursor = c + 1 == p->n_chunks ? 0 : c + 1;
        if (any_missing(p, c)) {
            *chunk = c;
            return true;
        }
    }
    return false;
}

static int ask(struct ff_pager *p, struct buffer *b, uint64_t chunk, struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;
    uint64_t first, n;
    struct ff_pager_region *r = chunk_pages(p, chunk, &first, &n);
    size_t i = (size_t)(b - e->buffer);

    memset(b->zero, 0, sizeof(b->zero));
    struct ff_wr wr = {.id = i,
                       .op = FF_OP_READ,
                       .local = e->memory + i * e->buffer_bytes,
                       .lkey = e->mr.lkey,
                       .remote = r->remote + first * r->range.psize,
                       .rkey = r->rkey,
                       .len_bytes = (uint32_t)(n * r->range.psize),
                       .granule_bytes = r->range.psize,
                       .zero = b->zero};
    int rc = p->link->ops->post(p->link, FF_QUEUE_PREFILL, &wr, err);
    if (rc)
        return rc;
    if (!e->n_busy++)
        e->last_progress_ns = ff_now_ns();
    b->chunk = chunk;
    b->busy = true;
    return 0;
}

static int fill_window(struct ff_pager *p, struct ff_error *err)
{
    struct ff_prefill_engine *e = p->prefill;

    for (unsigned i = 0; i < e->window; i++) {
        uint64_t chunk;
        if (e->buffer[i].busy)
            continue;
        if (!next_chunk(p, &chunk))
            break;
        int rc = ask(p, &e->buffer[i], chunk, err);
        if (rc)
            return rc;
    }
    return 0;
}

static bool is_zero(const struct buffer *b, uint64_t i)
{
    return b->zero[i / 8] & (1u << (i % 8));
}

/* Claim from page @i of the chunk on: the length of a run of pages that are ours now and
 * alike (all zero or all not), at most BATCH; 0: page @i belongs to another */
static uint64_t claim_run(struct ff_pager_region *r, const struct buffer *b, uint64_t first,
                          uint64_t i, uint64_t n)
{
    uint64_t len = 0;

    while (i + len < n && len < BATCH && is_zero(b, i + len) == is_zero(b, i) &&
           ff_claim_take(&r->claims, first + i + len))
        len++;
    return len;
}

static int install_chunk(struct ff_pager *p, struct buffer *b)
{
    struct ff_prefill_engine *e = p->prefill;
    uint64_t first, n;
    struct ff_pager_region *r = chunk_pages(p, b->chunk, &first, &n);
    const uint8_t *data = e->memory + (size_t)(b - e->buffer) * e->buffer_bytes;
    uint32_t psize = r->range.psize;

    for (uint64_t i = 0; i < n && !atomic_load(&p->stop);) {
        uint64_t run = claim_run(r, b, first, i, n);
        if (!run) {
            if (!is_zero(b, i))
                atomic_fetch_add(&p->count.bytes_duplicated, psize);
            i++;
            continue;
        }
        bool zero = is_zero(b, i);
        int rc = ff_pager_install(p, r, first + i, run, zero ? NULL : data + i * psize);
        if (rc)
            return rc;
        if (!zero)
            atomic_fetch_add(&p->count.bytes_prefill, run * psize);
        i += run;
    }
    b->busy = false;
    e->n_busy--;
    return 0;
}

/* One turn: 1 go on, 0 all chunks are done, -errno the link is of no use */
static int turn(struct ff_pager *p, struct ff_error *why)
{
    struct ff_prefill_engine *e = p->prefill;
    struct ff_wc wc[8];

    int rc = fill_window(p, why);
    if (rc && rc != -EAGAIN)
        return rc;
    if (!e->n_busy)
        return 0;
    int n = p->link->ops->poll(p->link, FF_QUEUE_PREFILL, wc, FF_ARRAY_LEN(wc), 200, why);
    if (n < 0)
        return n;
    uint64_t now = ff_now_ns();
    if (n)
        e->last_progress_ns = now;
    else if (now - e->last_progress_ns > (uint64_t)p->silence_ms * 1000000u)
        return ff_error_set(why, ETIMEDOUT, "pager: %u reads of prefill unanswered for %d s",
                            e->n_busy, p->silence_ms / 1000);
    for (int i = 0; i < n; i++) {
        rc = ff_fault("dest.prefill");
        if (rc)
            return ff_error_set(why, -rc, "pager: prefill: injected");
        if (install_chunk(p, &e->buffer[wc[i].id]))
            return 0; /* reported by ff_pager_install() */
    }
    return 1;
}

void *ff_prefill_main(void *opaque)
{
    struct ff_pager *p = opaque;
    struct ff_error why;
    int rc = 1;

    while (!atomic_load(&p->stop) && (rc = turn(p, &why)) > 0)
        ;
    if (rc < 0)
        ff_pager_break(p, &why);
    return NULL;
}
