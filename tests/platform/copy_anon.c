/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * copy_anon.c - a missing anonymous page: the fault arrives, COPY fills it, the thread goes on
 *
 * Also: the event carries the thread (THREAD_ID) and the very byte (EXACT_ADDRESS), where offered;
 * a second COPY to the same page says EEXIST and changes nothing.
 * Source: ioctl_userfaultfd(2), UFFDIO_COPY; docs/invariants.md, 4
 */
#include "platform.h"

int main(void)
{
    const size_t psize = pl_page(), at = psize + 1234;
    uint64_t extra;
    struct pl_touch t;
    struct uffd_msg msg;
    unsigned char *p;
    int uffd;

    pl_start();
    extra = pl_uffd_known() & (UFFD_FEATURE_THREAD_ID | UFFD_FEATURE_EXACT_ADDRESS);
    uffd = pl_uffd(extra);
    p = pl_anon(4 * psize);
    PL_MUST(pl_register(uffd, p, 4 * psize, UFFDIO_REGISTER_MODE_MISSING));

    pl_touch(&t, p + at, -1);
    if (!pl_event(uffd, &msg, PL_WAIT_MS) || msg.event != UFFD_EVENT_PAGEFAULT)
        pl_fails("touching a missing page raised no fault event");
    if (msg.arg.pagefault.flags)
        pl_fails("a read of a missing page has flags %#" PRIx64 ", not 0",
                 (uint64_t)msg.arg.pagefault.flags);
    if (msg.arg.pagefault.address !=
        (uintptr_t)p + (extra & UFFD_FEATURE_EXACT_ADDRESS ? at : psize))
        pl_fails("the event names another address than the one touched");
    if ((extra & UFFD_FEATURE_THREAD_ID) &&
        msg.arg.pagefault.feat.ptid != (uint32_t)atomic_load(&t.tid))
        pl_fails("the event names thread %u, not %d", msg.arg.pagefault.feat.ptid, (int)t.tid);

    if (pl_copy(uffd, p + psize, pl_pattern(psize, 'A'), psize, NULL) != 0)
        pl_fails("COPY to a missing page: %s", strerror(errno));
    if (!pl_touched(&t) || t.seen != 'A')
        pl_fails("after COPY the thread %s", t.seen < 0 ? "sleeps on" : "read something else");

    if (pl_copy(uffd, p + psize, pl_pattern(psize, 'B'), psize, NULL) != -EEXIST)
        pl_fails("COPY to a present page did not say EEXIST");
    if (!pl_all(p + psize, psize, 'A'))
        pl_fails("the page is not what the first COPY brought");
    pl_holds("fault, COPY, wake; thread id %s, exact address %s",
             extra & UFFD_FEATURE_THREAD_ID ? "right" : "not offered",
             extra & UFFD_FEATURE_EXACT_ADDRESS ? "right" : "not offered");
}
