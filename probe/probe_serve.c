/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * probe_serve.c - let peers probe this host; see farfork.h and probe.h
 */
/**
 * DOC: Theory of Operation
 *
 * Threads      the caller's waits for the end. One a kind of link accepts and serves its peers
 *              one after the other; while it does, one a queue answers READs. lock guards the
 *              links against the caller, who shuts them down, and orders the lines of fn.
 * Limits       HELLO_MS: a stranger who says nothing keeps others waiting so long.
 *              SESSION_MS: from KEY to BYE.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>

#include "address.h"
#include "cleanup.h"
#include "error.h"
#include "farfork-probe.h"
#include "probe.h"

#define HELLO_MS 3000
#define SESSION_MS 120000

struct server {
    void (*fn)(void *opaque, const char *line);
    void *opaque;
    pthread_mutex_t lock;
    _Atomic bool stop;
    bool once;
    int timeout_ms, done_fd;
};

/* One kind of link */
struct service {
    struct server *sv;
    enum ff_link_kind kind;
    const char *name;
    struct ff_port *port;
    struct ff_link *link; /* of the peer that is being served */
    pthread_t thread;
    bool up;
};

struct queue_server {
    struct ff_link *link;
    enum ff_queue queue;
    _Atomic bool *stop;
    pthread_t thread;
};

__attribute__((format(printf, 2, 3))) static void say(struct server *sv, const char *fmt, ...)
{
    char line[640];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&sv->lock);
    sv->fn(sv->opaque, line);
    pthread_mutex_unlock(&sv->lock);
}

/* --- one peer --- */

static void *queue_main(void *opaque)
{
    struct queue_server *q = opaque;
    struct ff_wc wc[8];
    int rc = 0;

    while (!atomic_load(q->stop) && rc >= 0)
        rc = q->link->ops->poll(q->link, q->queue, wc, FF_ARRAY_LEN(wc), 500, NULL);
    return NULL;
}

/* The peer has a session: show it memory until it says BYE */
static int serve_reads(struct ff_link *link, const struct ff_mr *mr, struct ff_error *err)
{
    struct ff_probe_msg m = {.type = FF_PROBE_KEY,
                             .addr = (uintptr_t)mr->addr,
                             .rkey = mr->rkey,
                             .len_bytes = (uint32_t)mr->len_bytes};
    struct queue_server q[FF_QUEUES];
    _Atomic bool stop = false;
    unsigned n = 0;
    int rc = 0;

    for (; n < FF_QUEUES && !rc; n += !rc) {
        q[n] = (struct queue_server){.link = link, .queue = (enum ff_queue)n, .stop = &stop};
        rc = pthread_create(&q[n].thread, NULL, queue_main, &q[n]);
    }
    if (rc)
        rc = ff_error_set(err, rc, "probe: start a thread: %s", strerror(rc));
    if (!rc)
        rc = ff_probe_send(link, &m, err);
    if (!rc)
        rc = ff_probe_recv(link, FF_PROBE_BYE, SESSION_MS, &m, err);
    atomic_store(&stop, true);
    link->ops->shutdown(link);
    while (n--)
        pthread_join(q[n].thread, NULL);
    return rc;
}

static int serve_peer(struct service *s, struct ff_link *link, struct ff_mr *mr,
                      struct ff_error *err)
{
    struct ff_probe_msg m, refusal = {.type = FF_PROBE_REFUSE};

    int rc = ff_probe_recv(link, FF_PROBE_HELLO, HELLO_MS, &m, err);
    if (rc == -EPROTONOSUPPORT && err) { /* say so to a farfork; a stranger learns nothing */
        snprintf(refusal.text, sizeof(refusal.text), "%.*s", FF_PROBE_TEXT_MAX, err->text);
        ff_probe_send(link, &refusal, NULL);
    }
    if (rc)
        return rc;
    m.type = FF_PROBE_WELCOME;
    if (getrandom(m.session, sizeof(m.session), 0) != sizeof(m.session))
        return ff_error_set(err, errno, "probe: getrandom: %s", strerror(errno));
    rc = ff_probe_send(link, &m, err);
    if (!rc)
        rc = link->ops->open_queues(link, m.session, s->sv->timeout_ms, err);
    if (rc)
        return rc;
    rc = ff_probe_memory(link, FF_PROBE_LEN_MAX, FF_ACCESS_REMOTE_READ, mr, err);
    if (rc) {
        snprintf(refusal.text, sizeof(refusal.text), "%.*s", FF_PROBE_TEXT_MAX, err->text);
        ff_probe_send(link, &refusal, NULL);
        return rc;
    }
    for (uint64_t at = 0; at < mr->len_bytes; at += 8)
        *(uint64_t *)((char *)mr->addr + at) = ff_probe_word(m.session, at);
    return serve_reads(link, mr, err);
}

/* From now on the caller can shut @link down (NULL: there is none) */
static void service_set_link(struct service *s, struct ff_link *link)
{
    pthread_mutex_lock(&s->sv->lock);
    s->link = link;
    if (link && atomic_load(&s->sv->stop))
        link->ops->shutdown(link);
    pthread_mutex_unlock(&s->sv->lock);
}

static void *service_main(void *opaque)
{
    struct service *s = opaque;
    struct ff_error why;
    struct ff_link *link;
    int rc;

    while (!(rc = ff_port_accept(s->port, NULL, 0, -1, &link, &why))) {
        service_set_link(s, link);
        struct ff_mr mr = {0};
        rc = serve_peer(s, link, &mr, &why);
        service_set_link(s, NULL);
        link->ops->free(link);
        ff_probe_memory_free(&mr);
        if (atomic_load(&s->sv->stop))
            break;
        if (rc)
            say(s->sv, "%s: serve a peer: %s", s->name, why.text);
        else
            say(s->sv, "%s: served a peer", s->name);
        if (!rc && s->sv->once && s->kind == FF_LINK_TCP)
            eventfd_write(s->sv->done_fd, 1);
    }
    if (rc && rc != -ECANCELED && !atomic_load(&s->sv->stop))
        say(s->sv, "%s: no more peers: %s", s->name, why.text);
    return NULL;
}

/* --- begin and end --- */

static int start_service(struct service *s, const struct ff_link_params *p, struct ff_error *err)
{
    int rc = ff_port_listen(p, s->kind, &s->port, err);
    if (rc)
        return rc;
    say(s->sv, "%s: listening on %s, port %u", s->name, *p->host ? p->host : "every address",
        ff_port_number(s->port));
    rc = pthread_create(&s->thread, NULL, service_main, s);
    s->up = !rc;
    return rc ? ff_error_set(err, rc, "probe: start a thread: %s", strerror(rc)) : 0;
}

static void stop(struct service *s)
{
    if (s->up) {
        ff_port_cancel(s->port);
        pthread_mutex_lock(&s->sv->lock);
        if (s->link)
            s->link->ops->shutdown(s->link);
        pthread_mutex_unlock(&s->sv->lock);
        pthread_join(s->thread, NULL);
    }
    ff_port_free(s->port);
}

int ff_probe_serve(const struct ff_address *a, const struct ff_probe_options *o,
                   void (*fn)(void *opaque, const char *line), void *opaque, struct ff_error *err)
{
    struct server sv = {.fn = fn, .opaque = opaque, .once = o->once, .timeout_ms = a->timeout_ms};
    struct service s[] = {{.sv = &sv, .kind = FF_LINK_TCP, .name = "tcp"},
                          {.sv = &sv, .kind = FF_LINK_VERBS, .name = "verbs"}};
    char number[16];
    struct ff_link_params p = {.host = a->host, .port = a->port, .timeout_ms = a->timeout_ms,
                               .device = o->device, .qps = o->qps, .key = a->key,
                               .insecure = a->insecure};
    unsigned up = 0;
    sigset_t all, old;

    sv.done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (sv.done_fd < 0)
        return ff_error_set(err, errno, "probe: eventfd: %s", strerror(errno));
    pthread_mutex_init(&sv.lock, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the threads inherit it */
    for (size_t i = 0; i < FF_ARRAY_LEN(s); i++) {
        struct ff_error why;
        int rc = start_service(&s[i], &p, &why);
        if (rc) {
            say(&sv, "not served: %s", why.text);
            if (err && !i)
                *err = why;
            continue;
        }
        up++;
        snprintf(number, sizeof(number), "%u", ff_port_number(s[i].port));
        p.port = number; /* the same for both, also where port 0 lets the kernel choose */
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    struct pollfd wait[] = {{.fd = o->cancel_fd, .events = POLLIN},
                            {.fd = sv.done_fd, .events = POLLIN}};
    while (up && poll(wait, FF_ARRAY_LEN(wait), -1) < 0 && errno == EINTR)
        ;
    atomic_store(&sv.stop, true);
    for (size_t i = 0; i < FF_ARRAY_LEN(s); i++)
        stop(&s[i]);
    ff_close_fd(&sv.done_fd);
    pthread_mutex_destroy(&sv.lock);
    return up ? 0 : -EADDRNOTAVAIL;
}
