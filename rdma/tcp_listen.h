/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_listen.h - who connects: control connections, and the queues of a session
 */
#ifndef FF_RDMA_TCP_LISTEN_H
#define FF_RDMA_TCP_LISTEN_H

#include "link.h"

/* A control connection: its descriptor, or -errno as ff_tcp_accept() */
int tcp_listen_take(struct ff_listener *ls, int timeout_ms);

int tcp_listen_timeout_ms(const struct ff_listener *ls); /* of links */

/* The queues of @session, one of each kind, while @ctrl_fd is not closed: 0, or -errno. Takes what
 * is in @fd: -1: that one did not come */
int tcp_listen_joins(struct ff_listener *ls, int ctrl_fd, const uint8_t session[FF_SESSION_LEN],
                     int timeout_ms, int fd[FF_QUEUES], struct ff_error *err);

#endif
