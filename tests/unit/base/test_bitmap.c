/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_bitmap.c - bits, and the search for a clear one, against an array of bool
 */
#include "unit.h"

#include "bitmap.h"

static uint64_t slow_next(const bool *ref, uint64_t n, uint64_t from)
{
    for (uint64_t i = from; i < n; i++)
        if (!ref[i])
            return i;
    for (uint64_t i = 0; i < n; i++)
        if (!ref[i])
            return i;
    return n;
}

static void test_against_bool(void **state)
{
    static const uint64_t sizes[] = {1, 2, 63, 64, 65, 127, 128, 129, 1000};
    (void)state;

    for (size_t k = 0; k < FF_ARRAY_LEN(sizes); k++) {
        uint64_t n = sizes[k], *map = ff_bitmap_new(n);
        bool *ref = calloc(n, sizeof(*ref));
        assert_non_null(map);
        assert_non_null(ref);
        srandom(7);
        for (uint64_t done = 0; done < n; done++) {
            for (uint64_t from = 0; from <= n; from += 1 + n / 50)
                assert_int_equal(ff_bitmap_next_clear(map, n, from), slow_next(ref, n, from));
            uint64_t bit = slow_next(ref, n, (uint64_t)random() % n);
            assert_false(ff_bitmap_get(map, bit));
            ff_bitmap_set(map, bit);
            ff_bitmap_set(map, bit);
            ref[bit] = true;
            for (uint64_t i = 0; i < n; i++)
                assert_int_equal(ff_bitmap_get(map, i), ref[i]);
        }
        /* none is left: whatever the start, also bits beyond the end are never returned */
        for (uint64_t from = 0; from <= n; from++)
            assert_int_equal(ff_bitmap_next_clear(map, n, from), n);
        free(map);
        free(ref);
    }
}

static void test_empty(void **state)
{
    uint64_t *map = ff_bitmap_new(0);
    (void)state;
    assert_non_null(map);
    assert_int_equal(ff_bitmap_next_clear(map, 0, 0), 0);
    free(map);
}

UNIT_MAIN(cmocka_unit_test(test_against_bool), cmocka_unit_test(test_empty))
