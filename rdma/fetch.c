/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fetch.c - bring what is in memory of another process, and say which granules are zeros; see mr.h
 */
#include <errno.h>
#include <string.h>

#include "cleanup.h"
#include "error.h"
#include "foreign.h"
#include "mr.h"

#define PAGE 4096u

static bool has_bit(const uint8_t *map, uint32_t i)
{
    return map[i / 8] & (1u << (i % 8));
}

static uint32_t count_set(const uint8_t *map, uint32_t n)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < n; i++)
        found += has_bit(map, i);
    return found;
}

int ff_fetch(const struct ff_backing *file, const void *addr, uint32_t len, uint32_t granule,
             uint8_t *zero, uint8_t *poison, void *into, struct ff_error *err)
{
    const struct ff_foreign_rest rest = {.zeros = file->zeros,
                                         .file_fd = file->fd,
                                         .file_offset = file->offset,
                                         .psize = file->psize};

    int rc = ff_foreign_read(file->of, &rest, (uintptr_t)addr, len, granule, zero, poison, into,
                             err);
    if (rc)
        return rc;
    ff_zero_scan(into, len, granule, zero);
    return (int)count_set(zero, len / granule);
}

int ff_fetch_all(const struct ff_backing *file, const void *addr, uint32_t len, void *into,
                 struct ff_error *err)
{
    struct ff_backing from = *file;
    bool whole = !((uintptr_t)addr % PAGE) && !(len % PAGE);
    uint32_t granule = whole ? PAGE : 1;

    for (uint32_t at = 0, part; at < len; at += part, from.offset += part) {
        uint8_t zero[FF_GRANULES_MAX / 8] = {0}, poison[FF_GRANULES_MAX / 8] = {0};
        const struct ff_foreign_rest rest = {.zeros = from.zeros,
                                             .file_fd = from.fd,
                                             .file_offset = from.offset,
                                             .psize = from.psize};
        part = FF_MIN(len - at, FF_GRANULES_MAX * granule);
        int rc = ff_foreign_read(from.of, &rest, (uintptr_t)addr + at, part, granule, zero, poison,
                                 (uint8_t *)into + at, err);
        if (rc)
            return rc;
        if (count_set(poison, part / granule))
            return ff_error_set(err, EHWPOISON, "memory: a page cannot be read");
        for (uint32_t i = 0; i < part / granule; i++)
            if (has_bit(zero, i))
                memset((uint8_t *)into + at + (size_t)i * granule, 0, granule);
    }
    return 0;
}
