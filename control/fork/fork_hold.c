/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_hold.c - children that were started ahead wait for a request, and become that fork's
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the process that pool.c keeps: an ordinary fork that was begun, and stands still
 *              where --prestart would freeze the parent. A request is the rest of it.
 * Picture      children connected; the parent's monitor is given back  -> ready, to pool.c
 *              request
 *              the parent is asked again: is each child what it would be if it were started now?
 *              taken -> to who asks, which gives its stdout and stderr; the children that are too many end; the others hear of how
 *              many they are; agents answer that this is so; x-farfork-export, and all that follows it
 * Invariants   1. Who asked starts an ordinary fork unless it reads `taken`, which is sent before
 *                 the parent is frozen. When that cannot be sent, nothing was taken.
 *              2. A child that waits has no state, and so nothing to run: it ends with its agent,
 *                 that with this process, and this one with pool.c, until it says `taken`.
 *              3. No agent gets the image before it has ended what is left over, and has what
 *                 the others are to be told: an image may come faster than a launcher's words.
 * Failure      a child or host that ends: none is left, and pool.c begins anew. So it does where
 *              the parent has other disks, devices or memory by now: each fork gives it new
 *              overlays, on which the children that are left over do not stand.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "autojson.h"
#include "fork.h"
#include "session_told.h"
#include "pool_message.h"
#include "rundir.h"

#define TURN_MS 1000
#define PING_EVERY_MS 10000
#define WARM_LIMIT_MS 5000

/* A host, or a child: *@why says how */
static bool any_lost(const struct fork *f, struct ff_error *why)
{
    for (size_t i = 0; i < f->s.n_hosts; i++)
        if (f->s.hosts[i].state == HOST_FAILED) {
            ff_error_set(why, ECHILD, "host %s: %s", f->s.hosts[i].node->host, f->s.hosts[i].error);
            return true;
        }
    for (size_t i = 0; i < f->s.n_vms; i++) {
        const struct vm *k = &f->s.vms[i];
        if (k->state == VM_FAILED || k->state == VM_ENDED) {
            ff_error_set(why, ECHILD, "child %u on %s: %s", k->number,
                         f->s.hosts[k->host].node->host, k->error ? k->error : "it ended");
            return true;
        }
    }
    return false;
}

static bool all_warm(const struct fork *f)
{
    for (size_t i = 0; i < f->s.n_hosts; i++)
        if (!f->s.hosts[i].warm)
            return false;
    return true;
}

/* They are at rest: from here on their share of the CPUs is as any other's */
static int warm_up(struct fork *f, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + WARM_LIMIT_MS;

    session_leave_parent(&f->s);
    for (size_t i = 0; i < f->s.n_hosts; i++)
        host_send(&f->s.hosts[i], json_pack("{sb}", "foreground", true));
    while (!all_warm(f) && !any_lost(f, why) && !f->s.interrupted && ff_now_ms() < end)
        session_turn(&f->s, TURN_MS);
    if (f->s.interrupted)
        return -ECANCELED;
    return any_lost(f, why) ? -ECHILD : 0;
}

static int say_ready(const struct fork *f)
{
    json_t *hosts = json_array();

    for (size_t i = 0; i < f->s.n_hosts; i++) {
        const struct host *h = &f->s.hosts[i];
        json_array_append_new(hosts, json_pack("{ss si sI}", "host", h->node->host, "children",
                                               (int)host_vms(&f->s, h), "pss_bytes",
                                               (json_int_t)h->pss_bytes));
    }
    return pool_send(f->o->hold->control,
                     json_pack("{si si sI so}", "ready", (int)f->s.n_vms, "parent",
                               (int)f->s.parent_pid, "start",
                               (json_int_t)process_start_time(f->s.parent_pid), "hosts", hosts),
                     NULL, 0);
}

/* --- a request --- */

static void take_options(struct fork *f, const json_t *m)
{
    struct fork_options *o = f->o->hold->options;

    o->user_data = json_string_value(json_object_get(m, "user"));
    o->template = json_is_true(json_object_get(m, "template"));
    o->follow = json_is_true(json_object_get(m, "follow"));
    f->s.o.json = json_is_true(json_object_get(m, "json"));
    f->s.o.timeout_s = (unsigned)json_integer_value(json_object_get(m, "timeout"));
}

/* The parent, as it is now */
static int ask_parent(struct fork *f, unsigned n, struct ff_error *why)
{
    pid_t was = f->s.parent_pid;
    int rc = session_find_parent(&f->s, why);

    free(f->first); /* children of other forks have touched pages since */
    f->first = NULL;
    if (!rc)
        rc = fork_attach(f, why);
    if (!rc && f->s.parent_pid != was)
        rc = ff_error_set(why, ESTALE, "the parent is another process");
    if (!rc)
        rc = fork_read_working_set(f, why);
    if (!rc)
        rc = session_add_plugged(&f->s, why);
    if (!rc)
        session_note_told(&f->s, true);
    if (!rc)
        rc = fork_ask_again(f, n, why);
    return rc ? rc : fork_check_asked(f, why);
}

/* Nobody else has to know that this process is not who was asked */
static void speak_for(struct fork *f, const json_t *m, int client)
{
    FF_AUTO_JSON json_t *output = NULL;
    int fds[POOL_FDS] = {-1, -1};

    prctl(PR_SET_PDEATHSIG, 0);
    signal(SIGTTOU, SIG_IGN); /* it is in no terminal's foreground, and writes there */
    if (pool_recv(client, (int)f->s.o.timeout_s * 1000, &output, fds) || fds[POOL_ERR] < 0) {
        pool_close(fds); /* it was killed, and nobody hears */
        fds[POOL_OUT] = open("/dev/null", O_WRONLY | O_CLOEXEC);
        fds[POOL_ERR] = open("/dev/null", O_WRONLY | O_CLOEXEC);
    }
    dup2(fds[POOL_OUT], STDOUT_FILENO);
    dup2(fds[POOL_ERR], STDERR_FILENO);
    pool_close(fds);
    f->o->hold->client = client;
    f->s.o.quiet = json_is_true(json_object_get(m, "quiet"));
    f->s.watch = 0;
}

static int take_held(struct fork *f, const json_t *m, int fds[POOL_FDS], struct ff_error *why)
{
    unsigned n = (unsigned)json_integer_value(json_object_get(m, "n")), timeout_s = f->s.o.timeout_s;

    f->s.begin_ms = ff_now_exact_ms();
    take_options(f, m);
    int rc = ask_parent(f, n, why);
    if (!rc && any_lost(f, why))
        rc = -ECHILD;
    if (!rc)
        rc = pool_send(fds[POOL_CLIENT], json_pack("{si}", "taken", (int)getpid()), NULL, 0);
    if (rc) {
        f->s.o.timeout_s = timeout_s; /* hosts are looked after by the pool's own */
        return rc;
    }
    pool_send(f->o->hold->control, json_pack("{si}", "taken", (int)n), NULL, 0);
    speak_for(f, m, fds[POOL_CLIENT]);
    fds[POOL_CLIENT] = -1;
    session_trim(&f->s, n);
    fork_send_messages(f);
    return 0;
}

/* 0: the fork is the request's; -EAGAIN: it is not, and children wait on */
static int on_request(struct fork *f, struct ff_error *why)
{
    static json_t *m; /* what options point at */
    int fds[POOL_FDS] = {-1, -1}, control = f->o->hold->control;

    json_decref(m);
    m = NULL;
    int rc = pool_recv(control, 0, &m, fds);
    if (rc)
        return -ECANCELED; /* pool.c has ended */
    rc = take_held(f, m, fds, why);
    if (rc) {
        session_leave_parent(&f->s);
        pool_send(fds[POOL_CLIENT], json_pack("{ss}", "no", why->text), NULL, 0);
    }
    pool_close(fds);
    if (!rc || rc == -ESTALE || rc == -ECHILD || f->s.interrupted)
        return rc;
    why->text[0] = '\0'; /* who asked has it */
    return pool_send(control, json_pack("{sb}", "kept", true), NULL, 0) ? -ECANCELED : -EAGAIN;
}

int fork_hold(struct fork *f, struct ff_error *why)
{
    int rc = warm_up(f, why);
    uint64_t asked_ms = ff_now_ms();

    f->s.watch = f->o->hold->control;
    if (!rc && say_ready(f))
        rc = -ECANCELED;
    while (!rc) {
        session_turn(&f->s, TURN_MS);
        bool ask = ff_now_ms() >= asked_ms + PING_EVERY_MS;
        fork_look_after(f, ask);
        if (ask)
            asked_ms = ff_now_ms();
        if (f->s.interrupted)
            return -ECANCELED;
        if (any_lost(f, why))
            return -ECHILD;
        if (!f->s.watched)
            continue;
        rc = on_request(f, why);
        if (!rc)
            return 0;
        rc = rc == -EAGAIN ? 0 : rc;
    }
    return rc;
}

static bool has_to_answer(const struct fork *f, const struct host *h)
{
    (void)f;
    return h->state != HOST_FAILED && h->pings;
}

static void fail_unanswering(struct fork *f, struct host *h)
{
    host_fail(&f->s, h, "no answer for %u s", f->s.o.timeout_s);
}

int fork_hold_settle(struct fork *f)
{
    for (size_t i = 0; i < f->s.n_hosts; i++)
        if (f->s.hosts[i].state != HOST_FAILED)
            host_ping(&f->s.hosts[i]);
    return fork_pump(f, has_to_answer, fail_unanswering, (int)f->s.o.timeout_s * 1000);
}

void fork_hold_failed(const struct fork *f)
{
    json_t *hosts = json_array();

    for (size_t i = 0; i < f->s.n_hosts; i++)
        if (f->s.hosts[i].state == HOST_FAILED)
            json_array_append_new(hosts, json_pack("{ss ss}", "host", f->s.hosts[i].node->host,
                                                   "error", f->s.hosts[i].error));
    pool_send(f->o->hold->control,
              json_pack("{ss so}", "lost", *f->s.why.text ? f->s.why.text : "interrupted", "hosts",
                        hosts), NULL, 0);
}

void fork_hold_done(const struct fork *f)
{
    close(f->o->hold->control);
}
