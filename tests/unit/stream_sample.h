/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_sample.h - a small migration by post-copy, as QEMU 7.2 and 10.0 frame it
 */
#ifndef FF_TESTS_STREAM_SAMPLE_H
#define FF_TESTS_STREAM_SAMPLE_H

#include "stream_write.h"

struct sample {
    uint8_t data[1 << 17];
    size_t len;
};

enum { SAMPLE_RAM = 2, SAMPLE_PAGES = 8, SAMPLE_DEVICES = 100 };

static inline void sample_put(struct sample *s, uint64_t v, size_t bytes)
{
    s->len = (size_t)(stream_put(s->data + s->len, v, bytes) - s->data);
}

static inline void sample_add(struct sample *s, const void *data, size_t len)
{
    memcpy(s->data + s->len, data, len);
    s->len += len;
}

static inline void sample_name(struct sample *s, const char *name)
{
    sample_put(s, strlen(name), 1);
    sample_add(s, name, strlen(name));
}

static inline void sample_command(struct sample *s, enum stream_command c, const void *data,
                                  uint16_t len)
{
    s->len += stream_write_command(s->data + s->len, c, data, len);
}

static inline void sample_capability(struct sample *s, const char *name)
{
    sample_put(s, STREAM_SECTION_SUBSECTION, 1);
    sample_name(s, "configuration/capabilities");
    sample_put(s, 1, 4);
    sample_put(s, 1, 4);
    sample_name(s, name);
}

/* Header, configuration with that capability, and what comes before the first section */
static inline void sample_head(struct sample *s, const char *capability)
{
    static const uint8_t advise[16] = {[6] = 0x10, [14] = 0x10};

    s->len = 0;
    sample_put(s, 0x5145564d, 4);
    sample_put(s, 3, 4);
    sample_put(s, STREAM_SECTION_CONFIG, 1);
    sample_put(s, 11, 4);
    sample_add(s, "pc-i440fx-7", 11);
    sample_capability(s, capability);
    sample_command(s, STREAM_CMD_OPEN_RETURN_PATH, NULL, 0);
    s->len += stream_write_ping(s->data + s->len, 1);
    sample_command(s, STREAM_CMD_POSTCOPY_ADVISE, advise, sizeof(advise));
}

static inline void sample_start(struct sample *s, const char *name)
{
    sample_put(s, STREAM_SECTION_START, 1);
    sample_put(s, SAMPLE_RAM, 4);
    sample_name(s, name);
    sample_put(s, 0, 4);
    sample_put(s, 4, 4);
}

static inline void sample_section_end(struct sample *s)
{
    s->len += stream_write_section_end(s->data + s->len, SAMPLE_RAM);
}

/* Two blocks: pc.ram in pages of @psize, of two of them at least, and vga */
static inline void sample_setup(struct sample *s, uint64_t psize)
{
    uint64_t len = psize > STREAM_PAGE_LEN ? 2 * psize : SAMPLE_PAGES * STREAM_PAGE_LEN;

    sample_start(s, "ram");
    sample_put(s, (len + 2 * STREAM_PAGE_LEN) | STREAM_RAM_MEM_SIZE, 8);
    sample_name(s, "vga");
    sample_put(s, 2 * STREAM_PAGE_LEN, 8);
    sample_name(s, "pc.ram");
    sample_put(s, len, 8);
    if (psize > STREAM_PAGE_LEN)
        sample_put(s, psize, 8);
    sample_section_end(s);
}

static inline void sample_section(struct sample *s, enum stream_section type)
{
    s->len += stream_write_section(s->data + s->len, type, SAMPLE_RAM);
}

/* A page of that block; NULL: CONTINUE. @fill 0: zeros. */
static inline void sample_page(struct sample *s, const char *name, uint64_t addr, uint8_t fill)
{
    sample_put(
        s, addr | (fill ? STREAM_RAM_PAGE : STREAM_RAM_ZERO) | (name ? 0 : STREAM_RAM_CONTINUE), 8);
    if (name)
        sample_name(s, name);
    if (!fill)
        sample_put(s, 0, 1);
    for (unsigned i = 0; fill && i < STREAM_PAGE_LEN; i++)
        sample_put(s, (uint8_t)(fill + i % 251), 1);
}

static inline void sample_package(struct sample *s)
{
    sample_command(s, STREAM_CMD_PACKAGED, (const uint8_t[]){0, 0, 0, 10 + SAMPLE_DEVICES}, 4);
    sample_command(s, STREAM_CMD_POSTCOPY_LISTEN, NULL, 0);
    for (unsigned i = 0; i < SAMPLE_DEVICES; i++)
        sample_put(s, i % 7, 1);
    sample_command(s, STREAM_CMD_POSTCOPY_RUN, NULL, 0);
}

/* The whole of it */
static inline void sample_postcopy(struct sample *s)
{
    static const struct stream_range gone[] = {{0, STREAM_PAGE_LEN},
                                               {2 * STREAM_PAGE_LEN, STREAM_PAGE_LEN}};

    sample_head(s, "postcopy-ram");
    sample_setup(s, STREAM_PAGE_LEN);
    sample_section(s, STREAM_SECTION_PART);
    sample_page(s, "vga", 0, 0);
    sample_page(s, NULL, STREAM_PAGE_LEN, 3);
    sample_page(s, "pc.ram", 0, 5);
    sample_section_end(s);
    s->len += stream_write_ping(s->data + s->len, 2);
    s->len += stream_write_discard(s->data + s->len, "pc.ram", gone, 2);
    sample_package(s);
    s->len += stream_write_ping(s->data + s->len, 4);
    sample_section(s, STREAM_SECTION_PART);
    sample_page(s, "pc.ram", 0, 7);
    sample_page(s, NULL, STREAM_PAGE_LEN, 0);
    sample_page(s, "vga", 0, 9);
    sample_page(s, NULL, STREAM_PAGE_LEN, 0);
    sample_section_end(s);
    sample_section(s, STREAM_SECTION_END);
    sample_section_end(s);
    sample_put(s, STREAM_SECTION_EOF, 1);
}

#endif
