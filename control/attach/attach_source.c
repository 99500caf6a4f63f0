/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_source.c - the source: from GO on it serves, and its QEMU is held; see attach.h
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>

#include "attach_domain.h"
#include "thread.h"

#define END_LOOK_NS 100000000u

static int serve_there(struct attach *a, struct ff_error *err)
{
    int rc = ff_source_wait_running(a->source, err);

    if (!rc && !a->run_ns)
        attach_runs(a);
    if (!rc)
        rc = ff_source_wait_done(a->source, err);
    return attach_has_returned(a) ? 0 : rc;
}

/* No link comes any more: @rc. The QEMU here is held for as long as it lives: so that neither SIGCONT nor what its monitor was
 * told meanwhile makes it run. Who looks after the QEMU there may see only later that nothing ran in it. A destination that
 * refuses has been told otherwise */
static int hold_on(struct attach *a, int rc, struct ff_error *err)
{
    bool may_come = a->monitor && rc != -EREMOTEIO && !ff_source_runs_there(a->source), ended = false;

    ff_source_pause(a->source); /* a destination that waits for GO is not to wait for it any longer */
    attach_say_why(a, "lost", err);
    pthread_mutex_lock(&a->lock);
    a->hears_not_started = may_come;
    a->lost = true;
    while (!(may_come && *a->not_started) && !a->left && !a->returned && !ended) {
        ff_cond_wait_until(&a->changed, &a->lock, ff_now_ns() + END_LOOK_NS);
        pthread_mutex_unlock(&a->lock);
        ended = !attach_qemu_is_there(a);
        pthread_mutex_lock(&a->lock);
    }
    a->hears_not_started = a->lost = false;
    bool is = may_come && *a->not_started, returned = a->returned;
    pthread_mutex_unlock(&a->lock);
    if (returned)
        return 0;
    return is ? ff_source_not_started(a->source, a->not_started, err) : rc;
}

/* What somebody has said of the destination since the link broke */
enum lost { NOTHING, NEVER_RAN, TAKE_BACK };

static enum lost said_of_dest(struct attach *a)
{
    pthread_mutex_lock(&a->lock);
    enum lost is = *a->not_started ? NEVER_RAN : a->takes_back ? TAKE_BACK : NOTHING;
    pthread_mutex_unlock(&a->lock);
    return is;
}

static int take_back(struct attach *a, struct ff_error *err)
{
    int rc = ff_source_take_back(a->source, err);

    if (rc == -EINTR) /* said again */
        return rc;
    if (rc)
        attach_say_why(a, "not-taken-back", err);
    pthread_mutex_lock(&a->lock);
    a->takes_back = false;
    a->take_back = !rc ? NULL : rc == -EPERM ? "fence-failed" : rc == -EBUSY ? "given-up" : "failed";
    pthread_mutex_unlock(&a->lock);
    return rc ? rc : -EKEYREVOKED;
}

/* Somebody may say so yet, whenever that is: until then the guest is held here, or is home again */
static void await_word(struct attach *a)
{
    pthread_mutex_lock(&a->lock);
    while (!*a->not_started && !a->takes_back && !a->returned)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
}

/* With fallback=go: as ff_source_resume(), for as long as it takes; or -EKEYREVOKED: the guest was taken back */
static int find_link(struct attach *a, struct ff_error *err)
{
    bool fenced = false;

    for (;;) {
        enum lost is = said_of_dest(a);

        if (attach_has_returned(a))
            return ff_error_set(err, ECANCELED, "its guest has returned");
        if (is == NEVER_RAN)
            return ff_error_set(err, EINTR, "told that the destination never ran the guest");
        int rc = is == TAKE_BACK ? take_back(a, err)
                 : fenced        ? -EPERM
                                 : ff_source_resume(a->source, NULL, (int)a->reconnect_ms, err);
        fenced |= is == TAKE_BACK && rc == -EPERM; /* nobody connects any more once the fence was tried */
        if (rc == -EINTR && said_of_dest(a) != NOTHING)
            continue;
        if (!rc || rc == -ETIME || rc == -EKEYREVOKED || rc == -ESRCH || rc == -ECANCELED)
            return rc;
        if (is != TAKE_BACK || fenced)
            attach_say_why(a, "paused", err);
        if ((is != TAKE_BACK && rc != -ETIMEDOUT) || fenced) /* else it may be found yet */
            await_word(a);
    }
}

static void drop_take_back(struct attach *a)
{
    pthread_mutex_lock(&a->lock);
    a->takes_back = false;
    a->take_back = NULL;
    pthread_mutex_unlock(&a->lock);
}

/* 0: the destination has everything; -ETIME: it never ran the guest; -EKEYREVOKED: it was taken back */
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
            return hold_on(a, rc == -ETIME ? -EIO : rc, err); /* an adapter's: only a resume knows better */
        rc = ff_address_fallback(a->address) ? find_link(a, &why)
                                             : ff_source_resume(a->source, NULL, (int)a->reconnect_ms, &why);
        if (rc)
            *err = why;
        if (rc == -ETIME || rc == -EKEYREVOKED)
            return rc;
        if (rc)
            return attach_has_returned(a) ? 0 : hold_on(a, rc, err);
        drop_take_back(a);
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

/* GO was not sent, or came to nothing there; or the guest was taken back */
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

/* Switches learn that it is here again */
static int stay_taken_back(struct attach *a)
{
    struct ff_error why = {0};

    ff_error_set(&why, EKEYREVOKED, "the guest was taken back from %s, as it was when it was handed over; what the world has "
                 "seen of it since is forgotten", *a->sent_to ? a->sent_to : a->o->address);
    int code = stay_here(a, &why);
    if (code == ATTACH_EXIT_HERE && a->was_running)
        attach_qmp(a, "announce-self", json_pack("{s:i,s:i,s:i,s:i}", "initial", 50, "max", 550, "rounds", 5, "step", 100),
                   NULL, NULL);
    a->was_taken_back = true;
    return code;
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
    if (rc == -EKEYREVOKED)
        return stay_taken_back(a);
    if (rc)
        return ATTACH_EXIT_TROUBLE;
    attach_tell_returned(a); /* that goes, too, since its QEMU does */
    attach_save_over(a, 0);
    attach_event(a, "complete", NULL);
    return 0;
}

static int follow_to_end(struct attach *a)
{
    int code = follow_source(a);

    attach_save_over(a, code);
    return code;
}

int attach_source_run(const struct attach_options *o)
{
    static struct attach a;
    int code = attach_run(&a, o, true, follow_to_end);

    if (a.was_taken_back) { /* one try, for which nobody waits: its QEMU has others to answer */
        qmp_free(a.q);
        a.q = NULL;
        ff_source_tell_taken_back(a.source, NULL);
    }
    attach_close(&a);
    return code;
}
