/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_fork_place.c - which hosts get how many children
 */
#include "unit.h"

#include "fork_place.h"

#define IMAGE 100
#define CHILD 40

static void check(const struct place_host *given, size_t n, unsigned children, bool pack, unsigned placed,
                  const unsigned *want)
{
    struct place_host h[8];

    memcpy(h, given, n * sizeof(*h));
    assert_int_equal(place_plan(h, n, children, IMAGE, CHILD, pack), placed);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(h[i].children, want[i]);
        assert_true(place_bytes(IMAGE, CHILD, h[i].children) <= h[i].available);
    }
}

static void test_pack(void **state)
{
    const struct place_host h[] = {{.available = 180}, {.available = 300}, {.available = 139}, {.available = 260}};

    (void)state;
    check(h, 4, 3, true, 3, (unsigned[]){0, 3, 0, 0});
    check(h, 4, 5, true, 5, (unsigned[]){0, 5, 0, 0});
    check(h, 4, 6, true, 6, (unsigned[]){0, 5, 0, 1});
    check(h, 4, 11, true, 11, (unsigned[]){2, 5, 0, 4});
    check(h, 4, 12, true, 11, (unsigned[]){2, 5, 0, 4});
}

static void test_spread(void **state)
{
    const struct place_host h[] = {{.available = 400}, {.available = 410}, {.available = 150}};

    (void)state;
    check(h, 3, 1, false, 1, (unsigned[]){0, 1, 0});
    check(h, 3, 2, false, 2, (unsigned[]){1, 1, 0});
    check(h, 3, 5, false, 5, (unsigned[]){2, 3, 0});
    check(h, 3, 100, false, 15, (unsigned[]){7, 7, 1});
}

static void test_slots(void **state)
{
    const struct place_host h[] = {{.available = 1000, .slots = 2}, {.available = 500, .slots = 1}, {.available = 0}};

    (void)state;
    check(h, 3, 3, true, 3, (unsigned[]){2, 1, 0});
    check(h, 3, 4, false, 3, (unsigned[]){2, 1, 0});
    check(h, 3, 0, true, 0, (unsigned[]){0, 0, 0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
