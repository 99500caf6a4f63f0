/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hold.c - a process that stands still, and does not outlive who holds it
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      one thread seizes every thread of that process, until a look at them finds no new one,
 *              and then waits for hold_end(): a tracer is a thread
 * Invariants   1. A thread that is stopped makes no new one: when a look finds all of them stopped, all are.
 *              2. PTRACE_O_EXITKILL is set by hold_bind() alone, once all of them are stopped: one that does not
 *                 stop is let go of by the kernel, and must not die of that.
 *              3. Nobody hears of the end of a process while its threads are traced: where it has been killed this
 *                 thread ends, and the kernel tells.
 *              4. A signal that a thread was about to take is delivered when it goes on.
 * Sources      ptrace(2)
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

#include "cleanup.h"
#include "hold.h"
#include "outside.h"
#include "thread.h"
#include "xalloc.h"

#define STOP_LIMIT_MS 2000
#define LOOK_NS 20000
#define END_LOOK_NS 10000000u
#define PF_IO_WORKER 0x10u /* include/linux/sched.h */
#define PF_USER_WORKER 0x4000u

struct held {
    pid_t tid;
    int signal;
    bool is_stopped, has_ended;
};

struct hold {
    pid_t pid;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool tried, over, binds, bound; /* under @lock */
    int signal; /* at the end; likewise */
    int rc;
    struct ff_error why;
    struct held *threads; /* the thread's own */
    unsigned n;
};

static struct held *find_held(struct hold *h, pid_t tid)
{
    for (unsigned i = 0; i < h->n; i++)
        if (h->threads[i].tid == tid)
            return &h->threads[i];
    return NULL;
}

char hold_thread_state(pid_t pid, pid_t tid, bool *is_kernels)
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
    char state = hold_thread_state(pid, tid, &is_kernels);

    return state == 'X' || state == 'Z' || is_kernels;
}

static int seize_one(struct hold *h, pid_t tid)
{
    if (ptrace(PTRACE_SEIZE, tid, NULL, NULL)) {
        const int why = errno;

        if (tid != h->pid && (why == ESRCH || (why == EPERM && is_none_of_its_own(h->pid, tid))))
            return 0;
        int rc = why == EPERM ? outside_may(h->pid, true, &h->why) : 0;
        return rc ? rc : ff_error_set(&h->why, why, "process %d: hold its thread %d: %s%s", (int)h->pid, (int)tid,
                                      strerror(why), why == EPERM ? " (a debugger traces it?)" : "");
    }
    h->threads = xrealloc(h->threads, (h->n + 1) * sizeof(*h->threads));
    h->threads[h->n++] = (struct held){.tid = tid};
    ptrace(PTRACE_INTERRUPT, tid, NULL, NULL);
    return 0;
}

/* *@n_new: threads that were not seized before */
static int seize_all(struct hold *h, unsigned *n_new)
{
    FF_AUTO_FREE char *path = xprintf("/proc/%d/task", (int)h->pid);
    DIR *dir = opendir(path);
    struct dirent *d;
    int rc = 0;

    if (!dir)
        return ff_error_set(&h->why, errno == ENOENT ? ESRCH : errno, "process %d: its threads: %s", (int)h->pid,
                            strerror(errno));
    while (!rc && (d = readdir(dir))) {
        pid_t tid = atoi(d->d_name);

        if (tid <= 0 || find_held(h, tid))
            continue;
        rc = seize_one(h, tid);
        *n_new += find_held(h, tid) != NULL;
    }
    closedir(dir);
    return rc;
}

/* An end is left to who has to hear it */
static int wait_one(struct hold *h, struct held *t, uint64_t end)
{
    const int how = WSTOPPED | WNOHANG | __WALL | __WNOTHREAD;

    while (!t->is_stopped && !t->has_ended) {
        siginfo_t now = {0};

        if (waitid(P_PID, (id_t)t->tid, &now, how | WEXITED | WNOWAIT) ||
            (now.si_pid && now.si_code != CLD_TRAPPED)) {
            t->has_ended = true;
            if (t->tid != h->pid) /* nobody else hears of it, and it is no end of the process */
                waitid(P_PID, (id_t)t->tid, &now, how | WEXITED);
        } else if (now.si_pid && !waitid(P_PID, (id_t)t->tid, &now, how) && now.si_pid) {
            t->is_stopped = true;
            t->signal = now.si_status >> 8 ? 0 : now.si_status;
        } else if (ff_now_ms() > end) {
            return ff_error_set(&h->why, ETIMEDOUT,
                                "process %d: its thread %d has not stopped within 2 s: it waits for what nothing "
                                "interrupts, a disk perhaps: try again", (int)h->pid, (int)t->tid);
        } else {
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        }
    }
    return t->has_ended && t->tid == h->pid ? ff_error_set(&h->why, ESRCH, "process %d has ended", (int)h->pid) : 0;
}

static int hold_all(struct hold *h)
{
    uint64_t end = ff_now_ms() + STOP_LIMIT_MS;
    unsigned n_new;
    int rc;

    do {
        n_new = 0;
        rc = seize_all(h, &n_new);
        for (unsigned i = 0; i < h->n && !rc; i++)
            rc = wait_one(h, &h->threads[i], end);
    } while (!rc && n_new);
    return rc;
}

static int bind_all(struct hold *h)
{
    int rc = 0;

    for (unsigned i = 0; i < h->n && !rc; i++)
        if (h->threads[i].is_stopped &&
            ptrace(PTRACE_SETOPTIONS, h->threads[i].tid, NULL, (void *)(uintptr_t)PTRACE_O_EXITKILL))
            rc = ff_error_set(&h->why, errno, "process %d: hold its thread %d: %s", (int)h->pid,
                              (int)h->threads[i].tid, strerror(errno));
    for (unsigned i = 0; i < h->n && rc; i++) /* all of them, or none */
        ptrace(PTRACE_SETOPTIONS, h->threads[i].tid, NULL, NULL);
    return rc;
}

/* What has not stopped the kernel lets go of when this thread ends */
static void release_all(struct hold *h)
{
    for (unsigned i = 0; i < h->n; i++)
        if (h->threads[i].is_stopped)
            ptrace(PTRACE_DETACH, h->threads[i].tid, NULL, (void *)(intptr_t)h->threads[i].signal);
}

static bool any_has_ended(void)
{
    siginfo_t now = {0};

    return waitid(P_ALL, 0, &now, WEXITED | WNOHANG | WNOWAIT | __WALL | __WNOTHREAD) || now.si_pid;
}

static void *hold_main(void *opaque)
{
    struct hold *h = opaque;
    int rc = hold_all(h);

    if (rc)
        release_all(h);
    pthread_mutex_lock(&h->lock);
    h->rc = rc;
    h->tried = true;
    pthread_cond_broadcast(&h->changed);
    bool ended = false;
    while (!rc && !h->over && !(ended = any_has_ended())) {
        if (h->binds && !h->bound) {
            h->rc = bind_all(h);
            h->bound = true;
            pthread_cond_broadcast(&h->changed);
        }
        ff_cond_wait_until(&h->changed, &h->lock, ff_now_ns() + END_LOOK_NS);
    }
    if (ended && !h->bound)
        h->rc = ff_error_set(&h->why, ESRCH, "process %d has ended", (int)h->pid);
    h->bound = true;
    pthread_cond_broadcast(&h->changed);
    int signal = h->signal;
    pthread_mutex_unlock(&h->lock);
    if (rc || ended)
        return NULL;
    if (signal)
        kill(h->pid, signal); /* held, it has not been reaped: the number is its own */
    if (signal != SIGKILL)
        release_all(h);
    return NULL;
}

static void free_hold(struct hold *h)
{
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    free(h->threads);
    free(h);
}

int hold_begin(pid_t pid, struct hold **out, struct ff_error *err)
{
    struct hold *h = calloc(1, sizeof(*h));

    if (!h)
        return ff_error_set(err, ENOMEM, "hold: out of memory");
    h->pid = pid;
    pthread_mutex_init(&h->lock, NULL);
    ff_cond_init(&h->changed);
    int rc = ff_thread_start(&h->thread, hold_main, h, "hold", err);
    if (rc) {
        free(h);
        return rc;
    }
    pthread_mutex_lock(&h->lock);
    while (!h->tried)
        pthread_cond_wait(&h->changed, &h->lock);
    rc = h->rc;
    pthread_mutex_unlock(&h->lock);
    if (rc) {
        if (err)
            *err = h->why;
        free_hold(h);
        return rc;
    }
    *out = h;
    return 0;
}

int hold_bind(struct hold *h, struct ff_error *err)
{
    pthread_mutex_lock(&h->lock);
    h->binds = true;
    pthread_cond_broadcast(&h->changed);
    while (!h->bound)
        pthread_cond_wait(&h->changed, &h->lock);
    int rc = h->rc;
    if (rc && err)
        *err = h->why;
    pthread_mutex_unlock(&h->lock);
    return rc;
}

void hold_end(struct hold *h, int signal)
{
    pthread_mutex_lock(&h->lock);
    h->over = true;
    h->signal = signal;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    free_hold(h);
}
