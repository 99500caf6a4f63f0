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
    for (unsigned i = 0; i < d->pager.n_regions; i++)
        ff_parts_free(&d->pager.region[i].parts);
}

static unsigned count_parts(const struct ff_dest *d)
{
    unsigned n = 0;

    for (unsigned i = 0; i < d->pager.n_regions; i++)
        n += d->pager.region[i].parts.n;
    return n;
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
    return ff_parts_add(&r->parts, &part, err);
}

int dest_take_parts(struct ff_dest *d, struct ff_error *err)
{
    unsigned room = FF_WIRE_PARTS_MAX - count_parts(d), n;
    FF_AUTO_FREE struct ff_wire_part *parts = calloc(room + 1, sizeof(*parts));

    if (!parts)
        return ff_error_set(err, ENOMEM, "destination: %u parts: out of memory", room);
    int rc = ff_wire_get_parts(d->ctl.buf, (size_t)d->ctl.len, parts, room, d->peer.regions,
                               d->peer.n_regions, &n, err);
    for (unsigned i = 0; !rc && i < n; i++)
        rc = add_part(d, &parts[i], err);
    return rc;
}
