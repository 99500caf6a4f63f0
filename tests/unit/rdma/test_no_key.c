/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_no_key.c - without a key: this user on this host, nobody else, unless insecure=on
 */
#include "pair.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "log.h"
#include "tcp_wire.h"

#define STRANGER 12345

static const uint8_t session[FF_SESSION_LEN] = "a session of 16";
static atomic_uint n_logs;
static char last_log[512];

static void keep_log(enum ff_log_level level, const char *line)
{
    (void)level;
    snprintf(last_log, sizeof(last_log), "%s", line);
    atomic_fetch_add(&n_logs, 1);
}

static int start(void **state)
{
    (void)state;
    atomic_store(&n_logs, 0);
    ff_log_set(keep_log, FF_LOG_WARN);
    return 0;
}

static int end(void **state)
{
    (void)state;
    ff_log_set(NULL, FF_LOG_WARN);
    return 0;
}

static bool is_root(void)
{
    if (geteuid())
        print_message("SKIP: only root can become another user\n");
    return !geteuid();
}

/* Another user's source: its pid. It ends with 0 when it is dropped, 1 when it hears something */
static pid_t start_stranger(unsigned port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char c;

    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    if (setresuid(STRANGER, STRANGER, STRANGER))
        _exit(2);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)))
        _exit(3);
    _exit(recv(fd, &c, 1, 0) > 0);
}

static int end_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static struct ff_listener *must_listen(bool insecure)
{
    struct ff_link_params lp = {
        .host = "127.0.0.1", .port = "0", .timeout_ms = 15000, .insecure = insecure};
    struct ff_listener *ls;
    struct ff_error err;

    assert_ok(ff_tcp_listen(&lp, &ls, &err), err);
    return ls;
}

/* It is dropped, with the remedy in the log; a source of this user gets in after it */
static void test_another_users_source(void **state)
{
    struct ff_error err;
    struct ff_link *l;
    struct caller c;
    (void)state;

    if (!is_root())
        return;
    struct ff_listener *ls = must_listen(false);
    pid_t pid = start_stranger(ff_tcp_port(ls));
    do {
        assert_fails(ff_tcp_accept(ls, 100, &l, &err), ETIMEDOUT);
    } while (!atomic_load(&n_logs)); /* it has come, and was dropped */
    assert_int_equal(end_of(pid), 0);
    assert_int_equal(atomic_load(&n_logs), 1);
    assert_non_null(strstr(last_log, "user 12345"));
    assert_non_null(strstr(last_log, "key-file=FILE on both sides, or insecure=on"));
    caller_start(&c, ff_tcp_port(ls), NULL);
    assert_ok(ff_tcp_accept(ls, SOON_MS, &l, &err), err);
    assert_ok(caller_end(&c), c.err);
    l->ops->free(l);
    c.link->ops->free(c.link);
    ff_tcp_listener_free(ls);

    ls = must_listen(true); /* as it was told */
    pid = start_stranger(ff_tcp_port(ls));
    assert_ok(ff_tcp_accept(ls, SOON_MS, &l, &err), err);
    assert_ok(l->ops->send(l, "hello", 5, &err), err);
    assert_int_equal(end_of(pid), 1);
    l->ops->free(l);
    ff_tcp_listener_free(ls);
}

/* A destination of another user, which took the port before ours did: its pid */
static pid_t start_impostor(unsigned *port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    uint8_t head[TCP_CTRL_HEAD_LEN];
    char c;
    int ls = socket(AF_INET, SOCK_STREAM, 0);

    assert_int_equal(bind(ls, (struct sockaddr *)&sa, len), 0);
    assert_int_equal(listen(ls, 4), 0);
    assert_int_equal(getsockname(ls, (struct sockaddr *)&sa, &len), 0);
    *port = ntohs(sa.sin_port);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        if (setresuid(STRANGER, STRANGER, STRANGER))
            _exit(2);
        int fd = accept(ls, NULL, NULL);
        tcp_ctrl_encode(head, 7);
        send(fd, head, sizeof(head), 0);
        send(fd, "welcome", 7, 0);
        while (recv(fd, &c, 1, 0) > 0)
            ;
        _exit(0);
    }
    close(ls);
    return pid;
}

static void test_another_users_destination(void **state)
{
    uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    struct ff_link *l;
    char number[16];
    unsigned port;
    (void)state;

    if (!is_root())
        return;
    for (int insecure = 0; insecure < 2; insecure++) {
        pid_t pid = start_impostor(&port);
        snprintf(number, sizeof(number), "%u", port);
        struct ff_link_params lp = {
            .host = "127.0.0.1", .port = number, .timeout_ms = 15000, .insecure = insecure};
        assert_ok(ff_tcp_connect(&lp, -1, &l, &err), err);
        assert_int_equal(l->ops->recv(l, buf, SOON_MS, &err), 7);
        int rc = l->ops->open_queues(l, session, SOON_MS, &err);
        l->ops->free(l);
        assert_int_equal(end_of(pid), 0);
        assert_int_equal(rc, insecure ? 0 : -EACCES); /* the kernel connects, if it may */
        if (!insecure)
            assert_error(err, EACCES, "user 12345", "insecure=on");
    }
}

/* Who connects to it comes from 127.0.0.1 */
static void test_another_loopback(void **state)
{
    struct ff_link_params lp = {.host = "127.0.0.2", .port = "0", .timeout_ms = 15000};
    struct ff_listener *ls;
    struct ff_link *here, *there;
    struct ff_error err;
    char number[16];
    (void)state;

    assert_ok(ff_tcp_listen(&lp, &ls, &err), err);
    snprintf(number, sizeof(number), "%u", ff_tcp_port(ls));
    lp.port = number;
    assert_ok(ff_tcp_connect(&lp, -1, &here, &err), err);
    assert_ok(ff_tcp_accept(ls, SOON_MS, &there, &err), err);
    here->ops->free(here);
    there->ops->free(there);
    ff_tcp_listener_free(ls);
}

/* verbs has no user to ask for */
static void test_verbs(void **state)
{
    struct ff_link_params lp = {.host = "127.0.0.1", .port = "1", .timeout_ms = 15000};
    struct ff_error err;
    struct ff_link *l;
    struct ff_port *port;
    (void)state;

    assert_fails(ff_link_connect(&lp, FF_LINK_VERBS, -1, &l, &err), EACCES);
    assert_error(err, EACCES, "verbs: there is no key", "insecure=on");
    assert_fails(ff_port_listen(&lp, FF_LINK_VERBS, &port, &err), EACCES);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, start, end)

UNIT_MAIN(TEST(test_another_users_source), TEST(test_another_users_destination),
          TEST(test_another_loopback), TEST(test_verbs))
