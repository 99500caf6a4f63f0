/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * alias_memcpy_torn.c - filling through an alias under MISSING alone shows half-written pages
 *
 * First step by step: half a page is written through the alias, then a thread looks. Then raced:
 * main fills page after page while a thread reads each at the same time. Under MISSING alone what
 * is seen is printed; under MISSING|MINOR with CONTINUE no torn or zero read may ever happen.
 * Every event is answered by a wake, also for a page that is there already (invariant 5).
 * Source: measured by this program; docs/invariants.md, 4
 */
#include "platform.h"

enum { SPINS = 10000, LAGS = 97, PIECES = 16 };
#define PAGES (2000 / PL_IN_LAB)

struct race {
    unsigned char *p, *alias;
    size_t psize;
    int uffd, done_fd;
    bool minor;
    _Atomic int filling; /* the page that main fills now; the reader reads the same */
    int torn, zero, other;
};

static int pattern(int page)
{
    return 1 + page % 251;
}

static void linger(int turns)
{
    for (volatile int left = turns; left > 0; left--)
        ;
}

/* Fill a page in pieces, as a network card does. */
static void trickle(unsigned char *page, int byte, size_t len)
{
    for (size_t at = 0; at < len; at += len / PIECES) {
        memset(page + at, byte, len / PIECES);
        linger(100);
    }
}

static void *reader(void *arg)
{
    struct race *r = arg;

    pl_on_cpu(1);
    for (int i = 0; i < PAGES; i++) {
        const unsigned char *page = r->p + (size_t)i * r->psize;
        unsigned char first, last;

        for (int spins = 0; atomic_load(&r->filling) < i; spins++)
            if (spins > SPINS) /* main has no CPU: let it run */
                sched_yield();
        linger(i % LAGS * 16); /* meet the fill at another moment each time */
        last = *(const volatile unsigned char *)(page + r->psize - 1);
        first = *(const volatile unsigned char *)page;
        if (!first && !last)
            r->zero++;
        else if (first != last)
            r->torn++;
        else if (first != pattern(i))
            r->other++;
        eventfd_write(r->done_fd, 1);
    }
    return NULL;
}

static void setup(struct race *r, bool minor, size_t len)
{
    int fd = pl_memfd(len);

    *r = (struct race){.psize = pl_page(), .minor = minor, .filling = -1};
    r->uffd = pl_uffd(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM);
    r->done_fd = eventfd(0, 0);
    r->p = pl_map(fd, len, MAP_SHARED);
    r->alias = pl_map(fd, len, MAP_SHARED);
    PL_MUST(r->done_fd >= 0 &&
            pl_register(r->uffd, r->p, len, UFFDIO_REGISTER_MODE_MISSING |
                        (minor ? UFFDIO_REGISTER_MODE_MINOR : 0)));
}

static void run_race(struct race *r, bool minor)
{
    pthread_t thread;

    setup(r, minor, PAGES * pl_page());
    PL_MUST((errno = pthread_create(&thread, NULL, reader, r)) == 0);
    for (int i = 0; i < PAGES; i++) {
        unsigned char *page = r->p + (size_t)i * r->psize;
        struct pollfd either[] = {{.fd = r->done_fd, .events = POLLIN},
                                  {.fd = r->uffd, .events = POLLIN}};
        eventfd_t one;

        atomic_store(&r->filling, i);
        trickle(r->alias + (size_t)i * r->psize, pattern(i), r->psize);
        if (minor)
            PL_MUST(pl_continue(r->uffd, page, r->psize) == 0);
        PL_MUST(pl_wake(r->uffd, page, r->psize) == 0);
        for (either[0].revents = 0; !either[0].revents;) {
            struct uffd_msg msg;

            if (poll(either, 2, PL_WAIT_MS) <= 0)
                pl_fails("page %d: the reader hangs although every event was answered", i);
            if (either[1].revents && read(r->uffd, &msg, sizeof(msg)) == sizeof(msg))
                PL_MUST(pl_wake(r->uffd, page, r->psize) == 0);
        }
        PL_MUST(eventfd_read(r->done_fd, &one) == 0);
    }
    pthread_join(thread, NULL);
}

/* What a thread sees of a page whose first half is written: the last byte, or -1: it waits. */
static int half_written(struct race *r, bool minor)
{
    struct pl_touch t;

    setup(r, minor, pl_page());
    memset(r->alias, 'x', r->psize / 2);
    pl_touch(&t, r->p + r->psize - 1, -1);
    if (minor) {
        if (!pl_fault(r->uffd, r->p, r->psize, UFFD_PAGEFAULT_FLAG_MINOR) || !pl_blocked(&t))
            pl_fails("MISSING|MINOR: a half-written page did not wait for CONTINUE");
        memset(r->alias, 'x', r->psize);
        PL_MUST(pl_continue(r->uffd, r->p, r->psize) == 0);
    }
    return pl_touched(&t) ? t.seen : -1;
}

int main(void)
{
    static struct race alone, both;
    int seen;

    pl_start();
    seen = half_written(&alone, false);
    if (half_written(&both, true) != 'x')
        pl_fails("MISSING|MINOR: after CONTINUE the whole page is not there");
    pl_on_cpu(0);
    run_race(&alone, false);
    run_race(&both, true);
    printf("MISSING alone: half-written page %s; raced %d pages: %d torn, %d zero\n",
           seen < 0 ? "waits" : seen == 'x' ? "reads whole" : "reads as zero at its end, no event",
           PAGES, alone.torn, alone.zero);
    if (both.torn || both.zero || both.other)
        pl_fails("MISSING|MINOR: %d torn, %d zero, %d other reads", both.torn, both.zero,
                 both.other);
    pl_holds("MISSING|MINOR and CONTINUE: none torn, none zero in %d raced pages", PAGES);
}
