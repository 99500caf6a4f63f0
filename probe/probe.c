/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * probe.c - find out whether and how fast this host reads from another; see probe.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      latency and bandwidth of READs, as a fault and as prefill would see them: by
 *              post() and poll() of the link, each on its queue.
 * Picture      latency:   post one, poll until it is there, compare; again
 *              bandwidth: as many as there are slots; what is complete is posted again
 * Invariants   no figure without its bytes compared: each READ of a latency, and what every
 *              slot holds at the end of a bandwidth.
 * Limits       LATENCY_NS, BANDWIDTH_NS: of a size, but at least one READ. Neither is a
 *              benchmark: enough to tell a working link from one that is not set up well.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "address.h"
#include "cleanup.h"
#include "error.h"
#include "farfork-probe.h"
#include "probe.h"

#define LATENCY_NS 300000000u
#define LATENCY_READS 2000u
#define BANDWIDTH_NS 500000000u
#define TURN_MS 100

static const uint32_t sizes[FF_PROBE_SIZES] = {4096, 64u << 10, 2u << 20};

struct probe {
    struct ff_link *link;
    int cancel_fd, timeout_ms;
    uint8_t session[FF_SESSION_LEN];
    struct ff_probe_msg key; /* the peer's memory */
    struct ff_mr mr;         /* ours */
    uint64_t next;           /* READ, which says what of the peer's memory */
    uint64_t offset[FF_QUEUE_DEPTH];
    uint64_t sample_ns[LATENCY_READS];
    void (*fn)(void *opaque, enum ff_probe_event event, const struct ff_probe_link *link);
    void *opaque;
};

static bool cancelled(const struct probe *p)
{
    struct pollfd fd = {.fd = p->cancel_fd, .events = POLLIN};

    return p->cancel_fd >= 0 && poll(&fd, 1, 0) > 0;
}

/* Start to read into @slot: 0, -EAGAIN (no more fit), or the link is broken */
static int post(struct probe *p, enum ff_queue q, unsigned slot, uint32_t size,
                struct ff_error *err)
{
    uint64_t places = p->key.len_bytes / size;
    p->offset[slot] = p->next++ * 7 % places * size;
    struct ff_wr wr = {
        .id = slot,
        .op = FF_OP_READ,
        .local = (char *)p->mr.addr + (uint64_t)slot * size,
        .lkey = p->mr.lkey,
        .remote = p->key.addr + p->offset[slot],
        .rkey = p->key.rkey,
        .len_bytes = size,
    };
    return p->link->ops->post(p->link, q, &wr, err);
}

/* At least one completion: how many, or the link is broken */
static int gather(struct probe *p, enum ff_queue q, struct ff_wc *wc, unsigned n,
                  struct ff_error *err)
{
    uint64_t end = 0;

    for (;;) {
        int rc = p->link->ops->poll(p->link, q, wc, n, TURN_MS, err);
        if (rc)
            return rc;
        if (cancelled(p))
            return ff_error_set(err, ECANCELED, "canceled");
        if (!end)
            end = ff_now_ns() + (uint64_t)p->timeout_ms * 1000000u;
        if (ff_now_ns() > end)
            return ff_error_set(err, ETIMEDOUT, "probe: read: no answer within %d ms",
                                p->timeout_ms);
    }
}

static int compare_pattern(const struct probe *p, unsigned slot, uint32_t size,
                           struct ff_error *err)
{
    const uint64_t *got = (const uint64_t *)((const char *)p->mr.addr + (uint64_t)slot * size);

    for (uint64_t at = 0; at < size; at += 8)
        if (got[at / 8] != ff_probe_word(p->session, p->offset[slot] + at))
            return ff_error_set(err, EBADMSG, "probe: read %u bytes at offset %llu: byte %llu and "
                                "after it are wrong", size,
                                (unsigned long long)p->offset[slot], (unsigned long long)at);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static int latency(struct probe *p, uint32_t size, struct ff_probe_size *out, struct ff_error *err)
{
    uint64_t end = 0;
    struct ff_wc wc;
    unsigned n = 0;

    /* the first one is not counted: it meets cold caches on both hosts */
    for (int i = -1; i < (int)LATENCY_READS; i++) {
        uint64_t start = ff_now_ns();
        if (i == 0)
            end = start + LATENCY_NS;
        if (i > 0 && start > end)
            break;
        if (cancelled(p))
            return ff_error_set(err, ECANCELED, "canceled");
        int rc = post(p, FF_QUEUE_FAULT, 0, size, err);
        if (!rc)
            rc = gather(p, FF_QUEUE_FAULT, &wc, 1, err);
        if (rc < 0)
            return rc;
        if (i >= 0)
            p->sample_ns[n++] = ff_now_ns() - start;
        rc = compare_pattern(p, 0, size, err);
        if (rc)
            return rc;
    }
    qsort(p->sample_ns, n, sizeof(p->sample_ns[0]), by_value);
    out->reads = n;
    out->p50_ns = p->sample_ns[n / 2];
    out->p99_ns = p->sample_ns[(uint64_t)n * 99 / 100];
    out->max_ns = p->sample_ns[n - 1];
    return 0;
}

static int bandwidth(struct probe *p, uint32_t size, struct ff_probe_size *out,
                     struct ff_error *err)
{
    unsigned slots = (unsigned)FF_MIN((uint64_t)FF_QUEUE_DEPTH, p->mr.len_bytes / size), busy = 0;
    uint64_t bytes = 0, start;
    struct ff_wc wc[16];
    bool again = true;
    int rc = 0;

    memset(p->mr.addr, 0, p->mr.len_bytes);
    start = ff_now_ns();
    while (busy < slots && !rc) {
        rc = post(p, FF_QUEUE_PREFILL, busy, size, err);
        busy += !rc;
    }
    if (rc && (rc != -EAGAIN || !busy))
        return rc;
    slots = busy;
    while (busy) {
        int n = gather(p, FF_QUEUE_PREFILL, wc, FF_ARRAY_LEN(wc), err);
        if (n < 0)
            return n;
        again = again && ff_now_ns() - start < BANDWIDTH_NS && !cancelled(p);
        for (int i = 0; i < n; i++) {
            bytes += wc[i].len_bytes;
            busy--;
            rc = again ? post(p, FF_QUEUE_PREFILL, (unsigned)wc[i].id, size, err) : 0;
            if (rc)
                return rc;
            busy += again;
        }
    }
    uint64_t took_ns = FF_MAX(ff_now_ns() - start, 1);
    for (unsigned i = 0; i < slots; i++) {
        rc = compare_pattern(p, i, size, err);
        if (rc)
            return rc;
    }
    out->depth = slots;
    out->bytes_per_s = (uint64_t)((double)bytes * 1e9 / (double)took_ns);
    return 0;
}

static int measure(struct probe *p, struct ff_probe_link *out, struct ff_error *err)
{
    for (unsigned i = 0; i < FF_PROBE_SIZES; i++) {
        struct ff_probe_size *s = &out->sizes[out->n_sizes];
        if (sizes[i] > p->link->max_len_bytes)
            break;
        s->size_bytes = sizes[i];
        int rc = latency(p, sizes[i], s, err);
        if (!rc)
            rc = bandwidth(p, sizes[i], s, err);
        if (rc)
            return rc;
        out->n_sizes++;
        p->fn(p->opaque, FF_PROBE_SIZE, out);
    }
    return 0;
}

/* The link is connected: the rest, until it can be freed */
static int use_link(struct probe *p, uint64_t start_ns, struct ff_probe_link *out,
                    struct ff_error *err)
{
    const struct ff_probe_msg hello = {.type = FF_PROBE_HELLO}, bye = {.type = FF_PROBE_BYE};
    struct ff_link *l = p->link;
    struct ff_probe_msg m;

    int rc = ff_probe_send(l, &hello, err);
    if (!rc)
        rc = ff_probe_recv(l, FF_PROBE_WELCOME, p->timeout_ms, &m, err);
    if (rc == -ECONNRESET)
        return ff_error_pass(
            err, rc, "the other side is no `farfork doctor --serve`, or serves another peer");
    if (rc)
        return rc;
    memcpy(p->session, m.session, sizeof(p->session));
    rc = l->ops->open_queues(l, m.session, p->timeout_ms, err);
    if (rc)
        return rc;
    out->connect_ns = ff_now_ns() - start_ns;
    snprintf(out->about, sizeof(out->about), "%s", l->about);
    p->fn(p->opaque, FF_PROBE_CONNECTED, out);
    rc = ff_probe_recv(l, FF_PROBE_KEY, p->timeout_ms, &p->key, err);
    if (!rc)
        rc = ff_probe_memory(l, FF_PROBE_LEN_MAX, 0, &p->mr, err);
    if (!rc)
        rc = measure(p, out, err);
    if (!rc)
        ff_probe_send(l, &bye, NULL); /* all is measured: whether it arrives changes nothing */
    return rc;
}

static int probe_link(struct probe *p, const struct ff_link_params *params,
                      enum ff_link_kind kind, struct ff_probe_link *out, struct ff_error *err)
{
    uint64_t start = ff_now_ns();
    int rc = ff_link_connect(params, kind, p->cancel_fd, &p->link, err);
    if (rc)
        return rc;
    rc = use_link(p, start, out, err);
    p->link->ops->free(p->link);
    ff_probe_memory_free(&p->mr); /* nothing writes there any more */
    return rc;
}

int ff_probe_peer(const struct ff_address *a, const struct ff_probe_options *o,
                  void (*fn)(void *opaque, enum ff_probe_event event,
                             const struct ff_probe_link *link),
                  void *opaque, struct ff_error *err)
{
    static const struct {
        enum ff_link_kind kind;
        const char *name;
    } kinds[] = {{FF_LINK_VERBS, "verbs"}, {FF_LINK_TCP, "tcp"}};
    struct ff_link_params params = {.host = a->host, .port = a->port, .timeout_ms = a->timeout_ms,
                                    .device = o->device, .qps = o->qps, .key = a->key,
                                    .insecure = a->insecure};
    FF_AUTO_FREE struct probe *p = calloc(1, sizeof(*p));
    int works = 0;

    if (!p)
        return ff_error_set(err, ENOMEM, "probe: out of memory");
    for (size_t i = 0; i < FF_ARRAY_LEN(kinds); i++) {
        struct ff_probe_link out = {.name = kinds[i].name};
        struct ff_error why = {0};
        *p = (struct probe){.cancel_fd = o->cancel_fd, .timeout_ms = a->timeout_ms, .fn = fn,
                            .opaque = opaque};
        int rc = probe_link(p, &params, kinds[i].kind, &out, &why);
        if (cancelled(p) || rc == -ECANCELED)
            return ff_error_set(err, ECANCELED, "probe: canceled");
        if (rc) {
            out.error = -rc;
            snprintf(out.reason, sizeof(out.reason), "%.*s", (int)sizeof(out.reason) - 1, why.text);
        }
        works += !rc;
        fn(opaque, FF_PROBE_END, &out);
    }
    return works;
}
