/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * parent.c - the source of a fork of any QEMU's guest: what it is told, and its end; see parent.h
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "alone.h"
#include "autojson.h"
#include "failpoint.h"
#include "host_facts.h"
#include "monitor.h"
#include "parent.h"
#include "parent_private.h"
#include "qmp_secret.h"
#include "secret.h"

#define QMP_LIMIT_MS 60000
#define TURN_MS 20
#define SWEEP_AFTER_MS 2000

static int reach_qemu(struct parent *p, struct ff_error *why)
{
    if (p->domain)
        return parent_reach_domain(p, why);
    int rc = p->q ? 0 : qmp_connect_in_turn(p->path, -1, QMP_LIMIT_MS, NULL, NULL, &p->q, why);

    if (rc)
        return rc;
    p->pid = qmp_pid(p->q);
    return p->pid > 0 ? 0 : ff_error_set(why, ESRCH, "QEMU: its process is in another PID namespace: run this there");
}

/* What came to nothing leaves nothing */
static void forget_parent_export(struct parent *p)
{
    freeze_end(p->freeze);
    parent_free_targets(p);
    p->freeze = NULL;
    free(p->id);
    p->id = NULL;
    free(p->blocks);
    p->blocks = NULL;
    free(p->state);
    p->state = NULL;
}

static int export_guest(struct parent *p, const json_t *a, struct ff_error *why)
{
    p->id = xstrdup(text_of(a, "id"));
    p->template = json_is_true(json_object_get(a, "template"));
    FF_AUTO_CLOSE int alone = -1; /* from here on nobody moves it */
    int rc = parent_take_targets(p, json_object_get(a, "targets"), why);

    if (!rc)
        rc = alone_begin(p->pid, &alone, why);
    if (!rc)
        rc = parent_get_ready(p, why);
    if (!rc)
        rc = parent_pause(p, json_object_get(a, "actions"), why);
    return rc ? rc : parent_serve(p, why);
}

static int export_command(struct parent *p, const json_t *a, json_t **result, struct ff_error *why)
{
    if (p->id)
        return ff_error_set(why, EEXIST, "there is an export '%s'", p->id);
    int rc = reach_qemu(p, why);

    if (!rc)
        rc = export_guest(p, a, why);
    if (rc) {
        forget_parent_export(p);
        return rc;
    }
    const struct parent_times *t = &p->times;
    *result = json_pack("{ss sI sI sI sI sI sI sI sI sI}", "id", p->id, "holder-pid", (json_int_t)freeze_pid(p->freeze),
                        "state-bytes", (json_int_t)p->state_len, "lent-bytes", (json_int_t)parent_lent_bytes(p), "pause-ns",
                        (json_int_t)t->pause, "stop-ns", (json_int_t)t->stop, "actions-ns", (json_int_t)t->actions,
                        "state-ns", (json_int_t)t->state, "memory-ns", (json_int_t)t->fork, "fork-ns", (json_int_t)t->fork);
    atomic_store(&p->exported, true);
    return 0;
}

static bool parent_is_over(const struct parent *p)
{
    return !atomic_load(&p->exported) || atomic_load(&p->n_done) == p->n_targets;
}

static json_t *exports_info(struct parent *p)
{
    json_t *list = json_array();

    if (p->exported)
        json_array_append_new(list, json_pack("{ss sI sb sb so}", "id", p->id, "holder-pid",
                                              (json_int_t)freeze_pid(p->freeze), "alive", !parent_is_over(p), "template",
                                              p->template, "targets", parent_targets_info(p)));
    return list;
}

static int unexport_command(struct parent *p, const json_t *a, struct ff_error *why)
{
    if (!p->exported || strcmp(text_of(a, "id"), p->id))
        return ff_error_set(why, ENOENT, "no export '%s'", text_of(a, "id"));
    parent_cancel(p);
    freeze_drop(p->freeze);
    return 0;
}

static int on_parent_command(void *opaque, const char *execute, const json_t *arguments, const char *key,
                             json_t **result, struct ff_error *why)
{
    struct parent *p = opaque;

    if (!strcmp(execute, "object-add") && !strcmp(text_of(arguments, "id"), KEY_SECRET) && key) {
        key_text_free(p->key);
        p->key = key_text_new(key);
        return p->key ? 0 : ff_error_set(why, ENOMEM, "object-add: out of memory");
    }
    if (!strcmp(execute, "object-del") && !strcmp(text_of(arguments, "id"), KEY_SECRET)) {
        key_text_free(p->key);
        p->key = NULL;
        return 0;
    }
    if (!strcmp(execute, "x-farfork-export"))
        return export_command(p, arguments, result, why);
    if (!strcmp(execute, "x-farfork-unexport"))
        return unexport_command(p, arguments, why);
    if (!strcmp(execute, "query-x-farfork-exports")) {
        *result = exports_info(p);
        return 0;
    }
    int rc = reach_qemu(p, why);
    if (!rc && !strcmp(execute, "x-farfork-look")) {
        rc = parent_look(p, why);
        return rc || !p->domain ? rc : parent_describe(p, result, why);
    }
    return rc ? rc : monitor_passed_on(qmp_command(p->q, execute, json_deep_copy(arguments), result, why), why);
}

int parent_run(const char *qmp, const char *domain)
{
    static struct parent p; /* of threads that may be there to the end */
    struct monitor *m = NULL;
    struct ff_error why = {0};
    int client = dup(STDIN_FILENO);

    if (ff_failpoints_start(&why)) {
        fprintf(stderr, "farfork attach: %s\n", why.text);
        return 3;
    }
    setsid(); /* it serves on when vmclone has ended, by a signal of its terminal too */
    signal(SIGPIPE, SIG_IGN);
    p.path = qmp;
    p.domain = domain;
    if (client < 0 || monitor_start_on(client, on_parent_command, &p, &m, &why)) {
        fprintf(stderr, "farfork attach: %s\n", *why.text ? why.text : strerror(errno));
        return 3;
    }
    for (unsigned turns = 0; monitor_has_clients(m); poll(NULL, 0, TURN_MS)) {
        if (!atomic_load(&p.exported))
            continue;
        if (!turns++)
            prctl(PR_SET_NAME, HOLDER_COMM);
        if (turns == SWEEP_AFTER_MS / TURN_MS)
            freeze_sweep(p.freeze); /* children start just now */
    }
    monitor_end(m);
    qmp_free(p.q); /* others may be its client */
    p.q = NULL;
    while (!parent_is_over(&p))
        poll(NULL, 0, TURN_MS);
    if (p.id)
        forget_parent_export(&p);
    return 0;
}
