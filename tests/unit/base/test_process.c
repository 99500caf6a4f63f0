/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_process.c - processes by exec and by a fork server: their arguments, their output, why they
 * are not
 */
#include "unit.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "failpoint.h"
#include "process.h"

static char dir[] = "/tmp/ff-process-XXXXXX";
static char log_path[64], hold_path[64];
static struct ff_error err;
static int sock;
static pid_t server;

/* What the server's children do: say their arguments, wait while there is hold_path, end */
static void __attribute__((noreturn)) child_main(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        dprintf(1, "%s\n", argv[i]);
    for (int i = 0; i < 2000 && !access(hold_path, F_OK); i++)
        usleep(5000);
    _exit(argc);
}

static int start_server(void **state)
{
    int s[2];
    (void)state;

    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
    server = fork();
    if (!server) {
        int argc;
        char **argv;
        close(s[0]);
        if (ff_process_serve(s[1], &argc, &argv, NULL))
            _exit(99);
        child_main(argc, argv);
    }
    close(s[1]);
    sock = s[0];
    return 0;
}

static int end_server(void **state)
{
    int status;
    (void)state;

    close(sock);
    assert_int_equal(waitpid(server, &status, 0), server);
    assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
    unlink(log_path);
    return waitpid(-1, &status, 0) < 0 && errno == ECHILD ? 0 : -1; /* nobody is left */
}

static int make_dir(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(log_path, sizeof(log_path), "%s/log", dir);
    snprintf(hold_path, sizeof(hold_path), "%s/hold", dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    return rmdir(dir);
}

/* Everything that comes until the end; its length */
static size_t read_all(int fd, char *text, size_t room)
{
    size_t len = 0;
    ssize_t n;

    while (len < room - 1 && (n = read(fd, text + len, room - 1 - len)) > 0)
        len += (size_t)n;
    text[len] = '\0';
    close(fd);
    return len;
}

static void logged(const char *want)
{
    char text[4096];
    int fd = open(log_path, O_RDONLY | O_CLOEXEC);

    assert_true(fd >= 0);
    read_all(fd, text, sizeof(text));
    assert_string_equal(text, want);
    unlink(log_path);
}

static int code_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

typedef int start_fn(const struct ff_process *p, pid_t *pid, int *fd);

static int by_exec(const struct ff_process *p, pid_t *pid, int *fd)
{
    return ff_process_exec(p, pid, fd, &err);
}

static int by_fork(const struct ff_process *p, pid_t *pid, int *fd)
{
    return ff_process_fork(sock, p, pid, fd, &err);
}

/* It does not come to run, says why, and ends with 127 */
static void fails(start_fn *start, struct ff_process p, const char *why)
{
    char text[512];
    pid_t pid;
    int fd;

    assert_int_equal(start(&p, &pid, &fd), 0);
    assert_true(read_all(fd, text, sizeof(text)) > 0);
    assert_non_null(strstr(text, why));
    assert_int_equal(code_of(pid), 127);
    unlink(log_path);
}

static void check_failures(start_fn *start)
{
    char *const argv[] = {"/bin/true", NULL};
    char *const no[] = {"/bin/false", NULL}, *const missing[] = {"/no/such/program", NULL};
    char *const killed[] = {"/bin/sh", "-c", "kill -9 $$", NULL};
    char *const *const before_killed[] = {killed, NULL};
    char *const *const before_no[] = {no, NULL}, *const *const before_missing[] = {missing, NULL};

    fails(start, (struct ff_process){.log = "/no/such/log", .argv = argv},
          "log /no/such/log: No such file");
    fails(start, (struct ff_process){.log = log_path, .cwd = "/no/such", .argv = argv},
          "enter /no/such: No such file");
    fails(start, (struct ff_process){.log = log_path, .argv = argv, .before = before_no},
          "prepare: /bin/false failed\n");
    fails(start, (struct ff_process){.log = log_path, .argv = argv, .before = before_missing},
          "prepare: run /no/such/program: No such file");
    fails(start, (struct ff_process){.log = log_path, .argv = argv, .before = before_killed},
          "prepare: /bin/sh was killed by SIGKILL\n");
}

static void test_exec(void **state)
{
    char *const argv[] = {"/bin/sh", "-c", "pwd; echo $0 \"$1\"; exit 3", "a", "b  c", NULL};
    char *const first[] = {"/bin/echo", "first", NULL}, *const none[] = {"/no/such", NULL};
    char *const *const before[] = {first, NULL};
    struct ff_process p = {.log = log_path, .cwd = "/", .argv = argv, .before = before};
    char text[64];
    pid_t pid;
    int fd;
    (void)state;

    assert_int_equal(ff_process_exec(&p, &pid, &fd, &err), 0);
    assert_int_equal(getpgid(pid), pid);
    assert_int_equal(read_all(fd, text, sizeof(text)), 0);
    assert_int_equal(code_of(pid), 3);
    logged("first\n/\na b  c\n");
    fails(by_exec, (struct ff_process){.log = log_path, .argv = none},
          "run /no/such: No such file");
    check_failures(by_exec);
}

/* By descriptors of the caller's: what the program says, and why it does not run */
static void test_descriptors(void **state)
{
    char *const cat[] = {"/bin/sh", "-c", "cat; pwd >&2", NULL}, *const none[] = {"no such", NULL};
    struct ff_process p = {.argv = cat, .cwd = "/"};
    int in[2], out[2], fault[2];
    char text[64];
    pid_t pid;
    (void)state;

    for (int i = 0; i < 2; i++, p = (struct ff_process){.argv = none}) {
        assert_true(!pipe2(in, O_CLOEXEC) && !pipe2(out, O_CLOEXEC) && !pipe2(fault, O_CLOEXEC));
        p.fds = (int[]){in[0], out[1], fault[1]};
        assert_int_equal(ff_process_exec(&p, &pid, NULL, &err), 0);
        assert_int_equal(getpgid(pid), pid);
        assert_true(!close(in[0]) && !close(out[1]) && !close(fault[1]));
        assert_true(i || write(in[1], "word", 4) == 4);
        close(in[1]);
        read_all(out[0], text, sizeof(text));
        assert_string_equal(text, i ? "" : "word");
        read_all(fault[0], text, sizeof(text));
        assert_string_equal(text, i ? "run no such: No such file or directory\n" : "/\n");
        assert_int_equal(code_of(pid), i ? 127 : 0);
    }
}

static void test_fork(void **state)
{
    char *const argv[] = {"program", "", "a  b", "$HOME", NULL};
    char look[128], text[4096], path[64];
    char *const first[] = {"/bin/sh", "-c", look, NULL}, *const second[] = {"/bin/pwd", NULL};
    char *const *const before[] = {first, second, NULL};
    struct ff_process p = {.log = log_path, .cwd = "/", .argv = argv, .before = before};
    pid_t pid[3];
    int fd;
    (void)state;

    snprintf(look, sizeof(look), "cat /proc/$PPID/cmdline >%s/before", dir);
    assert_int_equal(ff_process_wait_server(sock, &err), 0);
    close(open(hold_path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(by_fork(&p, &pid[i], &fd), 0);
        assert_int_equal(read_all(fd, text, sizeof(text)), 0);
        if (!i) { /* it is known by its arguments while it prepares */
            snprintf(path, sizeof(path), "%s/before", dir);
            size_t len = read_all(open(path, O_RDONLY | O_CLOEXEC), text, sizeof(text));
            assert_int_equal(len, sizeof("program\0\0a  b\0$HOME"));
            assert_memory_equal(text, "program\0\0a  b\0$HOME", len);
            unlink(path);
        }
        assert_int_equal(getpgid(pid[i]), pid[i]);
        snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid[i]);
        size_t len = read_all(open(path, O_RDONLY | O_CLOEXEC), text, sizeof(text));
        assert_int_equal(len, sizeof("program\0\0a  b\0$HOME")); /* its own, and no byte more */
        assert_memory_equal(text, "program\0\0a  b\0$HOME", len);
        if (!i)
            p = (struct ff_process){.log = log_path, .argv = argv};
    }
    unlink(hold_path);
    for (int i = 0; i < 3; i++)
        assert_int_equal(code_of(pid[i]), 4);
    unlink(log_path);
    check_failures(by_fork);
}

/* More arguments than a socket holds at once */
static void test_many_arguments(void **state)
{
    enum { N = 3000 };
    char *argv[N + 1], word[200], text[64];
    pid_t pid;
    int fd;
    (void)state;

    assert_int_equal(ff_process_wait_server(sock, &err), 0);
    memset(word, 'x', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    for (int i = 0; i < N; i++)
        argv[i] = word;
    argv[N] = NULL;
    struct ff_process p = {.log = log_path, .argv = argv};
    assert_int_equal(by_fork(&p, &pid, &fd), 0);
    assert_int_equal(read_all(fd, text, sizeof(text)), 0);
    assert_int_equal(code_of(pid), N & 0xff);
    struct stat st;
    assert_int_equal(stat(log_path, &st), 0);
    assert_int_equal(st.st_size, N * sizeof(word));
}

/* A child whose pid nobody has taken does not run */
static void test_without_go(void **state)
{
    char *const argv[] = {"program", NULL};
    struct ff_process p = {.log = log_path, .argv = argv};
    pid_t pid;
    int fd, status;
    (void)state;

    assert_int_equal(ff_process_wait_server(sock, &err), 0);
    assert_int_equal(ff_failpoints_arm("process.go=fail", &err), 0);
    assert_int_equal(by_fork(&p, &pid, &fd), -EIO);
    assert_int_equal(ff_failpoints_arm("", &err), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 127);
    assert_int_equal(access(log_path, F_OK), -1);
}

static void test_no_server(void **state)
{
    char *const argv[] = {"program", NULL};
    struct ff_process p = {.log = log_path, .argv = argv};
    pid_t pid;
    int s[2], fd;
    (void)state;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
    close(s[1]);
    assert_int_equal(ff_process_wait_server(s[0], &err), -EPIPE);
    assert_non_null(strstr(err.text, "it has ended"));
    assert_int_equal(ff_process_fork(s[0], &p, &pid, &fd, &err), -EPIPE);
    close(s[0]);
    assert_int_equal(kill(server, 0), 0);
}

/* Whose agent ends before it has read that the server serves: that is no failure of the server */
static void test_not_waited_for(void **state)
{
    struct pollfd p = {.fd = sock, .events = POLLIN};
    (void)state;

    assert_int_equal(poll(&p, 1, 20000), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exec),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test_setup_teardown(test_fork, start_server, end_server),
        cmocka_unit_test_setup_teardown(test_many_arguments, start_server, end_server),
        cmocka_unit_test_setup_teardown(test_without_go, start_server, end_server),
        cmocka_unit_test_setup_teardown(test_no_server, start_server, end_server),
        cmocka_unit_test_setup_teardown(test_not_waited_for, start_server, end_server),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
