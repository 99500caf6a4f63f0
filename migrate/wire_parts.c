/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wire_parts.c - PARTS: a segment that cannot be registered as a whole
 */
#include <errno.h>

#include "error.h"
#include "wire_message.h"

#define PART_LEN 24

int ff_wire_put_parts(uint8_t *buf, const struct ff_wire_part *parts, unsigned n)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_PARTS);

    for (unsigned i = 0; i < n; i++) {
        ff_wb_put(&b, parts[i].region, 4);
        ff_wb_put(&b, parts[i].rkey, 4);
        ff_wb_put(&b, parts[i].offset, 8);
        ff_wb_put(&b, parts[i].len_bytes, 8);
    }
    return (int)b.pos;
}

/* Whole pages inside their region */
static bool part_fits(const struct ff_wire_part *p, const struct ff_wire_region *regions,
                      unsigned n_regions)
{
    if (p->region >= n_regions)
        return false;
    const struct ff_wire_region *r = &regions[p->region];
    return p->len_bytes && p->offset < r->len_bytes && p->len_bytes <= r->len_bytes - p->offset &&
           !(p->offset % r->psize) && !(p->len_bytes % r->psize);
}

int ff_wire_get_parts(const uint8_t *msg, size_t len, struct ff_wire_part *parts, unsigned max,
                      const struct ff_wire_region *regions, unsigned n_regions, unsigned *n,
                      struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);
    size_t count = ff_wb_left(&b) / PART_LEN;

    if (!count || ff_wb_left(&b) % PART_LEN || count > max)
        return ff_error_set(err, EPROTO,
                            "wire: read PARTS: %zu bytes (permitted 1..%u parts of %d)",
                            ff_wb_left(&b), max, PART_LEN);
    for (size_t i = 0; i < count; i++) {
        struct ff_wire_part *p = &parts[i];
        p->region = (uint32_t)ff_wb_get(&b, 4);
        p->rkey = (uint32_t)ff_wb_get(&b, 4);
        p->offset = ff_wb_get(&b, 8);
        p->len_bytes = ff_wb_get(&b, 8);
        if (!part_fits(p, regions, n_regions))
            return ff_error_set(err, EPROTO,
                                "wire: read PARTS: 0x%llx bytes at 0x%llx of region %u (permitted: "
                                "whole pages inside a region)",
                                (unsigned long long)p->len_bytes, (unsigned long long)p->offset,
                                p->region);
    }
    *n = (unsigned)count;
    return ff_wire_end(&b, FF_MSG_PARTS, err);
}
