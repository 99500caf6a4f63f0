/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * promote_commit.c - --commit: a child's overlays become part of the images below them, once it has its parent's place
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      the parent has ended; all memory is there; nobody else has the image below open, or an overlay on it:
 *              block-commit at the guest's QEMU (move_commit.c), and the overlay's file goes
 * Invariants   1. An image that another process of this host has open is not written: siblings, children of later forks, an NBD
 *                 server. Where children were sent to other hosts nobody here knows, and nothing is committed.
 *              2. QEMU takes the image's write lock, which siblings refuse.
 * Failure      the overlay stays the guest's disk, and a note says why.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "autojson.h"
#include "in_use.h"
#include "move.h"
#include "promote.h"
#include "rundir.h"

#define END_LIMIT_MS 30000
#define END_TURN_MS 10

/* The image that @file is on, as the guest's QEMU has it; "": none */
static const char *image_below(const json_t *block, const char *file)
{
    json_t *b;
    size_t i;

    json_array_foreach(block, i, b) {
        const json_t *image = json_object_get(json_object_get(b, "inserted"), "image");
        if (!strcmp(text_of(image, "filename"), file))
            return text_of(json_object_get(image, "backing-image"), "filename");
    }
    return "";
}

/* 0: nobody but the guest needs @image as it is */
static int check_alone(struct move *m, const char *base, const char *image, const char *file, struct ff_error *why)
{
    FF_AUTO_JSON json_t *elsewhere = rundir_recorded(base);
    FF_AUTO_FREE char *on = overlay_records_on(base, image, file);

    if (*image != '/')
        return ff_error_set(why, ENOTSUP, "no file is below it");
    if (json_array_size(elsewhere))
        return ff_error_set(why, EBUSY, "children of fork %s may be on other hosts", json_string_value(json_array_get(elsewhere, 0)));
    if (on)
        return ff_error_set(why, EBUSY, "%s", on);
    pid_t user = file_user_beside(image, move_child(m)->pid);
    if (user > 0)
        return ff_error_set(why, EBUSY, "process %d has %s open", (int)user, image);
    return user == USER_NONE ? 0 : ff_error_set(why, EBUSY, "whether others have %s open cannot be seen: ask as root", image);
}

static int commit_where_alone(struct move *m, const char *base, const char *file, struct ff_error *why)
{
    FF_AUTO_JSON json_t *block = NULL;
    int rc = move_ask(m, "query-block", NULL, &block, why);

    if (!rc)
        rc = check_alone(m, base, image_below(block, file), file, why);
    return rc ? rc : move_commit_one(m, file, why);
}

void promote_commit(struct move *m)
{
    struct promote *p = m->promote;
    FF_AUTO_FREE char *base = m->s.o.rundir ? xstrdup(m->s.o.rundir) : rundir_base();
    const uint64_t end = ff_now_ms() + END_LIMIT_MS;
    struct strv left = {0};
    struct ff_error why;

    if (!p->commit)
        return;
    while (p->is_here && process_look(p->parent_pid, p->parent_start) != PROCESS_GONE && ff_now_ms() < end)
        poll(NULL, 0, END_TURN_MS);
    while (move_side(m)->state == VM_STARTED && ff_now_ms() < end) /* what it was asked as it ends has no answer */
        session_turn(&m->s, END_TURN_MS);
    for (size_t i = 0; i < p->overlays.n; i++) {
        int rc = p->is_here ? commit_where_alone(m, base, p->overlays.v[i], &why)
                            : ff_error_set(&why, ENOTSUP, "its users on %s cannot be seen from here", p->host);
        if (rc)
            session_note(&m->s, "%s is not committed: %s", p->overlays.v[i], why.text);
        if (rc)
            strv_add(&left, "%s", p->overlays.v[i]);
    }
    p->committed = p->overlays.n > left.n;
    strv_free(&p->overlays);
    p->overlays = left;
}
