/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * no_eexist.c - pwrite and alias fills overwrite what the guest wrote; COPY says EEXIST
 *
 * So a page filled through its file is installed once, by whoever holds its claim: nothing below
 * would stop a second, older fill. The verdict: COPY and CONTINUE never overwrite.
 * Source: measured by this program; docs/invariants.md, 3
 */
#include "platform.h"

int main(void)
{
    const size_t psize = pl_page();
    unsigned char *p, *alias, after_pwrite, after_alias;
    int uffd, fd, ret;

    pl_start();
    uffd = pl_uffd(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM);
    fd = pl_memfd(psize);
    p = pl_map(fd, psize, MAP_SHARED);
    alias = pl_map(fd, psize, MAP_SHARED);
    PL_MUST(pl_register(uffd, p, psize, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR));
    PL_MUST(pl_copy(uffd, p, pl_pattern(psize, 'o'), psize, NULL) == 0);

    memset(p, 'N', psize); /* the guest writes something newer */
    ret = pl_copy(uffd, p, pl_pattern(psize, 'o'), psize, NULL);
    if (ret != -EEXIST || !pl_all(p, psize, 'N'))
        pl_fails("a second COPY: result %d, first byte now %c", ret, p[0]);
    ret = pl_continue(uffd, p, psize);
    if (ret != -EEXIST || !pl_all(p, psize, 'N'))
        pl_fails("a second CONTINUE: result %d, first byte now %c", ret, p[0]);

    PL_MUST(pwrite(fd, pl_pattern(psize, 'o'), psize, 0) == (ssize_t)psize);
    after_pwrite = p[0];
    memset(p, 'N', psize);
    memset(alias, 'o', psize);
    after_alias = p[0];
    if (after_pwrite != 'o' || after_alias != 'o')
        pl_fails("file, alias and guest mapping do not share their pages");
    pl_holds("COPY and CONTINUE say EEXIST and change nothing; pwrite and alias overwrite the "
             "newer page, as recorded");
}
