/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * agent_guest_port.h - a child's port: it is told who it is, and its links go up when it is that
 */
#ifndef FF_CONTROL_AGENT_AGENT_GUEST_PORT_H
#define FF_CONTROL_AGENT_AGENT_GUEST_PORT_H

#include <jansson.h>
#include <stdbool.h>

#include "error.h"
#include "strv.h"

struct channel;

/* @o: {"path": of the child's socket, "message": identity_message(), "links": [netdev, ...]};
 * anything else: NULL, which all of these take */
struct channel *agent_port_new(const json_t *o);
void agent_port_free(struct channel *c);

/* A guest's that visits this host, by the socket @path of its QEMU here; it is told nothing at first */
struct channel *agent_port_visit(const char *path);
/* Connect where it is not, and say this. -errno: nobody hears it */
int agent_port_tell(struct channel *c, const char *lines, struct ff_error *why);
const char *agent_port_word(const struct channel *c); /* of the last CHANNEL_RETURN; "": it had none */

/* It is told this instead, which names the same machine */
void agent_port_say(struct channel *c, const char *message);

/* The child runs: connect and say who it is */
int agent_port_open(struct channel *c, struct ff_error *why);
int agent_port_fd(const struct channel *c); /* to be polled for input; -1: not open */

enum channel_event { CHANNEL_NOTHING, CHANNEL_READY, CHANNEL_EXIT, CHANNEL_RETURN };

/**
 * agent_port_on_input() - read some of what there is, answer it
 * @code: of CHANNEL_EXIT
 *
 * Return: what happened; call it again until that is CHANNEL_NOTHING
 */
enum channel_event agent_port_on_input(struct channel *c, int *code);

/* Links that are to go up and are not yet: go on with that, by the child's QMP socket, without
 * waiting. To be called when agent_port_qmp_fd() (-1: nothing) is readable; true: or after a
 * while */
int agent_port_qmp_fd(const struct channel *c);
bool agent_port_raise_links(struct channel *c, const char *qmp);

#endif
