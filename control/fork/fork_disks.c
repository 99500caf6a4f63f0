/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_disks.c - what becomes of the parent's disks, in the course of a fork
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      do what disks.c plans: run its steps on this host and in the parent, hand those of
 *              the children to their agents, keep the NBD server.
 * Ownership    the server outlives vmclone, as the children do: its state file is that of an
 *              agent without children, so that --list shows and --kill ends it.
 *              A parent that is a child itself owns its new overlays as it does its first one:
 *              they are written down in its record (overlay_records.c). What is frozen, and what it
 *              stands on, is held open until the children have it open, so that it stays when the
 *              parent ends meanwhile.
 * Failure      until the parent writes to its overlays they are taken back. What the parent does
 *              is asked of it, not concluded from an answer that may have got lost. What a vmclone
 *              leaves that is killed meanwhile is written down (unfinished.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fork_disks.h"
#include "disks.h"
#include "autojson.h"
#include "overlay_records.h"
#include "rundir.h"
#include "spawn.h"
#include "unfinished.h"

#define SERVER_NODE "nbd"
#define STATE_BYTES 1024 /* of the server's state file */
#define END_LIMIT_MS 5000
#define RUN_LIMIT_MS 30000 /* of a program that takes 10 ms */

struct fork_disks {
    const struct fork_disks_options *o;
    struct fork_disks_options options;
    struct qmp *parent;
    struct disks *plan;
    char *cwd;
    json_t *files;              /* of all its images, but for firmware */
    bool prepared, forked;
    struct overlay_owner owner; /* the parent, where it is a child itself */
    struct strv made;          /* its overlays that are there because of this fork */
    int made_fd;               /* the last one of them, until it is filled; -1: none */
    int *held;                  /* what is frozen, until children have it open */
    size_t n_held;
    char *unfinished; /* where it is written down that they are made; NULL: it is over */
    char *server_dir;
    pid_t server;
    uint64_t server_start;
};

/* --- steps --- */

static int run_program(const json_t *words, struct ff_error *why)
{
    struct strv argv = {0};

    strv_add_json(&argv, words);
    int rc = spawn_run(argv.v, RUN_LIMIT_MS, why);
    if (rc)
        ff_error_context(why, "disks");
    strv_free(&argv);
    return rc;
}

static int do_step(struct fork_disks *d, const json_t *step, struct ff_error *why)
{
    const json_t *argv = json_object_get(step, "argv"), *q = json_object_get(step, "qmp");
    const char *file = json_string_value(json_object_get(step, "unlink"));
    const char *fresh = json_string_value(json_object_get(step, "create"));

    if (fresh) {
        ff_close_fd(&d->made_fd);
        int rc = overlay_records_create(fresh, text_of(step, "like"), &d->made_fd, why);
        if (!rc)
            strv_add(&d->made, "%s", fresh);
        return rc;
    }
    if (argv) {
        int rc = overlay_records_fill(d->made_fd, d->made.v[d->made.n - 1], argv, RUN_LIMIT_MS, why);
        if (rc)
            ff_error_context(why, "disks: %s", d->made.v[d->made.n - 1]);
        ff_close_fd(&d->made_fd);
        return rc;
    }
    if (q)
        return qmp_command(d->parent, json_string_value(json_object_get(q, "execute")),
                           json_incref(json_object_get(q, "arguments")), NULL, why);
    /* what this fork did not make is not its own */
    return file && strv_have(&d->made, file) && unlink(file) < 0 && errno != ENOENT ? -errno : 0;
}

/* Nobody has to look for the overlays any more: they are gone, or are the parent's disks */
static void end_unfinished(struct fork_disks *d)
{
    if (d->unfinished)
        rundir_remove(d->unfinished);
    free(d->unfinished);
    d->unfinished = NULL;
}

static void undo(struct fork_disks *d)
{
    FF_AUTO_JSON json_t *steps = disks_undo(d->plan);
    struct ff_error ignored;
    size_t i;
    json_t *step;

    qmp_cancel_by(d->parent, -1); /* Ctrl-C may be why */
    bool done = true;
    json_array_foreach(steps, i, step) { /* also those of what was not done, which QEMU refuses */
        int rc = do_step(d, step, &ignored);
        done &= rc != -ETIMEDOUT && rc != -ECANCELED; /* it may do so, or not, later */
    }
    d->prepared = false;
    if (done)
        end_unfinished(d);
}

/* --- before and after the pause --- */

int fork_disks_new(struct qmp *parent, char *const *argv, const char *cwd,
                   const struct fork_disks_options *o, struct fork_disks **out,
                   struct ff_error *why)
{
    FF_AUTO_JSON json_t *words = strv_json(argv), *block = NULL, *nodes = NULL;
    FF_AUTO_JSON json_t *status = NULL;
    struct fork_disks *d = xcalloc(1, sizeof(*d));

    d->made_fd = -1;
    d->options = *o;
    d->o = &d->options;
    if (!o->scratch)
        d->options.scratch = "/var/tmp";
    d->parent = parent;
    *out = d;
    d->cwd = xstrdup(cwd ? cwd : "/");
    overlay_records_owner(argv, qmp_pid(parent), &d->owner);
    int rc = qmp_command(parent, "query-block", NULL, &block, why);
    if (!rc)
        rc = qmp_command(parent, "query-named-block-nodes", NULL, &nodes, why);
    if (!rc)
        rc = qmp_command(parent, "query-status", NULL, &status, why);
    const struct disks_input in = {.fork_id = o->id,
                                   .argv = words,
                                   .cwd = d->cwd,
                                   .block = block,
                                   .nodes = nodes,
                                   .overlays = o->overlays,
                                   .max_chain = o->max_chain,
                                   .awaited = o->books,
                                   .seeds = true,
                                   .stopped = json_is_false(json_object_get(status, "running"))};
    if (!rc)
        rc = disks_check_held(qmp_pid(parent), d->cwd, block, nodes, why);
    if (!rc)
        d->files = disks_files(d->cwd, block, nodes);
    if (!rc)
        rc = disks_refuse_shared(parent, d->cwd, block, why);
    if (!rc)
        rc = disks_plan(&in, &d->plan, why);
    if (!rc)
        rc = disks_check_overlays(d->plan, o->here ? d->o->scratch : NULL,
                                  disks_room(d->plan, o->children), why);
    return rc;
}

/* Again: what is opened by its name must be what the parent has */
static int check_held(struct fork_disks *d, struct ff_error *why)
{
    FF_AUTO_JSON json_t *block = NULL, *nodes = NULL;
    int rc = qmp_command(d->parent, "query-block", NULL, &block, why);

    if (!rc)
        rc = qmp_command(d->parent, "query-named-block-nodes", NULL, &nodes, why);
    return rc ? rc : disks_check_held(qmp_pid(d->parent), d->cwd, block, nodes, why);
}

static char *base_of(const struct fork_disks *d)
{
    return d->o->rundir ? xstrdup(d->o->rundir) : rundir_base();
}

/* Where the server's pid is written down: found out now, not after the freeze */
static int prepare_server(struct fork_disks *d, struct ff_error *why)
{
    FF_AUTO_FREE char *base = base_of(d);
    int rc = rundir_make(base, d->o->id, SERVER_NODE, &d->server_dir, why);

    return rc ? rc : rundir_reserve_state(d->server_dir, STATE_BYTES, why);
}

/* What stands on an overlay of a child is that child's as well */
static int write_down(const struct fork_disks *d, const json_t *disks, struct ff_error *why)
{
    FF_AUTO_JSON json_t *more = json_array();
    struct strv own = {0};
    size_t i;
    json_t *disk;
    int rc = d->owner.dir ? overlay_records_read(d->owner.dir, d->owner.number, &own, why) : 0;

    if (rc)
        return rc;
    json_array_foreach(disks, i, disk)
        if (strv_have(&own, text_of(disk, "frozen")) &&
            !strv_have(&own, text_of(disk, "parent-overlay")))
            json_array_append(more, json_object_get(disk, "parent-overlay"));
    strv_free(&own);
    return overlay_records_add(d->owner.dir, d->owner.number, more, why);
}

static int begin_unfinished(struct fork_disks *d, struct ff_error *why)
{
    FF_AUTO_JSON json_t *overlays = disks_overlays(d->plan);
    FF_AUTO_FREE char *base = base_of(d);

    return json_array_size(overlays) ? unfinished_begin(base, d->o->id, d->o->parent, d->parent,
                                                        overlays, &d->unfinished, why) : 0;
}

static void hold_images(struct fork_disks *d)
{
    FF_AUTO_JSON json_t *files = disks_chains(d->plan);
    size_t i;
    json_t *file;

    d->held = xcalloc(json_array_size(files) + 1, sizeof(*d->held));
    json_array_foreach(files, i, file) { /* not a URL */
        int fd = open(json_string_value(file), O_PATH | O_CLOEXEC);
        if (fd >= 0)
            d->held[d->n_held++] = fd;
    }
}

void fork_disks_let_go(struct fork_disks *d)
{
    if (!d || !d->n_held)
        return;
    while (d->n_held)
        close(d->held[--d->n_held]);
    FF_AUTO_FREE char *base = base_of(d);
    overlay_records_sweep(base, NULL, NULL); /* of a parent that has ended meanwhile */
}

uint64_t fork_disks_room(const struct fork_disks *d, unsigned children)
{
    return disks_room(d->plan, children);
}

const json_t *fork_disks_images(const struct fork_disks *d)
{
    return d->files;
}

const char *fork_disks_scratch(const struct fork_disks *d)
{
    return d->o->scratch;
}

int fork_disks_prepare(struct fork_disks *d, struct ff_error *why)
{
    FF_AUTO_JSON json_t *steps = disks_prepare(d->plan), *disks = disks_summary(d->plan);
    size_t i;
    json_t *step;
    int rc = d->o->nbd ? prepare_server(d, why) : 0;

    if (!rc)
        rc = write_down(d, disks, why);
    if (!rc)
        rc = begin_unfinished(d, why);
    if (rc)
        return rc;
    hold_images(d);
    json_array_foreach(steps, i, step) {
        d->prepared = true;
        rc = rc ? rc : do_step(d, step, why);
    }
    if (!rc && d->unfinished)
        rc = unfinished_ask(d->unfinished, why);
    if (!rc)
        rc = check_held(d, why);
    if (rc)
        undo(d);
    return rc;
}

json_t *fork_disks_actions(const struct fork_disks *d)
{
    return disks_count(d->plan) ? disks_actions(d->plan) : NULL;
}

void fork_disks_done(struct fork_disks *d, bool forked)
{
    FF_AUTO_JSON json_t *block = NULL;
    struct ff_error ignored;

    if (!d->prepared)
        return;
    d->forked = forked;
    if (!forked) { /* a parent that does not answer keeps its files, and --list shows them */
        qmp_cancel_by(d->parent, -1);
        if (qmp_command(d->parent, "query-block", NULL, &block, &ignored))
            return;
        d->forked = disks_gone_over(d->plan, block);
    }
    if (d->forked)
        end_unfinished(d);
    else
        undo(d);
}

int fork_disks_plan_libvirt(const struct fork_disks *d, bool go_on, bool *stands,
                            struct ff_error *why)
{
    FF_AUTO_JSON json_t *images = disks_awaited(d->plan);

    if (!d->o->books || !json_array_size(images))
        return 0;
    int rc = domain_books_plan(d->o->books, d->o->id, images, go_on, why);
    *stands = !rc;
    return rc;
}

int fork_disks_by_libvirt(struct fork_disks *d, struct ff_error *why)
{
    int rc = domain_books_snapshot(d->o->books, why);

    d->forked |= !rc || rc == -EBUSY;
    return rc;
}

int fork_disks_take_over(struct fork_disks *d, struct ff_error *why)
{
    FF_AUTO_JSON json_t *block = NULL;
    int rc = qmp_command(d->parent, "query-block", NULL, &block, why);

    return rc ? rc : disks_take_over(d->plan, block, why);
}

bool fork_disks_forked(const struct fork_disks *d)
{
    return d && d->forked;
}

int fork_disks_take_back(struct fork_disks *d, struct qmp *parent, int limit_ms,
                          struct ff_error *why)
{
    FF_AUTO_JSON json_t *overlays = disks_overlays(d->plan);
    FF_AUTO_FREE char *base = base_of(d);
    int rc = 0;
    size_t i;
    json_t *o;

    json_array_foreach(overlays, i, o)
        if (!rc)
            rc = overlay_commit_check(o, base, qmp_pid(parent), why);
    if (!rc && d->o->books)
        rc = domain_books_commit(d->o->books, why);
    if (rc)
        return rc;
    json_array_foreach(overlays, i, o) { /* one that was forked again meanwhile QEMU refuses */
        rc = d->o->books ? 0 : overlay_commit(parent, o, limit_ms, why);
        if (rc)
            return rc;
        disks_taken_back(d->plan, text_of(o, "overlay-node"));
    }
    d->forked = false;
    return 0;
}

/* --- the server --- */

static int read_pid(const char *path)
{
    FILE *f = fopen(path, "re");
    int pid = 0;

    if (f && fscanf(f, "%d", &pid) != 1)
        pid = 0;
    if (f)
        fclose(f);
    return pid;
}

/* What is frozen, once more: by what is held open here, since the parent may have ended */
static int check_names(const struct fork_disks *d, struct ff_error *why)
{
    FF_AUTO_JSON json_t *files = disks_chains(d->plan), *nodes = json_array();
    size_t i;
    json_t *file;

    if (!d->n_held)
        return 0;
    json_array_foreach(files, i, file)
        json_array_append_new(nodes, json_pack("{ss sO}", "drv", "file", "file", file));
    return disks_check_held(getpid(), d->cwd, NULL, nodes, why);
}

int fork_disks_serve(struct fork_disks *d, struct ff_error *why)
{
    int rc = disks_check_still(d->plan, why);

    if (!rc)
        rc = check_names(d, why);
    if (rc || !d->o->nbd)
        return rc;
    FF_AUTO_FREE char *pidfile = xprintf("%s/pid", d->server_dir);
    FF_AUTO_JSON json_t *argv = disks_server(d->plan, d->o->nbd, pidfile);
    if (argv && (rc = run_program(argv, why)))
        return rc;
    d->server = argv ? read_pid(pidfile) : 0;
    if (d->server <= 0) {
        rundir_remove(d->server_dir);
        return 0;
    }
    d->server_start = process_start_time(d->server);
    FF_AUTO_JSON json_t *state =
        json_pack("{ss ss ss ss si sI sb s[]}", "id", d->o->id, "node", "nbd (disks)", "parent",
                  d->o->parent ? d->o->parent : "", "image", "disks", "agent", (int)d->server,
                  "start", (json_int_t)d->server_start, "detached", 0, "children");
    rc = rundir_write_state(d->server_dir, state);
    return rc ? ff_error_set(why, -rc, "write %s/" STATE_FILE ": %s", d->server_dir, strerror(-rc))
              : 0;
}

void fork_disks_end_server(struct fork_disks *d)
{
    if (!d || !d->server_dir)
        return;
    if (d->server > 0)
        process_signal(d->server, d->server_start, SIGTERM, END_LIMIT_MS);
    d->server = 0;
    rundir_remove(d->server_dir);
}

/* --- children --- */

static struct clone_place place_of(const struct fork_disks *d, const struct vm_spec *s)
{
    return (struct clone_place){.scratch = d->o->scratch, .nbd = s->here ? NULL : d->o->nbd};
}

json_t *fork_disks_argv(const struct fork_disks *d, const struct vm_spec *s)
{
    const struct clone_place p = place_of(d, s);

    return disks_child_argv(d->plan, &p, s->number);
}

static json_t *commands_in(const json_t *steps)
{
    json_t *commands = json_array(), *step;
    size_t i;

    json_array_foreach(steps, i, step)
        json_array_append(commands, json_object_get(step, "argv"));
    return commands;
}

json_t *fork_disks_before(const struct fork_disks *d, const struct vm_spec *s)
{
    const struct clone_place p = place_of(d, s);
    FF_AUTO_JSON json_t *steps = disks_child_steps(d->plan, &p, s->number);

    return commands_in(steps);
}

json_t *fork_disks_seeds(const struct fork_disks *d, const struct vm_spec *s, const char *program,
                         const struct nocloud *n)
{
    const struct clone_place p = place_of(d, s);
    FF_AUTO_JSON json_t *steps = disks_seed_steps(d->plan, &p, s->number, program, n);

    return commands_in(steps);
}

void fork_disks_try_seeds(struct fork_disks *d, const struct nocloud *n, struct strv *notes)
{
    disks_try_seeds(d->plan, n, notes);
}

json_t *fork_disks_files(const struct fork_disks *d, const struct vm_spec *s)
{
    const struct clone_place p = place_of(d, s);

    return disks_child_files(d->plan, &p, s->number);
}

json_t *fork_disks_map(const struct fork_disks *d, const struct vm_spec *s)
{
    const struct clone_place p = place_of(d, s);

    return disks_child_map(d->plan, &p, s->number);
}

json_t *fork_disks_summary(const struct fork_disks *d)
{
    return d && d->plan && d->forked ? disks_summary(d->plan) : json_array();
}

void fork_disks_free(struct fork_disks *d)
{
    if (!d)
        return;
    fork_disks_let_go(d);
    ff_close_fd(&d->made_fd);
    free(d->held);
    strv_free(&d->made);
    overlay_records_owner_free(&d->owner);
    disks_free(d->plan);
    free(d->unfinished);
    free(d->server_dir);
    free(d->cwd);
    json_decref(d->files);
    free(d);
}
