/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_path.h - whether packets of full size arrive
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a network between two hosts of MTU 9000 that passes 1500 and says nothing drops every
 *              packet of full size, and no other: HELLO and all that follows before the guest stops
 *              is small. So each side sends more than a packet on each connection when it has been
 *              opened, and waits until the peer's kernel has acknowledged it.
 * Picture      FAULT, PREFILL: pad ->   <- pad     then control: pad ->   <- pad
 *              Control comes last: by it the peer can still be told why.
 * Failure      EMSGSIZE, which names the MTU. The connection's small packets did arrive.
 * Limits       NAP: nothing wakes who waits for an acknowledgement (SIOCOUTQ).
 */
#ifndef FF_RDMA_TCP_PATH_H
#define FF_RDMA_TCP_PATH_H

#include <stdint.h>

#include "tcp_queue.h"

/* Until @end_ns: 0; -EMSGSIZE; -ECANCELED; whatever else breaks a connection. Sockets of this host
 * have no packets */
int tcp_path_check_queues(struct tcp_queue *const q[FF_QUEUES], int cancel_fd, uint64_t end_ns,
                          struct ff_error *err);
int tcp_path_check_control(int fd, int cancel_fd, uint64_t end_ns, struct ff_error *err);

#endif
