/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_hear.c - whoever connects to the destination: several, until one says HELLO or RESUME
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      connected, in waiting -- HELLO, RESUME --> does it fit? --> the caller's
 *                 |  nothing within DEST_HELLO_MS,             |  no: told why where it can be
 *                 |  another message, another version          v
 *                 v                                         dropped
 *              dropped
 *              FEED, of an agent that has the image too: dest_feed.c takes the connection
 * Threads      one at a time: that of ff_dest_accept() and ff_dest_recover(), or the ear's between
 *              them (dest_ear.c). lock guards the ports.
 * Limits       DEST_HELLO_MS: who is silent for so long is dropped. DEST_WAITING_MAX peers without
 *              a message: when one more comes, the one that has had most time goes. REFUSE_MS: who
 *              takes no refusal is dropped without. An adapter waits for a peer that has no buffer
 *              for a message, and all others wait with it.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "cleanup.h"
#include "dest_private.h"
#include "log.h"

#define REFUSE_MS 1000
#define TOLD_EACH 64u /* with insecure=on anybody is one: then at 128, 256, ... */

static struct ff_link *take_waiting(struct ff_dest *d, unsigned i)
{
    struct dest_waiting *w = &d->waiting;
    struct ff_link *l = w->link[i];

    w->n--;
    memmove(w->link + i, w->link + i + 1, (w->n - i) * sizeof(w->link[0]));
    memmove(w->until_ns + i, w->until_ns + i + 1, (w->n - i) * sizeof(w->until_ns[0]));
    return l;
}

void dest_log_dropped(struct ff_dest *d, const char *why)
{
    bool due = ff_log_due(&d->n_dropped);

    if (due || d->n_dropped <= TOLD_EACH)
        ff_log(FF_LOG_WARN, "destination: %s; connection dropped, waiting for a source "
               "(%lu so far)", why, d->n_dropped);
}

static void drop_waiting(struct ff_dest *d, unsigned i, const char *why)
{
    struct ff_link *l = take_waiting(d, i);

    dest_log_dropped(d, why);
    l->ops->free(l);
}

void dest_refuse(const struct ff_dest *d, struct ff_control *c, enum ff_refusal code, const char *why)
{
    c->link->ops->set_timeout(c->link, FF_MIN(d->addr.timeout_ms, REFUSE_MS));
    ff_control_send(c, ff_wire_put_refuse(c->buf, code, why), NULL);
}

/* A message came while the move's own source is waited for */
static int check_resume(struct ff_dest *d, int type, struct ff_error *why)
{
    struct ff_resume r;

    if (type != FF_MSG_RESUME)
        return ff_error_set(why, EPROTO,
                            "this destination has a move, and waits for its own source alone; "
                            "another needs another destination");
    int rc = ff_wire_get_resume(d->door.buf, (size_t)d->door.len, &r, why);
    if (!rc)
        rc = ff_control_check_auth(&d->door, d->peer.auth, "resume", why);
    if (rc)
        return rc;
    if (!atomic_load(&d->ready))
        return ff_error_set(why, EPROTO, "resume: the source has not let go of anything yet");
    if (memcmp(r.session, d->session, sizeof(r.session)))
        return ff_error_set(why, EPROTO, "resume: the session is not that of the move to here");
    if (r.digest != ff_hello_digest(&d->peer))
        return ff_error_set(why, EPROTO,
                            "resume: memory or machine is not as it was in the move's "
                            "HELLO");
    if (r.epoch > d->epoch)
        return ff_error_set(why, EPROTO, "resume: epoch %u (there was none after %u)", r.epoch,
                            d->epoch);
    if (r.epoch < d->attached)
        return ff_error_set(why, EPROTO, "resume: epoch %u came too late, after link %u", r.epoch,
                            d->attached);
    if (r.taken_back && !d->lease.lease_ns)
        return ff_error_set(why, EPROTO, "resume: this guest was let go for good");
    d->taken_back = r.taken_back;
    return 0;
}

static int check_hello(struct ff_dest *d, int type, struct ff_error *why)
{
    if (type == FF_MSG_RESUME)
        return ff_error_set(why, EPROTO, "resume: there is no move here that could go on");
    int rc = ff_wire_get_hello(d->door.buf, (size_t)d->door.len, &d->peer, why);
    if (rc)
        return rc;
    rc = ff_control_check_auth(&d->door, d->peer.auth, "hello", why);
    if (rc)
        ff_hello_free(&d->peer);
    return rc;
}

int dest_try_hello(struct ff_dest *d, struct ff_link *l, int timeout_ms, struct ff_error *why)
{
    enum ff_refusal code = FF_REFUSAL_FINAL;

    d->door.link = l;
    int rc = ff_control_expect(&d->door, FF_MSG_HELLO,
                               FF_MSG_BIT(FF_MSG_RESUME) | FF_MSG_BIT(FF_MSG_FEED), timeout_ms, why);
    if (rc == FF_MSG_FEED) {
        rc = dest_take_feed(d, why);
        code = rc == -EAGAIN ? FF_REFUSAL_NOT_YET : FF_REFUSAL_FINAL;
    } else if (rc >= 0) {
        rc = d->accepted ? check_resume(d, rc, why) : check_hello(d, rc, why);
    }
    if (rc == -EPROTO || rc == -EPROTONOSUPPORT || code)
        dest_refuse(d, &d->door, code, why->text);
    d->door.link = NULL; /* @l may be dropped: nobody speaks over it from here on */
    return rc;
}

int dest_ms_until(uint64_t end_ns)
{
    uint64_t now = ff_now_ns();

    return now < end_ns ? (int)((end_ns - now + 999999) / 1000000) : 0;
}

/* Who waits too long goes; until when the others may */
static int drop_late(struct ff_dest *d)
{
    struct dest_waiting *w = &d->waiting;

    while (w->n && !dest_ms_until(w->until_ns[0]))
        drop_waiting(d, 0, "wait for HELLO: no message");
    return w->n ? dest_ms_until(w->until_ns[0]) : -1;
}

/* Somebody who waits has said it: 0, -EAGAIN: nobody yet; -ECANCELED */
static int hear_waiting(struct ff_dest *d, struct ff_link **out, struct ff_error *err)
{
    for (unsigned i = 0; i < d->waiting.n;) {
        struct ff_error why;
        int rc = dest_try_hello(d, d->waiting.link[i], 0, &why);
        if (!rc) {
            *out = take_waiting(d, i);
            return 0;
        }
        if (rc == -ECANCELED)
            return ff_error_set(err, ECANCELED, "%s", why.text);
        if (rc == -ETIMEDOUT)
            i++;
        else if (rc == 1)
            take_waiting(d, i);
        else
            drop_waiting(d, i, why.text);
    }
    return -EAGAIN;
}

int dest_hear_source(struct ff_dest *d, int stop_fd, uint64_t end_ns, struct ff_link **out,
                     struct ff_error *err)
{
    struct dest_waiting *w = &d->waiting;
    struct pollfd stop = {.fd = stop_fd, .events = POLLIN};

    for (;;) {
        struct ff_error why;
        struct ff_link *link;
        int fds[FF_PORT_ALSO_MAX];

        int rc = hear_waiting(d, out, err);
        if (rc != -EAGAIN)
            return rc;
        if (poll(&stop, 1, 0) > 0)
            return ff_error_set(err, EINTR, "interrupted");
        int timeout_ms = drop_late(d), left = end_ns ? dest_ms_until(end_ns) : -1;
        if (!left)
            return ff_error_set(err, ETIMEDOUT, "no source has come");
        if (left > 0 && (timeout_ms < 0 || left < timeout_ms))
            timeout_ms = left;
        for (unsigned i = 0; i < w->n; i++)
            fds[i] = w->link[i]->ops->control_fd(w->link[i]);
        fds[w->n] = stop_fd; /* -1: poll() does not look at it */
        rc = ff_port_accept(d->port, fds, w->n + 1, timeout_ms, &link, &why);
        if (rc == -ETIMEDOUT || rc == -EAGAIN)
            continue;
        if (rc)
            return ff_error_set(err, -rc, "%s", why.text);
        if (w->n == DEST_WAITING_MAX)
            drop_waiting(d, 0, "wait for HELLO: too many peers wait");
        w->link[w->n] = link;
        w->until_ns[w->n++] = ff_now_ns() + DEST_HELLO_MS * 1000000ull;
    }
}

void dest_drop_waiting(struct ff_dest *d)
{
    struct ff_link *came = d->ear.came;

    d->ear.came = NULL;
    if (came)
        came->ops->free(came);
    while (d->waiting.n) {
        struct ff_link *l = take_waiting(d, 0);
        l->ops->free(l);
    }
}

/* --- ports --- */

int dest_is_over(const struct ff_dest *d)
{
    if (atomic_load(&d->cancelled) || atomic_load(&d->leaves))
        return ECANCELED;
    return atomic_load(&d->interrupted) ? EINTR : 0;
}

bool dest_use_next_port(struct ff_dest *d)
{
    struct ff_port *old = NULL;

    pthread_mutex_lock(&d->lock);
    bool is_new = d->next_port;
    if (is_new) {
        old = d->port;
        d->port = d->next_port;
        d->next_port = NULL;
    }
    if (d->port && dest_is_over(d))
        ff_port_cancel(d->port);
    pthread_mutex_unlock(&d->lock);
    ff_port_free(old);
    return is_new;
}

void dest_close_heard(struct ff_dest *d)
{
    pthread_mutex_lock(&d->lock);
    struct ff_port *old = d->port;
    d->port = NULL;
    if (!d->next_port)
        atomic_store(&d->listens, 0);
    ff_port_free(old);
    pthread_cond_broadcast(&d->port_closed);
    pthread_mutex_unlock(&d->lock);
}
