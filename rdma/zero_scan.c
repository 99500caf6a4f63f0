/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * zero_scan.c - which granules of memory are zeros; see mr.h
 */
#include <string.h>

#include "mr.h"

uint32_t ff_zero_scan(const void *addr, uint32_t len, uint32_t granule, uint8_t *zero)
{
    const uint8_t *p = addr;
    uint32_t found = 0;

    for (uint32_t i = 0; i < len / granule; i++, p += granule) {
        /* equal to itself one word further on, and the first word is zero */
        uint64_t first;
        if (zero[i / 8] & (1u << (i % 8)))
            continue;
        memcpy(&first, p, sizeof(first));
        if (first || memcmp(p, p + 8, granule - 8))
            continue;
        zero[i / 8] |= (uint8_t)(1u << (i % 8));
        found++;
    }
    return found;
}
