/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_group_rate.c - how fast a group is sent to: the slowest that is no outlier decides
 */
#include "unit.h"

#include "group.h"

#define N_MAX 8

/* One turn in which agents lost so many of 1000 */
static void turn(struct ff_group_rate *r, bool is_full, unsigned n, const unsigned *lost)
{
    struct ff_group_got got[N_MAX];

    for (unsigned i = 0; i < n; i++)
        got[i] = (struct ff_group_got){.packets = 1000 - lost[i], .lost = lost[i]};
    ff_group_rate_turn(r, got, n, is_full);
}

static struct ff_group_rate rate_of(uint64_t mbit)
{
    return (struct ff_group_rate){.bytes_s = mbit * 125000};
}

#define TURN(r, is_full, ...)                                                               \
    turn(&(r), is_full, sizeof((unsigned[]){__VA_ARGS__}) / sizeof(unsigned),               \
         (unsigned[]){__VA_ARGS__})

static void test_grows(void **state)
{
    struct ff_group_rate r = rate_of(100);
    (void)state;

    TURN(r, true, 0, 0, 3);
    assert_int_equal(r.bytes_s, 200 * 125000);
    TURN(r, false, 0, 0, 0); /* that was not the rate's doing */
    assert_int_equal(r.bytes_s, 200 * 125000);
    TURN(r, true, 0, 50, 0); /* some loss is cheaper than to be slow */
    assert_int_equal(r.bytes_s, 200 * 125000);
    TURN(r, true, 0, 250, 0);
    assert_int_equal(r.bytes_s, 150 * 125000);
    TURN(r, true, 0, 0, 0);
    assert_int_equal(r.bytes_s, 150 * 125000 * 9 / 8);
    for (unsigned i = 0; i < 100; i++)
        TURN(r, true, 0, 0);
    assert_int_equal(r.bytes_s, FF_GROUP_RATE_MAX);
    ff_group_rate_turn(&r, NULL, 0, true); /* nobody has said anything */
    assert_int_equal(r.bytes_s, FF_GROUP_RATE_MAX);
}

static void test_outlier(void **state)
{
    struct ff_group_rate r = rate_of(100);
    (void)state;

    TURN(r, true, 0, 900, 0, 0); /* less than half of the others' */
    assert_int_equal(r.bytes_s, 200 * 125000);
    TURN(r, true, 0, 400, 0, 0); /* more than that */
    assert_int_equal(r.bytes_s, 120 * 125000);
    TURN(r, true, 900, 900, 0, 900); /* most of them are no outliers */
    assert_int_equal(r.bytes_s, 60 * 125000);
    TURN(r, true, 900);
    assert_int_equal(r.bytes_s, 30 * 125000);
}

static void test_useless(void **state)
{
    struct ff_group_rate r = rate_of(100);
    (void)state;

    for (unsigned i = 0; i < 10; i++)
        TURN(r, true, 800, 700, 900);
    assert_int_equal(r.bytes_s, FF_GROUP_RATE_MIN);
    assert_true(r.useless > 3 && r.useless < 10);
    TURN(r, true, 0, 0, 900); /* for one only */
    assert_int_equal(r.useless, 0);
}

/* What an agent says is not believed to be possible */
static void test_lies(void **state)
{
    struct ff_group_got got[] = {{1, UINT64_MAX}, {UINT64_MAX, UINT64_MAX}, {UINT64_MAX, 1}};
    struct ff_group_rate r = rate_of(100);
    (void)state;

    ff_group_rate_turn(&r, got, 3, true); /* the second decides, who has lost half */
    assert_int_equal(r.bytes_s, 50 * 125000);
    ff_group_rate_turn(&r, &(struct ff_group_got){1, UINT64_MAX}, 1, true);
    assert_int_equal(r.bytes_s, 25 * 125000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_grows), cmocka_unit_test(test_outlier),
                                       cmocka_unit_test(test_useless), cmocka_unit_test(test_lies)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
