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
 *              ready: both are the same               -> job-complete: the parent uses the image
 *              concluded                              -> job-dismiss, blockdev-del, unlink
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

#define LOOK_MS 50
#define END_LIMIT_MS 10000

struct job {
    struct qmp *qmp;
    const char *id;
    struct ff_error *why;     /* why it failed */
    json_int_t least;    /* bytes that were left to do */
    uint64_t better_ms;  /* when that had become less */
    bool told;           /* to complete */
};

static json_t *find_job(const json_t *jobs, const char *id)
{
    size_t i;
    json_t *o;

    json_array_foreach(jobs, i, o)
        if (!strcmp(text_of(o, "id"), id))
            return o;
    return NULL;
}

/* It has concluded: QEMU keeps it until it is dismissed, with what it failed for */
static int job_end(struct job *j, const json_t *o)
{
    const char *error = text_of(o, "error");
    int rc = *error ? ff_error_set(j->why, EIO, "%s", error) : 0;
    struct ff_error ignored;
    int gone = qmp_command(j->qmp, "job-dismiss", json_pack("{ss}", "id", j->id), NULL,
                           rc ? &ignored : j->why);

    return rc ? rc : gone;
}

/* 1: it has ended well. Not by events: the process beside the QEMU does not pass them on */
static int job_look(struct job *j, int limit_ms)
{
    FF_AUTO_JSON json_t *jobs = NULL;
    int rc = qmp_command(j->qmp, "query-jobs", NULL, &jobs, j->why);
    json_t *o = find_job(jobs, j->id);
    const char *status = text_of(o, "status");

    if (rc)
        return rc;
    if (!o)
        return ff_error_set(j->why, ECANCELED, "somebody else has ended the commit");
    if (!strcmp(status, "concluded"))
        return (rc = job_end(j, o)) ? rc : 1;
    if (!strcmp(status, "ready") && !j->told) {
        j->told = true;
        return qmp_command(j->qmp, "job-complete", json_pack("{ss}", "id", j->id), NULL, j->why);
    }
    json_int_t left = json_integer_value(json_object_get(o, "total-progress")) -
                      json_integer_value(json_object_get(o, "current-progress"));
    if (j->least < 0 || left < j->least) {
        j->least = left;
        j->better_ms = ff_now_ms();
    }
    if (ff_now_ms() <= j->better_ms + (uint64_t)limit_ms)
        return 0;
    return ff_error_set(j->why, ETIMEDOUT, "the commit made no progress for %d s", limit_ms / 1000);
}

/* Until it has ended, or for @limit_ms without progress */
static int job_follow(struct job *j, int limit_ms)
{
    int rc = 0;

    j->better_ms = ff_now_ms();
    while (!rc && !(rc = job_look(j, limit_ms))) {
        FF_AUTO_JSON json_t *e = NULL;
        rc = qmp_wait_event(j->qmp, LOOK_MS, &e, j->why);
    }
    return rc < 0 ? rc : 0;
}

static void job_cancel(struct job *j)
{
    struct ff_error ignored;

    qmp_cancel_by(j->qmp, -1);
    j->why = &ignored;
    j->told = true;
    qmp_command(j->qmp, "block-job-cancel", json_pack("{ss sb}", "device", j->id, "force", true),
                NULL, &ignored);
    job_follow(j, END_LIMIT_MS);
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
                         json_pack("{ss ss ss sb}", "job-id", id, "device", overlay, "base-node",
                                   text_of(o, "node"), "auto-dismiss", false), NULL, why);

    if (rc)
        return rc;
    rc = job_follow(&j, limit_ms);
    if (rc)
        job_cancel(&j);
    else
        rc = qmp_command(q, "blockdev-del", json_pack("{ss}", "node-name", overlay), NULL, why);
    if (!rc && unlink(file) < 0)
        rc = ff_error_set(why, errno, "remove %s: %s", file, strerror(errno));
    return rc;
}
