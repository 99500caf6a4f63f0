/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wire_feed.c - FEED: where an agent has the image that another one gets, too (relay.h)
 */
#include <errno.h>

#include "error.h"
#include "wire_message.h"

#define FED_LEN 24

int ff_wire_put_feed(uint8_t *buf, const struct ff_offer *o)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_FEED);

    ff_wb_put(&b, FF_WIRE_MAGIC, 8);
    ff_wb_put(&b, o->version, 2);
    ff_wb_put(&b, o->oldest, 2);
    ff_wb_put(&b, o->digest, 8);
    ff_wb_put(&b, o->is_older, 8);
    for (unsigned i = 0; i < o->n; i++) {
        ff_wb_put(&b, o->r[i].addr, 8);
        ff_wb_put(&b, o->r[i].claims_addr, 8);
        ff_wb_put(&b, o->r[i].rkey, 4);
        ff_wb_put(&b, o->r[i].claims_rkey, 4);
    }
    return (int)b.pos;
}

int ff_wire_get_feed(const uint8_t *msg, size_t len, unsigned n, struct ff_offer *o,
                     struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);
    uint64_t magic = ff_wb_get(&b, 8);

    o->version = (uint16_t)ff_wb_get(&b, 2);
    o->oldest = (uint16_t)ff_wb_get(&b, 2);
    o->digest = ff_wb_get(&b, 8);
    uint64_t older = ff_wb_get(&b, 8);
    o->is_older = older;
    if (b.bad)
        return ff_wire_end(&b, FF_MSG_FEED, err);
    if (magic != FF_WIRE_MAGIC)
        return ff_error_set(err, EPROTO,
                            "wire: read FEED: not a Farfork agent (magic 0x%016llx, want 0x%016llx)",
                            (unsigned long long)magic, FF_WIRE_MAGIC);
    int rc = ff_wire_check_version("FEED", o->oldest, o->version, err);
    if (rc)
        return rc;
    if (older > 1)
        return ff_error_set(err, EPROTO, "wire: read FEED: image %llu (permitted 0, 1)",
                            (unsigned long long)older);
    if (n > FF_WIRE_REGIONS_MAX || ff_wb_left(&b) != (size_t)n * FED_LEN)
        return ff_error_set(err, EPROTO, "wire: read FEED: %zu bytes of regions (want %u of %d)",
                            ff_wb_left(&b), n, FED_LEN);
    o->n = n;
    for (unsigned i = 0; i < n; i++) {
        o->r[i].addr = ff_wb_get(&b, 8);
        o->r[i].claims_addr = ff_wb_get(&b, 8);
        o->r[i].rkey = (uint32_t)ff_wb_get(&b, 4);
        o->r[i].claims_rkey = (uint32_t)ff_wb_get(&b, 4);
    }
    return ff_wire_end(&b, FF_MSG_FEED, err);
}
