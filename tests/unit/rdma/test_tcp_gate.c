/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_tcp_gate.c - a listener with a key: who gets in, what strangers cost, who is between
 */
#include "pair.h"

#include <arpa/inet.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "handshake.h"
#include "kept_log.h"
#include "tcp_gate.h"
#include "tcp_wire.h"

#define OTHER_KEY "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928171" /* one bit */
#define SECRET "the key of this memory is 0x1234"

static const uint8_t session[FF_SESSION_LEN] = "a session of 16";
static struct ff_key *key, *other;

static int start(void **state)
{
    (void)state;
    key = must_key(PAIR_KEY);
    other = must_key(OTHER_KEY);
    keep_logs_from_now(FF_LOG_WARN);
    return 0;
}

static int end(void **state)
{
    (void)state;
    ff_log_set(NULL, FF_LOG_WARN);
    ff_key_unref(key);
    ff_key_unref(other);
    return 0;
}

static struct ff_listener *must_listen(struct ff_key *k)
{
    struct ff_link_params lp = {.host = "127.0.0.1", .port = "0", .timeout_ms = 15000, .key = k};
    struct ff_listener *ls;
    struct ff_error err;

    assert_ok(ff_tcp_listen(&lp, &ls, &err), err);
    return ls;
}

static int stranger_at(const struct ff_listener *ls)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)ff_tcp_port(ls)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    return fd;
}

static bool is_closed(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char c[256];

    while (poll(&p, 1, timeout_ms) > 0)
        if (recv(fd, c, sizeof(c), MSG_DONTWAIT) <= 0)
            return true;
    return false;
}

/* The right source gets in, and the link works */
static void must_get_in(struct ff_listener *ls)
{
    struct caller c;
    struct ff_link *l = NULL;
    struct ff_error err;
    uint8_t buf[FF_MSG_MAX];

    caller_start(&c, ff_tcp_port(ls), key);
    int rc = ff_tcp_accept(ls, SOON_MS, &l, &err);
    assert_ok(caller_end(&c), c.err);
    assert_ok(rc, err);
    assert_true(l->sealed && c.link->sealed);
    assert_ok(c.link->ops->send(c.link, SECRET, 10, &err), err);
    assert_int_equal(l->ops->recv(l, buf, SOON_MS, &err), 10);
    l->ops->free(l);
    c.link->ops->free(c.link);
}

/* --- who has no key, or another --- */

static void test_wrong_key(void **state)
{
    struct ff_listener *ls = must_listen(key);
    struct ff_error err;
    struct ff_link *l;
    struct caller c;
    (void)state;

    caller_start(&c, ff_tcp_port(ls), other);
    assert_fails(ff_tcp_accept(ls, 500, &l, &err), ETIMEDOUT);
    assert_fails(caller_end(&c), EACCES);
    assert_error(c.err, EACCES, "another key");
    must_get_in(ls);
    assert_true(atomic_load(&n_logs) >= 1);
    assert_non_null(strstr(last_log, "has left"));
    ff_tcp_listener_free(ls);
}

/* A listener with the keys of several users takes each of them, and nobody else */
static void test_users(void **state)
{
    static const char *const name[] = {"one", "two", "three", "two", "nobody"};
    char path[] = "/tmp/farfork-users-XXXXXX";
    FILE *f = fdopen(mkstemp(path), "w");
    struct ff_key *all, *user;
    struct ff_error err;
    struct ff_link *l;
    struct caller c;
    (void)state;

    assert_non_null(f);
    for (int i = 0; i < 3; i++)
        fprintf(f, "%s:%032x\n", name[i], i + 1);
    fflush(f);
    assert_ok(ff_key_load_psk(path, NULL, &all, &err), err);
    fprintf(f, "nobody:%032x\n", 9);
    fclose(f);
    struct ff_listener *ls = must_listen(all);
    for (size_t i = 0; i < FF_ARRAY_LEN(name); i++) {
        assert_ok(ff_key_load_psk(path, name[i], &user, &err), err);
        caller_start(&c, ff_tcp_port(ls), user);
        bool in = !ff_tcp_accept(ls, i < 4 ? SOON_MS : 500, &l, &err);
        assert_int_equal(in, i < 4);
        assert_fails(caller_end(&c), in ? 0 : EACCES);
        if (in) {
            l->ops->free(l);
            c.link->ops->free(c.link);
        }
        ff_key_unref(user);
    }
    ff_tcp_listener_free(ls);
    ff_key_unref(all);
    unlink(path);
}

/* A source without a key connects, as there is nothing to wait for, and then learns why not */
static void test_no_key_at_source(void **state)
{
    struct ff_listener *ls = must_listen(key);
    uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    struct ff_link *l;
    struct caller c;
    (void)state;

    caller_start(&c, ff_tcp_port(ls), NULL);
    assert_ok(caller_end(&c), c.err);
    assert_false(c.link->sealed);
    assert_ok(c.link->ops->send(c.link, "hello", 5, &err), err);
    assert_fails(ff_tcp_accept(ls, 500, &l, &err), ETIMEDOUT);
    assert_fails(c.link->ops->recv(c.link, buf, SOON_MS, &err), EACCES);
    assert_error(err, EACCES, "wants a key", "key-file=");
    assert_non_null(strstr(last_log, "has the source no key?"));
    c.link->ops->free(c.link);
    must_get_in(ls);
    ff_tcp_listener_free(ls);
}

static void test_no_key_at_destination(void **state)
{
    struct ff_listener *ls = must_listen(NULL);
    uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    struct ff_link *l;
    struct caller c;
    (void)state;

    caller_start(&c, ff_tcp_port(ls), key);
    assert_ok(ff_tcp_accept(ls, SOON_MS, &l, &err), err); /* nobody is asked for a key */
    assert_false(l->sealed);
    assert_fails(l->ops->recv(l, buf, SOON_MS, &err), EACCES);
    assert_error(err, EACCES, "this side has none", "key-file=");
    l->ops->free(l);
    assert_fails(caller_end(&c), ECONNRESET);
    assert_error(c.err, ECONNRESET, "no key (key-file=)?");
    ff_tcp_listener_free(ls);
}

/* --- a flood, and slow peers --- */

#define FLOOD 1000

/* Each has a place in the listener's table or none: nothing is allocated for any of them, most
 * are dropped, and the right source gets in while they stand there */
static void test_flood(void **state)
{
    struct ff_listener *ls = must_listen(key);
    struct rlimit files;
    struct ff_error err;
    struct ff_link *l;
    unsigned open = 0;
    static int fd[FLOOD];
    (void)state;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_cur < 2 * FLOOD) {
        print_message("SKIP: %u files would be needed: raise ulimit -n\n", 2 * FLOOD);
        ff_tcp_listener_free(ls);
        return;
    }
    must_get_in(ls); /* what the library needs once for all */
    size_t before = mallinfo2().uordblks;
    for (unsigned i = 0; i < FLOOD; i++) {
        fd[i] = stranger_at(ls);
        if (i % 3 == 1)
            assert_int_equal(send(fd[i], "FFhs half a hello", 17, 0), 17);
        else if (i % 3 == 2)
            assert_int_equal(send(fd[i], "GET / HTTP/1.0\r\n\r\n", 18, 0), 18);
        assert_fails(ff_tcp_accept(ls, 0, &l, &err), ETIMEDOUT);
    }
    assert_int_equal(mallinfo2().uordblks, before);
    for (unsigned i = 0; i < FLOOD; i++)
        open += !is_closed(fd[i], 0);
    assert_in_range(open, 1, TCP_GATE_MAX);
    assert_in_range(atomic_load(&n_logs), 1, 12); /* not a line each */
    must_get_in(ls);
    for (unsigned i = 0; i < FLOOD; i++)
        close(fd[i]);
    ff_tcp_listener_free(ls);
}

/* One that says nothing, and one that says a byte now and then, are heard for two seconds */
static void test_slow_peers(void **state)
{
    struct ff_listener *ls = must_listen(key);
    int silent = stranger_at(ls), slow = stranger_at(ls);
    struct ff_error err;
    struct ff_link *l;
    uint64_t t = ff_now_ns();
    (void)state;

    must_get_in(ls); /* meanwhile */
    assert_false(is_closed(silent, 0) || is_closed(slow, 0));
    for (unsigned i = 0; i < 30 && !is_closed(slow, 0); i++) {
        send(slow, "FFhs............................" + i, 1, MSG_NOSIGNAL);
        assert_fails(ff_tcp_accept(ls, 100, &l, &err), ETIMEDOUT);
    }
    assert_fails(ff_tcp_accept(ls, 500, &l, &err), ETIMEDOUT);
    assert_true(is_closed(silent, 0) && is_closed(slow, 0));
    assert_in_range((ff_now_ns() - t) / 1000000, 2000, SOON_MS);
    assert_non_null(strstr(last_log, "2000 ms"));
    close(silent);
    close(slow);
    ff_tcp_listener_free(ls);
}

/* The right one comes while another source's queues are waited for; it is heard afterwards */
static void test_during_joins(void **state)
{
    struct ff_error err;
    struct ff_link *l;
    struct caller c;
    struct pair p;
    (void)state;

    pair_connect_keyed(&p);
    caller_start(&c, ff_tcp_port(p.listener), key);
    assert_fails(p.b->ops->open_queues(p.b, session, 300, &err), ETIMEDOUT);
    int rc = ff_tcp_accept(p.listener, SOON_MS, &l, &err);
    assert_ok(caller_end(&c), c.err);
    assert_ok(rc, err);
    l->ops->free(l);
    c.link->ops->free(c.link);
    pair_close(&p);
}

/* Who knows the session, and not the key, opens no queue */
static void test_queue_by_session(void **state)
{
    struct tcp_tokens stolen;
    uint8_t join[TCP_JOIN_LEN];
    struct ff_error err;
    struct pair p;
    (void)state;

    memcpy(stolen.of[0], session, FF_SESSION_LEN);
    memcpy(stolen.of[1], session, FF_SESSION_LEN);
    pair_connect_keyed(&p);
    int fd = stranger_at(p.listener);
    tcp_join_encode(join, FF_QUEUE_FAULT, &stolen);
    assert_int_equal(send(fd, join, sizeof(join), 0), sizeof(join));
    assert_fails(p.b->ops->open_queues(p.b, session, 300, &err), ETIMEDOUT);
    assert_true(is_closed(fd, SOON_MS));
    assert_non_null(strstr(last_log, "another session"));
    close(fd);
    pair_close(&p);
}

/* --- who loses a place when there are too many --- */

static void *open_queues_main(void *arg)
{
    struct pair *p = arg;
    struct ff_error err;

    return p->b->ops->open_queues(p->b, session, SOON_MS, &err) ? p : NULL;
}

/* A queue whose token comes late keeps its place when 60 strangers connect meanwhile; and they are
 * no line of the log each */
static void test_crowd_at_the_queues(void **state)
{
    uint8_t join[TCP_JOIN_LEN];
    struct tcp_tokens tokens;
    struct pair p;
    pthread_t t;
    void *failed;
    int queue[FF_QUEUES], fd[60];
    (void)state;

    pair_connect_tcp(&p, "127.0.0.1", 15000); /* without a key: the session is the token */
    assert_int_equal(pthread_create(&t, NULL, open_queues_main, &p), 0);
    for (enum ff_queue k = 0; k < FF_QUEUES; k++) {
        memcpy(tokens.of[k], session, FF_SESSION_LEN);
        queue[k] = stranger_at(p.listener);
    }
    for (unsigned i = 0; i < FF_ARRAY_LEN(fd); i++) { /* more than a backlog: most are accepted */
        fd[i] = stranger_at(p.listener);
        tcp_join_encode(join, FF_QUEUE_FAULT, &(struct tcp_tokens){.of = {"another session"}});
        if (i % 3 == 0)
            assert_int_equal(send(fd[i], join, sizeof(join), 0), sizeof(join));
    }
    for (enum ff_queue k = 0; k < FF_QUEUES; k++) {
        tcp_join_encode(join, k, &tokens);
        assert_int_equal(send(queue[k], join, sizeof(join), MSG_NOSIGNAL), sizeof(join));
    }
    assert_int_equal(pthread_join(t, &failed), 0);
    assert_null(failed);
    assert_in_range(atomic_load(&n_logs), 1, 6);
    for (unsigned i = 0; i < FF_ARRAY_LEN(fd); i++)
        close(fd[i]);
    for (enum ff_queue k = 0; k < FF_QUEUES; k++)
        close(queue[k]);
    pair_close(&p);
}

/* A connection at @g that is silent, or has said a hello; the other end of it */
static int add_stranger(struct tcp_gate *g, bool speaks)
{
    uint8_t nonce[FF_HS_NONCE_LEN] = {1}, hello[FF_HS_HELLO_LEN];
    struct ff_handshake h;
    int fd[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    ff_hs_ask(&h, FF_HS_SUITES, nonce, hello);
    if (speaks)
        assert_int_equal(send(fd[0], hello, sizeof(hello), 0), sizeof(hello));
    tcp_gate_add(g, fd[1]);
    return fd[0];
}

/* All places are taken by @speak who have said hello and @silent who have not; half as many come
 * after one of either kind, and it keeps its place */
static void test_crowd(void **state)
{
    static const bool kinds[] = {false, true};
    (void)state;

    for (unsigned speak = 0; speak <= TCP_GATE_MAX; speak++)
        for (unsigned k = 0; k < 4; k++) {
            struct tcp_gate *g;
            struct ff_error err;
            int fd[2 * TCP_GATE_MAX];
            unsigned n = 0;

            assert_ok(tcp_gate_new(key, &g, &err), err);
            while (n < TCP_GATE_MAX) {
                fd[n] = add_stranger(g, n < speak);
                n++;
            }
            int source = fd[n++] = add_stranger(g, kinds[k / 2]);
            for (unsigned i = 1; i < TCP_GATE_MAX / 2; i++)
                fd[n++] = add_stranger(g, kinds[k % 2]);
            if (is_closed(source, 0))
                fail_msg("%u had spoken; a source that had%s lost its place to %u who had%s", speak,
                         k / 2 ? "" : " not", TCP_GATE_MAX / 2 - 1, k % 2 ? "" : " not");
            tcp_gate_free(g);
            while (n--)
                close(fd[n]);
        }
}

/* --- somebody between --- */

/* Passes all on, and keeps what goes to the destination; may change one byte of it, or say it
 * twice */
struct between {
    pthread_t thread;
    int listen_fd;
    unsigned port, to_port;
    uint8_t kept[8192];
    size_t n_kept;
    size_t change_at;  /* SIZE_MAX: nothing */
    size_t repeat_at;  /* from there on all is said twice; likewise */
};

static void pass_on(struct between *b, int from, int to, bool keep)
{
    uint8_t buf[4096];
    ssize_t n = recv(from, buf, sizeof(buf), 0);

    if (n <= 0) {
        shutdown(to, SHUT_WR);
        return;
    }
    bool twice = keep && b->n_kept >= b->repeat_at;
    for (ssize_t i = 0; i < n && keep && b->n_kept < sizeof(b->kept); i++) {
        if (b->n_kept == b->change_at)
            buf[i] ^= 1;
        b->kept[b->n_kept++] = buf[i];
    }
    for (int i = 0; i < 1 + twice; i++)
        if (send(to, buf, (size_t)n, MSG_NOSIGNAL) != n)
            return;
}

static void *between_main(void *arg)
{
    struct between *b = arg;
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)b->to_port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = accept(b->listen_fd, NULL, NULL), d = socket(AF_INET, SOCK_STREAM, 0);

    if (s < 0 || d < 0 || connect(d, (struct sockaddr *)&sa, sizeof(sa)))
        return NULL;
    struct pollfd p[2] = {{.fd = s, .events = POLLIN}, {.fd = d, .events = POLLIN}};
    while (!(p[0].revents & (POLLHUP | POLLERR)) && !(p[1].revents & (POLLHUP | POLLERR)) &&
           poll(p, 2, SOON_MS) > 0) {
        if (p[0].revents & POLLIN)
            pass_on(b, s, d, true);
        if (p[1].revents & POLLIN)
            pass_on(b, d, s, false);
    }
    close(s);
    close(d);
    return NULL;
}

static void between_start(struct between *b, const struct ff_listener *ls, size_t change_at,
                          size_t repeat_at)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);

    *b = (struct between){.to_port = ff_tcp_port(ls), .change_at = change_at,
                          .repeat_at = repeat_at};
    b->listen_fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(b->listen_fd, (struct sockaddr *)&sa, len), 0);
    assert_int_equal(listen(b->listen_fd, 1), 0);
    assert_int_equal(getsockname(b->listen_fd, (struct sockaddr *)&sa, &len), 0);
    b->port = ntohs(sa.sin_port);
    assert_int_equal(pthread_create(&b->thread, NULL, between_main, b), 0);
}

static void between_end(struct between *b)
{
    join_soon(b->thread);
    close(b->listen_fd);
}

#define HANDSHAKE (FF_HS_HELLO_LEN + FF_HS_PROOF_LEN)

/* A connection through @b, which says SECRET: both links, or NULL, and what the destination got */
static int say_secret(struct between *b, struct ff_listener *ls, uint8_t *buf,
                      struct ff_error *err)
{
    struct ff_link *l = NULL;
    struct caller c;

    caller_start(&c, b->port, key);
    int rc = ff_tcp_accept(ls, 2500, &l, err);
    caller_end(&c);
    if (!rc && !c.rc) {
        c.link->ops->send(c.link, SECRET, sizeof(SECRET), NULL);
        rc = l->ops->recv(l, buf, SOON_MS, err);
        if (rc > 0 && b->repeat_at != SIZE_MAX)
            rc = memcmp(buf, SECRET, sizeof(SECRET)) ? -EINVAL
                                                     : l->ops->recv(l, buf, SOON_MS, err);
    }
    if (l)
        l->ops->free(l);
    if (!c.rc)
        c.link->ops->free(c.link);
    between_end(b);
    return rc;
}

static bool holds(const uint8_t *where, size_t n, const char *what)
{
    return memmem(where, n, what, strlen(what)) != NULL;
}

/* Nobody between reads a message; and what was kept is of no use to say again */
static void test_kept_and_said_again(void **state)
{
    struct ff_listener *ls = must_listen(key);
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    struct ff_link *l;
    struct between b;
    (void)state;

    between_start(&b, ls, SIZE_MAX, SIZE_MAX);
    assert_int_equal(say_secret(&b, ls, buf, &err), sizeof(SECRET));
    assert_string_equal((char *)buf, SECRET);
    assert_int_equal(b.n_kept, HANDSHAKE + TCP_CTRL_HEAD_LEN + sizeof(SECRET) + FF_SEAL_TAG_LEN);
    assert_false(holds(b.kept, b.n_kept, "memory"));
    assert_true(holds(b.kept, b.n_kept, "FFcs"));

    int fd = stranger_at(ls);
    assert_int_equal(send(fd, b.kept, b.n_kept, 0), b.n_kept);
    assert_fails(ff_tcp_accept(ls, 300, &l, &err), ETIMEDOUT);
    assert_true(is_closed(fd, SOON_MS));
    assert_non_null(strstr(last_log, "another key"));
    close(fd);
    ff_tcp_listener_free(ls);
}

/* The same without a key: the message can be read. What this file looks for is there to be found */
static void test_read_without_key(void **state)
{
    struct ff_listener *ls = must_listen(NULL);
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    struct between b;
    struct ff_key *had = key;
    (void)state;

    between_start(&b, ls, SIZE_MAX, SIZE_MAX);
    key = NULL;
    int rc = say_secret(&b, ls, buf, &err);
    key = had;
    assert_int_equal(rc, sizeof(SECRET));
    assert_true(holds(b.kept, b.n_kept, "memory"));
    ff_tcp_listener_free(ls);
}

/* Each byte that somebody between changes is noticed, before or in the message */
static void test_changed_between(void **state)
{
    static const size_t at[] = {6, 8, 39, FF_HS_HELLO_LEN, FF_HS_HELLO_LEN + 8, HANDSHAKE - 1,
                                HANDSHAKE + TCP_CTRL_HEAD_LEN, HANDSHAKE + TCP_CTRL_HEAD_LEN + 40};
    struct ff_listener *ls = must_listen(key);
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    struct between b;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(at); i++) {
        between_start(&b, ls, at[i], SIZE_MAX);
        int rc = say_secret(&b, ls, buf, &err);
        if (rc >= 0)
            fail_msg("byte %zu was changed, and %d bytes arrived", at[i], rc);
        assert_int_equal(rc, at[i] < HANDSHAKE ? -ETIMEDOUT : -EBADMSG);
        if (rc == -EBADMSG)
            assert_error(err, EBADMSG, "somebody between");
    }
    ff_tcp_listener_free(ls);
}

/* A message that is said twice arrives once */
static void test_repeated_between(void **state)
{
    struct ff_listener *ls = must_listen(key);
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    struct between b;
    (void)state;

    between_start(&b, ls, SIZE_MAX, HANDSHAKE);
    assert_int_equal(say_secret(&b, ls, buf, &err), -EBADMSG);
    for (size_t i = 0; i < sizeof(SECRET); i++) /* nothing is left of what did not fit */
        assert_int_equal(buf[i], 0);
    ff_tcp_listener_free(ls);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, start, end)

UNIT_MAIN(TEST(test_wrong_key), TEST(test_users), TEST(test_no_key_at_source),
          TEST(test_no_key_at_destination), TEST(test_flood), TEST(test_slow_peers),
          TEST(test_during_joins), TEST(test_crowd), TEST(test_crowd_at_the_queues),
          TEST(test_queue_by_session),
          TEST(test_kept_and_said_again), TEST(test_read_without_key), TEST(test_changed_between),
          TEST(test_repeated_between))
