/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * discard_events.c - who is told of a discard, and that the page faults again afterwards
 *
 * PUNCH_HOLE raises no event at all; DONTNEED one only with EVENT_REMOVE, and then its caller waits
 * until the event is read: a handler that calls madvise itself would wait for itself. After each
 * the page must fault again (the old content must not come back by itself).
 * Source: measured by this program; docs/invariants.md, 9
 */
#include "platform.h"

static const uint64_t both = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR;

struct discard {
    unsigned char *p;
    int ret, done_fd;
};

static void *dontneed(void *arg)
{
    struct discard *d = arg;

    d->ret = madvise(d->p, pl_page(), MADV_DONTNEED);
    eventfd_write(d->done_fd, 1);
    return NULL;
}

static void faults_again(int uffd, unsigned char *p, uint64_t kind, const char *what)
{
    const size_t psize = pl_page();
    struct pl_touch t;

    if (pl_readable(uffd, 0))
        pl_fails("%s raised an event that was not asked for", what);
    pl_touch(&t, p, -1);
    if (!pl_fault(uffd, p, psize, kind))
        pl_fails("after %s the page does not fault as %s", what, kind ? "MINOR" : "MISSING");
    if (kind)
        PL_MUST(pl_continue(uffd, p, psize) == 0);
    else
        PL_MUST(pl_copy(uffd, p, pl_pattern(psize, 'n'), psize, NULL) == 0);
    if (!pl_touched(&t) || t.seen != (kind ? 'o' : 'n'))
        pl_fails("after %s and a second fill the thread saw %d", what, t.seen);
}

static unsigned char *filled(int uffd, int fd)
{
    const size_t psize = pl_page();
    unsigned char *p = fd < 0 ? pl_anon(psize) : pl_map(fd, psize, MAP_SHARED);

    PL_MUST(pl_register(uffd, p, psize, fd < 0 ? UFFDIO_REGISTER_MODE_MISSING : both));
    PL_MUST(pl_copy(uffd, p, pl_pattern(psize, 'o'), psize, NULL) == 0);
    return p;
}

static void punch(int fd)
{
    PL_MUST(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)pl_page()) == 0);
}

int main(void)
{
    const uint64_t shmem = UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM;
    struct discard d;
    struct uffd_msg msg;
    unsigned char *p;
    pthread_t thread;
    bool waited;
    int uffd, fd;

    pl_start();
    uffd = pl_uffd(shmem);
    fd = pl_memfd(pl_page());
    p = filled(uffd, fd);
    punch(fd);
    faults_again(uffd, p, 0, "PUNCH_HOLE on a memfd");

    p = filled(uffd, pl_memfd(pl_page()));
    PL_MUST(madvise(p, pl_page(), MADV_DONTNEED) == 0);
    faults_again(uffd, p, UFFD_PAGEFAULT_FLAG_MINOR, "DONTNEED on a memfd");

    p = filled(uffd, -1);
    PL_MUST(madvise(p, pl_page(), MADV_DONTNEED) == 0);
    faults_again(uffd, p, 0, "DONTNEED on anonymous memory");
    close(uffd);

    uffd = pl_uffd(shmem | UFFD_FEATURE_EVENT_REMOVE);
    fd = pl_memfd(pl_page());
    p = filled(uffd, fd);
    punch(fd);
    faults_again(uffd, p, 0, "PUNCH_HOLE with EVENT_REMOVE on");

    d = (struct discard){.p = filled(uffd, -1), .done_fd = eventfd(0, 0)};
    PL_MUST((errno = pthread_create(&thread, NULL, dontneed, &d)) == 0);
    if (!pl_readable(uffd, PL_WAIT_MS))
        pl_fails("DONTNEED with EVENT_REMOVE raised no event");
    waited = !pl_readable(d.done_fd, PL_STILL_MS);
    if (!pl_event(uffd, &msg, 0) || msg.event != UFFD_EVENT_REMOVE ||
        msg.arg.remove.start != (uintptr_t)d.p)
        pl_fails("DONTNEED with EVENT_REMOVE raised another event");
    if (!pl_readable(d.done_fd, PL_WAIT_MS) || d.ret)
        pl_fails("DONTNEED did not end after its event was read");
    faults_again(uffd, d.p, 0, "DONTNEED with EVENT_REMOVE");
    pl_holds("PUNCH_HOLE: never an event; DONTNEED: only with EVENT_REMOVE, its caller %s; all "
             "fault again (DONTNEED on a memfd as MINOR)",
             waited ? "waits for the reader" : "does not wait");
}
