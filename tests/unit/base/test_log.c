/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_log.c - messages: levels, where they go, lines that are too long
 */
#include "unit.h"

#include "farfork.h"
#include "log.h"

static struct {
    unsigned n;
    int level;
    char line[2048];
} seen;

static void keep(enum ff_log_level level, const char *line)
{
    seen.n++;
    seen.level = (int)level;
    snprintf(seen.line, sizeof(seen.line), "%s", line);
}

static void keep_public(enum ff_level level, const char *line)
{
    keep((enum ff_log_level)level, line);
}

static int reset(void **state)
{
    (void)state;
    memset(&seen, 0, sizeof(seen));
    ff_log_set(NULL, FF_LOG_WARN);
    return 0;
}

static void test_levels(void **state)
{
    (void)state;
    for (int max = FF_LOG_ERROR; max <= FF_LOG_DEBUG; max++) {
        ff_log_set(keep, (enum ff_log_level)max);
        for (int level = FF_LOG_ERROR; level <= FF_LOG_DEBUG; level++) {
            seen.n = 0;
            ff_log((enum ff_log_level)level, "level %d", level);
            assert_int_equal(seen.n, level <= max);
            if (seen.n)
                assert_int_equal(seen.level, level);
        }
    }
    assert_string_equal(seen.line, "level 3");
}

static void test_long_line(void **state)
{
    char large[4000];
    (void)state;

    memset(large, 'x', sizeof(large) - 1);
    large[sizeof(large) - 1] = '\0';
    ff_log_set(keep, FF_LOG_WARN);
    ff_log(FF_LOG_ERROR, "%s", large);
    assert_int_equal(seen.n, 1);
    assert_in_range(strlen(seen.line), 500, sizeof(seen.line) - 1);
}

/* What is written to stderr while @fn runs */
static size_t stderr_of(void (*fn)(void), char *out, size_t len)
{
    FILE *f = tmpfile();
    int old = dup(2);

    assert_non_null(f);
    fflush(stderr);
    dup2(fileno(f), 2);
    fn();
    fflush(stderr);
    dup2(old, 2);
    close(old);
    rewind(f);
    size_t n = fread(out, 1, len - 1, f);
    out[n] = '\0';
    fclose(f);
    return n;
}

static void one_of_each(void)
{
    ff_log(FF_LOG_ERROR, "the worst");
    ff_log(FF_LOG_WARN, "bad");
    ff_log(FF_LOG_INFO, "by the way");
    ff_log(FF_LOG_DEBUG, "detail");
}

static void test_stderr(void **state)
{
    char text[256];
    (void)state;

    stderr_of(one_of_each, text, sizeof(text));
    assert_string_equal(text, "farfork: the worst\nfarfork: bad\n");

    /* nowhere else, but more of it */
    ff_set_log(NULL, FF_DEBUG);
    stderr_of(one_of_each, text, sizeof(text));
    assert_string_equal(text, "farfork: the worst\nfarfork: bad\nfarfork: by the way\n"
                              "farfork: detail\n");
    ff_set_log(NULL, FF_ERROR);
    stderr_of(one_of_each, text, sizeof(text));
    assert_string_equal(text, "farfork: the worst\n");
}

static void test_public(void **state)
{
    (void)state;
    ff_set_log(keep_public, FF_INFO);
    ff_log(FF_LOG_INFO, "hello %d", 5);
    assert_int_equal(seen.n, 1);
    assert_int_equal(seen.level, FF_INFO);
    assert_string_equal(seen.line, "hello 5");
    ff_log(FF_LOG_DEBUG, "no");
    assert_int_equal(seen.n, 1);
}

UNIT_MAIN(cmocka_unit_test_setup_teardown(test_levels, reset, reset),
          cmocka_unit_test_setup_teardown(test_long_line, reset, reset),
          cmocka_unit_test_setup_teardown(test_stderr, reset, reset),
          cmocka_unit_test_setup_teardown(test_public, reset, reset))
