/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * session_key.c - the key of a move or fork: made here, given to agents and to the QEMU here
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      nobody but the two ends of this move, or fork, may be one of its ends. So each has a
 *              key of its own, which nobody types, sees or keeps.
 * Picture      key, in memory of base/secret.h
 *                -> agent: the first line of its input. It gives the key to a QEMU there by QMP
 *                -> the QEMU here: a secret object, from before the command that needs it until
 *                   that command has returned: QEMU reads it at once
 *              An address has key=KEY_SECRET, the object's name.
 * Limits       agents of one fork have one key. Where agent and parent are on one host there is no
 *              address, and no key: the agent's socket sees who connects.
 */
#include <errno.h>
#include <string.h>

#include "qmp_secret.h"
#include "session.h"

#define WRITE_LIMIT_MS 10000

int session_make_key(struct session *s, struct ff_error *why)
{
    return key_text_make(&s->key, why);
}

int session_send_key(const struct session *s, struct host *h, struct ff_error *why)
{
    host_flush(h, WRITE_LIMIT_MS); /* a key is in no list. At the start of an agent its pipe is empty: none waits here */
    int rc = key_line_write(h->run.in, s->key, WRITE_LIMIT_MS);

    if (rc == -EPIPE) { /* its end is heard on the other pipe, with its last words */
        spawn_close_input(&h->run);
        return 0;
    }
    return rc ? ff_error_set(why, -rc, "%s: give the agent its key: %s", h->node->host,
                             strerror(-rc)) : 0;
}

char *session_link_options(const struct session *s, const struct host *h)
{
    const char *options = s->o.link_options;

    return xprintf("%s%s%s", options ? "," : "", options ? options : "",
                   h->keyed ? ",key=" KEY_SECRET : "");
}

/* One that a killed program has left is in the way */
int session_lend_key(const struct session *s, struct ff_error *why)
{
    session_take_key(s);
    int rc = qmp_add_key(s->qmp, s->key, why);
    if (rc)
        session_take_key(s); /* without an answer it may be there */
    return rc;
}

void session_take_key(const struct session *s)
{
    struct ff_error ignored; /* there is none */

    qmp_command(s->qmp, "object-del", json_pack("{ss}", "id", KEY_SECRET), NULL, &ignored);
}
