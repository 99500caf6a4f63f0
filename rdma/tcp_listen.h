/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_listen.h - who connects: control connections, and the queues of a session
 */
#ifndef FF_RDMA_TCP_LISTEN_H
#define FF_RDMA_TCP_LISTEN_H

#include <poll.h>

#include "tcp_gate.h"
#include "tcp_wire.h"

/* A control connection: its descriptor, or -errno as ff_tcp_accept(). *@e: its keys until the next
 * call, NULL where this side has no key */
int tcp_listen_take(struct ff_listener *ls, int timeout_ms, const struct ff_epoch **e);

/* What to wait for before the next tcp_listen_take() that does not wait. @resting: nobody can be
 * accepted now. Lowers *@timeout_ms, -1: no limit, to when somebody is late */
#define TCP_LISTEN_FDS (8 + TCP_GATE_MAX)
unsigned tcp_listen_poll(const struct ff_listener *ls, bool resting, int *timeout_ms,
                         struct pollfd p[TCP_LISTEN_FDS]);

int tcp_listen_timeout_ms(const struct ff_listener *ls); /* of links */
const struct ff_tos *tcp_listen_tos(const struct ff_listener *ls);
int tcp_listen_cancel_fd(const struct ff_listener *ls);  /* readable: cancelled */

/* The queues that have @tokens, one of each kind, while @ctrl_fd is not closed: 0, or -errno. Takes
 * what is in @fd: -1: that one did not come */
int tcp_listen_joins(struct ff_listener *ls, int ctrl_fd, const struct tcp_tokens *tokens,
                     int timeout_ms, int fd[FF_QUEUES], struct ff_error *err);

#endif
