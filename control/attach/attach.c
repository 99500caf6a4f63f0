/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach.c - what both sides of a move by attaching share: stages, failures, signals, begin and end; see attach.h
 */
#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "attach_domain.h"
#include "rundir.h"
#include "thread.h"

/* --- failures and signals --- */

/* Under lock. Whatever waits, in QMP or in the library, ends */
static void wake_everybody(struct attach *a)
{
    uint64_t one = 1;

    if (a->sock >= 0) /* its QEMU may read no further */
        shutdown(a->sock, SHUT_RDWR);
    if (write(a->stop_fd, &one, sizeof(one)) < 0)
        return; /* it is readable already */
    if (a->source)
        ff_source_cancel(a->source);
    if (a->dest)
        ff_dest_cancel(a->dest);
}

static void fail_locked(struct attach *a, const struct ff_error *why)
{
    if (a->failed)
        return;
    a->failed = true;
    a->why = *why;
    /* from GO on the source's memory is needed whatever becomes of its QEMU */
    if (a->stage < (a->is_source ? ATTACH_LET_GO : ATTACH_GONE))
        wake_everybody(a);
    else if (a->dest) { /* its QEMU has ended: the main thread tells the source */
        ff_dest_interrupt(a->dest);
        ff_dest_pause(a->dest);
    }
    pthread_cond_broadcast(&a->changed);
}

void attach_fail(struct attach *a, const struct ff_error *why)
{
    pthread_mutex_lock(&a->lock);
    if (a->stage != ATTACH_OVER)
        fail_locked(a, why);
    pthread_mutex_unlock(&a->lock);
}

static int check_locked(struct attach *a, struct ff_error *err)
{
    return a->failed ? ff_error_set(err, a->why.code ? a->why.code : EIO, "%s", a->why.text) : 0;
}

int attach_check(struct attach *a, struct ff_error *err)
{
    pthread_mutex_lock(&a->lock);
    int rc = check_locked(a, err);
    pthread_mutex_unlock(&a->lock);
    return rc;
}

int attach_set_stage(struct attach *a, enum attach_stage stage, struct ff_error *err)
{
    pthread_mutex_lock(&a->lock);
    int rc = stage == ATTACH_OVER ? 0 : check_locked(a, err);
    if (!rc)
        a->stage = stage;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return rc;
}

void attach_runs(struct attach *a)
{
    pthread_mutex_lock(&a->lock);
    a->run_ns = ff_now_ns();
    pthread_mutex_unlock(&a->lock);
    attach_set_stage(a, ATTACH_RUNS, NULL);
    attach_event(a, "running", NULL);
}

int attach_interrupt(struct attach *a, struct ff_error *why)
{
    pthread_mutex_lock(&a->lock);
    bool early = a->stage == ATTACH_SETUP;
    if (early)
        fail_locked(a, why);
    pthread_mutex_unlock(&a->lock);
    return early ? 0 : ff_error_set(why, EBUSY, "the guest was let go of");
}

/* A source that only holds its QEMU any more: leave that */
static bool leave_lost(struct attach *a)
{
    pthread_mutex_lock(&a->lock);
    bool lost = a->left = a->lost;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return lost;
}

static void stop_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGUSR1); /* attach_close() */
}

static void *wait_signals(void *opaque)
{
    struct attach *a = opaque;
    struct ff_error why = {0};
    sigset_t set;
    int number;

    stop_signals(&set);
    while (!sigwait(&set, &number)) {
        if (number == SIGUSR1)
            break;
        ff_error_set(&why, EINTR, "attach: ended by signal %d", number);
        if (attach_interrupt(a, &why) && !(number == SIGTERM && leave_lost(a)))
            attach_event(a, "refused",
                         json_pack("{s:s}", "reason", "the guest was let go of: without this program its memory "
                                                      "would be lost; it ends by itself"));
    }
    return NULL;
}

/* --- begin and end --- */

int attach_open(struct attach *a, const struct attach_options *o, bool is_source, struct ff_error *err)
{
    sigset_t set;
    int rc;

    *a = (struct attach){.o = o,
                         .is_source = is_source,
                         .side = is_source ? "source" : "destination",
                         .starter = getppid(),
                         .begin_ns = ff_now_ns(),
                         .alone = -1,
                         .watch = {.fd = -1, .there = -1, .by = -1},
                         .leash = {.pidfd = -1, .kept = -1, .given = -1},
                         .written = {.fd = -1, .pagemap = -1},
                         .status = "none",
                         .sock = -1,
                         .stop_fd = -1};
    pthread_mutex_init(&a->lock, NULL);
    pthread_mutex_init(&a->qmp_lock, NULL);
    ff_cond_init(&a->changed);
    signal(SIGPIPE, SIG_IGN); /* a QEMU that has ended is an error like others */
    stop_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    a->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (a->stop_fd < 0)
        return ff_error_set(err, errno, "attach: eventfd: %s", strerror(errno));
    rc = ff_thread_start(&a->signal_thread, wait_signals, a, "attach-signals", err);
    a->has_signals = !rc;
    return rc;
}

/* Other threads may use the source's engine until they have ended, or it is gone */
static void stop_engine(struct attach *a)
{
    pthread_mutex_lock(&a->lock);
    a->failed = true; /* also after a failure that had to leave the handles alone */
    wake_everybody(a);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    if (a->has_finish)
        pthread_join(a->finish_thread, NULL);
    pthread_mutex_lock(&a->lock);
    struct ff_source *source = a->source;
    a->source = NULL;
    pthread_mutex_unlock(&a->lock);
    if (source)
        ff_source_free(source);
}

void attach_close(struct attach *a)
{
    attach_set_stage(a, ATTACH_OVER, NULL);
    stop_engine(a);
    if (a->has_signals) {
        pthread_kill(a->signal_thread, SIGUSR1);
        pthread_join(a->signal_thread, NULL);
    }
    if (a->has_input)
        pthread_join(a->input_thread, NULL);
    if (a->dest)
        ff_dest_free(a->dest);
    for (unsigned i = 0; a->maps && i < a->n_main; i++) {
        if (a->maps[i].at)
            munmap(a->maps[i].at, a->main[i].len_bytes);
        ff_close_fd(&a->maps[i].fd);
    }
    for (unsigned i = 0; a->small && i < a->n_all; i++)
        free(a->small[i]);
    watch_leave(&a->watch);
    leash_end(&a->leash);
    written_end(&a->written);
    attach_earlier_close(a);
    free(a->bits);
    free(a->maps);
    free(a->small);
    free(a->incoming);
    free(a->main);
    free(a->all);
    free(a->stream.data);
    json_decref(a->overlays);
    qmp_free(a->q);
    attach_domain_free(a);
    ff_address_free(a->address);
    ff_close_fd(&a->sock);
    ff_close_fd(&a->stop_fd);
    if (a->o->rundir)
        rundir_remove(a->o->rundir);
    pthread_mutex_destroy(&a->qmp_lock);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
}
