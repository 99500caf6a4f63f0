/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * copy_wakes.c - COPY wakes whoever waits, its event read or not; who comes later does not sleep
 *
 * So one COPY is the whole answer to a fault, in whatever order prefill and fault meet. Then raced:
 * main copies page after page, a thread touches each at the same time, nobody reads events, and
 * none may hang. With DONTWAKE the thread sleeps until WAKE.
 * Source: ioctl_userfaultfd(2), UFFDIO_COPY; docs/invariants.md, 4 and 5
 */
#include "platform.h"

enum { SPINS = 10000 };
#define PAGES (4000 / PL_IN_LAB / PL_IN_LAB)

struct race {
    unsigned char *p;
    size_t psize;
    int done_fd, wrong;
    _Atomic int page; /* the page that main copies now; the reader reads the same */
};

static void *reader(void *arg)
{
    struct race *r = arg;

    pl_on_cpu(1);
    for (int i = 0; i < PAGES; i++) {
        for (int spins = 0; atomic_load(&r->page) < i; spins++)
            if (spins > SPINS) /* main has no CPU: let it run */
                sched_yield();
        if (*(volatile unsigned char *)(r->p + (size_t)i * r->psize) != 'A')
            r->wrong++;
        eventfd_write(r->done_fd, 1);
    }
    return NULL;
}

static int run_race(int uffd)
{
    struct race r = {.psize = pl_page(), .done_fd = eventfd(0, 0), .page = -1};
    const size_t len = PAGES * r.psize;
    unsigned char *src = pl_pattern(r.psize, 'A');
    pthread_t thread;
    struct uffd_msg msg;
    int left = 0;

    r.p = pl_anon(len);
    PL_MUST(pl_register(uffd, r.p, len, UFFDIO_REGISTER_MODE_MISSING));
    PL_MUST((errno = pthread_create(&thread, NULL, reader, &r)) == 0);
    for (int i = 0; i < PAGES; i++) {
        eventfd_t one;

        atomic_store(&r.page, i);
        PL_MUST(pl_copy(uffd, r.p + (size_t)i * r.psize, src, r.psize, NULL) == 0);
        if (!pl_readable(r.done_fd, PL_WAIT_MS))
            pl_fails("raced page %d: COPY done, the thread sleeps on", i);
        PL_MUST(eventfd_read(r.done_fd, &one) == 0);
    }
    pthread_join(thread, NULL);
    while (read(uffd, &msg, sizeof(msg)) > 0)
        left++;
    if (left || r.wrong)
        pl_fails("raced: %d events left for pages that are there, %d wrong reads", left, r.wrong);
    return PAGES;
}

int main(void)
{
    const size_t psize = pl_page();
    struct uffdio_copy quiet;
    struct pl_touch t, u;
    struct uffd_msg msg;
    unsigned char *p;
    int uffd, pages;

    pl_start();
    uffd = pl_uffd(0);
    p = pl_anon(4 * psize);
    PL_MUST(pl_register(uffd, p, 4 * psize, UFFDIO_REGISTER_MODE_MISSING));

    pl_touch(&t, p, -1);
    PL_MUST(pl_readable(uffd, PL_WAIT_MS)); /* queued, and left unread */
    PL_MUST(pl_copy(uffd, p, pl_pattern(psize, 'A'), psize, NULL) == 0);
    if (!pl_touched(&t) || t.seen != 'A')
        pl_fails("COPY did not wake a thread whose event nobody had read");
    if (pl_event(uffd, &msg, 0))
        pl_fails("the event of a thread already woken is still delivered");

    pl_touch(&t, p + psize, -1);
    PL_MUST(pl_fault(uffd, p + psize, psize, 0));
    pl_touch(&u, p + psize, -1);
    PL_MUST(pl_fault(uffd, p + psize, psize, 0));
    PL_MUST(pl_copy(uffd, p + psize, pl_pattern(psize, 'B'), psize, NULL) == 0);
    if (!pl_touched(&t) || !pl_touched(&u))
        pl_fails("one COPY did not wake both threads that waited for the page");
    if (pl_peek(p + psize) != 'B' || pl_readable(uffd, 0))
        pl_fails("a thread that came after COPY slept, or raised an event");

    pl_touch(&t, p + 2 * psize, -1);
    PL_MUST(pl_fault(uffd, p + 2 * psize, psize, 0));
    quiet = (struct uffdio_copy){.dst = (uintptr_t)(p + 2 * psize), .len = psize,
                                 .src = (uintptr_t)pl_pattern(psize, 'C'),
                                 .mode = UFFDIO_COPY_MODE_DONTWAKE};
    PL_MUST(ioctl(uffd, UFFDIO_COPY, &quiet) == 0);
    if (!pl_blocked(&t))
        pl_fails("COPY with DONTWAKE woke the thread");
    if (pl_wake(uffd, p + 2 * psize, psize) != 0 || !pl_touched(&t) || t.seen != 'C')
        pl_fails("WAKE after COPY with DONTWAKE did not let the thread go");

    pl_on_cpu(0);
    pages = run_race(uffd);
    pl_holds("COPY wakes all who wait, events read or not; late ones do not sleep; %d raced pages, "
             "none hung, no stale event", pages);
}
