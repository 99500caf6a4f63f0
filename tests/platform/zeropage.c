/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * zeropage.c - ZEROPAGE works for anonymous memory and a memfd, and is refused for hugetlb
 *
 * So a zero page of a hugetlb region must be installed by COPY from a page of zeros.
 * Source: ioctl_userfaultfd(2), UFFDIO_ZEROPAGE and the ioctls mask of UFFDIO_REGISTER
 */
#include "platform.h"

static void try_zero(int uffd, const char *what, unsigned char *p)
{
    const size_t psize = pl_page();
    struct pl_touch t;
    int ret;

    PL_MUST(pl_register(uffd, p, psize, UFFDIO_REGISTER_MODE_MISSING));
    pl_touch(&t, p + 7, -1);
    if (!pl_fault(uffd, p, psize, 0))
        pl_fails("%s: no MISSING event", what);
    ret = pl_zeropage(uffd, p, psize);
    if (ret)
        pl_fails("%s: ZEROPAGE: %s", what, strerror(-ret));
    if (!pl_touched(&t) || !pl_all(p, psize, 0))
        pl_fails("%s: after ZEROPAGE the thread sleeps on, or the page is not zero", what);
    p[0] = 1; /* a copy, not the shared zero page itself */
    ret = pl_zeropage(uffd, p, psize);
    if (ret != -EEXIST || p[0] != 1)
        pl_fails("%s: ZEROPAGE on a present page: %d, first byte %d", what, ret, p[0]);
}

int main(void)
{
    const char *why;
    unsigned char *p;
    uint64_t ioctls;
    int uffd, ret;

    pl_start();
    uffd = pl_uffd(UFFD_FEATURE_MISSING_SHMEM);
    try_zero(uffd, "anon", pl_anon(pl_page()));
    try_zero(uffd, "memfd", pl_map(pl_memfd(pl_page()), pl_page(), MAP_SHARED));

    why = pl_huge_reserve(1);
    if (why)
        pl_skip("anon and memfd take ZEROPAGE, but hugetlb was not tried: %s", why);
    p = pl_map(-1, PL_HUGE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT));
    ioctls = pl_register(uffd, p, PL_HUGE, UFFDIO_REGISTER_MODE_MISSING);
    PL_MUST(ioctls);
    ret = pl_zeropage(uffd, p, PL_HUGE);
    if ((ioctls & (1ull << _UFFDIO_ZEROPAGE)) || ret != -EINVAL)
        pl_fails("hugetlb: ZEROPAGE %s, result %d; expected refusal with EINVAL",
                 ioctls & (1ull << _UFFDIO_ZEROPAGE) ? "is offered" : "is not offered", ret);
    pl_holds("anon and memfd take ZEROPAGE (EEXIST when present); hugetlb refuses it with EINVAL");
}
