/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * copy_eagain.c - a COPY that ends early says how far it came
 *
 * A present page in the middle: EAGAIN and the bytes done; going on there gives EEXIST and the
 * same in the answer field. A discard under way (EVENT_REMOVE not read yet): EAGAIN with no bytes
 * done; the field is then 0 as we left it, or -EAGAIN, so it must be set before every call.
 * Source: ioctl_userfaultfd(2), UFFDIO_COPY; measured by this program
 */
#include "platform.h"

enum { PAGES = 8, THERE = 5 };

static void *dontneed(void *arg)
{
    madvise(arg, pl_page(), MADV_DONTNEED);
    return NULL;
}

int main(void)
{
    const size_t psize = pl_page();
    unsigned char *p, *src;
    int64_t done, during;
    struct uffd_msg msg;
    pthread_t thread;
    int uffd, ret;

    pl_start();
    uffd = pl_uffd(UFFD_FEATURE_EVENT_REMOVE);
    p = pl_anon(PAGES * psize);
    src = pl_pattern(PAGES * psize, 'A');
    PL_MUST(pl_register(uffd, p, PAGES * psize, UFFDIO_REGISTER_MODE_MISSING));
    PL_MUST(pl_copy(uffd, p + THERE * psize, src, psize, NULL) == 0);
    p[THERE * psize] = 'N';

    ret = pl_copy(uffd, p, src, PAGES * psize, &done);
    if (ret != -EAGAIN || done != (int64_t)(THERE * psize))
        pl_fails("COPY of 8 pages with page 5 present: %d, done %" PRId64 "; expected EAGAIN and "
                 "%zu", ret, done, THERE * psize);
    if (!pl_all(p, THERE * psize, 'A') || p[THERE * psize] != 'N')
        pl_fails("COPY did not do what it says it did");
    ret = pl_copy(uffd, p + done, src + done, PAGES * psize - (size_t)done, &done);
    if (ret != -EEXIST || done != -EEXIST)
        pl_fails("COPY from the present page on: %d, done %" PRId64 "; expected EEXIST twice", ret,
                 done);
    ret = pl_copy(uffd, p + (THERE + 1) * psize, src, (PAGES - THERE - 1) * psize, &done);
    if (ret || done != (int64_t)((PAGES - THERE - 1) * psize))
        pl_fails("COPY behind the present page: %d, done %" PRId64, ret, done);

    PL_MUST((errno = pthread_create(&thread, NULL, dontneed, p)) == 0);
    PL_MUST(pl_readable(uffd, PL_WAIT_MS)); /* its event is queued: the discard is under way */
    ret = pl_copy(uffd, p, src, psize, &during);
    if (ret != -EAGAIN || during > 0)
        pl_fails("COPY during a discard: %d, done %" PRId64 "; expected EAGAIN and nothing", ret,
                 during);
    PL_MUST(pl_event(uffd, &msg, 0) && msg.event == UFFD_EVENT_REMOVE);
    pthread_join(thread, NULL);
    ret = pl_copy(uffd, p, src, psize, &done);
    if (ret)
        pl_fails("COPY after the discard: %d", ret);
    pl_holds("present page met: EAGAIN and the bytes done, then EEXIST; discard under way: EAGAIN, "
             "field %" PRId64 "; then it works", during);
}
