/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wirebuf.h - little-endian fields in a byte buffer, bounds kept
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      one encoder and one decoder for every field on any wire.
 * Invariants   A put or get beyond the end does nothing but set @bad, gets return 0: a
 *              decoder reads all its fields and asks once.
 */
#ifndef FF_BASE_WIREBUF_H
#define FF_BASE_WIREBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct ff_wirebuf {
    uint8_t *data;
    size_t len, pos;
    bool bad;
};

/* For gets alone */
static inline struct ff_wirebuf ff_wb_reader(const void *in, size_t len)
{
    return (struct ff_wirebuf){.data = (uint8_t *)in, .len = len};
}

static inline uint8_t *ff_wb_take(struct ff_wirebuf *b, size_t n)
{
    if (b->bad || n > b->len - b->pos) {
        b->bad = true;
        return NULL;
    }
    b->pos += n;
    return b->data + b->pos - n;
}

static inline void ff_wb_put(struct ff_wirebuf *b, uint64_t v, size_t bytes)
{
    uint8_t *p = ff_wb_take(b, bytes);
    for (size_t i = 0; p && i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static inline void ff_wb_put_bytes(struct ff_wirebuf *b, const void *src, size_t n)
{
    uint8_t *p = ff_wb_take(b, n);
    if (p && n)
        memcpy(p, src, n);
}

static inline uint64_t ff_wb_get(struct ff_wirebuf *b, size_t bytes)
{
    const uint8_t *p = ff_wb_take(b, bytes);
    uint64_t v = 0;
    for (size_t i = 0; p && i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static inline size_t ff_wb_left(const struct ff_wirebuf *b)
{
    return b->bad ? 0 : b->len - b->pos;
}

#endif
