/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_agent_confine.c - what an agent, and what it starts, may do no more, and what they still may
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent.h"
#include "unit.h"

/* @fn in a process of its own: its exit code */
static int code_of(void (*fn)(void))
{
    pid_t pid = fork();
    int status;

    if (!pid) {
        fn();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define MUST(cond)          \
    do {                    \
        if (!(cond))        \
            _exit(__LINE__ % 200 + 1); \
    } while (0)
#define REFUSED(call) MUST((call) == -1 && errno == EPERM)

static void must_be_confined(void)
{
    struct timespec now;

    MUST(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    MUST(prctl(PR_GET_SECCOMP, 0, 0, 0, 0) == 2);
    REFUSED(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
    REFUSED(syscall(SYS_process_vm_readv, getpid(), NULL, 0, NULL, 0, 0));
    REFUSED(unshare(CLONE_NEWUSER));
    REFUSED(unshare(0));
    REFUSED(mount("none", "/nonexistent", "tmpfs", 0, NULL));
    REFUSED(syscall(SYS_init_module, NULL, 0, ""));
    REFUSED(syscall(SYS_kexec_load, 0, 0, NULL, 0));
#ifdef __x86_64__
    REFUSED(syscall(SYS_getpid | 0x40000000)); /* another table of system calls, x32's */
#endif
    MUST(!clock_gettime(CLOCK_REALTIME, &now));
}

static void confined(void)
{
    agent_confine();
    must_be_confined();
}

static void child_of_confined(void)
{
    agent_confine();
    pid_t pid = fork();
    int status;

    if (!pid) {
        must_be_confined();
        execl("/bin/sh", "sh", "-c", "grep -q 'NoNewPrivs:.1' /proc/self/status && "
              "grep -q 'Seccomp:.2' /proc/self/status", NULL);
        _exit(250);
    }
    MUST(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    _exit(WEXITSTATUS(status));
}

static void not_confined(void)
{
    MUST(!ptrace(PTRACE_TRACEME, 0, NULL, NULL) && !unshare(0));
}

static void test_confined(void **state)
{
    (void)state;
    assert_int_equal(code_of(not_confined), 0); /* else what follows tests nothing */
    assert_int_equal(code_of(confined), 0);
}

static void test_children(void **state)
{
    (void)state;
    assert_int_equal(code_of(child_of_confined), 0);
}

UNIT_MAIN(cmocka_unit_test(test_confined), cmocka_unit_test(test_children))
