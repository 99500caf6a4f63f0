/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * link_verbs.c - inside the lab: what the verbs link promises, between two hosts
 */
#include "hosts.h"

#include <poll.h>

/* --- reads, writes, messages --- */

static void test_reads_and_writes(void **state)
{
    (void)state;
    open_pair(1);
    for (enum ff_queue q = 0; q < FF_QUEUES; q++) {
        read_all(p.a, p.b, q);
        read_all(p.b, p.a, q);
        write_all(p.a, p.b, q);
        write_all(p.b, p.a, q);
    }
}

static void test_messages(void **state)
{
    static const uint32_t sizes[] = {1, VERBS_INLINE - 1, VERBS_INLINE, VERBS_INLINE + 1, 4096,
                                     FF_MSG_MAX};
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    (void)state;

    connect_pair(FF_LINK_VERBS, 1);
    assert_true(verbs_of(p.a)->ctrl_inline > 0); /* soft-RoCE grants what is asked for */
    for (unsigned round = 0; round < 40; round++) /* more than there are receive buffers */
        for (unsigned i = 0; i < FF_ARRAY_LEN(sizes); i++) {
            struct ff_link *from = i % 2 ? p.a : p.b, *to = i % 2 ? p.b : p.a;
            memcpy(dst, src + round + i, sizes[i]);
            assert_ok(from->ops->send(from, dst, sizes[i], &err), err);
            memset(dst, 0, sizes[i]); /* it is the link's from then on */
            assert_int_equal(to->ops->recv(to, buf, SOON_MS, &err), sizes[i]);
            assert_true(!memcmp(buf, src + round + i, sizes[i]));
        }
    assert_fails(p.a->ops->send(p.a, src, FF_MSG_MAX + 1, &err), EMSGSIZE);
    assert_fails(p.a->ops->send(p.a, src, 0, &err), EMSGSIZE);
    assert_fails(p.a->ops->recv(p.a, buf, 20, &err), ETIMEDOUT);
}

static void test_depth(void **state)
{
    struct ff_error err;
    struct ff_wc wc[16];
    (void)state;

    open_pair(1);
    struct ff_mr from = must_reg(p.a, src, LARGE, FF_ACCESS_REMOTE_READ);
    struct ff_mr to = must_reg(p.b, dst, LARGE, 0);
    for (unsigned round = 0; round < 3; round++) {
        memset(dst, 0, LARGE);
        for (unsigned i = 0; i < FF_QUEUE_DEPTH; i++) {
            struct ff_wr wr = read_of(&from, i * 65536, dst + i * 65536, 65536);
            wr.id = i;
            wr.lkey = to.lkey;
            assert_ok(p.b->ops->post(p.b, FF_QUEUE_PREFILL, &wr, &err), err);
        }
        struct ff_wr more = read_of(&from, 0, dst, 1);
        assert_fails(p.b->ops->post(p.b, FF_QUEUE_PREFILL, &more, &err), EAGAIN);
        for (unsigned i = 0; i < FF_QUEUE_DEPTH;) {
            int n = p.b->ops->poll(p.b, FF_QUEUE_PREFILL, wc, FF_ARRAY_LEN(wc), SOON_MS, &err);
            if (n <= 0)
            fail_msg("%d: %s", n, n ? err.text : "no completion");
            for (int k = 0; k < n; k++, i++)
                assert_int_equal(wc[k].id, i); /* each once, in order */
        }
        assert_true(!memcmp(dst, src, LARGE));
    }
}

static void test_qps(void **state)
{
    struct ff_error err;
    struct ff_wc wc[16];
    (void)state;

    open_pair(4);
    assert_true(says(p.a->about, "4 prefill queue pairs"));
    assert_true(says(p.b->about, "4 prefill queue pairs"));
    struct ff_mr from = must_reg(p.a, src, LARGE, FF_ACCESS_REMOTE_READ);
    struct ff_mr to = must_reg(p.b, dst, LARGE, 0);
    memset(dst, 0, LARGE);
    for (unsigned i = 0; i < FF_QUEUE_DEPTH; i++) {
        struct ff_wr wr = read_of(&from, i * 65536, dst + i * 65536, 65536);
        wr.id = i;
        wr.lkey = to.lkey;
        assert_ok(p.b->ops->post(p.b, FF_QUEUE_PREFILL, &wr, &err), err);
    }
    for (unsigned i = 0; i < 4; i++) /* spread evenly, whatever is complete by now */
        assert_int_equal(verbs_of(p.b)->q[VERBS_PREFILL].conn[i].n_busy, FF_QUEUE_DEPTH / 4);
    uint64_t seen = 0;
    for (unsigned i = 0; i < FF_QUEUE_DEPTH;) {
        int n = p.b->ops->poll(p.b, FF_QUEUE_PREFILL, wc, FF_ARRAY_LEN(wc), SOON_MS, &err);
        if (n <= 0)
            fail_msg("%d: %s", n, n ? err.text : "no completion");
        for (int k = 0; k < n; k++, i++) {
            assert_false(seen >> wc[k].id & 1);
            seen |= 1ull << wc[k].id;
        }
    }
    assert_true(!memcmp(dst, src, LARGE));
    p.b->ops->dereg(p.b, &to);
    for (unsigned i = 0; i < 5; i++) { /* an immediate by each of them */
        write_all(p.a, p.b, FF_QUEUE_PREFILL);
        read_all(p.a, p.b, FF_QUEUE_FAULT);
    }
    pair_close(&p);
    open_pair(8);
    read_all(p.a, p.b, FF_QUEUE_PREFILL);
}

/* --- refusals --- */

/* From here on every call fails, on both sides, and says why */
static void must_be_broken(struct ff_link *l)
{
    struct ff_error err = {.code = 0};
    struct ff_wc wc;
    static uint8_t buf[FF_MSG_MAX];

    for (enum ff_queue q = 0; q < FF_QUEUES; q++) {
        struct ff_wr wr = {.op = FF_OP_READ, .local = dst, .len_bytes = 1};
        assert_true(l->ops->poll(l, q, &wc, 1, SOON_MS, &err) < 0);
        assert_true(err.code > 0 && strlen(err.text) > 5);
        assert_true(l->ops->post(l, q, &wr, &err) < 0);
        assert_int_not_equal(err.code, EAGAIN);
    }
    assert_true(l->ops->recv(l, buf, SOON_MS, &err) < 0);
    assert_int_not_equal(err.code, ETIMEDOUT);
    assert_fails(l->ops->send(l, "x", 1, &err), EPIPE);
}

struct bad_request {
    const char *what;
    enum ff_op op;
    unsigned access;
    int64_t offset;
    uint32_t len, key_xor;
    bool withdraw;
};

static const struct bad_request bad_requests[] = {
    {"withdrawn", FF_OP_READ, FF_ACCESS_REMOTE_READ, 0, 8, 0, true},
    {"a key that is not", FF_OP_READ, FF_ACCESS_REMOTE_READ, 0, 8, 0x5500, false},
    {"read of write-only", FF_OP_READ, FF_ACCESS_REMOTE_WRITE, 0, 8, 0, false},
    {"read of what nobody may", FF_OP_READ, 0, 0, 8, 0, false},
    {"one byte before", FF_OP_READ, FF_ACCESS_REMOTE_READ, -1, 8, 0, false},
    {"one byte beyond", FF_OP_READ, FF_ACCESS_REMOTE_READ, 4089, 8, 0, false},
    {"longer than it", FF_OP_READ, FF_ACCESS_REMOTE_READ, 0, 4097, 0, false},
    {"write to read-only", FF_OP_WRITE, FF_ACCESS_REMOTE_READ, 0, 8, 0, false},
    {"write beyond", FF_OP_WRITE, FF_ACCESS_REMOTE_WRITE, 4089, 8, 0, false},
    {"write, withdrawn", FF_OP_WRITE, FF_ACCESS_REMOTE_WRITE, 0, 8, 0, true},
};

static void try_bad_request(const struct bad_request *r)
{
    enum ff_queue q = r->len % 2 ? FF_QUEUE_PREFILL : FF_QUEUE_FAULT;
    struct ff_error err = {.code = 0};
    char name[64];

    open_pair(1);
    struct ff_mr mr = must_reg(p.a, src + 4096, 4096, r->access);
    struct ff_mr mine = must_reg(p.b, dst, 8192, 0);
    uint32_t key = mr.rkey ^ r->key_xor;
    if (r->withdraw)
        p.a->ops->dereg(p.a, &mr);
    memset(dst, 0xee, 8192);
    struct ff_wr wr = {.id = 5,
                       .op = r->op,
                       .local = dst,
                       .lkey = mine.lkey,
                       .len_bytes = r->len,
                       .rkey = key,
                       .remote = (uintptr_t)(src + 4096) + (uint64_t)r->offset};
    if (run_wr(p.b, q, &wr, &err) >= 0)
        fail_msg("%s: not refused", r->what);
    snprintf(name, sizeof(name), "%s on %s queue pair ", r->op == FF_OP_READ ? "READ" : "WRITE",
             q == FF_QUEUE_FAULT ? "fault" : "prefill");
    if (err.code != EREMOTEIO || !strstr(err.text, name) || !strstr(err.text, "status 10") ||
        !strstr(err.text, "withdrawn"))
        fail_msg("%s: not said: %d %s", r->what, err.code, err.text);
    if (r == bad_requests)
        printf("link_verbs: %s: %s\n", r->what, err.text);
    must_be_broken(p.b);
    must_be_broken(p.a);
    for (unsigned i = 0; i < 8192; i++) /* nothing came, nothing went */
        assert_int_equal(dst[i], 0xee);
    for (unsigned i = 0; i < 16384; i++)
        assert_true(src[i] == (uint8_t)((i % 4093) * 131 >> 2));
    pair_close(&p);
}

static void test_keys(void **state)
{
    (void)state;
    for (size_t i = 0; i < FF_ARRAY_LEN(bad_requests); i++)
        try_bad_request(&bad_requests[i]);
}

static void test_wrong_session(void **state)
{
    static const uint8_t other[FF_SESSION_LEN] = "another one";
    struct passive s;
    struct ff_error err;
    (void)state;

    connect_pair(FF_LINK_VERBS, 1);
    s = (struct passive){.link = p.b, .session = session, .timeout_ms = 10 * SOON_MS};
    passive_start(&s, queues_main);
    int rc = p.a->ops->open_queues(p.a, other, SOON_MS, &err);
    p.a->ops->free(p.a); /* the passive side waits for queues no longer, at once */
    p.a = NULL;
    join_soon(s.thread);
    assert_int_equal(rc, -ECONNREFUSED);
    assert_error(err, ECONNREFUSED, "not of this session", "fault");
    assert_error(s.err, ECONNRESET, "control queue pair", "closed the connection");
}

/* --- who goes, and when --- */

static void test_shutdown_wakes(void **state)
{
    static struct server s[2];
    struct passive q;
    struct ff_error err;
    (void)state;

    open_pair(2);
    server_start(&s[0], p.a, FF_QUEUE_FAULT);
    server_start(&s[1], p.b, FF_QUEUE_PREFILL);
    p.b->ops->shutdown(p.b);
    join_soon(s[0].thread);
    join_soon(s[1].thread);
    assert_error(s[0].why, ECONNRESET, "closed the connection");
    assert_error(s[1].why, ECONNRESET, "shut down on this side");
    must_be_broken(p.a);
    must_be_broken(p.b);
    pair_close(&p);

    /* before the queues are there: no QP may be made after the break and live on */
    connect_pair(FF_LINK_VERBS, 1);
    q = (struct passive){.link = p.b, .session = session, .timeout_ms = 10 * SOON_MS};
    passive_start(&q, queues_main);
    p.b->ops->shutdown(p.b);
    join_soon(q.thread);
    assert_error(q.err, ECONNRESET, "shut down");
    assert_true(p.a->ops->open_queues(p.a, session, SOON_MS, &err) < 0);
    assert_int_not_equal(err.code, ETIMEDOUT);
    assert_true(p.b->ops->open_queues(p.b, session, SOON_MS, &err) < 0);
}

static void test_peer_killed(void **state)
{
    static const char *const stages[] = {"hello", "queues"};
    struct ff_error err;
    (void)state;

    for (unsigned i = 0; i < FF_ARRAY_LEN(stages); i++) {
        char number[16], *const argv[] = {"link_verbs", "peer", number, (char *)stages[i], NULL};
        struct passive s = {.rc = 0};
        uint8_t buf[FF_MSG_MAX];
        pid_t pid;

        snprintf(number, sizeof(number), "%u", ff_port_number(port));
        assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
        passive_start(&s, accept_main);
        join_soon(s.thread);
        assert_ok(s.rc, s.err);
        p.b = s.link;
        assert_int_equal(p.b->ops->recv(p.b, buf, SOON_MS, &err), 6);
        s = (struct passive){.link = p.b, .session = session, .timeout_ms = 10 * SOON_MS};
        passive_start(&s, queues_main);
        if (i == 1) /* it says so when they are open */
            assert_int_equal(p.b->ops->recv(p.b, buf, SOON_MS, &err), 6);
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        join_soon(s.thread);
        if (i == 0)
            assert_error(s.err, ECONNRESET, "closed the connection");
        else
            must_be_broken(p.b);
        pair_close(&p);
    }
}

static int peer_main(const char *number, const char *stage)
{
    struct ff_link_params lp = {
        .host = HOST_B, .port = number, .timeout_ms = SOON_MS, .insecure = true};
    struct ff_error err;
    struct ff_link *l;

    if (ff_link_connect(&lp, FF_LINK_VERBS, -1, &l, &err) || l->ops->send(l, "hello", 6, &err) ||
        (!strcmp(stage, "queues") &&
         (l->ops->open_queues(l, session, SOON_MS, &err) || l->ops->send(l, "ready", 6, &err)))) {
        fprintf(stderr, "peer: %s\n", err.text);
        return 1;
    }
    poll(NULL, 0, 10 * SOON_MS); /* until it is killed */
    return 1;
}

/* --- which link, which device --- */

static void test_auto(void **state)
{
    struct passive s = {.rc = 0};
    struct ff_error err;
    uint8_t buf[FF_MSG_MAX];
    (void)state;

    connect_pair(FF_LINK_AUTO, 1);
    assert_string_equal(p.a->ops->name, "verbs");
    printf("link_verbs: %s; %s\n", p.a->about, p.b->about);
    assert_true(says(p.a->about, "verbs (rxea port 1, RoCE v2, GID 1 ::ffff:10.8.0.1, MTU "));
    assert_true(says(p.b->about, "verbs (rxeb port 1, RoCE v2"));

    /* who has connected by verbs and leaves without a word is not in the way of his tcp */
    p.a->ops->free(p.a);
    p.a = NULL;
    assert_true(p.b->ops->recv(p.b, buf, 10 * SOON_MS, &err) < 0);
    assert_int_not_equal(err.code, ETIMEDOUT);
    p.b->ops->free(p.b);
    p.b = NULL;
    passive_start(&s, accept_main);
    assert_ok(connect_a(HOST_B, FF_LINK_TCP, NULL, 1, &err), err);
    join_soon(s.thread);
    assert_ok(s.rc, s.err);
    p.b = s.link;
    assert_true(says(p.b->about, "tcp (the source chose it)"));
    pair_close(&p);

    /* the destination takes tcp alone */
    ff_port_free(port);
    listen_on("hostb", HOST_B, FF_LINK_TCP, NULL);
    connect_pair(FF_LINK_AUTO, 1);
    assert_true(says(p.a->about, "tcp (verbs: ") && says(p.a->about, "nobody listens"));
    assert_fails(connect_a(HOST_B, FF_LINK_VERBS, NULL, 1, &err), ECONNREFUSED);
    assert_error(err, ECONNREFUSED, "link=verbs", "nobody listens");
    pair_close(&p);

    /* no RDMA device has the way there */
    ff_port_free(port);
    listen_on("hosta", "127.0.0.1", FF_LINK_AUTO, NULL);
    s = (struct passive){.rc = 0};
    passive_start(&s, accept_main);
    int rc = connect_a("127.0.0.1", FF_LINK_AUTO, NULL, 1, &err);
    join_soon(s.thread);
    assert_ok(rc, err);
    p.b = s.link;
    printf("link_verbs: %s; %s\n", p.a->about, p.b->about);
    assert_true(says(p.a->about, "tcp (verbs: ") && says(p.b->about, "tcp ("));
}

static void test_every_address(void **state)
{
    static const char *const addrs[] = {HOST_B, "fd08::2"};
    struct ff_error err;
    (void)state;

    ff_port_free(port);
    listen_on("hostb", "", FF_LINK_AUTO, NULL);
    for (unsigned i = 0; i < FF_ARRAY_LEN(addrs); i++) {
        struct passive s = {.rc = 0};
        passive_start(&s, accept_main);
        int rc = connect_a(addrs[i], FF_LINK_VERBS, i ? "rxea" : NULL, 1, &err);
        if (rc)
            ff_port_cancel(port);
        join_soon(s.thread);
        assert_ok(rc, err);
        p.b = s.link;
        assert_true(says(p.a->about, i ? "GID 2 fd08::1" : "GID 1 ::ffff:10.8.0.1"));
        open_queues();
        read_all(p.a, p.b, FF_QUEUE_FAULT);
        pair_close(&p);
    }
}

/* A destination that gives up its privileges after it listens, as QEMU's -run-with does, gets
 * no RDMA any more from the kernel: it must say so, go on over TCP, and not turn in circles */
static void test_changed_user(void **state)
{
    struct passive s = {.rc = 0};
    struct ff_error err;
    (void)state;

    drop_ipc_lock();
    passive_start(&s, accept_main);
    int rc = connect_a(HOST_B, FF_LINK_AUTO, NULL, 1, &err);
    join_soon(s.thread);
    assert_ok(rc, err);
    assert_ok(s.rc, s.err);
    p.b = s.link;
    printf("link_verbs: %s; %s\n", p.a->about, p.b->about);
    assert_true(says(p.a->about, "tcp (verbs: "));
    assert_true(says(p.b->about, "tcp (verbs: ") && says(p.b->about, "change its user"));
    open_queues();
}

static void test_changed_user_apart(void **state)
{
    static char *const argv[] = {"link_verbs", "user", NULL};
    int status;
    pid_t pid;
    (void)state;

    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* RDMA packets to a host are dropped, as by a firewall; TCP is not */
static void block_rdma(const char *host, const char *dev, bool on)
{
    char cmd[256];

    snprintf(cmd, sizeof(cmd), "tc -n %s qdisc %s dev %s clsact", host, on ? "add" : "del", dev);
    assert_int_equal(system(cmd), 0);
    snprintf(cmd, sizeof(cmd), "tc -n %s filter add dev %s ingress protocol ip flower ip_proto udp "
             "dst_port 4791 action drop", host, dev);
    if (on)
        assert_int_equal(system(cmd), 0);
}

/* As a destination does: who says nothing is dropped, and the next one heard */
static void *hear_main(void *arg)
{
    struct passive *s = arg;
    static uint8_t buf[FF_MSG_MAX];

    while (!(s->rc = ff_port_accept(port, NULL, 0, -1, &s->link, &s->err))) {
        int n = s->link->ops->recv(s->link, buf, 10 * SOON_MS, &s->err);
        if (n > 0)
            break;
        printf("link_verbs: dropped: %s\n", s->err.text);
        s->link->ops->free(s->link);
    }
    return NULL;
}

static void test_auto_blocked(void **state)
{
    static const char *const hosts[][2] = {{"hostb", "ethb"}, {"hosta", "etha"}};
    struct ff_error err;
    (void)state;

    /* the request is lost; or the answer: the destination then has a link that leads nowhere */
    for (unsigned i = 0; i < FF_ARRAY_LEN(hosts); i++) {
        struct passive s = {.rc = 0};
        block_rdma(hosts[i][0], hosts[i][1], true);
        passive_start(&s, hear_main);
        int rc = connect_a(HOST_B, FF_LINK_AUTO, NULL, 1, &err);
        if (!rc)
            rc = p.a->ops->send(p.a, "hello", 6, &err);
        join_soon(s.thread); /* within 3 s and a little, in any case before a source gives up */
        block_rdma(hosts[i][0], hosts[i][1], false);
        assert_ok(rc, err);
        assert_ok(s.rc, s.err);
        p.b = s.link;
        assert_string_equal(p.b->ops->name, "tcp");
        assert_true(says(p.a->about, "tcp (verbs: ") && says(p.a->about, "does not answer"));
        open_queues();
        pair_close(&p);
    }
    connect_pair(FF_LINK_AUTO, 1);
    assert_string_equal(p.a->ops->name, "verbs");
}

/* Nobody posts anything: a peer that is there is not taken for gone, and one whose host fell
 * silent is, long before the wait for a message ends */
static void test_silent_network(void **state)
{
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    (void)state;

    open_pair(1);
    p.a->ops->set_timeout(p.a, 1500);
    p.b->ops->set_timeout(p.b, 1500);
    assert_fails(p.a->ops->recv(p.a, buf, 3000, &err), ETIMEDOUT);
    assert_error(err, ETIMEDOUT, "receive: timed out");
    assert_ok(p.b->ops->send(p.b, "hello", 6, &err), err);
    assert_int_equal(p.a->ops->recv(p.a, buf, SOON_MS, &err), 6);

    block_rdma("hostb", "ethb", true);
    uint64_t start = ff_now_ns();
    int rc = p.a->ops->recv(p.a, buf, 10 * SOON_MS, &err);
    uint64_t ms = (ff_now_ns() - start) / 1000000;
    block_rdma("hostb", "ethb", false);
    assert_int_equal(rc, -EHOSTUNREACH); /* not as if nothing had been heard yet */
    assert_error(err, EHOSTUNREACH, "WRITE on control queue pair", "the peer does not answer");
    printf("link_verbs: a silent network was noticed after %llu ms\n", (unsigned long long)ms);
    assert_true(ms < 9 * SOON_MS);
    assert_fails(p.a->ops->send(p.a, "hello", 6, &err), EPIPE);
}

static void test_device(void **state)
{
    static const char *const good[] = {"rxea", "rxea:1"};
    static const struct {
        const char *device, *word, *word2;
        int code;
    } bad[] = {
        {"rxe", "no such RDMA device", "rxea, rxeb", ENODEV},
        {"rxea:2", "device=rxea:2", "IPv4", EADDRNOTAVAIL},
        {"rxeb", "device=rxeb", "no own IPv4 address", EADDRNOTAVAIL},
    };
    struct ff_error err;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(good); i++) {
        struct passive s = {.rc = 0};
        passive_start(&s, accept_main);
        int rc = connect_a(HOST_B, FF_LINK_VERBS, good[i], 1, &err);
        join_soon(s.thread);
        assert_ok(rc, err);
        p.b = s.link;
        assert_true(says(p.a->about, "rxea port 1"));
        pair_close(&p);
    }
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        assert_fails(connect_a(HOST_B, FF_LINK_VERBS, bad[i].device, 1, &err), bad[i].code);
        assert_error(err, bad[i].code, "verbs: ");
        assert_true(says(err.text, bad[i].word) && says(err.text, bad[i].word2));
    }

    /* passive: what came by another device hears so */
    ff_port_free(port);
    listen_on("hostb", HOST_B, FF_LINK_VERBS, "rxea");
    struct passive s = {.rc = 0};
    passive_start(&s, accept_main);
    int rc = connect_a(HOST_B, FF_LINK_VERBS, NULL, 1, &err);
    ff_port_cancel(port);
    join_soon(s.thread);
    assert_int_equal(rc, -ECONNREFUSED);
    assert_error(err, ECONNREFUSED, "came by device rxeb", "device=rxea");
    assert_error(s.err, ECANCELED, "canceled");
    ff_port_free(port);
    listen_on("hostb", HOST_B, FF_LINK_VERBS, "rxeb:1");
    connect_pair(FF_LINK_VERBS, 1);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        WITH(test_auto), WITH(test_reads_and_writes), WITH(test_messages), WITH(test_depth),
        WITH(test_qps), WITH(test_keys), WITH(test_wrong_session), WITH(test_shutdown_wakes),
        WITH(test_peer_killed), WITH(test_device), WITH(test_every_address),
        WITH(test_auto_blocked), WITH(test_silent_network), WITH(test_changed_user_apart),
    };

    if (argc == 4 && !strcmp(argv[1], "peer"))
        return peer_main(argv[2], argv[3]);
    const struct CMUnitTest apart[] = {WITH(test_changed_user)};
    int rc = enter_lab();
    if (!rc && argc == 2 && !strcmp(argv[1], "user"))
        return cmocka_run_group_tests(apart, NULL, NULL) ? 1 : 0;
    return rc ? rc : cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
