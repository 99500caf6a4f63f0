/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_pass_files.c - a process that has no monitor gets files, keeps them until they are closed, and no socket is left there
 */
#include "unit.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "outside.h"
#include "pass_files.h"
#include "xalloc.h"

#define FILES 3u

static pid_t begin_process(void)
{
    pid_t pid = fork();

    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    return pid;
}

static unsigned files_of(pid_t pid)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    unsigned n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void passed(void **state)
{
    int fd[FILES], there[FILES];
    pid_t pid = begin_process();
    const unsigned before = files_of(pid);
    struct ff_error err = {0};

    (void)state;
    if (outside_may(pid, true, &err)) {
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        print_message("SKIP: %s\n", err.text);
        skip();
    }
    for (unsigned i = 0; i < FILES; i++)
        assert_true((fd[i] = memfd_create("passed", MFD_CLOEXEC)) >= 0);
    assert_ok(pass_files(pid, fd, FILES, there, &err), err);
    for (unsigned i = 0; i < FILES; i++) {
        FF_AUTO_CLOSE int its = outside_take_fd(pid, there[i]);
        struct stat here, is;
        assert_true(its >= 0 && !fstat(its, &is) && !fstat(fd[i], &here) && is.st_ino == here.st_ino);
    }
    assert_int_equal(files_of(pid), before + FILES);
    const struct rlimit few = {(rlim_t)there[0] + 1, (rlim_t)there[0] + 1}; /* the pair has the two numbers before it */
    pass_files_close(pid, there, FILES);
    assert_int_equal(files_of(pid), before);
    assert_int_equal(kill(pid, 0), 0);

    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, &few, NULL), 0);
    assert_fails(pass_files(pid, fd, FILES, there, &err), EMFILE);
    assert_int_equal(files_of(pid), before);
    for (unsigned i = 0; i < FILES; i++) {
        assert_int_equal(there[i], -1);
        close(fd[i]);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_fails(pass_files(pid, NULL, 0, NULL, &err), ESRCH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(passed)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
