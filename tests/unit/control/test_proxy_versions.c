/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_proxy_versions.c - which QEMUs a proxy accepts, and how each gives a guest back
 */
#include "unit.h"

#include "autojson.h"
#include "versions.h"

static struct ff_error why;
static struct proxy_version got;

static int check(int major, int minor, int micro, bool untested)
{
    FF_AUTO_JSON json_t *answer =
        json_pack("{s:{s:i,s:i,s:i},s:s}", "qemu", "major", major, "minor", minor, "micro", micro,
                  "package", "Debian 1:11.1.3+ds-1");

    assert_non_null(answer);
    why = (struct ff_error){0};
    return proxy_version_check(answer, "source", untested, &got, &why);
}

static void test_those_tested(void **state)
{
    static const struct {
        int major, minor, micro;
        enum proxy_way_back back;
    } v[] = {
        {7, 2, 0, PROXY_BACK_CANCEL},  {7, 2, 22, PROXY_BACK_CANCEL}, {9, 2, 4, PROXY_BACK_CANCEL},
        {9, 2, 91, PROXY_BACK_CANCEL}, {10, 0, 0, PROXY_BACK_SHUT},   {10, 0, 13, PROXY_BACK_SHUT},
        {10, 1, 5, PROXY_BACK_SHUT},   {10, 1, 92, PROXY_BACK_SHUT},  {10, 2, 0, PROXY_BACK_CLOSE},
        {11, 0, 2, PROXY_BACK_CLOSE},  {11, 1, 3, PROXY_BACK_CLOSE},
    };

    (void)state;
    for (unsigned i = 0; i < FF_ARRAY_LEN(v); i++) {
        assert_ok(check(v[i].major, v[i].minor, v[i].micro, false), why);
        assert_int_equal(got.major, v[i].major);
        assert_int_equal(got.minor, v[i].minor);
        assert_int_equal(got.micro, v[i].micro);
        assert_int_equal(got.back, v[i].back);
        assert_true(got.tested);
    }
}

static void test_others(void **state)
{
    static const struct {
        int major, minor, micro;
        const char *how;
    } v[] = {
        {6, 2, 0, "older"},   {7, 1, 0, "older"},  {7, 1, 93, "older"},
        {11, 1, 50, "newer"}, {11, 2, 0, "newer"}, {12, 0, 0, "newer"},
    };

    (void)state;
    for (unsigned i = 0; i < FF_ARRAY_LEN(v); i++) {
        got.major = 99;
        assert_fails(check(v[i].major, v[i].minor, v[i].micro, false), ENOTSUP);
        assert_error(why, ENOTSUP, "source", "7.2 to 11.1", "--untested");
        assert_non_null(strstr(why.text, v[i].how));
        assert_int_equal(got.major, 99);
        assert_ok(check(v[i].major, v[i].minor, v[i].micro, true), why);
        assert_false(got.tested);
        assert_int_equal(got.back, v[i].major < 8 ? PROXY_BACK_CANCEL : PROXY_BACK_CLOSE);
    }
}

static void test_no_version(void **state)
{
    static const char *const answers[] = {
        "{}",
        "[]",
        "{\"qemu\":7}",
        "{\"qemu\":{\"major\":7,\"minor\":2}}",
        "{\"qemu\":{\"major\":7,\"minor\":2,\"micro\":-1}}",
        "{\"qemu\":{\"major\":4294967303,\"minor\":2,\"micro\":0}}",
        "{\"qemu\":{\"major\":\"7\",\"minor\":2,\"micro\":0}}",
    };

    (void)state;
    for (unsigned i = 0; i < FF_ARRAY_LEN(answers); i++) {
        FF_AUTO_JSON json_t *answer = json_loads(answers[i], 0, NULL);

        assert_non_null(answer);
        assert_fails(proxy_version_check(answer, "destination", true, &got, &why), EPROTO);
        assert_error(why, EPROTO, "destination", "permitted");
    }
    assert_fails(proxy_version_check(NULL, "destination", true, &got, NULL), EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_those_tested),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_no_version),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
