/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * control.h - send and expect control messages
 */
#ifndef FF_MIGRATE_CONTROL_H
#define FF_MIGRATE_CONTROL_H

#include "link.h"
#include "wire.h"

/* One side's end of the control channel; used by one thread at a time. Cancelling is
 * shutting the link down and setting @cancelled first. */
struct ff_control {
    struct ff_link *link; /* NULL: the last one broke, and is freed */
    _Atomic bool *cancelled;
    uint8_t buf[FF_MSG_MAX]; /* the message received, or being written */
    int len;
    enum ff_refusal refusal; /* of a REFUSE that came, with -EREMOTEIO: what it means */
    bool others_read; /* another thread receives over the link, with a buffer of its own */
};

/* Send what an encoder put into @c->buf; @len is the encoder's result */
int ff_control_send(struct ff_control *c, int len, struct ff_error *err);

/**
 * ff_control_expect() - receive one message, which must be of type @want
 * @also: other types that are welcome, FF_MSG_BIT() of each
 *
 * Return: the type; -EREMOTEIO: the peer refused, with its reason; -ECANCELED; -ETIMEDOUT
 *         naming what was waited for; -EPROTO; the link is broken
 */
int ff_control_expect(struct ff_control *c, enum ff_msg want, uint32_t also, int timeout_ms,
                      struct ff_error *err);

/* The link is broken, which is @rc and @err: a peer that left may have said why. Return: @rc,
 * or -EREMOTEIO and @err its reason */
int ff_control_reason(struct ff_control *c, int rc, struct ff_error *err);

/* Has the link proved what HELLO says of the move's first one? @auth: of HELLO. Each link of a move
 * has a key, or none has: else -EPROTO */
int ff_control_check_auth(const struct ff_control *c, unsigned auth, const char *name,
                          struct ff_error *err);

/* Tell the peer why it ends, as well as can be; for good */
void ff_control_refuse(struct ff_control *c, const char *why);

#endif
