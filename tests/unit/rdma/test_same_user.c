/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_same_user.c - whose is the peer of a connection within this host
 */
#include "unit.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "same_user.h"

#define STRANGER 12345

static int listener(const char *host, int family, struct sockaddr_storage *sa, socklen_t *len)
{
    struct sockaddr_in *in = (void *)sa;
    struct sockaddr_in6 *in6 = (void *)sa;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memset(sa, 0, sizeof(*sa));
    *len = family == AF_INET ? sizeof(*in) : sizeof(*in6);
    sa->ss_family = (sa_family_t)family;
    assert_int_equal(inet_pton(family, host, family == AF_INET ? (void *)&in->sin_addr
                                                               : (void *)&in6->sin6_addr), 1);
    if (fd < 0 || bind(fd, (struct sockaddr *)sa, *len) || listen(fd, 4) ||
        getsockname(fd, (struct sockaddr *)sa, len)) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return fd;
}

static int must_connect(const struct sockaddr_storage *sa, socklen_t len)
{
    int fd = socket(sa->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)sa, len), 0);
    return fd;
}

static void both_are_mine(const char *host, int family)
{
    struct sockaddr_storage sa;
    struct ff_error err;
    socklen_t len;
    int ls = listener(host, family, &sa, &len);

    if (ls < 0) {
        print_message("SKIP: %s: no such address here\n", host);
        return;
    }
    int a = must_connect(&sa, len);
    assert_fails(ff_same_user(a, &err), EACCES); /* nobody has accepted it: nobody's */
    int b = accept(ls, NULL, NULL);
    assert_true(b >= 0);
    assert_ok(ff_same_user(a, &err), err);
    assert_ok(ff_same_user(b, &err), err);
    close(a); /* who has left is nobody any more, and no root */
    assert_fails(ff_same_user(b, &err), EACCES);
    assert_error(err, EACCES, "has left");
    close(b);
    close(ls);
}

static void test_mine(void **state)
{
    struct ifaddrs *list;
    char text[64];
    (void)state;

    both_are_mine("127.0.0.1", AF_INET);
    both_are_mine("127.1.2.3", AF_INET);
    both_are_mine("::1", AF_INET6);
    assert_int_equal(getifaddrs(&list), 0);
    for (struct ifaddrs *i = list; i; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && !(i->ifa_flags & IFF_LOOPBACK)) {
            inet_ntop(AF_INET, &((struct sockaddr_in *)i->ifa_addr)->sin_addr, text, sizeof(text));
            both_are_mine(text, AF_INET);
        }
    freeifaddrs(list);
}

static void test_unix(void **state)
{
    struct ff_error err;
    int fd[2];
    (void)state;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_ok(ff_same_user(fd[0], &err), err);
    close(fd[0]);
    close(fd[1]);
}

/* Another user of this host connects */
static void test_another_user(void **state)
{
    struct sockaddr_storage sa;
    struct ff_error err;
    socklen_t len;
    int status;
    (void)state;

    if (geteuid()) {
        print_message("SKIP: only root can become another user\n");
        return;
    }
    int ls = listener("127.0.0.1", AF_INET, &sa, &len);
    assert_true(ls >= 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        char c;
        if (setresuid(STRANGER, STRANGER, STRANGER))
            _exit(1);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&sa, len))
            _exit(2);
        _exit(read(fd, &c, 1) == 0 ? 0 : 3); /* until the other end has looked */
    }
    int b = accept(ls, NULL, NULL);
    assert_fails(ff_same_user(b, &err), EACCES);
    assert_error(err, EACCES, "user 12345");
    close(b);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(ls);
}

UNIT_MAIN(cmocka_unit_test(test_mine), cmocka_unit_test(test_unix),
          cmocka_unit_test(test_another_user))
