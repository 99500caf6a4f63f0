/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_visit.c - farfork visit: what it takes of a user
 */
#include "unit.h"

#include "visit.h"

static void test_link_options(void **state)
{
    static const struct {
        const char *given, *want; /* NULL: refused */
    } cases[] = {
        {NULL, "link=tcp"},
        {"timeout=5", "timeout=5,link=tcp"},
        {"link=tcp", "link=tcp"},
        {"timeout=5,link=tcp,reconnect=0", "timeout=5,link=tcp,reconnect=0"},
        {"link=verbs", NULL},
        {"timeout=5,link=auto", NULL},
        {"link", NULL},
        {"visit=on", NULL},
        {"prefill=off", NULL},
        {"timeout=5,precopy=1", NULL},
        {"landing=continue", NULL},
        {"fallback=go", NULL},
        {"until-go=/x", NULL},
    };

    (void)state;
    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        FF_AUTO_FREE char *out = NULL;
        struct ff_error why = {0};
        int rc = visit_link_options(cases[i].given, &out, &why);
        assert_int_equal(rc == 0, cases[i].want != NULL);
        if (cases[i].want)
            assert_string_equal(out, cases[i].want);
        else
            assert_non_null(strstr(why.text, "--options"));
    }
}

static void test_data(void **state)
{
    static const struct {
        const char *spec, *format, *path; /* NULL: refused */
    } cases[] = {
        {"/srv/a", "raw", "/srv/a"},
        {"qcow2:/srv/a:b", "qcow2", "/srv/a:b"},
        {"/srv/qcow2:/a", "raw", "/srv/qcow2:/a"},
        {"srv/a", NULL, NULL},
        {"qcow2:a", NULL, NULL},
        {":/a", NULL, NULL},
        {"", NULL, NULL},
    };

    (void)state;
    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        struct strv specs = {0};
        struct visit v;
        struct ff_error why = {0};
        strv_add(&specs, "%s", "/first");
        strv_add(&specs, "%s", cases[i].spec);
        const struct visit_options o = {.data = &specs};
        int rc = visit_init(&v, &o, &why);
        assert_int_equal(rc, cases[i].path ? 0 : -EINVAL);
        assert_int_equal(v.n_data, 2);
        assert_string_equal(v.data[1].id, "visit-data2");
        if (!rc) {
            assert_string_equal(v.data[1].format, cases[i].format);
            assert_string_equal(v.data[1].path, cases[i].path);
        }
        visit_free(&v);
        strv_free(&specs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_link_options), cmocka_unit_test(test_data)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
