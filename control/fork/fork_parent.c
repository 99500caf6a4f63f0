/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_parent.c - the guest that is forked: what it was started with, and its fork
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      all that a fork asks of its parent over QMP: disks and identity before the freeze,
 *              x-farfork-export, and afterwards what came of it. An agent that is silent cannot
 *              know that the parent's memory does not reach it; the parent knows
 *              (query-x-farfork-exports).
 * Failure      a parent that stopped for want of room for its overlay, a template that stands
 *              still, a holder that keeps the parent's locks: each is a note that says what to do.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "disks.h"
#include "fork.h"
#include "rundir.h"

#define COMMAND_LIMIT_MS 10000
#define ASK_LIMIT_MS 2000
#define VM_LIMIT_MS 10000 /* an agent asks a QEMU for 5 s at most */
#define VM_TURN_MS 50

static void ask_stands(struct fork *f)
{
    FF_AUTO_JSON json_t *status = NULL;

    if (!qmp_command(f->s.qmp, "query-status", NULL, &status, NULL))
        f->s.parent_stood = json_is_false(json_object_get(status, "running"));
}

int fork_check_parent(struct fork *f, struct ff_error *why)
{
    int rc = fork_attach(f, why);

    if (!rc)
        ask_stands(f);
    if (!rc && !f->memory_bytes)
        rc = ff_error_set(why, EPROTO, "%s: QEMU names no memory: agents could not tell how much the guest has",
                          f->s.o.parent_path);
    return rc;
}

/* The name of an overlay says more than that of its node */
static char *overlay_of(const struct fork *f, const char *node)
{
    FF_AUTO_JSON json_t *disks = fork_disks_summary(f->disks);
    const json_t *disk = json_find(disks, "parent-node", node);

    return xstrdup(disk ? text_of(disk, "parent-overlay") : node);
}

void fork_check_runs(struct fork *f)
{
    FF_AUTO_JSON json_t *status = NULL;
    struct ff_error ignored;
    json_t *e;

    if (!f->export_ms || f->s.parent_stood || f->s.parent_silent ||
        qmp_command(f->s.qmp, "query-status", NULL, &status, &ignored) ||
        strcmp(text_of(status, "status"), "io-error"))
        return;
    if (f->taken_back && !qmp_command(f->s.qmp, "cont", NULL, NULL,
                                      &ignored)) /* what it could not write has a place */
        return;
    while ((e = qmp_take_event(f->s.qmp)))
        session_on_guest_event(&f->s, e);
    const json_t *data = json_object_get(f->s.io_error, "data");
    FF_AUTO_FREE char *file = overlay_of(f, text_of(data, "node-name"));
    f->stopped = xprintf("the parent has stopped: it cannot write to %s: %s: make room there, then "
                         "let it go on (QMP cont)", *file ? file : "a disk",
                         data ? text_of(data, "reason") : "io-error");
}

static int connect_disks(struct fork *f, struct ff_error *why)
{
    struct fork_disks_options o = {.id = f->s.o.id, .scratch = f->o->scratch,
                                    .overlays = f->o->overlays, .max_chain = f->o->max_chain,
                                    .nbd = f->o->nbd, .books = f->s.o.books,
                                    .rundir = f->s.o.rundir, .parent = f->s.o.parent_path};

    for (size_t k = 0; k < f->s.n_vms; k++)
        o.children += f->s.hosts[f->s.vms[k].host].here;
    o.here = o.children > 0;
    FF_AUTO_JSON json_t *argv = strv_json(f->s.parent_argv.v);
    int rc = disks_ask_busy(f->s.qmp, argv, true, &f->s.notes, why);
    return rc ? rc : fork_disks_new(f->s.qmp, f->s.parent_argv.v, f->s.parent_cwd, &o, &f->disks, why);
}

/* Of @n children; @argv and @filters to be released after it */
static struct identity_input identity_of(const struct fork *f, unsigned n, json_t **argv,
                                         json_t **filters)
{
    struct ff_error none; /* a parent without such a NIC has nothing to say */

    *argv = strv_json(f->s.parent_argv.v);
    qmp_command(f->s.qmp, "query-rx-filter", NULL, filters, &none);
    return (struct identity_input){.fork_id = f->s.o.id, .count = n, .argv = *argv,
                                   .rx_filters = *filters, .hostname = f->o->hostname,
                                   .user = f->o->user_data,
                                   .ip = (const char *const *)f->o->ip.v, .ips = f->o->ip.n};
}

static int plan_identity(struct fork *f, struct ff_error *why)
{
    FF_AUTO_JSON json_t *argv = NULL, *filters = NULL, *missing = NULL;
    const struct identity_input in = identity_of(f, f->s.o.n, &argv, &filters);
    size_t i;
    json_t *m;
    int rc = identity_plan(&in, &f->identity, why);

    if (rc)
        return rc;
    missing = identity_missing(f->identity);
    json_array_foreach(missing, i, m)
        session_note(&f->s, "identity: %s", json_string_value(m));
    return 0;
}

int fork_ask_disks(struct fork *f, struct ff_error *why)
{
    int rc = connect_disks(f, why);

    if (!rc)
        rc = plan_identity(f, why);
    if (!rc)
        fork_try_seeds(f);
    return rc;
}

int fork_ask_again(struct fork *f, unsigned n, struct ff_error *why)
{
    FF_AUTO_JSON json_t *argv = NULL, *filters = NULL;

    fork_disks_free(f->disks);
    f->disks = NULL;
    int rc = connect_disks(f, why);
    if (rc)
        return rc;
    fork_try_seeds(f);
    const struct identity_input in = identity_of(f, n, &argv, &filters);
    return identity_again(f->identity, &in, why);
}

/* Those hosts that have somebody to serve */
static json_t *targets(struct fork *f)
{
    json_t *list = json_array();

    for (size_t i = 0; i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        if (h->state == HOST_FAILED)
            continue;
        json_t *t = json_object();
        FF_AUTO_FREE char *uri = fork_target_of(f, h);
        json_object_set_new(t, "uri", json_string(uri));
        if (h->here)
            json_object_set_new(t, "socket", json_string(h->socket));
        json_array_append_new(list, t);
    }
    return list;
}

static bool any_keyed(const struct fork *f)
{
    for (size_t i = 0; i < f->s.n_hosts; i++)
        if (f->s.hosts[i].keyed && f->s.hosts[i].state != HOST_FAILED)
            return true;
    return false;
}

/* It stood still before, or stays so */
static bool parent_goes_on(const struct fork *f)
{
    return !f->s.parent_stood && !f->o->template;
}

/* The guest goes on, whatever became of the export, which was answered at @answered_ms */
static void end_stand(struct fork *f, double answered_ms)
{
    struct ff_error why;

    if (!f->stands || !parent_goes_on(f))
        return;
    if (domain_books_resume(f->s.o.books, &why))
        session_note(&f->s, "%s", why.text);
    double before_ms = (double)json_integer_value(json_object_get(f->freeze, "pause-ns")) / 1e6;
    f->stood_ms = before_ms + ff_now_exact_ms() - answered_ms;
}

int fork_export(struct fork *f, struct ff_error *why)
{
    bool keyed = any_keyed(f);
    int rc = keyed ? session_lend_key(&f->s, why) : 0;

    if (!rc && (rc = fork_disks_prepare(f->disks, why)) && keyed)
        session_take_key(&f->s);
    if (rc)
        return rc;
    /* somebody may have stopped it since */
    ask_stands(f);
    json_t *a = json_pack("{ss so}", "id", f->s.o.id, "targets", targets(f));
    json_t *actions = fork_disks_actions(f->disks);

    if (actions)
        json_object_set_new(a, "actions", actions);
    rc = fork_disks_plan_libvirt(f->disks, parent_goes_on(f), &f->stands, why);
    if (rc) {
        json_decref(a);
        return rc;
    }
    if (f->o->template || f->stands)
        json_object_set_new(a, "template", json_true());
    qmp_limit(f->s.qmp, (int)f->s.o.timeout_s * 1000);
    f->export_ms = ff_now_exact_ms();
    rc = qmp_command(f->s.qmp, "x-farfork-export", a, &f->freeze, why);
    double answered_ms = ff_now_exact_ms();
    if (rc == -EPIPE && f->s.beside)
        fork_attach_lost(f);
    /* without an answer it may have forked all the same */
    f->exported = !rc || rc == -ECANCELED || rc == -ETIMEDOUT;
    if (keyed)
        session_take_key(&f->s);
    fork_disks_done(f->disks, !rc);
    if (!rc && f->stands)
        rc = fork_disks_by_libvirt(f->disks, why);
    if (!rc)
        rc = fork_disks_serve(f->disks, why);
    end_stand(f, answered_ms);
    return rc || !f->stands ? rc : fork_disks_take_over(f->disks, why);
}

void fork_ask_paused(struct fork *f)
{
    uint64_t until = ff_now_ms() + VM_LIMIT_MS;
    const struct vm *k = f->s.vms;

    while (k < f->s.vms + f->s.n_vms && !vm_runs(k))
        k++;
    if (!f->s.parent_stood || k == f->s.vms + f->s.n_vms)
        return;
    json_decref(f->s.answer);
    f->s.answer = NULL;
    host_send(&f->s.hosts[k->host],
              json_pack("{s{si ss}}", "qmp", "child", (int)k->number, "execute", "query-status"));
    while (!f->s.answer && !f->s.interrupted && ff_now_ms() < until)
        session_turn(&f->s, VM_TURN_MS);
    f->paused = json_is_false(json_object_get(json_object_get(f->s.answer, "return"), "running"));
    if (f->paused)
        session_note(&f->s,
                 "the parent did not run, and so its children do not: start each by `cont` "
                 "at its QMP socket");
}

void fork_let_run(struct fork *f)
{
    FF_AUTO_JSON json_t *status = NULL;
    struct ff_error why;

    if (!f->o->template || !f->export_ms || f->s.parent_stood || f->s.parent_silent)
        return;
    qmp_cancel_by(f->s.qmp, -1);
    int rc = qmp_command(f->s.qmp, "query-status", NULL, &status, &why);
    if (!rc && !strcmp(text_of(status, "status"), "paused"))
        rc = qmp_command(f->s.qmp, "cont", NULL, NULL, &why);
    if (rc)
        session_note(&f->s,
                 "the parent stands still, perhaps, as a template does: let it go on (QMP "
                 "cont): %s",
                 why.text);
}

static bool waits_long(const struct host *h, unsigned silent_ms)
{
    return !h->let_go && (h->state == HOST_LISTENING || h->state == HOST_IMAGE) &&
           ff_now_ms() > h->heard_ms + silent_ms;
}

/* It has all that others miss, and may give it to them */
static bool any_complete(const struct fork *f)
{
    for (size_t i = 0; i < f->s.n_hosts; i++)
        if (f->s.hosts[i].state == HOST_COMPLETE)
            return true;
    return false;
}

void fork_ask_export(struct fork *f, unsigned silent_ms)
{
    FF_AUTO_JSON json_t *all = NULL;
    struct ff_error why;
    bool any = false;

    for (size_t i = 0; i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        if (f->source_lost && !any_complete(f) && waits_long(h, silent_ms))
            host_fail(&f->s, h, "the parent's memory does not get there: the process that held the memory has ended");
        any |= waits_long(h, silent_ms);
    }
    if (!any || !f->exported || f->s.parent_silent)
        return;
    qmp_limit(f->s.qmp, ASK_LIMIT_MS);
    if (qmp_command(f->s.qmp, "query-x-farfork-exports", NULL, &all, &why))
        return; /* it may be busy, or end */
    for (size_t i = 0; i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        const json_t *t = fork_find_target(f, all, h);
        if (t && waits_long(h, silent_ms) && !strcmp(text_of(t, "status"), "failed"))
            host_fail(&f->s, h, "the parent's memory does not get there: %s", text_of(t, "error"));
    }
}

/* Whether it has; forked off the parent, it has what the parent had open, until it has closed it */
static bool has_ended(pid_t holder)
{
    if (!holder)
        return true; /* there is none any more */
    uint64_t start = process_start_time(holder), end = ff_now_ms() + COMMAND_LIMIT_MS;

    while (process_look(holder, start) != PROCESS_GONE && ff_now_ms() < end)
        poll(NULL, 0, 2);
    return process_look(holder, start) == PROCESS_GONE;
}

void fork_unexport(struct fork *f)
{
    FF_AUTO_JSON json_t *all = NULL;
    struct ff_error why;

    if (!f->exported || f->s.parent_silent)
        return;
    qmp_cancel_by(f->s.qmp, -1);
    qmp_limit(f->s.qmp, COMMAND_LIMIT_MS);
    int rc = qmp_command(f->s.qmp, "query-x-farfork-exports", NULL, &all, &why);
    const json_t *e = json_find(all, "id", f->s.o.id);
    /* that it is gone already is as good */
    qmp_command(f->s.qmp, "x-farfork-unexport", json_pack("{ss}", "id", f->s.o.id), NULL, &why);
    f->held = rc || (e && !has_ended((pid_t)json_integer_value(json_object_get(e, "holder-pid"))));
    f->exported = false;
}
