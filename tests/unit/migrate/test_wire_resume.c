/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_wire_resume.c - RESUME, what WELCOME answers, LEASE: each field, each bound; the digest
 */
#include <errno.h>

#include "unit.h"
#include "wire.h"

static uint8_t buf[FF_MSG_MAX];

static const struct ff_resume good = {.version = FF_WIRE_VERSION,
                                      .oldest = FF_WIRE_VERSION,
                                      .session = "0123456789abcde",
                                      .epoch = 7,
                                      .digest = 0x0123456789abcdefull};

static void must_refuse(struct ff_resume r, int code, const char *says)
{
    struct ff_resume got;
    struct ff_error err;

    int len = ff_wire_put_resume(buf, &r);
    assert_fails(ff_wire_get_resume(buf, (size_t)len, &got, &err), code);
    assert_int_equal(err.code, code);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" is not in: %s", says, err.text);
}

static void test_resume(void **state)
{
    struct ff_resume got, r = good;
    struct ff_error err;
    (void)state;

    int len = ff_wire_put_resume(buf, &good);
    assert_int_equal(ff_wire_type(buf, (size_t)len, &err), FF_MSG_RESUME);
    assert_ok(ff_wire_get_resume(buf, (size_t)len, &got, &err), err);
    assert_int_equal(got.version, good.version);
    assert_int_equal(got.oldest, good.oldest);
    assert_memory_equal(got.session, good.session, sizeof(good.session));
    assert_int_equal(got.epoch, good.epoch);
    assert_true(got.digest == good.digest && !got.taken_back);
    for (int n = 0; n < len; n++)
        assert_true(ff_wire_type(buf, (size_t)n, &err) < 0 ||
                    ff_wire_get_resume(buf, (size_t)n, &got, &err) == -EPROTO);
    assert_fails(ff_wire_get_resume(buf, (size_t)len + 1, &got, &err), EPROTO);
    assert_error(err, EPROTO, "1 bytes too many");
    buf[4]++;
    assert_fails(ff_wire_get_resume(buf, (size_t)len, &got, &err), EPROTO);
    assert_error(err, EPROTO, "not a Farfork source");

    r.epoch = 0;
    must_refuse(r, EPROTO, "epoch 0");
    r = good;
    r.version = r.oldest = FF_WIRE_VERSION - 1;
    must_refuse(r, EPROTONOSUPPORT, "use the same Farfork release on both hosts");
    r.version = r.oldest = FF_WIRE_VERSION + 1;
    must_refuse(r, EPROTONOSUPPORT, "this side speaks 11");

    r = good;
    r.taken_back = true;
    len = ff_wire_put_resume(buf, &r);
    assert_ok(ff_wire_get_resume(buf, (size_t)len, &got, &err), err);
    assert_true(got.taken_back);
    buf[len - 2] = 2;
    assert_fails(ff_wire_get_resume(buf, (size_t)len, &got, &err), EPROTO);
    assert_error(err, EPROTO, "why 2 (permitted 0 and 1)");
}

static void test_lease(void **state)
{
    static const struct {
        uint32_t ms;
        bool permitted;
    } lease[] = {{0, true}, {999, false}, {1000, true}, {3600000, true}, {3600001, false}};
    static struct ff_publish got, p = {.segment_bytes = FF_WIRE_SEGMENT_MIN};
    static const struct ff_wire_region region = {.name = "a", .len_bytes = 4096, .psize = 4096};
    struct ff_error err;
    uint32_t number;
    (void)state;

    int len = ff_wire_put_lease(buf, 0xfedcba98u);
    assert_int_equal(ff_wire_type(buf, (size_t)len, &err), FF_MSG_LEASE);
    assert_ok(ff_wire_get_lease(buf, (size_t)len, &number, &err), err);
    assert_int_equal(number, 0xfedcba98u);
    assert_fails(ff_wire_get_lease(buf, (size_t)len - 1, &number, &err), EPROTO);
    assert_fails(ff_wire_get_lease(buf, (size_t)len + 1, &number, &err), EPROTO);
    len = ff_wire_put_lease(buf, 0);
    assert_fails(ff_wire_get_lease(buf, (size_t)len, &number, &err), EPROTO);
    assert_error(err, EPROTO, "number 0");

    for (unsigned i = 0; i < FF_ARRAY_LEN(lease); i++) {
        p.lease_ms = lease[i].ms;
        len = ff_wire_put_publish(buf, &p, 1);
        int rc = ff_wire_get_publish(buf, (size_t)len, &got, 1, &region, &err);
        assert_int_equal(rc, lease[i].permitted ? 0 : -EPROTO);
        assert_true(rc || got.lease_ms == lease[i].ms);
    }
}

static void test_answers(void **state)
{
    struct ff_welcome got, w = {.version = FF_WIRE_VERSION, .epoch = 3};
    struct ff_error err;
    int len;
    (void)state;

    for (unsigned a = 0; a <= FF_ANSWER_LAST; a++) {
        w.answer = (enum ff_answer)a;
        len = ff_wire_put_welcome(buf, &w);
        assert_ok(ff_wire_get_welcome(buf, (size_t)len, &got, &err), err);
        assert_int_equal(got.answer, a);
        assert_int_equal(got.epoch, 3);
    }
    w.answer = FF_ANSWER_LAST + 1; /* whoever says more than we know must not be taken for less */
    len = ff_wire_put_welcome(buf, &w);
    assert_fails(ff_wire_get_welcome(buf, (size_t)len, &got, &err), EPROTO);
    assert_error(err, EPROTO, "answer 5");
    w.answer = FF_ANSWER_RUNNING;
    w.epoch = 0;
    len = ff_wire_put_welcome(buf, &w);
    assert_fails(ff_wire_get_welcome(buf, (size_t)len, &got, &err), EPROTO);
    assert_error(err, EPROTO, "epoch 0");
    w = (struct ff_welcome){.version = FF_WIRE_VERSION + 1, .epoch = 1};
    len = ff_wire_put_welcome(buf, &w);
    assert_fails(ff_wire_get_welcome(buf, (size_t)len, &got, &err), EPROTONOSUPPORT);
    assert_error(err, EPROTONOSUPPORT, "version 12");
}

static void test_digest(void **state)
{
    struct ff_wire_region a[2] = {{.name = "a", .len_bytes = 4096, .psize = 4096},
                                  {.name = "b", .len_bytes = 8192, .psize = 4096}},
                          b[2];
    struct ff_hello h = {.n_regions = 2, .config = "pc", .regions = a};
    uint64_t is = ff_hello_digest(&h);
    (void)state;

    assert_true(is == ff_hello_digest(&h));
    h.regions = b;
    for (unsigned i = 0; i < 4; i++) {
        memcpy(b, a, sizeof(b));
        b[1].len_bytes += i == 0 ? 4096 : 0;
        b[0].psize *= i == 1 ? 2 : 1;
        b[1].name[0] += i == 2;
        if (i == 3) { /* the other order */
            b[0] = a[1];
            b[1] = a[0];
        }
        assert_true(is != ff_hello_digest(&h));
    }
    h.regions = a;
    h.config[1] = 'd';
    assert_true(is != ff_hello_digest(&h));
    h.config[1] = 'c';
    h.n_regions = 1;
    assert_true(is != ff_hello_digest(&h));
}

UNIT_MAIN(cmocka_unit_test(test_resume), cmocka_unit_test(test_answers),
          cmocka_unit_test(test_lease),
          cmocka_unit_test(test_digest))
