/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * incoming_stream.c - the stream that a QEMU with -incoming takes, written here
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      QEMU's loader wants one stream: configuration, RAM, devices. A source of ours saves
 *              the devices alone (device_state.h), and a pager of ours brings most of RAM. This
 *              file writes what is around them. It reads no socket, and nothing of a stream but the
 *              two ends of the state: the length of a device's section is known to that device
 *              alone.
 *
 * Picture      all numbers big-endian
 *              begin  "QEVM" 3
 *                     07 len machine   05 "configuration/target-page-bits" 1 bits
 *                     01 RAM_ID "ram" 0 4   total|MEM_SIZE (len name length)...   EOS   7e RAM_ID
 *              end    03 RAM_ID   (addr|flags [len name] page)...                 EOS   7e RAM_ID
 *                     the state, without its first 8 bytes:   04 ... 7e id   04 ... 7e id   00
 *                     06 2 "{}"
 *
 * RAM_ID       QEMU numbers sections from 0, one for each device that registers, so no state has
 *              this number. It must not be 0: a loader looks a PART or END up by number, and each
 *              device whose section has not come yet has number 0. RAM's END is before the first
 *              section of the state.
 *
 * Left out     Only with a capability that the destination must have off: page sizes and
 *              POSTCOPY_ADVISE (postcopy-ram), guest addresses (x-ignore-shared), headers of blocks
 *              (mapped-ram), MULTIFD_FLUSH (multifd), HOOK (QEMU's rdma),
 *              configuration/capabilities. The description of the state (06) is for who debugs a
 *              stream; QEMU complains where it is not there.
 *
 * Versions     The same bytes from QEMU 2.9 on, where target-page-bits came. A machine older than
 *              2.4 has no configuration and no footers (migration.send-configuration=off): a state
 *              that does not end with a footer is refused.
 *
 * Sources      migration/ram.c ram_save_setup(), ram_load_precopy(), parse_ramblock();
 *              migration/savevm.c qemu_loadvm_state(), vmstate_configuration, of QEMU 10.0 and 10.2
 */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "incoming_stream.h"
#include "xalloc.h"

#define MAGIC 0x5145564du /* "QEVM" */
#define VERSION 3
#define HEADER_LEN 8
#define RAM_ID 0x7fff0000u
#define RAM_VERSION 4
#define NAME_MAX_BYTES 255         /* a length is one byte */
#define RAM_MAX_BYTES (1ull << 46) /* what x86-64 addresses with a shadow of it */
#define FOOTER_LEN 5

/* The first byte of a section */
enum section {
    SECTION_EOF = 0,
    SECTION_START = 1,
    SECTION_END = 3,
    SECTION_FULL = 4,
    SECTION_SUBSECTION = 5,
    SECTION_VMDESC = 6,
    SECTION_CONFIG = 7,
    SECTION_FOOTER = 0x7e,
};

/* Below the page's address */
enum ram_flag {
    RAM_ZERO = 0x2,
    RAM_MEM_SIZE = 0x4,
    RAM_PAGE = 0x8,
    RAM_EOS = 0x10,
    RAM_CONTINUE = 0x20,
};

/* --- write --- */

static void append_bytes(struct incoming_stream *s, const void *bytes, size_t n)
{
    if (s->room - s->len < n) {
        s->room = FF_MAX(2 * s->room, s->len + n);
        s->data = xrealloc(s->data, s->room);
    }
    memcpy(s->data + s->len, bytes, n);
    s->len += n;
}

static void append_number(struct incoming_stream *s, uint64_t v, size_t bytes)
{
    uint8_t p[8];

    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * (bytes - 1 - i)));
    append_bytes(s, p, bytes);
}

static void append_name(struct incoming_stream *s, const char *name)
{
    append_number(s, strlen(name), 1);
    append_bytes(s, name, strlen(name));
}

static void append_ram_section(struct incoming_stream *s, enum section type)
{
    append_number(s, type, 1);
    append_number(s, RAM_ID, 4);
    if (type != SECTION_START)
        return;
    append_name(s, "ram");
    append_number(s, 0, 4); /* instance */
    append_number(s, RAM_VERSION, 4);
}

static void append_ram_end(struct incoming_stream *s)
{
    append_number(s, RAM_EOS, 8);
    append_number(s, SECTION_FOOTER, 1);
    append_number(s, RAM_ID, 4);
}

static bool holds_zeros(const uint8_t *page, size_t len)
{
    return !page[0] && !memcmp(page, page + 1, len - 1);
}

/* Those of zeros, too: the destination's own firmware has written there */
static void append_pages(struct incoming_stream *s, const struct incoming_block *b, size_t page_len)
{
    for (uint64_t at = 0; at < b->len_bytes; at += page_len) {
        const bool zero = holds_zeros(b->bytes + at, page_len);

        append_number(s, at | (zero ? RAM_ZERO : RAM_PAGE) | (at ? RAM_CONTINUE : 0), 8);
        if (!at)
            append_name(s, b->name);
        if (zero)
            append_number(s, 0, 1);
        else
            append_bytes(s, b->bytes + at, page_len);
    }
}

/* --- check --- */

static int check_listed(const struct incoming_block *b, unsigned i, size_t page_len, uint64_t total,
                        struct ff_error *err)
{
    const size_t len = strlen(b[i].name);

    if (!len || len > NAME_MAX_BYTES)
        return ff_error_set(err, EINVAL,
                            "stream: write block: a name of %zu bytes (permitted 1..%u)", len,
                            NAME_MAX_BYTES);
    for (unsigned k = 0; k < i; k++)
        if (!strcmp(b[k].name, b[i].name))
            return ff_error_set(err, EINVAL,
                                "stream: write block: two are named '%s' (permitted: each name "
                                "once)",
                                b[i].name);
    if (!b[i].len_bytes || b[i].len_bytes % page_len || b[i].len_bytes > RAM_MAX_BYTES - total)
        return ff_error_set(err, EINVAL,
                            "stream: write block: '%s' of %llu bytes (permitted whole pages, "
                            "%zu..%llu)",
                            b[i].name, (unsigned long long)b[i].len_bytes, page_len,
                            RAM_MAX_BYTES - total);
    return 0;
}

static int check_blocks(unsigned page_bits, const struct incoming_block *b, unsigned n,
                        uint64_t *total, struct ff_error *err)
{
    int rc = 0;

    if (page_bits < INCOMING_PAGE_BITS_MIN || page_bits > INCOMING_PAGE_BITS_MAX)
        return ff_error_set(err, EINVAL, "stream: write pages: of %u bits (permitted %u..%u)",
                            page_bits, INCOMING_PAGE_BITS_MIN, INCOMING_PAGE_BITS_MAX);
    if (!n || n > INCOMING_BLOCKS_MAX)
        return ff_error_set(err, EINVAL, "stream: write blocks: %u (permitted 1..%u)", n,
                            INCOMING_BLOCKS_MAX);
    *total = 0;
    for (unsigned i = 0; !rc && i < n; i++) {
        rc = check_listed(b, i, (size_t)1 << page_bits, *total, err);
        *total += b[i].len_bytes;
    }
    return rc;
}

static uint32_t number_at(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static int check_state(const uint8_t *state, size_t len, struct ff_error *err)
{
    const size_t shortest = HEADER_LEN + 1 + 4 + FOOTER_LEN + 1;

    if (len < shortest)
        return ff_error_set(err, EPROTO, "stream: read device state: %zu bytes (permitted %zu..)",
                            len, shortest);
    if (number_at(state) != MAGIC || number_at(state + 4) != VERSION)
        return ff_error_set(err, ENOTSUP,
                            "stream: read device state: begins %08x %08x (permitted %08x %08x)",
                            number_at(state), number_at(state + 4), MAGIC, VERSION);
    if (state[HEADER_LEN] != SECTION_FULL)
        return ff_error_set(err, ENOTSUP,
                            "stream: read device state: section type %u comes first "
                            "(permitted %u)",
                            state[HEADER_LEN], SECTION_FULL);
    if (state[len - 1] != SECTION_EOF)
        return ff_error_set(err, EPROTO,
                            "stream: read device state: ends with %u after %zu bytes (permitted "
                            "%u): it is not whole",
                            state[len - 1], len, SECTION_EOF);
    if (state[len - 1 - FOOTER_LEN] != SECTION_FOOTER ||
        number_at(state + len - FOOTER_LEN) >= RAM_ID ||
        number_at(state + HEADER_LEN + 1) >= RAM_ID)
        return ff_error_set(err, ENOTSUP,
                            "stream: read device state: its last section has no footer "
                            "(permitted: machines from 2.4 on, which have them)");
    return 0;
}

/* --- the two parts --- */

int incoming_stream_begin(struct incoming_stream *s, const char *machine, unsigned page_bits,
                          const struct incoming_block *b, unsigned n, struct ff_error *err)
{
    const size_t len = strlen(machine);
    uint64_t total;
    int rc = check_blocks(page_bits, b, n, &total, err);

    if (rc)
        return rc;
    if (!len || len > NAME_MAX_BYTES)
        return ff_error_set(err, EINVAL, "stream: write machine: %zu bytes (permitted 1..%u)", len,
                            NAME_MAX_BYTES);
    append_number(s, MAGIC, 4);
    append_number(s, VERSION, 4);
    append_number(s, SECTION_CONFIG, 1);
    append_number(s, len, 4);
    append_bytes(s, machine, len);
    append_number(s, SECTION_SUBSECTION, 1);
    append_name(s, "configuration/target-page-bits");
    append_number(s, 1, 4); /* version */
    append_number(s, page_bits, 4);
    append_ram_section(s, SECTION_START);
    append_number(s, total | RAM_MEM_SIZE, 8);
    for (unsigned i = 0; i < n; i++) {
        append_name(s, b[i].name);
        append_number(s, b[i].len_bytes, 8);
    }
    append_ram_end(s);
    return 0;
}

int incoming_stream_end(struct incoming_stream *s, unsigned page_bits,
                        const struct incoming_block *b, unsigned n, const uint8_t *state,
                        size_t state_len, struct ff_error *err)
{
    uint64_t total;
    int rc = check_blocks(page_bits, b, n, &total, err);

    if (!rc)
        rc = check_state(state, state_len, err);
    if (rc)
        return rc;
    append_ram_section(s, SECTION_END);
    for (unsigned i = 0; i < n; i++)
        if (b[i].bytes)
            append_pages(s, &b[i], (size_t)1 << page_bits);
    append_ram_end(s);
    append_bytes(s, state + HEADER_LEN, state_len - HEADER_LEN);
    append_number(s, SECTION_VMDESC, 1);
    append_number(s, 2, 4);
    append_bytes(s, "{}", 2);
    return 0;
}
