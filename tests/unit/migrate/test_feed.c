/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_feed.c - FEED: encoded, decoded, and everything else refused
 */
#include "unit.h"

#include "wire.h"

static uint8_t buf[FF_MSG_MAX];
static struct ff_offer offer, got;

/* A copy that ends where the message ends, so that ASAN sees a step too far */
static int decode(int len, unsigned n, struct ff_error *err)
{
    uint8_t *copy = malloc((size_t)len);

    assert_non_null(copy);
    memcpy(copy, buf, (size_t)len);
    int rc = ff_wire_get_feed(copy, (size_t)len, n, &got, err);
    free(copy);
    return rc;
}

static int encode(unsigned n)
{
    offer = (struct ff_offer){.version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION,
                              .digest = 0x1122334455667788, .is_older = n % 2, .n = n};
    for (unsigned i = 0; i < n; i++)
        offer.r[i] = (struct ff_fed_region){.addr = 0x7f0000000000 + i, .claims_addr = ~0ull - i,
                                            .rkey = i, .claims_rkey = ~i};
    return ff_wire_put_feed(buf, &offer);
}

static void test_good(void **state)
{
    static const unsigned sizes[] = {0, 1, 7, FF_WIRE_REGIONS_MAX};
    struct ff_error err;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(sizes); i++) {
        int len = encode(sizes[i]);
        assert_int_equal(len, 32 + 24 * sizes[i]);
        assert_int_equal(ff_wire_type(buf, (size_t)len, &err), FF_MSG_FEED);
        assert_int_equal(decode(len, sizes[i], &err), 0);
        assert_true(got.digest == offer.digest && got.n == sizes[i] && got.is_older == offer.is_older);
        assert_memory_equal(got.r, offer.r, sizes[i] * sizeof(got.r[0]));
    }
}

static void must_refuse(int len, unsigned n, int code, const char *says)
{
    struct ff_error err = {.code = 0};

    assert_fails(decode(len, n, &err), code);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" is not in: %s", says, err.text);
}

static void test_bad(void **state)
{
    int len = encode(2);
    (void)state;

    for (int cut = 4; cut < 32; cut++)
        must_refuse(cut, 2, EPROTO, "wire: read FEED");
    for (int cut = 32; cut < len; cut++)
        must_refuse(cut, 2, EPROTO, "bytes of regions");
    must_refuse(len, 1, EPROTO, "bytes of regions");
    must_refuse(len, 3, EPROTO, "bytes of regions");
    must_refuse(len, FF_WIRE_REGIONS_MAX + 1, EPROTO, "bytes of regions");
    buf[4] ^= 1;
    must_refuse(len, 2, EPROTO, "not a Farfork agent");
    buf[4] ^= 1;
    buf[24] = 2;
    must_refuse(len, 2, EPROTO, "image 2 (permitted 0, 1)");
    buf[24] = 0;
    buf[12] = buf[14] = FF_WIRE_VERSION + 1;
    must_refuse(len, 2, EPROTONOSUPPORT, "FEED");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
