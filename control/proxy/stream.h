/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream.h - QEMU's migration stream: read it in any pieces, forward or drop each unit
 */
#ifndef FF_CONTROL_PROXY_STREAM_H
#define FF_CONTROL_PROXY_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "error.h"
#include "stream_bytes.h"

enum {
    STREAM_PAGE_LEN = 4096,    /* x86's target page: the only one that is known here */
    STREAM_NAME_MAX = 255,     /* a length is one byte */
    STREAM_BLOCKS_MAX = 512,   /* ten times what a guest with all its slots filled has */
    STREAM_RANGES_MAX = 12,    /* of one discard: QEMU sends no more */
    STREAM_FINISH_MAX = 64,
    STREAM_UNIT_MAX = 1 << 17, /* above the longest unit, a configuration or a command of 64 KiB */
    /* The last PING of a package, from QEMU 10.2 on: until its PONG the source is in
     * postcopy-device, where its stream's end lets the guest go on there */
    STREAM_PING_LOADED = 0x42,
};

/* The first byte of a unit between two sections */
enum stream_section {
    STREAM_SECTION_EOF = 0,
    STREAM_SECTION_START = 1,
    STREAM_SECTION_PART = 2,
    STREAM_SECTION_END = 3,
    STREAM_SECTION_FULL = 4,
    STREAM_SECTION_SUBSECTION = 5,
    STREAM_SECTION_VMDESC = 6,
    STREAM_SECTION_CONFIG = 7,
    STREAM_SECTION_COMMAND = 8,
    STREAM_SECTION_FOOTER = 0x7e,
};

/* Below the page's address in the RAM section */
enum stream_ram_flag {
    STREAM_RAM_ZERO = 0x2,
    STREAM_RAM_MEM_SIZE = 0x4,
    STREAM_RAM_PAGE = 0x8,
    STREAM_RAM_EOS = 0x10,
    STREAM_RAM_CONTINUE = 0x20,
    STREAM_RAM_XBZRLE = 0x40,
    STREAM_RAM_HOOK = 0x80,
    STREAM_RAM_COMPRESSED = 0x100,
    STREAM_RAM_MULTIFD_FLUSH = 0x200,
};

enum stream_command {
    STREAM_CMD_OPEN_RETURN_PATH = 1,
    STREAM_CMD_PING,
    STREAM_CMD_POSTCOPY_ADVISE,
    STREAM_CMD_POSTCOPY_LISTEN,
    STREAM_CMD_POSTCOPY_RUN,
    STREAM_CMD_RAM_DISCARD,
    STREAM_CMD_PACKAGED,
    STREAM_CMD_ENABLE_COLO,
    STREAM_CMD_POSTCOPY_RESUME,
    STREAM_CMD_RECV_BITMAP,
    STREAM_CMD_SWITCHOVER_START,
    STREAM_CMDS
};

/* One block of guest memory, as the RAM section's setup lists it */
struct stream_block {
    char name[STREAM_NAME_MAX + 1];
    uint64_t len_bytes;
    uint64_t psize;   /* 4096, or what the list names: a hugetlb page */
    uint64_t address; /* the guest's, with the capability x-ignore-shared alone */
};

enum stream_kind {
    STREAM_HEADER,   /* magic and version */
    STREAM_CONFIG,   /* machine, capabilities */
    STREAM_SECTION,  /* a RAM section begins: @section, @section_id */
    STREAM_BLOCKS,   /* the list of blocks, whole: stream_blocks() has it */
    STREAM_PAGE,     /* @block, @addr, @data: NULL for a page of zeros */
    STREAM_EOS,      /* the RAM section's end; its footer follows */
    STREAM_FOOTER,   /* @section_id */
    STREAM_COMMAND,  /* @command, @value for PING, @data with @data_len */
    STREAM_DISCARD,  /* the command RAM_DISCARD: @block, @ranges */
    STREAM_PACKAGE,  /* the command PACKAGED: @value bytes follow */
    STREAM_PACKAGED, /* the end of a package, POSTCOPY_RUN: all before it has passed */
    STREAM_DEVICES,  /* of a pre-copy that ends: device state of unknown length, to the end */
    STREAM_EOF,      /* no section follows */
    STREAM_VMDESC,   /* a description of @value bytes follows */
    STREAM_KINDS
};

struct stream_range {
    uint64_t start, len_bytes;
};

/* @data and @ranges live until the callback returns, @block as long as the stream */
struct stream_event {
    enum stream_kind kind;
    uint64_t offset; /* where the unit begins in the stream */
    size_t len;      /* of the unit */
    enum stream_section section;
    uint32_t section_id;
    enum stream_command command;
    const struct stream_block *block;
    uint64_t addr, value;
    const uint8_t *data;
    size_t data_len;
    const struct stream_range *ranges;
    unsigned n_ranges;
};

/* What to do with a unit. A body that follows (a package, a description) always passes. */
enum stream_verdict {
    STREAM_FORWARD,
    STREAM_DROP, /* STREAM_PAGE, STREAM_DISCARD and STREAM_COMMAND alone */
    STREAM_HOLD, /* not now: stream_feed() returns, and the next one asks again */
};

/**
 * struct stream_sink - who takes what a stream says
 * @event: once for each unit (again after STREAM_HOLD), before any byte of it is forwarded;
 *         returns an enum stream_verdict, or -errno with *err filled
 * @bytes: what is to be forwarded, in order; returns 0 or -errno with *err filled
 */
struct stream_sink {
    int (*event)(void *opaque, const struct stream_event *e, struct ff_error *err);
    int (*bytes)(void *opaque, const void *data, size_t len, struct ff_error *err);
    void *opaque;
};

/* Where something of one's own may be written at this moment */
enum stream_place {
    STREAM_AT_SECTION, /* between sections: a section, a command */
    STREAM_IN_RAM,     /* in a RAM section: pages */
    STREAM_INSIDE,     /* nowhere: a unit or a body is under way */
};

struct stream;

/* NULL: out of memory. The size does not depend on what comes. */
struct stream *stream_new(const struct stream_sink *sink);
void stream_free(struct stream *s);

/**
 * stream_feed() - take the next bytes
 * @len: 0 asks again about a unit that was held
 *
 * Holds back at most one unit that has not come whole: a page with its header, a command, the
 * list of blocks. A package, a description and device state pass as they come.
 *
 * Return:  bytes taken, all of them unless the sink said STREAM_HOLD; or -errno, also again at
 *          each later call: -EPROTO what is no stream of QEMU's, -ENOTSUP what is one of a kind
 *          that cannot be followed, or what the sink returned
 */
ssize_t stream_feed(struct stream *s, const void *data, size_t len, struct ff_error *err);

/* -EPROTO unless the stream may end here: after EOF, or in device state */
int stream_end(const struct stream *s, struct ff_error *err);

/* What a post-copy's stream lacks to its end, where every page has come: to @out, with room for
 * STREAM_FINISH_MAX. 0: it lacks nothing, or that cannot be known */
size_t stream_finish(const struct stream *s, uint8_t *out);

/* A connection that resumes: it begins between two sections. What was known stays. */
void stream_resume(struct stream *s);

enum stream_place stream_place(const struct stream *s);
bool stream_holds(const struct stream *s);
uint64_t stream_offset(const struct stream *s); /* bytes taken */
uint32_t stream_ram_section(const struct stream *s);
const struct stream_block *stream_blocks(const struct stream *s, unsigned *n);
const struct stream_block *stream_find_block(const struct stream *s, const char *name, size_t len);
const char *stream_kind_name(enum stream_kind kind);
const char *stream_command_name(unsigned command);

/* Somebody else wrote a page: the next one that is forwarded names its block */
void stream_wrote_page(struct stream *s);

#endif
