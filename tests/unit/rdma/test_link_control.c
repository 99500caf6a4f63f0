/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_link_control.c - control messages, waits and ends, tried on every kind of link
 */
#include "pair.h"

static struct pair p;

static int start_loop(void **state)
{
    (void)state;
    pair_open_loop(&p);
    return 0;
}

static int start_tcp(void **state)
{
    (void)state;
    pair_open_tcp(&p);
    return 0;
}

static int start_keyed(void **state)
{
    (void)state;
    pair_open_keyed(&p);
    return 0;
}

static int end(void **state)
{
    (void)state;
    pair_close(&p);
    return 0;
}

/* --- messages --- */

static uint32_t length_of(unsigned i)
{
    static const uint32_t lengths[] = {1, 2, 3, 100, 4095, 4096, 4097, FF_MSG_MAX - 1, FF_MSG_MAX};
    return lengths[i % FF_ARRAY_LEN(lengths)];
}

static void test_messages(void **state)
{
    static uint8_t out[FF_MSG_MAX], in[FF_MSG_MAX + 64];
    struct ff_link *ends[2] = {p.a, p.b};
    struct ff_error err;
    (void)state;

    for (unsigned i = 0; i < 36; i++) {
        struct ff_link *from = ends[i % 2], *to = ends[1 - i % 2];
        uint32_t len = length_of(i / 2);
        pattern(out, len, i);
        memset(in, 0xee, sizeof(in));
        assert_ok(from->ops->send(from, out, len, &err), err);
        assert_int_equal(to->ops->recv(to, in, SOON_MS, &err), len);
        assert_memory_equal(in, out, len);
        for (uint32_t k = len; k < len + 64 && k < sizeof(in); k++)
            assert_int_equal(in[k], 0xee);
    }
}

static void test_lengths_refused(void **state)
{
    static uint8_t out[FF_MSG_MAX + 1];
    struct ff_error err;
    uint8_t in[FF_MSG_MAX];
    (void)state;

    assert_fails(p.a->ops->send(p.a, out, 0, &err), EMSGSIZE);
    assert_fails(p.a->ops->send(p.a, out, FF_MSG_MAX + 1, &err), EMSGSIZE);
    assert_error(err, EMSGSIZE, "65537", "65536");
    assert_fails(p.a->ops->send(p.a, out, UINT32_MAX, &err), EMSGSIZE);
    assert_ok(p.a->ops->send(p.a, "x", 1, &err), err); /* it is as good as before */
    assert_int_equal(p.b->ops->recv(p.b, in, SOON_MS, &err), 1);
}

#define STREAM 400u

struct stream {
    pthread_t thread;
    struct ff_link *link;
    struct ff_error err;
    unsigned done;
};

static void *stream_main(void *arg)
{
    struct stream *s = arg;
    static _Thread_local uint8_t msg[FF_MSG_MAX];

    for (; s->done < STREAM; s->done++) {
        uint32_t len = FF_MAX(length_of(s->done), 4u);
        memset(msg, (int)s->done, len);
        memcpy(msg, &s->done, 4);
        if (s->link->ops->send(s->link, msg, len, &s->err))
            break;
    }
    return NULL;
}

/* In order and whole, in both directions at once, more than any buffer holds */
static void test_ordered_both_ways(void **state)
{
    static uint8_t in[FF_MSG_MAX];
    struct stream s[2] = {{.link = p.a}, {.link = p.b}};
    struct ff_error err;
    (void)state;

    for (unsigned e = 0; e < 2; e++)
        assert_int_equal(pthread_create(&s[e].thread, NULL, stream_main, &s[e]), 0);
    for (unsigned i = 0; i < STREAM; i++) {
        for (unsigned e = 0; e < 2; e++) {
            struct ff_link *l = s[1 - e].link;
            uint32_t len = FF_MAX(length_of(i), 4u), number;
            int got = l->ops->recv(l, in, SOON_MS, &err);
            assert_int_equal(got, len);
            memcpy(&number, in, 4);
            assert_int_equal(number, i);
            for (uint32_t k = 4; k < len; k++)
                assert_true(in[k] == (uint8_t)i);
        }
    }
    for (unsigned e = 0; e < 2; e++) {
        join_soon(s[e].thread);
        assert_int_equal(s[e].done, STREAM);
    }
}

static void *send_some(void *arg)
{
    uint8_t msg[600];
    struct ff_error err;

    for (unsigned i = 0; i < 300; i++) {
        memset(msg, *(int *)arg, sizeof(msg));
        if (p.a->ops->send(p.a, msg, 1 + i * 2, &err))
            return arg;
    }
    return NULL;
}

/* Threads that send at once: messages come whole, in any order */
static void test_many_senders(void **state)
{
    int mark[4] = {'a', 'b', 'c', 'd'};
    unsigned count[4] = {0};
    pthread_t t[4];
    uint8_t in[FF_MSG_MAX];
    struct ff_error err;
    (void)state;

    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, send_some, &mark[i]), 0);
    for (unsigned i = 0; i < 4 * 300; i++) {
        int n = p.b->ops->recv(p.b, in, SOON_MS, &err);
        assert_true(n > 0 && in[0] >= 'a' && in[0] <= 'd');
        unsigned who = in[0] - 'a';
        assert_int_equal(n, 1 + 2 * count[who]++); /* each thread's own are in order */
        for (int k = 0; k < n; k++)
            assert_int_equal(in[k], in[0]);
    }
    for (int i = 0; i < 4; i++)
        join_soon(t[i]);
}

/* --- waits --- */

static void test_timeouts(void **state)
{
    static const int limits[] = {0, 1, 50};
    uint8_t in[FF_MSG_MAX];
    struct ff_error err;
    struct ff_wc wc;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(limits); i++) {
        uint64_t t = ff_now_ns();
        assert_fails(p.a->ops->recv(p.a, in, limits[i], &err), ETIMEDOUT);
        assert_error(err, ETIMEDOUT, "receive");
        assert_in_range((ff_now_ns() - t) / 1000000, (unsigned)limits[i], SOON_MS);
        t = ff_now_ns();
        assert_int_equal(p.a->ops->poll(p.a, FF_QUEUE_FAULT, &wc, 1, limits[i], &err), 0);
        assert_in_range((ff_now_ns() - t) / 1000000, (unsigned)limits[i], SOON_MS);
    }
    /* a wait that ran out loses nothing */
    assert_ok(p.b->ops->send(p.b, "late", 4, &err), err);
    assert_int_equal(p.a->ops->recv(p.a, in, SOON_MS, &err), 4);
}

struct waiter {
    pthread_t thread;
    struct ff_link *link;
    int queue; /* -1: recv */
    atomic_bool up;
    int rc;
    struct ff_error err;
};

static void *wait_main(void *arg)
{
    static _Thread_local uint8_t in[FF_MSG_MAX];
    struct waiter *w = arg;
    struct ff_wc wc;

    atomic_store(&w->up, true);
    w->rc = w->queue < 0 ? w->link->ops->recv(w->link, in, SOON_MS, &w->err)
                         : w->link->ops->poll(w->link, (enum ff_queue)w->queue, &wc, 1, SOON_MS,
                                              &w->err);
    return NULL;
}

/* Six threads wait, three at each end; @how ends it */
static void wait_and(void (*how)(void))
{
    struct waiter w[6];

    for (int i = 0; i < 6; i++) {
        w[i] = (struct waiter){.link = i < 3 ? p.a : p.b, .queue = i % 3 - 1};
        assert_int_equal(pthread_create(&w[i].thread, NULL, wait_main, &w[i]), 0);
    }
    for (int i = 0; i < 6; i++)
        while (!atomic_load(&w[i].up))
            usleep(1000);
    usleep(20000); /* most likely asleep now; when not, the result is the same */
    uint64_t t = ff_now_ns();
    how();
    for (int i = 0; i < 6; i++) {
        join_soon(w[i].thread);
        assert_true(w[i].rc < 0);
        assert_int_not_equal(w[i].rc, -ETIMEDOUT);
        assert_true(w[i].err.code == -w[i].rc && strlen(w[i].err.text) > 5);
    }
    assert_true((ff_now_ns() - t) / 1000000 < SOON_MS / 2);
}

static void shut_a(void)
{
    p.a->ops->shutdown(p.a);
    p.a->ops->shutdown(p.a);
}

static void shut_b(void)
{
    p.b->ops->shutdown(p.b);
}

static void test_shutdown_wakes_all(void **state)
{
    (void)state;
    wait_and(!strcmp(p.kind, "loop") ? shut_b : shut_a);
}

static void test_peer_shutdown_wakes_all(void **state)
{
    (void)state;
    wait_and(!strcmp(p.kind, "loop") ? shut_a : shut_b);
}

/* --- the peer leaves --- */

static void test_peer_closes(void **state)
{
    uint8_t in[FF_MSG_MAX];
    struct ff_error err;
    struct ff_wc wc;
    (void)state;

    assert_ok(p.a->ops->send(p.a, "goodbye", 7, &err), err);
    p.a->ops->free(p.a);
    p.a = NULL;
    /* what it said before is still heard */
    assert_int_equal(p.b->ops->recv(p.b, in, SOON_MS, &err), 7);
    assert_memory_equal(in, "goodbye", 7);
    for (int i = 0; i < 3; i++) {
        assert_true(p.b->ops->recv(p.b, in, SOON_MS, &err) < 0);
        assert_int_not_equal(err.code, ETIMEDOUT);
    }
    for (enum ff_queue q = 0; q < FF_QUEUES; q++) {
        assert_true(p.b->ops->poll(p.b, q, &wc, 1, SOON_MS, &err) < 0);
        struct ff_wr wr = {.op = FF_OP_READ, .local = in, .len_bytes = 1};
        assert_true(p.b->ops->post(p.b, q, &wr, &err) < 0);
    }
}

/* Reads are in flight when the link ends: no hang, no crash, no completion that is not one */
static void end_with_reads_in_flight(bool peer)
{
    uint8_t *mem = calloc(1, 4 << 20), *to = calloc(1, 4 << 20);
    static struct server s;
    struct ff_error err;

    assert_true(mem && to);
    for (unsigned round = 0; round < 10; round++) {
        struct ff_mr mr = must_reg(p.a, mem, 4 << 20, FF_ACCESS_REMOTE_READ);
        server_start(&s, p.a, FF_QUEUE_FAULT);
        for (unsigned i = 0; i < 16; i++) {
            struct ff_wr wr = read_of(&mr, 0, to, 4 << 20);
            assert_ok(p.b->ops->post(p.b, FF_QUEUE_FAULT, &wr, &err), err);
        }
        struct ff_wc wc[16];
        for (unsigned i = 0, left = round; i < left;) {
            int n = p.b->ops->poll(p.b, FF_QUEUE_FAULT, wc, left - i, SOON_MS, &err);
            assert_true(n > 0);
            i += (unsigned)n;
        }
        struct ff_link *l = peer ? p.a : p.b;
        l->ops->shutdown(l);
        join_soon(s.thread);
        for (unsigned i = 0; p.b->ops->poll(p.b, FF_QUEUE_FAULT, wc, 16, SOON_MS, &err) >= 0; i++)
            assert_true(i < 16);
        bool tcp = !strcmp(p.kind, "tcp");
        pair_close(&p);
        if (tcp)
            pair_open_tcp(&p);
        else
            pair_open_loop(&p);
    }
    free(mem);
    free(to);
}

static void test_end_in_flight(void **state)
{
    (void)state;
    end_with_reads_in_flight(false);
}

static void test_peer_ends_in_flight(void **state)
{
    (void)state;
    end_with_reads_in_flight(true);
}

#define BOTH(test)                                                                          \
    {"loop: " #test, test, start_loop, end, NULL}, {"tcp: " #test, test, start_tcp, end, NULL}, \
    {"key: " #test, test, start_keyed, end, NULL}

UNIT_MAIN(BOTH(test_messages), BOTH(test_lengths_refused), BOTH(test_ordered_both_ways),
          BOTH(test_many_senders), BOTH(test_timeouts), BOTH(test_shutdown_wakes_all),
          BOTH(test_peer_shutdown_wakes_all), BOTH(test_peer_closes), BOTH(test_end_in_flight),
          BOTH(test_peer_ends_in_flight))
