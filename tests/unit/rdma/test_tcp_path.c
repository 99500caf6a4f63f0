/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_tcp_path.c - packets of full size that vanish are found when the queues are opened; tos=
 */
#include "pair.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tcp_wire.h"

/* Packets of more than 1500 bytes do not reach @fd, or a connection that it accepts */
static void drop_large(int fd)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
        BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 1500, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
    };
    struct sock_fprog prog = {.len = FF_ARRAY_LEN(code), .filter = code};

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog)), 0);
}

/* The socket of this process that listens, or the one that is connected to @port */
static int find_socket(bool listens, unsigned port)
{
    struct sockaddr_in sa;

    for (int fd = 3; fd < 256; fd++) {
        int is = 0;
        socklen_t len = sizeof(is), sa_len = sizeof(sa);
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is, &len) || !is != !listens)
            continue;
        if (listens || (!getpeername(fd, (struct sockaddr *)&sa, &sa_len) &&
                        ntohs(sa.sin_port) == port))
            return fd;
    }
    fail_msg("no such socket");
    return -1;
}

/* Its @side fails by @fd of it; the other one has nothing to complain of */
static void must_tell_mtu(struct pair *p, struct ff_link *side, const char *connection)
{
    struct opener a, b;

    opener_start(&a, p->a);
    opener_start(&b, p->b);
    opener_end(&a);
    opener_end(&b);
    struct opener *bad = side == p->a ? &a : &b, *good = side == p->a ? &b : &a;
    assert_int_equal(bad->rc, -EMSGSIZE);
    assert_error(bad->err, EMSGSIZE, "large packets do not arrive", "check the MTU");
    assert_non_null(strstr(bad->err.text, connection));
    assert_ok(good->rc, good->err);
    pair_close(p);
}

/* Both ways, on the connections of pages and on the one of STATE; when the queues are opened, and
 * before anybody stops a guest. Small packets, HELLO for instance, arrive all the while */
static void test_large_packets_vanish(void **state)
{
    struct ff_link_params lp = {.host = "127.0.0.1", .port = "0", .timeout_ms = 700};
    struct pair p = {.kind = "tcp"};
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    char port[16];
    (void)state;

    assert_ok(ff_tcp_listen(&lp, &p.listener, &err), err);
    snprintf(port, sizeof(port), "%u", ff_tcp_port(p.listener));
    lp.port = port;
    drop_large(find_socket(true, 0));
    assert_ok(ff_tcp_connect(&lp, -1, &p.a, &err), err);
    assert_ok(ff_tcp_accept(p.listener, SOON_MS, &p.b, &err), err);
    assert_ok(p.a->ops->send(p.a, "hello", 5, &err), err);
    assert_int_equal(p.b->ops->recv(p.b, buf, SOON_MS, &err), 5);
    must_tell_mtu(&p, p.a, "fault");

    pair_connect_tcp(&p, "127.0.0.1", 700);
    drop_large(find_socket(false, ff_tcp_port(p.listener)));
    must_tell_mtu(&p, p.b, "control");
}

/* One pad on each connection: who sends another is no peer */
static void test_second_pad(void **state)
{
    struct {
        uint8_t head[TCP_PAD_HEAD_LEN];
        char zeros[16];
    } pad = {.zeros = ""};
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    struct pair p;
    (void)state;

    tcp_pad_encode(pad.head, sizeof(pad.zeros));
    pair_open_tcp(&p);
    int fd = find_socket(false, ff_tcp_port(p.listener)); /* the oldest: control */
    assert_ok(p.a->ops->send(p.a, "hello", 5, &err), err);
    assert_int_equal(p.b->ops->recv(p.b, buf, SOON_MS, &err), 5); /* and not the first pad */
    assert_int_equal(send(fd, &pad, sizeof(pad), MSG_NOSIGNAL), sizeof(pad));
    assert_fails(p.b->ops->recv(p.b, buf, SOON_MS, &err), EPROTO);
    pair_close(&p);
}

/* Connected sockets of this process whose packets are of class @tos, with that SO_PRIORITY; -1: any */
static unsigned with_class(int tos, int priority)
{
    unsigned n = 0;

    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_in sa;
        socklen_t sa_len = sizeof(sa), len = sizeof(int);
        socklen_t prio_len = sizeof(int);
        int has, prio;
        n += !getpeername(fd, (struct sockaddr *)&sa, &sa_len) &&
             !getsockopt(fd, IPPROTO_IP, IP_TOS, &has, &len) && has == tos &&
             !getsockopt(fd, SOL_SOCKET, SO_PRIORITY, &prio, &prio_len) && (priority < 0 || prio == priority);
    }
    return n;
}

/* tos=: control and FAULT have one, PREFILL another, at both ends */
static void test_traffic_classes(void **state)
{
    struct ff_link_params lp = {.host = "127.0.0.1", .port = "0", .timeout_ms = 15000,
                                .tos = {.set = true, .of = {[FF_QUEUE_FAULT] = 0x68,
                                                            [FF_QUEUE_PREFILL] = 0x20}}};
    struct pair p = {.kind = "tcp"};
    struct ff_error err;
    char port[16];
    (void)state;

    assert_ok(ff_tcp_listen(&lp, &p.listener, &err), err);
    snprintf(port, sizeof(port), "%u", ff_tcp_port(p.listener));
    lp.port = port;
    assert_ok(ff_tcp_connect(&lp, -1, &p.a, &err), err);
    assert_ok(ff_tcp_accept(p.listener, SOON_MS, &p.b, &err), err);
    pair_open_queues(&p);
    assert_int_equal(with_class(0x68, -1), 4);
    assert_int_equal(with_class(0x68, 6), 2); /* FAULT goes first in this host, too */
    assert_int_equal(with_class(0x20, -1), 2);
    pair_close(&p);

    pair_open_tcp(&p); /* without: faults alone go ahead */
    assert_int_equal(with_class(0x48, 6), 2);
    assert_int_equal(with_class(0, -1), 4);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_packets_vanish),
        cmocka_unit_test(test_second_pad),
        cmocka_unit_test(test_traffic_classes),
    };
    return cmocka_run_group_tests_name("tcp_path", tests, NULL, NULL);
}
