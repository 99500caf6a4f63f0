/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tunnel.c - the tunnel's rings: what the program gives, what the peer sends; see tunnel.h
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "failpoint.h"
#include "thread.h"
#include "tunnel.h"

#define WINDOW FF_TUNNEL_WINDOW
#define SAY_BYTES (WINDOW / 4) /* so seldom is said what was taken: the sender never waits for it */

int ff_tunnel_new(struct ff_tunnel **out, struct ff_error *err)
{
    struct ff_tunnel *t = calloc(1, sizeof(*t));

    if (t) {
        t->out = malloc(WINDOW);
        t->in = malloc(WINDOW);
        t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    if (!t || !t->out || !t->in || t->wake_fd < 0) {
        int code = t && t->out && t->in ? errno : ENOMEM;
        if (t) {
            free(t->out);
            free(t->in);
            ff_close_fd(&t->wake_fd);
        }
        free(t);
        return ff_error_set(err, code, "tunnel: %s", strerror(code));
    }
    t->mail_tail = &t->mail;
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->recv_lock, NULL);
    ff_cond_init(&t->changed);
    *out = t;
    return 0;
}

void ff_tunnel_free(struct ff_tunnel *t)
{
    if (!t)
        return;
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->recv_lock);
    pthread_mutex_destroy(&t->lock);
    ff_close_fd(&t->wake_fd);
    free(t->out);
    free(t->in);
    free(t);
}

void ff_tunnel_fail(struct ff_tunnel *t, const char *why)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    if (!t->failed)
        ff_error_set(&t->why, ECANCELED, "tunnel: %s", why ? why : "canceled");
    t->failed = true;
    t->cancelled |= !why;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

const char *ff_tunnel_missing(const struct ff_tunnel *ours)
{
    return ours
               ? "the peer has no tunnel, and this side has: a proxy moves to a proxy, of the same "
                 "Farfork release"
               : "the peer has a tunnel, and this side has none: a proxy moves to a proxy";
}

/* --- rings --- */

static void ring_put(uint8_t *ring, uint64_t at, const uint8_t *src, size_t n)
{
    size_t i = (size_t)(at % WINDOW), first = FF_MIN(n, WINDOW - i);

    memcpy(ring + i, src, first);
    memcpy(ring, src + first, n - first);
}

static void ring_get(const uint8_t *ring, uint64_t at, uint8_t *dst, size_t n)
{
    size_t i = (size_t)(at % WINDOW), first = FF_MIN(n, WINDOW - i);

    memcpy(dst, ring + i, first);
    memcpy(dst + first, ring, n - first);
}

/* --- under lock --- */

static uint64_t out_end(const struct ff_tunnel *t)
{
    return t->given + t->ended;
}

static uint64_t in_taken(const struct ff_tunnel *t)
{
    return t->taken + t->end_taken;
}

/* Must the peer learn what was taken here? */
static bool must_say(const struct ff_tunnel *t)
{
    return t->must_say || in_taken(t) - t->said >= SAY_BYTES ||
           (t->end_taken && t->said < in_taken(t));
}

/* The next BYTES, into @t->buf: its length. Up to where the ring turns */
static int put_next(struct ff_tunnel *t)
{
    struct ff_bytes p = {.offset = t->sent, .taken = in_taken(t)};
    uint64_t left = t->given - FF_MIN(t->sent, t->given);
    size_t i = (size_t)(t->sent % WINDOW);

    p.data = t->out + i;
    p.n = (uint32_t)FF_MIN(FF_MIN(left, (uint64_t)FF_WIRE_BYTES_MAX), (uint64_t)(WINDOW - i));
    p.ends = t->ended && t->sent <= t->given && p.n == left;
    t->sent += p.n + p.ends;
    t->most = FF_MAX(t->most, t->sent);
    t->said = p.taken;
    t->must_say = false;
    return ff_wire_put_bytes(t->buf, &p);
}

void ff_tunnel_pump(struct ff_tunnel *t, uint64_t upto)
{
    while (t->link && !t->broke.code && !t->failed && (t->sent < upto || must_say(t))) {
        struct ff_link *link = t->link;
        if (t->sending && t->sent >= upto)
            break; /* who sends looks again at what is to be said */
        if (t->sending) {
            pthread_cond_wait(&t->changed, &t->lock);
            continue;
        }
        int len = put_next(t);
        t->sending = true;
        pthread_mutex_unlock(&t->lock);
        int rc = ff_failpoint("tunnel.send");
        if (!rc)
            rc = link->ops->send(link, t->buf, (uint32_t)len, NULL);
        if (rc) /* the reader learns of it, and the peer */
            link->ops->shutdown(link);
        pthread_mutex_lock(&t->lock);
        t->sending = false;
        pthread_cond_broadcast(&t->changed);
        if (rc)
            break;
    }
}

/* What the peer's program has taken need not be kept, nor sent again */
static int take_acked(struct ff_tunnel *t, uint64_t taken, struct ff_error *err)
{
    if (taken < t->acked || taken > t->most)
        return ff_error_set(err, EPROTO,
                            "tunnel: the peer says that 0x%llx bytes are taken (permitted "
                            "0x%llx..0x%llx)",
                            (unsigned long long)taken, (unsigned long long)t->acked,
                            (unsigned long long)t->most);
    t->acked = taken;
    t->sent = FF_MAX(t->sent, taken);
    return 0;
}

/* Does the message continue what has come over this link, and else over those before? */
static bool continues(const struct ff_tunnel *t, const struct ff_bytes *p)
{
    uint64_t end = t->received + t->peer_ended;

    if (t->heard) /* what its program has heard to be taken by now is left out */
        return p->offset == t->next || (p->offset > t->next && p->offset <= end);
    return p->offset <= end && end - p->offset <= WINDOW + 1;
}

int ff_tunnel_take_bytes(struct ff_tunnel *t, const uint8_t *msg, size_t len, struct ff_error *err)
{
    struct ff_bytes p;
    int rc = ff_wire_get_bytes(msg, len, &p, err);

    if (!rc)
        rc = take_acked(t, p.taken, err);
    if (rc)
        return rc;
    if (!continues(t, &p))
        return ff_error_set(err, EPROTO, "tunnel: bytes at 0x%llx (want 0x%llx%s)",
                            (unsigned long long)p.offset,
                            (unsigned long long)(t->heard ? t->next : t->received),
                            t->heard ? "" : ", or up to 1 MiB before");
    uint64_t end = p.offset + p.n;
    if (p.n && end > t->taken + WINDOW)
        return ff_error_set(err, EPROTO,
                            "tunnel: bytes up to 0x%llx, while 0x%llx are taken (permitted: 1 MiB "
                            "more)",
                            (unsigned long long)end, (unsigned long long)t->taken);
    if (t->peer_ended ? (p.n || p.ends) && (end > t->received || (p.ends && end < t->received))
                      : p.ends && end < t->received)
        return ff_error_set(err, EPROTO, "tunnel: bytes up to 0x%llx%s (it ended at 0x%llx)",
                            (unsigned long long)end, p.ends ? ", and an end" : "",
                            (unsigned long long)t->received);
    if (end > t->received && p.n) {
        uint64_t skip = t->received - p.offset;
        ring_put(t->in, t->received, p.data + skip, (size_t)(p.n - skip));
        t->received = end;
    }
    t->peer_ended |= p.ends;
    t->heard = true;
    t->next = end + p.ends;
    return 0;
}

/* --- the program --- */

static int tunnel_over(const struct ff_tunnel *t, struct ff_error *err)
{
    return ff_error_set(err, ECANCELED, "%s", t->why.text);
}

int ff_tunnel_send(struct ff_tunnel *t, const void *data, size_t len, struct ff_error *err)
{
    const uint8_t *from = data;
    int rc = 0;

    pthread_mutex_lock(&t->lock);
    if (t->ended)
        rc = ff_error_set(err, EINVAL, "tunnel: send: this side has ended");
    while (len && !rc) {
        while (!t->failed && t->given - FF_MIN(t->acked, t->given) == WINDOW)
            pthread_cond_wait(&t->changed, &t->lock);
        if (t->failed) {
            rc = tunnel_over(t, err);
            break;
        }
        size_t some = FF_MIN(len, (size_t)(WINDOW - (t->given - t->acked)));
        ring_put(t->out, t->given, from, some);
        t->given += some;
        from += some;
        len -= some;
        ff_tunnel_pump(t, t->given);
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

ssize_t ff_tunnel_recv(struct ff_tunnel *t, void *buf, size_t room, struct ff_error *err)
{
    ssize_t rc = 0;

    pthread_mutex_lock(&t->lock);
    while (t->received == t->taken && !t->peer_ended && !t->failed)
        pthread_cond_wait(&t->changed, &t->lock);
    if (t->end_taken) {
        rc = 0;
    } else if (t->failed) {
        rc = tunnel_over(t, err);
    } else if (!room) {
        rc = ff_error_set(err, EINVAL, "tunnel: receive: no room");
    } else if (t->received == t->taken) {
        t->end_taken = true;
        pthread_cond_broadcast(&t->changed);
    } else {
        size_t some = (size_t)FF_MIN(t->received - t->taken, (uint64_t)room);
        ring_get(t->in, t->taken, buf, some);
        t->taken += some;
        rc = (ssize_t)some;
    }
    ff_tunnel_pump(t, 0);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

int ff_tunnel_wait_taken(struct ff_tunnel *t, int timeout_ms, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    int rc = 0;

    pthread_mutex_lock(&t->lock);
    while (!rc && !t->failed && t->given - FF_MIN(t->acked, t->given) > SAY_BYTES)
        rc = ff_cond_wait_until(&t->changed, &t->lock, end);
    rc = t->failed ? tunnel_over(t, err) : rc != 0;
    pthread_mutex_unlock(&t->lock);
    return rc;
}

int ff_tunnel_end(struct ff_tunnel *t, struct ff_error *err)
{
    pthread_mutex_lock(&t->lock);
    int rc = t->failed && !t->ended ? tunnel_over(t, err) : 0;
    if (!rc)
        t->ended = true;
    ff_tunnel_pump(t, out_end(t));
    pthread_mutex_unlock(&t->lock);
    return rc;
}

/* --- done --- */

static bool is_done(const struct ff_tunnel *t)
{
    return t->ended && t->acked == out_end(t) && t->end_taken;
}

bool ff_tunnel_is_done(struct ff_tunnel *t)
{
    pthread_mutex_lock(&t->lock);
    bool done = is_done(t);
    pthread_mutex_unlock(&t->lock);
    return done;
}

int ff_tunnel_take_done(struct ff_tunnel *t, struct ff_error *err)
{
    int rc = 0;

    if (!t)
        return 0;
    pthread_mutex_lock(&t->lock);
    if (!t->ended || !t->end_taken || t->most != out_end(t))
        rc = ff_error_set(err, EPROTO, "tunnel: DONE before both ends are taken");
    else
        t->acked = t->sent = out_end(t);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

uint64_t ff_tunnel_moved(struct ff_tunnel *t)
{
    if (!t)
        return 0;
    pthread_mutex_lock(&t->lock);
    uint64_t bytes = t->received + t->acked;
    pthread_mutex_unlock(&t->lock);
    return bytes;
}

int ff_tunnel_wait_done(struct ff_tunnel *t, int timeout_ms, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    int rc = 0;

    if (!t)
        return 0;
    pthread_mutex_lock(&t->lock);
    while (!is_done(t) && !t->failed && t->link && !t->broke.code && !rc)
        rc = ff_cond_wait_until(&t->changed, &t->lock, end);
    if (is_done(t))
        rc = 0;
    else if (t->failed)
        rc = tunnel_over(t, err);
    else if (t->broke.code)
        rc = ff_error_set(err, t->broke.code, "%s", t->broke.text);
    else
        rc = t->link ? 1 : ff_error_set(err, ENOTCONN, "tunnel: there is no link");
    pthread_mutex_unlock(&t->lock);
    return rc;
}
