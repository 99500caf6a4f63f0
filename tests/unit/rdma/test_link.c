/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_link.c - what link.h promises, tried on every kind of link with the same tests
 */
#include "pair.h"

#include <poll.h>
#include <sys/mman.h>

#define LARGE (4u << 20)

static struct pair p;
static uint8_t *src, *dst; /* LARGE and a little more */

static int start(struct pair *pair)
{
    src = malloc(LARGE + 4096);
    dst = malloc(LARGE + 4096);
    if (!src || !dst)
        return -1;
    pattern(src, LARGE + 4096, 0);
    memset(dst, 0xee, LARGE + 4096);
    (void)pair;
    return 0;
}

static int start_loop(void **state)
{
    (void)state;
    pair_open_loop(&p);
    return start(&p);
}

static int start_tcp(void **state)
{
    (void)state;
    pair_open_tcp(&p);
    return start(&p);
}

static int start_keyed(void **state)
{
    (void)state;
    pair_open_keyed(&p);
    return start(&p);
}

static int end(void **state)
{
    (void)state;
    pair_close(&p);
    free(src);
    free(dst);
    return 0;
}

/* --- one-sided reads and writes --- */

static void test_read_sizes(void **state)
{
    static const uint32_t sizes[] = {1,     2,     511,   512,   4095,  4096,     4097,      65511,
                                     65512, 65513, 65535, 65536, 65537, 1u << 20, LARGE - 1, LARGE};
    static struct server s;
    struct ff_error err;
    (void)state;

    struct ff_mr mr = must_reg(p.a, src, LARGE + 100, FF_ACCESS_REMOTE_READ);
    for (enum ff_queue q = 0; q < FF_QUEUES; q++) {
        server_start(&s, p.a, q);
        for (size_t i = 0; i < FF_ARRAY_LEN(sizes); i++) {
            uint32_t len = sizes[i], offset = (uint32_t)i * 3;
            memset(dst, 0xee, len + 64);
            struct ff_wr wr = read_of(&mr, offset, dst + 32, len);
            assert_ok(run_wr(p.b, q, &wr, &err), err);
            assert_true(!memcmp(dst + 32, src + offset, len));
            for (unsigned k = 0; k < 32; k++)
                assert_true(dst[k] == 0xee && dst[32 + len + k] == 0xee);
        }
        server_join(&s);
    }
    /* lengths that no request may have; the link survives them */
    struct ff_wr wr = read_of(&mr, 0, dst, LARGE + 1);
    assert_fails(p.b->ops->post(p.b, FF_QUEUE_FAULT, &wr, &err), EINVAL);
    assert_error(err, EINVAL, "4194305", "1..4194304");
    wr.len_bytes = 0;
    assert_fails(p.b->ops->post(p.b, FF_QUEUE_FAULT, &wr, &err), EINVAL);
    server_start(&s, p.a, FF_QUEUE_FAULT);
    wr.len_bytes = 1;
    assert_ok(run_wr(p.b, FF_QUEUE_FAULT, &wr, &err), err);
    server_join(&s);
}

static void test_zero_map(void **state)
{
    static const uint32_t granules[] = {512, 4096, 65536};
    static struct server s;
    uint8_t zero[FF_GRANULES_MAX / 8];
    struct ff_error err;
    (void)state;

    struct ff_mr mr = must_reg(p.a, src, LARGE, FF_ACCESS_REMOTE_READ);
    for (unsigned kind = 0; kind < 4; kind++) { /* none, some, alternating, all granules zero */
        for (size_t g = 0; g < FF_ARRAY_LEN(granules); g++) {
            uint32_t size = granules[g], n = FF_MIN(LARGE / size, FF_GRANULES_MAX);
            pattern(src, LARGE, 5);
            for (uint32_t i = 0; i < n; i++)
                if (kind == 3 || (kind == 2 && i % 2) || (kind == 1 && (i * i) % 7 == 2))
                    memset(src + (size_t)i * size, 0, size);
                else
                    src[(size_t)i * size + (i % 2 ? size - 1 : 0)] |= 1; /* not zero for certain */
            memset(dst, 0xee, LARGE);
            memset(zero, 0, sizeof(zero));
            struct ff_wr wr = read_of(&mr, 0, dst, n * size);
            wr.granule_bytes = size;
            wr.zero = zero;
            server_start(&s, p.a, FF_QUEUE_PREFILL); /* an image does not change while served */
            assert_ok(run_wr(p.b, FF_QUEUE_PREFILL, &wr, &err), err);
            server_join(&s);
            for (uint32_t i = 0; i < n; i++) {
                bool bit = zero[i / 8] & (1u << (i % 8));
                bool want = kind == 3 || (kind == 2 && i % 2) || (kind == 1 && (i * i) % 7 == 2);
                const uint8_t *at = dst + (size_t)i * size;
                assert_int_equal(bit, want);
                if (want) /* left alone */
                    assert_true(at[0] == 0xee && !memcmp(at, at + 1, size - 1));
                else
                    assert_true(!memcmp(at, src + (size_t)i * size, size));
            }
            for (uint32_t i = n; i < FF_GRANULES_MAX; i++)
                assert_false(zero[i / 8] & (1u << (i % 8)));
        }
    }
    /* a granule that is zero but for one byte, wherever that is */
    memset(src, 0, 8192);
    for (uint32_t at = 0; at < 4096; at += 1 + at / 16) {
        src[at] = 1;
        zero[0] = 0;
        struct ff_wr wr = read_of(&mr, 0, dst, 8192);
        wr.granule_bytes = 4096;
        wr.zero = zero;
        server_start(&s, p.a, FF_QUEUE_PREFILL);
        assert_ok(run_wr(p.b, FF_QUEUE_PREFILL, &wr, &err), err);
        server_join(&s);
        assert_int_equal(zero[0], 2);
        assert_true(!memcmp(dst, src, 4096));
        src[at] = 0;
    }
}

/* The middle pages of a mapping are of a file that is too short: the peer cannot read them */
static uint8_t *map_unreadable(uint32_t n, uint32_t from, uint32_t to)
{
    FF_AUTO_CLOSE int fd = memfd_create("too short", MFD_CLOEXEC);
    uint8_t *m = mmap(NULL, n * 4096u, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(m != MAP_FAILED);
    pattern(m, n * 4096u, 7);
    assert_true(mmap(m + from * 4096u, (to - from) * 4096u, PROT_READ, MAP_SHARED | MAP_FIXED, fd,
                     0) != MAP_FAILED);
    return m;
}

static void test_poison(void **state)
{
    static struct server s;
    uint8_t zero[FF_GRANULES_MAX / 8] = {0}, poison[FF_GRANULES_MAX / 8] = {0};
    uint8_t *m = map_unreadable(100, 30, 33);
    struct ff_error err;
    (void)state;

    memset(m + 40 * 4096, 0, 4096);
    struct ff_mr mr = must_reg(p.a, m, 100 * 4096, FF_ACCESS_REMOTE_READ);
    struct ff_wr wr = read_of(&mr, 0, dst, 100 * 4096);
    wr.granule_bytes = 4096;
    wr.zero = zero;
    wr.poison = poison;
    memset(dst, 0xee, LARGE);
    server_start(&s, p.a, FF_QUEUE_PREFILL);
    assert_ok(run_wr(p.b, FF_QUEUE_PREFILL, &wr, &err), err);
    for (uint32_t i = 0; i < FF_GRANULES_MAX; i++) {
        bool bad = i >= 30 && i < 33;
        assert_int_equal(!!(poison[i / 8] & (1u << (i % 8))), bad);
        assert_int_equal(!!(zero[i / 8] & (1u << (i % 8))), bad || i == 40);
        if (bad || i == 40) /* left alone */
            assert_true(dst[i * 4096] == 0xee && dst[i * 4096 + 4095] == 0xee);
        else if (i < 100)
            assert_memory_equal(dst + i * 4096, m + i * 4096, 4096);
    }
    wr.poison = NULL; /* who cannot tell it from zeros gets none */
    memset(zero, 0, sizeof(zero));
    assert_fails(run_wr(p.b, FF_QUEUE_PREFILL, &wr, &err), EHWPOISON);
    server_join(&s);
    munmap(m, 100 * 4096);
}

/* Nor who does not ask for granules */
static void test_poison_in_a_plain_read(void **state)
{
    uint8_t *m = map_unreadable(4, 2, 3);
    static struct server s;
    struct ff_error err;
    (void)state;

    struct ff_mr mr = must_reg(p.a, m, 4 * 4096, FF_ACCESS_REMOTE_READ);
    server_start(&s, p.a, FF_QUEUE_FAULT);
    struct ff_wr wr = read_of(&mr, 100, dst, 2 * 4096 - 100);
    assert_ok(run_wr(p.b, FF_QUEUE_FAULT, &wr, &err), err);
    wr = read_of(&mr, 100, dst, 3 * 4096);
    assert_true(run_wr(p.b, FF_QUEUE_FAULT, &wr, &err) < 0);
    server_join(&s);
    munmap(m, 4 * 4096);
}

static void write_and_check(struct ff_link *from, struct ff_link *to, unsigned seed)
{
    static const uint32_t sizes[] = {1, 4096, 100000, LARGE};
    static struct server s;
    struct ff_error err;

    struct ff_mr mr = must_reg(to, dst, LARGE, FF_ACCESS_REMOTE_WRITE);
    for (unsigned i = 0; i < FF_ARRAY_LEN(sizes); i++) {
        uint32_t len = sizes[i];
        pattern(src, len, seed + i);
        memset(dst, 0xee, LARGE + 4096);
        struct ff_wr wr = {.id = i,
                           .op = FF_OP_WRITE,
                           .local = src,
                           .len_bytes = len,
                           .remote = (uintptr_t)mr.addr,
                           .rkey = mr.rkey,
                           .imm = 0xabc00000 + i};
        server_start(&s, to, FF_QUEUE_PREFILL);
        assert_ok(run_wr(from, FF_QUEUE_PREFILL, &wr, &err), err);
        for (int ms = 0; !atomic_load(&s.n_imms) && ms < SOON_MS; ms++)
            usleep(1000);
        server_join(&s);
        assert_int_equal(atomic_load(&s.n_imms), 1);
        assert_int_equal(s.imm[0].imm, 0xabc00000 + i);
        assert_int_equal(s.imm[0].len_bytes, len);
        assert_true(!memcmp(dst, src, len));
        assert_true(dst[len] == 0xee);
    }
    to->ops->dereg(to, &mr);
}

static void test_write_both_ways(void **state)
{
    (void)state;
    write_and_check(p.a, p.b, 1);
    write_and_check(p.b, p.a, 1000);
}

/* --- keys --- */

struct bad_request {
    const char *what, *says;
    enum ff_op op;
    unsigned access;
    int64_t offset;
    uint32_t len, key_xor;
    bool withdraw;
};

static const struct bad_request bad_requests[] = {
    {"a key that is not", "withdrawn|No such file", FF_OP_READ, FF_ACCESS_REMOTE_READ, 0, 8, 1,
     false},
    {"key 0", "withdrawn|No such file", FF_OP_READ, FF_ACCESS_REMOTE_READ, 0, 8, UINT32_MAX, false},
    {"read of write-only", "permit|Permission", FF_OP_READ, FF_ACCESS_REMOTE_WRITE, 0, 8, 0, false},
    {"one byte before", "outside|range", FF_OP_READ, FF_ACCESS_REMOTE_READ, -1, 8, 0, false},
    {"one byte beyond", "outside|range", FF_OP_READ, FF_ACCESS_REMOTE_READ, 4089, 8, 0, false},
    {"all beyond", "outside|range", FF_OP_READ, FF_ACCESS_REMOTE_READ, 4096, 8, 0, false},
    {"longer than it", "outside|range", FF_OP_READ, FF_ACCESS_REMOTE_READ, 0, 4097, 0, false},
    {"far below, wraps", "outside|range", FF_OP_READ, FF_ACCESS_REMOTE_READ, INT64_MIN, 8, 0,
     false},
    {"withdrawn", "withdrawn|No such file", FF_OP_READ, FF_ACCESS_REMOTE_READ, 0, 8, 0, true},
    {"write to read-only", "", FF_OP_WRITE, FF_ACCESS_REMOTE_READ, 0, 8, 0, false},
    {"write beyond", "", FF_OP_WRITE, FF_ACCESS_REMOTE_WRITE, 4089, 8, 0, false},
    {"write, withdrawn", "", FF_OP_WRITE, FF_ACCESS_REMOTE_WRITE, 0, 8, 0, true},
};

static bool says_one_of(const char *text, const char *words)
{
    char copy[128], *save = NULL;

    if (!*words)
        return true;
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *w = strtok_r(copy, "|", &save); w; w = strtok_r(NULL, "|", &save))
        if (strstr(text, w))
            return true;
    return false;
}

/* From here on every call fails, on both sides */
static void must_be_broken(struct ff_link *l)
{
    struct ff_error err;
    struct ff_wc wc;
    uint8_t buf[16];

    for (enum ff_queue q = 0; q < FF_QUEUES; q++) {
        struct ff_wr wr = {.op = FF_OP_READ, .local = dst, .len_bytes = 1};
        err.code = 0;
        /* it may be this poll() that learns of it */
        assert_true(l->ops->poll(l, q, &wc, 1, SOON_MS, &err) < 0);
        assert_true(err.code > 0 && strlen(err.text) > 5);
        assert_true(l->ops->post(l, q, &wr, &err) < 0);
        assert_int_not_equal(err.code, EAGAIN);
    }
    assert_true(l->ops->recv(l, buf, SOON_MS, &err) < 0);
    assert_int_not_equal(err.code, ETIMEDOUT);
    for (int i = 0; i < 2; i++) /* the first one may still fit into a socket */
        if (l->ops->send(l, "x", 1, &err) < 0)
            return;
    fail_msg("%s: a broken link still sends", l->ops->name);
}

static void try_bad_request(const struct bad_request *r)
{
    static struct server s;
    struct ff_error err = {.code = 0};

    struct ff_mr mr = must_reg(p.a, src + 4096, 4096, r->access);
    uint32_t key = r->key_xor == UINT32_MAX ? 0 : mr.rkey ^ r->key_xor;
    if (r->withdraw)
        p.a->ops->dereg(p.a, &mr);
    memcpy(dst, src, 16384);
    server_start(&s, p.a, FF_QUEUE_FAULT);
    struct ff_wr wr = {.id = 5,
                       .op = r->op,
                       .local = dst,
                       .len_bytes = r->len,
                       .rkey = key,
                       .remote = (uintptr_t)(src + 4096) + (uint64_t)r->offset};
    memset(dst, 0xee, 4096);
    int rc = run_wr(p.b, FF_QUEUE_FAULT, &wr, &err);
    if (rc >= 0)
        fail_msg("%s: not refused", r->what);
    if (!says_one_of(err.text, r->says))
        fail_msg("%s: \"%s\" is not in: %s", r->what, r->says, err.text);
    must_be_broken(p.b);
    join_soon(s.thread); /* the side that refused learns of the end too */
    assert_true(s.why.code > 0);
    must_be_broken(p.a);
    for (unsigned i = 0; i < 4096; i++) /* nothing came */
        assert_int_equal(dst[i], 0xee);
    for (unsigned i = 0, n = 16384; i < n && r->op == FF_OP_WRITE; i++)
        assert_true(src[i] == (uint8_t)((i % 4093) * 131 >> 2));
}

static void test_keys(void **state)
{
    bool tcp = !strcmp(p.kind, "tcp");
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad_requests); i++) {
        try_bad_request(&bad_requests[i]);
        pair_close(&p);
        if (tcp)
            pair_open_tcp(&p);
        else
            pair_open_loop(&p);
    }
}

static void test_many_keys(void **state)
{
    static struct ff_mr mr[2000];
    static struct server s;
    struct ff_error err;
    unsigned n = 0;
    (void)state;

    while (n < FF_ARRAY_LEN(mr) &&
           !p.a->ops->reg(p.a, src + n, 1, FF_ACCESS_REMOTE_READ, &mr[n], &err))
        n++;
    /* a table of regions fits, and there is an end */
    assert_in_range(n, 512, FF_ARRAY_LEN(mr) - 1);
    assert_error(err, ENOSPC, "more than");
    for (unsigned i = 0; i < n; i++) {
        assert_int_not_equal(mr[i].rkey, 0);
        for (unsigned k = 0; k < i; k += 1 + k / 4)
            assert_int_not_equal(mr[i].rkey, mr[k].rkey);
    }
    server_start(&s, p.a, FF_QUEUE_FAULT);
    for (unsigned i = 0; i < n; i += 97) {
        struct ff_wr wr = read_of(&mr[i], 0, dst, 1);
        assert_ok(run_wr(p.b, FF_QUEUE_FAULT, &wr, &err), err);
        assert_int_equal(dst[0], src[i]);
    }
    server_join(&s);
    p.a->ops->dereg(p.a, &mr[7]); /* its place can be taken again, by another key */
    uint32_t old = mr[7].rkey;
    mr[7] = must_reg(p.a, src, 1, FF_ACCESS_REMOTE_READ);
    assert_int_not_equal(mr[7].rkey, old);
}

/* --- queues --- */

static void test_depth(void **state)
{
    static struct server s;
    struct ff_error err;
    struct ff_wc wc[16];
    (void)state;

    struct ff_mr mr = must_reg(p.a, src, LARGE, FF_ACCESS_REMOTE_READ);
    for (unsigned round = 0; round < 3; round++) {
        memset(dst, 0, LARGE);
        for (unsigned i = 0; i < FF_QUEUE_DEPTH; i++) { /* nobody serves yet */
            struct ff_wr wr = read_of(&mr, i * 65536, dst + i * 65536, 65536);
            wr.id = i;
            assert_ok(p.b->ops->post(p.b, FF_QUEUE_PREFILL, &wr, &err), err);
        }
        struct ff_wr more = read_of(&mr, 0, dst, 1);
        for (unsigned i = 0; i < 3; i++)
            assert_fails(p.b->ops->post(p.b, FF_QUEUE_PREFILL, &more, &err), EAGAIN);
        /* the other queue has room of its own */
        more.local = dst + LARGE;
        assert_ok(p.b->ops->post(p.b, FF_QUEUE_FAULT, &more, &err), err);

        server_start(&s, p.a, FF_QUEUE_PREFILL);
        for (unsigned i = 0; i < FF_QUEUE_DEPTH;) {
            int n = p.b->ops->poll(p.b, FF_QUEUE_PREFILL, wc, FF_ARRAY_LEN(wc), SOON_MS, &err);
            assert_true(n > 0);
            for (int k = 0; k < n; k++, i++)
                assert_int_equal(wc[k].id, i); /* each once, in order */
        }
        assert_int_equal(p.b->ops->poll(p.b, FF_QUEUE_PREFILL, wc, 1, 0, &err), 0);
        assert_true(!memcmp(dst, src, LARGE));
        server_join(&s);
        server_start(&s, p.a, FF_QUEUE_FAULT);
        assert_ok(wait_one(p.b, FF_QUEUE_FAULT, wc, &err), err);
        server_join(&s);
    }
}

/* Both sides read from each other with full queues: neither may wait for the other for ever */
static void test_both_ways_at_once(void **state)
{
    struct ff_link *end[2] = {p.a, p.b};
    struct ff_mr mr[2] = {must_reg(p.a, src, LARGE, FF_ACCESS_REMOTE_READ),
                          must_reg(p.b, src, LARGE, FF_ACCESS_REMOTE_READ)};
    unsigned done[2] = {0, 0};
    struct ff_error err;
    struct ff_wc wc[8];
    (void)state;

    for (unsigned i = 0; i < FF_QUEUE_DEPTH; i++) {
        for (unsigned e = 0; e < 2; e++) {
            struct ff_wr wr = read_of(&mr[1 - e], 0, dst + e * (LARGE / 2), LARGE / 2);
            assert_ok(end[e]->ops->post(end[e], FF_QUEUE_FAULT, &wr, &err), err);
        }
    }
    uint64_t limit = ff_now_ns() + SOON_MS * 1000000ull;
    while (done[0] + done[1] < 2 * FF_QUEUE_DEPTH) {
        for (unsigned e = 0; e < 2; e++) {
            int n = end[e]->ops->poll(end[e], FF_QUEUE_FAULT, wc, FF_ARRAY_LEN(wc), 1, &err);
            assert_true(n >= 0);
            done[e] += (unsigned)n;
            limit = n ? ff_now_ns() + SOON_MS * 1000000ull : limit;
        }
        if (ff_now_ns() > limit)
            fail_msg("%s: stuck with %u and %u of %u reads done", p.kind, done[0], done[1],
                     FF_QUEUE_DEPTH);
    }
    assert_true(!memcmp(dst, src, LARGE / 2) && !memcmp(dst + LARGE / 2, src, LARGE / 2));
}

/* What waits on PREFILL never delays FAULT: here nobody serves PREFILL at all */
static void test_independent(void **state)
{
    static struct server s;
    struct ff_error err;
    (void)state;

    struct ff_mr mr = must_reg(p.a, src, LARGE, FF_ACCESS_REMOTE_READ);
    for (unsigned i = 0; i < FF_QUEUE_DEPTH; i++) {
        struct ff_wr wr = read_of(&mr, 0, dst, 1 << 20);
        assert_ok(p.b->ops->post(p.b, FF_QUEUE_PREFILL, &wr, &err), err);
    }
    server_start(&s, p.a, FF_QUEUE_FAULT);
    for (unsigned i = 0; i < 100; i++) {
        struct ff_wr wr = read_of(&mr, i * 4096, dst + LARGE, 4096);
        assert_ok(run_wr(p.b, FF_QUEUE_FAULT, &wr, &err), err);
        assert_true(!memcmp(dst + LARGE, src + i * 4096, 4096));
    }
    server_join(&s);
}

static void test_descriptor(void **state)
{
    static struct server s;
    struct ff_error err;
    struct ff_wc wc[2];
    (void)state;

    struct ff_mr mr = must_reg(p.a, src, LARGE, FF_ACCESS_REMOTE_READ);
    short events = 0;
    int rc = p.b->ops->fd(p.b, FF_QUEUE_FAULT, &events);
    struct pollfd fd = {.fd = rc, .events = events};
    assert_true(fd.fd >= 0);
    assert_int_equal(p.b->ops->poll(p.b, FF_QUEUE_FAULT, wc, 2, 0, &err), 0);
    assert_int_equal(poll(&fd, 1, 0), 0);
    server_start(&s, p.a, FF_QUEUE_FAULT);
    for (unsigned i = 0; i < 200; i++) {
        struct ff_wr wr = read_of(&mr, 0, dst, 1 + i * 100);
        assert_ok(p.b->ops->post(p.b, FF_QUEUE_FAULT, &wr, &err), err);
        for (int n = 0; !n;) { /* sleeping on the descriptor alone gets there */
            assert_int_equal(poll(&fd, 1, SOON_MS), 1);
            n = p.b->ops->poll(p.b, FF_QUEUE_FAULT, wc, 2, 0, &err);
            assert_true(n >= 0);
        }
    }
    server_join(&s);
    p.a->ops->shutdown(p.a);
    assert_int_equal(poll(&fd, 1, SOON_MS), 1);
    while (p.b->ops->poll(p.b, FF_QUEUE_FAULT, wc, 2, 0, &err) == 0)
        assert_int_equal(poll(&fd, 1, SOON_MS), 1);
    assert_true(err.code > 0);
}

static void *use_and_leave(void *arg)
{
    struct ff_wr *wr = arg;
    struct ff_error err;

    /* leaves a receive in flight behind */
    p.b->ops->post(p.b, FF_QUEUE_FAULT, wr, &err);
    p.b->ops->poll(p.b, FF_QUEUE_FAULT, NULL, 0, 0, &err);
    return NULL;
}

/* A queue is passed from thread to thread; those that used it before may have ended */
static void test_threads_come_and_go(void **state)
{
    static struct server s;
    struct ff_error err;
    struct ff_wc wc;
    pthread_t t;
    (void)state;

    struct ff_mr mr = must_reg(p.a, src, LARGE, FF_ACCESS_REMOTE_READ);
    for (unsigned i = 0; i < 5; i++) {
        struct ff_wr wr = read_of(&mr, i, dst, LARGE - i);
        assert_int_equal(pthread_create(&t, NULL, use_and_leave, &wr), 0);
        join_soon(t);
        server_start(&s, p.a, FF_QUEUE_FAULT);
        assert_ok(wait_one(p.b, FF_QUEUE_FAULT, &wc, &err), err);
        assert_true(!memcmp(dst, src + i, LARGE - i));
        server_join(&s);
    }
}

/* No RDMA device has the way to 127.0.0.1, wherever this runs: AUTO is tcp, and says why */
static void test_auto(void **state)
{
    struct ff_link_params lp = {.host = "127.0.0.1", .port = "0", .timeout_ms = SOON_MS};
    static const uint8_t hello[] = "hello";
    uint8_t buf[FF_MSG_MAX];
    struct ff_port *port;
    struct ff_error err;
    char number[16];
    struct pair q;
    (void)state;

    assert_ok(ff_port_listen(&lp, FF_LINK_AUTO, &port, &err), err);
    snprintf(number, sizeof(number), "%u", ff_port_number(port));
    lp.port = number;
    q = (struct pair){.kind = "auto"};
    assert_ok(ff_link_connect(&lp, FF_LINK_AUTO, -1, &q.a, &err), err);
    assert_ok(ff_port_accept(port, NULL, 0, -1, &q.b, &err), err);
    assert_string_equal(q.a->ops->name, "tcp");
    assert_string_equal(q.b->ops->name, "tcp");
    assert_true(!strncmp(q.a->about, "tcp (verbs: ", 12) && strlen(q.a->about) > 20);
    assert_true(!strncmp(q.b->about, "tcp (", 5) && strlen(q.b->about) > 10);
    assert_ok(q.a->ops->send(q.a, hello, sizeof(hello), &err), err);
    assert_int_equal(q.b->ops->recv(q.b, buf, SOON_MS, &err), sizeof(hello));
    pair_open_queues(&q);
    pair_close(&q);

    /* who asks for one kind gets no other */
    assert_true(ff_link_connect(&lp, FF_LINK_VERBS, -1, &q.a, &err) < 0);
    assert_error(err, err.code, "link=verbs", "127.0.0.1", "verbs: ");
    ff_port_free(port);
    assert_fails(ff_link_connect(&lp, FF_LINK_AUTO, -1, &q.a, &err), ECONNREFUSED);
    assert_error(err, ECONNREFUSED, "tcp: ", "listening");
    lp.device = "no-such-device";
    assert_true(ff_port_listen(&lp, FF_LINK_VERBS, &port, &err) < 0);
    assert_error(err, err.code, "verbs: ", "no");
}

#define BOTH(test)                                                                          \
    {"loop: " #test, test, start_loop, end, NULL}, {"tcp: " #test, test, start_tcp, end, NULL}, \
    {"key: " #test, test, start_keyed, end, NULL}

UNIT_MAIN(BOTH(test_read_sizes), BOTH(test_zero_map), BOTH(test_poison),
          BOTH(test_poison_in_a_plain_read), BOTH(test_write_both_ways), BOTH(test_keys),
          BOTH(test_many_keys), BOTH(test_depth), BOTH(test_both_ways_at_once),
          BOTH(test_independent), BOTH(test_descriptor), BOTH(test_threads_come_and_go),
          cmocka_unit_test(test_auto))
