/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_small.c - see proxy_small.h
 */
#include "proxy_small.h"

#include <errno.h>
#include <stdlib.h>

struct proxy_small {
    const struct stream_block *block;
    uint8_t *has; /* 1: this page has passed */
    uint64_t n_pages, n_missing;
};

int proxy_find_main(const struct proxy *p, const char *name)
{
    for (unsigned i = 0; i < p->n_blocks; i++)
        if (!strcmp(p->blocks[i].name, name))
            return (int)i;
    return -1;
}

int proxy_main_block(struct proxy *p, const struct stream_block *b)
{
    if (b != p->last) {
        p->last = b;
        p->last_main = proxy_find_main(p, b->name);
    }
    return p->last_main;
}

static int find_small_blocks(struct proxy *p, struct ff_error *err)
{
    unsigned n;
    const struct stream_block *b = stream_blocks(p->stream, &n);

    proxy_small_free(p);
    atomic_store(&p->counts.pages_small, 0);
    atomic_store(&p->counts.pages_small_here, 0);
    p->small = calloc(FF_MAX(n, 1u), sizeof(*p->small));
    for (unsigned i = 0; p->small && i < n; i++) {
        struct proxy_small *s = &p->small[p->n_small];

        if (proxy_find_main(p, b[i].name) >= 0)
            continue;
        s->block = &b[i];
        s->n_pages = s->n_missing = b[i].len_bytes / STREAM_PAGE_LEN;
        s->has = calloc(s->n_pages, 1);
        if (!s->has)
            return ff_error_set(err, ENOMEM, "proxy: no memory");
        p->n_small++;
        atomic_fetch_add(&p->counts.pages_small, s->n_pages);
    }
    return p->small ? 0 : ff_error_set(err, ENOMEM, "proxy: no memory");
}

static void set_pages(struct proxy *p, const struct stream_block *b, uint64_t start,
                      uint64_t len_bytes, bool has)
{
    for (unsigned i = 0; i < p->n_small; i++) {
        struct proxy_small *s = &p->small[i];
        uint64_t first = start / STREAM_PAGE_LEN, end = first + len_bytes / STREAM_PAGE_LEN;

        for (uint64_t page = first; s->block == b && page < FF_MIN(end, s->n_pages); page++) {
            s->n_missing += (uint64_t)(s->has[page] - has);
            atomic_fetch_add(&p->counts.pages_small_here, (uint64_t)(has - s->has[page]));
            s->has[page] = has;
        }
    }
}

int proxy_small_see(struct proxy *p, const struct stream_event *e, struct ff_error *err)
{
    if (e->kind == STREAM_BLOCKS)
        return find_small_blocks(p, err);
    if (e->kind == STREAM_PAGE)
        set_pages(p, e->block, e->addr, STREAM_PAGE_LEN, true);
    for (unsigned i = 0; e->kind == STREAM_DISCARD && i < e->n_ranges; i++)
        set_pages(p, e->block, e->ranges[i].start, e->ranges[i].len_bytes, false);
    return 0;
}

int proxy_small_check(const struct proxy *p, struct ff_error *err)
{
    for (unsigned i = 0; i < p->n_small; i++)
        if (p->small[i].n_missing)
            return ff_error_set(err, ENODATA, "%llu of %llu KiB of its block %s have not come",
                                (unsigned long long)p->small[i].n_missing * 4,
                                (unsigned long long)p->small[i].n_pages * 4,
                                p->small[i].block->name);
    return 0;
}

int proxy_small_ask(struct proxy *p, struct ff_error *err)
{
    int rc = 0;

    for (unsigned i = 0; !rc && i < p->n_small; i++) {
        if (p->small[i].block->len_bytes >= OUTSIDE_MAIN_BYTES) /* faults are not to wait behind all of it */
            continue;
        struct stream_return m = {.type = STREAM_RETURN_REQ_PAGES_ID,
                                  .len_bytes = (uint32_t)p->small[i].block->len_bytes};
        uint8_t out[STREAM_RETURN_MAX];

        memcpy(m.name, p->small[i].block->name, sizeof(m.name));
        rc = ff_tunnel_send(p->tunnel, out, stream_return_write(out, &m), err);
    }
    p->reader.unsaid = true; /* the next request names its block */
    return rc;
}

void proxy_small_free(struct proxy *p)
{
    for (unsigned i = 0; i < p->n_small; i++)
        free(p->small[i].has);
    free(p->small);
    p->small = NULL;
    p->n_small = 0;
}
