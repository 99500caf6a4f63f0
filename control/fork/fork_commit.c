/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_commit.c - one overlay of the parent, committed into the image that it had
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      commit what the parent has written since the freeze into the images that it had, and
 *              remove its overlays.
 * Picture      for each disk: block-commit of its overlay into what was frozen
 *              BLOCK_JOB_READY: both are the same     -> job-complete: the parent uses the image
 *              the job is gone                        -> blockdev-del, unlink
 * Invariants   1. Children read the images that are written to: this is only for a fork of which
 *              nothing is left anywhere, as each agent has said itself.
 *              Children of theirs read them too: an image that anybody but the parent has open, or
 *              that an overlay of any child stands on, is left alone. QEMU's locks do not say it of
 *              a QEMU that waits for its guest, or was told to have none (locking=off).
 *              2. The holder, forked off the parent, has its locks on the images until it has
 *              closed
 *              them: it must have ended.
 *              QEMU aborts when a commit cannot start because somebody may write to the image.
 * Failure      the parent goes on in its overlays, and the reason is said.
 * Limits       what is left to commit must become less within --timeout seconds; Ctrl-C ends it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "fork.h"
#include "in_use.h"
#include "overlay_records.h"

#define LOOK_MS 1000
#define END_LIMIT_MS 10000

struct job {
    struct qmp *qmp;
    const char *id;
    bool ended;          /* nothing is left of it */
    struct ff_error *why;     /* why it failed */
    int rc;
    json_int_t least;    /* bytes that were left to do */
    uint64_t better_ms;  /* when that had become less */
};

static void job_on_event(struct job *j, const json_t *e)
{
    const json_t *data = json_object_get(e, "data");
    const char *name = text_of(e, "event"), *error = text_of(data, "error");

    if (!strcmp(name, "JOB_STATUS_CHANGE") && !strcmp(text_of(data, "id"), j->id))
        j->ended |= !strcmp(text_of(data, "status"), "null");
    else if (strcmp(text_of(data, "device"), j->id))
        return;
    else if (!strcmp(name, "BLOCK_JOB_READY") && !j->rc)
        j->rc = qmp_command(j->qmp, "job-complete", json_pack("{ss}", "id", j->id), NULL, j->why);
    else if (!strcmp(name, "BLOCK_JOB_COMPLETED") && *error && !j->rc)
        j->rc = ff_error_set(j->why, EIO, "%s", error);
    else if (!strcmp(name, "BLOCK_JOB_CANCELLED") && !j->rc)
        j->rc = ff_error_set(j->why, ECANCELED, "the job was cancelled");
}

/* -ETIMEDOUT: it gets nowhere, or the parent says nothing of it */
static int job_query(struct job *j, int limit_ms)
{
    FF_AUTO_JSON json_t *jobs = NULL;
    struct ff_error ignored;
    size_t i;
    json_t *o;

    qmp_command(j->qmp, "query-jobs", NULL, &jobs, &ignored);
    json_array_foreach(jobs, i, o) {
        json_int_t left = json_integer_value(json_object_get(o, "total-progress")) -
                          json_integer_value(json_object_get(o, "current-progress"));
        if (!strcmp(text_of(o, "id"), j->id) && (j->least < 0 || left < j->least)) {
            j->least = left;
            j->better_ms = ff_now_ms();
        }
    }
    if (ff_now_ms() <= j->better_ms + (uint64_t)limit_ms)
        return 0;
    return ff_error_set(j->why, ETIMEDOUT, "the commit made no progress for %d s", limit_ms / 1000);
}

/* Until it has ended, @look_limit_ms without progress, or @end_ms */
static int job_follow(struct job *j, int look_limit_ms, uint64_t end_ms)
{
    uint64_t looked_ms = j->better_ms = ff_now_ms();
    int rc = 0;

    while (!rc && !j->ended && ff_now_ms() < end_ms) {
        FF_AUTO_JSON json_t *e = NULL;
        rc = qmp_wait_event(j->qmp, LOOK_MS, &e, j->why);
        if (e)
            job_on_event(j, e);
        if (!rc && !j->ended && ff_now_ms() >= looked_ms + LOOK_MS) { /* however many events come */
            rc = job_query(j, look_limit_ms);
            looked_ms = ff_now_ms();
        }
    }
    return rc;
}

static void job_cancel(struct job *j)
{
    struct ff_error ignored;

    qmp_cancel_by(j->qmp, -1);
    j->why = &ignored;
    qmp_command(j->qmp, "block-job-cancel", json_pack("{ss sb}", "device", j->id, "force", true),
                NULL, &ignored);
    job_follow(j, END_LIMIT_MS, ff_now_ms() + END_LIMIT_MS);
}

int overlay_commit_check(const json_t *o, const char *base, pid_t parent, struct ff_error *why)
{
    const char *image = text_of(o, "frozen");
    pid_t other = file_user_beside(image, parent);

    if (other == USER_UNSEEN)
        return ff_error_set(why, EBUSY, "%s: a process has it open that this user cannot see",
                            image);
    if (other != USER_NONE)
        return ff_error_set(why, EBUSY, "%s: the process %d has it open", image, (int)other);
    FF_AUTO_FREE char *on = overlay_records_on(base, image, text_of(o, "overlay"));
    return on ? ff_error_set(why, EBUSY, "%s: %s", image, on) : 0;
}

int overlay_commit(struct qmp *q, const json_t *o, int limit_ms, struct ff_error *why)
{
    const char *overlay = text_of(o, "overlay-node"), *file = text_of(o, "overlay");
    FF_AUTO_FREE char *id = xprintf("%s-back", overlay);
    struct job j = {.qmp = q, .id = id, .why = why, .least = -1};
    int rc = qmp_command(q, "block-commit",
                         json_pack("{ss ss ss}", "job-id", id, "device", overlay, "base-node",
                                   text_of(o, "node")), NULL, why);

    if (rc)
        return rc;
    rc = job_follow(&j, limit_ms, UINT64_MAX);
    if (rc)
        job_cancel(&j);
    else if (!(rc = j.rc))
        rc = qmp_command(q, "blockdev-del", json_pack("{ss}", "node-name", overlay), NULL, why);
    if (!rc && unlink(file) < 0)
        rc = ff_error_set(why, errno, "remove %s: %s", file, strerror(errno));
    return rc;
}
