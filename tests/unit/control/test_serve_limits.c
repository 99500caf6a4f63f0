/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_serve_limits.c - what a guest that forks itself is refused
 */
#include "unit.h"

#include "serve_limits.h"

static void test_children(void **state)
{
    struct serve_limits l = {.children = 8, .forks = SERVE_FORKS_MAX};

    (void)state;
    assert_null(serve_limits_take(&l, 0, 8, 0));
    assert_non_null(serve_limits_take(&l, 0, 9, 0));
    assert_null(serve_limits_take(&l, 6, 2, 0));
    assert_non_null(serve_limits_take(&l, 6, 3, 0));
    assert_non_null(serve_limits_take(&l, 8, 1, 0));
    assert_non_null(serve_limits_take(&l, 9, 1, 0));
    assert_non_null(serve_limits_take(&l, 0, ~0U, 0));
}

static void test_rate(void **state)
{
    struct serve_limits l = {.children = 1, .forks = 3};
    uint64_t now = 5; /* as young as a clock can be */

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_null(serve_limits_take(&l, 0, 1, now++));
    assert_non_null(serve_limits_take(&l, 0, 1, 60004)); /* a minute after the first: 60005 */
    assert_null(serve_limits_take(&l, 0, 1, 60005));
    assert_non_null(serve_limits_take(&l, 0, 1, 60005));
    assert_null(serve_limits_take(&l, 0, 1, 60006));
    for (int i = 0; i < 3; i++) /* what was refused does not count */
        assert_non_null(serve_limits_take(&l, 2, 1, 200000));
    for (int i = 0; i < 3; i++)
        assert_null(serve_limits_take(&l, 0, 1, 200000));
    assert_non_null(serve_limits_take(&l, 0, 1, 200000));
}

UNIT_MAIN(cmocka_unit_test(test_children), cmocka_unit_test(test_rate))
