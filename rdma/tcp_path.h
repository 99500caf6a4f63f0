/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_path.h - whether packets of full size arrive
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      detect an MTU black hole (9000 at both hosts, 1500 between, no ICMP) before the guest
 *              stops: all earlier messages are small. Each side sends a pad longer than a packet on
 *              each new connection, and waits until the peer's kernel has acknowledged it.
 * Picture      FAULT, PREFILL: pad ->   <- pad     then control: pad ->   <- pad
 *              Control comes last: by it the peer can still be told why.
 * Failure      EMSGSIZE, which names the MTU. The connection's small packets did arrive.
 * Limits       polls SIOCOUTQ every 1 to 16 ms: poll(2) does not report acknowledgements.
 */
#ifndef FF_RDMA_TCP_PATH_H
#define FF_RDMA_TCP_PATH_H

#include <stdint.h>

#include "tcp_queue.h"

/* Wait until @end_ns at most. Return 0, -EMSGSIZE, -ECANCELED, or the error that broke a connection.
 * Unix sockets return 0 at once */
int tcp_path_check_queues(struct tcp_queue *const q[FF_QUEUES], int cancel_fd, uint64_t end_ns,
                          struct ff_error *err);
int tcp_path_check_control(int fd, int cancel_fd, uint64_t end_ns, struct ff_error *err);

#endif
