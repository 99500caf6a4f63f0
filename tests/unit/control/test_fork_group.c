/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_fork_group.c - whether a fork's memory goes by multicast, to which group, and what is said of it
 */
#include "unit.h"

#include "fork.h"

#define HOSTS_MAX 5

static struct host hosts[HOSTS_MAX];
static const struct node node = {.host = "h"};
static struct fork_options options;
static struct fork f;

static void plan(size_t n, const char *multicast, const char *link_options)
{
    memset(hosts, 0, sizeof(hosts));
    options = (struct fork_options){.multicast = multicast};
    f = (struct fork){.o = &options, .s.hosts = hosts, .s.n_hosts = HOSTS_MAX,
                      .s.o = {.id = "f", .link_options = link_options}};
    for (size_t i = 0; i < HOSTS_MAX; i++)
        hosts[i] = (struct host){.node = &node, .keyed = i < n, .here = i >= n, .state = HOST_LISTENING,
                                 .address = "198.18.0.1", .port = 7};
    fork_group_plan(&f);
}

static void end(void)
{
    strv_free(&f.s.notes);
    free(f.group);
}

static void test_plan(void **state)
{
    static const struct { const char *multicast, *options; size_t n; bool goes; unsigned notes; } cases[] = {
        {NULL, NULL, 5, false, 0},          {"auto", NULL, 2, false, 0},
        {"auto", NULL, 3, true, 0},         {"239.1.2.3:9", NULL, 1, true, 0},
        {"239.1.2.3:9", NULL, 0, false, 0}, {"239.1.2.3", "window=2,verify=on", 3, false, 1},
        {"auto", "link=verbs", 5, true, 0},  {"auto", "prefill=off", 5, false, 1},
        {"auto", "prefill=off", 2, false, 0}};
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        plan(cases[i].n, cases[i].multicast, cases[i].options);
        assert_int_equal(!!f.group, cases[i].goes);
        assert_int_equal(f.s.notes.n, cases[i].notes);
        FF_AUTO_FREE char *remote = fork_target_of(&f, &hosts[0]), *here = fork_target_of(&f, &hosts[4]);
        assert_int_equal(!!strstr(remote, ",multicast="), cases[i].goes && cases[i].n);
        assert_int_equal(!!strstr(here, ",multicast="), cases[i].goes && cases[i].n == 5);
        end();
    }
}

static void test_auto(void **state)
{
    struct ff_error err;
    char *first;
    (void)state;

    plan(3, "auto", NULL);
    first = f.group;
    assert_int_equal(fork_group_check(first, &err), 0);
    assert_true(!strncmp(first, "239.19", 6));
    strv_free(&f.s.notes);
    plan(3, "auto", NULL);
    assert_string_equal(f.group, first); /* of a name, always the same */
    free(first);
    end();
}

static void test_note(void **state)
{
    (void)state;

    plan(4, "239.1.2.3", NULL);
    fork_group_note(&f);
    assert_int_equal(f.s.notes.n, 0);
    hosts[1].no_multicast = hosts[2].no_multicast = "it is filtered";
    hosts[3].state = HOST_FAILED;
    fork_group_note(&f);
    assert_int_equal(f.s.notes.n, 1);
    assert_non_null(strstr(f.s.notes.v[0], "2 of 3 hosts"));
    assert_non_null(strstr(f.s.notes.v[0], "it is filtered"));
    end();
}

static void test_check(void **state)
{
    struct ff_error err;
    (void)state;

    assert_int_equal(fork_group_check("239.1.2.3", &err), 0);
    assert_int_equal(fork_group_check("[ff15::1]:9", &err), 0);
    assert_fails(fork_group_check("10.0.0.1", &err), EINVAL);
    assert_fails(fork_group_check("239.1.2.3,insecure=on", &err), EINVAL);
    assert_fails(fork_group_check("", &err), EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plan), cmocka_unit_test(test_auto),
                                       cmocka_unit_test(test_note), cmocka_unit_test(test_check)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
