/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_recover.c - after READY: the destination waits for its source to come back
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      the caller's wait fails
 *              GO was not read   seal: the pager ends, nothing ever runs here
 *              GO was read       park the pager
 *              free the old link, listen, hear whoever says RESUME of this move, unless the ear
 *              (dest_ear.c) has heard it already
 *                sealed     NOT-STARTED, until the source has said WITHDRAWN
 *                complete   COMPLETE, DONE, until the source has said WITHDRAWN
 *                else       RUNNING; queues, PUBLISH, KEYS; attach the pager; prefill
 *                fallback=go, and the source has taken the guest back: stop it, TAKEN-BACK
 *              whatever fails of that costs its connection, and the next one is heard
 *
 * Threads      the caller's. ff_dest_listen() and ff_dest_pause(): any.
 * Invariants   1. What this side answers depends on one thing, which never changes back: whether
 *                 GO was read (guest_runs). It is sealed before NOT-STARTED is said.
 *              2. The old link is freed before who comes is answered: nothing of it lands any more.
 *              3. A segment has a key over every link, or over none: it reads as zeros then.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cleanup.h"
#include "dest_private.h"
#include "failpoint.h"
#include "key.h"
#include "log.h"
#include "thread.h"

#define PARK_MS 200
#define AGAIN_MS 100
#define CLOSE_MS 5000

static bool has_port(struct ff_dest *d)
{
    pthread_mutex_lock(&d->lock);
    bool has = d->port || d->next_port;
    pthread_mutex_unlock(&d->lock);
    return has;
}

/* Whether @key is the move's own: that of another address may be another */
static bool is_own_key(const struct ff_dest *d, const struct ff_key *key)
{
    return ff_key_equal(key, d->addr.key);
}

/* Another address of the move has the permission of the first one */
static bool lets_anybody(const struct ff_dest *d, const struct ff_address *a)
{
    return a->insecure || d->addr.insecure;
}

static struct ff_key *key_of(const struct ff_dest *d, const struct ff_address *a)
{
    return a->key ? a->key : d->addr.key;
}

static bool listens_at(struct ff_dest *d, const struct ff_address *to)
{
    return has_port(d) && !strcmp(to->port, d->at.port) && !strcmp(to->host, d->at.host) &&
           !strcmp(to->device, d->at.device) && is_own_key(d, key_of(d, to)) &&
           is_own_key(d, key_of(d, &d->at)) && lets_anybody(d, to) == lets_anybody(d, &d->at);
}

/* Under listen_lock: @to becomes where the source finds this side */
static int listen_anew(struct ff_dest *d, const struct ff_address *to, struct ff_error *err)
{
    struct ff_link_params p = {.host = to->host,
                               .port = to->port,
                               .peers = &to->peers,
                               .timeout_ms = to->timeout_ms,
                               .device = to->device,
                               .key = key_of(d, to),
                               .tos = to->tos.set ? to->tos : d->addr.tos,
                               .insecure = lets_anybody(d, to)};
    struct ff_address was = d->at;
    struct ff_port *port;

    int rc = ff_port_listen(&p, d->verbs ? FF_LINK_VERBS : FF_LINK_TCP, &port, err);
    if (rc)
        return rc;
    d->at = ff_address_copy(to);
    d->at.peers.n = 0; /* it may be elsewhere the next time */
    snprintf(d->at.port, sizeof(d->at.port), "%u", ff_port_number(port));
    ff_address_drop(&was);
    pthread_mutex_lock(&d->lock);
    struct ff_port *old = d->next_port;
    d->next_port = port;
    atomic_store(&d->listens, ff_port_number(port));
    if (d->port)
        ff_port_cancel(d->port);
    pthread_mutex_unlock(&d->lock);
    ff_port_free(old);
    return 0;
}

/* NULL: where it was last. A name server that does not answer holds nobody up: listen_lock is open meanwhile */
static int listen_at(struct ff_dest *d, const struct ff_address *a, struct ff_error *err)
{
    pthread_mutex_lock(&d->listen_lock);
    struct ff_address to = ff_address_copy(a ? a : &d->at);
    bool had = has_port(d), is_there = listens_at(d, &to);
    pthread_mutex_unlock(&d->listen_lock);
    int rc = to.passed || !*to.port
                 ? ff_error_set(err, ENOTSUP, "destination: resume: there is no port to listen on")
             : is_there || !*to.host || to.peers.n ? 0 : ff_address_resolve(&to, err);

    pthread_mutex_lock(&d->listen_lock);
    bool came = !a && !had && has_port(d); /* somebody has said another meanwhile */
    if (!rc && !came && !listens_at(d, &to)) /* whoever has connected stays */
        rc = listen_anew(d, &to, err);
    pthread_mutex_unlock(&d->listen_lock);
    ff_address_drop(&to);
    return rc;
}

/* A wait that was interrupted closes its port, which may be the one that is to be opened */
static void await_closed_port(struct ff_dest *d)
{
    uint64_t end_ns = ff_now_ns() + CLOSE_MS * 1000000ull;

    pthread_mutex_lock(&d->lock);
    while (d->port && atomic_load(&d->interrupted))
        if (ff_cond_wait_until(&d->port_closed, &d->lock, end_ns))
            break;
    pthread_mutex_unlock(&d->lock);
}

int ff_dest_listen(struct ff_dest *d, const struct ff_address *a, struct ff_error *err)
{
    await_closed_port(d);
    return listen_at(d, a, err);
}

/* Wherever ff_dest_listen() said last, else at the first port, which may be away for as long as the
 * network is: its address goes with the interface */
static int open_port(struct ff_dest *d, uint64_t end_ns, struct ff_error *err)
{
    const struct timespec nap = {.tv_nsec = AGAIN_MS * 1000000};
    struct ff_error why;

    for (bool said = false;; said = true) {
        int rc = has_port(d) ? 0 : listen_at(d, NULL, &why);
        if (!rc)
            return 0;
        if (rc == -ENOTSUP)
            return ff_error_set(err, ENOTSUP, "%s", why.text);
        if (dest_is_over(d))
            return ff_error_set(err, dest_is_over(d), "destination: resume: %s",
                                strerror(dest_is_over(d)));
        if (end_ns && ff_now_ns() >= end_ns)
            return ff_error_set(err, ETIMEDOUT, "destination: resume: %s", why.text);
        if (!said)
            ff_log(FF_LOG_WARN, "destination: resume: %s; trying again", why.text);
        nanosleep(&nap, NULL);
    }
}

void ff_dest_interrupt(struct ff_dest *d)
{
    pthread_mutex_lock(&d->lock);
    atomic_store(&d->interrupted, true);
    if (d->port)
        ff_port_cancel(d->port);
    pthread_mutex_unlock(&d->lock);
}

void ff_dest_leave(struct ff_dest *d)
{
    pthread_mutex_lock(&d->lock);
    atomic_store(&d->leaves, true);
    if (d->port)
        ff_port_cancel(d->port);
    pthread_mutex_unlock(&d->lock);
}

/* Nobody is heard here until the next call; not even at a port that is for that */
static void end_interrupt(struct ff_dest *d)
{
    dest_drop_waiting(d);
    dest_close_heard(d);
    atomic_store(&d->interrupted, false);
}

/* --- what is answered: 0; -EAGAIN: the connection is dropped for the reason, and another is heard;
 *     -errno: it is over --- */

static int until_withdrawn(struct ff_dest *d, struct ff_error *why)
{
    return ff_control_expect(&d->ctl, FF_MSG_WITHDRAWN, 0, WITHDRAWN_MS, why) < 0 ? -EAGAIN : 0;
}

static int say_not_started(struct ff_dest *d, struct ff_error *why)
{
    if (dest_send_welcome(d, FF_ANSWER_NOT_STARTED, why) || until_withdrawn(d, why))
        return -EAGAIN;
    return ff_error_set(why, ESTALE, "no GO came; the source knows that nothing ran here");
}

static int say_complete(struct ff_dest *d, struct ff_error *why)
{
    if (dest_send_welcome(d, FF_ANSWER_COMPLETE, why) || dest_send_stats(d, FF_MSG_DONE, why) ||
        until_withdrawn(d, why))
        return -EAGAIN;
    if (d->lease.lease_ns) {
        ff_lease_release(&d->lease);
        ff_control_send(&d->ctl, ff_wire_put_empty(d->ctl.buf, FF_MSG_WITHDRAWN), NULL);
        if (!dest_was_heard(d)) {
            ff_error_set(why, EAGAIN, "the answer to WITHDRAWN may be lost");
            return -EAGAIN;
        }
    }
    d->told = true;
    return 0;
}

static int say_taken_back(struct ff_dest *d, struct ff_error *why)
{
    ff_lease_revoke(&d->lease);
    dest_send_welcome(d, FF_ANSWER_TAKEN_BACK, NULL); /* whether it hears that changes nothing */
    return ff_error_set(why, EKEYREVOKED,
                        "the source has taken its guest back: it is not to run here any more");
}

static int say_lost(struct ff_dest *d, struct ff_error *why)
{
    ff_control_refuse(&d->ctl, d->lost_why);
    return ff_error_set(why, ESRCH, "%s", d->lost_why);
}

/* Of the caller's limit what is left, but enough for one message */
static int publish_ms(const struct ff_dest *d, uint64_t end_ns)
{
    uint64_t now = ff_now_ns(), left_ms = end_ns > now ? (end_ns - now) / 1000000u : 0;

    return !end_ns ? PUBLISH_MS
                   : (int)FF_MIN(FF_MAX(left_ms, (uint64_t)d->addr.timeout_ms), PUBLISH_MS);
}

static int recv_publish(struct ff_dest *d, uint64_t end_ns, struct ff_error *why)
{
    FF_AUTO_FREE struct ff_publish *pub = calloc(1, sizeof(*pub));
    int rc = ff_control_expect(&d->ctl, FF_MSG_PUBLISH, 0, publish_ms(d, end_ns), why);

    if (!pub)
        return ff_error_set(why, ENOMEM, "resume: out of memory");
    if (rc >= 0)
        rc = ff_wire_get_publish(d->ctl.buf, (size_t)d->ctl.len, pub, d->peer.n_regions,
                                 d->peer.regions, why);
    if (rc)
        return rc;
    if (pub->segment_bytes != d->publish.segment_bytes || pub->n_keys != d->n_keys ||
        memcmp(pub->addr, d->publish.addr, d->peer.n_regions * sizeof(pub->addr[0])))
        return ff_error_set(why, EPROTO,
                            "resume: the image is not the one of the move: %u keys of "
                            "0x%llx bytes (want %u of 0x%llx, and the same addresses)",
                            pub->n_keys, (unsigned long long)pub->segment_bytes, d->n_keys,
                            (unsigned long long)d->publish.segment_bytes);
    rc = ff_pager_check_push(&d->pager, pub->push_bytes, why);
    if (!rc)
        rc = ff_pager_set_asks(&d->pager, pub->asks_addr, pub->asks_rkey, why);
    if (!rc && d->pager.mode == FF_PREFILL_PUSH && !d->pager.can_push)
        atomic_store(&d->pager.mode, FF_PREFILL_PULL); /* prefill=auto had chosen it */
    if (!rc)
        dest_drop_parts(d);
    return rc ? rc : dest_recv_keys(d, pub->n_keys, why);
}

static int take_up(struct ff_dest *d, uint64_t end_ns, struct ff_error *why)
{
    uint64_t welcomed_ns = ff_boot_ns();
    int rc = dest_send_welcome(d, FF_ANSWER_RUNNING, why);

    if (!rc && ff_failpoint("dest.resume"))
        rc = ff_error_set(why, EIO, "resume: injected");
    if (!rc)
        rc = recv_publish(d, end_ns, why);
    if (!rc)
        rc = ff_pager_attach(&d->pager, d->link, why);
    if (rc)
        return rc == -EREMOTEIO ? rc : -EAGAIN; /* it has come back to say that the image is lost */
    d->attached = d->epoch;
    d->link->ops->set_timeout(d->link, d->addr.go_timeout_ms);
    ff_log(FF_LOG_INFO, "destination: link %u: %s", d->epoch, d->link->about);
    d->ctl.others_read = d->lease.lease_ns;
    ff_lease_attach(&d->lease, d->link, welcomed_ns);
    dest_start_prefill(d);
    /* what the last link brought: a source whose links bring nothing waits before the next one. When
     * this one is broken already, the caller's wait finds out. */
    dest_send_stats(d, FF_MSG_PROGRESS, NULL);
    if (!d->running_ns) /* the guest is still being started */
        dest_start_beat(d);
    return 0;
}

static int answer(struct ff_dest *d, uint64_t end_ns, struct ff_error *why)
{
    if (d->lost_why)
        return say_lost(d, why);
    if (d->taken_back)
        return say_taken_back(d, why);
    if (!atomic_load(&d->pager.guest_runs))
        return say_not_started(d, why);
    return d->complete ? say_complete(d, why) : take_up(d, end_ns, why);
}

/* --- waiting --- */

/* An agent may get the last page from another one, while its source is away */
#define FED_MS 200u

static bool may_complete(const struct ff_dest *d)
{
    return d->pager.may_be_fed && atomic_load(&d->pager.guest_runs) && !d->lost_why && !d->complete;
}

static uint64_t hear_until(const struct ff_dest *d, uint64_t end_ns)
{
    uint64_t soon = ff_now_ns() + FED_MS * 1000000u;

    return may_complete(d) && (!end_ns || soon < end_ns) ? soon : end_ns;
}

/* No thread touches the old link, and it is freed */
static int let_go(struct ff_dest *d, uint64_t end_ns, struct ff_error *err)
{
    int rc = 0;

    ff_beat_stop(&d->beat);
    ff_lease_detach(&d->lease);
    d->ctl.others_read = false;
    if (!atomic_load(&d->pager.guest_runs) || d->lost_why) {
        dest_finish_pager(d);
        dest_put_back(d); /* what READY has let in has written all that it is to write */
    } else if (!d->complete) {
        while ((rc = ff_pager_park(&d->pager, PARK_MS, err)) > 0)
            if (dest_is_over(d) || (end_ns && ff_now_ns() >= end_ns))
                return ff_error_set(err, dest_is_over(d) ? dest_is_over(d) : ETIMEDOUT,
                                    "destination: resume: pages wait for memory");
    }
    if (!rc)
        dest_set_link(d, NULL);
    if (!rc && may_complete(d)) /* if no link has lived for long enough to begin */
        dest_start_prefill(d);
    return rc;
}

static int hear_and_answer(struct ff_dest *d, uint64_t end_ns, struct ff_error *err)
{
    struct ff_error why;
    int rc;

    for (;;) {
        struct ff_link *link = d->ear.came;
        d->ear.came = NULL;
        if (!link && dest_use_next_port(d))
            dest_drop_waiting(d);
        int over = dest_is_over(d);
        rc = over   ? ff_error_set(&why, over, "%s", strerror(over))
             : link ? 0
                    : dest_hear_source(d, -1, hear_until(d, end_ns), &link, &why);
        if (rc == -ETIMEDOUT && may_complete(d)) {
            struct ff_error failed;
            int bad = ff_pager_check(&d->pager, FF_PAGER_FAILED, &failed);
            if (bad) {
                why = failed;
                rc = bad;
                break;
            }
        }
        if (rc == -ETIMEDOUT && may_complete(d) && ff_pager_was_complete(&d->pager))
            return ff_error_set(err, EALREADY, "every page is here, by other agents");
        if (rc == -ETIMEDOUT && !link && (!end_ns || ff_now_ns() < end_ns))
            continue;
        if (rc == -ECANCELED && dest_is_over(d) != ECANCELED)
            continue; /* another port, or interrupted */
        if (rc == -EBADFD) { /* the port's device has gone */
            dest_drop_waiting(d);
            dest_close_heard(d);
            rc = open_port(d, end_ns, &why);
            if (!rc)
                continue;
        }
        if (link)
            dest_set_link(d, link);
        if (!rc)
            rc = answer(d, end_ns, &why);
        if (rc != -EAGAIN)
            break;
        ff_log(FF_LOG_WARN, "destination: %s; connection dropped, waiting for the source",
               why.text);
        dest_set_link(d, NULL);
    }
    if (rc)
        ff_error_set(err, -rc, "destination: resume: %s", why.text);
    return rc;
}

void ff_dest_release(struct ff_dest *d)
{
    ff_lease_release(&d->lease);
}

int ff_dest_refuse(struct ff_dest *d, const char *text, int timeout_ms, struct ff_error *err)
{
    int rc;

    if (!d->ready) { /* it waits for an answer, over the link that there is */
        ff_control_refuse(&d->ctl, text);
        return 0;
    }
    d->lost_why = text;
    do
        rc = ff_dest_recover(d, timeout_ms, err);
    while (rc == -EINTR); /* of a wait that has ended by now */
    return rc == -ESRCH ? 0 : rc;
}

int ff_dest_recover(struct ff_dest *d, int timeout_ms, struct ff_error *err)
{
    uint64_t end_ns = timeout_ms < 0 ? 0 : ff_now_ns() + (uint64_t)timeout_ms * 1000000u;

    if (d->told || (d->complete && !d->settled && ff_lease_is_released(&d->lease)))
        return 0;
    if (!d->ready)
        return ff_error_set(err, EINVAL, "destination: resume: the source did not let go");
    dest_ear_stop(d);
    int rc = let_go(d, end_ns, err);
    if (!rc)
        rc = open_port(d, end_ns, err);
    d->recovers = true;
    if (!rc)
        rc = hear_and_answer(d, end_ns, err);
    d->recovers = false;
    if (rc == -EINTR)
        end_interrupt(d);
    if (d->told || rc == -ESTALE || rc == -EKEYREVOKED) /* nobody is waited for any more */
        ff_dest_close_port(d);
    else if (!rc)
        dest_ear_start(d);
    return rc;
}
