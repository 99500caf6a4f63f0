/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_wire_dirty.c - the messages of precopy=1: encoded, decoded, and everything else refused
 */
#include "unit.h"

#include "wire.h"

static uint8_t buf[FF_MSG_MAX], bits[FF_WIRE_DIRTY_MAX / 8 + 1];

static const struct ff_wire_region table[] = {
    {.name = "pc.ram", .len_bytes = 1ull << 40, .psize = 4096},
    {.name = "huge", .len_bytes = 26 << 20, .psize = 2 << 20},
};

/* A copy that ends where the message ends, so that ASAN sees a step too far */
static int decode(int len, struct ff_dirty *d, struct ff_error *err)
{
    uint8_t *copy = malloc((size_t)len ? (size_t)len : 1);

    assert_non_null(copy);
    memcpy(copy, buf, (size_t)len);
    int rc = ff_wire_get_dirty(copy, (size_t)len, d, table, 2, err);
    if (!rc) {
        assert_true(d->bits >= copy && d->bits + (d->n + 7) / 8 == copy + len);
        assert_memory_equal(d->bits, bits, (d->n + 7) / 8);
    }
    free(copy);
    return rc;
}

static void must_refuse(struct ff_dirty d, const char *says)
{
    struct ff_error err = {.code = 0};

    d.bits = bits;
    int len = ff_wire_put_dirty(buf, &d);
    assert_fails(decode(len, &d, &err), EPROTO);
    assert_error(err, EPROTO, "wire: read DIRTY");
    if (!strstr(err.text, says))
        fail_msg("\"%s\" is not in: %s", says, err.text);
    assert_fails(decode(len, &d, NULL), EPROTO);
}

static void test_dirty(void **state)
{
    static const struct ff_dirty good[] = {
        {.region = 0, .n = 1, .first = 0},
        {.region = 0, .n = 64, .first = (1ull << 28) - 64},
        {.region = 0, .n = FF_WIRE_DIRTY_MAX, .first = 12345},
        {.region = 1, .n = 13, .first = 0},
        {.region = 1, .n = 1, .first = 12},
    };
    struct ff_dirty d;
    struct ff_error err;
    (void)state;

    for (size_t i = 0; i < sizeof(bits); i++)
        bits[i] = (uint8_t)(i * 7 + 1);
    for (size_t i = 0; i < FF_ARRAY_LEN(good); i++) {
        d = good[i];
        d.bits = bits;
        int len = ff_wire_put_dirty(buf, &d);
        assert_true(len > 0 && len <= (int)FF_MSG_MAX);
        assert_int_equal(ff_wire_type(buf, (size_t)len, &err), FF_MSG_DIRTY);
        assert_ok(decode(len, &d, &err), err);
        assert_int_equal(d.region, good[i].region);
        assert_int_equal(d.n, good[i].n);
        assert_true(d.first == good[i].first);
        assert_fails(decode(len - 1, &d, &err), EPROTO);
        assert_error(err, EPROTO, "wire: read DIRTY", "cut short");
        if (len < (int)FF_MSG_MAX) {
            assert_fails(decode(len + 1, &d, &err), EPROTO);
            assert_error(err, EPROTO, "wire: read DIRTY", "1 bytes too many");
        }
    }
    for (int len = 4; len < 20; len++) /* of the last, which is the shortest */
        assert_fails(decode(len, &d, &err), EPROTO);
}

static void test_dirty_refused(void **state)
{
    (void)state;
    must_refuse((struct ff_dirty){.region = 2, .n = 1}, "region 2 of 2");
    must_refuse((struct ff_dirty){.region = UINT32_MAX, .n = 1}, "region 4294967295");
    must_refuse((struct ff_dirty){.region = 0, .n = 0}, "the 0 after");
    must_refuse((struct ff_dirty){.region = 0, .n = FF_WIRE_DIRTY_MAX + 1}, "1..491520 pages");
    must_refuse((struct ff_dirty){.region = 1, .n = 14}, "inside a region");
    must_refuse((struct ff_dirty){.region = 1, .n = 1, .first = 13}, "pages 13 and the 1 after");
    must_refuse((struct ff_dirty){.region = 1, .n = 13, .first = 1}, "inside a region");
    must_refuse((struct ff_dirty){.region = 0, .n = 64, .first = UINT64_MAX - 63}, "inside");
    must_refuse((struct ff_dirty){.region = 0, .n = 64, .first = UINT64_MAX}, "inside");
}

static void test_others(void **state)
{
    struct ff_welcome w = {.version = FF_WIRE_VERSION, .features = FF_WIRE_PRECOPY, .epoch = 1},
                      out;
    struct ff_stats st = {.bytes_precopied = 1, .bytes_discarded = 2, .precopy_ns = 3}, got;
    struct ff_error err;
    (void)state;

    int len = ff_wire_put_welcome(buf, &w);
    assert_ok(ff_wire_get_welcome(buf, (size_t)len, &out, &err), err);
    assert_int_equal(out.features, FF_WIRE_PRECOPY);
    w.features = FF_WIRE_VISITS << 1; /* what it would have to do is not known here */
    len = ff_wire_put_welcome(buf, &w);
    assert_fails(ff_wire_get_welcome(buf, (size_t)len, &out, &err), EPROTO);
    assert_error(err, EPROTO, "features 0x80", "permitted 0x6f");

    len = ff_wire_put_empty(buf, FF_MSG_LOGGING);
    assert_int_equal(len, 4);
    assert_int_equal(ff_wire_type(buf, 4, &err), FF_MSG_LOGGING);
    assert_ok(ff_wire_get_empty(buf, 4, &err), err);
    assert_fails(ff_wire_get_empty(buf, 5, &err), EPROTO);

    len = ff_wire_put_stats(buf, FF_MSG_PASSED, &st);
    assert_int_equal(ff_wire_type(buf, (size_t)len, &err), FF_MSG_PASSED);
    assert_ok(ff_wire_get_stats(buf, (size_t)len, &got, &err), err);
    assert_memory_equal(&got, &st, sizeof(st));
}

/* HELLO of a guest that returns: the session is in it, and is not where the guest does not */
static void test_hello_of_a_return(void **state)
{
    struct ff_wire_region region = {.name = "ram", .len_bytes = 1 << 20, .psize = 4096};
    struct ff_hello h = {.version = FF_WIRE_VERSION, .oldest = 1, .features = FF_WIRE_RETURNS, .n_regions = 1,
                         .config = "test", .returns_from = "fifteen letters", .regions = &region}, got;
    struct ff_error err;
    (void)state;

    int len = ff_wire_put_hello(buf, &h, &err);
    assert_ok(ff_wire_get_hello(buf, (size_t)len, &got, &err), err);
    assert_memory_equal(got.returns_from, h.returns_from, FF_SESSION_LEN);
    assert_string_equal(got.regions[0].name, "ram");
    ff_hello_free(&got);
    for (int cut = 1; cut < len; cut++)
        assert_true(ff_wire_get_hello(buf, (size_t)(len - cut), &got, &err) < 0);
    h.features = 0;
    len = ff_wire_put_hello(buf, &h, &err);
    buf[4 + 12] = FF_WIRE_RETURNS; /* what follows is no session */
    assert_true(ff_wire_get_hello(buf, (size_t)len, &got, &err) < 0);
}

UNIT_MAIN(cmocka_unit_test(test_hello_of_a_return), cmocka_unit_test(test_dirty), cmocka_unit_test(test_dirty_refused),
          cmocka_unit_test(test_others))
