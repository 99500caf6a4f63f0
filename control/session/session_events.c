/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_events.c - what agents say, and what it means for hosts and VMs
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      listening   the host is there: run directory, socket, port
 *              checked     it has what children need, or lacks something
 *              image       it has the parent's memory, of that session
 *              child       started, attached, ..., ended: the VM's state follows
 *              progress    pages; complete: all are here; lost: the rest never comes
 *              touched     which pages its children have waited for
 *              feed        it cannot feed another agent
 *              misfed      another agent gave it what the parent does not have
 *              paused      the link that they come by broke: it waits for another; resumed
 *              qmp, keep, adopt, say   the answer to a question of ours
 *              warm        its children wait for a fork (agent_warm.c)
 *              end         all of its VMs have ended
 *              error       of one VM, or of the host
 * Invariants   a state of a VM never goes back. Memory can be complete before the guest runs, when
 *              all of it was handed over: such a VM is complete as soon as it runs.
 */
#include <stdlib.h>
#include <string.h>

#include "autojson.h"
#include "session.h"

static uint64_t get_count(const json_t *o, const char *key)
{
    json_int_t n = json_integer_value(json_object_get(o, key));

    return n > 0 ? (uint64_t)n : 0;
}

static struct vm *child_of(struct session *s, const struct host *h, const json_t *e)
{
    uint64_t n = get_count(e, "child");
    struct vm *k = n && n <= s->n_vms ? &s->vms[n - 1] : NULL;

    return k && &s->hosts[k->host] == h ? k : NULL;
}

static void on_listening(struct host *h, const json_t *e)
{
    if (h->state != HOST_STARTING)
        return;
    h->port = (unsigned)get_count(e, "port");
    h->agent_pid = (int)get_count(e, "pid");
    h->rundir = xstrdup(text_of(e, "rundir"));
    h->lasting = xstrdup(*text_of(e, "lasting") ? text_of(e, "lasting") : h->rundir);
    h->socket = xstrdup(text_of(e, "socket"));
    h->state = HOST_LISTENING;
    h->answered_ms = ff_now_exact_ms();
}

static void on_progress(struct host *h, const json_t *e)
{
    h->total_bytes = get_count(e, "total_bytes");
    h->present_bytes = get_count(e, "present_bytes");
    h->lent_bytes = get_count(e, "lent_bytes");
    h->fed_bytes = get_count(e, "fed_bytes");
    h->same_bytes = get_count(e, "same_bytes");
    h->multicast_bytes = get_count(e, "multicast_bytes");
    if (*text_of(e, "no_multicast")) {
        free(h->no_multicast);
        h->no_multicast = xstrdup(text_of(e, "no_multicast"));
    }
    h->pages_by_fault = get_count(e, "pages_by_fault");
    h->fault_p50_us = get_count(e, "fault_p50_us");
    h->fault_p99_us = get_count(e, "fault_p99_us");
    h->fault_max_us = get_count(e, "fault_max_us");
    h->child_faults = get_count(e, "child_faults");
    h->connected = (unsigned)get_count(e, "children");
}

/* The last line of its log says most */
static const char *last_line(const char *log)
{
    const char *nl = strrchr(log, '\n');

    return nl ? nl + 1 : log;
}

static void on_end(struct vm *k, const json_t *e)
{
    const char *how = text_of(e, "how"), *log = last_line(text_of(e, "log"));
    bool well = json_integer_value(json_object_get(e, "code")) == 0;

    k->never_ran = json_is_true(json_object_get(e, "never_ran"));
    snprintf(k->mark, sizeof(k->mark), "%s", text_of(e, "mark"));
    k->shut_down = json_is_true(json_object_get(e, "shut_down"));
    k->end_unclear = json_is_null(json_object_get(e, "shut_down"));
    k->ended_well = well;
    if (k->state == VM_FAILED)
        return;
    if ((well || k->said) && vm_runs(k))
        k->state = VM_ENDED;
    else
        vm_fail(k, "it ended while %s: %s%s%s", vm_state_name(k->state), how,
                   *log ? ": " : "", log);
}

/* Memory can be complete before the guest runs, when all of it was there at once */
static void move_on(struct vm *k, enum vm_state to, double *when, double now)
{
    if (!*when)
        *when = now;
    if (to == VM_COMPLETE && !k->running_ms)
        return;
    if (to == VM_RUNNING && k->complete_ms)
        to = VM_COMPLETE;
    if (k->state < to)
        k->state = to;
}

/* The work is done, and its end follows */
static void on_exit_event(struct vm *k, const json_t *e)
{
    if (!k->said)
        k->code = (int)get_count(e, "code") & 255;
    k->said = true;
}

static void on_child_event(struct vm *k, const json_t *e, double now)
{
    const char *what = text_of(e, "what");

    k->pid = (pid_t)get_count(e, "pid");
    if (!strcmp(what, "ended"))
        on_end(k, e);
    else if (k->state == VM_FAILED)
        return;
    else if (!strcmp(what, "started"))
        move_on(k, VM_STARTED, &k->started_ms, now);
    else if (!strcmp(what, "attached"))
        move_on(k, VM_ATTACHED, &k->attached_ms, now);
    else if (!strcmp(what, "running"))
        move_on(k, VM_RUNNING, &k->running_ms, now);
    else if (!strcmp(what, "complete"))
        move_on(k, VM_COMPLETE, &k->complete_ms, now);
    else if (!strcmp(what, "ready"))
        k->ready_ms = now;
    else if (!strcmp(what, "exit"))
        on_exit_event(k, e);
    else if (!strcmp(what, "return")) {
        free(k->returns);
        k->returns = xstrdup(text_of(e, "word"));
    }
    /* "lost": its end follows, and says why */
}

/* Of the memory that was on its way. Where no child has run yet, the parent has it all */
static void on_lost(struct session *s, struct host *h, const char *error)
{
    bool ran = false;

    for (size_t k = 0; k < s->n_vms; k++)
        ran |= &s->hosts[s->vms[k].host] == h && s->vms[k].running_ms > 0;
    if (ran)
        host_fail(s, h, "the memory that was missing there is lost: %s", error);
    else
        host_fail(s, h, "the parent's memory did not get there, and no child has run: %s", error);
}

/* It says in time what came of it */
static void on_paused(struct session *s, struct host *h, const json_t *e)
{
    h->paused_until_ms = ff_now_ms() + get_count(e, "seconds") * 1000;
    if (!h->pauses++)
        session_note(s, "host %s: the link from the parent broke, and was waited for: %s",
                 h->node->host, text_of(e, "error"));
}

/* That other host does not get its memory from @h */
static void on_feed(struct session *s, struct host *h, const json_t *e)
{
    for (size_t i = 0; i < s->n_hosts; i++) {
        struct host *fed = &s->hosts[i];
        FF_AUTO_FREE char *at = fed->feeder == h && !fed->unfed ? host_at(fed) : NULL;
        if (at && !strcmp(at, text_of(e, "to")))
            fed->unfed = xstrdup(text_of(e, "error"));
    }
}

/* That other one may have said already that it feeds @h no more */
static void on_misfed(struct session *s, struct host *h, const json_t *e)
{
    struct host *by = h->feeder ? h->feeder : h->not_by;
    bool is_news = by ? !by->gives_wrong : !h->was_misfed;

    h->was_misfed = true;
    if (by)
        by->gives_wrong = true;
    h->feeder = NULL;
    if (is_news) /* once, however often a host says so */
        session_note(s, "host %s: host %s gave it memory that is not the parent's, and gives no host any "
             "more: %s", h->node->host, by ? by->node->host : "?", text_of(e, "error"));
}

/* Else the end of the launcher says so */
static void on_detached(struct session *s, struct host *h)
{
    if (!h->stays)
        return;
    spawn_leave(&h->run);
    if (!h->let_go)
        host_fail(s, h, "the agent there goes on alone: it was told so by somebody else");
}

void session_on_agent_event(struct session *s, struct host *h, const json_t *e)
{
    const char *name = text_of(e, "event");
    struct vm *k = child_of(s, h, e);
    double now = ff_now_exact_ms();

    h->ping_ms = 0;
    h->heard_ms = ff_now_ms();
    if (!strcmp(name, "listening")) {
        on_listening(h, e);
    } else if (!strcmp(name, "checked")) {
        h->checked = true;
        h->lacks_flags = json_is_true(json_object_get(e, "lacks-flags"));
        h->answered_ms = now;
    } else if (!strcmp(name, "progress")) {
        on_progress(h, e);
    } else if (!strcmp(name, "image")) {
        if (!h->session)
            h->session = xstrdup(text_of(e, "session"));
        if (h->state == HOST_LISTENING)
            h->state = HOST_IMAGE;
        h->image_ms = now;
    } else if (!strcmp(name, "paused")) {
        on_paused(s, h, e);
    } else if (!strcmp(name, "feed")) {
        on_feed(s, h, e);
    } else if (!strcmp(name, "touched") && !h->touched) {
        h->touched = xstrdup(text_of(e, "pages"));
    } else if (!strcmp(name, "misfed")) {
        on_misfed(s, h, e);
    } else if (!strcmp(name, "resumed")) {
        h->paused_until_ms = 0;
    } else if (!strcmp(name, "complete")) {
        if (h->state == HOST_LISTENING || h->state == HOST_IMAGE)
            h->state = HOST_COMPLETE;
        h->complete_ms = now;
    } else if (!strcmp(name, "end")) {
        h->ended = true;
    } else if (!strcmp(name, "lost")) {
        on_lost(s, h, text_of(e, "error"));
    } else if (!strcmp(name, "qmp") || !strcmp(name, "keep") || !strcmp(name, "adopt") ||
               !strcmp(name, "say") || !strcmp(name, "same")) {
        json_decref(s->answer);
        s->answer = json_incref((json_t *)e);
    } else if (!strcmp(name, "detached")) {
        on_detached(s, h);
    } else if (!strcmp(name, "pong")) {
        h->pings -= h->pings > 0;
    } else if (!strcmp(name, "warm")) {
        h->warm = true;
        h->pss_bytes = get_count(e, "pss_bytes");
    } else if (!strcmp(name, "child") && k) {
        on_child_event(k, e, now);
    } else if (!strcmp(name, "error") && k) {
        vm_fail(k, "%s", text_of(e, "error"));
    } else if (!strcmp(name, "error") && !json_object_get(e, "child")) {
        host_fail(s, h, "%s", text_of(e, "error"));
    }
}
