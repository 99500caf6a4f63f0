/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_bytes.c - BYTES: encoded, decoded, and everything else refused
 */
#include "unit.h"

#include "wire.h"

static uint8_t buf[FF_MSG_MAX], data[FF_WIRE_BYTES_MAX];

/* A copy that ends where the message ends, so that ASAN sees a step too far */
static int decode(int len, struct ff_bytes *p, struct ff_error *err)
{
    uint8_t *copy = malloc((size_t)len ? (size_t)len : 1);

    assert_non_null(copy);
    memcpy(copy, buf, (size_t)len);
    int rc = ff_wire_get_bytes(copy, (size_t)len, p, err);
    if (!rc) {
        assert_true(p->data >= copy && p->data + p->n == copy + len);
        assert_memory_equal(p->data, data, p->n);
    }
    free(copy);
    return rc;
}

static void test_good(void **state)
{
    static const struct ff_bytes good[] = {
        {.offset = 0, .taken = 0, .n = 0},
        {.offset = 1, .taken = 2, .n = 3},
        {.offset = 7, .taken = 0, .n = 0, .ends = true},
        {.offset = FF_WIRE_BYTES_LAST, .taken = FF_WIRE_BYTES_LAST, .n = 1, .ends = true},
        {.offset = 1ull << 40, .taken = 1ull << 33, .n = FF_WIRE_BYTES_MAX},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 7 + 1);
    for (size_t i = 0; i < FF_ARRAY_LEN(good); i++) {
        struct ff_bytes p = good[i], got;
        struct ff_error err;
        p.data = data;
        int len = ff_wire_put_bytes(buf, &p);
        assert_int_equal(len, 24 + p.n);
        assert_int_equal(ff_wire_type(buf, (size_t)len, &err), FF_MSG_BYTES);
        assert_int_equal(decode(len, &got, &err), 0);
        assert_true(got.offset == p.offset && got.taken == p.taken && got.n == p.n &&
                    got.ends == p.ends);
    }
}

static void must_refuse(int len, const char *says)
{
    struct ff_error err = {.code = 0};
    struct ff_bytes p;

    assert_fails(decode(len, &p, &err), EPROTO);
    assert_error(err, EPROTO, "wire: read BYTES");
    if (!strstr(err.text, says))
        fail_msg("\"%s\" is not in: %s", says, err.text);
    assert_fails(decode(len, &p, NULL), EPROTO);
}

static void test_bad(void **state)
{
    struct ff_bytes p = {.offset = 5, .taken = 6, .data = data, .n = 4};
    (void)state;

    for (int len = 4; len < 24; len++) {
        ff_wire_put_bytes(buf, &p);
        must_refuse(len, "cut short");
    }
    p.offset = FF_WIRE_BYTES_LAST + 1;
    must_refuse(ff_wire_put_bytes(buf, &p), "offset 0x4000000000000001");
    p.offset = UINT64_MAX;
    must_refuse(ff_wire_put_bytes(buf, &p), "offset 0xffffffffffffffff");
    p.offset = 5;
    p.taken = FF_WIRE_BYTES_LAST + 1;
    must_refuse(ff_wire_put_bytes(buf, &p), "taken 0x4000000000000001");
    p.taken = 6;
    int len = ff_wire_put_bytes(buf, &p);
    for (unsigned bit = 1; bit < 32; bit++) {
        memset(buf + 20, 0, 4);
        buf[20 + bit / 8] = (uint8_t)(1u << (bit % 8));
        must_refuse(len, "flags");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
