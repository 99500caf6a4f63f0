/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_socket.h - sockets with limits: connect, send and receive, all or nothing
 *
 * Sockets are non-blocking. @cancel_fd: -1, or a descriptor that becomes readable to give
 * up. Functions return 0 or -errno: -ETIMEDOUT, -ECANCELED, -ECONNRESET (end of stream).
 */
#ifndef FF_RDMA_TCP_SOCKET_H
#define FF_RDMA_TCP_SOCKET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "link.h"

struct addrinfo;

/* Milliseconds until @end_ns of CLOCK_MONOTONIC, rounded up; 0 when it has passed */
int tcp_ms_left(uint64_t end_ns);

/* Wait for poll(2) @events; @timeout_ms < 0: without a limit */
int tcp_wait_fd(int fd, short events, int cancel_fd, int timeout_ms);

int tcp_recv_all(int fd, void *buf, size_t len, int cancel_fd, int timeout_ms);

/* @iov is used up. -EIO: it failed after a part was sent; otherwise nothing was */
int tcp_send_all(int fd, struct iovec *iov, size_t n_iov, int cancel_fd, int timeout_ms);

/* Both ends have one address: the peer is on this host, nothing between us has a queue */
bool tcp_is_local(int fd);

/* TCP_NODELAY, and a peer that is silent for @timeout_ms is gone */
void tcp_set_options(int fd, int timeout_ms);
void tcp_set_congestion(int fd); /* of a queue that is connected */

void tcp_set_tos(int fd, int tos); /* the traffic class of its packets: struct ff_tos */

/* Ahead of other traffic where a queue makes a difference: this host's (pfifo_fast, prio) does,
 * a network's may */
void tcp_set_urgent(int fd);

/* A connected socket, or -errno */
int tcp_connect_addr(const struct sockaddr *sa, socklen_t len, int cancel_fd, int timeout_ms);

/* A stream socket of this host (AF_UNIX) */
bool tcp_is_stream(int fd);

/* To be freed with freeaddrinfo() */
int tcp_resolve(const struct ff_link_params *p, bool passive, struct addrinfo **out,
                struct ff_error *err);

#endif
