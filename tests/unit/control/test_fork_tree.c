/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_fork_tree.c - who feeds whom: every host in the end, none by itself, also when some fail
 */
#include <fcntl.h>
#include <unistd.h>

#include "unit.h"

#include "fork.h"

#define HOSTS_MAX 40
#define MIB (1ull << 20)

static struct host hosts[HOSTS_MAX];
static const struct node node = {.host = "h"};
static struct fork_options options;
static struct fork f;

/* As they are when agents listen. None has a pipe: what is sent to them goes nowhere */
static void hosts_are(size_t n, int fanout)
{
    memset(hosts, 0, sizeof(hosts));
    options = (struct fork_options){.fanout = fanout};
    f = (struct fork){.o = &options, .memory_bytes = 320 * MIB, .s.hosts = hosts, .s.n_hosts = n};
    for (size_t i = 0; i < n; i++)
        hosts[i] = (struct host){.node = &node, .keyed = true, .state = HOST_LISTENING, .address = "198.18.0.1",
                                 .port = (unsigned)(1000 + i), .run = {.in = -1, .out = -1}};
    fork_tree_plan(&f);
}

static void have_image(size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (hosts[i].state == HOST_LISTENING) {
            hosts[i].state = HOST_IMAGE;
            hosts[i].verified = true;
        }
    for (size_t i = from; i < to; i++)
        fork_tree_turn(&f);
}

/* Hosts from the parent to @h; they end */
static unsigned depth(const struct host *h)
{
    unsigned n = 0;

    for (; h; h = h->feeder)
        assert_true(n++ < HOSTS_MAX);
    return n;
}

static unsigned feeds(const struct host *h)
{
    unsigned n = 0;

    for (size_t i = 0; i < f.s.n_hosts; i++)
        n += hosts[i].feeder == h && hosts[i].state == HOST_IMAGE;
    return n;
}

/* Each is fed, by one that may, or by the parent, which feeds @least to @by_parent; the depth */
static unsigned must_be_a_tree(unsigned least, unsigned by_parent)
{
    unsigned own = 0, most = 0;

    for (size_t i = 0; i < f.s.n_hosts; i++) {
        if (hosts[i].state != HOST_IMAGE)
            continue;
        own += !hosts[i].is_fed;
        assert_true(!hosts[i].is_fed == !hosts[i].feeder);
        assert_true(feeds(&hosts[i]) <= f.fanout);
        assert_true(!hosts[i].feeder || hosts[i].feeder->state != HOST_FAILED);
        most = depth(&hosts[i]) > most ? depth(&hosts[i]) : most;
    }
    assert_in_range(own, least, by_parent);
    return most;
}

static void test_shapes(void **state)
{
    (void)state;
    hosts_are(32, 1);
    have_image(0, 32);
    assert_int_equal(must_be_a_tree(1, 1), 32);
    hosts_are(31, 2);
    have_image(0, 31);
    assert_int_equal(must_be_a_tree(2, 2), 5);
    hosts_are(4, 4);
    have_image(0, 4);
    assert_int_equal(f.fanout, 0);
    assert_int_equal(must_be_a_tree(4, 4), 1);
    hosts_are(5, 0);
    have_image(0, 5);
    assert_int_equal(must_be_a_tree(5, 5), 1);
    hosts_are(1, -1);
    have_image(0, 1);
    assert_int_equal(must_be_a_tree(1, 1), 1);
}

/* They do not get their image in order; nobody is fed by who has none */
static void test_any_order(void **state)
{
    (void)state;
    hosts_are(10, 1);
    have_image(5, 10);
    for (size_t i = 0; i < 10; i++)
        assert_null(hosts[i].feeder);
    have_image(0, 5);
    assert_int_equal(must_be_a_tree(1, 1), 10);
}

/* An agent that nobody has verified feeds nobody */
static void test_not_verified(void **state)
{
    (void)state;
    hosts_are(2, 1);
    hosts[0].state = hosts[1].state = HOST_IMAGE;
    fork_tree_turn(&f);
    assert_null(hosts[1].feeder);
    hosts[0].verified = hosts[1].verified = true;
    fork_tree_turn(&f);
    assert_ptr_equal(hosts[1].feeder, &hosts[0]);
}

/* What is said to one of them from here on can be counted: the pipe to read */
static int listen_to(struct host *h)
{
    int fd[2];

    assert_int_equal(pipe2(fd, O_NONBLOCK | O_CLOEXEC), 0);
    h->run.in = fd[1];
    return fd[0];
}

static unsigned lines_said(struct host *h, int fd)
{
    char text[4096];
    unsigned lines = 0;

    close(h->run.in);
    h->run.in = -1;
    for (ssize_t n; (n = read(fd, text, sizeof(text))) > 0;)
        while (n--)
            lines += text[n] == '\n';
    close(fd);
    return lines;
}

/* One that is verified later than its feeder is fed from the start, and that is said once */
static void test_said_once(void **state)
{
    (void)state;
    hosts_are(2, 1);
    hosts[0].state = hosts[1].state = HOST_IMAGE;
    hosts[0].verified = true;
    int fd = listen_to(&hosts[0]);
    for (size_t i = 0; i < 5; i++)
        fork_tree_turn(&f);
    assert_ptr_equal(hosts[1].feeder, &hosts[0]);
    assert_int_equal(lines_said(&hosts[0], fd), 1);
}

static void test_failures(void **state)
{
    (void)state;
    hosts_are(20, 2);
    have_image(0, 20);
    for (size_t k = 0; k < 18; k++) {
        size_t i = k * 7 % 20;
        hosts[i].state = HOST_FAILED;
        for (size_t turn = 0; turn < 20; turn++)
            fork_tree_turn(&f);
        must_be_a_tree(1, 2);
    }
}

/* The parent's side is away: also one of the first is fed, by who has most; they may feed each other */
static void test_orphans(void **state)
{
    (void)state;
    hosts_are(3, 1);
    have_image(0, 3);
    uint64_t fed_ms = hosts[0].fed_ms;
    for (size_t i = 0; i < 3; i++) {
        hosts[i].paused_until_ms = 1;
        hosts[i].present_bytes = i;
    }
    fork_tree_turn(&f);
    assert_ptr_equal(hosts[0].feeder, &hosts[2]);
    assert_ptr_equal(hosts[1].feeder, &hosts[0]);
    hosts[0].unfed = strdup("it cannot");
    fork_tree_turn(&f);
    assert_ptr_equal(hosts[0].feeder, &hosts[1]);
    assert_int_equal(f.s.notes.n, 0); /* it does not get its memory from the parent */
    assert_int_equal(hosts[0].fed_ms, fed_ms); /* else one that hangs is never late */
    hosts[0].paused_until_ms = 0;
    fork_tree_turn(&f);
    assert_true(hosts[0].fed_ms > fed_ms);
}

/* The parent's side is back: what it feeds, and who feeds whom, is as if it had never been away */
static void test_back(void **state)
{
    (void)state;
    hosts_are(4, 1);
    have_image(0, 4);
    for (size_t i = 0; i < 4; i++) {
        hosts[i].paused_until_ms = 1;
        hosts[i].present_bytes = i;
        hosts[i].unfed = hosts[i].feeder ? strdup("it cannot") : NULL;
    }
    fork_tree_turn(&f);
    fork_tree_turn(&f);
    for (size_t i = 0; i < 4; i++)
        assert_non_null(hosts[i].feeder);
    for (size_t i = 0; i < 4; i++)
        hosts[i].paused_until_ms = 0;
    for (size_t i = 0; i < 4; i++)
        fork_tree_turn(&f);
    assert_int_equal(must_be_a_tree(1, 1), 4);
}

/* Nobody was to be fed: that changes when the parent's side is away, but for --fanout 0 */
static void test_orphans_of_many(void **state)
{
    (void)state;
    for (int fanout = 2; fanout >= 0; fanout -= 2) {
        hosts_are(2, fanout);
        have_image(0, 2);
        assert_int_equal(f.fanout, 0);
        hosts[0].paused_until_ms = 1;
        fork_tree_turn(&f);
        assert_ptr_equal(hosts[0].feeder, fanout ? &hosts[1] : NULL);
    }
}

/* Whom it fed is fed by others, and so is whoever would have been */
static void test_gives_wrong(void **state)
{
    (void)state;
    hosts_are(6, 2);
    have_image(0, 5);
    assert_ptr_equal(hosts[2].feeder, &hosts[0]);
    hosts[0].gives_wrong = true;
    for (size_t turn = 0; turn < 6; turn++)
        fork_tree_turn(&f);
    have_image(5, 6);
    must_be_a_tree(3, 3); /* one of them is that host */
    for (size_t i = 0; i < 6; i++)
        assert_ptr_not_equal(hosts[i].feeder, &hosts[0]);
}

/* What it says has no limit; what is noted has: of each other host, and of nobody, one */
static void test_says_so_often(void **state)
{
    json_t *e = json_pack("{ss ss}", "event", "misfed", "error", "wrong");
    (void)state;

    hosts_are(4, 1);
    have_image(0, 4);
    for (int i = 0; i < 100; i++) {
        session_on_agent_event(&f.s, &hosts[3], e);
        fork_tree_turn(&f);
    }
    assert_in_range(f.s.notes.n, 1, 4);
    json_decref(e);
    strv_free(&f.s.notes);
}

/* Both say so at once, the one that gave it first */
static void test_both_say_so(void **state)
{
    json_t *e = json_pack("{ss ss}", "event", "misfed", "error", "wrong");
    (void)state;

    hosts_are(3, 1);
    have_image(0, 3);
    struct host *by = hosts[2].feeder;
    assert_non_null(by);
    hosts[2].unfed = strdup("it was told that this is wrong");
    session_on_agent_event(&f.s, &hosts[2], e);
    json_decref(e);
    fork_tree_turn(&f);
    assert_null(hosts[2].unfed);
    assert_true(by->gives_wrong && hosts[2].feeder != by);
    strv_free(&f.s.notes);
}

static void test_fanout(void **state)
{
    (void)state;
    assert_int_equal(fork_fanout(2, 320 * MIB), 1);
    assert_int_equal(fork_fanout(32, 320 * MIB), 1);
    assert_int_equal(fork_fanout(32, 4 * MIB), 2);
    assert_int_equal(fork_fanout(1000, 320 * MIB), 2);
    assert_int_equal(fork_fanout(200, 320 * MIB), 1);
    assert_int_equal(fork_fanout(500, 320 * MIB), 2);
    assert_int_equal(fork_fanout(1000, 8192 * MIB), 1);
    assert_true(fork_fanout(10000, 0) > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_any_order),
        cmocka_unit_test(test_not_verified),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_said_once),
        cmocka_unit_test(test_orphans),
        cmocka_unit_test(test_back),
        cmocka_unit_test(test_orphans_of_many),
        cmocka_unit_test(test_gives_wrong), cmocka_unit_test(test_both_say_so),
        cmocka_unit_test(test_says_so_often),
        cmocka_unit_test(test_fanout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
