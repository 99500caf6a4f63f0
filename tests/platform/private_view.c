/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * private_view.c - a file filled through a shared mapping, watched through private ones
 *
 * What an agent and its children stand on: a private mapping has a userfaultfd of its own; a page
 * that UFFDIO_COPY puts into the shared mapping is in the file; a thread that waits in the private
 * one is not woken by that, but by a WAKE of its own userfaultfd; who comes later has no event. A
 * mapping is watched before it is made accessible. The danger: a private mapping that nobody
 * watches puts zeros into the file, and the next COPY fails.
 * Source: measured by this program
 */
#include "platform.h"

/* A private mapping of @fd, watched */
static unsigned char *view(int fd, size_t len, int *uffd)
{
    unsigned char *p = mmap(NULL, len, PROT_NONE, MAP_PRIVATE, fd, 0);

    PL_MUST(p != MAP_FAILED);
    *uffd = pl_uffd(0);
    if (!pl_register(*uffd, p, len, UFFDIO_REGISTER_MODE_MISSING))
        pl_fails("a private mapping that is not accessible cannot be watched: %s", strerror(errno));
    PL_MUST(mprotect(p, len, PROT_READ | PROT_WRITE) == 0);
    return p;
}

static void try(const char *what, int fd, size_t psize)
{
    unsigned char *shared = pl_map(fd, 2 * psize, MAP_SHARED), *first, *second;
    int agent = pl_uffd(0), one, two;
    struct pl_touch t;

    PL_MUST(pl_register(agent, shared, 2 * psize, UFFDIO_REGISTER_MODE_MISSING));
    first = view(fd, 2 * psize, &one);
    second = view(fd, 2 * psize, &two);
    pl_touch(&t, first, -1);
    if (!pl_fault(one, first, psize, 0))
        pl_fails("%s: touching a missing page of a private mapping raised no event", what);
    PL_MUST(pl_copy(agent, shared, pl_pattern(psize, 'V'), psize, NULL) == 0);
    if (!pl_blocked(&t))
        pl_fails("%s: a COPY elsewhere woke the thread", what); /* better, but not as recorded */
    PL_MUST(pl_wake(one, first, psize) == 0);
    if (!pl_touched(&t) || t.seen != 'V')
        pl_fails("%s: after the WAKE the thread sleeps on, or read %d", what, t.seen);
    if (pl_peek(second) != 'V' || pl_readable(two, 0) || pl_readable(agent, 0))
        pl_fails("%s: a page that is in the file raised an event", what);
    memset(first, 'W', psize);
    if (!pl_all(shared, psize, 'V') || !pl_all(second, psize, 'V') || !pl_all(first, psize, 'W'))
        pl_fails("%s: a write to a private mapping is seen elsewhere, or lost", what);
}

int main(void)
{
    unsigned char *shared, *unwatched;
    const char *why;
    int fd, uffd, ret;

    pl_start();
    fd = pl_memfd(2 * pl_page());
    try("memfd", fd, pl_page());
    shared = pl_map(fd, 2 * pl_page(), MAP_SHARED);
    unwatched = pl_map(fd, 2 * pl_page(), MAP_PRIVATE);
    uffd = pl_uffd(0);
    PL_MUST(pl_register(uffd, shared, 2 * pl_page(), UFFDIO_REGISTER_MODE_MISSING));
    PL_MUST(pl_peek(unwatched + pl_page()) == 0);
    ret = pl_copy(uffd, shared + pl_page(), pl_pattern(pl_page(), 'V'), pl_page(), NULL);

    why = pl_huge_reserve(6); /* the file, and what each private mapping reserves */
    if (why)
        pl_holds("for 4 KiB pages (an unwatched touch, then COPY: %s); huge pages: %s",
                 ret ? strerror(-ret) : "as if nothing had been", why);
    fd = memfd_create("farfork-platform", MFD_CLOEXEC | MFD_HUGETLB | (21u << 26));
    PL_MUST(fd >= 0 && ftruncate(fd, 2 * PL_HUGE) == 0);
    try("hugetlb", fd, PL_HUGE);
    pl_holds("for 4 KiB and 2 MiB pages (an unwatched touch of 4 KiB, then COPY: %s)",
             ret ? strerror(-ret) : "as if nothing had been");
}
