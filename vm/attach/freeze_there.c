/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * freeze_there.c - calls in a process of which something is frozen, while it goes on; see freeze.h
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "cleanup.h"
#include "freeze_private.h"

#define UNMAP_PAUSE_US 2000

int freeze_run_there(struct freeze *z, inject_fn *fn, void *opaque, struct ff_error *err)
{
    struct pollfd ended = {.fd = z->pidfd, .events = POLLIN};

    if (poll(&ended, 1, 0))
        return ff_error_set(err, ESRCH, "process %d has ended", (int)z->pid);
    return inject_run(z->pid, z->how.filters, fn, opaque, err);
}

struct piece {
    uint64_t at, len;
};

static int unmap_there(struct inject *in, void *opaque, struct ff_error *err)
{
    const struct piece *p = opaque;
    const uint64_t args[INJECT_ARGS] = {p->at, p->len};
    int64_t got;
    int rc = inject_call(in, SYS_munmap, args, &got, err);

    return rc || got >= 0 ? rc : ff_error_set(err, (int)-got, "memory that was frozen: unmap: %s", strerror((int)-got));
}

/* A CPU's for 50 ms a GiB; and who wants memory mapped there waits for each piece */
int freeze_unmap(struct freeze *z, uint64_t at, uint64_t len, uint64_t piece)
{
    int rc = 0;

    for (uint64_t done = 0; !rc && done < len; done += piece) {
        struct piece p = {at + done, FF_MIN(piece, len - done)};

        pthread_mutex_lock(&z->there);
        rc = freeze_run_there(z, unmap_there, &p, NULL);
        pthread_mutex_unlock(&z->there);
        if (!rc && done + piece < len)
            nanosleep(&(struct timespec){.tv_nsec = 1000L * UNMAP_PAUSE_US}, NULL);
    }
    return rc;
}
