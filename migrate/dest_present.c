/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_present.c - which guest memory a destination has, and how it came
 */
#include <string.h>

#include "cleanup.h"
#include "dest_private.h"
#include "farfork-return.h"

/* A hole reads as the zeros that it is: the fault thread answers for it, also without a link */
static bool has_page(const struct ff_claims *c, uint64_t page)
{
    enum ff_claim now = ff_claim_get(c, page);

    return now == FF_CLAIM_PRESENT || now == FF_CLAIM_HOLE;
}

/* INFLIGHT, too: it is visible before it is PRESENT */
static bool may_be_touched(const struct ff_claims *c, uint64_t page)
{
    enum ff_claim now = ff_claim_get(c, page);

    return now != FF_CLAIM_MISSING && now != FF_CLAIM_HOLE;
}

static bool how_far(const struct ff_dest *d, unsigned region, uint64_t offset, uint64_t *len,
                    bool (*is)(const struct ff_claims *c, uint64_t page))
{
    const struct ff_region *r = &d->regions.r[region];
    uint64_t psize = r->psize, page = offset / psize, n = r->len_bytes / psize;

    *len = r->len_bytes - offset;
    if (!d->pager_used)
        return false;
    const struct ff_claims *c = &d->pager.region[region].claims;
    bool first = is(c, page);
    while (++page < n)
        if (is(c, page) != first) {
            *len = page * psize - offset;
            break;
        }
    return first;
}

bool ff_dest_is_present(const struct ff_dest *d, unsigned region, uint64_t offset, uint64_t *len)
{
    return how_far(d, region, offset, len, has_page);
}

uint64_t ff_dest_missing_bytes(const struct ff_dest *d, unsigned region)
{
    const struct ff_region *r = &d->regions.r[region];

    return r->len_bytes - (d->pager_used ? ff_claims_here(&d->pager.region[region].claims) * r->psize
                                         : 0);
}

bool ff_dest_is_touched(const struct ff_dest *d, unsigned region, uint64_t offset, uint64_t *len)
{
    return how_far(d, region, offset, len, may_be_touched);
}

bool ff_dest_is_emptied(const struct ff_dest *d, unsigned region)
{
    return d->pager_used && d->pager.region[region].range.ready_bytes;
}

void ff_dest_stats(struct ff_dest *d, struct ff_stats *out)
{
    memset(out, 0, sizeof(*out));
    if (d->pager_used)
        ff_pager_stats(&d->pager, out);
    out->load_ns = d->load_ns;
    out->start_ns = d->start_ns;
    out->complete_ns = d->complete_ns;
}

void ff_dest_stages(struct ff_dest *d, struct ff_stage_time out[FF_STAGES])
{
    memset(out, 0, FF_STAGES * sizeof(*out));
    if (d->pager_used)
        ff_pager_stages(&d->pager, out);
}
