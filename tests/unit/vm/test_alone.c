/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_alone.c - one process at a time attaches to another
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/prctl.h>

#include "alone.h"

#define NOBODY 65534

static struct ff_error err;

/* A child that does nothing, or has attached to @to and says so by @tell */
static pid_t start(pid_t to, int tell, uid_t uid)
{
    pid_t pid = fork();
    int fd;

    assert_true(pid >= 0);
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (uid && setuid(uid))
        _exit(2);
    char c = to ? "ny"[!alone_begin(to, &fd, &err)] : 0;
    if (to && write(tell, &c, 1) != 1)
        _exit(2);
    for (;;)
        pause();
}

static void end(pid_t pid)
{
    int status;

    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
}

static void test_one_at_a_time(void **state)
{
    (void)state;
    char name[32], said;
    int told[2], fd = -1;

    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    pid_t qemu = start(0, -1, 0), first = start(qemu, told[1], 0);

    assert_int_equal(read(told[0], &said, 1), 1);
    assert_int_equal(said, 'y');
    assert_int_equal(alone_begin(qemu, &fd, &err), -EBUSY);
    assert_int_equal(fd, -1);
    snprintf(name, sizeof(name), "by process %d:", (int)first);
    assert_non_null(strstr(err.text, name));
    end(first); /* and the lock with it */
    assert_int_equal(alone_begin(qemu, &fd, &err), 0);
    close(fd);
    assert_int_equal(alone_begin(qemu, &fd, &err), 0);
    end(qemu);
    close(fd);
    assert_int_equal(alone_begin(qemu, &fd, &err), -ENOENT);
    close(told[0]);
    close(told[1]);
}

/* Another user keeps nobody out */
static void test_another_user(void **state)
{
    (void)state;
    int told[2], fd = -1;
    char said;

    if (geteuid()) {
        print_message("SKIP: only root becomes another user: run this as root\n");
        skip();
    }
    assert_int_equal(pipe2(told, O_CLOEXEC), 0);
    pid_t qemu = start(0, -1, 0), other = start(qemu, told[1], NOBODY);

    assert_int_equal(read(told[0], &said, 1), 1);
    assert_int_equal(said, 'n');
    assert_int_equal(alone_begin(qemu, &fd, &err), 0);
    close(fd);
    end(other);
    end(qemu);
    close(told[0]);
    close(told[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_at_a_time),
        cmocka_unit_test(test_another_user),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
