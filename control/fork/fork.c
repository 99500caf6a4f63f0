/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork.c - a fork from beginning to end
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      find the parent; agents on all hosts at once
 *              ask the parent; refuse what cannot be cloned
 *              wait for the agents                    -> each listens
 *              ask them for what children need        -> each has looked (fork_check.c)
 *              which of them feed others is planned (fork_tree.c)
 *              [--prestart: children are started      -> each waits for its agent's image]
 *              [--keep: they are, before anybody asks for the fork (fork_hold.c)]
 *              x-farfork-export: the parent is frozen for a moment and goes on
 *              children are started, a few of them    -> each runs
 *              beside the export
 *              memory follows                         -> each host has all of it
 *              agents are let go: from here on they look after their children alone
 *              [--follow: they are not, until the children have ended (fork_follow.c)]
 *
 *              One poll loop does all of it (control/session/session.c). Other subjects have files
 *              of their own: fork_spawn.c the children's command lines, fork_disks.c disks,
 *              fork_verify.c whose image an agent has, serve.c forks that a guest asks for.
 *
 * Failure      what fails on one host, or in one child, is that host's or child's alone; the rest
 *              goes on. Interrupted, or with nothing left: agents are told to end, their children
 *              end with them, the parent's export is withdrawn. The parent goes on in any case.
 *              When the parent ends after the freeze its memory is still served by the process
 *              that was forked off it.
 *              An agent that the parent's side does not reach cannot know that: the parent is
 *              asked. An agent on another host takes the image of the first who has the key: so the
 *              parent is also asked whether it is its own, and if not, nothing of that host counts
 *              (fork_verify.c).
 * Limits       the wait for a host ends after --timeout seconds without anything new from it; while its agent
 *              waits for another link, after that (fork_pump.c).
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autojson.h"
#include "fork.h"
#include "session_told.h"
#include "signals.h"

#define END_LIMIT_MS 12000  /* an agent ends its children first */
#define CLOSE_LIMIT_MS 2000 /* of all launchers */
#define LATE_LIMIT_MS 8000  /* a child that is complete says so soon after its host */

/* --- what is waited for --- */

static bool is_behind(const struct fork *f, const struct host *h)
{
    unsigned want = 0;

    for (size_t k = 0; k < f->s.n_vms; k++)
        want += &f->s.hosts[f->s.vms[k].host] == h && f->s.vms[k].state != VM_FAILED;
    return h->state != HOST_FAILED && h->connected < want;
}

static bool is_on(const struct fork *f, const struct vm *k, const struct host *h)
{
    return &f->s.hosts[k->host] == h;
}

static bool is_yet_to_run(const struct vm *k)
{
    return k->state != VM_FAILED && !vm_runs(k);
}

static bool has_to_run(const struct fork *f, const struct host *h)
{
    for (size_t k = 0; k < f->s.n_vms; k++)
        if (is_on(f, &f->s.vms[k], h) && is_yet_to_run(&f->s.vms[k]))
            return true;
    return false;
}

static bool has_children(const struct fork *f, const struct host *h)
{
    for (size_t k = 0; k < f->s.n_vms; k++)
        if (is_on(f, &f->s.vms[k], h) && f->s.vms[k].state != VM_FAILED)
            return true;
    return false;
}

static bool lacks_memory(const struct fork *f, const struct host *h)
{
    return h->state != HOST_FAILED && h->state != HOST_COMPLETE && has_children(f, h);
}

static bool is_arriving(const struct fork *f, const struct host *h)
{
    return lacks_memory(f, h) || fork_image_is_open(f, h);
}

static bool has_incomplete(const struct fork *f, const struct host *h)
{
    for (size_t k = 0; k < f->s.n_vms; k++)
        if (is_on(f, &f->s.vms[k], h) && f->s.vms[k].state == VM_RUNNING)
            return true;
    return false;
}

static bool is_ending(const struct fork *f, const struct host *h)
{
    (void)f;
    return h->let_go && h->run.out >= 0;
}

/* --- the steps --- */

static int limit_ms(const struct fork *f)
{
    return (int)f->s.o.timeout_s * 1000;
}

static void kill_child(struct fork *f, const struct vm *k)
{
    host_send(&f->s.hosts[k->host], json_pack("{si}", "kill", (int)k->number));
}

static void launch_agents(struct fork *f)
{
    struct ff_error why;

    f->s.launched = true;
    for (size_t i = 0; i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        h->keyed = !h->here;
        if (host_resolve(h, &why) || host_launch(&f->s, h, &why))
            host_fail(&f->s, h, "%s", why.text);
    }
}

/* Those that are late are ended */
static void fail_children(struct fork *f, struct host *h)
{
    for (size_t k = 0; k < f->s.n_vms; k++)
        if (is_on(f, &f->s.vms[k], h) && f->s.vms[k].state < VM_RUNNING) {
            kill_child(f, &f->s.vms[k]);
            vm_fail(&f->s.vms[k], "it did not run within %u s", f->s.o.timeout_s);
        }
}

static void fail_behind(struct fork *f, struct host *h)
{
    host_fail(&f->s, h, "children that were started ahead did not reach their agent within %u s", f->s.o.timeout_s);
}

/* Memory that does not come any more is lost, whoever's fault that is */
static void fail_incomplete(struct fork *f, struct host *h)
{
    if (lacks_memory(f, h))
        host_fail(&f->s, h, "no memory came for %u s", f->s.o.timeout_s);
}

static int start_ahead(struct fork *f)
{
    fork_spawn(f);
    int rc = fork_pump(f, is_behind, fail_behind, limit_ms(f));
    for (size_t k = 0; !rc && k < f->s.n_vms; k++)
        if (f->s.vms[k].state != VM_FAILED)
            return 0;
    return rc ? rc : ff_error_set(&f->s.why, ECHILD, "no child could be started");
}

/* Children that start beside the export are there sooner; as many as there are CPUs would make the
 * parent's pause longer. Disks that are served are so only after it; so are
 * those that libvirt has frozen. */
static bool start_beside(const struct fork *f)
{
    long here = 0;

    for (size_t k = 0; k < f->s.n_vms; k++)
        here += f->s.hosts[f->s.vms[k].host].here;
    return !f->o->nbd && !f->s.o.books && here < sysconf(_SC_NPROCESSORS_ONLN);
}

static void follow_memory(struct fork *f)
{
    fork_pump(f, is_arriving, fail_incomplete, limit_ms(f));
    if (!f->s.interrupted)
        fork_pump(f, has_incomplete, NULL, LATE_LIMIT_MS);
    fork_group_note(f);
}

/* Until children can be started */
static int prepare_fork(struct fork *f)
{
    int rc = session_plan(&f->s, &f->s.why);

    if (!rc)
        rc = session_find_parent(&f->s, &f->s.why);
    if (!rc)
        rc = fork_read_working_set(f, &f->s.why);
    if (!rc)
        rc = fork_check_descriptors(f, &f->s.why);
    if (!rc)
        rc = fork_ask_memory(f, &f->s.why);
    if (rc)
        return rc;
    launch_agents(f); /* the parent is asked meanwhile */
    rc = fork_check_parent(f, &f->s.why);
    if (!rc)
        rc = session_add_plugged(&f->s, &f->s.why);
    if (!rc)
        session_note_told(&f->s, true);
    if (!rc)
        rc = fork_ask_disks(f, &f->s.why);
    if (!rc)
        rc = fork_check_argv(f, &f->s.why);
    if (!rc)
        rc = fork_wait_hosts(f, &f->s.why);
    if (!rc)
        rc = fork_check_hosts(f, &f->s.why);
    return rc ? rc : fork_record(f, &f->s.why);
}

static int do_fork(struct fork *f)
{
    fork_tree_plan(f);
    fork_group_plan(f);
    fork_tell_working_set(f);
    if (!f->o->prestart && !f->o->hold && start_beside(f))
        fork_spawn(f);
    int rc = f->o->prestart && !f->o->hold ? start_ahead(f) : 0;
    if (f->o->hold)
        rc = fork_hold_settle(f);
    if (!rc)
        session_say_notes(&f->s); /* while the parent runs */
    if (!rc)
        rc = fork_export(f, &f->s.why);
    if (rc)
        return rc;
    fork_spawn(f);
    fork_pump(f, has_to_run, fail_children, limit_ms(f));
    if (!f->s.interrupted)
        follow_memory(f);
    if (!f->s.interrupted)
        fork_ask_paused(f);
    return f->s.interrupted ? -ECANCELED : 0;
}

/* Agents with children that run are let go, or kept to be followed; the others end with what they
 * have */
static void let_agents_go(struct fork *f, bool all_end, bool follow)
{
    for (size_t i = 0; i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        bool keep = !all_end && h->state == HOST_COMPLETE && has_children(f, h);
        if (h->let_go || (keep && follow))
            continue;
        h->let_go = true;
        if (h->state == HOST_FAILED && h->complete_ms && !all_end && !h->foreign) {
            host_close_input(h); /* its children may run: it looks after them, if it is there */
        } else if (h->rundir) {
            h->ending = !keep;
            host_send(h, json_pack("{sb}", keep ? "detach" : "end", true));
        } else {
            h->ending = true;
            host_close(h, 0); /* it never got so far as to listen */
        }
    }
    bool was = f->s.interrupted;
    f->s.interrupted = false; /* a second Ctrl-C ends the waiting */
    fork_pump(f, is_ending, NULL, END_LIMIT_MS);
    for (uint64_t i = 0, end_ms = ff_now_ms() + CLOSE_LIMIT_MS, now; i < f->s.n_hosts; i++) {
        now = ff_now_ms(); /* one that hangs costs the others no time */
        if (f->s.hosts[i].let_go)
            host_close(&f->s.hosts[i], now < end_ms ? (int)(end_ms - now) : 0);
    }
    f->s.interrupted |= was;
}

/* Nothing is left of those */
static void fail_all(struct fork *f)
{
    const char *why = f->s.interrupted ? "interrupted" : f->s.why.text;

    for (size_t k = 0; k < f->s.n_vms; k++) {
        struct vm *child = &f->s.vms[k];
        if (child->state == VM_FAILED || child->state == VM_ENDED)
            continue;
        vm_fail(child, "%s", *why ? why : "not started");
    }
}

static int fork_outcome(const struct fork *f)
{
    size_t good = 0;

    for (size_t k = 0; k < f->s.n_vms; k++)
        good += vm_runs(&f->s.vms[k]);
    return good && good == f->s.n_vms ? EXIT_ALL : good ? EXIT_SOME : EXIT_NONE;
}

/* What its agents hold: the image, no larger than the parent's memory */
static void fork_agent_options(const struct session *s, const struct host *h, struct strv *w)
{
    const struct fork *f = (const struct fork *)s;
    const char *options = s->o.link_options;
    FF_AUTO_FREE char *at = h->here ? xstrdup("unix") : xprintf("%s:0", h->address);

    strv_add(w, "--listen");
    strv_add(w, "%s%s%s%s", at, options ? "," : "", options ? options : "",
             fork_tree_options(f));
    strv_add(w, "--memory");
    strv_add(w, "%llu", (unsigned long long)f->memory_bytes);
    if (f->o->net == NET_BRIDGE && !s->o.unconfined)
        strv_add(w, "--unconfined");
    strv_add(w, "--watcher");
    if (f->o->hold)
        strv_add(w, "--background");
}

/* Children are started, and wait for a request */
static int hold_children(struct fork *f)
{
    int rc = prepare_fork(f);

    if (!rc)
        rc = start_ahead(f);
    return rc ? rc : fork_hold(f, &f->s.why);
}

static void note_canceled(struct fork *f, int rc)
{
    if (rc == -ECANCELED) { /* in the midst of a command to the parent */
        f->s.interrupted = true;
        session_read_signals(&f->s);
    }
}

/* There was no request, and none is taken any more */
static int end_held_fork(struct fork *f, int rc)
{
    note_canceled(f, rc);
    fork_hold_failed(f);
    let_agents_go(f, true, false);
    fork_forget(f);
    return EXIT_NONE;
}

static int run_fork(struct fork *f)
{
    f->s.signals = signals_take();
    f->s.begin_ms = ff_now_exact_ms();
    int rc = f->o->hold ? hold_children(f) : 0;
    if (rc)
        return end_held_fork(f, rc);
    struct metrics *metrics = fork_metrics_begin(f);
    rc = f->o->hold ? 0 : prepare_fork(f);
    if (!rc)
        rc = do_fork(f);
    note_canceled(f, rc);
    if (rc)
        fail_all(f);
    fork_show(f, true);
    let_agents_go(f, rc != 0, f->o->follow);
    fork_unexport(f);
    fork_attach_ended(f);
    fork_disks_let_go(f->disks);
    fork_keep_working_set(f);
    int code = fork_outcome(f);
    if (code == EXIT_NONE) {
        fork_disks_end_server(f->disks);
        fork_take_back(f);
        fork_let_run(f);
        fork_forget(f);
    }
    fork_check_runs(f);
    if (f->stopped && code == EXIT_ALL)
        code = EXIT_SOME;
    if (f->s.o.json)
        fork_print_json(f, code);
    else
        fork_print_table(f, code);
    fork_metrics_end(f, code, metrics);
    session_journal(&f->s, code == EXIT_ALL    ? "forked"
                           : code == EXIT_SOME ? "forked in part"
                                               : "not forked", code == EXIT_ALL);
    if (f->o->follow) {
        qmp_free(f->s.qmp); /* the parent can be forked again meanwhile */
        f->s.qmp = NULL;
        if (f->s.o.books)
            domain_books_done(f->s.o.books);
        if (f->o->hold)
            fork_hold_done(f);
        code = fork_follow(f, code);
        let_agents_go(f, false, false);
    }
    return code;
}

int fork_run(const struct fork_options *o, struct hostlist *hosts)
{
    static const struct session_kind vmclone = {.program = "vmclone", .where = "in children", .by_hand = "",
                                                .agent_options = fork_agent_options};
    struct fork f = {.o = o, .s.hostlist = *hosts};
    struct session_options s = o->s;
    struct ff_error why;
    int code = EXIT_USAGE;

    *hosts = (struct hostlist){0};
    s.stays = o->follow;
    if (session_init(&f.s, &vmclone, &s, &why))
        fprintf(stderr, "vmclone: %s\n", why.text);
    else
        code = run_fork(&f);
    fork_disks_free(f.disks);
    identity_free(f.identity);
    json_decref(f.freeze);
    json_decref(f.cpu);
    json_decref(f.domain);
    free(f.stopped);
    free(f.first);
    free(f.group);
    session_free(&f.s);
    return code;
}
