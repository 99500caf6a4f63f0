/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * ram.c - micro guest: what is taken for good, and what becomes pages
 */
#include "micro.h"

static uint64_t free_at; /* everything below is taken */

void *memset(void *to, int byte, size_t len);

void ram_begin(uint64_t at)
{
    free_at = (at + PAGE_BYTES - 1) & ~(uint64_t)(PAGE_BYTES - 1);
}

/**
 * ram_take() - zeroed memory, whole pages, for ever
 */
void *ram_take(uint64_t len_bytes)
{
    void *p = (void *)(uintptr_t)free_at;

    free_at = (free_at + len_bytes + PAGE_BYTES - 1) & ~(uint64_t)(PAGE_BYTES - 1);
    memset(p, 0, len_bytes);
    return p;
}

/**
 * ram_divide() - lay out the ledger and the pages in what is free above the image
 * @note: told of each segment that has pages, and where it ended before fill=; may be NULL
 */
void ram_divide(void (*note)(const struct segment *s, uint64_t end))
{
    uint32_t kept = 0;

    machine.ledger = ram_take(machine.ram_bytes / PAGE_BYTES * sizeof(uint32_t));
    for (uint32_t i = 0; i < machine.nsegments; i++) {
        struct segment s = machine.segments[i];
        uint64_t end = s.gpa + s.pages * PAGE_BYTES;

        if (s.gpa < free_at) {
            s.gpa = free_at;
        }
        if (end <= s.gpa) {
            continue;
        }
        s.pages = (end - s.gpa) / PAGE_BYTES * machine.opt.fill_percent / 100;
        s.first = machine.pages;
        if (s.pages) {
            machine.segments[kept++] = s;
            machine.pages += s.pages;
            if (note) {
                note(&s, end);
            }
        }
    }
    machine.nsegments = kept;
    if (machine.pages < machine.ncpu) {
        report_error("no free RAM for pages", "use more -m or more fill=");
    }
}
