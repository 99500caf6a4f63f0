/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * evacuate_find.c - which guests are here, and which of them this user may move
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      find this user's QEMUs. Other users' are only listed: any program can have QEMU's name.
 *              Try the QMP sockets on each command line, and in its -readconfig, until one
 *              answers.
 * Limits       MONITORS_MAX sockets of QMP_LIMIT_MS each.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "config_file.h"
#include "evacuate_private.h"
#include "host_facts.h"
#include "process_argv.h"
#include "qemu_opts.h"
#include "qmp.h"
#include "rundir.h"

#define QMP_LIMIT_MS 2000
#define MONITORS_MAX 4 /* that are tried, of one QEMU: a guest has one or two */

/* Relative to where QEMU was started */
static char *absolute(pid_t pid, const char *path)
{
    FF_AUTO_FREE char *cwd = xprintf("/proc/%d/cwd", (int)pid);
    char folder[4096];
    ssize_t n = *path == '/' ? -1 : readlink(cwd, folder, sizeof(folder) - 1);

    return n < 0 ? xstrdup(path) : xprintf("%.*s/%s", (int)n, folder, path);
}

/* Of -qmp unix:PATH, and of the chardev of a monitor with mode=control */
static char *monitor_path(const struct strv *words, size_t i)
{
    const char *value = words->v[i + 1];

    if ((qemu_option_is(words->v[i], "qmp") || qemu_option_is(words->v[i], "qmp-pretty")) &&
        !strncmp(value, "unix:", 5))
        return qemu_opts_get_first(value + 5, "path");
    FF_AUTO_FREE char *mode = qemu_option_is(words->v[i], "mon") ? qemu_opts_get(value, "mode") : NULL;
    FF_AUTO_FREE char *id = mode && !strcmp(mode, "control") ? qemu_opts_get_first(value, "chardev") : NULL;
    for (size_t k = 1; id && k + 1 < words->n; k++) {
        FF_AUTO_FREE char *own = qemu_option_is(words->v[k], "chardev") ? qemu_opts_get(words->v[k + 1], "id") : NULL;
        if (own && !strcmp(own, id))
            return qemu_opts_get(words->v[k + 1], "path");
    }
    return NULL;
}

/* Why one that answers is not moved; NULL: it is. *@gone: there is no guest in it any more */
static const char *why_not(const char *status, const char *migration, bool *gone)
{
    *gone = !strcmp(status, "postmigrate") && !strcmp(migration, "completed");
    return !strcmp(status, "inmigrate")     ? "it waits for a guest, or one is arriving"
           : !strcmp(status, "postmigrate") ? "its guest has moved, and its memory may still come from here"
           : !strcmp(status, "shutdown")    ? "its guest has shut itself down"
                                            : NULL;
}

/* Whether it answers at that socket; then what of it matters */
static bool answers(struct guest *g, const char *path, bool *gone)
{
    FF_AUTO_JSON json_t *status = NULL, *memory = NULL, *migration = NULL;
    struct ff_error why;
    struct qmp *q;

    if (qmp_connect(path, -1, QMP_LIMIT_MS, &q, &why))
        return false;
    int rc = qmp_pid(q) == g->pid ? qmp_command(q, "query-status", NULL, &status, &why) : -1;
    if (!rc)
        rc = qmp_command(q, "query-memory-size-summary", NULL, &memory, &why);
    if (!rc)
        rc = qmp_command(q, "query-migrate", NULL, &migration, &why);
    qmp_free(q);
    const char *reason = rc ? NULL : why_not(text_of(status, "status"), text_of(migration, "status"), gone);
    if (reason) {
        g->state = STAYS;
        g->reason = xstrdup(reason);
    }
    g->bytes = rc ? 0 : (uint64_t)(json_integer_value(json_object_get(memory, "base-memory")) +
                                   json_integer_value(json_object_get(memory, "plugged-memory")));
    return !rc;
}

/* False: no guest is in it */
static bool find_monitor(struct guest *g)
{
    struct strv words = {0};
    struct ff_error why;
    bool gone = false;

    if (process_argv(g->pid, &words, &why))
        return false;
    FF_AUTO_FREE char *cwd = absolute(g->pid, ".");
    config_file_look(&words, cwd);
    for (size_t i = 1, tried = 0; i + 1 < words.n && !g->qmp && tried < MONITORS_MAX; i++) {
        FF_AUTO_FREE char *path = monitor_path(&words, i);
        FF_AUTO_FREE char *whole = path ? absolute(g->pid, path) : NULL;
        tried += whole != NULL;
        if (whole && answers(g, whole, &gone))
            g->qmp = xstrdup(whole);
    }
    strv_free(&words);
    return !gone;
}

/* Another user moves his guests himself: whatever that process is, it cannot keep this evacuation from its end */
static bool is_of_others(struct evacuation *e, const json_t *f)
{
    if (json_integer_value(json_object_get(f, "uid")) == (json_int_t)geteuid())
        return false;
    json_array_append_new(e->others, json_pack("{sO sO}", "pid", json_object_get(f, "pid"), "uid", json_object_get(f, "uid")));
    return true;
}

/* By its process number, or its name */
static bool has_name(const json_t *f, const char *name)
{
    FF_AUTO_FREE char *pid = xprintf("%lld", (long long)json_integer_value(json_object_get(f, "pid")));

    return !strcmp(name, pid) || !strcmp(name, text_of(f, "name"));
}

/* What was given names one guest, or nobody is moved by it: a name may be another's process number */
static void count_named(struct evacuation *e, const json_t *all)
{
    const struct strv *names = e->o->guests;
    size_t i;
    json_t *f;

    json_array_foreach(all, i, f)
        for (size_t k = 0; k < names->n; k++)
            e->named[k] += json_integer_value(json_object_get(f, "uid")) == (json_int_t)geteuid() &&
                           has_name(f, names->v[k]);
}

static bool is_wanted(struct evacuation *e, const json_t *f)
{
    const struct evacuate_options *o = e->o;
    bool of_job = o->outside_jobs && *text_of(f, "job"), is = !o->guests->n && !of_job;

    if (is_of_others(e, f))
        return false;
    e->n_of_jobs += of_job;
    for (size_t i = 0; i < o->guests->n; i++)
        is |= e->named[i] == 1 && has_name(f, o->guests->v[i]);
    return is;
}

/* What other hosts still fetch is no guest, and this host is needed for it */
static void add_holders(struct evacuation *e, const json_t *holders)
{
    size_t i;
    json_t *h;

    json_array_foreach(holders, i, h)
        if (!is_of_others(e, h) && !(e->o->outside_jobs && *text_of(h, "job")))
            e->guest[e->n_guests++] = (struct guest){
                .pid = (pid_t)json_integer_value(json_object_get(h, "pid")), .name = xstrdup(text_of(h, "name")),
                .state = STAYS, .run = SPAWN_NONE, .tried = xcalloc(e->n_places + 1, sizeof(bool)),
                .reason = xstrdup(strcmp(text_of(h, "of"), "fork")
                                      ? "its guest is elsewhere, and needs its memory: let it come home, or wait for the end "
                                        "of its move"
                                      : "it keeps the memory of a fork that other hosts still fetch: wait for its end")};
}

static int by_size(const void *a, const void *b)
{
    const struct guest *x = a, *y = b;

    return x->bytes == y->bytes ? (x->pid > y->pid) - (x->pid < y->pid) : x->bytes < y->bytes ? 1 : -1;
}

void evacuate_find(struct evacuation *e)
{
    FF_AUTO_FREE char *base = e->o->rundir ? xstrdup(e->o->rundir) : rundir_base();
    FF_AUTO_JSON json_t *facts = host_facts(base);
    json_t *all = json_object_get(facts, "guests"), *f;
    size_t i;

    json_t *holders = json_object_get(facts, "holders");
    e->guest = xcalloc(json_array_size(all) + json_array_size(holders) + 1, sizeof(*e->guest));
    count_named(e, all);
    json_array_foreach(all, i, f) {
        struct guest g = {.pid = (pid_t)json_integer_value(json_object_get(f, "pid")), .run = SPAWN_NONE};
        g.start = process_start_time(g.pid);
        if (!is_wanted(e, f) || !find_monitor(&g)) {
            free(g.qmp);
            free(g.reason);
            continue;
        }
        g.name = xstrdup(*text_of(f, "name") ? text_of(f, "name") : "-");
        g.tried = xcalloc(e->n_places + 1, sizeof(*g.tried));
        if (!g.qmp) {
            g.state = STAYS;
            g.reason = xstrdup("no QMP socket of it answers: give it one more, -qmp unix:PATH,server=on,wait=off");
        }
        e->guest[e->n_guests++] = g;
    }
    if (!e->o->guests->n)
        add_holders(e, holders);
    qsort(e->guest, e->n_guests, sizeof(*e->guest), by_size);
}
