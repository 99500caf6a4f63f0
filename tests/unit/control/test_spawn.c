/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_spawn.c - how a process is said to have ended, also where pidfd_open() is forbidden
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spawn.h"
#include "unit.h"

#define LIMIT_MS 20000

static void start(struct spawn *r, const char *line)
{
    struct ff_error why;

    assert_false(spawn_start(r, NULL, line, &why));
}

static void test_orderly(void **state)
{
    struct spawn r;

    (void)state;
    start(&r, "exec >&- 2>&-; sleep 0.3; exit 0");
    assert_true(spawn_end(&r, LIMIT_MS));
    spawn_free(&r);
    start(&r, "exit 3");
    assert_false(spawn_end(&r, LIMIT_MS));
    spawn_free(&r);
    start(&r, "sleep 100");
    assert_false(spawn_end(&r, 50));
    assert_int_equal(r.pid, 0);
    spawn_free(&r);
}

static void test_ended(void **state)
{
    struct spawn r;
    int status;

    (void)state;
    start(&r, "echo cause >&2; echo advice >&2; exec >&- 2>&-; sleep 0.3; exit 5");
    assert_true(spawn_read_lines(&r, LIMIT_MS, NULL, NULL));
    assert_true(spawn_read_lines(&r, LIMIT_MS, NULL, NULL)); /* at once: its output has ended */
    assert_true(spawn_ended(&r, LIMIT_MS, &status));
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    assert_string_equal(r.first, "cause");
    assert_string_equal(r.words, "advice");
    spawn_end(&r, 0);
    spawn_free(&r);
    start(&r, "exec >&- 2>&-; sleep 100");
    assert_true(spawn_read_lines(&r, LIMIT_MS, NULL, NULL));
    assert_false(spawn_ended(&r, 50, &status));
    spawn_end(&r, 0);
    spawn_free(&r);
}

/* As started by a daemon that has no 0, 1 and 2: the pipes get these numbers */
static void test_without_descriptors(void **state)
{
    int status;

    (void)state;
    pid_t pid = fork();
    if (!pid) {
        struct spawn r;
        struct ff_error why;
        for (int i = 0; i < 3; i++)
            close(i);
        if (spawn_start(&r, NULL, "read a; echo $a >&2; echo $a; exit 4", &why) ||
            write(r.in, "word\n", 5) != 5 || !spawn_read_lines(&r, LIMIT_MS, NULL, NULL))
            _exit(1);
        bool ended = spawn_ended(&r, LIMIT_MS, &status);
        _exit(ended && WEXITSTATUS(status) == 4 && r.first && !strcmp(r.first, "word") ? 0 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static bool no_fork;

/* Instead of the C library's: no process can be made any more */
pid_t fork(void)
{
    errno = EAGAIN;
    return no_fork ? -1 : _Fork();
}

static int n_descriptors(void)
{
    int n = 0;

    for (int fd = 0; fd < 200; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* What was not started leaves nothing open */
static void test_not_started(void **state)
{
    struct ff_error why;
    struct spawn r;
    int before = n_descriptors();

    (void)state;
    no_fork = true;
    assert_int_equal(spawn_start(&r, NULL, "exit 0", &why), -EAGAIN);
    no_fork = false;
    assert_int_equal(n_descriptors(), before);
    assert_true(!r.pid && r.in < 0 && r.out < 0 && r.err < 0);
    spawn_end(&r, 0);
    spawn_free(&r);
}

/* The kernel then says of no child how it ended: that is no success */
static void test_ignored_child_signal(void **state)
{
    char *const fails[] = {"sh", "-c", "exit 7", NULL};
    struct ff_error why;
    struct spawn r;
    int status;

    (void)state;
    signal(SIGCHLD, SIG_IGN);
    start(&r, "exit 7");
    assert_true(spawn_read_lines(&r, LIMIT_MS, NULL, NULL));
    assert_true(spawn_ended(&r, LIMIT_MS, &status));
    assert_true(status && !WIFEXITED(status) && !WIFSIGNALED(status));
    spawn_end(&r, 0);
    spawn_free(&r);
    start(&r, "exec >&- 2>&-; sleep 0.3; exit 7");
    assert_false(spawn_end(&r, LIMIT_MS));
    spawn_free(&r);
    assert_int_equal(spawn_run(fails, LIMIT_MS, &why), -EIO);
    signal(SIGCHLD, SIG_DFL);
}

/* As a container's filter does */
static void forbid_pidfd_open(void)
{
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof(f) / sizeof(f[0]), .filter = f};

    assert_false(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    assert_false(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    assert_int_equal(syscall(SYS_pidfd_open, getpid(), 0), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_orderly), cmocka_unit_test(test_ended),
                                       cmocka_unit_test(test_not_started),
                                       cmocka_unit_test(test_ignored_child_signal),
                                       cmocka_unit_test(test_without_descriptors)};
    int failed = cmocka_run_group_tests_name("with pidfd_open", tests, NULL, NULL);

    forbid_pidfd_open();
    return failed + cmocka_run_group_tests_name("without", tests, NULL, NULL);
}
