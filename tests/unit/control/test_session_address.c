/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_session_address.c - of several addresses of a host the first is taken that answers
 *
 * In a network namespace of its own: nothing has fd00::2 or fd00::3, and what goes there is lost; there
 * is no way to 2001:db8::1; 127.0.0.1 and ::1 refuse. The resolver is played.
 */
#include "unit.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "session.h"

static const char *names[4]; /* what the name stands for, NULL at the end */

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    struct addrinfo **at = out;

    assert_string_equal(name, "host");
    assert_null(service);
    for (const char **n = names; *n; n++, at = &(*at)->ai_next) {
        struct sockaddr_in6 *v6 = calloc(1, sizeof(*v6));
        struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)v6;
        bool is_v6 = strchr(*n, ':');
        *at = calloc(1, sizeof(**at));
        assert_true(v6 && *at);
        v6->sin6_family = is_v6 ? AF_INET6 : AF_INET;
        assert_int_equal(inet_pton(v6->sin6_family, *n, is_v6 ? (void *)&v6->sin6_addr : (void *)&v4->sin_addr), 1);
        **at = (struct addrinfo){.ai_family = v6->sin6_family, .ai_socktype = hints->ai_socktype,
                                 .ai_addr = (struct sockaddr *)v6,
                                 .ai_addrlen = is_v6 ? sizeof(*v6) : sizeof(*v4)};
    }
    return 0;
}

void freeaddrinfo(struct addrinfo *list)
{
    while (list) {
        struct addrinfo *next = list->ai_next;
        free(list->ai_addr);
        free(list);
        list = next;
    }
}

static void test_first_that_answers(void **state)
{
    static const struct { const char *names[4], *want; } cases[] = {
        {{"fd00::2", "127.0.0.1"}, "127.0.0.1"},
        {{"2001:db8::1", "127.0.0.1"}, "127.0.0.1"},
        {{"2001:db8::1", "fd00::2", "::1"}, "[::1]"},
        {{"::1", "127.0.0.1"}, "[::1]"},
        {{"127.0.0.1", "fd00::2"}, "127.0.0.1"},
        {{"fd00::2", "fd00::3"}, "[fd00::2]"},     /* none answers: as the resolver has them */
        {{"2001:db8::1", "fd00::2"}, "[fd00::2]"}, /* a firewall may drop what asks */
        {{"2001:db8::1"}, "[2001:db8::1]"}};
    struct ff_error why;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        FF_AUTO_FREE char *got = NULL;
        memcpy(names, cases[i].names, sizeof(names));
        assert_int_equal(host_numeric("host", "host=ADDRESS", &got, &why), 0);
        assert_string_equal(got, cases[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_first_that_answers)};

    if (unshare(CLONE_NEWNET)) {
        printf("no network namespace: needs root\n");
        return 77;
    }
    if (system("ip link set lo up && ip link add d0 type veth peer name d1 && "
               "ip link set d0 up && ip link set d1 up && ip -6 addr add fd00::1/64 dev d0 nodad && "
               "for i in 2 3; do ip -6 neigh add fd00::$i lladdr 02:00:00:00:00:0$i dev d0 || exit 1; done")) {
        printf("no network interface of the test's own: needs iproute2 and the module veth\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
