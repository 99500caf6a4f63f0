/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_accept.c - the destination waits for its source: connection, hello, queues
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      connected, several at once -- HELLO --> one: does it fit? -- WELCOME --> queues
 *                 |  nothing within HELLO_MS, not a HELLO,     |  it leaves, or opens none
 *                 |  another version                           |  within its time limit
 *                 v                                 no: v      v
 *              dropped, told why where it can be      dropped; the next
 *
 *              Once there is a link the same is heard for RESUME (dest_ear.c, dest_recover.c).
 *
 *              An agent takes one table: what comes after it was adopted is final.
 * Limits       HELLO_MS: who is silent for so long is dropped. DEST_WAITING_MAX peers without
 *              HELLO: when one more comes, the one that has had most time goes. QUEUES_MS, or
 *              half the time limit if that is more: who was welcomed takes that message and opens
 *              its queues at once. REFUSE_MS: who takes no refusal is dropped without. An adapter
 *              waits for a peer that has no buffer for a message, and all others wait with it.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>

#include "cleanup.h"
#include "dest_private.h"
#include "failpoint.h"
#include "log.h"

#define HELLO_MS 5000
#define QUEUES_MS 1000
#define REFUSE_MS 1000

void dest_set_link(struct ff_dest *d, struct ff_link *link)
{
    pthread_mutex_lock(&d->lock);
    struct ff_link *old = d->link;
    d->link = d->ctl.link = link;
    if (link && atomic_load(&d->cancelled))
        link->ops->shutdown(link);
    pthread_mutex_unlock(&d->lock);
    if (old)
        old->ops->free(old);
}

static struct ff_link *take_waiting(struct ff_dest *d, unsigned i)
{
    struct dest_waiting *w = &d->waiting;
    struct ff_link *l = w->link[i];

    w->n--;
    memmove(w->link + i, w->link + i + 1, (w->n - i) * sizeof(w->link[0]));
    memmove(w->until_ns + i, w->until_ns + i + 1, (w->n - i) * sizeof(w->until_ns[0]));
    return l;
}

static void drop_waiting(struct ff_dest *d, unsigned i, const char *why)
{
    struct ff_link *l = take_waiting(d, i);

    ff_log(FF_LOG_WARN, "destination: %s; connection dropped, waiting for a source", why);
    l->ops->free(l);
}

/* The peer of @c is told @why, and dropped by the caller */
static void refuse(const struct ff_dest *d, struct ff_control *c, const char *why)
{
    c->link->ops->set_timeout(c->link, FF_MIN(d->addr.timeout_ms, REFUSE_MS));
    ff_control_refuse(c, why);
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

/* Has @l said HELLO? 0; -ETIMEDOUT: nothing yet; else it is to be dropped, and was told why */
static int try_hello(struct ff_dest *d, struct ff_link *l, int timeout_ms, struct ff_error *why)
{
    d->door.link = l;
    int rc = ff_control_expect(&d->door, FF_MSG_HELLO, FF_MSG_BIT(FF_MSG_RESUME), timeout_ms, why);
    if (rc >= 0)
        rc = d->accepted ? check_resume(d, rc, why) : check_hello(d, rc, why);
    if (rc == -EPROTO || rc == -EPROTONOSUPPORT)
        refuse(d, &d->door, why->text);
    d->door.link = NULL; /* @l may be dropped: nobody speaks over it from here on */
    return rc;
}

static int ms_until(uint64_t end_ns)
{
    uint64_t now = ff_now_ns();

    return now < end_ns ? (int)((end_ns - now + 999999) / 1000000) : 0;
}

/* Who waits too long goes; until when the others may */
static int drop_late(struct ff_dest *d)
{
    struct dest_waiting *w = &d->waiting;

    while (w->n && !ms_until(w->until_ns[0]))
        drop_waiting(d, 0, "wait for HELLO: no message");
    return w->n ? ms_until(w->until_ns[0]) : -1;
}

/* Somebody who waits has said it: 0, -EAGAIN: nobody yet; -ECANCELED */
static int hear_waiting(struct ff_dest *d, struct ff_link **out, struct ff_error *err)
{
    for (unsigned i = 0; i < d->waiting.n;) {
        struct ff_error why;
        int rc = try_hello(d, d->waiting.link[i], 0, &why);
        if (!rc) {
            *out = take_waiting(d, i);
            return 0;
        }
        if (rc == -ECANCELED)
            return ff_error_set(err, ECANCELED, "%s", why.text);
        if (rc == -ETIMEDOUT)
            i++;
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
        int timeout_ms = drop_late(d), left = end_ns ? ms_until(end_ns) : -1;
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
        w->until_ns[w->n++] = ff_now_ns() + HELLO_MS * 1000000ull;
    }
}

/* 0: @d's peer fits. It was told if not; an owner that has adopted a table takes no other */
static int check_table(struct ff_dest *d, const char *config, bool *for_good, struct ff_error *err)
{
    struct ff_error why;
    int rc = d->owner.adopt ? d->owner.adopt(d->owner.opaque, &d->peer, &why) : 0;

    *for_good = d->owner.adopt;
    if (!rc)
        rc = ff_regions_match(&d->regions, d->owner.adopt ? d->peer.config : config, &d->peer,
                              d->map, &why);
    if (!rc)
        return 0;
    refuse(d, &d->ctl, why.text);
    return ff_error_set(err, -rc, "%s", why.text);
}

/* Less than another source waits for WELCOME, which may have begun just after this one */
static int queues_ms(const struct ff_dest *d)
{
    return FF_MAX(d->addr.timeout_ms / 2, FF_MIN(d->addr.timeout_ms, QUEUES_MS));
}

int dest_send_welcome(struct ff_dest *d, enum ff_answer answer, struct ff_error *err)
{
    bool queues = answer == FF_ANSWER_NEW || answer == FF_ANSWER_RUNNING;
    struct ff_welcome w = {.version = FF_WIRE_VERSION,
                           .answer = answer,
                           .epoch = answer == FF_ANSWER_NEW ? 1 : d->epoch + queues,
                           .features = d->addr.precopy ? FF_WIRE_PRECOPY : 0};

    if (getrandom(w.session, sizeof(w.session), 0) != sizeof(w.session))
        return ff_error_set(err, EIO, "destination: no random numbers: %s", strerror(errno));
    if (answer == FF_ANSWER_NEW)
        memcpy(d->session, w.session, sizeof(d->session));
    d->epoch = w.epoch;
    uint64_t end = ff_now_ns() + (uint64_t)queues_ms(d) * 1000000u;
    d->link->ops->set_timeout(d->link, queues_ms(d));
    int rc = ff_control_send(&d->ctl, ff_wire_put_welcome(d->ctl.buf, &w), err);
    d->link->ops->set_timeout(d->link, d->addr.timeout_ms);
    return rc || !queues ? rc : d->link->ops->open_queues(d->link, w.session, ms_until(end), err);
}

/* Queues to a source that fits. A peer that does not, or leaves, costs itself its connection, and
 * the others are heard */
static int find_source(struct ff_dest *d, const char *config, struct ff_error *err)
{
    for (;;) {
        struct ff_link *link = d->link;
        struct ff_error why;
        bool for_good = false;

        int rc = d->port ? dest_hear_source(d, -1, 0, &link, &why)
                         : try_hello(d, link, HELLO_MS, &why);
        bool heard = !rc;
        if (!rc) {
            if (link != d->link)
                dest_set_link(d, link);
            ff_page_pool_stop(&d->pool);
            rc = check_table(d, config, &for_good, &why);
        }
        if (!rc)
            rc = dest_send_welcome(d, FF_ANSWER_NEW, &why);
        if (!rc)
            return 0;
        if (!heard || for_good || !d->port) {
            if (err)
                *err = why;
            return rc;
        }
        if (!atomic_load(&d->cancelled)) /* else the wait ends at once */
            ff_log(FF_LOG_WARN, "destination: %s; connection dropped, waiting for a source",
                   why.text);
        dest_set_link(d, NULL);
        ff_hello_free(&d->peer);
    }
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

int ff_dest_accept(struct ff_dest *d, const char *config, struct ff_error *err)
{
    bool pulls = d->addr.prefill == FF_PREFILL_PULL || d->addr.prefill == FF_PREFILL_AUTO;
    if (d->addr.prealloc && d->addr.landing == FF_LANDING_AUTO && (pulls || d->addr.precopy))
        ff_page_pool_start(&d->pool, &d->regions);
    int rc = find_source(d, config, err);
    dest_drop_waiting(d);
    if (rc || d->link->pins) /* what is pinned cannot be moved */
        ff_page_pool_free(&d->pool);
    if (!rc && ff_failpoint("dest.accepted"))
        rc = ff_error_set(err, EIO, "destination: injected");
    if (rc)
        return rc;
    ff_log(FF_LOG_INFO, "destination: link: %s", d->link->about);
    d->verbs = !strcmp(d->link->ops->name, "verbs");
    d->attached = d->epoch;
    d->accepted = true;
    if (d->port && d->addr.reconnect_ms && !d->owner.adopt)
        dest_ear_start(d);
    else
        ff_dest_close_port(d);
    return 0;
}
