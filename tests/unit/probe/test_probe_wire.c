/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_probe_wire.c - messages of a probe: what is encoded is decoded, everything else refused
 */
#include "unit.h"

#include "probe.h"

static const struct ff_probe_msg messages[] = {
    {.type = FF_PROBE_HELLO},
    {.type = FF_PROBE_WELCOME, .session = "0123456789abcde"},
    {.type = FF_PROBE_KEY, .addr = 0x7f0012345000, .rkey = 0xfedcba98, .len_bytes = 4u << 20},
    {.type = FF_PROBE_BYE},
};

static void test_round_trip(void **state)
{
    uint8_t buf[FF_MSG_MAX];
    struct ff_probe_msg got;
    struct ff_error err;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(messages); i++) {
        const struct ff_probe_msg *m = &messages[i];
        memset(&got, 0xff, sizeof(got));
        assert_ok(ff_probe_decode(buf, ff_probe_encode(buf, m), m->type, &got, &err), err);
        assert_int_equal(got.type, m->type);
        assert_memory_equal(got.session, m->session, FF_SESSION_LEN);
        assert_int_equal(got.addr, m->addr);
        assert_int_equal(got.rkey, m->rkey);
        assert_int_equal(got.len_bytes, m->len_bytes);
    }
}

static void test_lengths(void **state)
{
    uint8_t buf[FF_MSG_MAX];
    struct ff_probe_msg got;
    struct ff_error err;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(messages); i++) {
        uint32_t len = ff_probe_encode(buf, &messages[i]);
        for (uint32_t n = 0; n < len; n++)
            assert_fails(ff_probe_decode(buf, n, messages[i].type, &got, &err), EPROTO);
        buf[len] = 0;
        assert_fails(ff_probe_decode(buf, len + 1, messages[i].type, &got, &err), EPROTO);
        assert_error(err, EPROTO, "length");
    }
}

static void test_head(void **state)
{
    uint8_t buf[FF_MSG_MAX];
    struct ff_probe_msg got;
    struct ff_error err;
    (void)state;

    for (size_t i = 0; i < 8; i++) {
        uint32_t len = ff_probe_encode(buf, &messages[0]);
        buf[i] ^= 1;
        assert_fails(ff_probe_decode(buf, len, FF_PROBE_HELLO, &got, &err), EPROTO);
        assert_error(err, EPROTO, "not a message of a probe");
    }
    uint32_t len = ff_probe_encode(buf, &messages[0]);
    assert_fails(ff_probe_decode(buf, len, FF_PROBE_BYE, &got, &err), EPROTO);
    assert_error(err, EPROTO, "type 1", "want BYE");
    buf[10] = 9;
    assert_fails(ff_probe_decode(buf, len, FF_PROBE_HELLO, &got, &err), EPROTONOSUPPORT);
    assert_error(err, EPROTONOSUPPORT, "version 9", "this one has 1");
}

static void test_key(void **state)
{
    static const struct ff_probe_msg bad[] = {
        {.type = FF_PROBE_KEY, .addr = 4096, .len_bytes = 0},
        {.type = FF_PROBE_KEY, .addr = 4096, .len_bytes = FF_PROBE_LEN_MIN - 1},
        {.type = FF_PROBE_KEY, .addr = 4096, .len_bytes = FF_PROBE_LEN_MAX + 1},
        {.type = FF_PROBE_KEY, .addr = 4096, .len_bytes = UINT32_MAX},
        {.type = FF_PROBE_KEY, .addr = UINT64_MAX, .len_bytes = FF_PROBE_LEN_MIN},
        {.type = FF_PROBE_KEY,
         .addr = UINT64_MAX - FF_PROBE_LEN_MIN + 1,
         .len_bytes = FF_PROBE_LEN_MIN},
    };
    uint8_t buf[FF_MSG_MAX];
    struct ff_probe_msg got;
    struct ff_error err;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        uint32_t len = ff_probe_encode(buf, &bad[i]);
        assert_fails(ff_probe_decode(buf, len, FF_PROBE_KEY, &got, &err), EPROTO);
        assert_error(err, EPROTO, "read KEY", "permitted");
    }
}

static void test_refuse(void **state)
{
    struct ff_probe_msg got, m = {.type = FF_PROBE_REFUSE};
    uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    (void)state;

    strcpy(m.text, "no\n\x1b[2J\xff today");
    uint32_t len = ff_probe_encode(buf, &m);
    buf[10] = 9; /* a refusal of another version is understood */
    assert_fails(ff_probe_decode(buf, len, FF_PROBE_WELCOME, &got, &err), EREMOTEIO);
    assert_error(err, EREMOTEIO, "refused: no??[2J? today");
    memset(buf + len, 'x', FF_MSG_MAX - len); /* longer than a text may be */
    assert_fails(ff_probe_decode(buf, FF_MSG_MAX, FF_PROBE_WELCOME, &got, &err), EREMOTEIO);
    assert_int_equal(strlen(got.text), FF_PROBE_TEXT_MAX);
}

/* A read of the wrong place, or of another session's memory, shows */
static void test_pattern(void **state)
{
    const uint8_t a[FF_SESSION_LEN] = "a", b[FF_SESSION_LEN] = "b";
    (void)state;

    for (uint64_t at = 0; at < FF_PROBE_LEN_MAX; at += 8) {
        assert_true(ff_probe_word(a, at) != ff_probe_word(b, at));
        assert_true(ff_probe_word(a, at) != ff_probe_word(a, at ^ 4096));
        assert_true(ff_probe_word(a, at) != ff_probe_word(a, at + 8));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_head),       cmocka_unit_test(test_key),
        cmocka_unit_test(test_refuse),     cmocka_unit_test(test_pattern),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
