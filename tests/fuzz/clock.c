/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * clock.c - time that passes when a fuzzer's input says so
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      the linker (tests.mk) puts the __wrap_ functions in the place of the C library's.
 *              There is one timer that is a descriptor (a lease's). A timer that would kill the
 *              process does nothing: here a thread can be late for lack of CPU alone.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/timerfd.h>

#include "clock.h"

static _Atomic clockid_t ahead_clock;
static _Atomic uint64_t ahead_ns;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct itimerspec set; /* the last one, by the clock that is ahead */
static int set_fd = -1;

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = __real_clock_gettime(id, t);
    uint64_t later = id == atomic_load(&ahead_clock) ? atomic_load(&ahead_ns) : 0;
    uint64_t ns = (uint64_t)t->tv_nsec + later % 1000000000u;

    t->tv_sec += (time_t)(later / 1000000000u + ns / 1000000000u);
    t->tv_nsec = (long)(ns % 1000000000u);
    return rc;
}

int __real_timerfd_settime(int fd, int flags, const struct itimerspec *at, struct itimerspec *old);
int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *at, struct itimerspec *old);

/* Under the lock */
static int set_timer(void)
{
    uint64_t ns = (uint64_t)set.it_value.tv_sec * 1000000000u + (uint64_t)set.it_value.tv_nsec;
    uint64_t host = ns > ahead_ns ? ns - ahead_ns : ns ? 1 : 0;
    struct itimerspec at = {.it_value = {.tv_sec = (time_t)(host / 1000000000u),
                                         .tv_nsec = (long)(host % 1000000000u)}};

    return __real_timerfd_settime(set_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *at, struct itimerspec *old)
{
    (void)flags, (void)old;
    pthread_mutex_lock(&lock);
    set_fd = fd;
    set = *at;
    int rc = set_timer();
    pthread_mutex_unlock(&lock);
    return rc;
}

int __real_timer_create(clockid_t id, struct sigevent *what, timer_t *out);
int __wrap_timer_create(clockid_t id, struct sigevent *what, timer_t *out);
int __wrap_timer_create(clockid_t id, struct sigevent *what, timer_t *out)
{
    struct sigevent nothing = {.sigev_notify = SIGEV_NONE};

    (void)what;
    return __real_timer_create(id, &nothing, out);
}

void clock_advance(clockid_t clock, uint64_t ns)
{
    pthread_mutex_lock(&lock);
    atomic_store(&ahead_clock, clock);
    atomic_fetch_add(&ahead_ns, ns);
    if (set_fd >= 0)
        set_timer();
    pthread_mutex_unlock(&lock);
}

void clock_reset(void)
{
    pthread_mutex_lock(&lock);
    atomic_store(&ahead_ns, 0);
    set_fd = -1;
    pthread_mutex_unlock(&lock);
}
