/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pagemap.h - what the page tables of a process hold, without a touch
 */
#ifndef FF_BASE_PAGEMAP_H
#define FF_BASE_PAGEMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>

/* From Linux 6.7 on: it steps over holes, 8 GiB of them in microseconds, not in 8 ms */
#ifndef PAGEMAP_SCAN
#define PAGE_IS_WRITTEN (1 << 1)
#define PAGE_IS_PRESENT (1 << 3)
#define PAGE_IS_SWAPPED (1 << 4)
#define PM_SCAN_WP_MATCHING (1 << 0)
#define PM_SCAN_CHECK_WPASYNC (1 << 1)
struct page_region {
    uint64_t start, end, categories;
};
struct pm_scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#endif

/* Of an entry: Documentation/admin-guide/mm/pagemap.rst */
#define FF_PM_PRESENT (1ull << 63)
#define FF_PM_SWAPPED (1ull << 62) /* or poisoned */
#define FF_PM_FILE (1ull << 61)    /* of a file: where it is mapped privately, not written */
#define FF_PM_WRITE_PROTECTED (1ull << 57) /* by a userfaultfd: such a mark of a page that is not there counts as swapped */
#define FF_PM_ALONE (1ull << 56)   /* nobody else maps the page */

int ff_pagemap_open(void); /* or -1 */

/* The entries of @n pages from @addr on; false: they are not known */
bool ff_pagemap_read(int pagemap, const void *addr, size_t n, uint64_t *entry);

/* Is a page there, swapped out, or poisoned? Whatever cannot be found out counts as there. Before
 * Linux 6.7 poisoned pages of hugetlb do not */
bool ff_pagemap_any(int pagemap, const void *addr, uint64_t len_bytes);

/* The first of @n entries of a shared mapping that is a mark of poison, or may be: one that is swapped there, which pages of a file
 * are not. @n: there is none */
size_t ff_pagemap_poison(const uint64_t *entry, size_t n);

/* From Linux 6.7 on: ff_pagemap_any() misses nothing of hugetlb */
bool ff_pagemap_scans(int pagemap);

#endif
