/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_pool.c - what a pool compares, and descriptors that come with a message
 */
#include "unit.h"

#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include "autojson.h"
#include "pool.h"
#include "pool_message.h"

static const struct fork_options none = {.fanout = -1, .net = NET_ISOLATED, .bridge = "br0"};
static struct hostlist hosts;

static const char *other(const struct fork_options *a, const struct fork_options *b)
{
    static char name[40];
    FF_AUTO_JSON json_t *x = pool_terms(a, &hosts), *y = pool_terms(b, &hosts);
    const char *key = pool_other_term(x, y);

    snprintf(name, sizeof(name), "%s", key ? key : "");
    return name;
}

/* All that a child or the fork's way to it is made from, and that a request does not say itself */
static void test_terms(void **state)
{
    const struct { const char *name; struct fork_options o; } cases[] = {
        {"launcher", {.s.launcher = "x {cmd}"}}, {"options", {.s.link_options = "window=4"}},
        {"qemu", {.s.qemu = "/x"}},              {"agent", {.s.agent = "/x"}},
        {"scope", {.s.scope = "each"}},          {"metrics-dir", {.s.metrics_dir = "m"}},
        {"scratch", {.scratch = "/x"}},          {"overlays", {.overlays = "/x"}},
        {"nbd", {.nbd = "a:1"}},                 {"hostname", {.hostname = "h"}},
        {"rundir", {.s.rundir = "/x"}},          {"multicast", {.multicast = "auto"}},
        {"working-set", {.working_set = "none"}}};
    (void)state;

    assert_string_equal(other(&none, &none), "");
    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        struct fork_options o = cases[i].o;
        o.fanout = none.fanout;
        o.net = none.net;
        o.bridge = none.bridge;
        assert_string_equal(other(&none, &o), cases[i].name);
        assert_string_equal(other(&o, &o), "");
    }
}

/* Where it is asked for says which file it is */
static void test_relative(void **state)
{
    struct fork_options o = none, p = none;
    char was[4096];
    (void)state;

    assert_non_null(getcwd(was, sizeof(was)));
    FF_AUTO_FREE char *there = xprintf("%s/set", was);
    o.working_set = "set";
    p.working_set = there;
    assert_string_equal(other(&o, &p), "");
    assert_int_equal(chdir("/"), 0);
    assert_string_equal(other(&o, &p), "working-set");
    assert_int_equal(chdir(was), 0);
}

/* A vmclone of another version has options that this one does not know */
static void test_unknown(void **state)
{
    FF_AUTO_JSON json_t *a = json_pack("{ss}", "x", "1"), *b = json_pack("{ss si}", "x", "1", "y", 2);
    (void)state;

    assert_null(pool_other_term(a, a));
    assert_string_equal(pool_other_term(a, b), "y");
    assert_string_equal(pool_other_term(b, a), "y");
}

static unsigned open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* More than a message has room for: one more would be written past the last */
static void test_descriptors(void **state)
{
    const int many[] = {0, 0, 0, 0, 0, 0};
    int sock[2], got[POOL_FDS] = {-1, -1};
    (void)state;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sock), 0);
    for (size_t n = 1; n <= FF_ARRAY_LEN(many); n++) {
        char text[] = "{}", room[CMSG_SPACE(sizeof(many))] = {0};
        struct iovec v = {text, 2};
        struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room,
                           .msg_controllen = CMSG_SPACE(n * sizeof(int))};
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(n * sizeof(int)), .cmsg_level = SOL_SOCKET,
                              .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(c), many, n * sizeof(int));
        assert_int_equal(sendmsg(sock[0], &h, 0), 2);
        unsigned before = open_files();
        FF_AUTO_JSON json_t *m = NULL;
        assert_int_equal(pool_recv(sock[1], 1000, &m, got), 0);
        for (size_t i = 0; i < POOL_FDS; i++)
            assert_int_equal(got[i] >= 0, i < n);
        pool_close(got);
        assert_int_equal(open_files(), before);
    }
    close(sock[0]);
    close(sock[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_terms),
        cmocka_unit_test(test_relative),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_descriptors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
