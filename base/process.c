/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * process.c - processes for programs: one fork and exec, which says why the program does not run
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "process.h"

/* --- in the new process: only what may be called between fork() and exec() --- */

static void __attribute__((noreturn)) say_all(int fd, const char *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (parts[i] && write(fd, parts[i], strlen(parts[i])) < 0)
            break;
    _exit(127);
}

static void __attribute__((noreturn)) give_up(int fd, const char *what, const char *with, int code)
{
    const char *const parts[] = {what, " ", with, ": ", strerrordesc_np(code), "\n"};

    say_all(fd, parts, FF_ARRAY_LEN(parts));
}

static void run_before(int fd, char *const *argv)
{
    int status;
    pid_t pid = _Fork();

    if (pid < 0)
        give_up(fd, "prepare: start", argv[0], errno);
    if (!pid) {
        execvp(argv[0], argv);
        give_up(fd, "prepare: run", argv[0], errno);
    }
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            give_up(fd, "prepare: wait for", argv[0], errno);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        _exit(127); /* it has said why */
    if (WIFSIGNALED(status)) {
        const char *const parts[] = {"prepare: ", argv[0], " was killed by SIG",
                                     sigabbrev_np(WTERMSIG(status)), "\n"};
        say_all(fd, parts, FF_ARRAY_LEN(parts));
    }
    if (WEXITSTATUS(status)) {
        const char *const parts[] = {"prepare: ", argv[0], " failed\n"};
        say_all(fd, parts, FF_ARRAY_LEN(parts));
    }
}

static void log_output(const char *path, int fd)
{
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    if (out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        give_up(fd, "log", path, errno);
    close(in);
    close(out);
}

static void prepare(const struct ff_process *p, pid_t caller, int fd)
{
    sigset_t none;

    setpgid(0, 0);
    for (int i = 1; i < 32; i++)
        if (i != SIGKILL && i != SIGSTOP)
            signal(i, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (p->bound && (prctl(PR_SET_PDEATHSIG, SIGTERM) || getppid() != caller)) /* it may have ended before */
        _exit(127);
    if (!p->fds)
        log_output(p->log, fd);
    int own[3]; /* where the caller has no 0, 1 or 2, they may be among those */
    for (int i = 0; p->fds && i < 3; i++)
        if ((own[i] = fcntl(p->fds[i], F_DUPFD_CLOEXEC, 3)) < 0)
            give_up(fd, "set descriptors of", p->argv[0], errno);
    for (int i = 0; p->fds && i < 3; i++)
        if (dup2(own[i], i) < 0)
            give_up(fd, "set descriptors of", p->argv[0], errno);
    if (p->cwd && chdir(p->cwd) < 0)
        give_up(fd, "a child runs in its parent's folder: enter", p->cwd, errno);
    for (char *const *const *b = p->before; b && *b; b++)
        run_before(fd, *b);
    for (const int *k = p->kept; k && *k >= 0; k++)
        if (fcntl(*k, F_SETFD, 0) < 0)
            give_up(fd, "keep descriptors of", p->argv[0], errno);
}

/* --- in this one --- */

int ff_process_exec(const struct ff_process *p, pid_t *pid, int *exec_status_fd,
                    struct ff_error *err)
{
    const pid_t caller = getpid();
    int fd[2] = {-1, -1};

    if (exec_status_fd && pipe2(fd, O_CLOEXEC) < 0)
        return ff_error_set(err, errno, "start %s: pipe: %s", p->argv[0], strerror(errno));
    *pid = fork();
    if (!*pid) {
        int status = fcntl(exec_status_fd ? fd[1] : p->fds[2], F_DUPFD_CLOEXEC, 3);
        prepare(p, caller, status);
        execvp(p->argv[0], p->argv);
        give_up(status, "run", p->argv[0], errno);
    }
    int code = errno;
    ff_close_fd(&fd[1]);
    if (*pid > 0) {
        setpgid(*pid, *pid); /* it does so too: whoever comes first */
        if (exec_status_fd)
            *exec_status_fd = fd[0];
        return 0;
    }
    ff_close_fd(&fd[0]);
    return ff_error_set(err, code, "start %s: %s", p->argv[0], strerror(code));
}
