/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * attach_replace.c - the destination of a guest that takes another one's place on this host: that one stands still, and ends
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      look     its monitor is ours; nobody else attaches to it (alone.h)
 *              (the guest that comes is loaded; both of them run, or stand where they ran)
 *              stop     `stop`, all threads held: before READY, and so before the other side's GO
 *              GO       -> `cont` here, then SIGKILL;  no GO, ever, or the QEMU here has ended -> its threads go on, `cont`
 *              all is here: its QMP socket becomes a symbolic link to this QEMU's
 * Invariants   1. From READY to GO neither runs. Nothing of it was touched until GO: it goes on as it was.
 *              2. This process alone hears GO. If it is killed before, the kernel lets the held threads go, and the guest is
 *                 paused, not ended; who started all this says `cont` once it is known that no GO came.
 *              3. It is held until the guest runs here: where the QEMU here has ended by then, one of the two is left, and goes on.
 *              4. `cont` is said to it where it is paused, as it was left, and nowhere else.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "attach_private.h"
#include "autojson.h"
#include "failpoint.h"
#include "rundir.h"
#include "taps.h"

static const char in_running[] = "running", in_paused[] = "paused";

struct attach_replaced {
    struct qmp *q;
    pid_t pid;
    int alone;
    bool was_running, stopped;
    struct tap_pair *taps; /* that the QEMU here gets */
    unsigned n_taps;
    struct hold *hold;
};

/* Its guest's state, one of these two */
static int ask_replaced(struct attach_replaced *r, const char **status, struct ff_error *err)
{
    FF_AUTO_JSON json_t *s = NULL;
    int rc = qmp_command(r->q, "query-status", NULL, &s, err);

    if (rc)
        return rc;
    *status = !strcmp(text_of(s, "status"), in_running) ? in_running : in_paused;
    return !strcmp(text_of(s, "status"), *status)
               ? 0 : ff_error_set(err, EBUSY, "its guest is %s (permitted: running, paused)", text_of(s, "status"));
}

static int look_at_replaced(struct attach *a, struct attach_replaced *r, struct ff_error *err)
{
    const char *status;
    int rc = qmp_connect(a->o->replaces, a->stop_fd, ATTACH_QMP_LIMIT_MS, &r->q, err);

    if (rc)
        return rc;
    r->pid = qmp_pid(r->q);
    if (r->pid != a->o->replaces_pid || process_start_time(r->pid) != a->o->replaces_start)
        return ff_error_set(err, ESTALE, "process %d answers there by now (permitted: %d, as it was started): its place was taken", (int)r->pid,
                            (int)a->o->replaces_pid);
    rc = outside_may(r->pid, true, err);
    if (!rc)
        rc = alone_begin(r->pid, &r->alone, err);
    if (!rc)
        rc = ask_replaced(r, &status, err);
    r->was_running = !rc && status == in_running;
    return rc;
}

int attach_replaced_look(struct attach *a, struct ff_error *err)
{
    if (!a->o->replaces)
        return 0;
    a->replaced = calloc(1, sizeof(*a->replaced));
    if (!a->replaced)
        return ff_error_set(err, ENOMEM, "attach: out of memory");
    a->replaced->alone = -1;
    struct attach_replaced *r = a->replaced;
    int rc = look_at_replaced(a, r, err);
    pthread_mutex_lock(&a->qmp_lock);
    if (!rc)
        rc = taps_find(r->q, r->pid, a->q, a->pid, &r->taps, &r->n_taps, err);
    pthread_mutex_unlock(&a->qmp_lock);
    return rc ? ff_error_context(err, "--replaces %s", a->o->replaces) : 0;
}

/* Whoever let it run, stopped it or moved it since it was looked at does not want its end */
static int stop_replaced(struct attach_replaced *r, struct ff_error *err)
{
    const char *status;
    int rc = ask_replaced(r, &status, err);

    if (!rc && (status == in_running) != r->was_running)
        rc = ff_error_set(err, EBUSY, "its guest is %s by now: somebody else changed that", status);
    if (rc)
        return rc;
    r->stopped = r->was_running; /* also where its answer is lost */
    rc = r->stopped ? qmp_command(r->q, "stop", NULL, NULL, err) : 0;
    if (!rc)
        rc = ask_replaced(r, &status, err);
    return rc || status == in_paused ? rc : ff_error_set(err, EBUSY, "its guest runs on after `stop`");
}

int attach_replaced_stop(struct attach *a, struct ff_error *err)
{
    struct attach_replaced *r = a->replaced;

    if (!r)
        return 0;
    int rc = stop_replaced(r, err);
    if (!rc)
        rc = hold_begin(r->pid, &r->hold, err);
    if (!rc)
        rc = taps_pass(a->pid, r->taps, r->n_taps, err);
    if (!rc && ff_failpoint("attach.replaced"))
        rc = ff_error_set(err, EIO, "attach: injected");
    if (!rc)
        attach_event(a, "replaced-stopped", json_pack("{s:i}", "pid", (int)r->pid));
    return rc ? ff_error_context(err, "--replaces %s", a->o->replaces) : 0;
}

static void free_replaced(struct attach *a)
{
    ff_close_fd(&a->replaced->alone);
    taps_free(a->replaced->taps, a->replaced->n_taps);
    qmp_free(a->replaced->q);
    free(a->replaced);
    a->replaced = NULL;
}

void attach_replaced_settle(struct attach *a)
{
    struct ff_error why = {0};

    if (a->replaced && taps_settle(a->replaced->taps, a->replaced->n_taps, &why))
        attach_say_why(a, "network", &why);
}

void attach_replaced_end(struct attach *a)
{
    if (!a->replaced)
        return;
    hold_end(a->replaced->hold, SIGKILL);
    attach_event(a, "replaced-ended", json_pack("{s:i}", "pid", (int)a->replaced->pid));
    free_replaced(a);
}

void attach_replaced_link(struct attach *a)
{
    char made[PATH_MAX];
    struct ff_error why;

    if (!a->o->replaces)
        return;
    snprintf(made, sizeof(made), "%s.%d", a->o->replaces, (int)getpid());
    if (!symlink(a->o->qmp, made) && !rename(made, a->o->replaces))
        return;
    ff_error_set(&why, errno, "%s does not lead to %s: %s", a->o->replaces, a->o->qmp, strerror(errno));
    attach_say_why(a, "not-linked", &why);
    unlink(made);
}

void attach_replaced_back(struct attach *a)
{
    struct attach_replaced *r = a->replaced;
    struct ff_error why = {0};
    const char *status = in_paused;
    int rc = 0;

    if (!r)
        return;
    taps_unsettle(r->taps, r->n_taps);
    if (r->hold)
        hold_end(r->hold, 0);
    if (r->q)
        qmp_cancel_by(r->q, -1);
    if (r->stopped)
        rc = ask_replaced(r, &status, &why); /* in any other state it is somebody else's */
    if (!rc && r->stopped && status == in_paused)
        rc = qmp_command(r->q, "cont", NULL, NULL, &why);
    if (rc)
        attach_say_why(a, "replaced-stuck", &why);
    else
        attach_event(a, "replaced-back", json_pack("{s:i}", "pid", (int)r->pid));
    free_replaced(a);
}
