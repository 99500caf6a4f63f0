/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_session_key.c - a key is made anew each time, and given to an agent that may have ended; commands wait for one
 * that does not read; when the guest's QEMU here has ended
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "qmp_secret.h"
#include "rundir.h"
#include "session.h"
#include "unit.h"

static void test_given(void **state)
{
    struct node node = {.host = "h1"};
    struct session s = {.key = NULL}, other = {.key = NULL};
    struct host h = {.node = &node};
    struct ff_error why;
    char got[128] = "";
    int fd[2];
    (void)state;

    assert_true(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    assert_ok(session_make_key(&s, &why), why);
    assert_ok(session_make_key(&other, &why), why);
    assert_int_equal(strlen(s.key), KEY_TEXT_LEN);
    assert_string_not_equal(s.key, other.key);
    assert_false(pipe(fd));
    h.run.in = fd[1];
    assert_ok(session_send_key(&s, &h, &why), why);
    assert_true(read(fd[0], got, sizeof(got) - 1) > 0);
    assert_non_null(strstr(got, s.key));
    close(fd[0]);
    /* what ended it is said by whoever reads its last words, not here */
    assert_ok(session_send_key(&s, &h, &why), why);
    assert_int_equal(h.run.in, -1);
    key_text_free(s.key);
    key_text_free(other.key);
}

/* A host that reads nothing costs the others no time: what is for it stays, in order, and the key comes behind it */
static void test_unsent(void **state)
{
    struct node node = {.host = "h1"};
    struct host h = {.node = &node, .run = SPAWN_NONE};
    struct session s = {.hosts = &h, .n_hosts = 1};
    char *text = malloc(1 << 20), *line = NULL;
    struct ff_error why;
    size_t room = 0;
    int fd[2];
    (void)state;

    assert_false(pipe(fd));
    assert_int_equal(fcntl(fd[1], F_SETFL, O_NONBLOCK), 0);
    h.run.in = fd[1];
    memset(text, 'x', (1 << 20) - 1);
    text[(1 << 20) - 1] = '\0';
    host_send(&h, json_pack("{ss}", "first", text));
    host_send(&h, json_pack("{sb}", "second", true));
    assert_true(h.run.in >= 0);
    assert_non_null(h.unsent);
    pid_t reader = fork();
    if (!reader) {
        FILE *f = fdopen(fd[0], "r");
        close(fd[1]);
        bool good = getline(&line, &room, f) > 1 << 20 && strstr(line, "first") && getline(&line, &room, f) > 0 &&
                    !strcmp(line, "{\"second\":true}\n") && getline(&line, &room, f) > 0 && strstr(line, "key");
        _exit(!good);
    }
    session_turn(&s, 20000);
    assert_ok(session_make_key(&s, &why), why);
    assert_ok(session_send_key(&s, &h, &why), why);
    assert_null(h.unsent);
    int status;
    assert_int_equal(waitpid(reader, &status, 0), reader);
    assert_int_equal(status, 0);
    key_text_free(s.key);
    free(text);
    close(fd[0]);
    close(fd[1]);
}

/* Its input ends behind what it has not read yet, and nobody waits for that */
static void test_ends(void **state)
{
    struct node node = {.host = "h1"};
    struct host h = {.node = &node, .run = SPAWN_NONE};
    struct session s = {.hosts = &h, .n_hosts = 1, .signals = -1};
    char *text = calloc(1, 1 << 20);
    uint64_t begin = ff_now_ms();
    int fd[2], status;
    (void)state;

    assert_false(pipe(fd));
    assert_int_equal(fcntl(fd[1], F_SETFL, O_NONBLOCK), 0);
    h.run.in = fd[1];
    memset(text, 'x', (1 << 20) - 1);
    host_send(&h, json_pack("{ss}", "first", text));
    host_close_input(&h);
    host_send(&h, json_pack("{sb}", "second", true));
    assert_true(ff_now_ms() < begin + 5000);
    assert_true(h.run.in >= 0);
    pid_t reader = fork();
    if (!reader) {
        size_t n = 0;
        close(fd[1]);
        for (ssize_t got; (got = read(fd[0], text, 1 << 20)) > 0;)
            n += (size_t)got;
        _exit(n != strlen("{\"first\":\"\"}\n") + (1 << 20) - 1);
    }
    while (h.run.in >= 0 && ff_now_ms() < begin + 20000)
        session_turn(&s, 1000);
    assert_int_equal(h.run.in, -1);
    assert_int_equal(waitpid(reader, &status, 0), reader);
    assert_int_equal(status, 0);
    free(text);
    close(fd[0]);
}

/* A QEMU that closes its monitor: it has ended once the kernel says so, and not when the name of its socket is gone */
static void play_parent(const char *path, int ready)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    static const char said[] = "{\"QMP\": {}}\n{\"return\": {}, \"id\": 1}\n";
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    alarm(60); /* a test that fails leaves it */
    strcpy(a.sun_path, path);
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 1) || write(ready, "r", 1) != 1)
        _exit(1);
    int peer = accept(fd, NULL, NULL);
    (void)!write(peer, said, sizeof(said) - 1);
    char c;
    while (read(peer, &c, 1) == 1 && c != '\n')
        ;
    unlink(path);
    close(fd);
    close(peer);
    for (;;)
        pause();
}

static void test_parent_ends(void **state)
{
    char base[] = "/tmp/ff-parent-XXXXXX", c;
    struct ff_error why;
    int ready[2];
    (void)state;

    assert_non_null(mkdtemp(base));
    FF_AUTO_FREE char *path = xprintf("%s/qmp", base);
    assert_false(pipe(ready));
    pid_t pid = fork();
    if (!pid)
        play_parent(path, ready[1]);
    assert_int_equal(read(ready[0], &c, 1), 1);
    struct session s = {.o = {.parent_path = path}, .signals = -1, .parent_pid = pid,
                        .parent_start = process_start_time(pid)};
    assert_ok(qmp_connect(path, -1, 30000, &s.qmp, &why), why);
    for (int i = 0; !s.parent_silent && i < 100; i++)
        session_turn(&s, 1000);
    assert_true(s.parent_silent);
    assert_false(session_has_parent_ended(&s));
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_true(session_has_parent_ended(&s));
    qmp_free(s.qmp);
    close(ready[0]);
    close(ready[1]);
    assert_int_equal(rmdir(base), 0);
}

UNIT_MAIN(cmocka_unit_test(test_given), cmocka_unit_test(test_unsent), cmocka_unit_test(test_ends),
          cmocka_unit_test(test_parent_ends))
