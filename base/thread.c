/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * thread.c - threads of the library: signals blocked, named, their CPU time known
 */
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "thread.h"

#define LATER 5 /* of nice(2): a third of the CPU that another thread gets */
#define SLICE_NS 100000u /* the shortest that the kernel takes */

int ff_thread_start(pthread_t *t, void *(*fn)(void *), void *arg, const char *name,
                    struct ff_error *err)
{
    sigset_t all, old;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(t, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return ff_error_set(err, rc, "thread: start %s: %s", name, strerror(rc));
    pthread_setname_np(*t, name);
    return 0;
}

/* struct sched_attr, as far as version 0 of it goes. Not by setpriority(): QEMU's sandbox forbids that */
struct attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

/* False: somebody has chosen otherwise */
static bool get_attr(struct attr *a)
{
    *a = (struct attr){.size = sizeof(*a)};
    return !syscall(SYS_sched_getattr, 0, a, sizeof(*a), 0) && a->policy == SCHED_OTHER;
}

void ff_thread_soon(void)
{
    struct attr a;

    if (!get_attr(&a))
        return;
    a.runtime = SLICE_NS;
    syscall(SYS_sched_setattr, 0, &a, 0);
}

void ff_thread_later(void)
{
    struct attr a;

    if (!get_attr(&a))
        return;
    a.nice += LATER;
    syscall(SYS_sched_setattr, 0, &a, 0);
}

uint64_t ff_thread_cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void ff_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

int ff_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *lock, uint64_t end_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(end_ns / 1000000000u),
                          .tv_nsec = (long)(end_ns % 1000000000u)};

    return pthread_cond_timedwait(c, lock, &ts);
}
