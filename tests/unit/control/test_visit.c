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
        {"timeout=5,lease=3", NULL},
        {"fence=/bin/true", NULL},
        {"record=/x", NULL},
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

static char *options_with(const struct move_fallback *b, struct ff_error *why)
{
    FF_AUTO_FREE char *base = NULL;
    struct visit v = {0};
    struct move m = {.visit = &v, .back = *b};
    char *out = NULL;

    assert_int_equal(visit_link_options("timeout=5", &base, why), 0);
    if (move_fallback_options(&m, base, &out, why))
        out = NULL;
    move_fallback_free(&m);
    return out;
}

/* As those of a move; the way back has none of them */
static void test_fallback(void **state)
{
    const struct move_fallback none = {.lease_s = 30}, go = {.go = true, .lease_s = 7, .fence = "/f", .record = "/r"},
                               alone = {.fence = "/f"}, unfenced = {.go = true};
    struct ff_error why = {0};

    (void)state;
    FF_AUTO_FREE char *without = options_with(&none, &why);
    assert_string_equal(without, "timeout=5,link=tcp");
    FF_AUTO_FREE char *with = options_with(&go, &why);
    assert_string_equal(with, "timeout=5,link=tcp,fallback=go,lease=7,fence=/f,record=/r");
    assert_null(options_with(&alone, &why));
    assert_non_null(strstr(why.text, "--fallback go"));
    assert_null(options_with(&unfenced, &why));
    assert_non_null(strstr(why.text, "--fence"));
}

/* Here, after it was away: what it did there is lost */
static void test_taken_back(void **state)
{
    struct visit v = {0};
    struct move m = {.visit = &v, .outcome = MOVE_HERE};

    (void)state;
    assert_false(visit_was_taken_back(&m)); /* it never left */
    v.away_ms = 1;
    assert_true(visit_was_taken_back(&m));
    v.away_ms = 0;
    m.taking_ms = 1; /* before it was heard to run there */
    assert_true(visit_was_taken_back(&m));
    m.outcome = MOVE_UNCLEAR;
    assert_false(visit_was_taken_back(&m));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_link_options), cmocka_unit_test(test_data),
                                       cmocka_unit_test(test_fallback), cmocka_unit_test(test_taken_back)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
