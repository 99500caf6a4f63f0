/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_exit_queue.c - every child of every fork is said once to who listens to the end, and to
 * nobody else
 */
#include "unit.h"

#include "exit_queue.h"

static struct exit_queue j;

/* The next line; NULL: none is there */
static void next(const char *want)
{
    char *got = exit_queue_next(&j);

    if (!want)
        assert_null(got);
    else
        assert_string_equal(got, want);
    free(got);
}

static void add(unsigned fork, unsigned count)
{
    assert_true(exit_queue_room(&j));
    exit_queue_add(&j, fork, count);
}

static int end(void **state)
{
    (void)state;
    exit_queue_free(&j);
    return 0;
}

static void test_no_forks(void **state)
{
    (void)state;
    next(NULL); /* nobody asks */
    exit_queue_ask(&j, "w1");
    next("joining w1\n");
    next("joined\n");
    next(NULL);
    exit_queue_acknowledged(&j);
    next(NULL);
}

static void test_as_they_end(void **state)
{
    (void)state;
    add(1, 3);
    exit_queue_ended(&j, 1, 2, 7);
    exit_queue_ask(&j, "");
    next("joining\n");
    next("exited 2 7\n");
    next(NULL);
    exit_queue_ended(&j, 1, 3, 0);
    exit_queue_ended(&j, 1, 3, 1); /* it has one code */
    exit_queue_ended(&j, 1, 2, 1);
    exit_queue_ended(&j, 1, 0, 1); /* no child of it */
    exit_queue_ended(&j, 1, 4, 1);
    exit_queue_ended(&j, 2, 1, 1);
    next("exited 3 0\n");
    next(NULL);
    exit_queue_ended(&j, 1, 1, 255);
    next("exited 1 255\n");
    next("joined\n");
    next(NULL);
    exit_queue_acknowledged(&j);
    exit_queue_ask(&j, ""); /* a second time */
    next("joining\n");
    next("joined\n");
}

static void test_several_forks(void **state)
{
    (void)state;
    add(5, 1);
    add(6, 2);
    exit_queue_ask(&j, "");
    next("joining\n");
    exit_queue_ended(&j, 6, 2, 4); /* its turn is not yet */
    next(NULL);
    exit_queue_ended(&j, 5, 1, 3);
    next("exited 1 3\n");
    next("exited 2 4\n");
    next(NULL);
    exit_queue_over(&j, 6); /* who followed them is gone */
    next("exited 1 255\n");
    next("joined\n");
}

/* What was not heard to the end is said again */
static void test_gives_up(void **state)
{
    (void)state;
    add(1, 2);
    exit_queue_ended(&j, 1, 1, 9);
    exit_queue_ask(&j, "a");
    next("joining a\n");
    next("exited 1 9\n");
    exit_queue_cancel(&j);
    exit_queue_ended(&j, 1, 2, 8);
    next(NULL);
    exit_queue_acknowledged(&j); /* of an answer that was taken back */
    exit_queue_ask(&j, "b");
    next("joining b\n");
    next("exited 1 9\n");
    exit_queue_acknowledged(&j); /* too early */
    exit_queue_ask(&j, "c");
    next("joining c\n");
    next("exited 1 9\n");
    next("exited 2 8\n");
    next("joined\n");
    exit_queue_cancel(&j); /* killed before it said that it has heard it */
    exit_queue_acknowledged(&j);
    exit_queue_ask(&j, "d");
    next("joining d\n");
    next("exited 1 9\n");
    next("exited 2 8\n");
    next("joined\n");
    exit_queue_acknowledged(&j);
    exit_queue_ask(&j, "e");
    next("joining e\n");
    next("joined\n");
}

/* A fork after the answer has begun is not in what was heard */
static void test_fork_after(void **state)
{
    (void)state;
    add(1, 1);
    exit_queue_over(&j, 1);
    exit_queue_ask(&j, "");
    next("joining\n");
    next("exited 1 255\n");
    next("joined\n");
    exit_queue_acknowledged(&j);
    add(2, 1);
    exit_queue_ask(&j, "");
    next("joining\n");
    next(NULL);
    exit_queue_ended(&j, 2, 1, 0);
    next("exited 1 0\n");
    next("joined\n");
}

/* Who never joins goes on, but not for ever with children that run */
static void test_limit(void **state)
{
    (void)state;
    for (unsigned i = 1; i <= EXIT_QUEUE_MAX; i++)
        add(i, 1);
    assert_false(exit_queue_room(&j));
    assert_int_equal(exit_queue_alive(&j), EXIT_QUEUE_MAX);
    exit_queue_ended(&j, 2, 1, 6);
    exit_queue_ended(&j, 2, 1, 6);
    exit_queue_ended(&j, 3, 1, 7);
    assert_int_equal(exit_queue_alive(&j), EXIT_QUEUE_MAX - 2);
    assert_true(exit_queue_room(&j)); /* the second one is forgotten */
    exit_queue_add(&j, EXIT_QUEUE_MAX + 1, 1);
    assert_int_equal(j.n, EXIT_QUEUE_MAX);
    exit_queue_ended(&j, 1, 1, 5);
    exit_queue_ask(&j, "");
    next("joining\n");
    next("exited 1 5\n");
    next("exited 1 7\n");
    next(NULL);
}

UNIT_MAIN(cmocka_unit_test_teardown(test_no_forks, end),
          cmocka_unit_test_teardown(test_as_they_end, end),
          cmocka_unit_test_teardown(test_several_forks, end),
          cmocka_unit_test_teardown(test_gives_up, end),
          cmocka_unit_test_teardown(test_fork_after, end),
          cmocka_unit_test_teardown(test_limit, end))
