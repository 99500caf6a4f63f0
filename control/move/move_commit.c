/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_commit.c - --fallback go: overlays that are committed once the guest is there for good
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      for each overlay of move_fallback.c, by commands that its agent passes on:
 *              block-commit into the image below it; ready: job-complete: the guest has the image;
 *              no job any more, and the guest has it: blockdev-del, unlink
 * Failure      the guest goes on in its overlay, which stays; a note says so.
 * Limits       a commit that gets nowhere for --timeout seconds is left to go on by itself; that of a guest that visits
 *              (visit_disks.c) is canceled then, or by a signal: another return tries again.
 */
#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "move.h"

#define JOB_TURN_MS 50
#define CANCEL_LIMIT_MS 10000

/* The device there that has @file, as query-block says; NULL: none. Of @list */
static const json_t *inserted_with(const json_t *list, const char *file)
{
    json_t *entry;
    size_t i;

    json_array_foreach(list, i, entry) {
        const json_t *in = json_object_get(entry, "inserted");
        if (!strcmp(text_of(json_object_get(in, "image"), "filename"), file))
            return in;
    }
    return NULL;
}

/* The name of the node that has @image; "": none */
static const char *node_with(const json_t *nodes, const json_t *image)
{
    json_t *node;
    size_t i;

    json_array_foreach(nodes, i, node)
        if (!strcmp(text_of(node, "file"), text_of(image, "filename")) &&
            !strcmp(text_of(node, "drv"), text_of(image, "format")))
            return text_of(node, "node-name");
    return "";
}

/* Until there is no job @id any more; -ETIMEDOUT: it gets nowhere */
static int await_job(struct move *m, const char *id, struct ff_error *why)
{
    uint64_t better_ms = ff_now_ms();
    json_int_t was = -1;
    bool told = false;

    for (;;) {
        FF_AUTO_JSON json_t *jobs = NULL;
        int rc = move_ask(m, "query-block-jobs", NULL, &jobs, why);
        const json_t *job = rc ? NULL : json_find(jobs, "device", id);
        if (rc || !job)
            return rc;
        json_int_t at = json_integer_value(json_object_get(job, "offset"));
        if (!told && json_is_true(json_object_get(job, "ready"))) {
            told = true;
            rc = move_ask(m, "job-complete", json_pack("{ss}", "id", id), NULL, why);
            if (rc && !m->visit) /* else it may have been told by an earlier try */
                return rc;
        }
        if (m->visit && m->s.interrupted)
            return ff_error_set(why, ECANCELED, "interrupted");
        if (at != was)
            better_ms = ff_now_ms();
        was = at;
        if (ff_now_ms() > better_ms + m->s.o.timeout_s * 1000ull)
            return ff_error_set(why, ETIMEDOUT, "no progress for %u s", m->s.o.timeout_s);
        session_turn(&m->s, JOB_TURN_MS);
    }
}

/* It may have ended by itself */
static void cancel_job(struct move *m, const char *id)
{
    uint64_t end = ff_now_ms() + CANCEL_LIMIT_MS;
    struct ff_error ignored;

    for (bool told = false; ff_now_ms() < end; session_turn(&m->s, JOB_TURN_MS)) {
        FF_AUTO_JSON json_t *jobs = NULL;
        if (!told)
            told = !move_ask(m, "block-job-cancel", json_pack("{ss sb}", "device", id, "force", true), NULL, &ignored);
        if (!move_ask(m, "query-block-jobs", NULL, &jobs, &ignored) && !json_find(jobs, "device", id))
            return;
    }
}

/* As a return wants it that failed half way: the guest has it by now, or never had */
static int end_commit(struct move *m, const char *id, const char *below, struct ff_error *why)
{
    FF_AUTO_JSON json_t *after = NULL;
    struct ff_error ignored;

    cancel_job(m, id);
    if (!move_ask(m, "query-block", NULL, &after, &ignored) && inserted_with(after, below))
        return 0;
    return -why->code;
}

/* 0: a job commits @node into @base, perhaps since an earlier try of a visit's */
static int begin_commit(struct move *m, const char *id, const char *node, const char *base, struct ff_error *why)
{
    FF_AUTO_JSON json_t *jobs = NULL;

    if (m->visit && !move_ask(m, "query-block-jobs", NULL, &jobs, why) && json_find(jobs, "device", id))
        return 0;
    return move_ask(m, "block-commit", json_pack("{ss ss ss}", "job-id", id, "device", node, "base-node", base), NULL,
                    why);
}

/* The one of the job that commits @node: the same for each try of a visit's */
static char *job_id(const char *node)
{
    char *id = xprintf("farfork-%s", node);

    for (char *c = id; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("-._", *c))
            *c = '_';
    return id;
}

/* QEMU names one with options of its own by all of them */
static bool is_node_of(const json_t *node, const char *file)
{
    const char *name = text_of(node, "file");

    return !strcmp(name, file) || (!strncmp(name, "json:", 5) && strstr(name, file));
}

/* No disk there has @file: nor has a node from here on. A commit that nobody has followed to its end may have left one,
 * and the one below that. QEMU deletes none that is in use */
static bool is_closed(struct move *m, const char *file)
{
    struct ff_error ignored;
    bool found = true;

    for (int try = 0; try < 3 && found; try++) {
        FF_AUTO_JSON json_t *nodes = NULL;
        json_t *node;
        size_t i;
        if (move_ask(m, "query-named-block-nodes", json_pack("{sb}", "flat", true), &nodes, &ignored))
            return false;
        found = false;
        json_array_foreach(nodes, i, node)
            if (is_node_of(node, file)) {
                found = true;
                move_ask(m, "blockdev-del", json_pack("{ss}", "node-name", text_of(node, "node-name")), NULL, &ignored);
            }
    }
    return !found;
}

static int commit_one(struct move *m, const char *file, struct ff_error *why)
{
    FF_AUTO_JSON json_t *block = NULL, *nodes = NULL, *after = NULL;
    struct ff_error ignored;

    int rc = move_ask(m, "query-block", NULL, &block, why);
    if (!rc)
        rc = move_ask(m, "query-named-block-nodes", json_pack("{sb}", "flat", true), &nodes, why);
    if (rc)
        return rc;
    const json_t *in = inserted_with(block, file);
    const json_t *below = json_object_get(json_object_get(in, "image"), "backing-image");
    const char *node = text_of(in, "node-name"), *base = node_with(nodes, below);
    if (m->visit && !in && is_closed(m, file))
        return -EALREADY;
    if (!*node || !*base)
        return ff_error_set(why, ENOENT, "no disk there has it, on an image");
    FF_AUTO_FREE char *id = job_id(node);
    rc = begin_commit(m, id, node, base, why);
    if (!rc)
        rc = await_job(m, id, why);
    if (rc && m->visit)
        rc = end_commit(m, id, text_of(below, "filename"), why);
    if (!rc)
        rc = move_ask(m, "query-block", NULL, &after, why);
    if (!rc && !inserted_with(after, text_of(below, "filename")))
        rc = ff_error_set(why, EIO, "the commit failed: see %s", move_child(m)->log);
    if (!rc) /* one of a -drive has gone with the commit */
        move_ask(m, "blockdev-del", json_pack("{ss}", "node-name", node), NULL, &ignored);
    return rc;
}

int move_commit_one(struct move *m, const char *file, struct ff_error *why)
{
    int rc = commit_one(m, file, why);

    if (rc == -EALREADY) { /* it is the last copy where its disk was taken out of the guest instead */
        session_note(&m->s, "%s: no QEMU on %s has it open any more: it was committed, or its disk was taken out: "
                 "look before you remove it", file, move_host(m)->node->host);
        return 0;
    }
    if (rc || !unlink(file) || errno == ENOENT)
        return rc;
    if (!m->visit)
        return ff_error_set(why, errno, "remove it: %s", strerror(errno));
    session_note(&m->s, "remove %s: %s", file, strerror(errno)); /* in nobody's way */
    return 0;
}

void move_fallback_commit(struct move *m)
{
    struct ff_error why;

    for (size_t i = 0; i < m->made.n; i++) {
        int rc = move_commit_one(m, m->made.v[i], &why);
        if (rc)
            session_note(&m->s,
                     "%s has what the guest has written since it moved: commit it by block-commit "
                     "at the QEMU there, and keep it until then: %s", m->made.v[i], why.text);
    }
}
