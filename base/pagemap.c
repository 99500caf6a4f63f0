/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pagemap.c - what the page tables of a process hold; see pagemap.h
 */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cleanup.h"
#include "pagemap.h"

int ff_pagemap_open(void)
{
    return open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
}

bool ff_pagemap_read(int pagemap, const void *addr, size_t n, uint64_t *entry)
{
    uint64_t page = (uintptr_t)addr / (uint64_t)sysconf(_SC_PAGESIZE);
    size_t want = n * sizeof(*entry);

    return pagemap >= 0 &&
           pread(pagemap, entry, want, (off_t)(page * sizeof(*entry))) == (ssize_t)want;
}

bool ff_pagemap_any(int pagemap, const void *addr, uint64_t len_bytes)
{
    uint64_t entry[1024], psize = (uint64_t)sysconf(_SC_PAGESIZE), some;
    const uint8_t *p = addr, *end = p + len_bytes;
    struct page_region found;
    struct pm_scan_arg scan = {.size = sizeof(scan),
                               .start = (uintptr_t)p,
                               .end = (uintptr_t)end,
                               .vec = (uintptr_t)&found,
                               .vec_len = 1,
                               .max_pages = 1,
                               .category_anyof_mask = PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                               .return_mask = PAGE_IS_PRESENT};

    int n = ioctl(pagemap, PAGEMAP_SCAN, &scan);
    if (n >= 0)
        return n;
    for (; p < end; p += some * psize) {
        some = FF_MIN((uint64_t)(end - p) / psize, (uint64_t)FF_ARRAY_LEN(entry));
        if (!ff_pagemap_read(pagemap, p, some, entry))
            return true;
        for (uint64_t i = 0; i < some; i++)
            if (entry[i] & (FF_PM_PRESENT | FF_PM_SWAPPED))
                return true;
    }
    return false;
}

size_t ff_pagemap_poison(const uint64_t *entry, size_t n)
{
    size_t i = 0;

    while (i < n && (entry[i] & (FF_PM_PRESENT | FF_PM_SWAPPED | FF_PM_WRITE_PROTECTED)) != FF_PM_SWAPPED)
        i++;
    return i;
}

bool ff_pagemap_scans(int pagemap)
{
    struct pm_scan_arg nothing = {.size = sizeof(nothing)};

    return !ioctl(pagemap, PAGEMAP_SCAN, &nothing);
}
