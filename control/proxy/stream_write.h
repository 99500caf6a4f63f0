/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_write.h - units of QEMU's migration stream, made here
 */
#ifndef FF_CONTROL_PROXY_STREAM_WRITE_H
#define FF_CONTROL_PROXY_STREAM_WRITE_H

#include "stream.h"

enum {
    STREAM_WRITE_PAGE_MAX = 8 + 1 + STREAM_NAME_MAX + STREAM_PAGE_LEN,
    STREAM_WRITE_SECTION_LEN = 5,
    STREAM_WRITE_SECTION_END_LEN = 8 + 5,
    STREAM_WRITE_COMMAND_LEN = 5, /* before its data */
    STREAM_WRITE_DISCARD_MAX = 5 + 2 + STREAM_NAME_MAX + 1 + STREAM_RANGES_MAX * 16,
};

/* Each writes to @out, which has room for what the enum says, and returns the bytes written.
 * A page is written with its block's name, never with CONTINUE: it may stand anywhere. */

/* @data: a whole page; NULL: zeros. For hugetlb the reader wants all of a huge page's pages in
 * order, with nothing in between. */
size_t stream_write_page(uint8_t *out, const char *name, uint64_t addr, const void *data);
/* Around pages where no RAM section is open (STREAM_AT_SECTION) */
size_t stream_write_section(uint8_t *out, enum stream_section type, uint32_t section_id);
size_t stream_write_section_end(uint8_t *out, uint32_t section_id);
/* @len <= 65535 */
size_t stream_write_command(uint8_t *out, enum stream_command command, const void *data,
                            uint16_t len);
size_t stream_write_ping(uint8_t *out, uint32_t value);
/* @n <= STREAM_RANGES_MAX */
size_t stream_write_discard(uint8_t *out, const char *name, const struct stream_range *ranges,
                            unsigned n);

#endif
