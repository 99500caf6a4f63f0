/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * lease.c - fallback=go: for how long the destination may run its guest without hearing more
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a source that keeps the right to take its guest back has to know when nothing runs
 *              here any more, also when it hears nothing.
 *
 * Picture      asks (LEASE n) at t0 ----------> source answers at t1 >= t0
 *              may run until t0 + lease <------ takes back after t1 + lease + margin
 *                   | two thirds have passed: fn(false), the caller stops guest and disks
 *                   | the end: the kernel kills this process, unless fn() has returned
 *              GO answers READY in the same way. One LEASE is open at a time.
 *
 * Threads      "ask" sends, and is the only one who receives over the link from GO until it is
 *              detached. "watch" calls fn(), and touches no link: a send that blocks, and a fn()
 *              that takes its time, do not hold each other up. Any thread may release.
 * Invariants   1. A lease counts from before the question was sent, on a clock that goes on while
 *                 the host sleeps, and that nobody sets.
 *              2. A caller's word that the source is dead holds while there is no link to it.
 *              3. While fn() was told true last, the kernel's timer is set to the lease's end: a
 *                 process that is stopped, or whose threads get no CPU, runs no guest afterwards.
 * Limits       STOP_PART of the lease is what fn() has for stopping. It asks ASK_PARTS times in a
 *              lease, and at least once in ASK_MAX_MS.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "lease.h"
#include "log.h"
#include "thread.h"

#define STOP_PART 3
#define ASK_PARTS 10
#define ASK_MAX_MS 1000

static uint64_t ask_ns(const struct ff_lease *l)
{
    return FF_MIN(l->lease_ns / ASK_PARTS, ASK_MAX_MS * 1000000ull);
}

static uint64_t stop_at(const struct ff_lease *l)
{
    return l->until_ns - FF_MIN(l->until_ns, l->lease_ns / STOP_PART);
}

static bool lease_lasts(const struct ff_lease *l)
{
    return !l->revoked && (l->released || ff_boot_ns() < stop_at(l));
}

static struct timespec as_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
}

/* Under the lock: the kernel ends this process at the lease's end, if the guest may run till then */
static void set_kill(struct ff_lease *l)
{
    struct itimerspec at = {.it_value = as_timespec(l->runs && !l->released ? l->until_ns : 0)};

    timer_settime(l->kill, TIMER_ABSTIME, &at, NULL);
}

static void wake_watch(struct ff_lease *l)
{
    eventfd_write(l->wake_fd, 1);
}

/* --- the watching thread --- */

/* Under the lock, which is open meanwhile */
static void tell_caller(struct ff_lease *l, bool runs)
{
    if (runs) {
        l->runs = true;
        set_kill(l);
    }
    l->telling = true;
    pthread_mutex_unlock(&l->lock);
    ff_log(FF_LOG_WARN, runs ? "destination: heard from the source: the guest may go on"
                             : "destination: nothing heard from the source, which may take its "
                               "guest back: stopping the guest");
    l->fn(l->opaque, runs);
    pthread_mutex_lock(&l->lock);
    l->telling = false;
    if (!runs) {
        l->runs = false;
        set_kill(l);
    }
    pthread_cond_broadcast(&l->changed);
}

static void *watch_main(void *arg)
{
    struct ff_lease *l = arg;
    struct pollfd p[2] = {{.fd = l->timer_fd, .events = POLLIN},
                          {.fd = l->wake_fd, .events = POLLIN}};
    uint64_t n;

    pthread_mutex_lock(&l->lock);
    while (!l->ends) {
        bool may = lease_lasts(l);
        if (l->begun && may != l->runs) {
            tell_caller(l, may);
            continue;
        }
        bool waits = l->begun && l->runs && !l->released;
        struct itimerspec at = {.it_value = as_timespec(waits ? stop_at(l) : 0)};
        timerfd_settime(l->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
        pthread_mutex_unlock(&l->lock);
        poll(p, 2, -1);
        for (unsigned i = 0; i < 2; i++)
            if (p[i].revents && read(p[i].fd, &n, sizeof(n)) < 0)
                continue; /* somebody has set it anew meanwhile */
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* --- the asking thread --- */

static void set_broken(struct ff_lease *l, const char *why)
{
    ff_log(FF_LOG_WARN, "destination: lease: %s", why);
    l->link->ops->shutdown(l->link); /* the pager is to know */
    l->link = NULL;
}

/* Under the lock: the source never takes its guest back. It is asked on: an answer shows that it lives */
static void hear_given(struct ff_lease *l)
{
    l->given = l->released = true;
    l->said_dead = false;
    l->asked_ns = 0;
    set_kill(l);
    wake_watch(l);
}

/* Under the lock, which is open meanwhile: to send may take its time. in_link keeps @link */
static void answer_withdrawn(struct ff_lease *l, struct ff_link *link)
{
    int len = ff_wire_put_empty(l->buf, FF_MSG_WITHDRAWN);

    pthread_mutex_unlock(&l->lock);
    if (!ff_failpoint("dest.withdrawn"))
        link->ops->send(link, l->buf, (uint32_t)len, NULL);
    pthread_mutex_lock(&l->lock);
    if (l->link == link)
        l->link = NULL;
}

/* Under the lock: a message of @len bytes, or its failure, has come over @link */
static void hear_source(struct ff_lease *l, struct ff_link *link, int len, struct ff_error *why)
{
    uint32_t number = 0;
    int type = len < 0 ? len : ff_wire_type(l->buf, (size_t)len, why);

    if (link != l->link)
        return; /* detached */
    if (type == FF_MSG_WITHDRAWN && l->visits) {
        hear_given(l);
        return;
    }
    if (type == FF_MSG_WITHDRAWN) {
        l->released = true;
        set_kill(l);
        wake_watch(l);
        answer_withdrawn(l, link);
        return;
    }
    if (type == FF_MSG_LEASE)
        type = ff_wire_get_lease(l->buf, (size_t)len, &number, why);
    else if (type >= 0)
        type = ff_error_set(why, EPROTO, "%s (want LEASE or WITHDRAWN)",
                            ff_msg_name((unsigned)type));
    if (!type && (number != l->number || !l->asked_ns))
        type = ff_error_set(why, EPROTO, "LEASE %u (want %u)", number, l->number);
    if (!type) {
        l->until_ns = FF_MAX(l->until_ns, l->asked_ns + l->lease_ns);
        l->asked_ns = 0;
        l->said_dead = false;
        set_kill(l);
        wake_watch(l);
    } else if (type != -ETIMEDOUT) {
        set_broken(l, why->text);
    } else if (l->asked_ns && ff_boot_ns() - l->asked_ns > l->silent_ns) {
        set_broken(l, "the source does not answer");
    }
}

/* Under the lock: what to send now; 0: nothing */
static int next_question(struct ff_lease *l)
{
    if (l->asked_ns || ff_boot_ns() < l->again_ns || ff_failpoint("dest.lease"))
        return 0;
    l->asked_ns = ff_boot_ns();
    l->again_ns = l->asked_ns + ask_ns(l);
    return ff_wire_put_lease(l->buf, ++l->number);
}

static void *ask_main(void *arg)
{
    struct ff_lease *l = arg;
    struct ff_error why;

    pthread_mutex_lock(&l->lock);
    while (!l->ends) {
        struct ff_link *link = l->link;
        if (!link) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        int len = next_question(l);
        l->in_link = true;
        pthread_mutex_unlock(&l->lock);
        int rc = len ? link->ops->send(link, l->buf, (uint32_t)len, &why) : 0;
        if (!rc)
            rc = link->ops->recv(link, l->buf, (int)(ask_ns(l) / 1000000u), &why);
        pthread_mutex_lock(&l->lock);
        hear_source(l, link, rc, &why);
        l->in_link = false;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* --- the caller's threads --- */

void ff_lease_init(struct ff_lease *l)
{
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    l->timer_fd = l->wake_fd = -1;
}

/* The kernel spares the first process of a PID namespace the signals of its own timers */
static bool is_unkillable(void)
{
    return getpid() == 1;
}

int ff_lease_take(struct ff_lease *l, uint32_t lease_ms, bool hold, int silent_ms,
                  struct ff_error *err)
{
    if (lease_ms && is_unkillable())
        return ff_error_set(err, ENOTSUP,
                            "the source says fallback=go, and the destination cannot serve it: as "
                            "the first process of its PID namespace it would outlive its lease: "
                            "start it below another, as by an init of its container");
    if (lease_ms && !l->fn)
        return ff_error_set(err, ENOTSUP,
                            "the source says fallback=go, and the destination cannot serve it: %s",
                            *l->refusal ? l->refusal
                                        : "it cannot stop its guest when the source is not heard: "
                                          "leave fallback= out");
    if (hold && !lease_ms)
        return ff_error_set(err, EPROTO, "the source says output=hold, and lets go for good");
    if (hold && !l->holds)
        return ff_error_set(err, ENOTSUP, "the source says output=hold, and the destination cannot "
                            "hold what its guest sends: leave output= out");
    if (hold)
        ff_log(FF_LOG_INFO, "destination: what the guest sends is held until the source lets go");
    l->lease_ns = lease_ms * 1000000ull;
    l->silent_ns = (uint64_t)silent_ms * 1000000u;
    return 0;
}

static int open_clocks(struct ff_lease *l, struct ff_error *err)
{
    struct sigevent dies = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};

    l->timer_fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->timer_fd >= 0 && l->wake_fd >= 0 && !timer_create(CLOCK_BOOTTIME, &dies, &l->kill))
        return 0;
    ff_error_set(err, errno, "destination: lease: timer: %s", strerror(errno));
    ff_close_fd(&l->timer_fd);
    ff_close_fd(&l->wake_fd);
    return -err->code;
}

static void end_lease_threads(struct ff_lease *l, bool both)
{
    pthread_mutex_lock(&l->lock);
    l->ends = true;
    wake_watch(l);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->watch, NULL);
    if (both)
        pthread_join(l->ask, NULL);
    timer_delete(l->kill);
    ff_close_fd(&l->timer_fd);
    ff_close_fd(&l->wake_fd);
}

int ff_lease_prepare(struct ff_lease *l, struct ff_error *err)
{
    struct ff_error why;
    int rc;

    if (!l->lease_ns)
        return 0;
    rc = open_clocks(l, &why);
    if (!rc && (rc = ff_thread_start(&l->watch, watch_main, l, "farfork-lease", &why))) {
        timer_delete(l->kill);
    } else if (!rc) {
        rc = ff_thread_start(&l->ask, ask_main, l, "farfork-ask", &why);
        if (rc)
            end_lease_threads(l, false);
    }
    if (rc)
        return ff_error_set(err, -rc, "%s", why.text);
    l->prepared = true;
    l->ready_ns = ff_boot_ns();
    return 0;
}

static void attach(struct ff_lease *l, struct ff_link *link)
{
    l->link = link;
    l->asked_ns = l->again_ns = 0;
    pthread_cond_broadcast(&l->changed);
}

void ff_lease_begin(struct ff_lease *l, struct ff_link *link)
{
    if (!l->prepared)
        return;
    pthread_mutex_lock(&l->lock);
    l->until_ns = l->ready_ns + l->lease_ns;
    l->runs = lease_lasts(l); /* the caller is about to run it */
    set_kill(l);
    pthread_mutex_unlock(&l->lock);
    if (!l->runs) /* nobody else writes that before begun is set */
        l->fn(l->opaque, false);
    pthread_mutex_lock(&l->lock);
    l->begun = true;
    attach(l, link);
    wake_watch(l);
    pthread_mutex_unlock(&l->lock);
}

/* Under the lock: who was said to be dead is not, and may take the guest back */
static void end_release(struct ff_lease *l, uint64_t since_ns)
{
    l->said_dead = false;
    if (!l->begun || !l->released || l->given)
        return;
    l->released = false;
    l->until_ns = since_ns + l->lease_ns;
    set_kill(l);
    wake_watch(l);
}

void ff_lease_attach(struct ff_lease *l, struct ff_link *link, uint64_t welcomed_ns)
{
    pthread_mutex_lock(&l->lock);
    end_release(l, welcomed_ns);
    if (l->begun)
        attach(l, link);
    pthread_mutex_unlock(&l->lock);
}

/* Under the lock */
static void take_word(struct ff_lease *l)
{
    l->released = true;
    set_kill(l);
    wake_watch(l);
    pthread_cond_broadcast(&l->changed);
}

void ff_lease_detach(struct ff_lease *l)
{
    pthread_mutex_lock(&l->lock);
    if (l->link)
        l->link->ops->shutdown(l->link);
    l->link = NULL;
    while (l->in_link)
        pthread_cond_wait(&l->changed, &l->lock);
    if (l->said_dead)
        take_word(l);
    pthread_mutex_unlock(&l->lock);
}

void ff_lease_settle(struct ff_lease *l)
{
    pthread_mutex_lock(&l->lock);
    while (l->begun && l->released && !l->revoked && (!l->runs || l->telling))
        pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

int ff_lease_wait_withdrawn(struct ff_lease *l, struct ff_error *err)
{
    pthread_mutex_lock(&l->lock);
    while (l->link)
        pthread_cond_wait(&l->changed, &l->lock);
    bool released = l->released;
    pthread_mutex_unlock(&l->lock);
    return released ? 0
                    : ff_error_set(err, ENOTCONN, "the link broke before WITHDRAWN had come: the "
                                                  "source may take its guest back");
}

void ff_lease_release(struct ff_lease *l)
{
    pthread_mutex_lock(&l->lock);
    if (l->prepared && !l->revoked) {
        l->said_dead = true;
        if (!l->link)
            take_word(l);
    }
    pthread_mutex_unlock(&l->lock);
}

bool ff_lease_is_released(struct ff_lease *l)
{
    pthread_mutex_lock(&l->lock);
    bool released = l->released;
    pthread_mutex_unlock(&l->lock);
    return released;
}

bool ff_lease_is_given(struct ff_lease *l)
{
    pthread_mutex_lock(&l->lock);
    bool given = l->given;
    pthread_mutex_unlock(&l->lock);
    return given;
}

void ff_lease_revoke(struct ff_lease *l)
{
    pthread_mutex_lock(&l->lock);
    l->given = false; /* a source that said so does not do this */
    /* for stopping there is what a lease has for that */
    end_release(l, ff_boot_ns() - FF_MIN(ff_boot_ns(), l->lease_ns - l->lease_ns / STOP_PART));
    l->revoked = true;
    if (l->begun)
        wake_watch(l);
    while (l->begun && (l->runs || l->telling))
        pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
}

void ff_lease_free(struct ff_lease *l)
{
    if (l->prepared)
        end_lease_threads(l, true);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->changed);
}
