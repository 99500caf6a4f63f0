/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * holes.c - find granules of zeros in a mapped file without touching its holes; see mr.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a responder that looked at a hole of a file through its mapping would fill it. So it
 *              asks the file first: mincore(), SEEK_DATA, else pread(). A guest that was forked
 *              before, or is a child, has a private mapping of its file: /proc/self/pagemap tells
 *              which pages may be copies, and the file tells the rest.
 *              Before it looks at memory through the mapping it asks whether that can be read
 *              (unreadable.c).
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "mr.h"
#include "pagemap.h"

#define PAGE 4096u /* the unit of mincore() */
#define PAGES_MAX 4096u
#define PART (16u << 10)

static bool all_zeros(const uint8_t *p, uint32_t len)
{
    uint64_t first;

    memcpy(&first, p, sizeof(first));
    return !first && !memcmp(p, p + 8, len - 8);
}

/* By reading the file, which fills no hole; what cannot be read is no zeros */
static bool reads_as_zeros(int fd, uint64_t offset, uint32_t len)
{
    uint8_t part[PART];

    for (uint32_t at = 0; at < len; at += FF_MIN(len - at, PART)) {
        uint32_t want = FF_MIN(len - at, PART);
        if (pread(fd, part, want, (off_t)(offset + at)) != (ssize_t)want || !all_zeros(part, want))
            return false;
    }
    return true;
}

/* Which pages of a private mapping are in the page tables, or were: only those may be copies */
static int maybe_copied(const uint8_t *p, uint32_t len, unsigned char *here)
{
    FF_AUTO_CLOSE int fd = ff_pagemap_open();
    uint64_t entry[PAGES_MAX];

    if (!ff_pagemap_read(fd, p, len / PAGE, entry))
        return -1;
    for (uint32_t i = 0; i < len / PAGE; i++)
        here[i] = !!(entry[i] & (FF_PM_PRESENT | FF_PM_SWAPPED));
    return 0;
}

/* Pages that are to be looked at through the mapping: a shared one shows those that are resident.
 * Of hugetlb pagemap does not show a page that is being migrated; mincore() does, and there it
 * tells of the page table alone */
static int find_here(const struct ff_backing *file, const uint8_t *p, uint32_t len, bool huge,
                     unsigned char *here)
{
    return file->is_private && !huge ? maybe_copied(p, len, here) : mincore((void *)p, len, here);
}

/* A poisoned page of private hugetlb memory, of which mincore() does not tell. To touch it would
 * take a page from the pool, were it a hole */
static bool is_marked(const struct ff_backing *file, const uint8_t *p, uint32_t granule)
{
    FF_AUTO_CLOSE int fd = file->is_private && granule > PAGE ? ff_pagemap_open() : -1;

    return fd >= 0 && ff_pagemap_any(fd, p, granule);
}

static bool any_here(const unsigned char *here, uint32_t n)
{
    while (n && !(here[n - 1] & 1))
        n--;
    return n;
}

/* Without a file behind it: all of it is touched */
static uint32_t scan_all(const void *addr, uint32_t len, uint32_t granule, uint8_t *zero,
                         uint8_t *poison)
{
    uint32_t n = len / granule, poisoned = ff_poison_scan(addr, 0, n, granule, poison);

    for (uint32_t i = 0; poisoned && i < (n + 7) / 8; i++)
        zero[i] |= poison[i];
    return poisoned + ff_zero_scan(addr, len, granule, zero);
}

/* Of a file that cannot be asked: there is none */
static uint64_t end_of(int fd)
{
    struct stat st;

    return fstat(fd, &st) ? UINT64_MAX : (uint64_t)st.st_size;
}

uint32_t ff_zero_scan_file(const struct ff_backing *file, const void *addr, uint32_t len,
                           uint32_t granule, uint8_t *zero, uint8_t *poison)
{
    const uint8_t *p = addr;
    uint64_t offset = file->offset;
    unsigned char here[PAGES_MAX];
    uint64_t data = 0; /* the file has some here, and none from the last hole up to here */
    uint32_t found = 0, n = len / granule, per = granule / PAGE;
    uint32_t looked = 0; /* those before it that are here can be read, or are marked */

    if (file->fd < 0 || len / PAGE > PAGES_MAX || granule % PAGE ||
        find_here(file, p, len, granule > PAGE, here))
        return scan_all(addr, len, granule, zero, poison);
    uint64_t end = end_of(file->fd);
    for (uint32_t i = 0; i < n; i++, p += granule, offset += granule) {
        bool left_out;
        if (any_here(here + i * per, per)) {
            if (i >= looked) {
                for (looked = i; looked < n && any_here(here + looked * per, per); looked++)
                    ;
                ff_poison_scan(addr, i, looked, granule, poison);
            }
            left_out = poison[i / 8] & (1u << (i % 8)) || all_zeros(p, granule);
        } else {
            /* a hole, or swapped out, or not mapped yet; a hugetlb file does not tell */
            if (data < offset)
                data = (uint64_t)lseek(file->fd, (off_t)offset, SEEK_DATA);
            if (data == UINT64_MAX && errno != ENXIO)
                data = offset;
            /* what holds something goes through the mapping; behind the file's end there are no
             * zeros, but SIGBUS */
            left_out = (offset + granule <= end &&
                        ((data > offset && data - offset >= granule) ||
                         reads_as_zeros(file->fd, offset, granule)) &&
                        !is_marked(file, p, granule)) ||
                       ff_poison_scan(addr, i, i + 1, granule, poison);
        }
        if (!left_out)
            continue;
        zero[i / 8] |= (uint8_t)(1u << (i % 8));
        found++;
    }
    return found;
}
