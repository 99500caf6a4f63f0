/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_monitor.c - the monitor of farfork attach and our own QMP client; clients that misbehave
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "autojson.h"
#include "monitor.h"
#include "qmp.h"
#include "qmp_secret.h"
#include "strv.h"
#include "unit.h"

#define KEY "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define LIMIT_MS 10000

struct fixture {
    char dir[64], path[96];
    struct monitor *m;
    char key[KEY_TEXT_BYTES], data[KEY_TEXT_BYTES]; /* the thread's; read after an answer */
};

static int on_command(void *opaque, const char *execute, const json_t *arguments, const char *key,
                      json_t **result, struct ff_error *why)
{
    struct fixture *f = opaque;

    if (!strcmp(execute, "echo")) {
        *result = json_pack("{sO}", "echo", arguments);
        return 0;
    }
    if (!strcmp(execute, "refuse"))
        return ff_error_set(why, EBUSY, "not \"now\"");
    if (!strcmp(execute, "unanswered"))
        return monitor_passed_on(ff_error_set(why, ETIMEDOUT, "no answer"), why);
    if (!strcmp(execute, "object-add")) {
        snprintf(f->key, sizeof(f->key), "%s", key ? key : "none");
        snprintf(f->data, sizeof(f->data), "%s", text_of(arguments, "data"));
        return 0;
    }
    return -ENOSYS;
}

static int setup(void **state)
{
    struct fixture *f = xcalloc(1, sizeof(*f));
    struct ff_error why;

    strcpy(f->dir, "/tmp/test-monitor-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof(f->path), "%s/qmp", f->dir);
    assert_ok(monitor_start(f->path, on_command, f, &f->m, &why), why);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    monitor_end(f->m);
    assert_int_equal(access(f->path, F_OK), -1);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

static void test_commands(void **state)
{
    struct fixture *f = *state;
    struct qmp *q;
    struct ff_error why;
    FF_AUTO_JSON json_t *got = NULL;

    assert_ok(qmp_connect(f->path, -1, LIMIT_MS, &q, &why), why);
    assert_int_equal(qmp_pid(q), getpid());
    assert_ok(qmp_command(q, "echo", json_pack("{si}", "a", 1), &got, &why), why);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(got, "echo"), "a")), 1);
    assert_fails(qmp_command(q, "refuse", NULL, NULL, &why), EREMOTEIO);
    assert_error(why, EREMOTEIO, "not \"now\"");
    assert_fails(qmp_command(q, "no-such", NULL, NULL, &why), EREMOTEIO);
    assert_error(why, EREMOTEIO, "no-such has not been found");
    assert_fails(qmp_command(q, "unanswered", NULL, NULL, &why), ENODATA);
    assert_error(why, ENODATA, "no answer");
    qmp_free(q);
}

static void test_key(void **state)
{
    struct fixture *f = *state;
    struct qmp *q;
    struct ff_error why;

    assert_ok(qmp_connect(f->path, -1, LIMIT_MS, &q, &why), why);
    assert_ok(qmp_add_key(q, KEY, &why), why);
    assert_string_equal(f->key, KEY);
    assert_int_equal(strspn(f->data, "0"), KEY_TEXT_LEN);
    qmp_free(q);
}

static int dial(const struct fixture *f)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    strcpy(a.sun_path, f->path);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

/* Whoever says nonsense, half a line, or nothing and more than may come, is in nobody's way */
static void test_others(void **state)
{
    struct fixture *f = *state;
    struct qmp *q;
    struct ff_error why;
    char text[512];
    int fd[16];

    for (int i = 0; i < 7; i++)
        fd[i] = dial(f);
    assert_int_equal(write(fd[0], "{\"execute\":", 11), 11);
    assert_int_equal(write(fd[1], "nonsense\n\n[]\n", 13), 13);
    assert_ok(qmp_connect(f->path, -1, LIMIT_MS, &q, &why), why);
    for (int i = 7; i < 16; i++) { /* there are eight by now */
        fd[i] = dial(f);
        assert_int_equal(read(fd[i], text, sizeof(text)), 0);
    }
    assert_ok(qmp_command(q, "echo", json_object(), NULL, &why), why);
    ssize_t n = read(fd[1], text, sizeof(text) - 1); /* the greeting, and an answer */
    assert_true(n > 0);
    for (int i = 0; i < 16; i++)
        close(fd[i]);
    assert_ok(qmp_command(q, "echo", json_object(), NULL, &why), why);
    qmp_free(q);
    assert_ok(qmp_connect(f->path, -1, LIMIT_MS, &q, &why), why);
    qmp_free(q);
}

static void test_path(void **state)
{
    struct fixture *f = *state;
    struct monitor *m;
    struct ff_error why;
    struct stat st;
    char longer[200];

    assert_int_equal(stat(f->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_fails(monitor_start(f->path, on_command, f, &m, &why), EADDRINUSE);
    assert_non_null(strstr(why.text, f->path));
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    assert_fails(monitor_start(longer, on_command, f, &m, &why), ENAMETOOLONG);
}

UNIT_MAIN(cmocka_unit_test_setup_teardown(test_commands, setup, teardown),
          cmocka_unit_test_setup_teardown(test_key, setup, teardown),
          cmocka_unit_test_setup_teardown(test_others, setup, teardown),
          cmocka_unit_test_setup_teardown(test_path, setup, teardown))
