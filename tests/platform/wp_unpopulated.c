/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * wp_unpopulated.c - write protection of an absent anonymous page needs WP_UNPOPULATED
 *
 * Without it the first write to a page that was never touched passes unseen, and a frozen image
 * would change. The verdict: with the feature the write waits until unprotected.
 * Source: ioctl_userfaultfd(2), UFFD_FEATURE_WP_UNPOPULATED; measured by this program
 */
#include "platform.h"

static int protect(int uffd, void *p, size_t len, uint64_t mode)
{
    struct uffdio_writeprotect w = {.range = {(uintptr_t)p, len}, .mode = mode};

    return ioctl(uffd, UFFDIO_WRITEPROTECT, &w) == 0 ? 0 : -errno;
}

int main(void)
{
    const size_t psize = pl_page();
    struct pl_touch t;
    unsigned char *p;
    bool passed;
    int uffd;

    pl_start();
    uffd = pl_uffd(UFFD_FEATURE_PAGEFAULT_FLAG_WP);
    p = pl_anon(psize);
    PL_MUST(pl_register(uffd, p, psize, UFFDIO_REGISTER_MODE_WP));
    PL_MUST(protect(uffd, p, psize, UFFDIO_WRITEPROTECT_MODE_WP) == 0);
    pl_touch(&t, p, 'w');
    /* One of the two must come: the end of the access, or an event. */
    struct pollfd either[] = {{.fd = t.done_fd, .events = POLLIN}, {.fd = uffd, .events = POLLIN}};
    PL_MUST(poll(either, 2, PL_WAIT_MS) > 0);
    passed = either[0].revents && !pl_readable(uffd, 0);

    uffd = pl_uffd(UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_UNPOPULATED);
    p = pl_anon(psize);
    PL_MUST(pl_register(uffd, p, psize, UFFDIO_REGISTER_MODE_WP));
    PL_MUST(protect(uffd, p, psize, UFFDIO_WRITEPROTECT_MODE_WP) == 0);
    pl_touch(&t, p, 'w');
    if (!pl_fault(uffd, p, psize, UFFD_PAGEFAULT_FLAG_WP) || !pl_blocked(&t))
        pl_fails("with WP_UNPOPULATED the first write to an absent page did not wait");
    if (protect(uffd, p, psize, 0) != 0 || !pl_touched(&t) || p[0] != 'w')
        pl_fails("with WP_UNPOPULATED unprotecting did not let the write go on");
    pl_holds("first write to an absent protected page: %s without WP_UNPOPULATED; waits with it",
             passed ? "passes unseen, as recorded," : "waits, better than recorded,");
}
