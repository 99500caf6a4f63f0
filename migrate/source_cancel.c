/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_cancel.c - end a source's waits from another thread
 */
#include <errno.h>
#include <stdatomic.h>
#include <sys/eventfd.h>

#include "error.h"
#include "source_private.h"

void ff_source_cancel(struct ff_source *s)
{
    atomic_store(&s->cancelled, true);
    eventfd_write(s->cancel_fd, 1);
    pthread_mutex_lock(&s->lock);
    if (s->given_link && s->link) /* none: the guest was taken back */
        s->link->ops->shutdown(s->link);
    pthread_mutex_unlock(&s->lock);
}

void ff_source_pause(struct ff_source *s)
{
    pthread_mutex_lock(&s->lock);
    if (s->link)
        s->link->ops->shutdown(s->link);
    pthread_mutex_unlock(&s->lock);
}

void ff_source_interrupt(struct ff_source *s)
{
    eventfd_write(s->cancel_fd, 1);
}

void ff_source_stop(struct ff_source *s)
{
    ff_source_cancel(s);
    ff_responder_stop(&s->responder);
}

/* cancel_fd is readable: for good, or once */
int ff_source_take_interrupt(struct ff_source *s, struct ff_error *err)
{
    eventfd_t n;

    eventfd_read(s->cancel_fd, &n);
    if (!atomic_load(&s->cancelled))
        return ff_error_set(err, EINTR, "interrupted");
    eventfd_write(s->cancel_fd, 1);
    return ff_error_set(err, ECANCELED, "canceled");
}
