/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wire.c - the control messages of a move, encoded and validated in one place
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "error.h"
#include "wire_message.h"

#define HELLO_REGION_MIN 14         /* length, page size, name length */

static const char *const names[] = {
    [FF_MSG_HELLO] = "HELLO",       [FF_MSG_WELCOME] = "WELCOME",   [FF_MSG_REFUSE] = "REFUSE",
    [FF_MSG_PUBLISH] = "PUBLISH",   [FF_MSG_STATE] = "STATE",       [FF_MSG_FIRST] = "FIRST",
    [FF_MSG_DATA] = "DATA",         [FF_MSG_READY] = "READY",       [FF_MSG_GO] = "GO",
    [FF_MSG_RUNNING] = "RUNNING",   [FF_MSG_PROGRESS] = "PROGRESS", [FF_MSG_DONE] = "DONE",
    [FF_MSG_WITHDRAWN] = "WITHDRAWN", [FF_MSG_WATCHING] = "WATCHING",
    [FF_MSG_KEYS] = "KEYS",         [FF_MSG_GRANT] = "GRANT",
    [FF_MSG_LOGGING] = "LOGGING",   [FF_MSG_PASSED] = "PASSED",     [FF_MSG_DIRTY] = "DIRTY",
    [FF_MSG_RESUME] = "RESUME",     [FF_MSG_LEASE] = "LEASE",     [FF_MSG_PARTS] = "PARTS",
    [FF_MSG_FEED] = "FEED",
};
_Static_assert(FF_ARRAY_LEN(names) == FF_MSG_LAST + 1, "a name for every message");

const char *ff_msg_name(unsigned type)
{
    return type && type <= FF_MSG_LAST ? names[type] : "unknown message";
}

/* --- both directions --- */

struct ff_wirebuf ff_wire_begin(uint8_t *buf, enum ff_msg type)
{
    struct ff_wirebuf b = {.data = buf, .len = FF_MSG_MAX};
    ff_wb_put(&b, type, 2);
    ff_wb_put(&b, 0, 2);
    return b;
}

struct ff_wirebuf ff_wire_body(const uint8_t *msg, size_t len)
{
    struct ff_wirebuf b = {.data = (uint8_t *)msg, .len = len}; /* only read from */
    ff_wb_take(&b, 4);
    return b;
}

int ff_wire_type(const uint8_t *msg, size_t len, struct ff_error *err)
{
    struct ff_wirebuf b = {.data = (uint8_t *)msg, .len = len};
    unsigned type = (unsigned)ff_wb_get(&b, 2), code = (unsigned)ff_wb_get(&b, 2);
    unsigned last_code = type == FF_MSG_REFUSE ? FF_REFUSAL_LAST : 0;

    if (b.bad || !type || type > FF_MSG_LAST || code > last_code)
        return ff_error_set(err, EPROTO,
                            "wire: read message: type %u, code %u (permitted 1..%u, 0..%u)", type,
                            code, FF_MSG_LAST, last_code);
    return (int)type;
}

int ff_wire_end(const struct ff_wirebuf *b, enum ff_msg type, struct ff_error *err)
{
    if (b->bad)
        return ff_error_set(err, EPROTO, "wire: read %s: cut short (%zu bytes)", names[type],
                            b->len);
    if (ff_wb_left(b))
        return ff_error_set(err, EPROTO, "wire: read %s: %zu bytes too many", names[type],
                            ff_wb_left(b));
    return 0;
}

/* A name or line of @n bytes: printable, without NUL */
static int get_text(struct ff_wirebuf *b, char *out, size_t n, const char *what,
                    struct ff_error *err)
{
    const uint8_t *p = ff_wb_take(b, n);

    if (!p)
        return ff_error_set(err, EPROTO, "wire: read %s: cut short (want %zu bytes)", what, n);
    for (size_t i = 0; i < n; i++)
        if (!isprint(p[i]))
            return ff_error_set(err, EPROTO, "wire: read %s: byte 0x%02x is not printable", what,
                                p[i]);
    memcpy(out, p, n);
    out[n] = '\0';
    return 0;
}

int ff_wire_put_empty(uint8_t *buf, enum ff_msg type)
{
    return (int)ff_wire_begin(buf, type).pos;
}

int ff_wire_get_empty(const uint8_t *msg, size_t len, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);
    return ff_wire_end(&b, (enum ff_msg)msg[0], err);
}

/* --- HELLO --- */

int ff_wire_check_version(const char *name, unsigned oldest, unsigned version,
                          struct ff_error *err)
{
    if (oldest <= FF_WIRE_VERSION && version >= FF_WIRE_VERSION)
        return 0;
    return ff_error_set(err, EPROTONOSUPPORT,
                        "wire: read %s: protocol version %u..%u (this side speaks %d); use the "
                        "same Farfork release on both hosts",
                        name, oldest, version, FF_WIRE_VERSION);
}

int ff_wire_put_hello(uint8_t *buf, const struct ff_hello *h, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_HELLO);
    size_t config_len = strlen(h->config);

    ff_wb_put(&b, FF_WIRE_MAGIC, 8);
    ff_wb_put(&b, h->version, 2);
    ff_wb_put(&b, h->oldest, 2);
    ff_wb_put(&b, h->features, 4);
    ff_wb_put(&b, h->auth, 2);
    ff_wb_put(&b, h->n_regions, 2);
    ff_wb_put(&b, config_len, 2);
    ff_wb_put_bytes(&b, h->config, config_len);
    if (h->features & FF_WIRE_RETURNS)
        ff_wb_put_bytes(&b, h->returns_from, FF_SESSION_LEN);
    for (unsigned i = 0; i < h->n_regions; i++) {
        const struct ff_wire_region *r = &h->regions[i];
        size_t name_len = strlen(r->name);
        ff_wb_put(&b, r->len_bytes, 8);
        ff_wb_put(&b, r->psize, 4);
        ff_wb_put(&b, name_len, 2);
        ff_wb_put_bytes(&b, r->name, name_len);
    }
    if (b.bad)
        return ff_error_set(err, E2BIG, "wire: write HELLO: %u regions do not fit in %u bytes",
                            h->n_regions, FF_MSG_MAX);
    return (int)b.pos;
}

static int get_region(struct ff_wirebuf *b, struct ff_wire_region *r, unsigned i,
                      struct ff_error *err)
{
    r->len_bytes = ff_wb_get(b, 8);
    r->psize = (uint32_t)ff_wb_get(b, 4);
    size_t name_len = ff_wb_get(b, 2);

    if (b->bad)
        return ff_error_set(err, EPROTO, "wire: read HELLO: region %u: cut short", i);
    if (!name_len || name_len > FF_WIRE_NAME_MAX)
        return ff_error_set(err, EPROTO,
                            "wire: read HELLO: region %u: name of %zu bytes (permitted 1..%d)", i,
                            name_len, FF_WIRE_NAME_MAX);
    int rc = get_text(b, r->name, name_len, "HELLO: region name", err);
    if (rc)
        return rc;
    if (r->psize < 4096 || r->psize > (1u << 30) || (r->psize & (r->psize - 1)))
        return ff_error_set(
            err, EPROTO,
            "wire: read HELLO: region %s: page size %u (permitted: powers of two, 4096..2^30)",
            r->name, r->psize);
    if (!r->len_bytes || r->len_bytes > FF_WIRE_REGION_LEN_MAX || r->len_bytes % r->psize)
        return ff_error_set(
            err, EPROTO,
            "wire: read HELLO: region %s: length 0x%llx (permitted: multiples of page size %u up to 0x%llx)",
            r->name, (unsigned long long)r->len_bytes, r->psize, FF_WIRE_REGION_LEN_MAX);
    return 0;
}

static int get_hello_head(struct ff_wirebuf *b, struct ff_hello *h, struct ff_error *err)
{
    uint64_t magic = ff_wb_get(b, 8);
    h->version = (uint16_t)ff_wb_get(b, 2);
    h->oldest = (uint16_t)ff_wb_get(b, 2);
    h->features = (uint32_t)ff_wb_get(b, 4);
    h->auth = (uint16_t)ff_wb_get(b, 2);
    h->n_regions = (uint16_t)ff_wb_get(b, 2);
    size_t config_len = ff_wb_get(b, 2);

    if (b->bad || magic != FF_WIRE_MAGIC)
        return ff_error_set(
            err, EPROTO, "wire: read HELLO: not a Farfork source (magic 0x%016llx, want 0x%016llx)",
            (unsigned long long)magic, FF_WIRE_MAGIC);
    int rc = ff_wire_check_version("HELLO", h->oldest, h->version, err);
    if (rc)
        return rc;
    if (h->auth > FF_WIRE_AUTH_KEY)
        return ff_error_set(err, EPROTO,
                            "wire: read HELLO: authentication kind %u (permitted 0..%u)", h->auth,
                            FF_WIRE_AUTH_KEY);
    if (!h->n_regions || h->n_regions > FF_WIRE_REGIONS_MAX ||
        (size_t)h->n_regions * HELLO_REGION_MIN > ff_wb_left(b))
        return ff_error_set(err, EPROTO,
                            "wire: read HELLO: %u regions in %zu bytes (permitted 1..%d)",
                            h->n_regions, ff_wb_left(b), FF_WIRE_REGIONS_MAX);
    if (config_len > FF_WIRE_CONFIG_MAX)
        return ff_error_set(err, EPROTO, "wire: read HELLO: config of %zu bytes (permitted 0..%d)",
                            config_len, FF_WIRE_CONFIG_MAX);
    rc = get_text(b, h->config, config_len, "HELLO: config", err);
    const uint8_t *from = rc || !(h->features & FF_WIRE_RETURNS) ? NULL : ff_wb_take(b, FF_SESSION_LEN);
    if (from)
        memcpy(h->returns_from, from, FF_SESSION_LEN);
    return rc;
}

int ff_wire_get_hello(const uint8_t *msg, size_t len, struct ff_hello *h, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);

    memset(h, 0, sizeof(*h));
    int rc = get_hello_head(&b, h, err);
    if (rc)
        return rc;

    /* walk the table once before anything is allocated for it */
    struct ff_wirebuf table = b;
    struct ff_wire_region scratch;
    for (unsigned i = 0; i < h->n_regions && !rc; i++)
        rc = get_region(&b, &scratch, i, err);
    if (!rc)
        rc = ff_wire_end(&b, FF_MSG_HELLO, err);
    if (rc)
        return rc;

    h->regions = calloc(h->n_regions, sizeof(*h->regions));
    if (!h->regions)
        return ff_error_set(err, ENOMEM, "wire: read HELLO: out of memory");
    for (unsigned i = 0; i < h->n_regions; i++) {
        get_region(&table, &h->regions[i], i, NULL);
        for (unsigned k = 0; k < i; k++) {
            if (strcmp(h->regions[k].name, h->regions[i].name))
                continue;
            rc = ff_error_set(err, EPROTO, "wire: read HELLO: region %s twice", h->regions[i].name);
            ff_hello_free(h);
            return rc;
        }
    }
    return 0;
}

void ff_hello_free(struct ff_hello *h)
{
    free(h->regions);
    h->regions = NULL;
}

/* --- WELCOME, REFUSE --- */

int ff_wire_put_welcome(uint8_t *buf, const struct ff_welcome *w)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_WELCOME);
    ff_wb_put(&b, w->version, 2);
    ff_wb_put(&b, w->answer, 2);
    ff_wb_put(&b, w->features, 4);
    ff_wb_put_bytes(&b, w->session, FF_SESSION_LEN);
    ff_wb_put(&b, w->epoch, 4);
    return (int)b.pos;
}

int ff_wire_get_welcome(const uint8_t *msg, size_t len, struct ff_welcome *w, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);
    w->version = (uint16_t)ff_wb_get(&b, 2);
    unsigned answer = (unsigned)ff_wb_get(&b, 2);
    w->features = (uint32_t)ff_wb_get(&b, 4);
    const uint8_t *session = ff_wb_take(&b, FF_SESSION_LEN);
    w->epoch = (uint32_t)ff_wb_get(&b, 4);
    int rc = ff_wire_end(&b, FF_MSG_WELCOME, err);
    if (rc)
        return rc;
    if (w->version != FF_WIRE_VERSION)
        return ff_error_set(err, EPROTONOSUPPORT,
                            "wire: read WELCOME: protocol version %u (this side speaks %d)",
                            w->version, FF_WIRE_VERSION);
    if (w->features & ~FF_WIRE_WELCOME_FEATURES)
        return ff_error_set(err, EPROTO, "wire: read WELCOME: features 0x%x (permitted 0x%x)",
                            w->features, FF_WIRE_WELCOME_FEATURES);
    if (answer > FF_ANSWER_LAST || !w->epoch)
        return ff_error_set(err, EPROTO,
                            "wire: read WELCOME: answer %u, epoch %u (permitted 0..%d, 1 or more)",
                            answer, w->epoch, FF_ANSWER_LAST);
    w->answer = (enum ff_answer)answer;
    memcpy(w->session, session, FF_SESSION_LEN);
    return 0;
}

int ff_wire_put_refuse(uint8_t *buf, enum ff_refusal code, const char *text)
{
    struct ff_wirebuf b = {.data = buf, .len = FF_MSG_MAX};

    ff_wb_put(&b, FF_MSG_REFUSE, 2);
    ff_wb_put(&b, code, 2);
    for (size_t i = 0; text[i] && i < FF_WIRE_TEXT_MAX; i++)
        ff_wb_put(&b, isprint((unsigned char)text[i]) ? (unsigned char)text[i] : '?', 1);
    return (int)b.pos;
}

int ff_wire_get_refuse(const uint8_t *msg, size_t len, enum ff_refusal *code,
                       char text[FF_WIRE_TEXT_MAX + 1], struct ff_error *err)
{
    struct ff_wirebuf b = {.data = (uint8_t *)msg, .len = len}; /* only read from */

    ff_wb_take(&b, 2);
    *code = (enum ff_refusal)ff_wb_get(&b, 2); /* ff_wire_type() has looked at it */
    if (ff_wb_left(&b) > FF_WIRE_TEXT_MAX)
        return ff_error_set(err, EPROTO, "wire: read REFUSE: text of %zu bytes (permitted 0..%d)",
                            ff_wb_left(&b), FF_WIRE_TEXT_MAX);
    return get_text(&b, text, ff_wb_left(&b), "REFUSE: text", err);
}

/* --- PUBLISH, KEYS --- */

#define PUBLISH_HEAD 74
#define KEY_LEN 12

int ff_wire_put_publish(uint8_t *buf, const struct ff_publish *p, unsigned n_regions)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_PUBLISH);
    ff_wb_put(&b, p->segment_bytes, 8);
    ff_wb_put(&b, p->n_keys, 4);
    ff_wb_put(&b, p->load_permille, 4);
    ff_wb_put(&b, p->push_bytes, 4);
    ff_wb_put(&b, p->lease_ms, 4);
    ff_wb_put(&b, p->asks_addr, 8);
    ff_wb_put(&b, p->asks_rkey, 4);
    ff_wb_put_bytes(&b, p->group.at.addr, sizeof(p->group.at.addr));
    ff_wb_put(&b, p->group.at.port, 2);
    ff_wb_put_bytes(&b, p->group.salt, sizeof(p->group.salt));
    ff_wb_put(&b, p->group.why_not, 4);
    for (unsigned i = 0; i < n_regions; i++)
        ff_wb_put(&b, p->addr[i], 8);
    return (int)b.pos;
}

int ff_wire_get_publish(const uint8_t *msg, size_t len, struct ff_publish *p, unsigned n,
                        const struct ff_wire_region *regions, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);

    if (ff_wb_left(&b) != PUBLISH_HEAD + (size_t)n * 8)
        return ff_error_set(err, EPROTO, "wire: read PUBLISH: %zu bytes for %u regions (want %u)",
                            ff_wb_left(&b), n, PUBLISH_HEAD + n * 8);
    p->segment_bytes = ff_wb_get(&b, 8);
    p->n_keys = (uint32_t)ff_wb_get(&b, 4);
    p->load_permille = (uint32_t)ff_wb_get(&b, 4);
    p->push_bytes = (uint32_t)ff_wb_get(&b, 4);
    p->lease_ms = (uint32_t)ff_wb_get(&b, 4);
    p->asks_addr = ff_wb_get(&b, 8);
    p->asks_rkey = (uint32_t)ff_wb_get(&b, 4);
    memcpy(p->group.at.addr, ff_wb_take(&b, sizeof(p->group.at.addr)), sizeof(p->group.at.addr));
    p->group.at.port = (uint16_t)ff_wb_get(&b, 2);
    memcpy(p->group.salt, ff_wb_take(&b, sizeof(p->group.salt)), sizeof(p->group.salt));
    p->group.why_not = (uint32_t)ff_wb_get(&b, 4);
    if (p->group.at.port && (!ff_group_at_is_group(&p->group.at) || p->group.why_not))
        return ff_error_set(err, EPROTO, "wire: read PUBLISH: it sends to an address of no group");
    if (!ff_wire_lease_fits(p->lease_ms))
        return ff_error_set(err, EPROTO, "wire: read PUBLISH: a lease of %u ms (permitted 0, %d..%d)",
                            p->lease_ms, FF_WIRE_LEASE_MIN_MS, FF_WIRE_LEASE_MAX_MS);
    if (p->segment_bytes < FF_WIRE_SEGMENT_MIN || p->segment_bytes > FF_WIRE_REGION_LEN_MAX ||
        (p->segment_bytes & (p->segment_bytes - 1)))
        return ff_error_set(
            err, EPROTO,
            "wire: read PUBLISH: segments of 0x%llx bytes (permitted: powers of two, 0x%llx..0x%llx)",
            (unsigned long long)p->segment_bytes, FF_WIRE_SEGMENT_MIN, FF_WIRE_REGION_LEN_MAX);
    uint64_t segments = 0;
    for (unsigned i = 0; i < n; i++) {
        p->addr[i] = ff_wb_get(&b, 8);
        if (p->addr[i] + regions[i].len_bytes < p->addr[i])
            return ff_error_set(err, EPROTO, "wire: read PUBLISH: region %s: address 0x%llx wraps",
                                regions[i].name, (unsigned long long)p->addr[i]);
        segments += (regions[i].len_bytes + p->segment_bytes - 1) / p->segment_bytes;
    }
    if (segments > FF_WIRE_KEYS_MAX || p->n_keys > segments)
        return ff_error_set(err, EPROTO,
                            "wire: read PUBLISH: %u keys for %llu segments (permitted 0..%d)",
                            p->n_keys, (unsigned long long)segments, FF_WIRE_KEYS_MAX);
    return ff_wire_end(&b, FF_MSG_PUBLISH, err);
}

int ff_wire_put_keys(uint8_t *buf, const struct ff_wire_key *keys, unsigned n)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_KEYS);
    for (unsigned i = 0; i < n; i++) {
        ff_wb_put(&b, keys[i].region, 4);
        ff_wb_put(&b, keys[i].segment, 4);
        ff_wb_put(&b, keys[i].rkey, 4);
    }
    return (int)b.pos;
}

int ff_wire_get_keys(const uint8_t *msg, size_t len, struct ff_wire_key *keys, unsigned max,
                     uint64_t segment_bytes, const struct ff_wire_region *regions,
                     unsigned n_regions, unsigned *n, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);
    size_t count = ff_wb_left(&b) / KEY_LEN;

    if (!count || ff_wb_left(&b) % KEY_LEN || count > max)
        return ff_error_set(err, EPROTO, "wire: read KEYS: %zu bytes (permitted 1..%u keys of %d)",
                            ff_wb_left(&b), max, KEY_LEN);
    for (size_t i = 0; i < count; i++) {
        struct ff_wire_key *k = &keys[i];
        k->region = (uint32_t)ff_wb_get(&b, 4);
        k->segment = (uint32_t)ff_wb_get(&b, 4);
        k->rkey = (uint32_t)ff_wb_get(&b, 4);
        if (k->region >= n_regions || !k->rkey ||
            k->segment >= (regions[k->region].len_bytes + segment_bytes - 1) / segment_bytes)
            return ff_error_set(
                err, EPROTO,
                "wire: read KEYS: segment %u of region %u, key 0x%x: there is no such segment, or no key",
                k->segment, k->region, k->rkey);
    }
    *n = (unsigned)count;
    return ff_wire_end(&b, FF_MSG_KEYS, err);
}

/* --- DIRTY --- */

int ff_wire_put_dirty(uint8_t *buf, const struct ff_dirty *d)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_DIRTY);
    ff_wb_put(&b, d->region, 4);
    ff_wb_put(&b, d->n, 4);
    ff_wb_put(&b, d->first, 8);
    ff_wb_put_bytes(&b, d->bits, (d->n + 7) / 8);
    return (int)b.pos;
}

int ff_wire_get_dirty(const uint8_t *msg, size_t len, struct ff_dirty *d,
                      const struct ff_wire_region *regions, unsigned n_regions,
                      struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);
    d->region = (uint32_t)ff_wb_get(&b, 4);
    d->n = (uint32_t)ff_wb_get(&b, 4);
    d->first = ff_wb_get(&b, 8);
    const struct ff_wire_region *r = d->region < n_regions ? &regions[d->region] : NULL;
    uint64_t pages = r ? r->len_bytes / r->psize : 0;

    if (b.bad || !r || !d->n || d->n > FF_WIRE_DIRTY_MAX ||
        d->first > pages || d->n > pages - d->first)
        return ff_error_set(err, EPROTO,
                            "wire: read DIRTY: region %u of %u, pages %llu and the %u after "
                            "(permitted: inside a region, 1..%u pages)",
                            d->region, n_regions, (unsigned long long)d->first, d->n,
                            FF_WIRE_DIRTY_MAX);
    d->bits = ff_wb_take(&b, (d->n + 7) / 8);
    return ff_wire_end(&b, FF_MSG_DIRTY, err);
}

/* --- STATE, FIRST, DATA --- */

int ff_wire_put_state(uint8_t *buf, const struct ff_state_head *h)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_STATE);
    ff_wb_put(&b, h->total_bytes, 8);
    ff_wb_put(&b, h->n_first, 4);
    ff_wb_put(&b, h->n_keys, 4);
    return (int)b.pos;
}

int ff_wire_get_state(const uint8_t *msg, size_t len, struct ff_state_head *h, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);
    h->total_bytes = ff_wb_get(&b, 8);
    h->n_first = (uint32_t)ff_wb_get(&b, 4);
    h->n_keys = (uint32_t)ff_wb_get(&b, 4);
    int rc = ff_wire_end(&b, FF_MSG_STATE, err);
    if (rc)
        return rc;
    if (!h->total_bytes || h->total_bytes > FF_WIRE_STATE_MAX)
        return ff_error_set(err, EPROTO, "wire: read STATE: %llu bytes (permitted 1..%llu)",
                            (unsigned long long)h->total_bytes, FF_WIRE_STATE_MAX);
    if (h->n_first > FF_WIRE_FIRST_MAX)
        return ff_error_set(err, EPROTO, "wire: read STATE: %u first-touch pages (permitted 0..%d)",
                            h->n_first, FF_WIRE_FIRST_MAX);
    if (h->n_keys > FF_WIRE_KEYS_MAX)
        return ff_error_set(err, EPROTO, "wire: read STATE: %u keys (permitted 0..%d)", h->n_keys,
                            FF_WIRE_KEYS_MAX);
    return 0;
}

int ff_wire_put_first(uint8_t *buf, const struct ff_page_ref *pages, unsigned n)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_FIRST);
    for (unsigned i = 0; i < n; i++) {
        ff_wb_put(&b, pages[i].region, 4);
        ff_wb_put(&b, pages[i].offset, 8);
    }
    return (int)b.pos;
}

int ff_wire_get_first(const uint8_t *msg, size_t len, struct ff_page_ref *pages, unsigned max,
                      const struct ff_wire_region *regions, unsigned n_regions, unsigned *n,
                      struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);
    size_t count = ff_wb_left(&b) / 12;

    if (!count || count > max || ff_wb_left(&b) % 12)
        return ff_error_set(err, EPROTO,
                            "wire: read FIRST: %zu bytes (permitted: 12 for each of 1..%u pages)",
                            ff_wb_left(&b), max);
    for (size_t i = 0; i < count; i++) {
        struct ff_page_ref *p = &pages[i];
        p->region = (uint32_t)ff_wb_get(&b, 4);
        p->offset = ff_wb_get(&b, 8);
        if (p->region >= n_regions)
            return ff_error_set(err, EPROTO, "wire: read FIRST: region %u (permitted 0..%u)",
                                p->region, n_regions - 1);
        if (p->offset >= regions[p->region].len_bytes)
            return ff_error_set(err, EPROTO,
                                "wire: read FIRST: offset 0x%llx beyond region %s (limit 0x%llx)",
                                (unsigned long long)p->offset, regions[p->region].name,
                                (unsigned long long)regions[p->region].len_bytes);
    }
    *n = (unsigned)count;
    return ff_wire_end(&b, FF_MSG_FIRST, err);
}

int ff_wire_put_data(uint8_t *buf, const void *data, uint32_t len)
{
    struct ff_wirebuf b = ff_wire_begin(buf, FF_MSG_DATA);
    ff_wb_put_bytes(&b, data, len);
    return (int)b.pos;
}

int ff_wire_get_data(const uint8_t *msg, size_t len, uint64_t max, const uint8_t **data,
                     uint32_t *n, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);
    size_t left = ff_wb_left(&b);

    if (!left || left > max)
        return ff_error_set(err, EPROTO, "wire: read DATA: %zu bytes (permitted 1..%llu)", left,
                            (unsigned long long)max);
    *data = ff_wb_take(&b, left);
    *n = (uint32_t)left;
    return 0;
}

/* --- statistics --- */

/* Every field of struct ff_stats in its order; a new field goes to the end, with a new
 * protocol version */
#define N_STATS (sizeof(struct ff_stats) / sizeof(uint64_t))
_Static_assert(sizeof(struct ff_stats) == N_STATS * 8 && N_STATS == 33,
               "struct ff_stats is on the wire: change the protocol version with it");

int ff_wire_put_stats(uint8_t *buf, enum ff_msg type, const struct ff_stats *st)
{
    struct ff_wirebuf b = ff_wire_begin(buf, type);
    uint64_t v[N_STATS];

    memcpy(v, st, sizeof(v));
    for (size_t i = 0; i < N_STATS; i++)
        ff_wb_put(&b, v[i], 8);
    return (int)b.pos;
}

int ff_wire_get_stats(const uint8_t *msg, size_t len, struct ff_stats *st, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wire_body(msg, len);
    uint64_t v[N_STATS];

    for (size_t i = 0; i < N_STATS; i++)
        v[i] = ff_wb_get(&b, 8);
    int rc = ff_wire_end(&b, (enum ff_msg)msg[0], err);
    if (!rc)
        memcpy(st, v, sizeof(v));
    return rc;
}
