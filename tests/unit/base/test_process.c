/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_process.c - processes: their arguments, their output, why they are not
 */
#include "unit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "process.h"

static char dir[] = "/tmp/ff-process-XXXXXX";
static char log_path[64];
static struct ff_error err;

static int make_dir(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(log_path, sizeof(log_path), "%s/log", dir);
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

/* It does not come to run, says why, and ends with 127 */
static void fails(struct ff_process p, const char *why)
{
    char text[512];
    pid_t pid;
    int fd;

    assert_int_equal(ff_process_exec(&p, &pid, &fd, &err), 0);
    assert_true(read_all(fd, text, sizeof(text)) > 0);
    assert_non_null(strstr(text, why));
    assert_int_equal(code_of(pid), 127);
    unlink(log_path);
}

static void check_failures(void)
{
    char *const argv[] = {"/bin/true", NULL};
    char *const no[] = {"/bin/false", NULL}, *const missing[] = {"/no/such/program", NULL};
    char *const killed[] = {"/bin/sh", "-c", "kill -9 $$", NULL};
    char *const *const before_killed[] = {killed, NULL};
    char *const *const before_no[] = {no, NULL}, *const *const before_missing[] = {missing, NULL};

    fails((struct ff_process){.log = "/no/such/log", .argv = argv},
          "log /no/such/log: No such file");
    fails((struct ff_process){.log = log_path, .cwd = "/no/such", .argv = argv},
          "enter /no/such: No such file");
    fails((struct ff_process){.log = log_path, .argv = argv, .before = before_no},
          "prepare: /bin/false failed\n");
    fails((struct ff_process){.log = log_path, .argv = argv, .before = before_missing},
          "prepare: run /no/such/program: No such file");
    fails((struct ff_process){.log = log_path, .argv = argv, .before = before_killed},
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
    fails((struct ff_process){.log = log_path, .argv = none},
          "run /no/such: No such file");
    check_failures();
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

/* Who starts it ends at once: so does it, however far it has come */
static void test_bound(void **state)
{
    static char *const argv[] = {"sleep", "60", NULL};
    const struct ff_process p = {.argv = argv, .log = "/dev/null", .bound = true};
    int ends[2], status = 0;
    pid_t pid = 0;

    (void)state;
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(pipe(ends), 0);
        const pid_t starter = fork();
        if (!starter) {
            int fd = -1;
            _exit(ff_process_exec(&p, &pid, &fd, &err) || write(ends[1], &pid, sizeof(pid)) != sizeof(pid));
        }
        assert_int_equal(read(ends[0], &pid, sizeof(pid)), sizeof(pid));
        assert_int_equal(waitpid(starter, &status, 0), starter);
        assert_int_equal(status, 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true((WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) || (WIFEXITED(status) && WEXITSTATUS(status) == 127));
        close(ends[0]);
        close(ends[1]);
    }
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exec),
        cmocka_unit_test(test_descriptors),
        cmocka_unit_test(test_bound),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
