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
 *              ask them for what children need        -> each has looked (clone_check.c)
 *              [--prestart: children are started      -> each waits for its agent's image]
 *              x-farfork-export: the parent is frozen for a moment and goes on
 *              children are started, a few of them    -> each runs
 *              beside the export
 *              memory follows                         -> each host has all of it
 *              agents are let go: from here on they look after their children alone
 *              [--follow: they are not, until the children have ended (clone_follow.c)]
 *
 * Failure      what fails on one host, or in one child, is that host's or child's alone; the rest
 *              goes on. Interrupted, or with nothing left: agents are told to end, their children
 *              end with them, the parent's export is withdrawn. The parent goes on in any case.
 *              When the parent ends after the freeze its memory is still served by the process
 *              that was forked off it.
 *              An agent that the parent's side does not reach cannot know that: the parent is asked.
 *              An agent on another host takes the image of whoever comes first: so the parent is also
 *              asked whether it is its own, and if not, nothing of that host counts (clone_verify.c).
 * Limits       every wait ends after --timeout seconds without anything new.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "autojson.h"
#include "fork.h"

#define SHOW_MS 200
#define AGAIN_LIMIT_MS 2000
#define ASK_MS 1000 /* an agent would have said why by then */
#define END_LIMIT_MS 12000  /* an agent ends its children first */
#define LATE_LIMIT_MS 8000  /* a child that is complete says so soon after its host */

/* --- the pump --- */

static void hear_signals(struct clone *c)
{
    struct signalfd_siginfo s;

    while (read(c->signals, &s, sizeof(s)) == sizeof(s))
        c->interrupted = true;
}

/* The connection is over. A socket at which nobody listens any more says that the parent is */
static void find_parent_again(struct clone *c)
{
    struct qmp *again = NULL;
    struct why why;
    int rc = qmp_connect(c->o->parent_path, c->signals, AGAIN_LIMIT_MS, &again, &why);

    if (!rc && qmp_pid(again) == c->parent_pid) {
        qmp_replace(c->qmp, again);
        return;
    }
    /* one that closes its socket, or has, is ending; one that is busy answers late */
    c->parent_gone = !rc || rc == -ECONNREFUSED || rc == -ENOENT || rc == -EPIPE ||
                     rc == -ECONNRESET;
    c->parent_silent = true;
    qmp_free(again);
}

void clone_hear_event(struct clone *c, json_t *e)
{
    if (!strcmp(text_of(e, "event"), "BLOCK_IO_ERROR")) {
        json_decref(c->io_error);
        c->io_error = json_incref(e);
    }
    json_decref(e);
}

static void hear_parent(struct clone *c)
{
    int rc = qmp_drain(c->qmp);

    if (rc && rc != -EAGAIN)
        find_parent_again(c);
    json_t *e;
    while ((e = qmp_take_event(c->qmp)))
        clone_hear_event(c, e);
}

bool clone_turn(struct clone *c, int wait_ms)
{
    size_t n = 2 + 2 * c->n_hosts;
    struct pollfd *p = xcalloc(n, sizeof(*p));
    bool heard = false;

    p[0] = (struct pollfd){.fd = c->interrupted ? -1 : c->signals, .events = POLLIN};
    p[1] = (struct pollfd){.fd = c->qmp && !c->parent_silent ? qmp_fd(c->qmp) : -1,
                           .events = POLLIN};
    for (size_t i = 0; i < c->n_hosts; i++) {
        p[2 + 2 * i] = (struct pollfd){.fd = c->hosts[i].run.out, .events = POLLIN};
        p[3 + 2 * i] = (struct pollfd){.fd = c->hosts[i].run.err, .events = POLLIN};
    }
    int got = poll(p, n, wait_ms);
    if (got > 0 && p[0].revents)
        hear_signals(c);
    if (got > 0 && p[1].revents)
        hear_parent(c);
    for (size_t i = 0; got > 0 && i < c->n_hosts; i++)
        if (p[2 + 2 * i].revents || p[3 + 2 * i].revents) {
            host_hear(c, &c->hosts[i]);
            heard = true;
        }
    free(p);
    return heard;
}

int clone_pump(struct clone *c, bool (*done)(const struct clone *), int limit_ms)
{
    uint64_t last = now_ms(), asked = last;

    while (!done(c)) {
        if (c->interrupted)
            return -ECANCELED;
        if (clone_turn(c, SHOW_MS))
            last = now_ms();
        else if (now_ms() > last + (uint64_t)limit_ms)
            return -ETIMEDOUT;
        clone_verify_images(c);
        if (now_ms() > asked + ASK_MS) {
            clone_ask_export(c, ASK_MS);
            asked = now_ms();
        }
        clone_show(c, false);
    }
    return 0;
}

/* --- what is waited for --- */

static bool is_behind(const struct clone *c, size_t host)
{
    unsigned want = 0;

    for (size_t k = 0; k < c->n_children; k++)
        want += c->children[k].host == host && c->children[k].state != CHILD_FAILED;
    return c->hosts[host].state != HOST_FAILED && c->hosts[host].connected < want;
}

static bool children_connected(const struct clone *c)
{
    for (size_t i = 0; i < c->n_hosts; i++)
        if (is_behind(c, i))
            return false;
    return true;
}

static bool children_run(const struct clone *c)
{
    for (size_t k = 0; k < c->n_children; k++)
        if (c->children[k].state != CHILD_FAILED && !child_runs(&c->children[k]))
            return false;
    return true;
}

static bool has_children(const struct clone *c, size_t host)
{
    for (size_t k = 0; k < c->n_children; k++)
        if (c->children[k].host == host && c->children[k].state != CHILD_FAILED)
            return true;
    return false;
}

static bool hosts_complete(const struct clone *c)
{
    if (!clone_images_verified(c))
        return false;
    for (size_t i = 0; i < c->n_hosts; i++)
        if (c->hosts[i].state != HOST_FAILED && c->hosts[i].state != HOST_COMPLETE &&
            has_children(c, i))
            return false;
    return true;
}

static bool children_complete(const struct clone *c)
{
    for (size_t k = 0; k < c->n_children; k++)
        if (c->children[k].state == CHILD_RUNNING)
            return false;
    return true;
}

static bool hosts_silent(const struct clone *c)
{
    for (size_t i = 0; i < c->n_hosts; i++)
        if (c->hosts[i].let_go && c->hosts[i].run.out >= 0)
            return false;
    return true;
}

/* --- the steps --- */

static int limit_ms(const struct clone *c)
{
    return (int)c->o->timeout_s * 1000;
}

static void kill_child(struct clone *c, const struct child *k)
{
    host_send(&c->hosts[k->host], json_pack("{si}", "kill", (int)k->number));
}

static void launch_agents(struct clone *c)
{
    struct why why;

    c->launched = true;
    for (size_t i = 0; i < c->n_hosts; i++)
        if (host_resolve(&c->hosts[i], &why) || host_launch(c, &c->hosts[i], &why))
            host_fail(c, &c->hosts[i], "%s", why.text);
}

/* Those that are late are ended */
static void fail_late(struct clone *c, bool (*late)(const struct child *), const char *what)
{
    for (size_t k = 0; k < c->n_children; k++)
        if (late(&c->children[k])) {
            kill_child(c, &c->children[k]);
            child_fail(&c->children[k], "%s within %u s", what, c->o->timeout_s);
        }
}

static bool never_ran(const struct child *k)
{
    return k->state < CHILD_RUNNING;
}

static int start_ahead(struct clone *c)
{
    clone_spawn(c);
    int rc = clone_pump(c, children_connected, limit_ms(c));
    for (size_t i = 0; rc == -ETIMEDOUT && i < c->n_hosts; i++)
        if (is_behind(c, i))
            host_fail(c, &c->hosts[i], "children that were started ahead did not reach their agent "
                                       "within %u s", c->o->timeout_s);
    for (size_t k = 0; rc != -ECANCELED && k < c->n_children; k++)
        if (c->children[k].state != CHILD_FAILED)
            return 0;
    return rc == -ECANCELED ? rc : refuse(&c->why, ECHILD, "no child could be started");
}

/* Children that start beside the export are there sooner; as many as there are CPUs would make the
 * parent's pause longer. Disks that are served are so only after it. */
static bool start_beside(const struct clone *c)
{
    long here = 0;

    for (size_t k = 0; k < c->n_children; k++)
        here += c->hosts[c->children[k].host].here;
    return !c->o->nbd && here < sysconf(_SC_NPROCESSORS_ONLN);
}

/* Memory that does not come any more is lost, whoever's fault that is */
static void follow(struct clone *c)
{
    if (clone_pump(c, hosts_complete, limit_ms(c)) == -ETIMEDOUT)
        for (size_t i = 0; i < c->n_hosts; i++)
            if (c->hosts[i].state != HOST_COMPLETE && has_children(c, i))
                host_fail(c, &c->hosts[i], "no memory came for %u s", c->o->timeout_s);
    if (!c->interrupted)
        clone_pump(c, children_complete, LATE_LIMIT_MS);
}

static int do_fork(struct clone *c)
{
    int rc = clone_plan(c, &c->why);

    if (!rc)
        rc = clone_find_parent(c, &c->why);
    if (!rc)
        rc = clone_check_descriptors(c, &c->why);
    if (!rc)
        rc = clone_ask_memory(c, &c->why);
    if (rc)
        return rc;
    launch_agents(c); /* the parent is asked meanwhile */
    rc = clone_check_parent(c, &c->why);
    if (!rc)
        rc = clone_ask_disks(c, &c->why);
    if (!rc)
        rc = clone_check_argv(c, &c->why);
    if (!rc)
        rc = clone_wait_hosts(c, &c->why);
    if (!rc)
        rc = clone_check_hosts(c, &c->why);
    if (!rc)
        rc = clone_record(c, &c->why);
    if (!rc && c->o->prestart)
        rc = start_ahead(c);
    else if (!rc && start_beside(c))
        clone_spawn(c);
    if (!rc)
        rc = clone_export(c, &c->why);
    if (rc)
        return rc;
    clone_spawn(c);
    if (clone_pump(c, children_run, limit_ms(c)) == -ETIMEDOUT)
        fail_late(c, never_ran, "it did not run");
    if (!c->interrupted)
        follow(c);
    if (!c->interrupted)
        clone_ask_paused(c);
    return c->interrupted ? -ECANCELED : 0;
}

/* Agents with children that run are let go, or kept to be followed; the others end with what they
 * have */
static void let_go(struct clone *c, bool all_end, bool follow)
{
    for (size_t i = 0; i < c->n_hosts; i++) {
        struct host *h = &c->hosts[i];
        bool keep = !all_end && h->state == HOST_COMPLETE && has_children(c, i);
        if (h->let_go || (keep && follow))
            continue;
        h->let_go = true;
        if (h->state == HOST_FAILED && h->complete_ms && !all_end && !h->foreign) {
            host_close_input(h); /* its children may run: it looks after them, if it is there */
        } else if (h->rundir) {
            h->ending = !keep;
            host_send(h, json_pack("{sb}", keep ? "detach" : "end", true));
        } else {
            host_close(h, 0); /* it never got so far as to listen */
        }
    }
    bool was = c->interrupted;
    c->interrupted = false; /* a second Ctrl-C ends the waiting */
    clone_pump(c, hosts_silent, END_LIMIT_MS);
    for (size_t i = 0; i < c->n_hosts; i++)
        if (c->hosts[i].let_go)
            host_close(&c->hosts[i], 2000);
    c->interrupted |= was;
}

/* Nothing is left of those */
static void fail_all(struct clone *c)
{
    const char *why = c->interrupted ? "interrupted" : c->why.text;

    for (size_t k = 0; k < c->n_children; k++) {
        struct child *child = &c->children[k];
        if (child->state == CHILD_FAILED || child->state == CHILD_ENDED)
            continue;
        child_fail(child, "%s", *why ? why : "not started");
    }
}

static int outcome(const struct clone *c)
{
    size_t good = 0;

    for (size_t k = 0; k < c->n_children; k++)
        good += child_runs(&c->children[k]);
    return good && good == c->n_children ? EXIT_ALL : good ? EXIT_SOME : EXIT_NONE;
}

void clone_block_signals(struct clone *c)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    c->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int clone_run(struct clone *c)
{
    clone_block_signals(c);
    c->begin_ms = now_exact_ms();
    int rc = do_fork(c);
    if (rc == -ECANCELED) { /* in the midst of a command to the parent */
        c->interrupted = true;
        hear_signals(c);
    }
    if (rc)
        fail_all(c);
    clone_show(c, true);
    let_go(c, rc != 0, c->o->follow);
    clone_unexport(c);
    clone_disks_let_go(c->disks);
    int code = outcome(c);
    if (code == EXIT_NONE) {
        clone_disks_end_server(c->disks);
        clone_take_back(c);
        clone_let_run(c);
        clone_forget(c);
    }
    clone_check_runs(c);
    if (c->stopped && code == EXIT_ALL)
        code = EXIT_SOME;
    if (c->o->json)
        clone_print_json(c, code);
    else
        clone_print_table(c, code);
    if (c->o->follow) {
        qmp_free(c->qmp); /* the parent can be forked again meanwhile */
        c->qmp = NULL;
        code = clone_follow(c, code);
        let_go(c, false, false);
    }
    return code;
}

static void host_release(struct host *h)
{
    free(h->name);
    free(h->address);
    free(h->error);
    free(h->rundir);
    free(h->socket);
    free(h->session);
    remote_free(&h->run);
}

void clone_free(struct clone *c)
{
    for (size_t i = 0; i < c->n_hosts; i++)
        host_release(&c->hosts[i]);
    for (size_t k = 0; k < c->n_children; k++) {
        free(c->children[k].qmp);
        free(c->children[k].log);
        free(c->children[k].error);
    }
    free(c->hosts);
    free(c->children);
    nodes_free(&c->nodes);
    words_free(&c->notes);
    words_free(&c->parent_argv);
    free(c->parent_exe);
    free(c->parent_cwd);
    clone_disks_free(c->disks);
    identity_free(c->identity);
    json_decref(c->freeze);
    json_decref(c->answer);
    json_decref(c->io_error);
    free(c->stopped);
    qmp_free(c->qmp);
    if (c->signals > 0)
        close(c->signals);
}
