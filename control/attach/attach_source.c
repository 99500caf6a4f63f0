/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_source.c - the source: from GO on it serves, and its QEMU is held; see attach.h
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>

#include "attach_domain.h"
#include "thread.h"

#define NOT_STARTED_S 60 /* farfork move waits for the end of the QEMU there, and asks lists */

static int serve_there(struct attach *a, struct ff_error *err)
{
    int rc = ff_source_wait_running(a->source, err);

    if (!rc && !a->run_ns)
        attach_runs(a);
    return rc ? rc : ff_source_wait_done(a->source, err);
}

/* No link comes any more: @rc. Who looks after the QEMU there may see only now that it has ended, and that nothing ran in
 * it. A destination that refuses has been told otherwise */
static int await_not_started(struct attach *a, int rc, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + NOT_STARTED_S * 1000000000ull;
    bool may_come = a->monitor && rc != -EREMOTEIO && !ff_source_runs_there(a->source);

    ff_source_pause(a->source); /* a destination that waits for GO is not to wait for it any longer */
    pthread_mutex_lock(&a->lock);
    while (may_come && a->stage == ATTACH_GONE && !*a->not_started && !ff_cond_wait_until(&a->changed, &a->lock, end))
        ;
    a->hears_not_started = false;
    bool is = *a->not_started;
    pthread_mutex_unlock(&a->lock);
    return is ? ff_source_not_started(a->source, a->not_started, err) : rc;
}

/* 0: the destination has everything; -ETIME: it never ran the guest */
static int give_away(struct attach *a, struct ff_error *err)
{
    struct ff_error why = {0};

    int rc = ff_source_go(a->source, err);
    if (rc == -ETIME)
        return rc;
    pthread_mutex_lock(&a->lock);
    a->stage = ATTACH_GONE; /* whatever has failed meanwhile */
    a->hears_not_started = true;
    pthread_mutex_unlock(&a->lock);
    attach_event(a, "go", NULL);
    if (!rc)
        rc = serve_there(a, err);
    while (rc) {
        attach_say_why(a, "paused", err);
        if (!a->reconnect_ms)
            return await_not_started(a, rc == -ETIME ? -EIO : rc, err); /* an adapter's: only a resume knows better */
        rc = ff_source_resume(a->source, NULL, (int)a->reconnect_ms, &why);
        if (rc)
            *err = why;
        if (rc == -ETIME)
            return rc;
        if (rc)
            return await_not_started(a, rc, err);
        attach_event(a, "resumed", NULL);
        rc = serve_there(a, err);
    }
    return 0;
}

/* What has become of a guest that was to go on here: the program's exit code */
static int say_back(struct attach *a, int rc, const struct ff_error *why)
{
    if (!rc)
        attach_event(a, "here", NULL);
    else if (attach_qemu_has_ended(a))
        attach_event(a, "nowhere",
                     json_pack("{s:s}", "reason", "its QEMU here has ended, and not by this move: unless somebody else moved "
                                                  "its guest, that runs nowhere; then start it again from its disks"));
    else
        attach_event(a, "stuck",
                     json_pack("{s:s+}", "reason", why->text, ": the guest did not run elsewhere; see query-status, "
                                                              "and give cont (virsh resume) at its QEMU here"));
    return rc ? ATTACH_EXIT_TROUBLE : ATTACH_EXIT_HERE;
}

/* GO was not sent, or came to nothing there */
static int stay_here(struct attach *a, const struct ff_error *why)
{
    struct ff_error back = {0};

    attach_fail(a, why);
    attach_say_why(a, "failed", why);
    attach_save_back(a);
    if (!a->stopped)
        return ATTACH_EXIT_HERE;
    int rc = a->domain ? attach_domain_take_back(a, &back) : attach_qemu_take_back(a, &back);
    return say_back(a, rc, &back);
}

static int follow_source(struct attach *a)
{
    struct ff_error why = {0};
    int rc = attach_save(a, &why);

    if (!rc)
        rc = attach_set_stage(a, ATTACH_LET_GO, &why);
    if (rc) {
        attach_check(a, &why); /* the first reason, if a thread had one */
        return stay_here(a, &why);
    }
    rc = give_away(a, &why);
    if (rc == -ETIME)
        return stay_here(a, &why);
    if (rc) {
        attach_say_why(a, "lost", &why);
        return ATTACH_EXIT_TROUBLE;
    }
    attach_save_over(a, 0);
    attach_event(a, "complete", NULL);
    return 0;
}

int attach_source_run(const struct attach_options *o)
{
    static struct attach a;
    struct ff_error why = {0};
    int rc = attach_open(&a, o, true, &why), code = ATTACH_EXIT_HERE;

    if (!rc)
        rc = attach_take_address(&a, &why);
    if (rc)
        attach_say_why(&a, "failed", &why);
    else
        attach_begins(&a);
    if (!rc)
        code = follow_source(&a);
    attach_save_over(&a, code);
    if (!rc)
        attach_summary(&a, code);
    attach_last_word(&a, code);
    attach_monitor_end(&a);
    attach_close(&a);
    return code;
}
