/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_qmp.c - one command for a child's QEMU, for who started the agent
 */
#include <errno.h>

#include "agent.h"
#include "qmp.h"

#define LIMIT_MS 5000 /* of connecting, and of the command: meanwhile the agent hears nothing else */

/* *@again: nothing was asked; its socket may be there later */
static int ask(const struct kid *kid, const json_t *o, json_t **result, bool *again,
               struct why *why)
{
    const char *execute = json_string_value(json_object_get(o, "execute"));
    struct qmp *q;

    if (!execute || !kid || !kid->qmp || kid->state == KID_ENDED)
        return refuse(why, EINVAL, "qmp: %s", !execute ? "want the name of a command"
                                          : "there is no such child, or it has no socket");
    int rc = qmp_connect(kid->qmp, -1, LIMIT_MS, &q, why);
    if (rc) {
        *again = true;
        return rc;
    }
    rc = qmp_command(q, execute, json_incref(json_object_get(o, "arguments")), result, why);
    qmp_free(q);
    return rc;
}

json_t *kids_qmp(struct kids *k, const json_t *o)
{
    json_int_t number = json_integer_value(json_object_get(o, "child"));
    json_t *id = json_object_get(o, "id"), *result = NULL;
    json_t *e = json_pack("{ss sI}", "event", "qmp", "child", number);
    bool again = false;
    struct why why;

    if (id)
        json_object_set(e, "id", id);
    if (!ask(kids_find(k, (unsigned)number), o, &result, &again, &why)) {
        json_object_set_new(e, "return", result ? result : json_object());
        return e;
    }
    json_object_set_new(e, "error", json_string(why.text));
    if (again)
        json_object_set_new(e, "again", json_true());
    return e;
}
