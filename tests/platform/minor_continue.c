/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * minor_continue.c - MISSING|MINOR on a memfd: absent pages fault as MISSING, filled ones as MINOR
 *
 * Either way the page is filled through an alias that is not watched and installed by CONTINUE.
 * This is the zero-copy path: the network card writes into the alias.
 * Source: ioctl_userfaultfd(2), UFFDIO_CONTINUE; docs/invariants.md, 4
 */
#include "platform.h"

int main(void)
{
    const size_t psize = pl_page();
    unsigned char *p, *alias;
    struct pl_touch t;
    int uffd, fd, ret;

    pl_start();
    uffd = pl_uffd(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM);
    fd = pl_memfd(4 * psize);
    p = pl_map(fd, 4 * psize, MAP_SHARED);
    alias = pl_map(fd, 4 * psize, MAP_SHARED);
    PL_MUST(pl_register(uffd, p, 4 * psize,
                        UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR));

    memset(alias + psize, 'a', psize);
    pl_touch(&t, p + psize, -1);
    if (!pl_fault(uffd, p + psize, psize, UFFD_PAGEFAULT_FLAG_MINOR))
        pl_fails("a page filled before through the alias raised no MINOR event");
    ret = pl_continue(uffd, p + psize, psize);
    if (ret || !pl_touched(&t) || t.seen != 'a')
        pl_fails("CONTINUE after MINOR: result %d, the thread saw %d", ret, t.seen);

    pl_touch(&t, p + 2 * psize, -1);
    if (!pl_fault(uffd, p + 2 * psize, psize, 0))
        pl_fails("an absent page raised no MISSING event");
    ret = pl_continue(uffd, p + 2 * psize, psize);
    if (ret != -EFAULT)
        pl_fails("CONTINUE of an absent page: %d, expected EFAULT", ret);
    memset(alias + 2 * psize, 'b', psize);
    if (!pl_blocked(&t))
        pl_fails("filling through the alias let the thread go before CONTINUE");
    ret = pl_continue(uffd, p + 2 * psize, psize);
    if (ret || !pl_touched(&t) || t.seen != 'b')
        pl_fails("CONTINUE after MISSING: result %d, the thread saw %d", ret, t.seen);
    if (pl_continue(uffd, p + 2 * psize, psize) != -EEXIST)
        pl_fails("a second CONTINUE did not say EEXIST");
    pl_holds("MISSING and MINOR both arrive, and CONTINUE resolves both; absent page: EFAULT, "
             "twice: EEXIST");
}
