/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_link_tcp.c - the tcp link alone: strangers, ports, names, cancelling, short reads and writes
 */
#include "pair.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "failpoint.h"
#include "kept_log.h"
#include "tcp_wire.h"

static const uint8_t session[FF_SESSION_LEN] = "a session of 16";
static const struct tcp_tokens tokens = {.of = {"a session of 16", "a session of 16"}};
static bool said_twice; /* what a name resolves to */

static int start(void **state)
{
    (void)state;
    keep_logs_from_now(FF_LOG_DEBUG);
    return 0;
}

static int end(void **state)
{
    (void)state;
    ff_log_set(NULL, FF_LOG_WARN);
    said_twice = false;
    return ff_failpoints_arm("", NULL);
}

static struct ff_listener *must_listen(const char *host, char port[16])
{
    struct ff_link_params lp = {.host = host, .port = "0", .timeout_ms = 15000};
    struct ff_listener *ls = NULL;
    struct ff_error err;

    assert_ok(ff_tcp_listen(&lp, &ls, &err), err);
    unsigned n = ff_tcp_port(ls);
    assert_in_range(n, 1, 65535);
    snprintf(port, 16, "%u", n);
    return ls;
}

static int plain_connect(const char *port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)atoi(port))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    return fd;
}

static void say(int fd, const void *data, size_t len)
{
    assert_int_equal(send(fd, data, len, MSG_NOSIGNAL), len);
}

/* The other end has closed: a read ends, within the limit */
static void must_be_dropped(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char buf[256];

    assert_int_equal(poll(&p, 1, SOON_MS), 1);
    while (recv(fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
        assert_int_equal(poll(&p, 1, SOON_MS), 1);
    close(fd);
}

static void use_pair(struct pair *p)
{
    static uint8_t mem[100000], to[100000];
    static struct server s;
    struct ff_error err;

    pattern(mem, sizeof(mem), 3);
    struct ff_mr mr = must_reg(p->a, mem, sizeof(mem), FF_ACCESS_REMOTE_READ);
    for (enum ff_queue q = 0; q < FF_QUEUES; q++) {
        memset(to, 0, sizeof(to));
        server_start(&s, p->a, q);
        struct ff_wr wr = read_of(&mr, 0, to, sizeof(to));
        assert_ok(run_wr(p->b, q, &wr, &err), err);
        assert_memory_equal(to, mem, sizeof(to));
        server_join(&s);
    }
}

/* --- strangers --- */

/* Whoever joins without the session's secret is dropped with a warning; the right one gets in,
 * whoever says nothing meanwhile. What is no join may be another source: it is heard afterwards */
static void test_strangers_at_the_queues(void **state)
{
    uint8_t join[TCP_JOIN_LEN];
    struct ff_error err;
    static uint8_t buf[FF_MSG_MAX];
    struct pair p;
    char port[16];
    int fd[5];
    (void)state;

    pair_connect_tcp(&p, "127.0.0.1", 15000);
    snprintf(port, sizeof(port), "%u", ff_tcp_port(p.listener));

    fd[0] = plain_connect(port); /* rubbish */
    say(fd[0], "GET / HTTP/1.0\r\nHost: localhost\r\n\r\n", 36);
    fd[1] = plain_connect(port); /* another session */
    tcp_join_encode(join, FF_QUEUE_FAULT, &(struct tcp_tokens){.of = {"A session of 16"}});
    say(fd[1], join, sizeof(join));
    fd[2] = plain_connect(port); /* leaves in the middle */
    say(fd[2], join, sizeof(join) - 1);
    shutdown(fd[2], SHUT_WR);
    fd[3] = plain_connect(port); /* says nothing */
    fd[4] = plain_connect(port); /* an unknown queue */
    tcp_join_encode(join, FF_QUEUE_FAULT, &tokens);
    join[6] = 2;
    say(fd[4], join, sizeof(join));

    assert_ok(p.a->ops->open_queues(p.a, session, SOON_MS, &err), err);
    assert_ok(p.b->ops->open_queues(p.b, session, SOON_MS, &err), err);
    assert_int_equal(atomic_load(&n_logs), 2); /* of three: the first, the second, the fourth */
    assert_non_null(strstr(last_log, "dropped (2 so far)"));
    must_be_dropped(fd[1]);
    must_be_dropped(fd[2]);
    must_be_dropped(fd[4]);
    use_pair(&p);
    struct ff_link *l;
    assert_ok(ff_tcp_accept(p.listener, 0, &l, &err), err);
    assert_fails(l->ops->recv(l, buf, SOON_MS, &err), EPROTO);
    assert_error(err, EPROTO, "magic");
    l->ops->free(l);
    must_be_dropped(fd[0]);
    pair_close(&p);
    must_be_dropped(fd[3]); /* with the listener */
}

static void test_queue_joined_twice(void **state)
{
    uint8_t join[TCP_JOIN_LEN];
    struct ff_error err;
    struct pair p;
    char port[16];
    (void)state;

    pair_connect_tcp(&p, "127.0.0.1", 15000);
    snprintf(port, sizeof(port), "%u", ff_tcp_port(p.listener));
    int first = plain_connect(port), second = plain_connect(port), third = plain_connect(port);
    tcp_join_encode(join, FF_QUEUE_FAULT, &tokens);
    say(first, join, sizeof(join));
    say(second, join, sizeof(join));
    tcp_join_encode(join, FF_QUEUE_PREFILL, &tokens);
    say(third, join, sizeof(join));
    assert_ok(p.b->ops->open_queues(p.b, session, SOON_MS, &err), err);
    assert_int_equal(atomic_load(&n_logs), 1);
    assert_non_null(strstr(last_log, "open already"));
    must_be_dropped(second);
    close(first);
    close(third);
    pair_close(&p);
}

static void test_nobody_joins(void **state)
{
    struct ff_error err;
    struct pair p;
    (void)state;

    pair_connect_tcp(&p, "127.0.0.1", 15000);
    uint64_t t = ff_now_ns();
    assert_fails(p.b->ops->open_queues(p.b, session, 100, &err), ETIMEDOUT);
    assert_error(err, ETIMEDOUT, "queues");
    assert_in_range((ff_now_ns() - t) / 1000000, 100, SOON_MS);
    pair_close(&p);
}

static void test_rubbish_control(void **state)
{
    static const char *const rubbish[] = {
        "GET / HTTP/1.0\r\n\r\n", "\x46\x46\x63\x6d\0\0\0\0", "FFcm\0\0\0\0",
        "FFcm\1\0\1\0........",   "FFcm\xff\xff\xff\xff",
    };
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    struct ff_link *l;
    char port[16];
    struct ff_listener *ls = must_listen("127.0.0.1", port);
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(rubbish); i++) {
        int fd = plain_connect(port);
        say(fd, rubbish[i], 8);
        assert_ok(ff_tcp_accept(ls, SOON_MS, &l, &err), err);
        assert_fails(l->ops->recv(l, buf, SOON_MS, &err), EPROTO);
        assert_error(err, EPROTO, "tcp: read control message");
        l->ops->free(l);
        must_be_dropped(fd);
    }
    int fd = plain_connect(port); /* half a message, then nothing, then the end */
    say(fd, "FFcm\x10\0\0\0half", 12);
    assert_ok(ff_tcp_accept(ls, SOON_MS, &l, &err), err);
    assert_fails(l->ops->recv(l, buf, 20, &err), ETIMEDOUT);
    close(fd);
    assert_fails(l->ops->recv(l, buf, SOON_MS, &err), ECONNRESET);
    l->ops->free(l);
    ff_tcp_listener_free(ls);
}

/* Bytes on a queue that are no frame break the link and say so */
static void test_rubbish_on_a_queue(void **state)
{
    uint8_t join[TCP_JOIN_LEN];
    struct ff_error err;
    struct ff_wc wc;
    struct pair p;
    char port[16];
    (void)state;

    pair_connect_tcp(&p, "127.0.0.1", 15000);
    snprintf(port, sizeof(port), "%u", ff_tcp_port(p.listener));
    int fd[2];
    for (enum ff_queue q = 0; q < FF_QUEUES; q++) {
        fd[q] = plain_connect(port);
        tcp_join_encode(join, q, &tokens);
        say(fd[q], join, sizeof(join));
    }
    assert_ok(p.b->ops->open_queues(p.b, session, SOON_MS, &err), err);
    say(fd[0], "The quick brown fox jumps over the lazy dog", 43);
    assert_fails(p.b->ops->poll(p.b, FF_QUEUE_FAULT, &wc, 1, SOON_MS, &err), EPROTO);
    assert_error(err, EPROTO, "not a Farfork peer");
    must_be_dropped(fd[0]);
    must_be_dropped(fd[1]);
    pair_close(&p);
}

/* --- addresses --- */

static void test_port_in_use(void **state)
{
    struct ff_listener *second = NULL;
    struct ff_error err;
    char port[16];
    struct ff_listener *ls = must_listen("127.0.0.1", port);
    struct ff_link_params lp = {.host = "127.0.0.1", .port = port, .timeout_ms = 15000};
    (void)state;

    assert_fails(ff_tcp_listen(&lp, &second, &err), EADDRINUSE);
    assert_error(err, EADDRINUSE, "127.0.0.1", "choose another port");
    assert_non_null(strstr(err.text, port));
    assert_null(second);
    ff_tcp_listener_free(ls);
    assert_ok(ff_tcp_listen(&lp, &second, &err), err); /* at once, also after connections */
    ff_tcp_listener_free(second);
}

/* Every address of a host, at a port that the kernel chooses: one port, which is the one that is said */
static void test_one_port(void **state)
{
    struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    char port[16];
    struct ff_listener *ls = must_listen("", port);
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)state;

    close(plain_connect(port));
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&sa, sizeof(sa))) { /* this host has IPv6 */
        sa.sin6_port = htons((uint16_t)atoi(port));
        assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    } else {
        printf("SKIP: no IPv6 on the loopback\n");
    }
    close(fd);
    ff_tcp_listener_free(ls);
}

/* A name of which a hosts file says an address twice (ld --wrap) */
int __real_getaddrinfo(const char *n, const char *s, const struct addrinfo *h, struct addrinfo **l);
int __wrap_getaddrinfo(const char *n, const char *s, const struct addrinfo *h, struct addrinfo **l);

int __wrap_getaddrinfo(const char *n, const char *s, const struct addrinfo *h, struct addrinfo **l)
{
    int rc = __real_getaddrinfo(n, s, h, l);

    while (!rc && said_twice && *l)
        l = &(*l)->ai_next;
    return rc || !said_twice ? rc : __real_getaddrinfo(n, s, h, l);
}

static void test_address_twice(void **state)
{
    char port[16];
    (void)state;
    said_twice = true;
    struct ff_listener *ls = must_listen("", port);
    close(plain_connect(port));
    ff_tcp_listener_free(ls);
}

/* Who has looked a name up before listens there, and asks nobody */
static void test_listen_known(void **state)
{
    const struct ff_link_params own = {.host = "127.0.0.1", .port = "0"};
    struct ff_peers peers;
    struct ff_link_params lp = {.host = "farfork.invalid", .port = "0", .timeout_ms = 15000, .peers = &peers};
    struct ff_listener *ls;
    struct ff_error err;
    char port[16];
    (void)state;

    assert_ok(ff_peers_find(&own, &peers, &err), err);
    peers.at[peers.n++] = peers.at[0]; /* of two one is enough */
    assert_ok(ff_tcp_listen(&lp, &ls, &err), err);
    snprintf(port, sizeof(port), "%u", ff_tcp_port(ls));
    close(plain_connect(port));
    ff_tcp_listener_free(ls);
    peers.n = 0;
    assert_fails(ff_tcp_listen(&lp, &ls, &err), EADDRNOTAVAIL);
    assert_error(err, EADDRNOTAVAIL, "look up farfork.invalid:0");
}

static void test_connect_refused(void **state)
{
    struct ff_link *l = NULL;
    struct ff_error err;
    char port[16];
    (void)state;

    ff_tcp_listener_free(must_listen("127.0.0.1", port));
    struct ff_link_params lp = {.host = "127.0.0.1", .port = port, .timeout_ms = 15000};
    assert_fails(ff_tcp_connect(&lp, -1, &l, &err), ECONNREFUSED);
    assert_error(err, ECONNREFUSED, "127.0.0.1", "is the destination");
    assert_null(l);
}

static void connect_by(const char *host, const char *connect_host)
{
    char bound[16];
    struct ff_link_params lp = {.host = connect_host, .timeout_ms = 15000};
    struct pair p = {.kind = "tcp"};
    struct ff_error err;

    p.listener = must_listen(host, bound);
    lp.port = bound;
    assert_ok(ff_tcp_connect(&lp, -1, &p.a, &err), err);
    assert_ok(ff_tcp_accept(p.listener, SOON_MS, &p.b, &err), err);
    pair_open_queues(&p);
    use_pair(&p);
    pair_close(&p);
}

static bool have_ipv6(void)
{
    struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool yes = fd >= 0 && !bind(fd, (struct sockaddr *)&sa, sizeof(sa));

    if (fd >= 0)
        close(fd);
    return yes;
}

static void test_ipv6(void **state)
{
    (void)state;
    if (!have_ipv6()) {
        print_message("SKIP: this host has no IPv6 loopback (::1): sysctl "
                      "net.ipv6.conf.lo.disable_ipv6=0\n");
        skip();
    }
    connect_by("::1", "::1");
}

static void test_names(void **state)
{
    struct ff_link_params lp = {.host = "no-such-host.invalid", .port = "1", .timeout_ms = 1000};
    struct ff_listener *ls;
    struct ff_link *l;
    struct ff_error err;
    (void)state;

    connect_by("localhost", "localhost");
    connect_by("", "127.0.0.1"); /* any address */
    connect_by(NULL, "localhost");
    assert_true(ff_tcp_connect(&lp, -1, &l, &err) < 0);
    assert_non_null(strstr(err.text, "no-such-host.invalid"));
    assert_true(ff_tcp_listen(&lp, &ls, &err) < 0);
    lp.host = "192.0.2.77"; /* an address that is not ours */
    lp.port = "0";
    assert_fails(ff_tcp_listen(&lp, &ls, &err), EADDRNOTAVAIL);
}

/* --- giving up --- */

struct accepter {
    pthread_t thread;
    struct ff_listener *ls;
    struct ff_link *link;
    int rc;
    struct ff_error err;
};

static void *accept_main(void *arg)
{
    struct accepter *a = arg;
    a->rc = ff_tcp_accept(a->ls, -1, &a->link, &a->err);
    return NULL;
}

static void test_cancel_accept(void **state)
{
    struct accepter a = {.ls = NULL};
    struct ff_link *l;
    struct ff_error err;
    char port[16];
    (void)state;

    a.ls = must_listen("127.0.0.1", port);
    assert_fails(ff_tcp_accept(a.ls, 0, &l, &err), ETIMEDOUT);
    assert_fails(ff_tcp_accept(a.ls, 30, &l, &err), ETIMEDOUT);
    assert_int_equal(pthread_create(&a.thread, NULL, accept_main, &a), 0);
    usleep(10000); /* before or while it waits: the same */
    ff_tcp_listener_cancel(a.ls);
    join_soon(a.thread);
    assert_int_equal(a.rc, -ECANCELED);
    assert_error(a.err, ECANCELED, "wait for a source");
    assert_fails(ff_tcp_accept(a.ls, -1, &l, &err), ECANCELED); /* and stays so */
    ff_tcp_listener_free(a.ls);
}

/* A listener whose backlog is full does not answer: connecting to it takes for ever */
struct wall {
    int fd, filler[8];
    unsigned n;
    char port[16];
};

static bool wall_up(struct wall *w)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);

    w->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(w->fd >= 0 && !bind(w->fd, (struct sockaddr *)&sa, len) && !listen(w->fd, 0));
    assert_int_equal(getsockname(w->fd, (struct sockaddr *)&sa, &len), 0);
    snprintf(w->port, sizeof(w->port), "%u", ntohs(sa.sin_port));
    for (w->n = 0; w->n < FF_ARRAY_LEN(w->filler);) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        assert_true(fd >= 0);
        w->filler[w->n++] = fd;
        connect(fd, (struct sockaddr *)&sa, sizeof(sa));
        if (poll(&p, 1, 300) == 0)
            return true;
    }
    return false;
}

static void wall_down(struct wall *w)
{
    while (w->n)
        close(w->filler[--w->n]);
    close(w->fd);
}

struct connecter {
    pthread_t thread;
    struct ff_link_params lp;
    int cancel_fd, rc;
    struct ff_link *link;
    struct ff_error err;
};

static void *connect_main(void *arg)
{
    struct connecter *c = arg;
    c->rc = ff_tcp_connect(&c->lp, c->cancel_fd, &c->link, &c->err);
    return NULL;
}

static void test_connect_waits(void **state)
{
    struct wall w;
    struct ff_link *l;
    struct ff_error err;
    (void)state;

    if (!wall_up(&w)) {
        wall_down(&w);
        print_message("SKIP: a full backlog does not make connect wait here\n");
        skip();
    }
    struct ff_link_params lp = {.host = "127.0.0.1", .port = w.port, .timeout_ms = 200};
    uint64_t t = ff_now_ns();
    assert_fails(ff_tcp_connect(&lp, -1, &l, &err), ETIMEDOUT);
    assert_in_range((ff_now_ns() - t) / 1000000, 199, SOON_MS);

    struct connecter c = {.lp = {.host = "127.0.0.1", .port = w.port, .timeout_ms = 60000},
                          .cancel_fd = eventfd(0, EFD_CLOEXEC)};
    assert_int_equal(pthread_create(&c.thread, NULL, connect_main, &c), 0);
    usleep(20000); /* before or while it waits: the same */
    eventfd_write(c.cancel_fd, 1);
    join_soon(c.thread);
    assert_int_equal(c.rc, -ECANCELED);
    assert_error(c.err, ECANCELED, "connect");
    close(c.cancel_fd);
    wall_down(&w);
}

/* A peer that reads nothing and answers nothing: every call ends within its limit */
static void test_silent_peer(void **state)
{
    static uint8_t msg[FF_MSG_MAX];
    struct ff_error err;
    struct pair p;
    (void)state;

    pair_connect_tcp(&p, "127.0.0.1", 1000);
    uint64_t t = ff_now_ns();
    int rc = 0;
    for (unsigned i = 0; i < 10000 && !rc; i++)
        rc = p.a->ops->send(p.a, msg, sizeof(msg), &err);
    assert_int_equal(rc, -ETIMEDOUT);
    assert_in_range((ff_now_ns() - t) / 1000000, 900, SOON_MS);
    assert_true(p.a->ops->send(p.a, msg, 1, &err) < 0); /* half a message is out: broken for good */
    pair_close(&p);
}

/* --- short reads and writes --- */

static void with_faults(const char *spec)
{
    static uint8_t mem[300000], to[300000], back[300000];
    uint8_t zero[16];
    static struct server s;
    struct ff_error err;
    struct pair p;

    pair_open_tcp(&p);
    assert_ok(ff_failpoints_arm(spec, &err), err);
    pattern(mem, sizeof(mem), 9);
    memset(mem + 8192, 0, 4096);
    memset(mem + 12288, 0, 4096);
    struct ff_mr mr = must_reg(p.a, mem, sizeof(mem), FF_ACCESS_REMOTE_READ);
    struct ff_mr landing = must_reg(p.a, back, sizeof(back), FF_ACCESS_REMOTE_WRITE);
    server_start(&s, p.a, FF_QUEUE_FAULT);
    for (uint32_t len = 1; len < sizeof(mem); len = len * 5 + 3) {
        memset(to, 0xee, sizeof(to));
        struct ff_wr wr = read_of(&mr, 100, to, len);
        assert_ok(run_wr(p.b, FF_QUEUE_FAULT, &wr, &err), err);
        assert_memory_equal(to, mem + 100, len);
        assert_int_equal(to[len], 0xee);
    }
    memset(to, 0xee, sizeof(to));
    memset(zero, 0, sizeof(zero));
    struct ff_wr wr = read_of(&mr, 0, to, 65536);
    wr.granule_bytes = 4096;
    wr.zero = zero;
    assert_ok(run_wr(p.b, FF_QUEUE_FAULT, &wr, &err), err);
    assert_int_equal(zero[0] | zero[1] << 8, 0x000c);
    assert_memory_equal(to, mem, 8192);
    assert_int_equal(to[8192], 0xee);
    assert_memory_equal(to + 16384, mem + 16384, 49152);
    for (unsigned i = 0; i < 8; i++) { /* several in flight */
        struct ff_wr many = read_of(&mr, i, to + i * 20000, 20000);
        assert_ok(p.b->ops->post(p.b, FF_QUEUE_FAULT, &many, &err), err);
    }
    struct ff_wr out = {.id = 1,
                        .op = FF_OP_WRITE,
                        .local = mem,
                        .len_bytes = 50000,
                        .remote = (uintptr_t)back,
                        .rkey = landing.rkey,
                        .imm = 7};
    assert_ok(p.b->ops->post(p.b, FF_QUEUE_FAULT, &out, &err), err);
    for (unsigned i = 0; i < 9; i++) {
        struct ff_wc wc;
        assert_ok(wait_one(p.b, FF_QUEUE_FAULT, &wc, &err), err);
        assert_int_equal(wc.op, i < 8 ? FF_WC_READ : FF_WC_WRITE);
    }
    for (unsigned i = 0; i < 8; i++)
        assert_memory_equal(to + i * 20000, mem + i, 20000);
    server_join(&s);
    assert_memory_equal(back, mem, 50000);
    assert_true(ff_failpoint_hits("tcp.recv.short") + ff_failpoint_hits("tcp.send.short") > 10);
    pair_close(&p);
}

static void test_short_receives(void **state)
{
    (void)state;
    with_faults("tcp.recv.short=fail");
}

static void test_short_sends(void **state)
{
    (void)state;
    with_faults("tcp.send.short=fail");
}

static void test_short_both(void **state)
{
    (void)state;
    with_faults("tcp.send.short=fail,tcp.recv.short=fail");
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, start, end)

UNIT_MAIN(TEST(test_strangers_at_the_queues), TEST(test_queue_joined_twice),
          TEST(test_nobody_joins), TEST(test_rubbish_control), TEST(test_rubbish_on_a_queue),
          TEST(test_port_in_use), TEST(test_one_port), TEST(test_address_twice), TEST(test_listen_known),
          TEST(test_connect_refused), TEST(test_ipv6), TEST(test_names), TEST(test_cancel_accept),
          TEST(test_connect_waits), TEST(test_silent_peer), TEST(test_short_receives),
          TEST(test_short_sends), TEST(test_short_both))
