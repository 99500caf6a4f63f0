/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_return.c - the return path of QEMU's migration: destination to source
 */
#include "stream_return.h"

#include <errno.h>

#include "cleanup.h"

#define BITMAP_MARK 0x0123456789abcdefull
#define REQUEST_MAX (1u << 30) /* x86's greatest page */

static const struct {
    const char *name;
    int len; /* -1: it varies */
} messages[STREAM_RETURN_TYPES] = {
    [STREAM_RETURN_INVALID] = {"INVALID", 0},
    [STREAM_RETURN_SHUT] = {"SHUT", 4},
    [STREAM_RETURN_PONG] = {"PONG", 4},
    [STREAM_RETURN_REQ_PAGES_ID] = {"REQ_PAGES_ID", -1},
    [STREAM_RETURN_REQ_PAGES] = {"REQ_PAGES", 12},
    [STREAM_RETURN_RECV_BITMAP] = {"RECV_BITMAP", -1},
    [STREAM_RETURN_RESUME_ACK] = {"RESUME_ACK", 4},
    [STREAM_RETURN_SWITCHOVER_ACK] = {"SWITCHOVER_ACK", 0},
};

const char *stream_return_name(enum stream_return_type type)
{
    return (unsigned)type < STREAM_RETURN_TYPES ? messages[type].name : "unknown";
}

#define REFUSE(r, at, fmt, ...)                                                                    \
    ff_error_set(err, EPROTO, "return path: offset %llu: " fmt,                                    \
                 (unsigned long long)((r)->offset + (at)), ##__VA_ARGS__)

size_t stream_return_write(uint8_t *out, const struct stream_return *m)
{
    uint8_t *p = out + 4;
    size_t len = strlen(m->name);

    switch (m->type) {
    case STREAM_RETURN_SHUT:
    case STREAM_RETURN_PONG:
    case STREAM_RETURN_RESUME_ACK:
        p = stream_put(p, m->value, 4);
        break;
    case STREAM_RETURN_REQ_PAGES:
    case STREAM_RETURN_REQ_PAGES_ID:
        p = stream_put(p, m->addr, 8);
        p = stream_put(p, m->len_bytes, 4);
        break;
    default:
        break;
    }
    if (m->type == STREAM_RETURN_REQ_PAGES_ID || m->type == STREAM_RETURN_RECV_BITMAP) {
        *p++ = (uint8_t)len;
        memcpy(p, m->name, len);
        p += len;
    }
    stream_put(out, m->type, 2);
    stream_put(out + 2, (uint64_t)(p - out - 4), 2);
    return (size_t)(p - out);
}

/* The name at the end of a message, of @len bytes with its length */
static int read_name(struct stream_return_reader *r, const uint8_t *p, size_t len,
                     struct stream_return *m, struct ff_error *err)
{
    if (!p[0] || p[0] != len - 1 || memchr(p + 1, 0, len - 1))
        return REFUSE(r, 4, "read %s: name of %u in %zu bytes (permitted %zu, no zeros)",
                      stream_return_name(m->type), p[0], len, len - 1);
    memcpy(m->name, p + 1, len - 1);
    m->name[len - 1] = 0;
    return 0;
}

static int read_request(struct stream_return_reader *r, const uint8_t *p, size_t len,
                        struct stream_return *m, struct ff_error *err)
{
    struct stream_reader b = {.data = p, .len = len};
    int rc = 0;

    m->addr = stream_get(&b, 8);
    m->len_bytes = (uint32_t)stream_get(&b, 4);
    if (m->type == STREAM_RETURN_REQ_PAGES_ID)
        rc = read_name(r, p + 12, len - 12, m, err);
    else if (!r->name[0])
        return REFUSE(r, 0, "read REQ_PAGES: no block was named (permitted after REQ_PAGES_ID)");
    else
        memcpy(m->name, r->name, sizeof(m->name));
    if (rc)
        return rc;
    if (!m->len_bytes || (m->addr | m->len_bytes) % STREAM_PAGE_LEN || m->len_bytes > REQUEST_MAX ||
        m->addr > UINT64_MAX - m->len_bytes)
        return REFUSE(r, 4, "read %s: 0x%llx, 0x%x bytes (permitted whole pages, up to 0x%x)",
                      stream_return_name(m->type), (unsigned long long)m->addr, m->len_bytes,
                      REQUEST_MAX);
    return 0;
}

static int forward(struct stream_return_reader *r, const struct stream_return *m,
                   const uint8_t *data, size_t len, struct ff_error *err)
{
    struct stream_return named = *m;
    uint8_t out[STREAM_RETURN_MAX];

    if (m->type == STREAM_RETURN_REQ_PAGES && r->unsaid) { /* the source was not told */
        named.type = STREAM_RETURN_REQ_PAGES_ID;
        len = stream_return_write(out, &named);
        data = out;
    }
    return r->sink.bytes(r->sink.opaque, data, len, err);
}

/* A message that is whole */
static int take_return_message(struct stream_return_reader *r, const uint8_t *data, size_t len,
                               struct ff_error *err)
{
    struct stream_return m = {.type = (enum stream_return_type)(data[0] << 8 | data[1]),
                              .offset = r->offset};
    bool request = m.type == STREAM_RETURN_REQ_PAGES || m.type == STREAM_RETURN_REQ_PAGES_ID;
    struct stream_reader b = {.data = data, .len = len, .pos = 4};
    int rc = 0;

    if (request)
        rc = read_request(r, data + 4, len - 4, &m, err);
    else if (m.type == STREAM_RETURN_RECV_BITMAP)
        rc = read_name(r, data + 4, len - 4, &m, err);
    else if (len == 8)
        m.value = (uint32_t)stream_get(&b, 4);
    if (!rc)
        rc = r->sink.event(r->sink.opaque, &m, err);
    if (rc < 0)
        return rc;
    if (rc != STREAM_FORWARD && (rc != STREAM_DROP || !(request || m.type == STREAM_RETURN_PONG ||
                                                        m.type == STREAM_RETURN_SHUT)))
        return ff_error_set(err, EINVAL,
                            "return path: verdict %d on %s (permitted forward, or "
                            "drop on a request, PONG or SHUT)",
                            rc, stream_return_name(m.type));
    if (request)
        memcpy(r->name, m.name, sizeof(r->name));
    if (rc == STREAM_DROP) {
        r->unsaid |= m.type == STREAM_RETURN_REQ_PAGES_ID;
        return 0;
    }
    rc = forward(r, &m, data, len, err);
    if (request)
        r->unsaid = false;
    if (m.type == STREAM_RETURN_RECV_BITMAP)
        r->state = STREAM_RET_SIZE;
    return rc;
}

/* Bytes that are needed before the next step; 0: what is there is refused */
static size_t want(struct stream_return_reader *r, struct ff_error *err)
{
    unsigned type, len;

    if (r->state != STREAM_RET_MESSAGE)
        return 8;
    if (r->n_gather < 4)
        return 4;
    type = r->gather[0] << 8 | r->gather[1];
    len = r->gather[2] << 8 | r->gather[3];
    if (type == STREAM_RETURN_INVALID || type >= STREAM_RETURN_TYPES) {
        REFUSE(r, 0, "read type: %u (permitted 1..%u)", type, STREAM_RETURN_TYPES - 1);
        return 0;
    }
    if (messages[type].len >= 0
            ? len != (unsigned)messages[type].len
            : len < (type == STREAM_RETURN_RECV_BITMAP ? 2u : 14u) ||
                  len > (type == STREAM_RETURN_RECV_BITMAP ? 1u + STREAM_NAME_MAX
                                                           : STREAM_RETURN_DATA_MAX)) {
        REFUSE(r, 2, "read %s: %u bytes (permitted %d, or 2..%d with a name)", messages[type].name,
               len, messages[type].len, STREAM_RETURN_DATA_MAX);
        return 0;
    }
    return 4 + len;
}

/* What follows RECV_BITMAP: bytes, bitmap, mark */
static int take_bitmap_number(struct stream_return_reader *r, struct ff_error *err)
{
    struct stream_reader b = {.data = r->gather, .len = 8};
    uint64_t v = stream_get(&b, 8);

    if (r->state == STREAM_RET_MARK) {
        if (v != BITMAP_MARK)
            return REFUSE(r, 0, "read bitmap's end: 0x%llx (permitted 0x%llx)",
                          (unsigned long long)v, BITMAP_MARK);
        r->state = STREAM_RET_MESSAGE;
    } else {
        if (!v || v % 8 || v > STREAM_RETURN_BITMAP_MAX)
            return REFUSE(r, 0, "read bitmap: %llu bytes (permitted 8..%u, whole 8)",
                          (unsigned long long)v, STREAM_RETURN_BITMAP_MAX);
        r->body_left = v;
        r->state = STREAM_RET_BITMAP;
    }
    return r->sink.bytes(r->sink.opaque, r->gather, 8, err);
}

static int feed_messages(struct stream_return_reader *r, const uint8_t *data, size_t len,
                         struct ff_error *err)
{
    while (len) {
        size_t n, need;
        int rc;

        if (r->state == STREAM_RET_BITMAP) {
            n = (size_t)FF_MIN((uint64_t)len, r->body_left);
            rc = r->sink.bytes(r->sink.opaque, data, n, err);
            if (rc)
                return rc;
            r->offset += n;
            r->body_left -= n;
            if (!r->body_left)
                r->state = STREAM_RET_MARK;
            data += n;
            len -= n;
            continue;
        }
        need = want(r, err);
        if (!need)
            return -EPROTO;
        n = FF_MIN(len, need - r->n_gather);
        memcpy(r->gather + r->n_gather, data, n);
        r->n_gather += n;
        data += n;
        len -= n;
        need = want(r, err);
        if (!need)
            return -EPROTO;
        if (r->n_gather < need)
            continue;
        rc = r->state == STREAM_RET_MESSAGE ? take_return_message(r, r->gather, need, err)
                                            : take_bitmap_number(r, err);
        if (rc)
            return rc;
        r->offset += need;
        r->n_gather = 0;
    }
    return 0;
}

int stream_return_feed(struct stream_return_reader *r, const void *data, size_t len,
                       struct ff_error *err)
{
    struct ff_error why = {0};
    int rc;

    if (r->failed.code)
        return ff_error_set(err, r->failed.code, "%s", r->failed.text);
    rc = feed_messages(r, data, len, &why);
    if (rc < 0) {
        r->failed = why;
        return ff_error_set(err, why.code, "%s", why.text);
    }
    return 0;
}
