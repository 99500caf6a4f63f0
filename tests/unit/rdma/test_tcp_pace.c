/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_tcp_pace.c - decisions of the window of prefill on links that are made up
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tcp_pace.h"

#define LOOK_NS 5000000u
#define NO_LIMIT 4e6 /* bytes: what the kernels let a connection have without us */

/* A link of @rate bytes a ns and @rtt_us; hosts that add @host_us to each round trip, and carry
 * @host_rate. */
struct link {
    double rate, host_rate;
    uint32_t rtt_us, host_us;
    unsigned noise; /* per cent by which a look is slower at random */
    uint32_t seed;
};

struct seen {
    double bytes, queue_us; /* means of the looks */
    unsigned held;          /* looks with a limit */
};

static double noise(struct link *l)
{
    l->seed = l->seed * 1664525u + 1013904223u;
    return 1 - (l->noise ? (double)((l->seed >> 16) % (l->noise + 1)) / 100 : 0);
}

static struct seen run(struct pace *p, struct link *l, uint32_t *window, unsigned looks)
{
    struct seen s = {0};

    for (unsigned i = 0; i < looks; i++) {
        double w = *window ? *window : NO_LIMIT;
        double rate = w / ((l->rtt_us + l->host_us) * 1000.0), most = l->rate;
        if (most > l->host_rate)
            most = l->host_rate;
        if (rate > most)
            rate = most;
        s.queue_us += (w / l->rate / 1000 - l->rtt_us) / looks;
        rate *= noise(l);
        s.bytes += rate * LOOK_NS / looks;
        s.held += *window != 0;
        *window = tcp_pace_look(p, (uint64_t)(rate * LOOK_NS), LOOK_NS, l->rtt_us, false);
    }
    return s;
}

/* Of every link of issue 4: full, and the queue is at most a round trip and the spare */
static void test_a_limited_link_is_full_and_its_queue_short(void **state)
{
    static const double gbit[] = {0.08, 1, 10, 25};
    static const uint32_t rtt_us[] = {50, 100, 200, 1000};
    (void)state;

    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 4; k++)
            for (unsigned percent = 0; percent <= 8; percent += 8) {
                struct link l = {gbit[i] / 8, 100, rtt_us[k], 0, percent, 1};
                uint32_t window = 0;
                struct pace p;
                tcp_pace_init(&p);
                run(&p, &l, &window, 4);
                assert_true(window); /* it took at most 20 ms to find out */
                struct seen s = run(&p, &l, &window, 400);
                assert_int_equal(s.held, 400);
                assert_true(s.bytes > 0.95 * l.rate * LOOK_NS);
                assert_true(s.queue_us < rtt_us[k] + 13e3 / l.rate / 1000);
            }
}

static void test_hosts_that_are_the_limit_are_left_alone(void **state)
{
    (void)state;
    /* they would need a window of twenty times the link's own */
    struct link l = {.rate = 12.5, .host_rate = 3, .rtt_us = 30, .host_us = 600, .noise = 5};
    uint32_t window = 0;
    struct pace p;

    tcp_pace_init(&p);
    struct seen s = run(&p, &l, &window, 2000);
    assert_true(s.bytes > 0.93 * 3 * LOOK_NS);
    /* the longer it lasts the less often it is tried */
    s = run(&p, &l, &window, 10000);
    assert_true(s.bytes > 0.96 * 3 * LOOK_NS);
}

static void test_hosts_that_answer_late_get_a_larger_window(void **state)
{
    (void)state;
    struct link l = {.rate = 1.25, .host_rate = 100, .rtt_us = 100, .host_us = 150};
    uint32_t window = 0;
    struct pace p;

    tcp_pace_init(&p);
    struct seen s = run(&p, &l, &window, 2000);
    assert_true(s.bytes > 0.95 * 1.25 * LOOK_NS);
    assert_true(s.held > 1800);
}

static void test_a_link_that_changes_is_followed(void **state)
{
    (void)state;
    struct link l = {.rate = 1.25, .host_rate = 100, .rtt_us = 200};
    uint32_t window = 0;
    struct pace p;

    tcp_pace_init(&p);
    run(&p, &l, &window, 100);
    l.rate = 0.125;
    run(&p, &l, &window, 100);
    struct seen s = run(&p, &l, &window, 100);
    assert_true(s.bytes > 0.95 * 0.125 * LOOK_NS && s.queue_us < 320);
    l.rate = 1.25;
    run(&p, &l, &window, 100);
    s = run(&p, &l, &window, 100);
    assert_true(s.bytes > 0.95 * 1.25 * LOOK_NS && s.queue_us < 220);
}

static void test_nothing_comes(void **state)
{
    (void)state;
    struct pace p;

    tcp_pace_init(&p);
    for (unsigned i = 0; i < 100; i++)
        assert_true(tcp_pace_look(&p, 0, LOOK_NS, 100, false) <= 100000);
    /* and then it does, at 1 Gbit/s: the limit of nothing is not kept */
    struct link l = {.rate = 0.125, .host_rate = 100, .rtt_us = 100};
    uint32_t window = 0;
    run(&p, &l, &window, 100);
    assert_true(run(&p, &l, &window, 100).bytes > 0.95 * 0.125 * LOOK_NS);
}

/* A relay that has little new, for long: the link still carries what it did, and more than that is seen */
static void test_who_asks_for_little_learns_little(void **state)
{
    (void)state;
    struct link l = {.rate = 0.125, .host_rate = 100, .rtt_us = 200};
    struct pace p;

    tcp_pace_init(&p);
    uint32_t window = p.window;
    for (unsigned i = 0; i < 200; i++)
        window = tcp_pace_look(&p, (uint64_t)(l.rate / 10 * LOOK_NS), LOOK_NS, l.rtt_us, true);
    assert_true(!p.held && window >= l.rate * l.rtt_us * 1000); /* one look alone was of use */
    run(&p, &l, &window, 200);
    assert_true(p.held);
    uint32_t before = window;
    for (unsigned i = 0; i < 2000; i++)
        window = tcp_pace_look(&p, (uint64_t)(l.rate / 10 * LOOK_NS), LOOK_NS, l.rtt_us, true);
    assert_true(p.held && window == before);
    assert_true(run(&p, &l, &window, 100).bytes > 0.95 * l.rate * LOOK_NS);
    l.rate = 1.25;
    for (unsigned i = 0; i < 20; i++)
        window = tcp_pace_look(&p, (uint64_t)(1.25 * LOOK_NS), LOOK_NS, l.rtt_us, true);
    assert_true(run(&p, &l, &window, 100).bytes > 0.95 * 1.25 * LOOK_NS);
}

/* A window that was too small at first, and a burst after a pause, are not what the link carries */
static void test_the_rate_is_found_whatever_comes_first(void **state)
{
    (void)state;
    struct link l = {.rate = 1.25, .host_rate = 100, .rtt_us = 100, .host_us = 60};
    uint32_t window = 8192;
    struct pace p;

    tcp_pace_init(&p);
    p.held = true;
    p.gain = 1.5;
    p.best = 0.01;
    run(&p, &l, &window, 400);
    assert_true(run(&p, &l, &window, 100).bytes > 0.95 * 1.25 * LOOK_NS);
    for (unsigned i = 0; i < 50; i++) {
        tcp_pace_look(&p, (uint64_t)(2 * 1.25 * LOOK_NS), LOOK_NS, 100, false);
        run(&p, &l, &window, 10);
    }
    assert_true(p.best < 1.05 * 1.25);
    assert_true(window && window < 4 * 1.25 * 100e3);
}

/* The window comes from below: what is queued meanwhile is a few round trips */
static void test_the_beginning_is_not_a_flood(void **state)
{
    (void)state;
    struct link l = {.rate = 0.125, .host_rate = 100, .rtt_us = 200};
    struct pace p;

    tcp_pace_init(&p);
    uint32_t window = p.window;
    for (unsigned i = 0; i < 20; i++) {
        run(&p, &l, &window, 1);
        assert_true(window && window <= 256u << 10);
    }
    assert_true(p.held);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_limited_link_is_full_and_its_queue_short),
        cmocka_unit_test(test_hosts_that_are_the_limit_are_left_alone),
        cmocka_unit_test(test_hosts_that_answer_late_get_a_larger_window),
        cmocka_unit_test(test_a_link_that_changes_is_followed),
        cmocka_unit_test(test_nothing_comes),
        cmocka_unit_test(test_who_asks_for_little_learns_little),
        cmocka_unit_test(test_the_rate_is_found_whatever_comes_first),
        cmocka_unit_test(test_the_beginning_is_not_a_flood),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
