/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_dest.c - the destination: READY, GO, and from then on the guest is here; see attach.h
 */
#include <errno.h>

#include "attach_domain.h"
#include "attach_private.h"
#include "farfork-return.h"
#include "thread.h"

#define CONT_LIMIT_MS (24 * 3600 * 1000) /* it may wait for pages, and they for a link */
#define GONE_LIMIT_MS 5000 /* for a source that is to hear that the QEMU has ended */

/* In a thread of its own: it may wait for pages, and they for the next link */
static void *run_cont(void *opaque)
{
    struct attach *a = opaque;
    struct ff_error why = {0};

    int rc = a->domain ? attach_restore_run(a, &why) : attach_qemu_cont(a, CONT_LIMIT_MS, &why);

    pthread_mutex_lock(&a->lock);
    a->cont_done = true;
    a->cont_rc = rc;
    a->cont_why = why;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* With fallback=go the guest stands still meanwhile, and the source may take it back, whenever that is; whoever interrupts
 * has said that the source is dead, or that its QEMU here has ended */
static bool waits_on(struct attach *a, int rc)
{
    return ff_dest_has_fallback(a->dest) && (rc == -EINTR || rc == -ETIMEDOUT) && !attach_check(a, NULL) &&
           !attach_qemu_has_ended(a);
}

static int next_link(struct attach *a, struct ff_error *err)
{
    struct ff_error why = {0};
    int rc;

    if ((err->code == ESRCH || attach_check(a, NULL)) && attach_qemu_has_ended(a))
        return -ESRCH; /* that broke the link */
    attach_say_why(a, "paused", err);
    if (!a->reconnect_ms)
        return -err->code;
    pthread_mutex_lock(&a->lock);
    a->broke = false;
    pthread_mutex_unlock(&a->lock);
    do
        rc = ff_dest_recover(a->dest, (int)a->reconnect_ms, &why);
    while (waits_on(a, rc));
    if (rc)
        *err = why;
    else
        attach_event(a, "resumed", NULL);
    return rc;
}

/* Where only the library notices: the QEMU waits in `cont` for a page, and the page for a link */
static void on_link_broken(void *opaque, const char *reason)
{
    struct attach *a = opaque;

    (void)reason;
    pthread_mutex_lock(&a->lock);
    a->broke = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

/* Under lock, which is open meanwhile: one of the things for which run_guest() waits */
static int start_guest(struct attach *a, bool *started, struct ff_error *err)
{
    int rc = 0;

    if (!*started && !a->no_lease) {
        *started = true;
        a->has_cont = !ff_thread_start(&a->cont_thread, run_cont, a, "attach-cont", err);
        pthread_mutex_unlock(&a->lock);
        if (!a->has_cont)
            run_cont(a);
        pthread_mutex_lock(&a->lock);
    } else if (!a->broke) {
        pthread_cond_wait(&a->changed, &a->lock);
    } else {
        pthread_mutex_unlock(&a->lock);
        ff_error_set(err, EPIPE, "the link broke while the guest was started");
        rc = next_link(a, err);
        pthread_mutex_lock(&a->lock);
    }
    return rc;
}

static int run_guest(struct attach *a, struct ff_error *err)
{
    bool started = false;
    int rc = 0;

    ff_dest_on_break(a->dest, on_link_broken, a);
    pthread_mutex_lock(&a->lock);
    while (!rc && !a->cont_done)
        rc = start_guest(a, &started, err);
    bool done = a->cont_done;
    pthread_mutex_unlock(&a->lock);
    a->cont_waits = !done;
    ff_dest_on_break(a->dest, NULL, NULL);
    if (done && a->has_cont)
        pthread_join(a->cont_thread, NULL);
    if (!rc && a->cont_rc)
        rc = ff_error_set(err, a->cont_why.code, "%s", a->cont_why.text);
    return rc;
}

/* 0: the guest has all of its memory, and runs here, or is paused, as it was there. @refused: it is paused, since its
 * QEMU does not run it */
static int fetch_all(struct attach *a, struct ff_error *refused, struct ff_error *err)
{
    if (a->domain)
        attach_restore_let_go(a);
    attach_replaced_settle(a);
    int rc = a->was_running ? run_guest(a, err) : 0;
    if (!rc && a->replaced && !attach_qemu_is_there(a))
        rc = ff_error_set(err, ESRCH, "its QEMU here has ended");
    const bool has_ended = rc && attach_qemu_has_ended(a);
    if (has_ended)
        attach_replaced_back(a);
    else
        attach_replaced_end(a);
    if (rc && (a->cont_waits || has_ended))
        return rc;
    if (rc) {
        *refused = *err;
        attach_say_why(a, "unconfirmed", refused);
    } else {
        attach_runs(a);
    }
    attach_load_finish(a);
    rc = ff_dest_running(a->dest, err);
    if (!rc)
        rc = ff_dest_wait_done(a->dest, err);
    while (rc && !attach_has_returned(a)) {
        if (a->watch_rc)
            return rc;
        rc = next_link(a, err);
        if (rc)
            return attach_has_returned(a) ? 0 : rc;
        rc = ff_dest_wait_done(a->dest, err);
    }
    return 0; /* or the guest has gone home from here */
}

/* READY was sent: 0: GO has come; -ESTALE: it never will */
static int wait_go(struct attach *a, struct ff_error *err)
{
    int rc = attach_qemu_is_there(a) ? ff_dest_ready(a->dest, err)
                                     : ff_error_set(err, ESRCH, "its QEMU here has ended before it had the guest");

    if (!rc) {
        attach_event(a, "ready", NULL);
        rc = ff_dest_wait_go(a->dest, err);
    }
    if (rc) /* from here on nobody reads GO */
        attach_replaced_back(a);
    if (rc && rc != -EREMOTEIO && rc != -ECANCELED && ff_dest_is_ready(a->dest) && a->reconnect_ms) {
        struct ff_error why = {0};

        attach_say_why(a, "paused", err);
        if (ff_dest_recover(a->dest, (int)a->reconnect_ms, &why) != -ESTALE)
            *err = why;
    }
    if (!rc) {
        attach_set_stage(a, ATTACH_GONE, NULL);
        attach_event(a, "go", NULL);
    }
    return rc;
}

static int follow_dest(struct attach *a)
{
    struct ff_error why = {0};
    int rc = attach_load(a, &why);

    if (!rc)
        rc = attach_replaced_stop(a, &why);
    if (!rc)
        rc = attach_set_stage(a, ATTACH_LET_GO, &why);
    if (rc)
        attach_replaced_back(a);
    if (rc)
        attach_check(a, &why); /* the first reason, if a thread had one */
    else
        rc = wait_go(a, &why);
    if (rc) {
        if (a->dest && !ff_dest_is_ready(a->dest))
            ff_dest_refuse(a->dest, why.text, 0, NULL);
        attach_fail(a, &why);
        attach_say_why(a, "failed", &why);
        attach_restore_drop(a);
        if (a->listens) /* it has nobody else's guest */
            attach_qemu_end(a);
        return ATTACH_EXIT_HERE;
    }
    struct ff_error refused = {0};
    attach_shut_down_begin(a);
    rc = fetch_all(a, &refused, &why);
    attach_shut_down_end(a);
    bool all = !rc;
    if (!all)
        attach_shut_down_look(a);
    if (rc == -EKEYREVOKED) { /* and it has stopped here, for good */
        attach_say_why(a, "failed", &why);
        leash_kill(&a->leash);
        return ATTACH_EXIT_HERE;
    }
    if (all)
        attach_lease_end(a);
    if (rc) {
        if (attach_qemu_has_ended(a)) {
            ff_error_set(&why, ESRCH, "its QEMU here has ended, and the guest with it");
            ff_dest_refuse(a->dest, why.text, GONE_LIMIT_MS, NULL);
        }
        attach_say_why(a, "incomplete", &why);
    } else {
        if (a->domain)
            attach_restore_define(a);
        attach_replaced_link(a);
        attach_event(a, "complete", NULL);
        ff_close_fd(&a->alone); /* nothing of it is left in that QEMU */
        if (refused.code)
            attach_say_why(a, "paused here", &refused);
    }
    if (all && !attach_has_returned(a) && !ff_dest_is_told(a->dest) && a->reconnect_ms) /* the source may not know yet */
        ff_dest_recover(a->dest, (int)a->reconnect_ms, NULL);
    return rc || refused.code ? ATTACH_EXIT_TROUBLE : 0;
}

int attach_dest_run(const struct attach_options *o)
{
    static struct attach a; /* threads may use it until the process has ended */
    int code = attach_run(&a, o, false, follow_dest);

    if (code == ATTACH_EXIT_TROUBLE || a.cont_waits)
        return code; /* the guest runs here: nothing may be freed that it waits for; or a thread uses the monitor still */
    attach_close(&a);
    return code;
}
