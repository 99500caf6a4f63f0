/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hold.c - a process that stands still, and does not outlive who holds it
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      one thread stops every thread of that process (stopped.h), and then waits for hold_end()
 * Invariants   1. PTRACE_O_EXITKILL is set by hold_bind() alone, once all of them are stopped: one that does not
 *                 stop is let go of by the kernel, and must not die of that.
 *              2. Nobody hears of the end of a process while its threads are traced: where it has been killed this
 *                 thread ends, and the kernel tells.
 * Sources      ptrace(2)
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "hold.h"
#include "inject.h"
#include "stopped.h"
#include "thread.h"

#define END_LOOK_NS 10000000u

struct hold {
    pid_t pid;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool tried, armed, over, binds, bound; /* under @lock */
    bool closes, gone;                     /* likewise: names, once; the thread has */
    int signal; /* at the end; likewise */
    int rc;
    struct ff_error why;
    struct stopped s; /* the thread's own */
    struct stopped_at at;
    bool is_at;
};

static int bind_all(struct hold *h)
{
    int rc = 0;

    for (unsigned i = 0; i < h->s.n && !rc; i++)
        if (h->s.threads[i].is_stopped &&
            ptrace(PTRACE_SETOPTIONS, h->s.threads[i].tid, NULL, (void *)(uintptr_t)PTRACE_O_EXITKILL))
            rc = ff_error_set(&h->why, errno, "process %d: hold its thread %d: %s", (int)h->pid,
                              (int)h->s.threads[i].tid, strerror(errno));
    for (unsigned i = 0; i < h->s.n && rc; i++) /* all of them, or none */
        ptrace(PTRACE_SETOPTIONS, h->s.threads[i].tid, NULL, NULL);
    return rc;
}

/* --- what another process is to have --- */

static bool is_name(const char *to)
{
    static const char *const names[] = {"socket:[", "/dev/net/tun", "/dev/tap", "/dev/vhost-"};

    for (size_t i = 0; i < FF_ARRAY_LEN(names); i++)
        if (!strncmp(to, names[i], strlen(names[i])))
            return true;
    return false;
}

static int close_names_there(struct inject *in, void *opaque, struct ff_error *err)
{
    const struct hold *h = opaque;
    char path[64], to[256];
    struct dirent *e;
    int rc = 0;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)h->pid);
    DIR *d = opendir(path);
    if (!d)
        return ff_error_set(err, errno, "%s: %s", path, strerror(errno));
    while (!rc && (e = readdir(d))) {
        ssize_t len = readlinkat(dirfd(d), e->d_name, to, sizeof(to) - 1);
        const uint64_t args[INJECT_ARGS] = {strtoul(e->d_name, NULL, 10)};
        int64_t got;

        to[FF_MAX(len, 0)] = '\0';
        if (is_name(to))
            rc = inject_call(in, SYS_close, args, &got, err);
    }
    closedir(d);
    return rc;
}

static int close_names(struct hold *h)
{
    const struct inject_how how = {.options = PTRACE_O_EXITKILL};
    struct stopped_thread *main_thread = stopped_find(&h->s, h->pid);

    return main_thread && main_thread->is_stopped
               ? inject_stopped(h->pid, &how, &main_thread->signal, close_names_there, h, &h->why)
               : ff_error_set(&h->why, ESRCH, "process %d has ended", (int)h->pid);
}

static bool any_has_ended(void)
{
    siginfo_t now = {0};

    return waitid(P_ALL, 0, &now, WEXITED | WNOHANG | WNOWAIT | __WALL | __WNOTHREAD) || now.si_pid;
}

static void *hold_main(void *opaque)
{
    struct hold *h = opaque;
    int rc = h->is_at ? stopped_begin_at(&h->s, h->pid, &h->at) : stopped_begin(&h->s, h->pid);

    pthread_mutex_lock(&h->lock);
    if (rc)
        h->why = h->s.why;
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
        if (h->closes) {
            h->rc = close_names(h);
            h->closes = false;
            pthread_cond_broadcast(&h->changed);
        }
        ff_cond_wait_until(&h->changed, &h->lock, ff_now_ns() + END_LOOK_NS);
    }
    if (ended && !h->bound)
        h->rc = ff_error_set(&h->why, ESRCH, "process %d has ended", (int)h->pid);
    h->bound = h->gone = true;
    pthread_cond_broadcast(&h->changed);
    int signal = h->signal;
    pthread_mutex_unlock(&h->lock);
    if (rc || ended)
        return NULL;
    if (signal)
        kill(h->pid, signal); /* held, it has not been reaped: the number is its own */
    if (signal != SIGKILL)
        stopped_end(&h->s);
    return NULL;
}

static void hold_armed(void *opaque)
{
    struct hold *h = opaque;

    pthread_mutex_lock(&h->lock);
    h->armed = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static void free_hold(struct hold *h)
{
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    stopped_forget(&h->s);
    free(h);
}

/* @file: NULL: at once */
static int start_hold(pid_t pid, const struct stat *file, struct hold **out, struct ff_error *err)
{
    struct hold *h = calloc(1, sizeof(*h));

    if (!h)
        return ff_error_set(err, ENOMEM, "hold: out of memory");
    h->pid = pid;
    h->is_at = file;
    if (file)
        h->at = (struct stopped_at){.dev = file->st_dev, .ino = file->st_ino, .armed = hold_armed, .opaque = h};
    pthread_mutex_init(&h->lock, NULL);
    ff_cond_init(&h->changed);
    int rc = ff_thread_start(&h->thread, hold_main, h, "hold", err);
    if (rc) {
        free(h);
        return rc;
    }
    pthread_mutex_lock(&h->lock);
    while (!h->tried && !h->armed)
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

int hold_begin(pid_t pid, struct hold **out, struct ff_error *err)
{
    return start_hold(pid, NULL, out, err);
}

int hold_begin_at(pid_t pid, const struct stat *file, struct hold **out, struct ff_error *err)
{
    return start_hold(pid, file, out, err);
}

int hold_await(struct hold *h, int limit_ms, struct ff_error *err)
{
    const uint64_t end = ff_now_ns() + 1000000ull * (uint64_t)limit_ms;

    pthread_mutex_lock(&h->lock);
    while (!h->tried && ff_now_ns() < end)
        ff_cond_wait_until(&h->changed, &h->lock, end);
    const int rc = h->tried ? h->rc : -EAGAIN;
    if (h->tried && rc && err)
        *err = h->why;
    pthread_mutex_unlock(&h->lock);
    return rc;
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

int hold_let_go_of_names(struct hold *h, struct ff_error *err)
{
    pthread_mutex_lock(&h->lock);
    h->closes = true;
    pthread_cond_broadcast(&h->changed);
    while (h->closes && !h->gone)
        pthread_cond_wait(&h->changed, &h->lock);
    int rc = h->closes ? ff_error_set(err, ESRCH, "process %d has ended", (int)h->pid) : h->rc;
    if (rc && !h->closes && err)
        *err = h->why;
    pthread_mutex_unlock(&h->lock);
    return rc;
}

void hold_end(struct hold *h, int signal)
{
    atomic_store(&h->at.over, true);
    pthread_mutex_lock(&h->lock);
    h->over = true;
    h->signal = signal;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    free_hold(h);
}
