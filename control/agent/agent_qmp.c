/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_qmp.c - questions to children's QEMUs: of who started the agent, and its own
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      vmclone and farfork move reach a QEMU on another host only through its agent. A
 *              question comes as a JSON line and its answer goes back as an event; nobody waits.
 *              The agent has one question of its own: has a source come to a QEMU that waits for a
 *              move? Where `query-migrate` says `setup`, the agent stops that QEMU (SIGSTOP), looks
 *              once more, and kills it if nothing came meanwhile: else it goes on. Any other answer
 *              ends nothing.
 * Limits       LIMIT_MS for an answer, unless the question has a limit of its own. One that is older
 *              than FRESH_MS when the QEMU stands still says nothing any more.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "agent.h"
#include "autojson.h"
#include "qmp.h"
#include "qmp_job.h"
#include "qmp_secret.h"
#include "rundir.h"

#define LIMIT_MS 5000 /* of connecting, and of the command */
#define LIMIT_MAX_S 86400
#define STOP_MS 1000  /* its threads stop within one; one that waits for a disk may take longer */
#define FRESH_MS 50   /* an answer takes less than one; a switch, as much and more */

struct agent_ask {
    unsigned child;
    json_t *event; /* what is said with the answer; NULL: ends a child that nobody uses */
    struct qmp_job *job;
    uint64_t limit_ms, end_ms;
    struct agent_ask *next;
};

static struct agent_ask *ask_new(struct agent_vms *k, const struct agent_vm *vm, uint64_t limit_ms, json_t *event)
{
    struct agent_ask *a = xcalloc(1, sizeof(*a)), **at = &k->asks;

    *a = (struct agent_ask){.child = vm->number, .event = event, .job = qmp_job_new(vm->qmp),
                          .limit_ms = limit_ms, .end_ms = ff_now_ms() + limit_ms};
    while (*at)
        at = &(*at)->next;
    *at = a;
    return a;
}

static void ask_vm(struct agent_vms *k, const struct agent_vm *vm, const char *execute,
                   json_t *arguments, uint64_t limit_ms, json_t *event)
{
    qmp_job_add(ask_new(k, vm, limit_ms, event)->job, execute, arguments);
}

static void ask_free(struct agent_ask *a)
{
    qmp_job_free(a->job);
    json_decref(a->event);
    free(a);
}

json_t *agent_vms_qmp(struct agent_vms *k, const json_t *o)
{
    const char *execute = json_string_value(json_object_get(o, "execute"));
    bool add = json_is_true(json_object_get(o, "add-key"));
    json_int_t number = json_integer_value(json_object_get(o, "child"));
    struct agent_vm *vm = agent_vms_find(k, number);
    bool there = vm && vm->qmp && vm->state != AGENT_VM_ENDED;
    char *key = add && there && k->key ? key_text_new(k->key) : NULL;
    json_t *id = json_object_get(o, "id"),
           *e = json_pack("{ss sI}", "event", "qmp", "child", number);

    if (id)
        json_object_set(e, "id", id);
    if (key) {
        qmp_job_add_key(ask_new(k, vm, LIMIT_MS, e)->job, key);
        return NULL;
    }
    if (execute && !add && there) {
        json_int_t own_s = json_integer_value(json_object_get(o, "limit_s"));
        ask_vm(k, vm, execute, json_incref(json_object_get(o, "arguments")),
               own_s > 0 && own_s <= LIMIT_MAX_S ? (uint64_t)own_s * 1000 : LIMIT_MS, e);
        return NULL;
    }
    const char *why = add && !k->key   ? "qmp: this agent has no key"
                      : add || execute ? "qmp: no such child here, or it has no socket"
                                       : "qmp: want the name of a command";
    json_object_set_new(e, "error", json_string(why));
    return e;
}

void agent_vms_end_unused(struct agent_vms *k)
{
    for (size_t i = 0; i < k->n; i++)
        if (k->v[i].state != AGENT_VM_ENDED && k->v[i].qmp)
            ask_vm(k, &k->v[i], "query-migrate", NULL, LIMIT_MS, NULL);
}

size_t agent_vms_poll(const struct agent_vms *k, struct pollfd *p)
{
    size_t n = 0;

    for (const struct agent_ask *a = k->asks; a; a = a->next, n++)
        if (p)
            p[n] = (struct pollfd){.fd = qmp_job_fd(a->job), .events = POLLIN};
    return n;
}

/* With all of its group. False: it has ended, or does not stop */
static bool stop_vm(const struct agent_vm *vm)
{
    uint64_t end = ff_now_ms() + STOP_MS;
    siginfo_t is = {0};

    kill(-vm->pid, SIGSTOP);
    kill(vm->pid, SIGSTOP);
    while (!waitid(P_PID, (id_t)vm->pid, &is, WSTOPPED | WEXITED | WNOHANG | WNOWAIT) && !is.si_pid &&
           ff_now_ms() < end)
        poll(NULL, 0, 1);
    return is.si_pid && is.si_code == CLD_STOPPED;
}

static void let_vm_run(const struct agent_vm *vm)
{
    kill(-vm->pid, SIGCONT);
    kill(vm->pid, SIGCONT);
}

/* The file of until-go says so: it is empty as long as no source has come */
static bool is_unused(const char *until_go)
{
    FF_AUTO_FREE char *mark = rundir_mark(until_go);

    return mark && !*mark;
}

/* The child whose file of until-go says whether a source has come to @vm: a side makes that of the QEMU that it serves */
static struct agent_vm *served_by(struct agent_vms *k, struct agent_vm *vm)
{
    for (size_t i = 0; vm->is_side && i < k->n; i++)
        if (!k->v[i].is_side && k->v[i].state != AGENT_VM_ENDED)
            return &k->v[i];
    return vm;
}

/* Nothing changes between the last look and its end: it is stopped. An answer that this agent, or its
 * QEMU, has let lie says nothing any more; nor does a side whose file is not known here, since a switch takes it
 * longer than an answer */
static void end_unused(struct agent_vms *k, const struct agent_ask *a, int rc)
{
    const json_t *info = rc ? NULL : json_object_get(qmp_job_answer(a->job, 0), "return");
    const char *status = json_string_value(json_object_get(info, "status"));
    struct agent_vm *vm = agent_vms_find(k, a->child), *of = vm ? served_by(k, vm) : NULL;

    if (!info)
        k->ask_unused_again = true;
    else if (!status || strcmp(status, "setup") || !vm || vm->state == AGENT_VM_ENDED)
        return;
    else if (qmp_job_age_ms(a->job) > FRESH_MS)
        ask_vm(k, vm, "query-migrate", NULL, LIMIT_MS, NULL);
    else if (!stop_vm(vm) || qmp_job_age_ms(a->job) > FRESH_MS) {
        let_vm_run(vm);
        ask_vm(k, vm, "query-migrate", NULL, LIMIT_MS, NULL);
    } else if ((of->until_go || vm->is_side) && !is_unused(of->until_go)) {
        let_vm_run(vm); /* its source has come, or a guest runs there */
    } else {
        free(of->until_go); /* no source waits to know */
        of->until_go = NULL;
        agent_vm_kill(vm);
        agent_vm_kill(of);
    }
}

/* Its event, with what came of it */
static json_t *answered(struct agent_ask *a, int rc, const struct ff_error *why)
{
    const json_t *m = rc ? NULL : qmp_job_answer(a->job, 0);
    json_t *e = a->event, *result = json_object_get(m, "return");

    a->event = NULL;
    if (result) {
        json_object_set(e, "return", result);
        return e;
    }
    const json_t *refusal = json_object_get(m, "error");
    const char *desc = json_string_value(json_object_get(refusal, "desc"));
    json_object_set_new(e, "error", json_string(rc ? why->text : desc ? desc : "refused"));
    if (rc && !qmp_job_asked(a->job)) /* its socket may be there later */
        json_object_set_new(e, "again", json_true());
    else if (rc || !strcmp(text_of(refusal, "class"), QMP_UNANSWERED)) /* it was done, or not */
        json_object_set_new(e, "unanswered", json_true());
    return e;
}

json_t *agent_vms_answer(struct agent_vms *k)
{
    struct agent_ask **at = &k->asks;
    json_t *e = NULL;

    while (*at && !e) {
        struct agent_ask *a = *at;
        struct ff_error why;
        int rc = qmp_job_turn(a->job, &why);
        if (rc == -EAGAIN && ff_now_ms() < a->end_ms) {
            at = &a->next;
            continue;
        }
        if (rc == -EAGAIN)
            rc = ff_error_set(
                &why, ETIMEDOUT, "qmp: child %u: no answer within %d s%s", a->child,
                (int)(a->limit_ms / 1000),
                qmp_job_asked(a->job) ? "" : ": perhaps another client is connected to it");
        *at = a->next;
        if (a->event)
            e = answered(a, rc, &why);
        else
            end_unused(k, a, rc);
        ask_free(a);
    }
    return e;
}

void agent_vms_drop_questions(struct agent_vms *k)
{
    while (k->asks) {
        struct agent_ask *a = k->asks;
        k->asks = a->next;
        ask_free(a);
    }
}
