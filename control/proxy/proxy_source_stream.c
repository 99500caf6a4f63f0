/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_source_stream.c - the source's proxy: its QEMU's stream into the tunnel without main memory,
 * and what comes back
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      QEMU --> forward thread: stream.h --> tunnel; the package's body --> @package
 *              QEMU <-- back thread <-- tunnel
 * Failure      until GO was sent the forward thread goes on reading and throws away what it reads:
 *              QEMU's way back may lead through the end of its stream (proxy_qemu_take_back()).
 *              After GO QEMU is never to think that its migration failed: proxy_never_here().
 */
#include "proxy_small.h"

#include <errno.h>
#include <sys/socket.h>

#include "failpoint.h"
#include "proxy_keeper.h"
#include "thread.h"

#define SPEED_TRIES 3
#define HOLD_LIMIT_MS 15000
#define NEAR_PAGES (PROXY_READ_LEN / 9) /* of zeros, in one read */

static int on_source_blocks(struct proxy *p, const struct stream_event *e, struct ff_error *err)
{
    unsigned n;
    const struct stream_block *b = stream_blocks(p->stream, &n);

    for (unsigned i = 0; i < n; i++) {
        int m = proxy_find_main(p, b[i].name);

        if (m < 0 && b[i].len_bytes >= OUTSIDE_MAIN_BYTES && !p->o->from_stream)
            return ff_error_set(err, EPROTO, "QEMU: block %s: in its stream, not in its list",
                                b[i].name);
        if (m >= 0 && b[i].len_bytes != p->blocks[m].len_bytes)
            return ff_error_set(err, EPROTO,
                                "QEMU: block %s: %llu bytes in its stream, %llu in "
                                "its list",
                                b[i].name, (unsigned long long)b[i].len_bytes,
                                (unsigned long long)p->blocks[m].len_bytes);
    }
    return proxy_small_see(p, e, err);
}

static int on_source_package(struct proxy *p, const struct stream_event *e, struct ff_error *err)
{
    size_t left = (size_t)(e->value - (e->len - PROXY_PACKAGE_HEAD));

    p->header_due = true;
    if (e->value > PROXY_STATE_MAX - PROXY_STATE_HEAD || ff_failpoint("proxy.package")) {
        struct ff_error why = {0}; /* and go on to the stream's end: QEMU's way back leads there */

        ff_error_set(&why, E2BIG, "QEMU: device state of %llu bytes (permitted %llu)",
                     (unsigned long long)e->value, (unsigned long long)PROXY_STATE_MAX);
        proxy_fail(p, &why);
        return STREAM_FORWARD;
    }
    pthread_mutex_lock(&p->lock);
    p->pause_ns = ff_now_ns();
    p->package = malloc(PROXY_STATE_HEAD + left);
    p->package_len = p->package_got = PROXY_STATE_HEAD;
    if (p->package) {
        p->package[0] = p->was_running;
        p->package_len += left;
    }
    pthread_mutex_unlock(&p->lock);
    if (!p->package)
        return ff_error_set(err, ENOMEM, "proxy: device state of %llu bytes: no memory",
                            (unsigned long long)e->value);
    p->package_left = left;
    p->counts.package_bytes = e->value;
    return STREAM_FORWARD;
}

/* precopy=1. At the end of the pass QEMU stands still until it was told to go on by post-copy */
static int on_pass_page(struct proxy *p, struct ff_error *err)
{
    if (atomic_fetch_add(&p->counts.pages_precopied, 1) + 1 < p->pass_pages || p->pass_over)
        return STREAM_FORWARD;
    uint64_t end = ff_now_ns() + HOLD_LIMIT_MS * 1000000ull;
    int rc = 0;
    p->pass_over = true;
    pthread_mutex_lock(&p->lock);
    p->passed = true;
    ff_source_interrupt(p->source);
    while (p->passed && !p->failed && !p->stops && !rc)
        rc = ff_cond_wait_until(&p->changed, &p->lock, end);
    pthread_mutex_unlock(&p->lock);
    return rc ? ff_error_set(err, ETIMEDOUT, "QEMU: it was not in post-copy %d ms after its pass",
                             HOLD_LIMIT_MS)
              : STREAM_FORWARD;
}

static int on_source_unit(void *opaque, const struct stream_event *e, struct ff_error *err)
{
    struct proxy *p = opaque;

    if (p->counts.package_bytes && ff_failpoint("proxy.unit"))
        return ff_error_set(err, EPROTO, "QEMU: its stream: injected");
    switch (e->kind) {
    case STREAM_BLOCKS:
        return on_source_blocks(p, e, err);
    case STREAM_DISCARD:
        return proxy_small_see(p, e, err);
    case STREAM_PAGE:
        if (proxy_main_block(p, e->block) < 0) {
            p->counts.pages_passed++;
            return proxy_small_see(p, e, err);
        }
        if (p->pass_pages && !p->counts.package_bytes)
            return on_pass_page(p, err);
        p->counts.pages_dropped++;
        return STREAM_DROP;
    case STREAM_PACKAGE:
        return on_source_package(p, e, err);
    case STREAM_DEVICES:
        return ff_error_set(err, ENOTSUP, "QEMU: its migration became a pre-copy%s",
                            p->pass_pages ? ", at the end of the pass of precopy=1: try again, "
                                            "with precopy=0"
                                          : " (want post-copy: postcopy-ram on, "
                                            "migrate-start-postcopy)");
    case STREAM_EOF:
        pthread_mutex_lock(&p->lock);
        p->stream_over = true;
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        return STREAM_FORWARD;
    default:
        return STREAM_FORWARD;
    }
}

static void gather_package(struct proxy *p, const void *data, size_t len)
{
    memcpy(p->package + p->package_got, data, len);
    p->package_got += len;
    p->package_left -= len;
    if (p->package_left)
        return;
    pthread_mutex_lock(&p->lock);
    p->package_whole = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    ff_source_interrupt(p->source);
}

static int on_source_bytes(void *opaque, const void *data, size_t len, struct ff_error *err)
{
    struct proxy *p = opaque;

    if (!p->header_due && p->package_left) {
        gather_package(p, data, len);
        return 0;
    }
    p->header_due = false;
    pthread_mutex_lock(&p->lock);
    bool drains = p->drains;
    pthread_mutex_unlock(&p->lock);
    if (drains)
        return 0;
    p->counts.tunnel_bytes += len;
    struct ff_error why = {0};
    if (ff_tunnel_send(p->tunnel, data, len, &why)) {
        proxy_fail(p, &why); /* and go on to the stream's end */
        (void)err;
    }
    return 0;
}

static int accept_qemu(struct proxy *p, struct ff_error *err)
{
    int fd;

    do
        fd = accept4(p->port, NULL, NULL, SOCK_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return ff_error_set(err, errno, "QEMU: wait at %s: %s", p->o->path, strerror(errno));
    pthread_mutex_lock(&p->lock);
    p->sock = fd;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

/* 0: the stream is to be read. One that is held is not, whatever has failed: QEMU would come to the end
 * of its pre-copy, unless it is in post-copy after all */
static int wait_released(struct proxy *p, struct ff_error *err)
{
    pthread_mutex_lock(&p->lock);
    while (p->held && !p->stops)
        pthread_cond_wait(&p->changed, &p->lock);
    int rc = p->held || p->failed ? ff_error_set(err, ECANCELED, "%s", p->why.text) : 0;
    pthread_mutex_unlock(&p->lock);
    return rc;
}

/* In a thread of its own: QEMU may answer only once its stream has been read on */
static void *speed_up(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};
    int rc = -EBUSY;

    for (int i = 0; rc && i < SPEED_TRIES; i++)
        rc = proxy_qemu_full_speed(p, &why);
    if (rc)
        proxy_say_why(p, "slow", &why); /* its stream is; memory is there */
    return NULL;
}

/* Pages of main memory are thrown away here, and take the CPU of those who bring them. So QEMU sends
 * them slowly until all is there; and until then it is not at its stream's end, where an end of its
 * return path without SHUT lets it run the guest again (10.0 and later) */
static void let_rest_come(struct proxy *p)
{
    struct ff_stats st;

    if (p->hurries || p->o->domain || !atomic_load(&p->has_let_go))
        return;
    ff_source_stats(p->source, &st);
    if (!atomic_load(&p->is_there) && (!st.bytes_total || st.bytes_present < st.bytes_total))
        return;
    p->hurries = true;
    p->has_speed = !ff_thread_start(&p->speed_thread, speed_up, p, "proxy-speed", NULL);
}

/* The destination needs no more of the stream. QEMU's own end comes later: it sends all of main memory */
static int end_tunnel(struct proxy *p, struct ff_error *err)
{
    pthread_mutex_lock(&p->lock);
    bool drained = p->drains;
    p->drains = true;
    pthread_mutex_unlock(&p->lock);
    return drained ? 0 : ff_tunnel_end(p->tunnel, err);
}

/* Bytes of the next read: near the end of a pass few, since QEMU goes on when they are gone */
static size_t read_len(struct proxy *p)
{
    bool near = p->pass_pages && !p->pass_over &&
                atomic_load(&p->counts.pages_precopied) + NEAR_PAGES > p->pass_pages;

    return near ? STREAM_PAGE_LEN : PROXY_READ_LEN;
}

/* 0: QEMU has ended its stream */
static int forward_all(struct proxy *p, uint8_t *buf, struct ff_error *err)
{
    for (;;) {
        ssize_t n = recv(p->sock, buf, read_len(p), 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != ECONNRESET)
            return ff_error_set(err, errno, "QEMU: read its stream: %s", strerror(errno));
        if (n <= 0)
            return stream_end(p->stream, err);
        p->counts.stream_bytes += (uint64_t)n;
        atomic_store(&p->read_ns, ff_now_ns());
        n = stream_feed(p->stream, buf, (size_t)n, err);
        if (n < 0)
            return (int)n;
        let_rest_come(p);
        if (atomic_load(&p->is_there) && end_tunnel(p, err))
            return -err->code;
    }
}

void *proxy_forward_source(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};
    FF_AUTO_FREE uint8_t *buf = malloc(PROXY_READ_LEN);
    int rc = buf ? accept_qemu(p, &why) : ff_error_set(&why, ENOMEM, "proxy: no memory");

    if (!rc)
        proxy_keeper_give(p->keeper, p->sock);
    if (!rc)
        rc = wait_released(p, &why);
    if (!rc)
        rc = forward_all(p, buf, &why);
    if (!rc)
        rc = ff_tunnel_end(p->tunnel, &why);
    if (rc)
        proxy_fail(p, &why);
    pthread_mutex_lock(&p->lock);
    bool held = p->held;
    pthread_mutex_unlock(&p->lock);
    if (rc && !held && p->sock >= 0) {
        if (!ff_tunnel_end(p->tunnel, NULL)) /* after GO the destination goes on with what it has */
            proxy_say_why(p, "stream-ended", &why);
        return proxy_drain(p);
    }
    pthread_mutex_lock(&p->lock);
    p->forward_ended = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Nobody answers any more. Before the guest runs there QEMU is not to learn that: it has no way back
 * from there */
static void end_back(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    while ((p->stage < PROXY_RUNS && !p->failed) ||
           (atomic_load(&p->is_there) && !p->stream_over && !p->forward_ended))
        pthread_cond_wait(&p->changed, &p->lock);
    bool ends = !p->failed || atomic_load(&p->has_let_go);
    pthread_mutex_unlock(&p->lock);
    if (!ends)
        return;
    proxy_never_here(p);
    shutdown(p->sock, SHUT_WR);
}

/* A QEMU that hears of an error runs its guest again, also after GO. SHUT before the end of its stream
 * makes a 7.2 break that: end_back() says it later */
static int on_source_message(void *opaque, const struct stream_return *m, struct ff_error *err)
{
    struct proxy *p = opaque;

    if (m->type != STREAM_RETURN_SHUT)
        return STREAM_FORWARD;
    if (m->value)
        return ff_error_set(err, EREMOTEIO, "the QEMU there ended its migration with an error: "
                            "its own messages say why");
    atomic_store(&p->has_all, true);
    pthread_mutex_lock(&p->lock);
    bool early = !p->stream_over && !p->forward_ended;
    pthread_mutex_unlock(&p->lock);
    atomic_store(early ? &p->is_there : &p->has_shut, true);
    return early ? STREAM_DROP : STREAM_FORWARD;
}

static int on_source_back(void *opaque, const void *data, size_t len, struct ff_error *err)
{
    (void)err;
    proxy_write(((struct proxy *)opaque)->sock, data, len, NULL);
    return 0; /* if it has ended, the other direction says why */
}

/* Once QEMU is there: from the tunnel to it */
void *proxy_back_source(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};
    FF_AUTO_FREE uint8_t *buf = malloc(PROXY_READ_LEN);
    bool broken = false;

    pthread_mutex_lock(&p->lock);
    while (p->sock < 0 && !p->forward_ended && !p->failed)
        pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
    p->reader.sink = (struct stream_return_sink){
        .event = on_source_message, .bytes = on_source_back, .opaque = p};
    while (buf && p->sock >= 0) {
        ssize_t n = ff_tunnel_recv(p->tunnel, buf, PROXY_READ_LEN, &why);

        if (!n)
            end_back(p);
        if (n > 0 && !broken && stream_return_feed(&p->reader, buf, (size_t)n, &why)) {
            broken = true; /* but read on: DONE waits for the tunnel's end */
            if (proxy_fail_before(p, PROXY_GONE, &why) >= PROXY_GONE)
                proxy_say_why(p, "unconfirmed", &why);
        }
        if (n < 0)
            proxy_fail(p, &why);
        if (n <= 0)
            break;
    }
    return NULL;
}

int proxy_source_stream(struct proxy *p, struct ff_error *err)
{
    struct stream_sink sink = {.event = on_source_unit, .bytes = on_source_bytes, .opaque = p};

    p->stream = stream_new(&sink);
    return p->stream ? 0 : ff_error_set(err, ENOMEM, "proxy: no memory");
}
