/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_error.c - the error chain: context in front, the first cause stays, NULL is harmless
 */
#include "unit.h"

#include "farfork.h"

static void test_set(void **state)
{
    struct ff_error err = {.code = 0};
    (void)state;

    assert_int_equal(ff_error_set(&err, EINVAL, "x: %s (%d)", "reason", 7), -EINVAL);
    assert_int_equal(err.code, EINVAL);
    assert_string_equal(err.text, "x: reason (7)");
    /* a later cause takes the place of the first one: nothing is appended */
    assert_int_equal(ff_error_set(&err, EPERM, "y"), -EPERM);
    assert_string_equal(err.text, "y");
}

static void test_context(void **state)
{
    struct ff_error err;
    (void)state;

    ff_error_set(&err, EPROTO, "wire: bad");
    assert_int_equal(ff_error_context(&err, "region %s", "pc.ram"), -EPROTO);
    assert_int_equal(ff_error_pass(&err, -EPROTO, "hello"), -EPROTO);
    assert_string_equal(err.text, "hello: region pc.ram: wire: bad");
    assert_int_equal(err.code, EPROTO);
}

static void test_truncation(void **state)
{
    struct {
        struct ff_error err;
        uint8_t guard[16];
    } e;
    char large[2000];
    (void)state;

    memset(&e, 0x5a, sizeof(e));
    memset(large, 'a', sizeof(large) - 1);
    large[sizeof(large) - 1] = '\0';

    ff_error_set(&e.err, EIO, "%s", large);
    assert_int_equal(strlen(e.err.text), sizeof(e.err.text) - 1);

    /* context in front of a full text: the start stays, the end goes */
    assert_int_equal(ff_error_context(&e.err, "front"), -EIO);
    assert_memory_equal(e.err.text, "front: aaa", 10);
    assert_int_equal(strlen(e.err.text), sizeof(e.err.text) - 1);

    /* context that fills it alone */
    ff_error_set(&e.err, EIO, "cause");
    assert_int_equal(ff_error_context(&e.err, "%s", large), -EIO);
    assert_int_equal(strlen(e.err.text), sizeof(e.err.text) - 1);
    assert_null(strstr(e.err.text, "cause"));

    /* every length near the limit ends with a NUL and goes no further */
    for (size_t n = sizeof(e.err.text) - 20; n < sizeof(e.err.text) + 4; n++) {
        ff_error_set(&e.err, EIO, "cause");
        ff_error_context(&e.err, "%.*s", (int)n, large);
        assert_true(strlen(e.err.text) < sizeof(e.err.text));
    }
    for (size_t i = 0; i < sizeof(e.guard); i++)
        assert_int_equal(e.guard[i], 0x5a);
}

/* Wherever the limit falls in a character of 2, 3 or 4 bytes */
static void test_cut_at_character(void **state)
{
    static const char *const characters[] = {"\303\244", "\342\202\254", "\360\237\220\204"};
    struct ff_error err;
    char large[2000];
    (void)state;

    for (unsigned i = 0; i < 3; i++)
        for (unsigned before = 0; before < 8; before++) {
            size_t bytes = strlen(characters[i]), n = before;
            memset(large, 'a', sizeof(large));
            for (; n + bytes < sizeof(large); n += bytes)
                memcpy(large + n, characters[i], bytes);
            large[n] = '\0';
            ff_error_set(&err, EIO, "%s", large);
            for (unsigned context = 0; context < 2; context++) {
                size_t len = strlen(err.text);
                assert_true(len > sizeof(err.text) - 1 - bytes);
                assert_memory_equal(err.text + len - bytes, characters[i], bytes);
                ff_error_context(&err, "b");
            }
        }
}

static void test_null(void **state)
{
    (void)state;
    assert_int_equal(ff_error_set(NULL, ENOMEM, "x"), -ENOMEM);
    assert_int_equal(ff_error_pass(NULL, -EPERM, "x"), -EPERM);
    assert_int_equal(ff_error_code(NULL), 0);
    assert_string_equal(ff_error_message(NULL), "no error");
    ff_error_free(NULL);
}

static void test_public(void **state)
{
    struct ff_error *err = ff_error_new();
    (void)state;

    assert_non_null(err);
    assert_int_equal(ff_error_code(err), 0);
    assert_string_equal(ff_error_message(err), "no error");
    ff_error_set(err, ENOENT, "gone");
    assert_int_equal(ff_error_code(err), ENOENT);
    assert_string_equal(ff_error_message(err), "gone");
    ff_error_free(err);
}

UNIT_MAIN(cmocka_unit_test(test_set), cmocka_unit_test(test_context),
          cmocka_unit_test(test_truncation), cmocka_unit_test(test_cut_at_character),
          cmocka_unit_test(test_null), cmocka_unit_test(test_public))
