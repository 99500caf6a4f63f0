/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * control.c - send and expect control messages
 */
#include <errno.h>
#include <stdatomic.h>

#include "control.h"
#include "error.h"

static int or_cancelled(struct ff_control *c, int rc, struct ff_error *err)
{
    if (atomic_load(c->cancelled))
        return ff_error_set(err, ECANCELED, "canceled");
    return rc;
}

static int no_link(struct ff_control *c, struct ff_error *err)
{
    return or_cancelled(c, ff_error_set(err, ENOTCONN, "there is no link: wait until one resumes"),
                        err);
}

/* The message just received is a REFUSE */
static int refused(struct ff_control *c, struct ff_error *err)
{
    char text[FF_WIRE_TEXT_MAX + 1];
    int rc = ff_wire_get_refuse(c->buf, (size_t)c->len, &c->refusal, text, err);

    return rc ? rc : ff_error_set(err, EREMOTEIO, "the peer ended it: %s", text);
}

int ff_control_reason(struct ff_control *c, int rc, struct ff_error *err)
{
    struct ff_error why;

    if (c->others_read)
        return rc;
    if (ff_control_expect(c, FF_MSG_REFUSE, 0, 0, &why) != FF_MSG_REFUSE)
        return rc;
    return refused(c, err);
}

int ff_control_check_auth(const struct ff_control *c, unsigned auth, const char *name,
                          struct ff_error *err)
{
    if ((auth == FF_WIRE_AUTH_KEY) == c->link->sealed)
        return 0;
    return ff_error_set(err, EPROTO,
                        "%s: authentication kind %u over a link %s a key; each link of a move has "
                        "one, or none has",
                        name, auth, c->link->sealed ? "with" : "without");
}

int ff_control_send(struct ff_control *c, int len, struct ff_error *err)
{
    if (len < 0)
        return len;
    if (!c->link)
        return no_link(c, err);
    int rc = c->link->ops->send(c->link, c->buf, (uint32_t)len, err);
    return rc ? ff_control_reason(c, or_cancelled(c, rc, err), err) : 0;
}

int ff_control_expect(struct ff_control *c, enum ff_msg want, uint32_t also, int timeout_ms,
                      struct ff_error *err)
{
    if (!c->link)
        return no_link(c, err);
    int len = c->link->ops->recv(c->link, c->buf, timeout_ms, err);
    if (len < 0) {
        ff_error_pass(err, len, "wait for %s", ff_msg_name(want));
        return or_cancelled(c, len, err);
    }
    c->len = len;
    int type = ff_wire_type(c->buf, (size_t)len, err);
    if (type < 0 || type == (int)want || also & FF_MSG_BIT(type))
        return type;
    if (type == FF_MSG_REFUSE)
        return refused(c, err);
    return ff_error_set(err, EPROTO, "wire: read message: %s (want %s)",
                        ff_msg_name((unsigned)type), ff_msg_name(want));
}

void ff_control_refuse(struct ff_control *c, const char *why)
{
    ff_control_send(c, ff_wire_put_refuse(c->buf, FF_REFUSAL_FINAL, why), NULL);
}
