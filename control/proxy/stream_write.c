/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_write.c - units of QEMU's migration stream, made here
 */
#include "stream_state.h"
#include "stream_write.h"

#include <assert.h>

static uint8_t *put_name(uint8_t *p, const char *name)
{
    size_t len = strlen(name);

    assert(len && len <= STREAM_NAME_MAX);
    *p++ = (uint8_t)len;
    memcpy(p, name, len);
    return p + len;
}

size_t stream_write_page(uint8_t *out, const char *name, uint64_t addr, const void *data)
{
    uint8_t *p = stream_put(out, addr | (data ? STREAM_RAM_PAGE : STREAM_RAM_ZERO), 8);

    assert(addr % STREAM_PAGE_LEN == 0);
    p = put_name(p, name);
    if (data) {
        memcpy(p, data, STREAM_PAGE_LEN);
        p += STREAM_PAGE_LEN;
    } else {
        *p++ = 0;
    }
    return (size_t)(p - out);
}

size_t stream_write_section(uint8_t *out, enum stream_section type, uint32_t section_id)
{
    assert(type == STREAM_SECTION_PART || type == STREAM_SECTION_END);
    *out = (uint8_t)type;
    stream_put(out + 1, section_id, 4);
    return STREAM_WRITE_SECTION_LEN;
}

size_t stream_write_section_end(uint8_t *out, uint32_t section_id)
{
    uint8_t *p = stream_put(out, STREAM_RAM_EOS, 8);

    *p++ = STREAM_SECTION_FOOTER;
    stream_put(p, section_id, 4);
    return STREAM_WRITE_SECTION_END_LEN;
}

size_t stream_write_command(uint8_t *out, enum stream_command command, const void *data,
                            uint16_t len)
{
    *out = STREAM_SECTION_COMMAND;
    stream_put(out + 1, command, 2);
    stream_put(out + 3, len, 2);
    if (len)
        memcpy(out + STREAM_WRITE_COMMAND_LEN, data, len);
    return STREAM_WRITE_COMMAND_LEN + (size_t)len;
}

size_t stream_write_ping(uint8_t *out, uint32_t value)
{
    uint8_t data[4];

    stream_put(data, value, 4);
    return stream_write_command(out, STREAM_CMD_PING, data, sizeof(data));
}

size_t stream_write_discard(uint8_t *out, const char *name, const struct stream_range *ranges,
                            unsigned n)
{
    uint8_t data[STREAM_WRITE_DISCARD_MAX], *p = data;

    assert(n <= STREAM_RANGES_MAX);
    *p++ = 0; /* version */
    p = put_name(p, name);
    *p++ = 0;
    for (unsigned i = 0; i < n; i++) {
        p = stream_put(p, ranges[i].start, 8);
        p = stream_put(p, ranges[i].len_bytes, 8);
    }
    return stream_write_command(out, STREAM_CMD_RAM_DISCARD, data, (uint16_t)(p - data));
}

size_t stream_finish(const struct stream *s, uint8_t *out)
{
    bool in_section = s->state == STREAM_ST_RAM, in_footer = s->state == STREAM_ST_FOOTER;
    bool ends = s->section_ends && (in_section || in_footer);
    uint8_t *p = out;

    if (!s->packaged || s->failed.code || (in_section && s->in_huge) ||
        (!in_section && !in_footer && s->state != STREAM_ST_SECTION))
        return 0;
    if (in_section)
        p += stream_write_section_end(p, s->ram_id);
    if (in_footer) {
        *p++ = STREAM_SECTION_FOOTER;
        p = stream_put(p, s->ram_id, 4);
    }
    if (!s->ram_ended && !ends) {
        p += stream_write_section(p, STREAM_SECTION_END, s->ram_id);
        p += stream_write_section_end(p, s->ram_id);
    }
    *p++ = STREAM_SECTION_EOF;
    return (size_t)(p - out);
}
