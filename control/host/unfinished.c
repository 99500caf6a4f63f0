/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * unfinished.c - overlays of a parent that a vmclone which is killed leaves
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      between the first overlay that vmclone makes for a parent and the freeze nobody else
 *              knows of them: a vmclone that is killed then would leave files, and nodes in the
 *              parent, that nothing lists. So it writes them down first, as a fork of its own.
 * Picture      BASE/.vmclone/ID/_new/state.json    its agent is vmclone itself
 * States       written down    nobody writes to them: they go, once the parent has no node of them
 *              "asked"         vmclone asks the parent to freeze: what came of that only the parent
 *                              knows. One that has ended may have gone over to them, or others
 *                              stand on them: they stay.
 *              The record goes when vmclone knows whose they are. Until vmclone has ended, --list
 *              does not show it.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "in_use.h"
#include "overlay_records.h"
#include "qcow2_header.h"
#include "rundir.h"
#include "unfinished.h"

#define NODE "_new"
#define LIMIT_MS 5000

int unfinished_begin(const char *base, const char *id, const char *path, const struct qmp *parent,
                     const json_t *overlays, char **dir, struct ff_error *why)
{
    pid_t pid = qmp_pid(parent);
    FF_AUTO_JSON json_t *state = json_pack(
        "{ss ss ss ss si sI sb s[] sO si sI sb}", "id", id, "node", NODE, "parent", path, "image",
        "disks", "agent", (int)getpid(), "start", (json_int_t)process_start_time(getpid()),
        "detached", 0, "children", "unfinished", overlays, "parent_pid", (int)pid, "parent_start",
        (json_int_t)process_start_time(pid), "asked", 0);
    FF_AUTO_FREE char *text = json_dumps(state, JSON_INDENT(1));
    int rc = rundir_make_record(base, id, NODE, dir, why);

    if (rc)
        return rc;
    rc = rundir_reserve_state(*dir, strlen(text) + 4096, why); /* and the name of the host */
    if (!rc && (rc = rundir_write_state(*dir, state)))
        ff_error_set(why, -rc,
                     "run directory: write %s/" STATE_FILE
                     ": %s: --kill finds overlays by that file",
                     *dir, strerror(-rc));
    if (rc) {
        rundir_remove(*dir);
        free(*dir);
        *dir = NULL;
    }
    return rc;
}

int unfinished_ask(const char *dir, struct ff_error *why)
{
    FF_AUTO_JSON json_t *state = rundir_read_state(dir);

    json_object_set_new(state, "asked", json_true());
    int rc = state ? rundir_write_state(dir, state) : -ENOENT;
    return rc ? ff_error_set(why, -rc, "run directory: write %s/" STATE_FILE ": %s", dir,
                             strerror(-rc))
              : 0;
}

bool unfinished_is(const json_t *state)
{
    return json_is_array(json_object_get(state, "unfinished"));
}

json_t *unfinished_files(const json_t *state)
{
    json_t *files = json_array(), *o;
    size_t i;

    json_array_foreach(json_object_get(state, "unfinished"), i, o)
        json_array_append(files, json_object_get(o, "overlay"));
    return files;
}

/* Its nodes that are in use QEMU does not delete. What it has open after that are disks of its
 * guest */
static int drop_nodes(const json_t *state, pid_t parent, struct ff_error *why)
{
    struct qmp *q;
    size_t i;
    json_t *o;
    int rc = qmp_connect(text_of(state, "parent"), -1, LIMIT_MS, &q, why);

    if (rc)
        return rc;
    if (qmp_pid(q) != parent)
        rc = ff_error_set(why, ESRCH, "%s is of another process", text_of(state, "parent"));
    json_array_foreach(json_object_get(state, "unfinished"), i, o)
        if (!rc || rc == -EREMOTEIO)
            rc = qmp_command(q, "blockdev-del",
                             json_pack("{ss}", "node-name", text_of(o, "overlay-node")), NULL, why);
    qmp_free(q);
    return rc == -EREMOTEIO ? 0 : rc;
}

/* Whether the record may go */
static bool end_file(const char *file, pid_t user, pid_t parent, bool asked, struct strv *kept)
{
    int rc;

    if (user == USER_UNSEEN || (user != USER_NONE && user != parent)) {
        FF_AUTO_FREE char *who = user == USER_UNSEEN
                                     ? xstrdup("a process that this host or user cannot see")
                                     : xprintf("the process %d", (int)user);
        strv_add(kept, "%s stays: %s needs it", file, who);
        return false;
    }
    if (user == USER_NONE && asked && (!parent || !overlay_is_empty(file)) && !access(file, F_OK)) {
        strv_add(
            kept,
            "%s stays: it may be a disk of the parent's guest%s: remove it if that guest does not "
            "need it",
            file, parent ? "" : ", which has ended");
    } else if (user == USER_NONE && (rc = overlay_records_unlink(file)) < 0) {
        strv_add(kept, "%s stays: cannot remove it: %s", file, strerror(-rc));
        return false;
    }
    return true;
}

void unfinished_end(const char *dir, const json_t *state, struct strv *kept)
{
    FF_AUTO_JSON json_t *list = unfinished_files(state);
    pid_t parent = (pid_t)json_integer_value(json_object_get(state, "parent_pid"));
    struct strv files = {0};
    bool over = true;
    struct ff_error why;
    size_t i;

    enum process_state is = process_look(parent, (uint64_t)json_integer_value(json_object_get(state, "parent_start")));
    if (is == PROCESS_GONE)
        parent = 0;
    strv_add_json(&files, list);
    if (is == PROCESS_UNKNOWN)
        ff_error_set(&why, EPERM, "it cannot be seen from here whether it has ended");
    if (is == PROCESS_UNKNOWN || (parent && drop_nodes(state, parent, &why))) {
        for (i = 0; i < files.n; i++)
            strv_add(kept, "%s stays: the parent (pid %d) may need it: %s", files.v[i], (int)parent,
                     why.text);
        strv_free(&files);
        return;
    }
    pid_t *users = xcalloc(files.n + 1, sizeof(*users));
    file_users(&files, users);
    for (i = 0; i < files.n; i++)
        over &= end_file(files.v[i], users[i], parent,
                         json_is_true(json_object_get(state, "asked")), kept);
    free(users);
    strv_free(&files);
    if (over)
        rundir_remove(dir);
}
