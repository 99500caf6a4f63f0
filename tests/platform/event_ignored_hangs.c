/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * event_ignored_hangs.c - a fault event for a page already filled still needs its wake
 *
 * pwrite to the memfd fills the page but wakes nobody. The verdict: WAKE alone lets the thread go,
 * with the new content.
 * Source: measured by this program; docs/invariants.md, 5
 */
#include "platform.h"

int main(void)
{
    const size_t psize = pl_page();
    struct pl_touch t;
    unsigned char *p;
    bool hung;
    int uffd, fd;

    pl_start();
    uffd = pl_uffd(UFFD_FEATURE_MISSING_SHMEM);
    fd = pl_memfd(psize);
    p = pl_map(fd, psize, MAP_SHARED);
    PL_MUST(pl_register(uffd, p, psize, UFFDIO_REGISTER_MODE_MISSING));

    pl_touch(&t, p, -1);
    if (!pl_fault(uffd, p, psize, 0))
        pl_fails("no MISSING event");
    PL_MUST(pwrite(fd, pl_pattern(psize, 'P'), psize, 0) == (ssize_t)psize);
    hung = pl_blocked(&t);
    if (pl_wake(uffd, p, psize) != 0 || !pl_touched(&t) || t.seen != 'P')
        pl_fails("WAKE after pwrite: the thread %s",
                 t.seen < 0 ? "sleeps on" : "read another byte");
    pl_holds("page filled by pwrite: the thread %s; WAKE lets it go with the new content",
             hung ? "sleeps on, as recorded" : "went on by itself, better than recorded");
}
