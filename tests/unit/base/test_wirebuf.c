/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_wirebuf.c - little-endian fields: byte order, bounds, bad stays bad
 */
#include "unit.h"

#include "wirebuf.h"

static void test_byte_order(void **state)
{
    uint8_t mem[15] = {0};
    struct ff_wirebuf b = {.data = mem, .len = sizeof(mem)};
    static const uint8_t want[15] = {0x11, 0x33, 0x22, 0x77, 0x66, 0x55, 0x44,
                                     0xff, 0xee, 0xdd, 0xcc, 0xbb, 0xaa, 0x99, 0x88};
    (void)state;

    ff_wb_put(&b, 0x11, 1);
    ff_wb_put(&b, 0x2233, 2);
    ff_wb_put(&b, 0x44556677, 4);
    ff_wb_put(&b, 0x8899aabbccddeeffull, 8);
    assert_false(b.bad);
    assert_int_equal(ff_wb_left(&b), 0);
    assert_memory_equal(mem, want, sizeof(want));

    b.pos = 0;
    assert_int_equal(ff_wb_get(&b, 1), 0x11);
    assert_int_equal(ff_wb_get(&b, 2), 0x2233);
    assert_int_equal(ff_wb_get(&b, 4), 0x44556677);
    assert_true(ff_wb_get(&b, 8) == 0x8899aabbccddeeffull);
    assert_false(b.bad);
}

static void test_bounds(void **state)
{
    uint8_t mem[24];
    (void)state;

    for (size_t len = 0; len <= 8; len++) {
        for (size_t n = 0; n <= 9; n++) {
            struct ff_wirebuf b = {.data = mem + 8, .len = len};
            memset(mem, 0x5a, sizeof(mem));
            ff_wb_put(&b, UINT64_MAX, n);
            assert_int_equal(b.bad, n > len);
            for (size_t i = 0; i < sizeof(mem); i++) {
                bool inside = !b.bad && i >= 8 && i < 8 + n;
                /* beyond the eighth byte of a field there is nothing to put: see below */
                if (n <= 8)
                    assert_int_equal(mem[i], inside ? 0xff : 0x5a);
            }
        }
    }
}

static void test_bad_stays_bad(void **state)
{
    uint8_t mem[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct ff_wirebuf b = {.data = mem, .len = sizeof(mem)};
    (void)state;

    assert_int_equal(ff_wb_get(&b, 4), 0x04030201);
    assert_int_equal(ff_wb_get(&b, 8), 0);
    assert_true(b.bad);
    assert_int_equal(b.pos, 4);
    assert_int_equal(ff_wb_get(&b, 1), 0); /* though a byte would be there */
    assert_int_equal(ff_wb_left(&b), 0);
    assert_null(ff_wb_take(&b, 0));
    ff_wb_put(&b, 0xff, 1);
    ff_wb_put_bytes(&b, "x", 1);
    assert_int_equal(mem[4], 5);
}

static void test_huge_lengths(void **state)
{
    uint8_t mem[8];
    struct ff_wirebuf b = {.data = mem, .len = sizeof(mem), .pos = 8};
    (void)state;

    assert_null(ff_wb_take(&b, SIZE_MAX)); /* pos + n would wrap */
    assert_true(b.bad);
    b = (struct ff_wirebuf){.data = mem, .len = sizeof(mem), .pos = 8};
    assert_non_null(ff_wb_take(&b, 0));
    ff_wb_put_bytes(&b, NULL, 0);
    assert_false(b.bad);
}

UNIT_MAIN(cmocka_unit_test(test_byte_order), cmocka_unit_test(test_bounds),
          cmocka_unit_test(test_bad_stays_bad), cmocka_unit_test(test_huge_lengths))
