/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_parts.c - PARTS: what the source cannot read, and the keys of what lies around it
 */
#include <errno.h>
#include <stdlib.h>

#include "cleanup.h"
#include "dest_private.h"

void dest_drop_parts(struct ff_dest *d)
{
    for (unsigned i = 0; i < d->pager.n_regions; i++) {
        struct ff_parts *p = &d->pager.region[i].parts;
        unsigned n = 0;
        for (unsigned k = 0; k < p->n; k++)
            if (p->part[k].rkey == FF_WIRE_PART_ZEROS)
                p->part[n++] = p->part[k];
        p->n = n;
    }
    d->n_parts = 0;
}

/* They are so for the frozen image, and for good: @part is to be what the first link has said */
static int check_zeros(const struct ff_dest *d, const struct ff_parts *p, const struct ff_part *part,
                       const struct ff_wire_part *w, struct ff_error *err)
{
    const struct ff_part *was = ff_parts_find(p, part->first);
    bool is_known = was && was->rkey == part->rkey && was->first == part->first && was->end == part->end;

    if (d->recovers ? is_known : d->state_ns > 0)
        return 0;
    return ff_error_set(err, EPROTO, "PARTS: zeros, 0x%llx bytes at 0x%llx of region %u, %s: use the same Farfork release "
                        "on both hosts", (unsigned long long)w->len_bytes, (unsigned long long)w->offset, w->region,
                        d->recovers ? "over another link than the first (permitted: those of STATE)"
                                    : "while the guest runs (permitted: with STATE)");
}

static int add_part(struct ff_dest *d, const struct ff_wire_part *w, struct ff_error *err)
{
    struct ff_pager_region *r = &d->pager.region[d->map[w->region]];
    uint64_t segment = w->offset / r->segment_bytes, psize = r->range.psize;
    struct ff_part part = {.first = w->offset / psize,
                           .end = (w->offset + w->len_bytes) / psize,
                           .rkey = w->rkey};

    if ((w->offset + w->len_bytes - 1) / r->segment_bytes != segment)
        return ff_error_set(err, EPROTO, "PARTS: 0x%llx bytes at 0x%llx: they lie in two segments",
                            (unsigned long long)w->len_bytes, (unsigned long long)w->offset);
    if (d->recovers && !r->rkey[segment]) /* its pages were zeros so far */
        return ff_error_set(err, EPROTO, "resume: a part of a segment that had no key");
    int rc = part.rkey == FF_WIRE_PART_ZEROS ? check_zeros(d, &r->parts, &part, w, err) : 0;
    if (!rc && (part.rkey != FF_WIRE_PART_ZEROS || !d->recovers)) /* else it is kept from the first link */
        rc = ff_parts_add(&r->parts, &part, err);
    d->n_parts += !rc;
    return rc;
}

int dest_take_parts(struct ff_dest *d, struct ff_error *err)
{
    unsigned room = FF_WIRE_PARTS_MAX - d->n_parts, n;
    FF_AUTO_FREE struct ff_wire_part *parts = calloc(room + 1, sizeof(*parts));

    if (!parts)
        return ff_error_set(err, ENOMEM, "destination: %u parts: out of memory", room);
    int rc = ff_wire_get_parts(d->ctl.buf, (size_t)d->ctl.len, parts, room, d->peer.regions,
                               d->peer.n_regions, &n, err);
    for (unsigned i = 0; !rc && i < n; i++)
        rc = add_part(d, &parts[i], err);
    return rc;
}
