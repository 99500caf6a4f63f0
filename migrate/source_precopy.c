/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_precopy.c - precopy=1 at the source: a pass while the guest runs, and what was written
 * since
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bitmap.h"
#include "claims.h"
#include "cleanup.h"
#include "dest.h"
#include "error.h"
#include "failpoint.h"
#include "pagemap.h"
#include "source_private.h"

bool ff_source_wants_precopy(const struct ff_source *s)
{
    return s->wants_precopy;
}

int ff_source_precopy(struct ff_source *s, struct ff_error *err)
{
    int rc = ff_failpoint("source.precopy");

    if (rc)
        return ff_error_set(err, -rc, "source: pass: injected");
    if (!s->wants_precopy)
        return 0;
    rc = ff_source_wait_watched(s, err);
    atomic_store(&s->responder.tagger.of, FF_TAGS_OF_PASS);
    if (!rc)
        rc = ff_control_send(&s->ctl, ff_wire_put_empty(s->ctl.buf, FF_MSG_LOGGING), err);
    if (rc)
        return rc;
    s->precopied = true;
    s->paused_ns = 0;
    memset(s->reported, 0, sizeof(s->reported));
    rc = ff_source_why(s, ff_source_wait_alive(s, FF_MSG_PASSED, WATCHING_MS, err), err);
    return rc ? rc : ff_source_touched(s, err);
}

/* Page @i of @n: is any of the @ratio bits set that it has in @bits? */
static bool any_bit(const uint64_t *bits, uint64_t i, uint64_t ratio)
{
    for (uint64_t k = i * ratio; k < (i + 1) * ratio; k++)
        if (ff_bitmap_get(bits, k))
            return true;
    return false;
}

/* Did page @page of @r come? Its guest may have written to one that is mapped, and not yet said to be here */
static bool page_came(const struct ff_claims *came, const struct ff_region *r, uint64_t page, int pagemap)
{
    enum ff_claim c = ff_claim_get(came, page);

    return c == FF_CLAIM_PRESENT ||
           (c == FF_CLAIM_INFLIGHT && ff_pagemap_any(pagemap, (uint8_t *)r->host + page * r->psize, r->psize));
}

/* Pages [first, first + n) of @r into @out, as the wire has them: the last page that is set + 1. @came: only
 * those that came; NULL: all are here */
static uint32_t fold_bits(uint8_t *out, const uint64_t *bits, const struct ff_claims *came, const struct ff_region *r,
                          int pagemap, uint64_t first, uint32_t n, uint64_t ratio)
{
    uint32_t end = 0;

    memset(out, 0, (n + 7) / 8);
    for (uint32_t i = 0; i < n; i++) {
        if (ratio == 1 && !bits[(first + i) / 64]) {
            i |= 63; /* @first is a multiple of 64 */
            continue;
        }
        if (!any_bit(bits, first + i, ratio))
            continue;
        if (came && !page_came(came, r, first + i, pagemap))
            continue; /* a log may name more than was written: the other side alone has this page */
        out[i / 8] |= (uint8_t)(1u << (i % 8));
        end = i + 1;
    }
    return end;
}

int ff_source_dirty(struct ff_source *s, uint32_t region, const uint64_t *bits,
                    uint64_t page_bytes, struct ff_error *err)
{
    const struct ff_region *r = region < s->regions.n ? &s->regions.r[region] : NULL;

    if (!r || !page_bytes || r->psize % page_bytes)
        return ff_error_set(err, EINVAL,
                            "source: dirty: region %u, pages of %llu bytes (permitted: a "
                            "region, what divides its page size)",
                            region, (unsigned long long)page_bytes);
    const struct ff_claims *came = s->returns ? ff_dest_claims(s->came, r->host) : NULL;
    FF_AUTO_FREE uint8_t *out = malloc(FF_WIRE_DIRTY_MAX / 8);
    FF_AUTO_CLOSE int pagemap = came ? ff_pagemap_open() : -1;
    if (!out)
        return ff_error_set(err, ENOMEM, "source: dirty: out of memory");
    if (came && pagemap < 0)
        return ff_error_set(err, EACCES, "source: return: /proc/self/pagemap cannot be read, which says what has come");
    uint64_t pages = r->len_bytes / r->psize;
    int rc = 0;
    ff_source_begin_pause(s); /* or it goes on: then ff_source_precopy() comes */
    for (uint64_t first = 0; first < pages && !rc; first += FF_WIRE_DIRTY_MAX) {
        struct ff_dirty d = {.region = region, .first = first, .bits = out};
        d.n = fold_bits(out, bits, came, r, pagemap, first,
                        (uint32_t)FF_MIN(pages - first, (uint64_t)FF_WIRE_DIRTY_MAX),
                        r->psize / page_bytes);
        if (d.n)
            rc = ff_source_send_msg(s, ff_wire_put_dirty(s->ctl.buf, &d), err);
    }
    s->reported[region] = !rc;
    return rc;
}
