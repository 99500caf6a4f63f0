/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_hold.c - what a source serves is about to change: its guest returns (dest_return.c)
 */
/**
 * DOC: Theory of Operation
 *
 * States       FREE      it serves, and resumes.
 *              HELD      there is no link, and none comes: memory may not be the image.
 *              RETURNED  for good: the guest is here again, and nobody needs the image.
 *              FREE -> HELD -> FREE: the return has failed, and memory is the image again.
 *
 * Invariants   When ff_source_hold() has returned, no byte that is written to memory from then on leaves
 *              this side. The link is shut down under lock, and whatever comes up later is, too. Over tcp
 *              shutdown(2) waits for the socket's lock, which sendmsg(2) has while it copies out of
 *              memory: what it copies after that it does not send (EPIPE), and nothing here leaves its
 *              reading to the kernel (MSG_ZEROCOPY, splice(2)). What a key seals (tcp_seal.c) is a copy,
 *              which goes by send(2) at once or after an EAGAIN. What was copied before may still arrive, and is the image; half a page is no answer to a read. Over verbs
 *              the queue pairs are in error then, and the adapter answers no READ. The threads that served
 *              have ended, too.
 *              A guest is taken back, or returns: whoever is second is refused (taking, given_up).
 * Threads      ff_source_resume() waits in its caller's; hold and the like: any.
 */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "error.h"
#include "farfork-return.h"
#include "source_private.h"

int ff_source_may_hold(struct ff_source *s, struct ff_error *err)
{
    if (!s->resumes)
        return ff_error_set(err, EINVAL, "its source cannot come back to it: the way out wants reconnect=SECONDS on "
                            "both sides, over a network");
    if (s->hold_fd < 0)
        s->hold_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return s->hold_fd < 0 ? ff_error_set(err, errno, "eventfd: out of descriptors or memory") : 0;
}

static int say_taking(bool taking, struct ff_error *err)
{
    return taking ? ff_error_set(err, EBUSY, "return: the guest is being taken back here, as it was when it went") : 0;
}

int ff_source_give_up(struct ff_source *s, struct ff_error *err)
{
    pthread_mutex_lock(&s->lock);
    bool taking = s->taking;
    s->given_up |= !taking;
    pthread_mutex_unlock(&s->lock);
    return say_taking(taking, err);
}

int ff_source_hold(struct ff_source *s, struct ff_error *err)
{
    eventfd_t ignored;

    pthread_mutex_lock(&s->lock);
    bool taking = s->taking;
    if (!taking) {
        s->given_up = true;
        atomic_store(&s->hold, HELD);
        eventfd_read(s->hold_fd, &ignored);
        if (s->link)
            s->link->ops->shutdown(s->link);
    }
    pthread_mutex_unlock(&s->lock);
    if (!taking)
        ff_responder_end_threads(&s->responder);
    return say_taking(taking, err);
}

int ff_source_begin_taking(struct ff_source *s, struct ff_error *err)
{
    pthread_mutex_lock(&s->lock);
    s->taking = !s->given_up;
    bool taking = s->taking;
    pthread_mutex_unlock(&s->lock);
    return taking ? 0 : ff_error_set(err, EBUSY, "source: take back: the guest was on its way back, or is to come "
                                     "back with its disks: what it has written since is not here");
}

void ff_source_end_taking(struct ff_source *s)
{
    pthread_mutex_lock(&s->lock);
    s->taking = false;
    pthread_mutex_unlock(&s->lock);
}

bool ff_source_has_given_up(struct ff_source *s)
{
    pthread_mutex_lock(&s->lock);
    bool up = s->given_up;
    pthread_mutex_unlock(&s->lock);
    return up;
}

void ff_source_let_go(struct ff_source *s, bool returned)
{
    pthread_mutex_lock(&s->lock);
    atomic_store(&s->hold, returned ? RETURNED : FREE);
    eventfd_write(s->hold_fd, 1);
    pthread_mutex_unlock(&s->lock);
}

bool ff_source_is_held(const struct ff_source *s)
{
    return atomic_load(&s->hold) == HELD;
}

bool ff_source_has_returned(const struct ff_source *s)
{
    return atomic_load(&s->hold) == RETURNED;
}

int ff_source_await_hold(struct ff_source *s, uint64_t end_ns, struct ff_error *err)
{
    while (atomic_load(&s->hold) == HELD) {
        struct pollfd fds[] = {{.fd = s->cancel_fd, .events = POLLIN}, {.fd = s->hold_fd, .events = POLLIN}};
        uint64_t now = ff_now_ns();
        if (now >= end_ns)
            return ff_error_set(err, ETIMEDOUT, "the guest is on its way back");
        if (poll(fds, FF_ARRAY_LEN(fds), (int)((end_ns - now) / 1000000u) + 1) > 0 && fds[0].revents)
            return ff_source_take_interrupt(s, err);
    }
    return atomic_load(&s->hold) == RETURNED ? ff_error_set(err, ECANCELED, "the guest has returned") : 0;
}
