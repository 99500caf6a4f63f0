/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * ready_file.c - pages that are in a file before they are filled: who is stopped there, who is not
 *
 * What the page pool of shared memory stands on. The guest's mapping is watched for MISSING and MINOR:
 * a page that was touched before is missing again after MADV_DONTNEED; one that is taken out of the
 * file, while a thread waits for it too, faults as MISSING; an absent one takes a COPY. A private
 * mapping, watched for MISSING as a child's is, shows such a page as zeros: so an agent's files
 * have none.
 * Source: measured by this program; migrate/page_pool.h
 */
#include "platform.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

int main(void)
{
    const size_t psize = pl_page(), len = 4 * psize;
    unsigned char *p, *alias, *child;
    struct pl_touch t;
    int uffd, theirs, fd, ret;

    pl_start();
    uffd = pl_uffd(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM);
    theirs = pl_uffd(0);
    fd = pl_memfd(len);
    p = pl_map(fd, len, MAP_SHARED);
    alias = pl_map(fd, len, MAP_SHARED);
    child = pl_map(fd, len, MAP_PRIVATE);
    memset(p, 'o', psize);
    PL_MUST(madvise(alias, 3 * psize, MADV_POPULATE_WRITE) == 0);
    PL_MUST(pl_register(uffd, p, len, UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR));
    PL_MUST(pl_register(theirs, child, len, UFFDIO_REGISTER_MODE_MISSING));

    PL_MUST(madvise(p, len, MADV_DONTNEED) == 0);
    pl_touch(&t, p, -1);
    if (!pl_fault(uffd, p, psize, UFFD_PAGEFAULT_FLAG_MINOR))
        pl_fails("a page that was touched before raised no MINOR event after MADV_DONTNEED");
    memset(alias, 'a', psize);
    ret = pl_continue(uffd, p, psize);
    if (ret || !pl_touched(&t) || t.seen != 'a')
        pl_fails("CONTINUE of a page that was touched before: %d, the thread saw %d", ret, t.seen);

    pl_touch(&t, p + psize, -1);
    if (!pl_fault(uffd, p + psize, psize, UFFD_PAGEFAULT_FLAG_MINOR))
        pl_fails("a page that is ready raised no MINOR event");
    PL_MUST(madvise(alias + psize, psize, MADV_REMOVE) == 0);
    if (!pl_blocked(&t))
        pl_fails("taking the page out of the file let the thread go");
    PL_MUST(pl_wake(uffd, p + psize, psize) == 0);
    if (!pl_fault(uffd, p + psize, psize, 0))
        pl_fails("a page that was taken out of the file raised no MISSING event");
    ret = pl_copy(uffd, p + psize, pl_pattern(psize, 'b'), psize, NULL);
    if (ret || !pl_touched(&t) || t.seen != 'b')
        pl_fails("COPY of a page that was taken out: %d, the thread saw %d", ret, t.seen);
    ret = pl_copy(uffd, p + 3 * psize, pl_pattern(psize, 'c'), psize, NULL);
    if (ret || pl_peek(p + 3 * psize) != 'c')
        pl_fails("COPY of an absent page: %d", ret);

    ret = pl_peek(child + 2 * psize);
    if (ret || pl_readable(theirs, 0))
        pl_fails("a private mapping stops at a page that is ready: agents may have them");
    pl_holds("missing where MINOR is watched, also after DONTNEED and REMOVE; a private mapping "
             "reads zeros");
}
