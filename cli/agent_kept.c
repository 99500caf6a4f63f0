/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_kept.c - children that a guest moves to, whatever becomes of who started the agent
 */
#include <errno.h>
#include <string.h>

#include "agent.h"
#include "autojson.h"
#include "overlays.h"

void kids_keep(struct kids *k)
{
    for (size_t i = 0; i < k->n; i++) {
        kid_has_read(&k->v[i]); /* it waits for its guest, and was asked so */
        if (k->v[i].state == KID_STARTED)
            k->v[i].state = KID_ATTACHED;
    }
}

void kids_let_go(struct kids *k)
{
    for (size_t i = 0; i < k->n; i++)
        if (k->v[i].state == KID_ATTACHED)
            k->v[i].state = KID_COMPLETE;
}

json_t *kids_adopt(struct kids *k, const json_t *o)
{
    json_int_t number = json_integer_value(json_object_get(o, "child"));
    json_t *e = json_pack("{ss si}", "event", "adopt", "child", (int)number);
    struct why why;
    int rc = kids_find(k, (unsigned)number)
                 ? overlays_add(k->dir, (unsigned)number, json_object_get(o, "files"), &why)
                 : refuse(&why, ENOENT, "adopt: there is no child %d", (int)number);

    if (rc)
        json_object_set_new(e, "error", json_string(why.text));
    return e;
}

/* What query-migrate of one says, to be released; NULL: it does not answer */
static json_t *ask(struct kids *k, const struct kid *kid)
{
    AUTO_JSON json_t *q = json_pack("{si ss}", "child", (int)kid->number, "execute",
                                    "query-migrate");
    AUTO_JSON json_t *e = kids_qmp(k, q);

    return json_incref(json_object_get(e, "return"));
}

/* It is killed right after its answer: a source that connected in between is far from the switch,
 * and its guest goes on there */
bool kids_end_unused(struct kids *k)
{
    bool again = false;

    for (size_t i = 0; i < k->n; i++) {
        if (k->v[i].state == KID_ENDED)
            continue;
        AUTO_JSON json_t *info = ask(k, &k->v[i]);
        const char *status = json_string_value(json_object_get(info, "status"));
        if (!info)
            again = true;
        else if (status && !strcmp(status, "setup"))
            kid_kill(&k->v[i]);
    }
    return again;
}
