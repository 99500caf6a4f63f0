/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * daemonize.c - the agent in a session of its own, and that session's share of the CPUs
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      launcher -> farfork agent, which waits -> fork: the agent, in a session of its own
 *              A launcher waits for a process in the foreground. It gets one: the first process
 *              ends when the agent detaches, or, with --stay, as the agent does. When the first process
 *              dies, the agent gets SIGTERM. It is not confined as the agent is: where each child
 *              is to have a scope of its own it asks systemd, which no QEMU may.
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

#include "agent_state.h"

#define BACKGROUND_NICE 10 /* a tenth of a session's share: it goes on where all CPUs are busy */

/* From the agent to the process in front; shorter than PIPE_BUF: in one piece */
struct front_message {
    bool detached; /* else: a child has started */
    unsigned child;
    pid_t pid;
};

static void tell_front(const struct agent *a, const struct front_message *m)
{
    (void)!write(a->front, m, sizeof(*m));
}

void agent_tell_detached(struct agent *a)
{
    tell_front(a, &(struct front_message){.detached = true});
    ff_close_fd(&a->front);
}

void agent_tell_started(const struct agent *a, const struct agent_vm *vm)
{
    if (a->scope == SCOPE_EACH)
        tell_front(a, &(struct front_message){.child = vm->number, .pid = vm->pid});
}

/* An agent that somebody has taken over moves no process of others */
static bool is_child_of(pid_t pid, pid_t parent)
{
    char path[32], line[128];
    int of = 0;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && !of && fgets(line, sizeof(line), f))
        sscanf(line, "PPid: %d", &of);
    if (f)
        fclose(f);
    return of == parent;
}

/* Until the agent, process @pid, has detached (true) or ended */
static bool serve_agent(const struct agent *a, pid_t pid, int fd)
{
    struct front_message m = {0};
    struct ff_error why;
    ssize_t n;

    while ((n = read(fd, &m, sizeof(m))) == sizeof(m) || (n < 0 && errno == EINTR))
        if (n > 0 && m.detached)
            return true;
        else if (n > 0 && is_child_of(m.pid, pid) && agent_take_scope(a, m.child, m.pid, &why))
            fprintf(stderr, "farfork agent: child %u: %s\n", m.child, why.text);
    return false;
}

int agent_daemonize(int (*run)(struct agent *a), struct agent *a)
{
    pid_t front = getpid();
    int p[2], status;

    if (pipe2(p, O_CLOEXEC) < 0) {
        perror("farfork agent: pipe");
        return 1;
    }
    if (a->stay) /* whom the agent leaves alive when it ends is waited for, too */
        prctl(PR_SET_CHILD_SUBREAPER, 1);
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
        if (a->background)
            agent_set_weight(AGENT_BACKGROUND);
        a->front = p[1];
        exit(run(a));
    }
    close(p[1]);
    if (serve_agent(a, pid, p[0]) && !a->stay)
        return 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return 1;
    while (a->stay && (waitpid(-1, NULL, 0) > 0 || errno == EINTR))
        ;
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

    if (sessions == AGENT_BACKGROUND)
        return BACKGROUND_NICE;
    for (; weight < (double)sessions && nice > -19; nice--)
        weight *= 1.25;
    return nice;
}

static bool write_nice(int fd, int nice)
{
    char text[8];

    return write(fd, text, (size_t)snprintf(text, sizeof(text), "%d", nice)) > 0;
}

bool agent_set_weight(size_t sessions)
{
    static int now;
    int nice = nice_of(sessions);

    if (nice == now)
        return true;
    FF_AUTO_CLOSE int fd = open("/proc/self/autogroup", O_WRONLY | O_CLOEXEC);
    if (fd < 0) /* it is not done so */
        return true;
    if (!write_nice(fd, nice)) { /* an ordinary user may have no more than one session has */
        nice = 0;
        if (errno != EPERM || now == nice || !write_nice(fd, nice))
            return errno == EPERM;
    }
    now = nice;
    return true;
}
