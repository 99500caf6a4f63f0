/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_hist.c - the histogram's percentiles against the sorted values themselves
 */
#include "unit.h"

#include "hist.h"

static uint64_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Never lower than the true value, at most an eighth higher; the maximum is exact */
static void check_all(uint64_t *v, size_t n)
{
    static const unsigned permille[] = {1, 10, 100, 250, 500, 750, 900, 990, 999};
    static struct ff_hist h;

    memset(&h, 0, sizeof(h));
    for (size_t i = 0; i < n; i++)
        ff_hist_add(&h, v[i]);
    qsort(v, n, sizeof(*v), compare);
    for (size_t k = 0; k < FF_ARRAY_LEN(permille); k++) {
        uint64_t truth = v[(n * permille[k] + 999) / 1000 - 1];
        uint64_t got = ff_hist_at(&h, permille[k]);
        if (got < truth || got > truth + truth / 8 + 1 || got > v[n - 1])
            fail_msg("%zu values, %u permille: %llu, true value %llu", n, permille[k],
                     (unsigned long long)got, (unsigned long long)truth);
    }
    assert_int_equal(ff_hist_at(&h, 1000), v[n - 1]);
}

static void test_empty(void **state)
{
    static const struct ff_hist h;
    (void)state;
    for (unsigned p = 0; p <= 1000; p += 100)
        assert_int_equal(ff_hist_at(&h, p), 0);
}

static void test_one_value(void **state)
{
    (void)state;
    for (unsigned bit = 0; bit < 64; bit++) {
        for (int d = -1; d <= 1; d++) {
            static struct ff_hist h;
            uint64_t v = (1ull << bit) + (uint64_t)(int64_t)d;
            memset(&h, 0, sizeof(h));
            ff_hist_add(&h, v);
            for (unsigned p = 1; p <= 1000; p += 333)
                assert_int_equal(ff_hist_at(&h, p), v);
        }
    }
}

static void test_small_are_exact(void **state)
{
    static struct ff_hist h;
    (void)state;
    for (uint64_t v = 0; v < 8; v++)
        ff_hist_add(&h, v);
    for (unsigned k = 0; k < 8; k++)
        assert_int_equal(ff_hist_at(&h, (k + 1) * 125), k);
}

static void test_against_sorted(void **state)
{
    static uint64_t v[10000];
    uint64_t seed = 20240229;
    (void)state;

    for (unsigned shift = 24; shift < 62; shift += 3) {
        for (size_t n = 1; n <= FF_ARRAY_LEN(v); n *= 10) {
            for (size_t i = 0; i < n; i++) /* spread over the octaves, below 2^40 */
                v[i] = next_random(&seed) >> shift >> (next_random(&seed) % 16);
            check_all(v, n);
        }
    }
}

static void test_beyond_the_last_bucket(void **state)
{
    static struct ff_hist h;
    (void)state;
    for (unsigned i = 0; i < 100; i++)
        ff_hist_add(&h, (1ull << 41) + i);
    ff_hist_add(&h, UINT64_MAX);
    assert_int_equal(ff_hist_at(&h, 500), UINT64_MAX); /* never too low */
    assert_int_equal(ff_hist_at(&h, 1000), UINT64_MAX);
}

UNIT_MAIN(cmocka_unit_test(test_empty), cmocka_unit_test(test_one_value),
          cmocka_unit_test(test_small_are_exact), cmocka_unit_test(test_against_sorted),
          cmocka_unit_test(test_beyond_the_last_bucket))
