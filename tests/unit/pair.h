/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pair.h - two connected ends of a link of either kind, and threads that serve them
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      pair.a (active, as the source) <----> pair.b (passive, as the destination)
 *              The tests post at one end and run a server, a thread that polls, at the other.
 * Threads      CMocka's asserts leave a function by longjmp: only the main thread may use
 *              them. Other threads keep what they saw for the main thread to judge.
 * Limits       SOON_MS: what should happen at once may take that long on a loaded machine.
 */
#ifndef FF_TESTS_PAIR_H
#define FF_TESTS_PAIR_H

#include "unit.h"

#include <pthread.h>
#include <stdatomic.h>

#include "key.h"
#include "link.h"

#define SOON_MS 20000
#define IMMS_MAX 512

/* Wait for a thread, not for ever: a test that hangs says where */
static inline void join_soon(pthread_t t)
{
    struct timespec end;

    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += SOON_MS / 1000;
    if (pthread_timedjoin_np(t, NULL, &end)) {
        fprintf(stderr, "a thread did not end within %d ms\n", SOON_MS);
        abort();
    }
}

struct pair {
    const char *kind;
    struct ff_link *a, *b;
    struct ff_listener *listener; /* tcp */
};

static inline void pair_open_loop(struct pair *p)
{
    struct ff_error err;

    *p = (struct pair){.kind = "loop"};
    assert_ok(ff_loop_pair(&p->a, &p->b, &err), err);
}

/* Up to and without the queues */
static inline void pair_connect_tcp(struct pair *p, const char *host, int timeout_ms)
{
    struct ff_link_params lp = {.host = host, .port = "0", .timeout_ms = timeout_ms};
    struct ff_error err;
    char port[16];

    *p = (struct pair){.kind = "tcp"};
    assert_ok(ff_tcp_listen(&lp, &p->listener, &err), err);
    snprintf(port, sizeof(port), "%u", ff_tcp_port(p->listener));
    lp.port = port;
    assert_ok(ff_tcp_connect(&lp, -1, &p->a, &err), err);
    assert_ok(ff_tcp_accept(p->listener, SOON_MS, &p->b, &err), err);
}

#define PAIR_KEY "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928170"

static inline struct ff_key *must_key(const char *text)
{
    struct ff_error err;
    struct ff_key *k;

    assert_ok(ff_key_parse(text, strlen(text), &k, &err), err);
    return k;
}

/* A source that connects in a thread of its own, since it waits for the other side */
struct caller {
    pthread_t thread;
    struct ff_link_params lp;
    char port[16];
    struct ff_link *link;
    struct ff_error err;
    int rc;
};

static inline void *caller_main(void *arg)
{
    struct caller *c = arg;

    c->rc = ff_tcp_connect(&c->lp, -1, &c->link, &c->err);
    return NULL;
}

static inline void caller_start(struct caller *c, unsigned port, struct ff_key *key)
{
    memset(c, 0, sizeof(*c));
    snprintf(c->port, sizeof(c->port), "%u", port);
    c->lp = (struct ff_link_params){
        .host = "127.0.0.1", .port = c->port, .timeout_ms = 15000, .key = key};
    assert_int_equal(pthread_create(&c->thread, NULL, caller_main, c), 0);
}

static inline int caller_end(struct caller *c)
{
    join_soon(c->thread);
    return c->rc;
}

/* Both ends have one key; up to and without the queues */
static inline void pair_connect_keyed(struct pair *p)
{
    struct ff_key *key = must_key(PAIR_KEY);
    struct ff_link_params lp = {
        .host = "127.0.0.1", .port = "0", .timeout_ms = 15000, .key = key};
    struct ff_error err;
    struct caller c;

    *p = (struct pair){.kind = "tcp with a key"};
    assert_ok(ff_tcp_listen(&lp, &p->listener, &err), err);
    caller_start(&c, ff_tcp_port(p->listener), key);
    int rc = ff_tcp_accept(p->listener, SOON_MS, &p->b, &err);
    assert_ok(caller_end(&c), c.err);
    assert_ok(rc, err);
    p->a = c.link;
    ff_key_unref(key); /* the links need it no more, the listener has its own reference */
}

/* One side's queues in a thread of their own: with a key each side waits for the other */
struct opener {
    pthread_t thread;
    struct ff_link *link;
    struct ff_error err;
    int rc;
};

static inline void *opener_main(void *arg)
{
    static const uint8_t session[FF_SESSION_LEN] = "a session of 16";
    struct opener *o = arg;

    o->rc = o->link->ops->open_queues(o->link, session, SOON_MS, &o->err);
    return NULL;
}

static inline void opener_start(struct opener *o, struct ff_link *l)
{
    memset(o, 0, sizeof(*o));
    o->link = l;
    assert_int_equal(pthread_create(&o->thread, NULL, opener_main, o), 0);
}

static inline int opener_end(struct opener *o)
{
    join_soon(o->thread);
    return o->rc;
}

static inline void pair_open_queues(struct pair *p)
{
    struct opener a, b;

    opener_start(&a, p->a);
    opener_start(&b, p->b);
    opener_end(&a);
    assert_ok(opener_end(&b), b.err);
    assert_ok(a.rc, a.err);
}

static inline void pair_open_tcp(struct pair *p)
{
    pair_connect_tcp(p, "127.0.0.1", 15000);
    pair_open_queues(p);
}

static inline void pair_open_keyed(struct pair *p)
{
    pair_connect_keyed(p);
    pair_open_queues(p);
}

static inline void pair_close(struct pair *p)
{
    if (p->a)
        p->a->ops->free(p->a);
    if (p->b)
        p->b->ops->free(p->b);
    ff_tcp_listener_free(p->listener);
    *p = (struct pair){.kind = p->kind};
}

/* --- a thread that polls one queue until it breaks or is told to stop --- */

struct server {
    pthread_t thread;
    struct ff_link *link;
    enum ff_queue queue;
    atomic_bool stop;
    atomic_uint n_imms;
    struct ff_wc imm[IMMS_MAX];
    struct ff_error why; /* read it after server_join() */
};

static inline void *server_main(void *arg)
{
    struct server *s = arg;

    while (!atomic_load(&s->stop)) {
        struct ff_wc wc[4];
        int n = s->link->ops->poll(s->link, s->queue, wc, FF_ARRAY_LEN(wc), 50, &s->why);
        if (n < 0)
            break;
        for (int i = 0; i < n; i++)
            if (wc[i].op == FF_WC_RECV_IMM && atomic_load(&s->n_imms) < IMMS_MAX) {
                s->imm[atomic_load(&s->n_imms)] = wc[i];
                atomic_fetch_add(&s->n_imms, 1);
            }
    }
    return NULL;
}

static inline void server_start(struct server *s, struct ff_link *l, enum ff_queue q)
{
    memset(s, 0, sizeof(*s));
    s->link = l;
    s->queue = q;
    assert_int_equal(pthread_create(&s->thread, NULL, server_main, s), 0);
}

static inline void server_join(struct server *s)
{
    atomic_store(&s->stop, true);
    join_soon(s->thread);
}

/* --- posting and waiting --- */

/* Wait for one completion: 0, or the link's error */
static inline int wait_one(struct ff_link *l, enum ff_queue q, struct ff_wc *wc,
                           struct ff_error *err)
{
    int n = l->ops->poll(l, q, wc, 1, SOON_MS, err);

    if (!n)
        fail_msg("%s: no completion within %d ms", l->ops->name, SOON_MS);
    return n < 0 ? n : 0;
}

/* Post and wait: 0, or the link's error */
static inline int run_wr(struct ff_link *l, enum ff_queue q, const struct ff_wr *wr,
                         struct ff_error *err)
{
    struct ff_wc wc;
    int rc = l->ops->post(l, q, wr, err);

    if (rc)
        return rc;
    rc = wait_one(l, q, &wc, err);
    if (rc)
        return rc;
    assert_int_equal(wc.id, wr->id);
    assert_int_equal(wc.op, wr->op == FF_OP_READ ? FF_WC_READ : FF_WC_WRITE);
    assert_int_equal(wc.len_bytes, wr->len_bytes);
    return 0;
}

static inline struct ff_mr must_reg(struct ff_link *l, void *addr, uint64_t len, unsigned access)
{
    struct ff_error err;
    struct ff_mr mr;

    assert_ok(l->ops->reg(l, addr, len, access, &mr, &err), err);
    return mr;
}

static inline struct ff_wr read_of(const struct ff_mr *mr, uint64_t offset, void *to, uint32_t len)
{
    return (struct ff_wr){.id = offset + len, .op = FF_OP_READ, .local = to, .len_bytes = len,
                          .remote = (uintptr_t)mr->addr + offset, .rkey = mr->rkey};
}

/* Bytes with a prime period: a lost or doubled block shows */
static inline void pattern(uint8_t *p, size_t len, unsigned start)
{
    for (size_t i = 0; i < len; i++)
        p[i] = (uint8_t)(((i + start) % 4093) * 131 >> 2);
}

#endif
