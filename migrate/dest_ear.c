/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_ear.c - the destination hears its port while the link is up: a source that comes back
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a network that goes silent is noticed by one side first. A source that has noticed
 *              connects again, and says so by its RESUME. Without this it would be heard only once
 *              this side has noticed too, which for reads that nobody answers takes a time limit.
 * Picture      RESUME of this move, of the link that there is -> that link is shut down
 *                -> the caller's wait fails -> ff_dest_recover() frees it, and answers who came
 *              RESUME of an earlier link, HELLO, another move -> refused; the link stays
 * Threads      one of its own, from ff_dest_accept() to ff_dest_recover(), and from there to the
 *              next; it ends by itself when somebody has come, and when the port is closed by
 *              ff_dest_cancel() or ff_dest_interrupt(). It touches the link under lock alone, and
 *              nothing of the guest.
 * Invariants   The old link is freed before WELCOME is sent over the new one: the ear does neither.
 */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "dest_private.h"
#include "failpoint.h"
#include "log.h"
#include "thread.h"

static void supersede(struct ff_dest *d, struct ff_link *came)
{
    d->ear.came = came;
    ff_log(FF_LOG_INFO, "destination: the source comes back over another link; link %u is given up",
           d->attached);
    pthread_mutex_lock(&d->lock);
    if (d->link)
        d->link->ops->shutdown(d->link);
    pthread_mutex_unlock(&d->lock);
}

static void *ear_main(void *arg)
{
    struct ff_dest *d = arg;
    struct ff_link *came;
    struct ff_error why;
    int rc;

    do {
        if (dest_use_next_port(d))
            dest_drop_waiting(d);
        rc = dest_hear_source(d, d->ear.stop_fd, 0, &came, &why);
    } while (rc == -ECANCELED && !dest_is_over(d));
    if (!rc)
        supersede(d, came);
    if (!rc || rc == -EINTR || atomic_load(&d->cancelled))
        return NULL;
    if (rc != -ECANCELED) /* its device has gone, perhaps; ff_dest_recover() opens another port */
        ff_log(FF_LOG_WARN, "destination: %s; until the link breaks no source is heard", why.text);
    dest_drop_waiting(d);
    dest_close_heard(d);
    return NULL;
}

void dest_ear_start(struct ff_dest *d)
{
    struct ff_error why;

    int rc = ff_failpoint("dest.ear");
    d->ear.stop_fd = rc ? rc : eventfd(0, EFD_CLOEXEC);
    rc = d->ear.stop_fd < 0
             ? ff_error_set(&why, rc ? -rc : errno, "eventfd: %s", strerror(rc ? -rc : errno))
             : ff_thread_start(&d->ear.thread, ear_main, d, "farfork-ear", &why);
    d->ear.runs = !rc;
    if (!rc)
        return;
    ff_close_fd(&d->ear.stop_fd);
    ff_log(FF_LOG_WARN, "destination: %s; until the link breaks no source is heard", why.text);
    ff_dest_close_port(d); /* who connects is refused at once; ff_dest_recover() opens another */
}

void dest_ear_stop(struct ff_dest *d)
{
    if (!d->ear.runs)
        return;
    eventfd_write(d->ear.stop_fd, 1);
    pthread_join(d->ear.thread, NULL);
    ff_close_fd(&d->ear.stop_fd);
    d->ear.runs = false;
}

void ff_dest_close_port(struct ff_dest *d)
{
    dest_ear_stop(d);
    dest_drop_waiting(d);
    pthread_mutex_lock(&d->lock);
    struct ff_port *port = d->port, *next = d->next_port;
    d->port = d->next_port = NULL;
    atomic_store(&d->listens, 0);
    pthread_mutex_unlock(&d->lock);
    ff_port_free(port);
    ff_port_free(next);
}
