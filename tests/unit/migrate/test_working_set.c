/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_working_set.c - spans as text, and from text
 */
#include "unit.h"

#include "working_set.h"

static struct ff_regions t = {
    .n = 3,
    .r = {{.name = "ram", .len_bytes = 100 * 4096},
          {.name = "0000:00:02.0/vga.vram", .len_bytes = 16 * 4096},
          {.name = "odd=name", .len_bytes = 16 * 4096}}};

static void must_read(struct ff_working_set *s, const char *text)
{
    struct ff_error err;

    if (ff_working_set_read(s, &t, text, &err))
        fail_msg("%s: %s", text, err.text);
}

/* @given and @touched as text again are @want */
static void must_be(const char *given, const char *touched, const char *want)
{
    struct ff_working_set *g = ff_working_set_new(), *s = ff_working_set_new();

    must_read(g, given);
    must_read(s, touched);
    char *text = ff_working_set_text(g, s, &t);
    if (!want)
        assert_null(text);
    else
        assert_string_equal(text ? text : "none", want);
    free(text);
    ff_working_set_free(g);
    ff_working_set_free(s);
}

static void test_text(void **state)
{
    (void)state;
    must_be("", "", NULL);
    must_be("ram=0", "", "ram=0");
    must_be("", "ram=63,1f+2", "ram=63,1f+2");
    must_be("ram=5,6,7,3", "", "ram=5+3,3");
    must_be("ram=a;0000:00:02.0/vga.vram=1,3;ram=9", "ram=b", "ram=a;0000:00:02.0/vga.vram=1,3;ram=9,b");
    must_be("ram=5+5", "ram=4+8,0,7", "ram=5+5,4,a+2,0"); /* each once */
    must_be("ram=62+5;nosuch=1,2+3;ram=64,fffffffffffffff+2", "", "ram=62+2"); /* what is not there */
}

static void test_none(void **state)
{
    static const char *const bad[] = {"odd", "=1", "ram=", "ram=;", "ram=1+", "ram=1+0", "ram=-1", "ram= 1",
                                      "ram=0x1", "ram=1,", "ram=1;;", "ram=1 ", "ram=G", ";ram=1",
                                      "ram=1+1+1", "ram=10000000000000000"};
    struct ff_error err;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        struct ff_working_set *s = ff_working_set_new();
        if (!ff_working_set_read(s, &t, bad[i], &err))
            fail_msg("taken: %s", bad[i]);
        assert_int_equal(err.code, EINVAL);
        ff_working_set_free(s);
    }
}

/* Whoever says it: to look at all of it takes no longer than to look at all memory */
static void test_more_than_all(void **state)
{
    char text[2000] = "ram=0+64";
    struct ff_working_set *s = ff_working_set_new();
    struct ff_error err;
    uint64_t n = 0;
    (void)state;

    while (strlen(text) < sizeof(text) - 20)
        strcat(text, ",1+63,0+64");
    assert_int_equal(ff_working_set_read(s, &t, text, &err), -EINVAL);
    for (unsigned i = 0; i < s->n; i++)
        n += s->span[i].n;
    assert_in_range(n, 100, 132);
    ff_working_set_free(s);
}

static void test_full(void **state)
{
    struct ff_working_set *s = ff_working_set_new();
    (void)state;

    for (uint64_t i = 0; i < FF_WORKING_SET_MAX + 10; i++)
        ff_working_set_add(s, (struct ff_span){1, 2 * i % 16, 1});
    assert_int_equal(s->n, FF_WORKING_SET_MAX);
    s->n = 0;
    ff_working_set_add(s, (struct ff_span){2, 1, 1}); /* its name could not be read again */
    assert_null(ff_working_set_text(NULL, s, &t));
    ff_working_set_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_none),
        cmocka_unit_test(test_more_than_all),
        cmocka_unit_test(test_full),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
