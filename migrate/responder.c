/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * responder.c - source: the threads that answer a destination's requests, and that push
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include "cleanup.h"
#include "error.h"
#include "log.h"
#include "mr.h"
#include "responder.h"
#include "thread.h"

#define IDLE_MS 500
#define CPU_TURNS 32u /* asking for the CPU time is a system call */
#define END_PUSH_MS 1000u /* less than a destination waits for WITHDRAWN */
#define NOTE_BYTES 8u /* bytes written to say that the others need not be, or cannot be, pushed */

int ff_responder_init(struct ff_responder *s, const struct ff_regions *regions,
                  const struct ff_segments *segments, struct ff_error *err)
{
    s->regions = regions;
    s->segments = segments;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->ring_lock, NULL);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return s->wake_fd < 0 ? ff_error_set(err, errno, "source: eventfd: %s", strerror(errno)) : 0;
}

/* --- push --- */

/* Why a WRITE would not do: FF_IMM_ZEROS, FF_IMM_UNREADABLE; 0: it does */
static uint32_t look_at_grant(const struct ff_regions *t, const struct ff_grant *g)
{
    const struct ff_region *r = &t->r[g->region];
    uint32_t found = FF_IMM_ZEROS, len = g->len_bytes;
    uint64_t offset = g->offset;

    for (uint32_t at = 0, part; at < len; at += part) {
        uint8_t zero[FF_GRANULES_MAX / 8] = {0}, poison[FF_GRANULES_MAX / 8] = {0};
        part = FF_MIN(len - at, FF_GRANULES_MAX * r->psize);
        struct ff_backing file = ff_region_backing(t, g->region, offset + at);
        uint32_t left_out = ff_zero_scan_file(&file, (uint8_t *)r->host + offset + at, part,
                                              r->psize, zero, poison);
        for (uint32_t i = 0; i < sizeof(poison); i++)
            if (poison[i])
                return FF_IMM_UNREADABLE;
        if (left_out != part / r->psize)
            found = 0;
    }
    return found;
}

/* Bring what @g asks of another process's memory to *@local, and look at it likewise */
static int fetch_grant(struct ff_responder *s, const struct ff_grant *g, uint8_t **local,
                       uint32_t *why_not, struct ff_error *err)
{
    struct ff_backing file = ff_region_backing(s->regions, g->region, g->offset);
    uint8_t **room = &s->room[s->n_fetched++ % FF_PUSH_IN_FLIGHT];

    if (!*room)
        *room = calloc(1, s->link->max_len_bytes);
    if (!*room)
        return ff_error_set(err, ENOMEM, "source: push: out of memory");
    const uint8_t *p = *room;
    int rc = ff_fetch_all(&file, *local, g->len_bytes, *room, err);
    *local = *room;
    *why_not = rc ? FF_IMM_UNREADABLE
               : !*p && !memcmp(p, p + 1, g->len_bytes - 1) ? FF_IMM_ZEROS : 0;
    return rc == -EHWPOISON ? 0 : rc;
}

/* Any NOTE_BYTES bytes that are registered and can be read; NULL: there are none */
static uint8_t *find_note(const struct ff_responder *s, uint32_t *lkey)
{
    const struct ff_segments *t = s->segments;

    for (unsigned i = 0; i < t->n; i++) {
        const struct ff_mr *mr = &t->segment[i].mr;
        *lkey = mr->lkey;
        for (uint64_t at = 0; at < mr->len_bytes && !s->regions->of[t->segment[i].region];
             at += 4096)
            if (ff_readable((uint8_t *)mr->addr + at, NOTE_BYTES) == NOTE_BYTES)
                return (uint8_t *)mr->addr + at;
    }
    return NULL;
}

/* The registration that holds @offset of @region */
static const struct ff_mr *mr_of(const struct ff_responder *s, uint32_t region, uint64_t offset)
{
    const struct ff_segments *t = s->segments;

    const uint8_t *addr = (uint8_t *)s->regions->r[region].host + offset;

    for (unsigned i = 0; i < t->n; i++)
        if (t->segment[i].region == region && addr >= t->segment[i].addr &&
            (uint64_t)(addr - t->segment[i].addr) < t->segment[i].len_bytes)
            return &t->segment[i].mr;
    return NULL;
}

static int write_granted(struct ff_responder *s, const struct ff_grant *g, uint8_t *local, uint32_t lkey,
                         uint32_t why_not, struct ff_error *err)
{
    struct ff_wr wr = {.id = g->id,
                       .op = FF_OP_WRITE,
                       .local = local,
                       .lkey = lkey,
                       .remote = g->addr,
                       .rkey = g->rkey,
                       .len_bytes = why_not ? NOTE_BYTES : g->len_bytes,
                       .imm = g->id | why_not};
    return s->link->ops->post(s->link, FF_QUEUE_PREFILL, &wr, err);
}

static int push_copy(struct ff_responder *s, const struct ff_grant *g, struct ff_error *err)
{
    const struct ff_copies *c = s->copies;
    uint8_t *to = c->memory + (size_t)(s->n_fetched++ % FF_PUSH_IN_FLIGHT) * c->max_bytes;
    uint32_t why_not = 0;

    int rc = c->copy(c->opaque, g, to, &why_not, err);
    return rc ? rc : write_granted(s, g, to, c->lkey, why_not, err);
}

static int push_grant(struct ff_responder *s, const struct ff_grant *g, struct ff_error *err)
{
    if (s->copies)
        return push_copy(s, g, err);
    const struct ff_region *r = &s->regions->r[g->region];
    const struct ff_mr *mr = mr_of(s, g->region, g->offset);
    uint8_t *local = (uint8_t *)r->host + g->offset;

    if (!mr || !mr->len_bytes)
        return ff_error_set(
            err, EPROTO,
            "source: push: offset 0x%llx of region %u has no key: the destination must not ask "
            "for it",
            (unsigned long long)g->offset, g->region);
    bool elsewhere = s->regions->of[g->region];
    uint32_t lkey = mr->lkey, why_not = elsewhere ? 0 : look_at_grant(s->regions, g);
    int rc = elsewhere ? fetch_grant(s, g, &local, &why_not, err) : 0;
    if (rc)
        return rc;
    if (why_not == FF_IMM_UNREADABLE && !elsewhere && !(local = find_note(s, &lkey)))
        return ff_error_set(err, EHWPOISON, "source: push: no page of the image can be read");
    return write_granted(s, g, local, lkey, why_not, err);
}

static bool take_grant(struct ff_responder *s, struct ff_grant *g)
{
    pthread_mutex_lock(&s->ring_lock);
    bool any = s->n && atomic_load(&s->in_flight) < FF_PUSH_IN_FLIGHT;
    if (any) {
        *g = s->ring[s->first];
        s->first = (s->first + 1) % FF_WIRE_GRANTS_MAX;
        s->n--;
        atomic_fetch_add(&s->in_flight, 1);
        atomic_store(&s->pushes, true);
    }
    pthread_mutex_unlock(&s->ring_lock);
    return any;
}

/* 1: pushed the next grant, 0: there is none. A relay may wait for a page of it: without the lock */
static int push_next(struct ff_responder *s, struct ff_error *err)
{
    struct ff_grant g;

    if (!take_grant(s, &g))
        return 0;
    int rc = push_grant(s, &g, err);
    if (rc)
        atomic_fetch_sub(&s->in_flight, 1);
    atomic_store(&s->pushes, false);
    return rc ? rc : 1;
}

void ff_responder_end_push(struct ff_responder *s)
{
    uint64_t end = ff_now_ns() + END_PUSH_MS * 1000000ull;
    const struct timespec nap = {.tv_nsec = 1000000};

    pthread_mutex_lock(&s->ring_lock);
    s->push_ended = true;
    s->n = 0;
    pthread_mutex_unlock(&s->ring_lock);
    while (atomic_load(&s->pushes) || (atomic_load(&s->in_flight) && ff_now_ns() < end))
        nanosleep(&nap, NULL);
}

int ff_responder_grant(struct ff_responder *s, const struct ff_grant *g, unsigned n,
                       struct ff_error *err)
{
    pthread_mutex_lock(&s->ring_lock);
    bool fits = n <= FF_WIRE_GRANTS_MAX - s->n && !s->push_ended;
    for (unsigned i = 0; fits && i < n; i++)
        s->ring[(s->first + s->n++) % FF_WIRE_GRANTS_MAX] = g[i];
    pthread_mutex_unlock(&s->ring_lock);
    if (!fits)
        return ff_error_set(err, EPROTO, "source: more than %d grants at once", FF_WIRE_GRANTS_MAX);
    eventfd_write(s->wake_fd, 1);
    return 0;
}

/* --- the threads --- */

/* Of this process. Where one serves many, what others wait for comes before bulk: bench/serving.c */
static _Atomic unsigned n_serving;

/* Until the PREFILL queue has something to do, or there are grants */
static void wait_work(struct ff_responder *s)
{
    short events = 0;
    int fd = s->link->ops->fd(s->link, FF_QUEUE_PREFILL, &events);
    struct pollfd p[] = {{.fd = fd, .events = events},
                         {.fd = s->wake_fd, .events = POLLIN}};
    eventfd_t ignored;

    if (poll(p, FF_ARRAY_LEN(p), IDLE_MS) > 0 && p[1].revents)
        eventfd_read(s->wake_fd, &ignored);
}

static int take_completion(struct ff_server *sv, const struct ff_wc *wc, struct ff_error *err)
{
    struct ff_responder *s = sv->responder;
    bool pushed = wc->op == FF_WC_WRITE && wc->id < FF_TAGGER_ID;

    if (pushed)
        atomic_fetch_sub(&s->in_flight, 1);
    return pushed || !s->tagger.link ? 0 : ff_tagger_take(&s->tagger, sv->queue, wc, err);
}

static void *serve_main(void *opaque)
{
    struct ff_server *sv = opaque;
    struct ff_responder *s = sv->responder;
    /* faults are waited for where they are answered; who pushes is woken by grants too */
    bool pushes = sv->queue == FF_QUEUE_PREFILL;
    int rc = 0, wait_ms = pushes ? 0 : IDLE_MS;
    bool is_later = !pushes;
    unsigned turns = 0;
    struct ff_error why;
    struct ff_wc wc[8];

    if (sv->queue == FF_QUEUE_FAULT)
        ff_thread_soon();
    atomic_fetch_add(&n_serving, pushes);
    while (!atomic_load(&s->stop) && rc >= 0) {
        if (!is_later && atomic_load(&n_serving) > 1) {
            ff_thread_later();
            is_later = true;
        }
        int pushed = pushes ? push_next(s, &why) : 0;
        rc = pushed;
        if (rc >= 0)
            rc = s->link->ops->poll(s->link, sv->queue, wc, FF_ARRAY_LEN(wc), wait_ms, &why);
        for (int i = 0, n = rc; i < n && rc >= 0; i++)
            rc = take_completion(sv, &wc[i], &why) ? -1 : rc;
        if (!rc || !(++turns % CPU_TURNS))
            atomic_store(&sv->cpu_ns, sv->before_ns + ff_thread_cpu_ns());
        if (!rc && !pushed && pushes)
            wait_work(s);
    }
    atomic_fetch_sub(&n_serving, pushes);
    atomic_store(&sv->cpu_ns, sv->before_ns + ff_thread_cpu_ns());
    if (rc < 0 && !atomic_load(&s->stop)) {
        ff_log(FF_LOG_DEBUG, "source: serving ends: %s", why.text);
        s->link->ops->shutdown(s->link); /* the control channel learns of it */
    }
    return NULL;
}

int ff_responder_start(struct ff_responder *s, struct ff_link *link, struct ff_error *err)
{
    static const char *const names[FF_QUEUES] = {"farfork-serve-f", "farfork-serve-p"};
    int rc = 0;

    pthread_mutex_lock(&s->lock);
    s->link = link;
    if (atomic_load(&s->stop)) /* nor may an adapter serve */
        rc = ff_error_set(err, ECANCELED, "source: stopped");
    for (int q = 0; q < FF_QUEUES && !rc; q++) {
        struct ff_server *sv = &s->server[q];
        sv->responder = s;
        sv->queue = (enum ff_queue)q;
        sv->before_ns = atomic_load(&sv->cpu_ns);
        rc = ff_thread_start(&sv->thread, serve_main, sv, names[q], err);
        sv->up = !rc;
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}

/* Under lock */
static void end_threads(struct ff_responder *s)
{
    atomic_store(&s->stop, true);
    if (s->link)
        s->link->ops->shutdown(s->link); /* what was sent still arrives */
    eventfd_write(s->wake_fd, 1);
    for (int q = 0; q < FF_QUEUES; q++) {
        if (s->server[q].up)
            pthread_join(s->server[q].thread, NULL);
        s->server[q].up = false;
    }
}

void ff_responder_stop(struct ff_responder *s)
{
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    end_threads(s);
    pthread_mutex_unlock(&s->lock);
}

void ff_responder_end_threads(struct ff_responder *s)
{
    pthread_mutex_lock(&s->lock);
    end_threads(s);
    atomic_store(&s->stop, s->ended);
    pthread_mutex_unlock(&s->lock);
}

void ff_responder_park(struct ff_responder *s)
{
    pthread_mutex_lock(&s->lock);
    end_threads(s);
    s->link = NULL;
    s->n = 0;
    s->push_ended = false;
    atomic_store(&s->in_flight, 0);
    atomic_store(&s->stop, s->ended);
    pthread_mutex_unlock(&s->lock);
}

void ff_responder_free(struct ff_responder *s)
{
    ff_tagger_detach(&s->tagger);
    for (unsigned i = 0; i < FF_PUSH_IN_FLIGHT; i++)
        free(s->room[i]);
    ff_close_fd(&s->wake_fd);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->ring_lock);
}

uint64_t ff_responder_cpu_ns(const struct ff_responder *s)
{
    uint64_t ns = 0;

    for (int q = 0; q < FF_QUEUES; q++)
        ns += atomic_load(&s->server[q].cpu_ns);
    return ns;
}
