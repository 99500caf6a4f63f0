/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pagemap.h - what the page tables of a process hold, without a touch
 */
#ifndef FF_BASE_PAGEMAP_H
#define FF_BASE_PAGEMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of an entry: Documentation/admin-guide/mm/pagemap.rst */
#define FF_PM_PRESENT (1ull << 63)
#define FF_PM_SWAPPED (1ull << 62) /* or poisoned */
#define FF_PM_ALONE (1ull << 56)   /* nobody else maps the page */

int ff_pagemap_open(void); /* or -1 */

/* The entries of @n pages from @addr on; false: they are not known */
bool ff_pagemap_read(int pagemap, const void *addr, size_t n, uint64_t *entry);

/* Is a page there, swapped out, or poisoned? Whatever cannot be found out counts as there. Before
 * Linux 6.7 poisoned pages of hugetlb do not */
bool ff_pagemap_any(int pagemap, const void *addr, uint64_t len_bytes);

/* From Linux 6.7 on: ff_pagemap_any() misses nothing of hugetlb */
bool ff_pagemap_scans(int pagemap);

#endif
