/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * remap_private.c - a live parent remapped MAP_PRIVATE over its own memfd: the memfd is frozen
 *
 * A thread writes all the time, as a vCPU that nobody stopped. Across the remap it loses nothing,
 * and from the remap on the file does not change, while it keeps on writing. A child's private
 * mapping of the file sees the frozen image.
 * Source: mmap(2), MAP_FIXED and MAP_PRIVATE; measured by this program
 */
#include "platform.h"

enum { PAGES = 512, ROUNDS = 3 };

struct ledger {
    uint64_t *mem;      /* one word a page */
    size_t words;       /* a page */
    _Atomic uint64_t round;
    _Atomic bool stop;
    uint64_t lost;
};

/* Round n turns every word from n-1 into n: a write that got lost shows in the next round. */
static void *writer(void *arg)
{
    struct ledger *l = arg;

    while (!atomic_load(&l->stop)) {
        uint64_t round = atomic_load(&l->round);

        for (size_t i = 0; i < PAGES; i++) {
            volatile uint64_t *word = l->mem + i * l->words;

            if (*word != round)
                l->lost++;
            *word = round + 1;
        }
        atomic_store(&l->round, round + 1);
    }
    return NULL;
}

/* Wait until the writer is @n rounds further. */
static void more_rounds(struct ledger *l, uint64_t n)
{
    const struct timespec tick = {.tv_nsec = 1000000};
    uint64_t goal = atomic_load(&l->round) + n;
    int ms = 0;

    for (; atomic_load(&l->round) < goal && ms < PL_WAIT_MS; ms++)
        nanosleep(&tick, NULL);
    if (ms == PL_WAIT_MS)
        pl_fails("the writer does not get on");
}

int main(void)
{
    const size_t psize = pl_page(), len = PAGES * psize;
    struct ledger l = {.words = psize / sizeof(uint64_t)};
    unsigned char *then = pl_anon(len), *now = pl_anon(len), *child;
    pthread_t thread;
    void *again;
    int fd;

    pl_start();
    fd = pl_memfd(len);
    l.mem = (uint64_t *)(void *)pl_map(fd, len, MAP_SHARED);
    PL_MUST((errno = pthread_create(&thread, NULL, writer, &l)) == 0);
    more_rounds(&l, ROUNDS);
    again = mmap(l.mem, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0);
    if (again != l.mem)
        pl_fails("remapping MAP_PRIVATE|MAP_FIXED: %s", strerror(errno));

    PL_MUST(pread(fd, then, len, 0) == (ssize_t)len);
    child = pl_map(fd, len, MAP_PRIVATE);
    more_rounds(&l, ROUNDS);
    PL_MUST(pread(fd, now, len, 0) == (ssize_t)len);
    if (memcmp(then, now, len))
        pl_fails("the memfd changed after its parent was remapped");
    if (memcmp(then, child, len))
        pl_fails("a child's private mapping differs from the frozen memfd");
    child[0] ^= 0xff;
    PL_MUST(pread(fd, now, len, 0) == (ssize_t)len);
    if (memcmp(then, now, len))
        pl_fails("the memfd changed by a child's write");

    atomic_store(&l.stop, true);
    pthread_join(thread, NULL);
    if (l.lost)
        pl_fails("%" PRIu64 " writes of the parent got lost", l.lost);
    pl_holds("%" PRIu64 " rounds over %d pages, none lost; memfd unchanged since the remap; a "
             "child sees it and writes apart", atomic_load(&l.round), PAGES);
}
