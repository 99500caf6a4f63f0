/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_state.h - a stream's state, between stream.c and stream_parse.c
 */
#ifndef FF_CONTROL_PROXY_STREAM_STATE_H
#define FF_CONTROL_PROXY_STREAM_STATE_H

#include "stream.h"

enum stream_state {
    STREAM_ST_HEADER,
    STREAM_ST_CONFIG,
    STREAM_ST_SECTION,
    STREAM_ST_RAM,
    STREAM_ST_FOOTER,
    STREAM_ST_PACKAGE, /* a body of body_left bytes; then its last unit */
    STREAM_ST_RUN,     /* the package's last unit */
    STREAM_ST_VMDESC,  /* a body of body_left bytes; then nothing */
    STREAM_ST_DEVICES, /* device state to the end */
    STREAM_ST_EOF,
    STREAM_ST_END,
};

struct stream {
    struct stream_sink sink;
    enum stream_state state;
    uint64_t offset;    /* of the unit that comes next */
    uint64_t body_left; /* bytes that pass unread */
    uint32_t ram_id;
    bool config_open; /* a subsection of the configuration may follow */
    bool ignore_shared, has_ram, advised, ram_ended, packaged;
    bool section_ends; /* the open RAM section is the last one */
    bool in_huge;      /* a huge page's first target pages have passed */
    bool block_unsaid; /* the reader does not know @last as the last page's block */
    bool held;
    const struct stream_block *last; /* of the last page */
    struct stream_block blocks[STREAM_BLOCKS_MAX];
    unsigned n_blocks;
    struct stream_range ranges[STREAM_RANGES_MAX];
    struct ff_error failed;
    size_t n_gather;
    uint8_t gather[STREAM_UNIT_MAX];
};

/* A unit that has come whole, and what the stream is after it */
struct stream_unit {
    struct stream_event e;
    enum stream_state next;
    uint64_t body;
    bool continues; /* a page that does not name its block */
};

/* Where, in front of what; @at counts from the unit's first byte */
#define STREAM_REFUSE(s, at, code, fmt, ...)                                                       \
    ff_error_set(err, code, "stream: offset %llu: " fmt, (unsigned long long)((s)->offset + (at)), \
                 ##__VA_ARGS__)

/* One byte of length and a name; 0 where it has not come */
static inline size_t stream_take_name(struct stream_reader *r, const char **name)
{
    size_t len = stream_get(r, 1);

    *name = (const char *)stream_take(r, len);
    return r->more ? 0 : len;
}

static inline bool stream_name_is(const char *name, size_t len, const char *want)
{
    return len == strlen(want) && !memcmp(name, want, len);
}

/* Reads the unit at @r. 0 with r->more: not whole; else its length is r->pos. */
int stream_parse_unit(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                      struct ff_error *err);
/* The same in a RAM section */
int stream_parse_ram(struct stream *s, struct stream_reader *r, struct stream_unit *u,
                     struct ff_error *err);

#endif
