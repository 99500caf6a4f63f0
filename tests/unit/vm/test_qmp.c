/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_qmp.c - a command of which only a part was written in time is not followed by the next one
 */
#include <jansson.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "qmp.h"
#include "unit.h"

#define LONG_BYTES (4u << 20) /* more than a socket takes */
#define LIMIT_MS 20000

/* A QEMU that stops reading once it has greeted, until a byte comes at @go. Exit code: how many commands that it knows
 * came whole; 99: a line that is no JSON */
static void serve(int listener, int go)
{
    int fd = accept(listener, NULL, NULL), whole = 0;
    FILE *in = fdopen(dup(fd), "r");
    char *line = NULL, byte;
    size_t room = 0;

    dprintf(fd, "{\"QMP\":{}}\n");
    while (getline(&line, &room, in) > 0) {
        json_t *m = json_loads(line, 0, NULL);
        if (!m)
            _exit(99);
        whole++;
        dprintf(fd, "{\"return\":{},\"id\":%lld}\n", (long long)json_integer_value(json_object_get(m, "id")));
        json_decref(m);
        if (whole == 1 && read(go, &byte, 1) != 1)
            _exit(98);
    }
    _exit(whole);
}

static void test_half(void **state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char dir[] = "/tmp/qmp-XXXXXX";
    struct ff_error why;
    struct qmp *q;
    int go[2], status;

    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/qmp", dir);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(pipe(go), 0);
    pid_t server = fork();
    if (!server) {
        close(go[1]);
        serve(listener, go[0]);
    }
    assert_int_equal(qmp_connect(a.sun_path, -1, LIMIT_MS, &q, &why), 0);
    char *text = malloc(LONG_BYTES);
    memset(text, 'x', LONG_BYTES);
    qmp_limit(q, 50);
    json_t *arguments = json_object();
    json_object_set_new(arguments, "text", json_stringn(text, LONG_BYTES));
    assert_int_equal(qmp_command(q, "long", arguments, NULL, &why), -ETIMEDOUT);
    assert_int_equal(qmp_command(q, "too-early", NULL, NULL, &why), -ETIMEDOUT);
    qmp_limit(q, LIMIT_MS);
    assert_int_equal(write(go[1], "", 1), 1);
    if (qmp_command(q, "next", NULL, NULL, &why))
        fail_msg("%s", why.text);
    qmp_free(q);
    assert_int_equal(waitpid(server, &status, 0), server);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 3); /* qmp_capabilities, long, next */
    free(text);
    close(listener);
    close(go[0]);
    close(go[1]);
    unlink(a.sun_path);
    rmdir(dir);
}

UNIT_MAIN(cmocka_unit_test(test_half))
