/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * last_uffd_closed.c - when the last userfaultfd closes, a blocked thread goes on and reads zeros
 *
 * The handler is a process of its own, killed while a thread waits. With a duplicate in a second
 * process (the keeper) the thread goes on waiting; when the keeper dies too, it reads zeros. The
 * guard is the duplicate: the verdict is about that.
 * Source: measured by this program; docs/invariants.md, 6
 */
#include "platform.h"
#include <sys/prctl.h>

/* A process that holds what it inherited, until killed. */
static pid_t holder(void)
{
    pid_t pid = fork();

    PL_MUST(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    return pid;
}

static void kill_and_reap(pid_t pid)
{
    PL_MUST(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

int main(void)
{
    const size_t psize = pl_page();
    pid_t handler, keeper;
    struct pl_touch t;
    unsigned char *p;
    int uffd;

    pl_start();
    uffd = pl_uffd(0);
    p = pl_anon(psize);
    PL_MUST(pl_register(uffd, p, psize, UFFDIO_REGISTER_MODE_MISSING));
    handler = holder();
    keeper = holder();

    pl_touch(&t, p, -1);
    if (!pl_fault(uffd, p, psize, 0))
        pl_fails("no MISSING event");
    close(uffd);
    kill_and_reap(handler);
    if (!pl_blocked(&t))
        pl_fails("the handler died and the thread went on, although a duplicate is held");
    kill_and_reap(keeper);
    if (!pl_touched(&t))
        pl_holds("a duplicate keeps the thread waiting; after the last close it waits on, better "
                 "than recorded");
    pl_holds("a duplicate keeps the thread waiting; after the last close it reads %d, as recorded",
             t.seen);
}
