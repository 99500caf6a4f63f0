/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wp_kept.c - memory that is watched for missing pages and protected: each first write is reported
 *
 * A page that is there waits for its first write, also one that lies in the file alone, or that has left
 * the page table since. Where nothing lies, and after a discard, the page is missing; what is installed
 * there is not protected. So whoever copies pages at their first write, and notes what he fills, can put
 * all of it back.
 * Source: ioctl_userfaultfd(2), UFFDIO_WRITEPROTECT; migrate/undo.h
 */
#include "platform.h"

#ifndef UFFD_FEATURE_WP_HUGETLBFS_SHMEM
#define UFFD_FEATURE_WP_HUGETLBFS_SHMEM (1 << 12)
#endif

static int uffd;
static size_t psize;

static int set_protection(void *p, size_t len, bool on)
{
    struct uffdio_writeprotect w = {.range = {(uintptr_t)p, len}, .mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0};

    return ioctl(uffd, UFFDIO_WRITEPROTECT, &w) == 0 ? 0 : -errno;
}

static void must_wait_for_write(unsigned char *p, int was, const char *what)
{
    struct pl_touch t;

    pl_touch(&t, p, 'w');
    if (!pl_fault(uffd, p, psize, UFFD_PAGEFAULT_FLAG_WP) || !pl_blocked(&t))
        pl_fails("%s: a write was not reported", what);
    if (p[0] != was || p[psize - 1] != was)
        pl_fails("%s: it is not what it was when its write was reported", what);
    PL_MUST(set_protection(p, psize, false) == 0);
    if (!pl_touched(&t) || p[0] != 'w' || pl_readable(uffd, 0))
        pl_fails("%s: unprotected, the write did not go on", what);
}

static void must_be_missing(unsigned char *p, int with, const char *what)
{
    struct pl_touch t;

    pl_touch(&t, p, 'w');
    if (!pl_fault(uffd, p, psize, 0))
        pl_fails("%s: it was not missing", what);
    PL_MUST((with ? pl_copy(uffd, p, pl_pattern(psize, with), psize, NULL) : pl_zeropage(uffd, p, psize)) == 0);
    if (!pl_touched(&t) || pl_readable(uffd, 0) || p[psize - 1] != with)
        pl_fails("%s: what was installed did not let the write go on", what);
}

static void try(bool shared)
{
    int fd = shared ? pl_memfd(8 * psize) : -1;
    unsigned char *p = shared ? pl_map(fd, 8 * psize, MAP_SHARED) : pl_anon(8 * psize);

    uffd = pl_uffd(UFFD_FEATURE_PAGEFAULT_FLAG_WP |
                   (shared ? UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_MISSING_SHMEM : 0));
    for (int i = 0; i < 8; i++) {
        if (i == 1 || i == 6)
            continue;
        if (shared && i == 2)
            PL_MUST(pwrite(fd, pl_pattern(psize, 'a' + i), psize, (off_t)(i * psize)) == (ssize_t)psize);
        else
            memset(p + i * psize, 'a' + i, psize);
    }
    PL_MUST(pl_register(uffd, p, 8 * psize, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP));
    PL_MUST(set_protection(p, 8 * psize, true) == 0);
    must_wait_for_write(p, 'a', "a page that is there");
    must_be_missing(p + psize, 0, "a page that is not there");
    PL_MUST(p[2 * psize] == 'c'); /* a read waits for nobody */
    must_wait_for_write(p + 2 * psize, 'c', shared ? "a page of the file, after a read" : "a page that was read");
    PL_MUST(madvise(p + 3 * psize, psize, shared ? MADV_REMOVE : MADV_DONTNEED) == 0);
    must_be_missing(p + 3 * psize, 'x', "a page that was discarded");
    if (shared) /* as reclaim does */
        PL_MUST(madvise(p + 4 * psize, psize, MADV_DONTNEED) == 0);
    must_wait_for_write(p + 4 * psize, 'e', "a page that has left the page table");
    PL_MUST(set_protection(p, 8 * psize, false) == 0);
    p[5 * psize] = 'w';
    must_be_missing(p + 6 * psize, 'y', "a page that was never there, unprotected");
    if (p[5 * psize] != 'w' || pl_readable(uffd, 0))
        pl_fails("all is unprotected, and a write was reported");
}

/* Of 2 MiB that the kernel maps at once, also of its page of zeros: single pages are let go of, others are not */
static void try_huge(bool zeros)
{
    unsigned char *m = pl_anon(2 * PL_HUGE), *p = (unsigned char *)(((uintptr_t)m + PL_HUGE - 1) & ~(PL_HUGE - 1));

    uffd = pl_uffd(UFFD_FEATURE_PAGEFAULT_FLAG_WP);
    madvise(p, PL_HUGE, MADV_HUGEPAGE); /* without THP it is small pages */
    if (zeros)
        for (size_t at = 0; at < PL_HUGE; at += psize)
            PL_MUST(p[at] == 0);
    else
        memset(p, 'h', PL_HUGE);
    PL_MUST(pl_register(uffd, p, PL_HUGE, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP));
    PL_MUST(set_protection(p, PL_HUGE, true) == 0);
    must_wait_for_write(p + 3 * psize, zeros ? 0 : 'h', zeros ? "the huge page of zeros" : "a huge page");
    must_wait_for_write(p + 9 * psize, zeros ? 0 : 'h', zeros ? "the huge page of zeros, split" : "a huge page, split");
}

int main(void)
{
    pl_start();
    psize = pl_page();
    try(false);
    try_huge(false);
    try_huge(true);
    try(true);
    pl_holds("protected and watched, anonymous and of a memfd: each first write is reported, once");
}
