/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * daemonize.c - the agent in a session of its own, and that session's share of the CPUs
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      launcher -> farfork agent, which waits -> fork: the agent, in a session of its own
 *              A launcher waits for a process in the foreground. It gets one: the first process
 *              ends when the agent detaches, or with the agent's exit code. When the first process
 *              dies, the agent gets SIGTERM.
 * Limits       autogroup gives each session the same share of the CPUs. Children that start get
 *              the share of as many sessions as they are; else a busy parent in a session of its
 *              own has half of the CPUs.
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

#include "agent.h"

int agent_daemonize(int (*run)(void *opaque, int front), void *opaque)
{
    pid_t front = getpid();
    int p[2], status;
    char c;

    if (pipe2(p, O_CLOEXEC) < 0) {
        perror("farfork agent: pipe");
        return 1;
    }
    pid_t pid = fork();
    if (pid < 0) {
        perror("farfork agent: fork");
        return 1;
    }
    if (!pid) {
        close(p[0]);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != front)
            _exit(1);
        setsid();
        exit(run(opaque, p[1]));
    }
    close(p[1]);
    ssize_t n;
    while ((n = read(p[0], &c, 1)) < 0 && errno == EINTR)
        ;
    if (n == 1) /* detached */
        return 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return 1;
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    fprintf(stderr, "farfork agent: SIG%s ended it\n", sigabbrev_np(WTERMSIG(status)));
    return 1;
}

/* 1.25 for each step of nice, as the kernel has it */
static int nice_of(size_t sessions)
{
    double weight = 1;
    int nice = 0;

    for (; weight < (double)sessions && nice > -19; nice--)
        weight *= 1.25;
    return nice;
}

void agent_set_weight(size_t sessions)
{
    static int now;
    int nice = nice_of(sessions), fd;
    char text[8];

    if (nice == now)
        return;
    fd = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC); /* not there: it is not done so */
    if (fd < 0)
        return;
    if (write(fd, text, (size_t)snprintf(text, sizeof(text), "%d", nice)) > 0)
        now = nice;
    close(fd);
}
