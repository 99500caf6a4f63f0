/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source.c - publish an image and let a destination fetch it; see farfork.h
 */
/**
 * DOC: Theory of Operation
 *
 * States       NEW -> CONNECTED -> PUBLISHED -> SENT -> GONE -> DONE
 *              Until SENT a failure leaves the caller free to resume its guest; from GONE
 *              (set before GO is sent) on, nobody can know whether it arrived.
 *
 * Threads      the caller's, through the stages. One serving thread a queue, from
 *              ff_source_publish() on: it answers reads of guest memory and takes no lock
 *              of anybody else. lock guards stats and link against cancel.
 * Ownership    regions are the caller's. Threads end, keys go, then the link is freed.
 * Limits       WATCHING_MS: emptying a large destination; the guest still runs.
 *              READY_MS: a destination that loads for longer is given up while the guest
 *              can still go on here. GO_WITHIN_MS: counted from the last byte of state,
 *              which is before READY; less than the destination waits for GO after READY
 *              (dest.c), so that a source that was stopped for a while never lets go to
 *              somebody who has left.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "address.h"
#include "cleanup.h"
#include "control.h"
#include "error.h"
#include "fault.h"
#include "log.h"
#include "regions.h"
#include "source.h"

#define WATCHING_MS 60000
#define READY_MS 30000
#define GO_WITHIN_MS 45000
#define RUNNING_MS 60000

enum stage { NEW, CONNECTED, PUBLISHED, SENT, GONE, DONE };

struct server {
    struct ff_source *s;
    enum ff_queue queue;
    pthread_t thread;
    bool up;
};

struct ff_source {
    struct ff_address addr;
    struct ff_regions regions;
    struct ff_control ctl;
    enum stage stage;
    uint64_t sent_ns; /* when the last of the state went out */
    bool watched;
    int cancel_fd;
    _Atomic bool cancelled, stop;
    pthread_mutex_t servers_lock; /* starting and stopping them */
    struct server server[FF_QUEUES];
    struct ff_mr mr[FF_WIRE_REGIONS_MAX];

    pthread_mutex_t lock;
    struct ff_link *link;
    struct ff_stats stats;
    bool given_link;
};

int ff_source_new(const struct ff_address *a, struct ff_source **out, struct ff_error *err)
{
    int rc = ff_faults_start(err);
    if (rc)
        return rc;
    struct ff_source *s = calloc(1, sizeof(*s));
    if (!s)
        return ff_error_set(err, ENOMEM, "source: out of memory");
    s->cancel_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->cancel_fd < 0) {
        free(s);
        return ff_error_set(err, errno, "source: eventfd: %s", strerror(errno));
    }
    s->addr = *a;
    s->ctl.cancelled = &s->cancelled;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->servers_lock, NULL);
    *out = s;
    return 0;
}

void ff_source_use_link(struct ff_source *s, struct ff_link *link)
{
    s->link = s->ctl.link = link;
    s->given_link = true;
}

int ff_source_add_region(struct ff_source *s, const struct ff_region *r, struct ff_error *err)
{
    return ff_regions_add(&s->regions, r, err);
}

static int open_link(struct ff_source *s, struct ff_error *err)
{
    struct ff_link_params p = {.host = s->addr.host,
                               .port = s->addr.port,
                               .timeout_ms = s->addr.timeout_ms,
                               .device = s->addr.device,
                               .qps = s->addr.qps};
    struct ff_link *link;

    if (s->link)
        return 0;
    int rc = ff_link_connect(&p, s->addr.link, s->cancel_fd, &link, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&s->lock);
    s->link = s->ctl.link = link;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

int ff_source_connect(struct ff_source *s, const char *config, struct ff_error *err)
{
    struct ff_hello hello;
    struct ff_welcome w;

    int rc = ff_regions_hello(&s->regions, config, &hello, err);
    if (!rc)
        rc = open_link(s, err);
    if (!rc)
        rc = ff_control_send(&s->ctl, ff_wire_put_hello(s->ctl.buf, &hello, err), err);
    ff_hello_free(&hello);
    if (rc)
        return rc;
    rc = ff_control_expect(&s->ctl, FF_MSG_WELCOME, 0, s->addr.timeout_ms, err);
    if (rc < 0)
        return ff_error_context(err, "hello");
    rc = ff_wire_get_welcome(s->ctl.buf, (size_t)s->ctl.len, &w, err);
    if (!rc)
        rc = s->link->ops->open_queues(s->link, w.session, s->addr.timeout_ms, err);
    if (!rc) {
        ff_log(FF_LOG_INFO, "source: link: %s", s->link->about);
        s->stage = CONNECTED;
    }
    return rc;
}

static void *serve_main(void *opaque)
{
    struct server *sv = opaque;
    struct ff_source *s = sv->s;
    struct ff_error why;
    struct ff_wc wc[8];
    int rc = 0;

    while (!atomic_load(&s->stop) && rc >= 0)
        rc = s->link->ops->poll(s->link, sv->queue, wc, FF_ARRAY_LEN(wc), 500, &why);
    if (rc < 0 && !atomic_load(&s->stop)) {
        ff_log(FF_LOG_DEBUG, "source: serving ends: %s", why.text);
        s->link->ops->shutdown(s->link); /* the control channel learns of it */
    }
    return NULL;
}

static int start_servers(struct ff_source *s, struct ff_error *err)
{
    static const char *const names[FF_QUEUES] = {"farfork-serve-f", "farfork-serve-p"};
    sigset_t all, old;
    int rc = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_mutex_lock(&s->servers_lock);
    for (int q = 0; q < FF_QUEUES && !rc && !atomic_load(&s->stop); q++) {
        struct server *sv = &s->server[q];
        sv->s = s;
        sv->queue = (enum ff_queue)q;
        rc = pthread_create(&sv->thread, NULL, serve_main, sv);
        sv->up = !rc;
        if (!rc)
            pthread_setname_np(sv->thread, names[q]);
    }
    pthread_mutex_unlock(&s->servers_lock);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? ff_error_set(err, rc, "source: start a serving thread: %s", strerror(rc)) : 0;
}

static void stop_servers(struct ff_source *s)
{
    pthread_mutex_lock(&s->servers_lock);
    atomic_store(&s->stop, true);
    if (s->link)
        s->link->ops->shutdown(s->link); /* what was sent still arrives */
    for (int q = 0; q < FF_QUEUES; q++) {
        if (s->server[q].up)
            pthread_join(s->server[q].thread, NULL);
        s->server[q].up = false;
    }
    pthread_mutex_unlock(&s->servers_lock);
}

/* From here on no key works: what the peer still asks for is refused */
static void withdraw(struct ff_source *s)
{
    for (unsigned i = 0; i < s->regions.n; i++)
        if (s->mr[i].rkey)
            s->link->ops->dereg(s->link, &s->mr[i]);
    memset(s->mr, 0, sizeof(s->mr));
}

int ff_source_publish(struct ff_source *s, struct ff_error *err)
{
    FF_AUTO_FREE struct ff_wire_key *keys = calloc(s->regions.n, sizeof(*keys));
    int rc = ff_fault("source.publish");

    if (rc)
        return ff_error_set(err, -rc, "source: publish: injected");
    if (!keys)
        return ff_error_set(err, ENOMEM, "source: publish: out of memory");
    for (unsigned i = 0; i < s->regions.n; i++) {
        struct ff_region *r = &s->regions.r[i];
        rc = s->link->ops->reg(s->link, r->host, r->len_bytes, FF_ACCESS_REMOTE_READ, &s->mr[i],
                               err);
        if (rc)
            return ff_error_context(err, "publish region %s", r->name);
        keys[i] = (struct ff_wire_key){.addr = (uintptr_t)r->host, .rkey = s->mr[i].rkey};
    }
    rc = start_servers(s, err);
    if (!rc)
        rc = ff_control_send(&s->ctl, ff_wire_put_publish(s->ctl.buf, keys, s->regions.n), err);
    if (!rc)
        s->stage = PUBLISHED;
    return rc;
}

static int send_first(struct ff_source *s, const struct ff_page_ref *first, size_t n,
                      struct ff_error *err)
{
    enum { PER_MESSAGE = 1024 };
    int rc = 0;

    for (size_t i = 0; i < n && !rc; i += PER_MESSAGE) {
        unsigned some = (unsigned)FF_MIN(n - i, (size_t)PER_MESSAGE);
        rc = ff_control_send(&s->ctl, ff_wire_put_first(s->ctl.buf, first + i, some), err);
    }
    return rc;
}

int ff_source_send_state(struct ff_source *s, const void *state, size_t len,
                         const struct ff_page_ref *first, size_t n, struct ff_error *err)
{
    struct ff_state_head head = {.total_bytes = len, .n_first = (uint32_t)n};

    int rc = ff_fault("source.state");
    if (rc)
        return ff_error_set(err, -rc, "source: send state: injected");
    if (!len || len > FF_WIRE_STATE_MAX)
        return ff_error_set(err, EFBIG, "source: send state: %zu bytes (permitted 1..%llu)", len,
                            FF_WIRE_STATE_MAX);
    if (n > FF_WIRE_FIRST_MAX)
        head.n_first = FF_WIRE_FIRST_MAX; /* the others are fetched when they are touched */
    rc = ff_control_send(&s->ctl, ff_wire_put_state(s->ctl.buf, &head), err);
    if (!rc)
        rc = send_first(s, first, head.n_first, err);
    for (size_t at = 0; at < len && !rc;) {
        uint32_t some = (uint32_t)FF_MIN(len - at, (size_t)FF_WIRE_DATA_MAX);
        rc = ff_control_send(&s->ctl, ff_wire_put_data(s->ctl.buf, (const uint8_t *)state + at, some),
                             err);
        at += some;
    }
    if (!rc) {
        s->stage = SENT;
        s->sent_ns = ff_now_ns();
    }
    return rc;
}

/* Take the statistics out of the message that was just received */
static int take_stats(struct ff_source *s, struct ff_error *err)
{
    struct ff_stats st;
    int rc = ff_wire_get_stats(s->ctl.buf, (size_t)s->ctl.len, &st, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&s->lock);
    s->stats = st;
    pthread_mutex_unlock(&s->lock);
    return 0;
}

int ff_source_wait_watched(struct ff_source *s, struct ff_error *err)
{
    if (s->watched)
        return 0;
    int rc = ff_control_expect(&s->ctl, FF_MSG_WATCHING, 0, WATCHING_MS, err);
    if (rc >= 0)
        rc = ff_wire_get_empty(s->ctl.buf, (size_t)s->ctl.len, err);
    s->watched = !rc;
    return rc;
}

int ff_source_wait_ready(struct ff_source *s, struct ff_error *err)
{
    int rc = ff_source_wait_watched(s, err);
    if (rc)
        return rc;
    rc = ff_control_expect(&s->ctl, FF_MSG_READY, 0, READY_MS, err);
    return rc < 0 ? rc : take_stats(s, err);
}

/* Nothing may have been heard since READY: a destination that left is not given the guest */
static int check_peer_waits(struct ff_source *s, struct ff_error *err)
{
    struct ff_error why = {.code = 0};
    int rc = ff_control_expect(&s->ctl, FF_MSG_WITHDRAWN, 0, 0, &why);
    if (rc == -ETIMEDOUT)
        return 0;
    return ff_error_set(err, ETIME, "go: the destination no longer waits: %s", why.text);
}

int ff_source_go(struct ff_source *s, struct ff_error *err)
{
    int rc = ff_fault("source.go");
    if (rc)
        return ff_error_set(err, -rc, "source: go: injected");
    uint64_t late_ms = (ff_now_ns() - s->sent_ns) / 1000000u;
    if (s->stage != SENT || late_ms > GO_WITHIN_MS)
        return ff_error_set(err, ETIME, "source: go: the state was sent %llu ms ago (limit %d)",
                            (unsigned long long)late_ms, GO_WITHIN_MS);
    rc = check_peer_waits(s, err);
    if (rc)
        return rc;
    s->stage = GONE;
    s->link->ops->set_timeout(s->link, s->addr.go_timeout_ms);
    rc = s->link->ops->send(s->link, s->ctl.buf,
                            (uint32_t)ff_wire_put_empty(s->ctl.buf, FF_MSG_GO), err);
    if (rc == -ECONNRESET || rc == -EPIPE) {
        s->stage = SENT; /* nothing left this side */
        return ff_error_set(err, ETIME, "go: not sent: the destination has gone (%s)",
                            strerror(-rc));
    }
    return rc;
}

/* Both sides must be of one mind: a source that stops waiting breaks the link */
static int give_up_serving(struct ff_source *s, int rc)
{
    if (rc)
        s->link->ops->shutdown(s->link);
    return rc;
}

int ff_source_wait_running(struct ff_source *s, struct ff_error *err)
{
    int rc = ff_fault("source.running");
    if (rc)
        return ff_error_set(err, -rc, "source: wait for RUNNING: injected");
    rc = ff_control_expect(&s->ctl, FF_MSG_RUNNING, 0,
                           FF_MAX(RUNNING_MS, s->addr.go_timeout_ms), err);
    if (rc >= 0)
        rc = take_stats(s, err);
    return give_up_serving(s, rc);
}

int ff_source_wait_done(struct ff_source *s, struct ff_error *err)
{
    int rc;

    do {
        rc = ff_control_expect(&s->ctl, FF_MSG_DONE, FF_MSG_PROGRESS, s->addr.go_timeout_ms,
                               err);
        if (rc < 0 || take_stats(s, err) < 0)
            return give_up_serving(s, rc < 0 ? rc : -EPROTO);
    } while (rc != FF_MSG_DONE);
    withdraw(s);
    s->stage = DONE;
    /* every page is there: whether this message arrives changes nothing */
    ff_control_send(&s->ctl, ff_wire_put_empty(s->ctl.buf, FF_MSG_WITHDRAWN), NULL);
    return 0;
}

void ff_source_cancel(struct ff_source *s)
{
    atomic_store(&s->cancelled, true);
    eventfd_write(s->cancel_fd, 1);
    pthread_mutex_lock(&s->lock);
    if (s->given_link)
        s->link->ops->shutdown(s->link);
    pthread_mutex_unlock(&s->lock);
}

void ff_source_stop(struct ff_source *s)
{
    ff_source_cancel(s);
    stop_servers(s);
}

void ff_source_stats(struct ff_source *s, struct ff_stats *out)
{
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->lock);
}

const char *ff_source_link(struct ff_source *s)
{
    pthread_mutex_lock(&s->lock);
    const char *name = s->link ? s->link->ops->name : "none";
    pthread_mutex_unlock(&s->lock);
    return name;
}

void ff_source_free(struct ff_source *s)
{
    if (!s)
        return;
    if (s->link) {
        if (s->stage >= CONNECTED && s->stage < GONE)
            ff_control_refuse(&s->ctl, atomic_load(&s->cancelled)
                                           ? "the migration was canceled at the source"
                                           : "the source gave up; its own messages say why");
        withdraw(s);
        stop_servers(s);
        s->link->ops->free(s->link);
    }
    ff_regions_free(&s->regions);
    ff_close_fd(&s->cancel_fd);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->servers_lock);
    free(s);
}
