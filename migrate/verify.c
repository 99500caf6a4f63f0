/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verify.c - destination: a READ is complete when its bytes are right; see tags.h
 */
/**
 * DOC: Theory of Operation
 *
 * States       a slot: free -> BYTES, SENT and TAG awaited, in any order -> checked, free.
 *              The ask may have to be sent later, when the queue is full (due).
 *              What another agent feeds (feed.h) comes by its link, and its tag by the pager's: so it is the
 *              source that says what is right. When that agent is left, its slots are dropped: SENT and
 *              TAG are awaited still, and nobody looks at them.
 * Failure      a tag that never comes: when nothing else comes either, the thread that waits finds
 *              out by the silence. But later reads of this queue may go on, while a guest waits for
 *              this one; then the link breaks here, after as long. Tags come in the order of their
 *              asks, but for several queue pairs.
 * Threads      each lane is its queue's thread's alone. Nothing is shared but what never changes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "failpoint.h"
#include "mr.h"
#include "verify.h"
#include "wirebuf.h"

#define SETTLE_MS 100

enum { BYTES = 1, SENT = 2, TAG = 4 }; /* what a slot waits for */

struct slot {
    struct ff_verify_of by;
    struct ff_wr wr;
    enum ff_tags_of of;
    unsigned waits; /* 0: free */
    bool due, fed, dropped;
    uint64_t number, passed_ns; /* of its ask; since when a later one is complete, 0: none is */
};

struct lane {
    struct slot slot[FF_ASKS];
    uint64_t number; /* of the last ask */
    unsigned n_due, n_passed;
    struct ff_error broken; /* code 0: it is not */
};

struct ff_verify {
    struct ff_tag_memory m;
    struct lane lane[FF_QUEUES];
};

int ff_verify_new(struct ff_pager *p, struct ff_error *err)
{
    ff_verify_free(p->verify);
    p->verify = NULL;
    struct ff_verify *v = calloc(1, sizeof(*v));
    int rc = v ? ff_tag_memory_new(&v->m, p->link, false, err)
               : ff_error_set(err, ENOMEM, "verify: out of memory");

    if (rc)
        free(v);
    else
        p->verify = v;
    return rc;
}

void ff_verify_free(struct ff_verify *v)
{
    if (v)
        ff_tag_memory_free(&v->m);
    free(v);
}

/* A work request's id: the slot, and whether it is the ask */
static uint64_t id_of(const struct lane *l, const struct slot *s, bool ask)
{
    return (uint64_t)(s - l->slot) * 2 + ask;
}

/* 0: also when the queue is full; it is sent when something has completed */
static int send_ask(struct ff_pager *p, enum ff_queue q, struct slot *s, struct ff_error *err)
{
    struct ff_verify *v = p->verify;
    struct lane *l = &v->lane[q];
    uint64_t at = ff_ask_at(q, (uint32_t)(s - l->slot));
    struct ff_wr wr = {.id = id_of(l, s, true),
                       .op = FF_OP_WRITE,
                       .local = v->m.asks + at,
                       .lkey = v->m.asks_mr.lkey,
                       .remote = p->asks_addr + at,
                       .rkey = p->asks_rkey,
                       .len_bytes = FF_ASK_LEN,
                       .imm = (uint32_t)(s - l->slot)};
    int rc = p->link->ops->post(p->link, q, &wr, err);

    l->n_due -= s->due;
    s->due = rc == -EAGAIN;
    l->n_due += s->due;
    return rc == -EAGAIN ? 0 : rc;
}

int ff_verify_post(struct ff_pager *p, enum ff_queue q, const struct ff_verify_of *of,
                   const struct ff_wr *wr, struct ff_error *err)
{
    struct ff_verify *v = p->verify;
    struct lane *l = &v->lane[q];
    unsigned i = 0;

    while (i < FF_ASKS && l->slot[i].waits)
        i++;
    if (i == FF_ASKS)
        return ff_error_set(err, EAGAIN, "verify: %u reads in flight", FF_ASKS);
    struct slot *s = &l->slot[i];
    bool pass = q == FF_QUEUE_PREFILL && p->in_precopy;
    *s = (struct slot){.by = *of,
                       .wr = *wr,
                       .of = pass ? FF_TAGS_OF_PASS : FF_TAGS_OF_IMAGE,
                       .fed = of->link != p->link};
    s->wr.id = id_of(l, s, false);
    struct ff_error why;
    int rc = of->link->ops->post(of->link, q, &s->wr, &why);
    if (rc) {
        if (rc != -EAGAIN && !s->fed)
            l->broken = why;
        return ff_error_set(err, -rc, "%s", why.text);
    }
    s->wr.id = wr->id;
    s->waits = BYTES | SENT | TAG;
    s->number = ++l->number;
    struct ff_ask ask = {.number = s->number,
                         .offset = wr->remote - of->base,
                         .region = of->r->peer_number,
                         .len_bytes = wr->len_bytes,
                         .addr = (uintptr_t)v->m.tags + ff_tag_at(q, i),
                         .rkey = v->m.tags_mr.rkey};
    ff_ask_encode(v->m.asks + ff_ask_at(q, i), &ask);
    rc = send_ask(p, q, s, &why);
    if (rc) {
        l->broken = why;
        ff_error_set(err, -rc, "%s", why.text);
    }
    return rc;
}

/* Are the bytes of @s those of the source? 0, -EBADMSG, -EIO */
static int check(struct ff_pager *p, enum ff_queue q, const struct slot *s, struct ff_error *err)
{
    struct ff_verify *v = p->verify;
    const struct lane *l = &v->lane[q];
    const struct ff_wr *wr = &s->wr;
    uint32_t i = (uint32_t)(s - l->slot);
    uint8_t came[FF_TAG_LEN], want[FF_PAGE_TAG_LEN], map[FF_GRANULES_MAX / 8] = {0};
    uint8_t head[FF_TAG_HEAD];
    static const uint8_t none[FF_GRANULES_MAX / 8];
    bool told = s->by.link->finds_zeros; /* then what is zeros here may be anything */
    struct ff_tagged d = {.data = wr->local,
                          .len_bytes = wr->len_bytes,
                          .granule_bytes = wr->granule_bytes,
                          .zero = told ? wr->zero : map,
                          .poison = told ? wr->poison : none};

    if (!told)
        ff_zero_scan(wr->local, wr->len_bytes, wr->granule_bytes, map);
    memcpy(came, v->m.tags + ff_tag_at(q, i), sizeof(came)); /* once: a peer may write there */
    struct ff_wirebuf b = ff_wb_reader(came, 8);
    ff_tag_head(head, v->m.asks + ff_ask_at(q, i), s->of);
    if (ff_page_tag(v->m.key[q], ff_wb_get(&b, 8), head, sizeof(head), &d, want))
        return ff_error_set(err, EIO, "pager: verify: no tag: GnuTLS refused");
    if (ff_page_tag_is(came + 8, want))
        return 0;
    return ff_error_set(err, EBADMSG,
                        "pager: verify: region %s: 0x%x bytes at 0x%llx are not what the source "
                        "has: somebody in the network or a broken adapter changed them; none is "
                        "installed",
                        s->by.r->name, wr->len_bytes, (unsigned long long)(wr->remote - s->by.base));
}

static int unasked(struct ff_error *err)
{
    return ff_error_set(err, EPROTO, "pager: verify: something arrived unasked");
}

/* @s is complete: who was asked for before it, and is not? */
static void note_passed(struct lane *l, struct slot *s)
{
    l->n_passed -= s->passed_ns != 0;
    for (struct slot *e = l->slot; e < l->slot + FF_ASKS; e++)
        if (e->waits && e->number < s->number && !e->passed_ns) {
            e->passed_ns = ff_now_ns();
            l->n_passed++;
        }
}

/* What of @s has not come? The first thing that the others come after */
static const char *lacks(const struct slot *s)
{
    return s->waits & BYTES ? "READ of" : s->waits & SENT ? "ask for a tag for" : "tag for";
}

/* @idle: nothing more has come. Else what has may lie behind the rest, if nobody looked for long:
 * but not behind as many as the queue holds */
static int check_passed(const struct ff_pager *p, const struct lane *l, bool idle,
                        struct ff_error *err)
{
    uint64_t limit_ns = (uint64_t)p->silence_ms * 1000000u;

    for (const struct slot *s = l->slot; l->n_passed && s < l->slot + FF_ASKS; s++)
        if (s->waits && s->passed_ns && ff_now_ns() - s->passed_ns >= limit_ns &&
            !(s->fed && s->waits & BYTES) && (idle || l->number - s->number > 2 * FF_ASKS))
            return ff_error_set(err, ETIMEDOUT,
                                "pager: verify: region %s: no %s 0x%x bytes at 0x%llx within "
                                "%d s, and later ones have come%s",
                                s->by.r->name, lacks(s), s->wr.len_bytes,
                                (unsigned long long)(s->wr.remote - s->by.base),
                                p->silence_ms / 1000,
                                s->waits == TAG
                                    ? ": somebody in the network keeps it, or the source" : "");
    return 0;
}

const char *ff_verify_lacks(const struct ff_pager *p, enum ff_queue q)
{
    bool tag = false, other = false;

    for (unsigned i = 0; p->verify && i < FF_ASKS; i++) {
        unsigned waits = p->verify->lane[q].slot[i].waits;
        tag |= waits == TAG;
        other |= waits & BYTES;
    }
    return tag && !other ? ": verify: the bytes came, and no tag for them" : "";
}

/* What @in, over @by, tells of; 1: into @out, a READ is complete; 0; or that link is of no use */
static int take(struct ff_pager *p, enum ff_queue q, const struct ff_link *by, const struct ff_wc *in,
                struct ff_wc *out, struct ff_error *err)
{
    struct lane *l = &p->verify->lane[q];
    bool tag = in->op == FF_WC_RECV_IMM;
    uint64_t i = tag ? in->imm : in->id / 2;
    unsigned part = tag ? TAG : in->op == FF_WC_READ ? BYTES : SENT;
    struct slot *s = i < FF_ASKS ? &l->slot[i] : NULL;

    if (!s || !(s->waits & part) || (tag && in->len_bytes != FF_TAG_LEN) ||
        by != (part == BYTES ? s->by.link : p->link))
        return unasked(err);
    s->waits &= ~part;
    if (s->waits)
        return 0;
    note_passed(l, s);
    if (s->dropped)
        return 0;
    int rc = check(p, q, s, err);
    bool torn = rc == -EBADMSG && (s->fed || s->of == FF_TAGS_OF_PASS);
    if (rc && !torn)
        return rc;
    *out = (struct ff_wc){
        .id = s->wr.id, .op = FF_WC_READ, .len_bytes = s->wr.len_bytes, .torn = torn};
    return 1;
}

static int send_due(struct ff_pager *p, enum ff_queue q, struct ff_error *err)
{
    struct lane *l = &p->verify->lane[q];
    int rc = 0;

    for (struct slot *s = l->slot; l->n_due && s < l->slot + FF_ASKS && !rc; s++)
        if (s->due)
            rc = send_ask(p, q, s, err);
    return rc;
}

static int poll_lane(struct ff_pager *p, enum ff_queue q, struct ff_wc *wc, unsigned n,
                     int timeout_ms, struct ff_error *err)
{
    struct ff_wc in[16];
    int got, done = 0;

    do {
        got = send_due(p, q, err);
        if (!got)
            got = p->link->ops->poll(p->link, q, in, FF_MIN(n, (unsigned)FF_ARRAY_LEN(in)),
                                     timeout_ms, err);
        for (int i = 0; i < got; i++) {
            int rc = take(p, q, p->link, &in[i], &wc[done], err);
            if (rc < 0)
                return rc;
            done += rc;
        }
        timeout_ms = 0;
    } while (got > 0 && !done);
    int rc = got < 0 ? got : check_passed(p, &p->verify->lane[q], !got, err);
    return rc ? rc : done;
}

/* As a link breaks: for good, and it says so each time */
int ff_verify_poll(struct ff_pager *p, enum ff_queue q, struct ff_wc *wc, unsigned n,
                   int timeout_ms, struct ff_error *err)
{
    struct lane *l = &p->verify->lane[q];
    int rc = l->broken.code ? -l->broken.code : poll_lane(p, q, wc, n, timeout_ms, &l->broken);

    if (rc >= 0)
        l->broken.code = 0; /* a full queue said something */
    else if (err)
        *err = l->broken;
    return rc;
}

int ff_verify_poll_fed(struct ff_pager *p, const struct ff_link *by, const struct ff_wc *in, unsigned n,
                       struct ff_wc *wc, unsigned n_wc, struct ff_error *err)
{
    unsigned done = 0;

    for (unsigned i = 0; i < n; i++) {
        int rc = take(p, FF_QUEUE_PREFILL, by, &in[i], &wc[done], err);
        if (rc < 0)
            return rc;
        done += (unsigned)rc;
    }
    int rc = done == n_wc ? 0 : ff_verify_poll(p, FF_QUEUE_PREFILL, wc + done, n_wc - done, 0, err);
    return rc < 0 ? rc : (int)done + rc;
}

bool ff_verify_is_broken(const struct ff_pager *p, enum ff_queue q)
{
    return p->verify && p->verify->lane[q].broken.code;
}

void ff_verify_drop(struct ff_pager *p, enum ff_queue q)
{
    struct lane *l = p->verify ? &p->verify->lane[q] : NULL;

    for (struct slot *s = l ? l->slot : NULL; l && s < l->slot + FF_ASKS; s++) {
        if (!s->waits || !s->fed)
            continue;
        s->dropped = true;
        s->waits = s->due ? 0 : s->waits & ~BYTES;
        l->n_due -= s->due;
        s->due = false;
        if (!s->waits)
            l->n_passed -= s->passed_ns != 0;
    }
}

static bool is_read_from_source(const struct lane *l)
{
    bool any = false;

    for (const struct slot *s = l->slot; s < l->slot + FF_ASKS; s++)
        any |= s->waits && !s->fed;
    return any;
}

int ff_verify_settle(struct ff_pager *p, enum ff_queue q, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)p->silence_ms * 1000000u;
    struct ff_wc wc[8];

    while (p->verify && is_read_from_source(&p->verify->lane[q])) {
        int rc = ff_verify_poll(p, q, wc, FF_ARRAY_LEN(wc), SETTLE_MS, err);
        if (rc < 0)
            return rc;
        if (atomic_load(&p->stop))
            return ff_error_set(err, ECANCELED, "canceled");
        if (ff_now_ns() > end)
            return ff_error_set(err, ETIMEDOUT, "pager: verify: reads unanswered for %d s%s",
                                p->silence_ms / 1000, ff_verify_lacks(p, q));
    }
    return 0;
}
