/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * minor_alone_zero.c - MINOR without MISSING: an absent page reads as zeros, and nobody is told
 *
 * The danger is printed. The verdict is about the guard: with MISSING|MINOR the touch waits.
 * Source: measured by this program; Documentation/admin-guide/mm/userfaultfd.rst, minor faults
 */
#include "platform.h"

int main(void)
{
    const uint64_t both = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR;
    const size_t psize = pl_page();
    struct pl_touch t;
    unsigned char *p;
    bool told, zero = false;
    int uffd;

    pl_start();
    uffd = pl_uffd(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM);

    p = pl_map(pl_memfd(psize), psize, MAP_SHARED);
    PL_MUST(pl_register(uffd, p, psize, UFFDIO_REGISTER_MODE_MINOR));
    pl_touch(&t, p, -1);
    /* One of the two must come: the end of the access, or an event. */
    struct pollfd either[] = {{.fd = t.done_fd, .events = POLLIN}, {.fd = uffd, .events = POLLIN}};
    PL_MUST(poll(either, 2, PL_WAIT_MS) > 0);
    told = pl_readable(uffd, 0);
    if (!told) {
        PL_MUST(pl_touched(&t));
        zero = t.seen == 0;
    }
    if (!told && !zero)
        pl_fails("an absent page under MINOR alone read as %d without an event", t.seen);

    uffd = pl_uffd(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM);
    p = pl_map(pl_memfd(psize), psize, MAP_SHARED);
    PL_MUST(pl_register(uffd, p, psize, both));
    pl_touch(&t, p, -1);
    if (!pl_fault(uffd, p, psize, 0) || !pl_blocked(&t))
        pl_fails("with MISSING|MINOR an absent page did not wait for its handler");
    pl_holds("MINOR alone: %s; MISSING|MINOR: the touch waits",
             told ? "an event, better than recorded" : "silent zero page, as recorded");
}
