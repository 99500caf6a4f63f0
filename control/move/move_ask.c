/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_ask.c - questions to the QEMU on the other host and to the process beside it, by their agent
 */
#include <errno.h>
#include <string.h>

#include "autojson.h"
#include "move.h"

/* Its agent holds no memory */
void move_agent_options(const struct session *s, const struct host *h, struct strv *w)
{
    (void)h;
    strv_add(w, "--timeout");
    strv_add(w, "%u", s->o.timeout_s);
}

int move_limit_ms(const struct move *m)
{
    return (int)m->s.o.timeout_s * 1000;
}

/* Neither the agent nor the QEMU there has ended. -EHOSTUNREACH, -ECHILD */
int move_check_there(struct move *m, struct ff_error *why)
{
    const struct host *h = move_host(m);
    const struct vm *k = move_child(m), *side = move_side(m);

    if (h->state == HOST_FAILED)
        return ff_error_set(why, EHOSTUNREACH, "%s: %s", h->node->host, h->error);
    if (k->state == VM_FAILED)
        return ff_error_set(why, ECHILD, "its QEMU on %s: %s", h->node->host, k->error);
    if (side->state == VM_FAILED && !m->sent)
        return ff_error_set(why, ECHILD, "the process beside its QEMU on %s: %s", h->node->host, side->error);
    return 0;
}

/* Before `migrate` Ctrl-C ends every wait; from then on the source's state decides */
int move_check_wait(struct move *m, uint64_t end_ms, const char *what, struct ff_error *why)
{
    int rc = move_check_there(m, why);

    if (rc)
        return rc;
    if (m->s.interrupted && !m->sent)
        return ff_error_set(why, ECANCELED, "interrupted");
    if (ff_now_ms() > end_ms)
        return ff_error_set(why, ETIMEDOUT, "%s: %s: no answer within %u s%s%s",
                            move_host(m)->node->host, what, m->s.o.timeout_s,
                            move_host(m)->run.words ? ": " : "",
                            move_host(m)->run.words ? move_host(m)->run.words : "");
    return 0;
}

int move_wait_answer(struct move *m, const char *event, const char *what, struct ff_error *why)
{
    uint64_t end = ff_now_ms() + (uint64_t)move_limit_ms(m);

    for (;;) {
        const char *name = json_string_value(json_object_get(m->s.answer, "event"));
        json_int_t id = json_integer_value(json_object_get(m->s.answer, "id"));
        if (name && !strcmp(name, event) && (strcmp(event, "qmp") || id == m->asked))
            return 0;
        int rc = move_check_wait(m, end, what, why);
        if (rc)
            return rc;
        session_turn(&m->s, MOVE_TURN_MS);
    }
}

void move_forget_answer(struct move *m)
{
    json_decref(m->s.answer);
    m->s.answer = NULL;
}

/* @q, taken over, by the agent: of child @number */
static int ask_there(struct move *m, unsigned number, json_t *q, const char *what, json_t **result,
                     struct ff_error *why)
{
    const char *who = number == 1 ? "QEMU" : "process beside it", *host = move_host(m)->node->host;

    json_object_set_new(q, "child", json_integer(number));
    json_object_set_new(q, "id", json_integer(++m->asked));
    move_forget_answer(m);
    host_send(move_host(m), json_pack("{so}", "qmp", q));
    int rc = move_wait_answer(m, "qmp", what, why);
    if (rc)
        return rc;
    const char *error = json_string_value(json_object_get(m->s.answer, "error"));
    if (error && (rc = move_check_there(m, why))) /* that it has ended says more */
        return rc;
    if (json_is_true(json_object_get(m->s.answer, "again")))
        return ff_error_set(why, EAGAIN, "its %s on %s: %s", who, host, error);
    if (error)
        return ff_error_set(why, json_is_true(json_object_get(m->s.answer, "unanswered")) ? ENODATA : EREMOTEIO, "its %s on %s: %s",
                            who, host, error);
    if (result)
        *result = json_incref(json_object_get(m->s.answer, "return"));
    return 0;
}

/* The process beside it passes on what it does not know. When that has ended, its QEMU is free for others */
int move_ask(struct move *m, const char *execute, json_t *arguments, json_t **result,
             struct ff_error *why)
{
    bool by_side = m->via == VIA_ATTACH && move_side(m)->state == VM_STARTED;

    return move_ask_child(m, by_side ? 2 : 1, execute, arguments, result, why);
}

int move_ask_child(struct move *m, unsigned child, const char *execute, json_t *arguments, json_t **result,
                   struct ff_error *why)
{
    json_t *q = json_pack("{ss}", "execute", execute);

    if (arguments)
        json_object_set_new(q, "arguments", arguments);
    return ask_there(m, child, q, execute, result, why);
}

int move_ask_long(struct move *m, const char *execute, json_t *arguments, json_t **result,
                  struct ff_error *why)
{
    json_t *q = json_pack("{ss so si}", "execute", execute, "arguments", arguments, "limit_s", (int)m->s.o.timeout_s);

    return ask_there(m, m->visit ? 2 : 1, q, execute, result, why);
}

int move_ask_first(struct move *m, unsigned child, const char *execute, json_t **result,
                   struct ff_error *why)
{
    uint64_t end = ff_now_ms() + (uint64_t)move_limit_ms(m);
    int rc;

    for (;;) {
        json_t *q = execute ? json_pack("{ss}", "execute", execute) : json_pack("{sb}", "add-key", true);
        rc = ask_there(m, child, q, execute ? execute : "object-add", result, why);
        if (rc != -EAGAIN)
            return rc;
        if (ff_now_ms() > end)
            return ff_error_set(why, ETIMEDOUT, "%s does not answer within %u s; see %s",
                                why->text, m->s.o.timeout_s, m->s.vms[child - 1].log);
        session_turn(&m->s, MOVE_TURN_MS);
    }
}
