/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * copy_hugetlb.c - a missing 2 MiB hugetlb page: one fault, one COPY of the whole page
 *
 * The page is the unit: a COPY of 4 KiB is refused. Adds two pages to the kernel's pool where too
 * few are free, and gives them back.
 * Source: ioctl_userfaultfd(2), UFFDIO_COPY; Documentation/admin-guide/mm/hugetlbpage.rst
 */
#include "platform.h"

int main(void)
{
    const char *why;
    struct pl_touch t;
    unsigned char *p;
    int uffd, ret;

    pl_start();
    uffd = pl_uffd(UFFD_FEATURE_MISSING_HUGETLBFS);
    why = pl_huge_reserve(2);
    if (why)
        pl_skip("%s", why);
    p = pl_map(-1, 2 * PL_HUGE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT));
    PL_MUST(pl_register(uffd, p, 2 * PL_HUGE, UFFDIO_REGISTER_MODE_MISSING));

    pl_touch(&t, p + PL_HUGE + 5 * pl_page(), -1);
    if (!pl_fault(uffd, p + PL_HUGE, PL_HUGE, 0))
        pl_fails("touching a missing hugetlb page raised no MISSING event");
    ret = pl_copy(uffd, p + PL_HUGE, pl_pattern(PL_HUGE, 'H'), pl_page(), NULL);
    if (ret != -EINVAL)
        pl_fails("COPY of 4 KiB into a 2 MiB page was not refused with EINVAL (%d)", ret);
    ret = pl_copy(uffd, p + PL_HUGE, pl_pattern(PL_HUGE, 'H'), PL_HUGE, NULL);
    if (ret)
        pl_fails("COPY of a whole 2 MiB page: %s", strerror(-ret));
    if (!pl_touched(&t) || !pl_all(p + PL_HUGE, PL_HUGE, 'H'))
        pl_fails("after COPY the thread sleeps on, or the page differs");
    pl_holds("one fault and one COPY fill 2 MiB; a part of it is refused (%d pages added to the "
             "pool, given back)", (int)pl_huge_added);
}
