/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_dest_stream.c - the destination's proxy: the two threads between the tunnel and its QEMU
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      tunnel --> forward thread: stream.h --> QEMU, the package's body from @package
 *              tunnel <-- back thread: stream_return.h <-- QEMU; requests of main memory are the
 *                         pager's
 *              finish thread: once every page is here, what the stream lacks to its end --> QEMU.
 *                         The source's QEMU still sends main memory, which is thrown away
 * Failure      after GO the stream may end early: the QEMU at the source has ended, or was not
 *              understood. Its proxy still has main memory, and the finish thread does the rest. When
 *              pages of small blocks have not come they are lost: QEMU keeps waiting for them, and the
 *              guest has the rest.
 */
#include "proxy_small.h"

#include <errno.h>
#include <sys/socket.h>

#include "thread.h"

/* --- the stream --- */

/* Until every page of main memory is here that does not come by the stream, and the guest is this one's:
 * QEMU ends its migration then */
static int wait_main(struct proxy *p, struct ff_error *err)
{
    pthread_mutex_lock(&p->lock);
    while (p->stage < PROXY_GONE && !p->failed)
        pthread_cond_wait(&p->changed, &p->lock);
    int rc = p->failed ? ff_error_set(err, ECANCELED, "%s", p->why.text) : 0;
    pthread_mutex_unlock(&p->lock);
    return rc || p->o->from_stream ? rc : ff_dest_wait_complete(p->dest, -1, err);
}

/* Its QEMU writes the page, and has it from then on. Not so one of zeros, which may be left untouched */
static int on_main_page(struct proxy *p, const struct stream_event *e, struct ff_error *err)
{
    unsigned main_block = (unsigned)proxy_main_block(p, e->block);

    if (p->counts.package_bytes)
        return ff_error_set(err, EPROTO, "proxy: the source sent a page of main memory");
    atomic_fetch_add(&p->counts.pages_precopied, 1);
    int rc = ff_dest_received(p->dest, main_block, e->addr, e->data ? STREAM_PAGE_LEN : 0, false, err);
    return rc ? rc : STREAM_FORWARD;
}

/* A page of zeros is 9 bytes: not each by a system call of its own */
static int flush_to_qemu(struct proxy *p, struct ff_error *err)
{
    size_t len = p->n_gathered;

    p->n_gathered = 0;
    return proxy_write(p->sock, p->gathered, len, err);
}

static int on_main_discard(struct proxy *p, const struct stream_event *e, struct ff_error *err)
{
    unsigned main_block = (unsigned)proxy_main_block(p, e->block);
    int rc = 0;

    for (unsigned i = 0; !rc && p->counts.pages_precopied && i < e->n_ranges; i++)
        rc = ff_dest_received(p->dest, main_block, e->ranges[i].start, e->ranges[i].len_bytes, true,
                              err);
    return rc ? rc : STREAM_FORWARD;
}

static int on_dest_unit(void *opaque, const struct stream_event *e, struct ff_error *err)
{
    struct proxy *p = opaque;

    switch (e->kind) {
    case STREAM_PAGE:
        if (proxy_main_block(p, e->block) >= 0)
            return on_main_page(p, e, err);
        p->counts.pages_passed++;
        return proxy_small_see(p, e, err);
    case STREAM_DISCARD:
        if (proxy_main_block(p, e->block) >= 0)
            return on_main_discard(p, e, err);
        return proxy_small_see(p, e, err);
    case STREAM_BLOCKS:
        return proxy_small_see(p, e, err);
    case STREAM_PACKAGE:
        if (p->header_due) { /* asked again: STATE has come */
            p->header_due = false;
            return STREAM_FORWARD;
        }
        p->header_due = true;
        p->package_head = e->len;
        p->package_left = e->value - (e->len - PROXY_PACKAGE_HEAD);
        p->counts.package_bytes = e->value;
        return STREAM_HOLD;
    case STREAM_SECTION:
        if (e->section == STREAM_SECTION_END) {
            int rc = flush_to_qemu(p, err); /* it may wait for that */

            if (!rc)
                rc = wait_main(p, err);
            return rc ? rc : STREAM_FORWARD;
        }
        return STREAM_FORWARD;
    default:
        return STREAM_FORWARD;
    }
}

static int on_dest_bytes(void *opaque, const void *data, size_t len, struct ff_error *err)
{
    struct proxy *p = opaque;
    int rc = p->n_gathered + len > sizeof(p->gathered) ? flush_to_qemu(p, err) : 0;

    if (rc || len > sizeof(p->gathered))
        return rc ? rc : proxy_write(p->sock, data, len, err);
    memcpy(p->gathered + p->n_gathered, data, len);
    p->n_gathered += len;
    return 0;
}

/* The package's unit is held: its body is STATE. Returns bytes of @data that belonged to the unit */
static ssize_t forward_package(struct proxy *p, const uint8_t *data, size_t len,
                               struct ff_error *err)
{
    ssize_t n = 0;

    pthread_mutex_lock(&p->lock);
    while (!p->package_whole && !p->failed)
        pthread_cond_wait(&p->changed, &p->lock);
    int rc = p->failed ? ff_error_set(err, ECANCELED, "%s", p->why.text) : 0;
    pthread_mutex_unlock(&p->lock);
    if (!rc && (p->package_len != PROXY_STATE_HEAD + p->package_left || p->package[0] > 1))
        rc = ff_error_set(err, EPROTO, "proxy: device state of %zu bytes (want %llu)",
                          p->package_len, (unsigned long long)p->package_left);
    if (rc)
        return rc;
    p->package_left = 0;
    p->was_running = p->package[0];
    n = stream_feed(p->stream, NULL, 0, err); /* where the unit lies in the parser */
    if (n >= 0 && p->header_due)              /* or else in @data */
        n = stream_feed(p->stream, data, FF_MIN(len, p->package_head), err);
    if (n < 0)
        return n;
    ssize_t body = stream_feed(p->stream, p->package + PROXY_STATE_HEAD,
                               p->package_len - PROXY_STATE_HEAD, err);
    if (body < 0)
        return body;
    int passed = flush_to_qemu(p, err);
    if (passed)
        return passed;
    pthread_mutex_lock(&p->lock);
    p->package_passed = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return n;
}

static int feed_some(struct proxy *p, const uint8_t *data, size_t len, struct ff_error *err)
{
    while (len && !p->finished) {
        ssize_t n = stream_feed(p->stream, data, len, err);

        if (n < 0)
            return (int)n;
        data += n;
        len -= (size_t)n;
        if (!stream_holds(p->stream))
            continue;
        int rc = flush_to_qemu(p, err);
        if (rc)
            return rc;
        n = forward_package(p, data, len, err);
        if (n < 0)
            return (int)n;
        data += n;
        len -= (size_t)n;
    }
    return flush_to_qemu(p, err);
}

static int forward_some(struct proxy *p, const uint8_t *data, size_t len, struct ff_error *err)
{
    pthread_mutex_lock(&p->feed_lock);
    int rc = feed_some(p, data, len, err);
    p->finished |= rc; /* no END after what QEMU did not get */
    pthread_cond_broadcast(&p->fed);
    pthread_mutex_unlock(&p->feed_lock);
    return rc;
}

/* Under @feed_lock, with all of main memory here. 1: QEMU lacks something else, as *err says */
static int finish_stream(struct proxy *p, struct ff_error *err)
{
    uint8_t rest[STREAM_FINISH_MAX];
    size_t len = stream_finish(p->stream, rest);

    if (p->finished || !stream_end(p->stream, NULL))
        return 0;
    if (proxy_small_check(p, err))
        return 1;
    if (!len)
        return ff_error_set(err, EPROTO, "its stream is not between two units"), 1;
    int rc = proxy_write(p->sock, rest, len, err);
    p->finished = !rc;
    return rc;
}

/* QEMU waits for what its stream lacks, and is to know that it will not come. Main memory does not
 * need it */
static void lose_stream(struct proxy *p, const struct ff_error *why)
{
    pthread_mutex_lock(&p->lock);
    if (!p->stream_lost)
        p->lost_why = *why;
    p->stream_lost = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    shutdown(p->sock, SHUT_RDWR);
}

/* QEMU takes no more, or is not understood. Between READY and GO the source is to hear that nothing
 * runs here: without a link GO does not come, and old_wait_go() answers it */
static void end_early(struct proxy *p, const struct ff_error *why)
{
    enum proxy_stage stage = proxy_fail_before(p, PROXY_LET_GO, why);

    if (stage < PROXY_LET_GO)
        return;
    if (stage >= PROXY_GONE && proxy_qemu_has_ended(p)) {
        proxy_fail(p, why);
        return;
    }
    pthread_mutex_lock(&p->lock);
    p->qemu_gone |= p->stage == PROXY_LET_GO;
    pthread_mutex_unlock(&p->lock);
    lose_stream(p, why); /* if GO is on its way, the guest will be here */
    if (stage == PROXY_LET_GO)
        ff_dest_pause(p->dest);
}

/* The source sends no more. 0: nor is there anything that QEMU lacks, or it has been told */
static int end_stream(struct proxy *p, struct ff_error *err)
{
    pthread_mutex_lock(&p->lock);
    while (stream_end(p->stream, NULL) && p->stage < PROXY_GONE && !p->failed)
        pthread_cond_wait(&p->changed, &p->lock); /* a source that fails before GO says so otherwise */
    int rc = p->failed ? ff_error_set(err, ECANCELED, "%s", p->why.text) : 0;
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_lock(&p->feed_lock);
    bool early = !rc && !p->finished && stream_end(p->stream, NULL);
    pthread_mutex_unlock(&p->feed_lock);
    if (early) {
        proxy_event(p, "stream-ended",
                    json_pack("{s:s}", "reason", "the stream of the source's QEMU has ended early"));
        rc = wait_main(p, err);
        pthread_mutex_lock(&p->feed_lock);
        if (!rc)
            rc = finish_stream(p, err);
        if (rc > 0) {
            lose_stream(p, err);
            rc = 0;
        }
        pthread_mutex_unlock(&p->feed_lock);
    }
    if (!rc)
        shutdown(p->sock, SHUT_WR);
    return rc;
}

static void *finish_early(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};
    int rc = 1;

    if (wait_main(p, NULL))
        return NULL;
    pthread_mutex_lock(&p->feed_lock);
    while (!p->fed_last && (rc = finish_stream(p, &why)) > 0)
        pthread_cond_wait(&p->fed, &p->feed_lock);
    pthread_mutex_unlock(&p->feed_lock);
    if (rc < 0)
        end_early(p, &why);
    return NULL;
}

int proxy_start_finish(struct proxy *p, struct ff_error *err)
{
    int rc = ff_thread_start(&p->finish_thread, finish_early, p, "proxy-finish", err);

    p->has_finish = !rc;
    return rc;
}

void *proxy_forward_dest(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};
    FF_AUTO_FREE uint8_t *buf = malloc(PROXY_READ_LEN);
    int rc = buf ? 0 : ff_error_set(&why, ENOMEM, "proxy: no memory");

    while (!rc) {
        ssize_t n = ff_tunnel_recv(p->tunnel, buf, PROXY_READ_LEN, &why);

        if (!n)
            rc = end_stream(p, &why);
        if (!n)
            break;
        if (n > 0) {
            p->counts.tunnel_bytes += (uint64_t)n;
            rc = forward_some(p, buf, (size_t)n, &why);
        } else {
            rc = (int)n;
        }
    }
    pthread_mutex_lock(&p->feed_lock);
    p->fed_last = true;
    pthread_cond_broadcast(&p->fed);
    pthread_mutex_unlock(&p->feed_lock);
    if (rc)
        end_early(p, &why);
    while (rc && buf && ff_tunnel_recv(p->tunnel, buf, PROXY_READ_LEN, NULL) > 0)
        continue; /* memory is there only when the tunnel has been read, too */
    return NULL;
}

/* --- the return path --- */

/* QEMU may ask before its userfaultfd is ours */
static int wait_adopted(struct proxy *p, struct ff_error *err)
{
    pthread_mutex_lock(&p->lock);
    while (!p->adopted && !p->failed)
        pthread_cond_wait(&p->changed, &p->lock);
    int rc = p->adopted ? 0 : ff_error_set(err, ECANCELED, "%s", p->why.text);
    pthread_mutex_unlock(&p->lock);
    return rc;
}

static bool is_package_passed(struct proxy *p)
{
    pthread_mutex_lock(&p->lock);
    bool is = p->package_passed;
    pthread_mutex_unlock(&p->lock);
    return is;
}

static int on_dest_message(void *opaque, const struct stream_return *m, struct ff_error *err)
{
    struct proxy *p = opaque;
    int rc = 0, main_block;

    if (!p->asked_small && is_package_passed(p)) {
        p->asked_small = true;
        rc = proxy_small_ask(p, err);
        if (rc)
            return rc;
    }
    if (m->type == STREAM_RETURN_SHUT && !m->value)
        atomic_store(&p->has_all, true);
    if (m->type != STREAM_RETURN_REQ_PAGES && m->type != STREAM_RETURN_REQ_PAGES_ID)
        return STREAM_FORWARD;
    p->counts.requests++;
    main_block = proxy_find_main(p, m->name);
    if (main_block < 0)
        return STREAM_FORWARD;
    p->counts.requests_taken++;
    rc = wait_adopted(p, err);
    if (!rc)
        rc = ff_dest_request(p->dest, (unsigned)main_block, m->addr, err);
    return rc ? rc : STREAM_DROP;
}

static int on_dest_back(void *opaque, const void *data, size_t len, struct ff_error *err)
{
    return ff_tunnel_send(((struct proxy *)opaque)->tunnel, data, len, err);
}

void *proxy_back_dest(void *opaque)
{
    struct proxy *p = opaque;
    struct ff_error why = {0};
    FF_AUTO_FREE uint8_t *buf = malloc(PROXY_READ_LEN);
    int rc = buf ? 0 : ff_error_set(&why, ENOMEM, "proxy: no memory");

    p->reader.sink =
        (struct stream_return_sink){.event = on_dest_message, .bytes = on_dest_back, .opaque = p};
    while (!rc) {
        ssize_t n = recv(p->sock, buf, PROXY_READ_LEN, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        rc = stream_return_feed(&p->reader, buf, (size_t)n, &why);
    }
    pthread_mutex_lock(&p->lock);
    enum proxy_stage stage = p->stage;
    pthread_mutex_unlock(&p->lock);
    if (!rc && stage < PROXY_GONE)
        rc = ff_error_set(&why, EPIPE,
                          "QEMU: it has ended its migration before it had the guest: "
                          "see its own messages");
    if (rc)
        end_early(p, &why);
    ff_tunnel_end(p->tunnel, NULL); /* DONE waits for it */
    return NULL;
}

int proxy_dest_stream(struct proxy *p, struct ff_error *err)
{
    struct stream_sink sink = {.event = on_dest_unit, .bytes = on_dest_bytes, .opaque = p};

    p->stream = stream_new(&sink);
    return p->stream ? 0 : ff_error_set(err, ENOMEM, "proxy: no memory");
}
