/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tunnel_link.c - the tunnel and the links it has, one after the other; see tunnel.h
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "thread.h"
#include "tunnel.h"

#define MAIL_MAX 64u
#define LOOK_MS 200 /* verbs finds out in a recv() that waits whether its peer is there */

struct ff_mail {
    struct ff_mail *next;
    int len;
    uint8_t data[];
};

/* --- under lock --- */

static void set_broke(struct ff_tunnel *t, const struct ff_error *why)
{
    if (t->broke.code)
        return;
    t->broke = *why;
    if (!t->resumes && !t->failed) {
        ff_error_set(&t->why, ECANCELED, "tunnel: the link broke: %s", why->text);
        t->failed = true;
    }
}

static void add_mail(struct ff_tunnel *t, struct ff_mail *m)
{
    *t->mail_tail = m;
    t->mail_tail = &m->next;
    t->n_mail++;
}

static struct ff_mail *take_mail(struct ff_tunnel *t)
{
    struct ff_mail *m = t->mail;

    if (!m)
        return NULL;
    t->mail = m->next;
    if (!t->mail)
        t->mail_tail = &t->mail;
    if (t->n_mail-- == MAIL_MAX)
        eventfd_write(t->wake_fd, 1);
    return m;
}

/* --- receiving, under recv_lock --- */

/* The peer ended it; the text is its reason */
static void take_refusal(struct ff_tunnel *t, int len, struct ff_error *why)
{
    char text[FF_WIRE_TEXT_MAX + 1];
    enum ff_refusal code;

    if (!ff_wire_get_refuse(t->rbuf, (size_t)len, &code, text, why))
        ff_error_set(why, EREMOTEIO, "the peer ended it: %s", text);
}

static struct ff_mail *mail_of(const uint8_t *msg, int len, struct ff_error *why)
{
    struct ff_mail *m = malloc(sizeof(*m) + (size_t)len);

    if (!m) {
        ff_error_set(why, ENOMEM, "a message of %d bytes: out of memory", len);
        return NULL;
    }
    m->next = NULL;
    m->len = len;
    memcpy(m->data, msg, (size_t)len);
    return m;
}

/* One message, if there is one, to where it belongs: whether there was. What no message begins with
 * is the caller's to refuse */
static bool receive(struct ff_tunnel *t, int timeout_ms)
{
    struct ff_error why = {.code = 0};
    struct ff_mail *m = NULL;
    int type = 0;

    int len = t->link->ops->recv(t->link, t->rbuf, timeout_ms, &why);
    if (len == -ETIMEDOUT)
        return false;
    if (len >= 0)
        type = ff_wire_type(t->rbuf, (size_t)len, NULL);
    if (len >= 0 && type != FF_MSG_BYTES)
        m = mail_of(t->rbuf, len, &why);
    if (type == FF_MSG_REFUSE && m)
        take_refusal(t, len, &why);
    pthread_mutex_lock(&t->lock);
    if (type == FF_MSG_BYTES)
        ff_tunnel_take_bytes(t, t->rbuf, (size_t)len, &why);
    if (m)
        add_mail(t, m);
    if (why.code)
        set_broke(t, &why);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (why.code && len >= 0 && type != FF_MSG_REFUSE) /* both sides are to know */
        t->link->ops->shutdown(t->link);
    return !why.code;
}

static bool receive_locked(struct ff_tunnel *t, int timeout_ms)
{
    pthread_mutex_lock(&t->recv_lock);
    pthread_mutex_lock(&t->lock);
    bool may = t->n_mail < MAIL_MAX && !t->broke.code;
    pthread_mutex_unlock(&t->lock);
    bool had = may && receive(t, timeout_ms);
    pthread_mutex_unlock(&t->recv_lock);
    return had;
}

static void *reader_main(void *arg)
{
    struct ff_tunnel *t = arg;
    int fd = t->link->ops->control_fd(t->link);
    int look_ms = 0;
    eventfd_t n;

    ff_thread_soon();
    for (;;) {
        while (receive_locked(t, look_ms))
            ;
        pthread_mutex_lock(&t->lock);
        bool waits = t->n_mail < MAIL_MAX && !t->broke.code, stops = t->stops;
        pthread_mutex_unlock(&t->lock);
        if (stops)
            return NULL;
        struct pollfd p[2] = {{.fd = waits ? fd : -1, .events = POLLIN},
                              {.fd = t->wake_fd, .events = POLLIN}};
        look_ms = poll(p, 2, waits ? LOOK_MS : -1) ? 0 : 1;
        if (p[1].revents)
            eventfd_read(t->wake_fd, &n);
    }
}

/* --- the caller's thread --- */

int ff_tunnel_attach(struct ff_tunnel *t, struct ff_link *link, struct ff_error *err)
{
    if (!t)
        return 0;
    pthread_mutex_lock(&t->lock);
    t->link = link;
    t->broke.code = 0;
    t->sent = t->acked;
    t->heard = false;
    t->must_say = true;
    t->stops = false;
    pthread_mutex_unlock(&t->lock);
    int rc = ff_thread_start(&t->reader, reader_main, t, "farfork-tunnel", err);
    t->reads = !rc;
    pthread_mutex_lock(&t->lock);
    if (rc)
        t->link = NULL;
    ff_tunnel_pump(t, t->given + t->ended);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

void ff_tunnel_detach(struct ff_tunnel *t)
{
    struct ff_mail *m;

    if (!t || !t->reads)
        return;
    pthread_mutex_lock(&t->lock);
    t->stops = true;
    pthread_mutex_unlock(&t->lock);
    eventfd_write(t->wake_fd, 1);
    pthread_join(t->reader, NULL);
    t->reads = false;
    pthread_mutex_lock(&t->lock);
    struct ff_link *link = t->link;
    t->link = NULL;
    if (t->sending)
        link->ops->shutdown(link);
    while (t->sending)
        pthread_cond_wait(&t->changed, &t->lock);
    while ((m = take_mail(t)))
        free(m);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

bool ff_tunnel_reads(const struct ff_tunnel *t)
{
    return t && t->reads;
}

/* What is in the mailbox, or why nothing comes any more: -EAGAIN: nothing until @end_ns */
static int await_mail(struct ff_tunnel *t, void *buf, uint64_t end_ns, struct ff_error *err)
{
    int rc = 0;

    pthread_mutex_lock(&t->lock);
    while (!t->mail && !t->broke.code && !t->cancelled && !rc)
        rc = ff_cond_wait_until(&t->changed, &t->lock, end_ns);
    struct ff_mail *m = take_mail(t);
    if (m) {
        rc = m->len;
        memcpy(buf, m->data, (size_t)m->len);
        free(m);
    } else if (t->broke.code) {
        rc = ff_error_set(err, t->broke.code, "%s", t->broke.text);
    } else {
        rc = t->cancelled ? ff_error_set(err, ECANCELED, "canceled") : -EAGAIN;
    }
    pthread_mutex_unlock(&t->lock);
    return rc;
}

int ff_tunnel_mail(struct ff_tunnel *t, void *buf, int timeout_ms, struct ff_error *err)
{
    uint64_t end_ns = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    int rc = await_mail(t, buf, end_ns, err);

    /* the reader may not have had the CPU for what has come in time; a peer that sends without end
     * is not listened to for longer */
    for (unsigned i = 0; rc == -EAGAIN && i < MAIL_MAX && receive_locked(t, 0); i++)
        rc = await_mail(t, buf, 0, err);
    if (rc == -EAGAIN)
        rc = await_mail(t, buf, 0, err);
    return rc == -EAGAIN ? ff_error_set(err, ETIMEDOUT, "tunnel: receive: timed out") : rc;
}

int ff_tunnel_keep_on(struct ff_tunnel *t, struct ff_error *err)
{
    int rc = 0;

    if (!t)
        return 0;
    pthread_mutex_lock(&t->lock);
    if (t->failed)
        rc = ff_error_set(err, ENOTCONN, "%s", t->why.text);
    t->resumes = !rc;
    pthread_mutex_unlock(&t->lock);
    return rc;
}

int ff_tunnel_check(struct ff_tunnel *t, struct ff_error *err)
{
    int rc = 0;

    if (!t)
        return 0;
    pthread_mutex_lock(&t->lock);
    if (t->broke.code)
        rc = ff_error_set(err, t->broke.code, "%s", t->broke.text);
    pthread_mutex_unlock(&t->lock);
    return rc;
}

int ff_tunnel_hear(struct ff_tunnel *t, struct ff_error *err)
{
    int rc = 0;

    if (!ff_tunnel_reads(t))
        return ff_error_set(err, EINVAL, "tunnel: hear: there is no tunnel, or no link");
    pthread_mutex_lock(&t->lock);
    while (!t->interrupted && !t->broke.code && !t->failed)
        pthread_cond_wait(&t->changed, &t->lock);
    if (!t->interrupted)
        rc = t->cancelled    ? ff_error_set(err, ECANCELED, "canceled")
             : t->broke.code ? ff_error_set(err, t->broke.code, "%s", t->broke.text)
                             : ff_error_set(err, ECANCELED, "%s", t->why.text);
    t->interrupted = false;
    pthread_mutex_unlock(&t->lock);
    return rc;
}

bool ff_tunnel_interrupt(struct ff_tunnel *t)
{
    if (!t)
        return false;
    pthread_mutex_lock(&t->lock);
    bool up = t->link && !t->broke.code;
    t->interrupted |= up;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return up;
}
