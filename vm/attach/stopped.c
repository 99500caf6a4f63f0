/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stopped.c - every thread of a process stands in a stop of ptrace(2); see stopped.h
 */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "cleanup.h"
#include "inject.h"
#include "outside.h"
#include "stopped.h"
#include "thread.h"
#include "xalloc.h"

#define STOP_LIMIT_MS 2000
#define LOOK_NS 20000
#define SOON_NS 300000u /* within which most system calls end */
#define SYSCALL_STOP (SIGTRAP | 0x80) /* PTRACE_O_TRACESYSGOOD */
#define PF_IO_WORKER 0x10u /* include/linux/sched.h */
#define PF_USER_WORKER 0x4000u

struct stopped_thread *stopped_find(struct stopped *s, pid_t tid)
{
    for (unsigned i = 0; i < s->n; i++)
        if (s->threads[i].tid == tid)
            return &s->threads[i];
    return NULL;
}

char stopped_thread_state(pid_t pid, pid_t tid, bool *is_kernels)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/task/%d/stat", (int)pid, (int)tid);
    char line[512] = "", state = 'X';
    unsigned flags = 0;
    FILE *f = fopen(path, "re");

    if (f && fgets(line, sizeof(line), f) && strrchr(line, ')'))
        sscanf(strrchr(line, ')') + 1, " %c %*d %*d %*d %*d %*d %u", &state, &flags);
    if (f)
        fclose(f);
    *is_kernels = flags & (PF_IO_WORKER | PF_USER_WORKER);
    return state;
}

/* A thread that has just ended, or one of the kernel's own */
static bool is_none_of_its_own(pid_t pid, pid_t tid)
{
    bool is_kernels;
    char state = stopped_thread_state(pid, tid, &is_kernels);

    return state == 'X' || state == 'Z' || is_kernels;
}

static int seize_one(struct stopped *s, pid_t tid)
{
    int tracer;
    const int why = -inject_seize(tid, 0, &tracer);

    if (why) {
        if (tid != s->pid && (why == ESRCH || (why == EPERM && is_none_of_its_own(s->pid, tid))))
            return 0;
        int rc = why == EPERM ? outside_may(s->pid, true, &s->why) : 0;
        return rc ? rc : ff_error_set(&s->why, why, "process %d: hold its thread %d: %s%s", (int)s->pid, (int)tid,
                                      strerror(why), why == EPERM ? " (a debugger traces it?)" : "");
    }
    s->threads = xrealloc(s->threads, (s->n + 1) * sizeof(*s->threads));
    s->threads[s->n++] = (struct stopped_thread){.tid = tid};
    ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
    return 0;
}

/* *@n_new: threads that were not seized before */
static int seize_all(struct stopped *s, unsigned *n_new)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/task", (int)s->pid);
    DIR *dir = opendir(path);
    struct dirent *d;
    int rc = 0;

    if (!dir)
        return ff_error_set(&s->why, errno == ENOENT ? ESRCH : errno, "process %d: its threads: %s", (int)s->pid,
                            strerror(errno));
    while (!rc && (d = readdir(dir))) {
        pid_t tid = atoi(d->d_name);

        if (tid <= 0 || stopped_find(s, tid))
            continue;
        rc = seize_one(s, tid);
        *n_new += stopped_find(s, tid) != NULL;
    }
    closedir(dir);
    return rc;
}

/* An end is left to who has to hear it */
static int wait_one(struct stopped *s, struct stopped_thread *t, uint64_t end)
{
    const int how = WSTOPPED | WNOHANG | __WALL | __WNOTHREAD;

    while (!t->is_stopped && !t->has_ended) {
        siginfo_t now = {0};

        if (waitid(P_PID, (id_t)t->tid, &now, how | WEXITED | WNOWAIT) ||
            (now.si_pid && now.si_code != CLD_TRAPPED)) {
            t->has_ended = true;
            if (t->tid != s->pid) /* nobody else hears of it, and it is no end of the process */
                waitid(P_PID, (id_t)t->tid, &now, how | WEXITED);
        } else if (now.si_pid && !waitid(P_PID, (id_t)t->tid, &now, how) && now.si_pid) {
            t->is_stopped = true;
            t->signal = now.si_status >> 8 ? 0 : now.si_status;
        } else if (ff_now_ms() > end) {
            return ff_error_set(&s->why, ETIMEDOUT,
                                "process %d: its thread %d has not stopped within 2 s: it waits for what nothing "
                                "interrupts, a disk perhaps: try again", (int)s->pid, (int)t->tid);
        } else {
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        }
    }
    return t->has_ended && t->tid == s->pid ? ff_error_set(&s->why, ESRCH, "process %d has ended", (int)s->pid) : 0;
}

/* Those too that have been seized before */
static int stop_all(struct stopped *s)
{
    uint64_t end = ff_now_ms() + STOP_LIMIT_MS;
    unsigned n_new;
    int rc;

    do {
        n_new = 0;
        rc = seize_all(s, &n_new);
        for (unsigned i = 0; i < s->n && !rc; i++)
            rc = wait_one(s, &s->threads[i], end);
    } while (!rc && n_new);
    if (rc)
        stopped_end(s);
    return rc;
}

int stopped_begin(struct stopped *s, pid_t pid)
{
    *s = (struct stopped){.pid = pid};
    return stop_all(s);
}

/* --- until a file is closed --- */

struct call { /* that a thread is in */
    bool is_close, is_write;
    int fd;
};

static bool is_its_file(const struct stopped *s, const struct stopped_at *at, int fd)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/fd/%d", (int)s->pid, fd);
    struct stat st;

    return !stat(path, &st) && st.st_dev == at->dev && st.st_ino == at->ino;
}

/* It stands at the begin or the end of a system call. 1: it has closed the file */
static int look_at_call(struct stopped *s, const struct stopped_at *at, const struct stopped_thread *t, struct call *now)
{
    struct __ptrace_syscall_info i = {0};

    if (ptrace(PTRACE_GET_SYSCALL_INFO, t->tid, (void *)sizeof(i), &i) < 0)
        return ff_error_set(&s->why, errno, "process %d: look at its system calls: %s", (int)s->pid, strerror(errno));
    if (i.op == PTRACE_SYSCALL_INFO_ENTRY) {
        const uint64_t nr = i.entry.nr;
        const int fd = (int)i.entry.args[0];

        *now = (struct call){.is_close = nr == SYS_close && is_its_file(s, at, fd),
                             .is_write = nr == SYS_write || nr == SYS_writev, .fd = fd};
        return 0;
    }
    if (i.op == PTRACE_SYSCALL_INFO_EXIT && now->is_write && i.exit.is_error && is_its_file(s, at, now->fd))
        return ff_error_set(&s->why, EIO, "process %d: write its devices' state: %s", (int)s->pid, strerror((int)-i.exit.rval));
    return i.op == PTRACE_SYSCALL_INFO_EXIT && now->is_close;
}

/* It stands in a stop: it goes on to the next one */
static int go_to_next_stop(struct stopped *s, struct stopped_at *at, struct stopped_thread *t)
{
    const int how = WSTOPPED | WNOHANG | __WALL | __WNOTHREAD;
    const uint64_t since = ff_now_ns();

    if (ptrace(PTRACE_SYSCALL, t->tid, NULL, (void *)(intptr_t)t->signal))
        return ff_error_set(&s->why, errno, "process %d: let it go on: %s", (int)s->pid, strerror(errno));
    t->signal = 0;
    t->is_stopped = false;
    while (!atomic_load(&at->over)) {
        siginfo_t now = {0};

        if (waitid(P_PID, (id_t)t->tid, &now, how | WEXITED | WNOWAIT) || (now.si_pid && now.si_code != CLD_TRAPPED)) {
            t->has_ended = true;
            return ff_error_set(&s->why, ESRCH, "process %d has ended", (int)s->pid);
        }
        if (now.si_pid && !waitid(P_PID, (id_t)t->tid, &now, how) && now.si_pid) {
            t->is_stopped = true;
            t->signal = now.si_status >> 8 ? 0 : now.si_status;
            return 0;
        }
        if (ff_now_ns() - since < SOON_NS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    return ff_error_set(&s->why, ECANCELED, "process %d: nobody waits for its stop any more", (int)s->pid);
}

static int go_to_close(struct stopped *s, struct stopped_at *at, struct stopped_thread *t)
{
    struct call now = {0};
    int rc;

    if (ptrace(PTRACE_SETOPTIONS, t->tid, NULL, (void *)(uintptr_t)PTRACE_O_TRACESYSGOOD))
        return ff_error_set(&s->why, errno, "process %d: trace its system calls: %s", (int)s->pid, strerror(errno));
    at->armed(at->opaque);
    while (!(rc = go_to_next_stop(s, at, t))) {
        if (t->signal != SYSCALL_STOP)
            continue;
        t->signal = 0;
        if ((rc = look_at_call(s, at, t, &now)))
            break;
    }
    if (rc > 0 && ptrace(PTRACE_SETOPTIONS, t->tid, NULL, NULL))
        return ff_error_set(&s->why, errno, "process %d: %s", (int)s->pid, strerror(errno));
    return rc > 0 ? 0 : rc;
}

int stopped_begin_at(struct stopped *s, pid_t pid, struct stopped_at *at)
{
    *s = (struct stopped){.pid = pid};
    int rc = seize_one(s, pid);
    if (!rc)
        rc = wait_one(s, &s->threads[0], ff_now_ms() + STOP_LIMIT_MS);
    if (!rc)
        rc = go_to_close(s, at, &s->threads[0]);
    if (rc) {
        stopped_end(s);
        return rc;
    }
    return stop_all(s);
}

void stopped_forget(struct stopped *s)
{
    free(s->threads);
    s->threads = NULL;
    s->n = 0;
}

/* What has not stopped the kernel lets go of when this thread ends */
void stopped_end(struct stopped *s)
{
    for (unsigned i = 0; i < s->n; i++)
        if (s->threads[i].is_stopped)
            ptrace(PTRACE_DETACH, s->threads[i].tid, NULL, (void *)(intptr_t)s->threads[i].signal);
    stopped_forget(s);
}
