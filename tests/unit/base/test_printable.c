/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_printable.c - what others chose does not command a terminal, and stays readable otherwise
 */
#include "unit.h"

#include "autojson.h"
#include "error.h"
#include "printable.h"
#include "session.h"

static void same(const char *in, const char *out)
{
    char text[64];

    snprintf(text, sizeof(text), "%s", in);
    assert_string_equal(ff_printable(text), out);
}

static void test_text(void **state)
{
    (void)state;
    same("", "");
    same("web-1 \"a\"\n\tb", "web-1 \"a\"\n\tb");
    same("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\xa7", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\xa7");
    same("\xc2\xa0", "\xc2\xa0");                    /* the first after C1 */
    same("a\033[2Jb\rc\x7f\b\a", "a?[2Jb?c???");     /* C0, DEL */
    same("\xc2\x9b" "2J\xc2\x80\xc2\x9f", "??2J????"); /* C1, as UTF-8 has it */
    same("\x9b" "2J", "?2J");                        /* C1, as a terminal of 8 bits has it */
}

static void test_no_utf8(void **state)
{
    (void)state;
    same("\xc3", "?");                  /* cut */
    same("a\xe2\x82", "a??");
    same("\xc3(", "?(");
    same("\xc0\x9b", "??");             /* C1 and ESC, longer than they need to be */
    same("\xe0\x80\x9b", "???");
    same("\xf0\x80\x80\x9b", "????");
    same("\xed\xa0\x80", "???");        /* a surrogate */
    same("\xf4\x90\x80\x80\xff", "?????");
}

static void test_errors(void **state)
{
    struct ff_error err;
    (void)state;

    ff_error_set(&err, EIO, "ssh: %s", "\033]0;x\a");
    assert_string_equal(err.text, "ssh: ?]0;x?");
    ff_error_context(&err, "host %s", "\033c");
    assert_string_equal(err.text, "host ?c: ssh: ?]0;x?");
}

static void test_json(void **state)
{
    FF_AUTO_JSON json_t *o = json_loads("{\"a\": [\"\\u001bc\", {\"b\": \"\\u009b2J\", \"n\": 1}], \"c\": \"ok\"}", 0, NULL);
    FF_AUTO_JSON json_t *want = json_loads("{\"a\": [\"?c\", {\"b\": \"??2J\", \"n\": 1}], \"c\": \"ok\"}", 0, NULL);
    FF_AUTO_JSON json_t *name = json_lossy("\033c\xff"), *none = json_lossy(NULL);
    (void)state;

    assert_true(json_equal(json_printable(o), want));
    assert_string_equal(json_string_value(name), "?c?");
    assert_string_equal(json_string_value(none), "");
    assert_null(json_printable(NULL));
}

static void test_notes(void **state)
{
    struct session s = {0};
    struct host h = {.node = &(struct node){.host = "h1"}};
    (void)state;

    session_note(&s, "device %s stays", "\033[1m");
    assert_string_equal(s.notes.v[0], "device ?[1m stays");
    host_fail(&s, &h, "%s", "\033c");
    assert_string_equal(h.error, "?c");
    free(h.error);
    strv_free(&s.notes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),   cmocka_unit_test(test_no_utf8), cmocka_unit_test(test_errors),
        cmocka_unit_test(test_json),   cmocka_unit_test(test_notes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
