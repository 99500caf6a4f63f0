/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_shut_down.c - the destination: that its guest has shut itself down is written down; see attach.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      who finds its QEMU ended before all memory was there asks whether its guest had shut itself down: a QEMU
 *              that is patched writes that itself (ff_dest_shut_down()). Here its event SHUTDOWN says so; RESUME says that
 *              the guest runs again.
 * Threads      one takes QEMU's events from GO on, under qmp_lock, and sees its end; the lease's does once QEMU stands still.
 * Invariants   While there is no lease nothing is written but what QEMU said before it stood still: attach_lease.c.
 * Limits       Of a domain libvirt has the events, and ends its QEMU.
 */
#include <errno.h>
#include <poll.h>

#include "attach_private.h"
#include "autojson.h"
#include "thread.h"

#define LOOK_MS 50
#define BUSY_MS 1
#define LAST_MS 100

/* Under qmp_lock. -EPIPE: it has ended */
static int take_events(struct attach *a)
{
    struct ff_error why = {0};
    int rc = qmp_drain(a->q), down = -1;

    for (json_t *e; (e = qmp_take_event(a->q)); json_decref(e))
        if (!strcmp(text_of(e, "event"), "RESUME"))
            down = false;
        else if (!strcmp(text_of(json_object_get(e, "data"), "reason"), "guest-shutdown"))
            down = true;
    if (down < 0 || down == a->is_down)
        return rc;
    a->is_down = ff_dest_shut_down(a->dest, down, &why) ? -1 : down;
    if (a->is_down < 0)
        attach_say_why(a, "unconfirmed", &why);
    else
        attach_event(a, down ? "shut-down" : "runs-again", NULL);
    return rc;
}

static void *hear_events(void *opaque)
{
    struct attach *a = opaque;
    struct ff_error why;
    int rc = 0;

    while (!rc && !atomic_load(&a->events_over)) {
        struct pollfd p = {.fd = qmp_fd(a->q), .events = POLLIN};

        poll(&p, 1, LOOK_MS);
        pthread_mutex_lock(&a->lock);
        bool waits = a->no_lease;
        pthread_mutex_unlock(&a->lock);
        if (waits || pthread_mutex_trylock(&a->qmp_lock)) {
            poll(NULL, 0, waits ? LOOK_MS : BUSY_MS);
            continue;
        }
        rc = take_events(a);
        pthread_mutex_unlock(&a->qmp_lock);
    }
    ff_error_set(&why, ESRCH, "its QEMU has ended");
    if (rc && attach_qemu_has_ended(a)) /* no page that is to be installed says so where none comes */
        attach_fail(a, &why);
    return NULL;
}

void attach_shut_down_begin(struct attach *a)
{
    struct ff_error why;

    if (a->domain)
        return;
    a->has_events = !ff_thread_start(&a->events_thread, hear_events, a, "attach-events", &why);
    if (!a->has_events)
        attach_say_why(a, "unconfirmed", &why);
}

void attach_shut_down_look(struct attach *a)
{
    struct timespec end;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_nsec += LAST_MS * 1000000;
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    if (a->domain || pthread_mutex_clocklock(&a->qmp_lock, CLOCK_MONOTONIC, &end))
        return;
    take_events(a);
    pthread_mutex_unlock(&a->qmp_lock);
}

void attach_shut_down_end(struct attach *a)
{
    if (!a->has_events)
        return;
    atomic_store(&a->events_over, true);
    pthread_join(a->events_thread, NULL);
    a->has_events = false;
}
