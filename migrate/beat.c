/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * beat.c - a destination says that it is alive while its caller is busy
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      from READY to RUNNING the caller's thread activates disks, which takes as long
 *              as it takes. A source that heard nothing meanwhile could not tell that from a
 *              destination that has died. Nothing is read here: that the source is alive shows
 *              in its answers to what is asked of its memory.
 * Threads      one of its own, from ff_beat_start() to ff_beat_stop(). It shares the link with
 *              the caller's thread, and not its buffer.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>

#include "beat.h"
#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "thread.h"

static void *beat_main(void *arg)
{
    struct ff_beat *b = arg;
    struct pollfd stop = {.fd = b->stop_fd, .events = POLLIN};
    struct ff_stats st;

    while (!poll(&stop, 1, FF_BEAT_MS)) {
        b->stats(b->opaque, &st);
        int len = ff_wire_put_stats(b->buf, FF_MSG_PROGRESS, &st);
        if (b->link->ops->send(b->link, b->buf, (uint32_t)len, NULL))
            break;
    }
    return NULL;
}

int ff_beat_start(struct ff_beat *b, void (*stats)(void *opaque, struct ff_stats *st), void *opaque,
                  struct ff_link *link, struct ff_error *err)
{
    int rc = ff_failpoint("dest.beat");

    if (rc)
        return ff_error_set(err, -rc, "destination: beat: injected");
    b->stats = stats;
    b->opaque = opaque;
    b->link = link;
    b->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (b->stop_fd < 0)
        return ff_error_set(err, errno, "destination: eventfd: %s", strerror(errno));
    rc = ff_thread_start(&b->thread, beat_main, b, "farfork-beat", err);
    if (rc)
        ff_close_fd(&b->stop_fd);
    b->runs = !rc;
    return rc;
}

void ff_beat_stop(struct ff_beat *b)
{
    if (!b->runs)
        return;
    eventfd_write(b->stop_fd, 1);
    pthread_join(b->thread, NULL);
    ff_close_fd(&b->stop_fd);
    b->runs = false;
}
