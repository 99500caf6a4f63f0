/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_qmp_secret.c - what is a key, the line that gives it to a QEMU, and buffers that forget it
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "unit.h"
#include "jsonl.h"
#include "qmp_secret.h"

#define DIGITS "00112233445566778899aAbBcCdDeEfF0123456789abcdef0123456789abcdef"

static void digits(void **state)
{
    static const char *const wrong[] = {"", "ab", "\"}, \"x\": \"" DIGITS,
                                        "g0112233445566778899aabbccddeeff0123456789abcdef0123456789"
                                        "abcdef"};
    char *key = key_text_new(DIGITS "\"}");

    (void)state;
    assert_string_equal(key, DIGITS);
    key_text_free(key);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_null(key_text_new(wrong[i]));
    key_text_free(NULL);
}

static void line(void **state)
{
    char *key = key_text_new(DIGITS), text[512] = "";
    int p[2];

    (void)state;
    assert_int_equal(pipe(p), 0);
    assert_int_equal(qmp_secret_write(p[1], 7, key, 1000), 0);
    assert_true(read(p[0], text, sizeof(text) - 1) > 0);
    json_t *o = json_loads(text, 0, NULL), *a = json_object_get(o, "arguments");
    assert_string_equal(json_string_value(json_object_get(o, "execute")), "object-add");
    assert_int_equal(json_integer_value(json_object_get(o, "id")), 7);
    assert_string_equal(json_string_value(json_object_get(a, "qom-type")), "secret");
    assert_string_equal(json_string_value(json_object_get(a, "id")), KEY_SECRET);
    assert_string_equal(json_string_value(json_object_get(a, "data")), DIGITS);
    assert_string_equal(strchr(text, '\n'), "\n");
    json_decref(o);
    key_text_free(key);
    close(p[0]);
    close(p[1]);
}

static void input_line(void **state)
{
    static const char *const wrong[] = {"", "{}", "{\"key\": \"" DIGITS "\"}",
                                        KEY_LINE_HEAD "ab" KEY_LINE_TAIL,
                                        KEY_LINE_HEAD DIGITS "0" KEY_LINE_TAIL};
    struct ff_error err;
    char *key = NULL, text[512] = "";
    int p[2];

    (void)state;
    assert_int_equal(key_text_make(&key, &err), 0);
    assert_int_equal(pipe(p), 0);
    assert_int_equal(key_line_write(p[1], key, 1000), 0);
    assert_true(read(p[0], text, sizeof(text) - 1) > 0);
    text[strcspn(text, "\n")] = '\0';
    char *again = key_line_take(text);
    assert_string_equal(again, key);
    assert_int_equal(strlen(text), 0); /* wiped */
    key_text_free(again);
    key_text_free(key);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        snprintf(text, sizeof(text), "%s", wrong[i]);
        assert_null(key_line_take(text));
    }
    close(p[0]);
    close(p[1]);
}

/* A buffer that grows goes on with what it had */
static void grows(void **state)
{
    struct jsonl_reader r = {0};
    char part[40000];
    int p[2];

    (void)state;
    assert_int_equal(pipe(p), 0);
    memset(part, 'x', sizeof(part));
    for (int i = 0; i < 4; i++) {
        part[0] = (char)('a' + i);
        assert_int_equal(write(p[1], part, sizeof(part)), sizeof(part));
        assert_int_equal(jsonl_read(&r, p[0]), 0);
    }
    assert_int_equal(write(p[1], "\n", 1), 1);
    assert_int_equal(jsonl_read(&r, p[0]), 0);
    const char *all = jsonl_next(&r);
    assert_int_equal(strlen(all), 4 * sizeof(part));
    for (size_t i = 0; i < 4 * sizeof(part); i++)
        assert_int_equal(all[i], i % sizeof(part) ? 'x' : 'a' + (int)(i / sizeof(part)));
    jsonl_free(&r);
    assert_null(r.data);
    close(p[0]);
    close(p[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digits),
        cmocka_unit_test(line),
        cmocka_unit_test(input_line),
        cmocka_unit_test(grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
