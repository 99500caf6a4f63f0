/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_journal.c - what the journal gets, byte by byte, and that nothing waits for it
 */
#include <endian.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "journal.h"
#include "scope.h"
#include "unit.h"

static char folder[] = "/tmp/test_journal.XXXXXX";
static char path[64];
static int fd = -1;

static int listen_there(void **state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    (void)state;
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/socket", folder);
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    strcpy(a.sun_path, path);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    ff_close_fd(&fd);
    unlink(path);
    return rmdir(folder);
}

static const struct journal_about nothing;

static ssize_t heard(char *out, size_t len)
{
    ssize_t n = recv(fd, out, len - 1, 0);

    if (n >= 0)
        out[n] = '\0';
    return n;
}

static void test_fields(void **state)
{
    const struct journal j = {path, "web", "node1"};
    const struct journal_about about = {.event = "ended", .child = 3, .pid = 4711};
    char got[8192];

    (void)state;
    journal_send(&j, JOURNAL_WARNING, &about, "child %d ended", 3);
    assert_true(heard(got, sizeof(got)) > 0);
    assert_string_equal(got, "PRIORITY=4\nSYSLOG_IDENTIFIER=farfork\nFARFORK_FORK=web\n"
                             "FARFORK_HOST=node1\nFARFORK_CHILD=3\nFARFORK_PID=4711\n"
                             "FARFORK_EVENT=ended\nMESSAGE=child 3 ended\n");
    journal_send(&j, JOURNAL_INFO, &nothing, "x");
    assert_true(heard(got, sizeof(got)) > 0);
    assert_string_equal(got, "PRIORITY=6\nSYSLOG_IDENTIFIER=farfork\nFARFORK_FORK=web\n"
                             "FARFORK_HOST=node1\nMESSAGE=x\n");
}

/* What a child's log says can have lines that look like fields */
static void test_lines(void **state)
{
    static const char text[] = "it ended\n_UID=0\nFARFORK_FORK=other";
    const struct journal j = {path, "web", "node1"};
    char got[8192];
    uint64_t len;

    (void)state;
    journal_send(&j, JOURNAL_INFO, &nothing, "%s", text);
    const ssize_t n = heard(got, sizeof(got));
    char *at = memmem(got, (size_t)n, "MESSAGE\n", 8);
    assert_non_null(at);
    memcpy(&len, at + 8, sizeof(len));
    assert_int_equal(le64toh(len), strlen(text));
    assert_memory_equal(at + 16, text, strlen(text));
    assert_ptr_equal(at + 16 + strlen(text) + 1, got + n);
    assert_int_equal(got[n - 1], '\n');
}

static void test_long(void **state)
{
    static char text[100000], name[5000], got[100000];
    const struct journal j = {path, "web", "node1"};

    (void)state;
    memset(text, 'a', sizeof(text) - 1);
    memset(name, 'b', sizeof(name) - 1);
    journal_send(&j, JOURNAL_INFO, &nothing, "%s", text);
    ssize_t n = heard(got, sizeof(got));
    assert_true(n > 3000 && n <= 4096 && got[n - 1] == '\n' && got[n - 2] == 'a');
    const struct journal large = {path, name, "node1"};
    journal_send(&large, JOURNAL_INFO, &nothing, "%s", text); /* no field is half there */
    n = heard(got, sizeof(got));
    assert_true(n > 3000 && n <= 4096 && got[n - 1] == '\n' && got[n - 2] == 'b');
}

/* None, one that nobody reads, one that is gone, a path that is none */
static void test_never_waits(void **state)
{
    struct journal j = {path, "web", "node1"};
    char got[8192];
    int n = 0;

    (void)state;
    for (int i = 0; i < 10000; i++)
        journal_send(&j, JOURNAL_INFO, &nothing, "%d", i);
    while (heard(got, sizeof(got)) > 0)
        n++;
    assert_true(n > 0 && n < 10000);
    ff_close_fd(&fd);
    journal_send(&j, JOURNAL_INFO, &nothing, "x");
    j.socket = "/nonexistent/socket";
    journal_send(&j, JOURNAL_INFO, &nothing, "x");
    memset(got, 'p', sizeof(got) - 1);
    got[sizeof(got) - 1] = '\0';
    j.socket = got;
    journal_send(&j, JOURNAL_INFO, &nothing, "x");
}

static void test_modes(void **state)
{
    static const char *const bad[] = {"", "auto", "One", "one ", "both"};
    enum scope_mode mode = SCOPE_AUTO;

    (void)state;
    assert_true(scope_mode_parse("one", &mode) && mode == SCOPE_ONE);
    assert_true(scope_mode_parse("each", &mode) && mode == SCOPE_EACH);
    assert_true(scope_mode_parse("none", &mode) && mode == SCOPE_NONE);
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++)
        assert_false(scope_mode_parse(bad[i], &mode));
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, listen_there, leave)

UNIT_MAIN(WITH(test_fields), WITH(test_lines), WITH(test_long), WITH(test_never_waits),
          cmocka_unit_test(test_modes))
