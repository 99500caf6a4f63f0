/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_return.h - the return path of QEMU's migration: destination to source
 */
#ifndef FF_CONTROL_PROXY_STREAM_RETURN_H
#define FF_CONTROL_PROXY_STREAM_RETURN_H

#include "stream.h"

enum stream_return_type {
    STREAM_RETURN_INVALID,
    STREAM_RETURN_SHUT,
    STREAM_RETURN_PONG,
    STREAM_RETURN_REQ_PAGES_ID,
    STREAM_RETURN_REQ_PAGES,
    STREAM_RETURN_RECV_BITMAP,
    STREAM_RETURN_RESUME_ACK,
    STREAM_RETURN_SWITCHOVER_ACK,
    STREAM_RETURN_TYPES
};

enum {
    STREAM_RETURN_DATA_MAX = 12 + 1 + STREAM_NAME_MAX,
    STREAM_RETURN_MAX = 4 + STREAM_RETURN_DATA_MAX,
    STREAM_RETURN_BITMAP_MAX = 1 << 30, /* of a block of 32 TiB */
};

struct stream_return {
    enum stream_return_type type;
    uint64_t offset;
    uint32_t value; /* SHUT: 0 or an error; PONG; RESUME_ACK */
    uint64_t addr;  /* REQ_PAGES and REQ_PAGES_ID: in the block, with @len_bytes */
    uint32_t len_bytes;
    char name[STREAM_NAME_MAX + 1]; /* the block; of REQ_PAGES: the one named last */
};

/* As struct stream_sink. STREAM_DROP for REQ_PAGES, REQ_PAGES_ID, PONG and SHUT alone; the reader
 * names a block again for a later REQ_PAGES that stood on a dropped one. STREAM_HOLD is not permitted. */
struct stream_return_sink {
    int (*event)(void *opaque, const struct stream_return *m, struct ff_error *err);
    int (*bytes)(void *opaque, const void *data, size_t len, struct ff_error *err);
    void *opaque;
};

/* No memory of its own: zero it and set the sink */
struct stream_return_reader {
    struct stream_return_sink sink;
    uint64_t offset;
    enum { STREAM_RET_MESSAGE, STREAM_RET_SIZE, STREAM_RET_BITMAP, STREAM_RET_MARK } state;
    uint64_t body_left;
    bool unsaid;
    char name[STREAM_NAME_MAX + 1];
    struct ff_error failed;
    size_t n_gather;
    uint8_t gather[STREAM_RETURN_MAX];
};

/* 0, or -errno as stream_feed(); holds back a message that has not come whole. A bitmap, which
 * follows RECV_BITMAP, passes as it comes. */
int stream_return_feed(struct stream_return_reader *r, const void *data, size_t len,
                       struct ff_error *err);

/* To @out, with room for STREAM_RETURN_MAX; returns the length */
size_t stream_return_write(uint8_t *out, const struct stream_return *m);
const char *stream_return_name(enum stream_return_type type);

#endif
