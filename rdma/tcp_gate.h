/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_gate.h - the handshake over sockets: of one source, and of all who come to a listener
 */
#ifndef FF_RDMA_TCP_GATE_H
#define FF_RDMA_TCP_GATE_H

#include <poll.h>

#include "handshake.h"

#define TCP_GATE_MAX 64u /* strangers at once, and pollfds */
#define TCP_GATE_CERTS_MAX 16u /* of them at once that exchange certificates */
#define TCP_GATE_TURN 8u /* of them to be added between two calls of tcp_gate_next() */

struct tcp_gate;

/* The source's side, over a socket that is connected to @host: 0, or -errno as ff_hs_prove(),
 * tcp_recv_all() and ff_certs_step() */
int tcp_gate_pass(int fd, const struct ff_key *key, const char *host, int cancel_fd,
                  int timeout_ms, struct ff_epoch *e, struct ff_error *err);

/* The destination's side; takes all memory that it will ever need. @key is borrowed */
int tcp_gate_new(const struct ff_key *key, struct tcp_gate **out, struct ff_error *err);
void tcp_gate_free(struct tcp_gate *g); /* @g may be NULL */

/* A connection that nobody has heard; takes @fd. Another may lose its place for it */
void tcp_gate_add(struct tcp_gate *g, int fd);

/* Hear all of them: the descriptor of one that has the key, with its keys in *@e until the next
 * call; -EAGAIN: none. Those that are wrong or late are dropped */
int tcp_gate_next(struct tcp_gate *g, const struct ff_epoch **e);

/* What to wait for before the next call of it; no longer than tcp_gate_ms(), -1: no limit */
unsigned tcp_gate_poll(const struct tcp_gate *g, struct pollfd p[TCP_GATE_MAX]);
int tcp_gate_ms(const struct tcp_gate *g);

#endif
