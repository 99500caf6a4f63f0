/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * shared_uffd.c - a userfaultfd whose other holder clears O_NONBLOCK: who reads it need not wait
 *
 * An agent reads the userfaultfd of a child, which keeps a descriptor of the same open file and may
 * clear its flags at any time. preadv2(2) with RWF_NOWAIT does not look at them. Before Linux 6.10
 * a userfaultfd refuses that.
 * Source: measured by this program
 */
#include "platform.h"
#include <sys/uio.h>

int main(void)
{
    struct uffd_msg msg;
    struct iovec iov = {&msg, sizeof(msg)};
    unsigned char *p;
    struct pl_touch t;
    ssize_t got;
    int uffd, other;

    pl_start();
    p = pl_anon(pl_page());
    uffd = pl_uffd(0);
    PL_MUST(pl_register(uffd, p, pl_page(), UFFDIO_REGISTER_MODE_MISSING));
    other = fcntl(uffd, F_DUPFD_CLOEXEC, 0);
    PL_MUST(other >= 0 && fcntl(other, F_SETFL, fcntl(other, F_GETFL) & ~O_NONBLOCK) == 0);
    PL_MUST(!(fcntl(uffd, F_GETFL) & O_NONBLOCK));
    got = preadv2(uffd, &iov, 1, -1, RWF_NOWAIT); /* else SIGALRM ends this */
    if (got < 0 && errno == EOPNOTSUPP)
        pl_skip("this kernel's userfaultfd has no RWF_NOWAIT: Linux 6.10 has");
    if (got >= 0 || errno != EAGAIN)
        pl_fails("nothing to read: %zd, %s", got, strerror(errno));
    pl_touch(&t, p, -1);
    for (int ms = 0; (got = preadv2(uffd, &iov, 1, -1, RWF_NOWAIT)) < 0 && ms < PL_WAIT_MS; ms++)
        poll(NULL, 0, 1);
    if (got != sizeof(msg) || msg.event != UFFD_EVENT_PAGEFAULT)
        pl_fails("a fault is not read: %zd, %s", got, strerror(errno));
    PL_MUST(pl_copy(uffd, p, pl_pattern(pl_page(), 'N'), pl_page(), NULL) == 0);
    if (!pl_touched(&t) || t.seen != 'N')
        pl_fails("the thread was not served");
    pl_holds("preadv2(RWF_NOWAIT) returns without O_NONBLOCK");
}
