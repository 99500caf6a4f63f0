/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wire_resume.c - what is said after GO: RESUME, LEASE, GRANT
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "wire_message.h"

int ff_wire_put_resume(uint8_t *buf, const struct ff_resume *r)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_RESUME);

    ff_wb_put(&b, FF_WIRE_MAGIC, 8);
    ff_wb_put(&b, r->version, 2);
    ff_wb_put(&b, r->oldest, 2);
    ff_wb_put_bytes(&b, r->session, FF_SESSION_LEN);
    ff_wb_put(&b, r->epoch, 4);
    ff_wb_put(&b, r->digest, 8);
    ff_wb_put(&b, r->taken_back, 2);
    return (int)b.pos;
}

int ff_wire_get_resume(const uint8_t *msg, size_t len, struct ff_resume *r, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);
    uint64_t magic = ff_wb_get(&b, 8);

    r->version = (uint16_t)ff_wb_get(&b, 2);
    r->oldest = (uint16_t)ff_wb_get(&b, 2);
    const uint8_t *session = ff_wb_take(&b, FF_SESSION_LEN);
    r->epoch = (uint32_t)ff_wb_get(&b, 4);
    r->digest = ff_wb_get(&b, 8);
    unsigned why = (unsigned)ff_wb_get(&b, 2);
    int rc = ff_wire_end(&b, FF_MSG_RESUME, err);
    if (rc)
        return rc;
    if (magic != FF_WIRE_MAGIC)
        return ff_error_set(
            err, EPROTO,
            "wire: read RESUME: not a Farfork source (magic 0x%016llx, want 0x%016llx)",
            (unsigned long long)magic, FF_WIRE_MAGIC);
    rc = ff_wire_check_version("RESUME", r->oldest, r->version, err);
    if (!rc && !r->epoch)
        rc = ff_error_set(err, EPROTO, "wire: read RESUME: epoch 0 (permitted: 1 or more)");
    if (!rc && why > 1)
        rc = ff_error_set(err, EPROTO, "wire: read RESUME: why %u (permitted 0 and 1)", why);
    r->taken_back = why;
    if (!rc)
        memcpy(r->session, session, FF_SESSION_LEN);
    return rc;
}

/* --- LEASE --- */

int ff_wire_put_lease(uint8_t *buf, uint32_t number)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_LEASE);

    ff_wb_put(&b, number, 4);
    return (int)b.pos;
}

int ff_wire_get_lease(const uint8_t *msg, size_t len, uint32_t *number, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);

    *number = (uint32_t)ff_wb_get(&b, 4);
    int rc = ff_wire_end(&b, FF_MSG_LEASE, err);
    if (!rc && !*number)
        rc = ff_error_set(err, EPROTO, "wire: read LEASE: number 0 (permitted: 1 or more)");
    return rc;
}

/* --- digest: FNV-1a, 64 bits --- */

static uint64_t add_bytes(uint64_t hash, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3ull;
    return hash;
}

/* Little-endian on every host */
static uint64_t add_number(uint64_t hash, uint64_t v)
{
    for (unsigned i = 0; i < 8; i++)
        hash = add_bytes(hash, &(uint8_t){(uint8_t)(v >> (8 * i))}, 1);
    return hash;
}

uint64_t ff_hello_digest(const struct ff_hello *h)
{
    uint64_t hash = add_bytes(0xcbf29ce484222325ull, h->config, strlen(h->config) + 1);

    for (unsigned i = 0; i < h->n_regions; i++) {
        const struct ff_wire_region *r = &h->regions[i];
        hash = add_bytes(hash, r->name, strlen(r->name) + 1);
        hash = add_number(add_number(hash, r->len_bytes), r->psize);
    }
    return hash;
}

void ff_mark_text(const uint8_t session[FF_SESSION_LEN], uint32_t epoch, char out[FF_MARK_TEXT])
{
    uint64_t hash = add_number(add_bytes(0xcbf29ce484222325ull, session, FF_SESSION_LEN), epoch);

    snprintf(out, FF_MARK_TEXT, "%016" PRIx64, hash);
}

/* --- GRANT --- */

#define GRANT_LEN 32

int ff_wire_put_grants(uint8_t *buf, const struct ff_grant *g, unsigned n)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_GRANT);
    for (unsigned i = 0; i < n; i++) {
        ff_wb_put(&b, g[i].region, 4);
        ff_wb_put(&b, g[i].id, 4);
        ff_wb_put(&b, g[i].offset, 8);
        ff_wb_put(&b, g[i].len_bytes, 4);
        ff_wb_put(&b, g[i].rkey, 4);
        ff_wb_put(&b, g[i].addr, 8);
    }
    return (int)b.pos;
}

int ff_wire_get_grants(const uint8_t *msg, size_t len, struct ff_grant *grants, uint32_t max_len,
                       const struct ff_wire_region *regions, unsigned n_regions, unsigned *n,
                       struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);
    size_t count = ff_wb_left(&b) / GRANT_LEN;

    if (!count || ff_wb_left(&b) % GRANT_LEN || count > FF_WIRE_GRANTS_MAX)
        return ff_error_set(err, EPROTO,
                            "wire: read GRANT: %zu bytes (permitted 1..%d grants of %d)",
                            ff_wb_left(&b), FF_WIRE_GRANTS_MAX, GRANT_LEN);
    for (size_t i = 0; i < count; i++) {
        struct ff_grant *g = &grants[i];
        g->region = (uint32_t)ff_wb_get(&b, 4);
        g->id = (uint32_t)ff_wb_get(&b, 4);
        g->offset = ff_wb_get(&b, 8);
        g->len_bytes = (uint32_t)ff_wb_get(&b, 4);
        g->rkey = (uint32_t)ff_wb_get(&b, 4);
        g->addr = ff_wb_get(&b, 8);
        const struct ff_wire_region *r = &regions[g->region < n_regions ? g->region : 0];
        if (g->region >= n_regions || g->id >= FF_WIRE_GRANTS_MAX || !g->len_bytes ||
            g->len_bytes > max_len || g->len_bytes % r->psize || g->offset % r->psize ||
            g->offset > r->len_bytes || g->len_bytes > r->len_bytes - g->offset ||
            g->addr + g->len_bytes < g->addr)
            return ff_error_set(
                err, EPROTO,
                "wire: read GRANT: %u: region %u, offset 0x%llx, length 0x%x (permitted: whole pages inside a region, at most 0x%x bytes, id below %d)",
                g->id, g->region, (unsigned long long)g->offset, g->len_bytes, max_len,
                FF_WIRE_GRANTS_MAX);
    }
    *n = (unsigned)count;
    return ff_wire_end(&b, FF_MSG_GRANT, err);
}
