/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * relay.c - an agent serves the image that it gets to another agent; see relay.h
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>

#include "cleanup.h"
#include "dest_private.h"
#include "failpoint.h"
#include "feed.h"
#include "feed_pushed.h"
#include "log.h"
#include "mr.h"
#include "relay.h"
#include "responder.h"
#include "thread.h"

#define TRY_MS 2000
#define AGAIN_MS 100
#define LOOK_MS 500

#ifdef __SANITIZE_THREAD__ /* claims are read as an adapter would: byte by byte, whenever it comes to it */
void AnnotateBenignRaceSized(const char *file, int line, const volatile void *p, long size,
                             const char *why);
#else
#define AnnotateBenignRaceSized(file, line, p, size, why)
#endif

struct ff_relay {
    struct ff_dest *d;
    struct ff_address to;
    struct ff_relay_owner owner;
    struct ff_regions regions; /* of the image, mapped for reading */
    struct ff_segments none;
    struct ff_responder responder;
    struct ff_copies copies; /* over a link that pins (feed_pushed.h) */
    struct ff_control ctl;
    pthread_t thread;
    bool thread_up, responder_up, is_older;
    _Atomic bool stop, ended;
    int stop_fd;
};

#define WRONG_STEP (1u << 20)
#define SOME_STEP (37u << 12)

/* For reading alone; injected: memory of its own, which is wrong almost everywhere, or here and there */
static void *map_to_serve(const struct ff_region *r)
{
    bool all = ff_failpoint("relay.image"), some = ff_failpoint("relay.image.some");

    if (!all && !some)
        return mmap(NULL, r->len_bytes, PROT_READ, MAP_SHARED, r->fd, (off_t)r->fd_offset);
    uint8_t *m = mmap(NULL, r->len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | (all ? MAP_ANONYMOUS : 0),
                      all ? -1 : r->fd, all ? 0 : (off_t)r->fd_offset);

    for (uint64_t at = 0; m != MAP_FAILED && at < r->len_bytes; at += all ? WRONG_STEP : SOME_STEP)
        m[at] ^= 1;
    return m;
}

/* Map every region once more */
static int map_regions(struct ff_relay *r, struct ff_error *err)
{
    const struct ff_regions *t = &r->d->regions;

    for (unsigned i = 0; i < t->n; i++) {
        struct ff_region region = t->r[i];
        if (region.fd < 0)
            return ff_error_set(err, EINVAL, "relay: region %s has no file of the agent's own",
                                region.name);
        void *m = map_to_serve(&region);
        if (m == MAP_FAILED)
            return ff_error_set(err, errno, "relay: map region %s: %s", region.name,
                                strerror(errno));
        madvise(m, region.len_bytes, MADV_DONTFORK);
        madvise(m, region.len_bytes, MADV_DONTDUMP);
        region.host = m;
        int rc = ff_regions_add(&r->regions, &region, err);
        if (rc) {
            munmap(m, region.len_bytes);
            return rc;
        }
    }
    return 0;
}

static int offer(struct ff_relay *r, struct ff_link *l, struct ff_error *err)
{
    FF_AUTO_FREE struct ff_offer *o = calloc(1, sizeof(*o));
    int rc = o ? 0 : ff_error_set(err, ENOMEM, "relay: out of memory");

    for (unsigned i = 0; i < r->regions.n && !rc; i++) {
        const struct ff_region *region = &r->regions.r[i];
        const struct ff_claims *c = &r->d->pager.region[i].claims;
        struct ff_backing file = ff_region_backing(&r->regions, i, 0);
        struct ff_mr mr, claims;
        AnnotateBenignRaceSized(__FILE__, __LINE__, c->state, (long)c->n_pages, "claims");
        rc = l->ops->reg(l, (void *)c->state, c->n_pages, FF_ACCESS_REMOTE_READ, &claims, err);
        if (!rc && !r->responder.copies)
            rc = l->ops->reg(l, region->host, region->len_bytes, FF_ACCESS_REMOTE_READ, &mr, err);
        if (rc)
            break;
        if (r->responder.copies)
            mr.rkey = i + 1;
        else if (file.fd >= 0 && l->ops->backed)
            l->ops->backed(l, &mr, &file);
        o->r[i] = (struct ff_fed_region){.addr = r->responder.copies ? 0 : (uintptr_t)region->host,
                                         .rkey = mr.rkey,
                                         .claims_addr = (uintptr_t)c->state,
                                         .claims_rkey = claims.rkey};
    }
    if (rc)
        return rc;
    o->version = FF_WIRE_VERSION;
    o->oldest = FF_WIRE_VERSION;
    o->digest = ff_hello_digest(&r->d->peer);
    o->is_older = r->is_older;
    o->n = r->regions.n;
    return ff_control_send(&r->ctl, ff_wire_put_feed(r->ctl.buf, o), err);
}

/* A hole that somebody touches is not, for a moment */
static bool is_announced(const struct ff_relay *r, const struct ff_claims *c, uint64_t page)
{
    uint64_t end = ff_now_ns() + (uint64_t)r->d->addr.timeout_ms * 1000000u;
    enum ff_claim claim;

    while ((claim = ff_claim_get(c, page)) == FF_CLAIM_INFLIGHT && ff_now_ns() < end &&
           !atomic_load(&r->stop))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return claim == FF_CLAIM_PRESENT || claim == FF_CLAIM_HOLE;
}

/* Of announced pages alone. A hole is not looked at: that would fill it */
static int copy_pages(void *opaque, const struct ff_grant *g, uint8_t *to, uint32_t *why_not,
                      struct ff_error *err)
{
    struct ff_relay *r = opaque;
    const struct ff_region *region = &r->regions.r[g->region];
    const struct ff_claims *c = &r->d->pager.region[g->region].claims;
    uint8_t zero[FF_GRANULES_MAX / 8] = {0}, poison[FF_GRANULES_MAX / 8] = {0};
    uint32_t psize = region->psize, n = g->len_bytes / psize;
    const uint8_t *from = (uint8_t *)region->host + g->offset;
    struct ff_backing file = ff_region_backing(&r->regions, g->region, g->offset);

    for (uint32_t i = 0; i < n; i++)
        if (n > FF_GRANULES_MAX || !is_announced(r, c, g->offset / psize + i))
            return ff_error_set(err, EPROTO, "relay: asked for what it has not announced");
    if (ff_zero_scan_file(&file, from, g->len_bytes, psize, zero, poison) == n)
        *why_not = FF_IMM_ZEROS;
    if (ff_feed_is_bad(poison, sizeof(poison)))
        *why_not = FF_IMM_UNREADABLE;
    for (uint32_t i = 0; i < n && !*why_not; i++)
        if (zero[i / 8] & (1u << (i % 8)))
            memset(to + (size_t)i * psize, 0, psize);
        else
            memcpy(to + (size_t)i * psize, from + (size_t)i * psize, psize);
    return 0;
}

/* A link that pins: buffers to be written from */
static int make_copies(struct ff_relay *r, struct ff_link *l, struct ff_error *err)
{
    struct ff_copies *c = &r->copies;
    struct ff_mr mr;

    if (!ff_pushed_is(l))
        return 0;
    if (!c->memory) {
        for (unsigned i = 0; i < r->d->pager.n_regions; i++)
            c->max_bytes = FF_MAX(c->max_bytes, r->d->pager.region[i].chunk_bytes);
        void *m = mmap(NULL, FF_PUSH_IN_FLIGHT * (size_t)c->max_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (m == MAP_FAILED)
            return ff_error_set(err, ENOMEM, "relay: out of memory");
        madvise(m, FF_PUSH_IN_FLIGHT * (size_t)c->max_bytes, MADV_DONTFORK); /* not a child's */
        c->memory = m;
        c->copy = copy_pages;
        c->opaque = r;
    }
    int rc = l->ops->reg(l, c->memory, FF_PUSH_IN_FLIGHT * (size_t)c->max_bytes, 0, &mr, err);
    c->lkey = rc ? 0 : mr.lkey;
    r->responder.copies = c;
    return rc;
}

static int relay_take_grants(struct ff_relay *r, struct ff_error *err)
{
    const struct ff_hello *table = &r->d->peer;
    struct ff_grant g[FF_WIRE_GRANTS_MAX];
    unsigned n;

    if (!r->responder.copies)
        return ff_error_set(err, EPROTO, "relay: GRANT over a link by which it is read");
    int rc = ff_wire_get_grants(r->ctl.buf, (size_t)r->ctl.len, g, r->copies.max_bytes, table->regions,
                                table->n_regions, &n, err);
    return rc ? rc : ff_responder_grant(&r->responder, g, n, err);
}

/* Over a link with queues, until the other side has all: 0; else why it ends */
static int serve(struct ff_relay *r, struct ff_link *l, struct ff_error *err)
{
    int rc = ff_responder_start(&r->responder, l, err);

    while (!rc && !atomic_load(&r->stop)) {
        rc = ff_control_expect(&r->ctl, FF_MSG_DONE, FF_MSG_BIT(FF_MSG_GRANT), LOOK_MS, err);
        if (rc == FF_MSG_GRANT)
            rc = relay_take_grants(r, err);
        if (rc == -ETIMEDOUT)
            rc = 0;
    }
    ff_responder_park(&r->responder);
    return rc == FF_MSG_DONE ? 0 : rc;
}

/* Over verbs a connection takes its time, and nobody says at once that nobody is there */
static int try_ms(const struct ff_relay *r)
{
    int most = r->d->addr.timeout_ms;

    return r->d->verbs ? most : FF_MIN(most, TRY_MS);
}

/* One link: 0: nobody is to be fed any more; 1: it served; -errno */
static int feed_once(struct ff_relay *r, struct ff_error *err)
{
    const struct ff_address *to = &r->to, *own = &r->d->addr;
    struct ff_link_params p = {.host = to->host,
                               .port = to->port,
                               .timeout_ms = own->timeout_ms,
                               .connect_ms = try_ms(r),
                               .device = *to->device ? to->device : own->device,
                               .peers = &to->peers,
                               .key = r->is_older ? to->key : own->key,
                               .tos = own->tos};
    struct ff_welcome w;
    struct ff_link *l;

    int rc = ff_link_connect(&p, r->d->verbs ? FF_LINK_VERBS : FF_LINK_TCP, r->stop_fd, &l, err);
    if (rc)
        return rc;
    r->ctl.link = l;
    r->ctl.refusal = FF_REFUSAL_FINAL;
    rc = make_copies(r, l, err);
    if (!rc)
        rc = offer(r, l, err);
    if (!rc)
        rc = ff_control_expect(&r->ctl, FF_MSG_WELCOME, 0, own->timeout_ms, err);
    if (rc >= 0)
        rc = ff_wire_get_welcome(r->ctl.buf, (size_t)r->ctl.len, &w, err);
    if (!rc)
        rc = l->ops->open_queues(l, w.session, own->timeout_ms, err);
    bool served = !rc;
    if (served) {
        ff_log(FF_LOG_INFO, "relay: feeds %s:%s: %s", to->host, to->port, l->about);
        rc = serve(r, l, err);
    }
    r->ctl.link = NULL;
    l->ops->free(l);
    return rc && rc != -EREMOTEIO && served ? 1 : rc;
}

static void *relay_main(void *arg)
{
    struct ff_relay *r = arg;
    struct pollfd stop = {.fd = r->stop_fd, .events = POLLIN};
    uint64_t end = ff_now_ns() + try_ms(r) * 1000000ull;
    uint64_t away_end = end + (uint64_t)r->d->addr.reconnect_ms * 1000000u;
    struct ff_error why;
    int rc = -ETIMEDOUT;

    while (!atomic_load(&r->stop) && ff_now_ns() < end && (rc = feed_once(r, &why))) {
        if (rc > 0) {
            ff_log(FF_LOG_WARN, "relay: the link to %s:%s: %s", r->to.host, r->to.port, why.text);
            end = ff_now_ns() + try_ms(r) * 1000000ull;
        }
        bool not_yet = rc == -EREMOTEIO && r->ctl.refusal == FF_REFUSAL_NOT_YET;
        if (not_yet)
            end = FF_MIN(ff_now_ns() + try_ms(r) * 1000000ull, away_end);
        else if (rc == -EREMOTEIO || rc == -ENETUNREACH || rc == -EHOSTUNREACH)
            break;
        poll(&stop, 1, AGAIN_MS);
    }
    if (rc && !atomic_load(&r->stop)) {
        ff_log(FF_LOG_WARN, "relay: %s:%s is not fed from here: %s", r->to.host, r->to.port,
               why.text);
        r->owner.failed(r->owner.opaque, &r->to, why.text);
    }
    if (r->is_older)
        ff_address_drop(&r->to);
    atomic_store(&r->ended, true);
    return NULL;
}

int ff_relay_start(struct ff_dest *d, const struct ff_address *to, bool is_older,
                   const struct ff_relay_owner *owner, struct ff_relay **out, struct ff_error *err)
{
    bool keyed = is_older ? to->key : d->addr.key;

    if (!keyed || !d->pager_used)
        return ff_error_set(err, EINVAL, "relay: %s",
                            !keyed ? "without the fork's key nobody is fed"
                                         : "no image comes over a link here");
    struct ff_relay *r = calloc(1, sizeof(*r));
    if (!r)
        return ff_error_set(err, ENOMEM, "relay: out of memory");
    r->d = d;
    r->to = ff_address_copy(to);
    r->is_older = is_older;
    r->owner = *owner;
    r->ctl.cancelled = &r->stop;
    r->stop_fd = eventfd(0, EFD_CLOEXEC);
    int rc = r->stop_fd < 0 ? ff_error_set(err, errno, "relay: eventfd: %s", strerror(errno)) : 0;
    if (!rc)
        rc = map_regions(r, err);
    if (!rc) {
        rc = ff_responder_init(&r->responder, &r->regions, &r->none, err);
        r->responder_up = true;
    }
    if (!rc) {
        rc = ff_thread_start(&r->thread, relay_main, r, "farfork-relay", err);
        r->thread_up = !rc;
    }
    if (rc)
        ff_relay_stop(r);
    else
        *out = r;
    return rc;
}

bool ff_relay_has_ended(const struct ff_relay *r)
{
    return atomic_load(&r->ended);
}

void ff_relay_stop(struct ff_relay *r)
{
    if (!r)
        return;
    atomic_store(&r->stop, true);
    if (r->thread_up) {
        eventfd_write(r->stop_fd, 1);
        pthread_join(r->thread, NULL);
    }
    if (r->responder_up) {
        ff_responder_stop(&r->responder);
        ff_responder_free(&r->responder);
    }
    for (unsigned i = 0; i < r->regions.n; i++)
        munmap(r->regions.r[i].host, r->regions.r[i].len_bytes);
    if (r->copies.memory)
        munmap(r->copies.memory, FF_PUSH_IN_FLIGHT * (size_t)r->copies.max_bytes);
    ff_regions_free(&r->regions);
    ff_close_fd(&r->stop_fd);
    ff_address_drop(&r->to);
    free(r);
}
