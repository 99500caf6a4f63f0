/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_fork_working_set.c - what an agent says its children touched is kept, if the next fork can say it
 */
#include <stdlib.h>
#include <unistd.h>

#include "unit.h"

#include "fork.h"

#define LONG (5u << 20)

static char path[] = "/tmp/farfork-working-set-XXXXXX";
static struct host host = {.state = HOST_COMPLETE};
static struct fork_options options = {.working_set = path};

/* What the fork after one whose host said @touched tells its hosts; to be freed */
static char *next_fork_says(char *touched)
{
    struct fork f = {.o = &options, .s.hosts = &host, .s.n_hosts = 1}, next = {.o = &options};
    struct ff_error why;

    host.touched = touched;
    fork_keep_working_set(&f);
    assert_int_equal(f.s.notes.n, 0);
    if (fork_read_working_set(&next, &why))
        fail_msg("%s", why.text);
    return next.first;
}

static void must_say(char *touched, const char *want)
{
    char *said = next_fork_says(touched);

    if (!want)
        assert_null(said);
    else
        assert_string_equal(said ? said : "nothing", want);
    free(said);
}

static void test_kept(void **state)
{
    static char odd[] = "ram=1\nram=2", high[] = "r\303\244m=1", good[] = "ram=1,2+3", *vast = NULL;
    (void)state;

    vast = malloc(LONG);
    assert_non_null(vast);
    memset(vast, '1', LONG);
    vast[LONG - 1] = '\0';
    must_say(NULL, NULL);
    must_say(odd, NULL);
    must_say(high, NULL);
    must_say(vast, NULL);
    must_say(good, good);
    must_say(odd, good); /* what stands there stays */
    free(vast);
}

static void test_refused(void **state)
{
    static const char *const bad[] = {"", "ram=1\n", "farfork working set 1\n", "farfork working set 1\nr\377m=1\n"};
    struct fork f = {.o = &options};
    struct ff_error why;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        fputs(bad[i], out);
        fclose(out);
        assert_int_equal(fork_read_working_set(&f, &why), -EINVAL);
        assert_null(f.first);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_refused),
    };
    int fd = mkstemp(path);

    if (fd < 0)
        return 1;
    close(fd);
    unlink(path);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
