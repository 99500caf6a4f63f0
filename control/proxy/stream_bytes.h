/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_bytes.h - big-endian fields, as QEMU's streams have them
 */
#ifndef FF_CONTROL_PROXY_STREAM_BYTES_H
#define FF_CONTROL_PROXY_STREAM_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Takes fields from a unit that may have come in part. What is missing sets @more: the unit is
 * read again from its first byte when there are more. */
struct stream_reader {
    const uint8_t *data;
    size_t len, pos;
    bool more;
};

static inline const uint8_t *stream_take(struct stream_reader *r, size_t n)
{
    if (r->more || n > r->len - r->pos) {
        r->more = true;
        return NULL;
    }
    r->pos += n;
    return r->data + r->pos - n;
}

/* 0 where it has not come */
static inline uint64_t stream_get(struct stream_reader *r, size_t bytes)
{
    const uint8_t *p = stream_take(r, bytes);
    uint64_t v = 0;

    for (size_t i = 0; p && i < bytes; i++)
        v = v << 8 | p[i];
    return v;
}

static inline uint8_t *stream_put(uint8_t *p, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * (bytes - 1 - i)));
    return p + bytes;
}

#endif
