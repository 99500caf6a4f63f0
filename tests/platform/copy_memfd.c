/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * copy_memfd.c - a missing memfd page: COPY fills it, and the file and its alias show it
 *
 * The page arrives in the page cache: an alias mapping and pread see it at once, so a region that
 * was filled by COPY can later be read or remapped through its file.
 * Source: ioctl_userfaultfd(2), UFFDIO_COPY; docs/invariants.md, 4
 */
#include "platform.h"

int main(void)
{
    const size_t psize = pl_page();
    unsigned char *p, *alias;
    struct pl_touch t;
    int uffd, fd;
    char byte;

    pl_start();
    uffd = pl_uffd(UFFD_FEATURE_MISSING_SHMEM);
    fd = pl_memfd(4 * psize);
    p = pl_map(fd, 4 * psize, MAP_SHARED);
    alias = pl_map(fd, 4 * psize, MAP_SHARED);
    PL_MUST(pl_register(uffd, p, 4 * psize, UFFDIO_REGISTER_MODE_MISSING));

    pl_touch(&t, p + 2 * psize, 'w');
    if (!pl_fault(uffd, p + 2 * psize, psize, 0))
        pl_fails("writing to a missing memfd page raised no MISSING event");
    if (pl_copy(uffd, p + 2 * psize, pl_pattern(psize, 'A'), psize, NULL) != 0)
        pl_fails("COPY to a missing memfd page: %s", strerror(errno));
    if (!pl_touched(&t))
        pl_fails("after COPY the thread sleeps on");

    if (p[2 * psize] != 'w' || !pl_all(p + 2 * psize + 1, psize - 1, 'A'))
        pl_fails("the page is not what COPY brought and the thread wrote");
    if (alias[2 * psize] != 'w' || alias[3 * psize - 1] != 'A')
        pl_fails("the alias does not show the page");
    if (pread(fd, &byte, 1, (off_t)(2 * psize)) != 1 || byte != 'w')
        pl_fails("the file does not show the page");
    if (pl_copy(uffd, p + 2 * psize, pl_pattern(psize, 'B'), psize, NULL) != -EEXIST)
        pl_fails("COPY to a present memfd page did not say EEXIST");
    pl_holds("COPY fills a memfd page; thread, alias and file see the same");
}
