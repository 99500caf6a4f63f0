/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_queue.h - one data connection of the tcp link: requests, replies, completions
 */
#ifndef FF_RDMA_TCP_QUEUE_H
#define FF_RDMA_TCP_QUEUE_H

#include "link.h"
#include "mr.h"

struct tcp_queue;

/* Takes @fd (non-blocking, connected), also on failure */
int tcp_queue_new(int fd, enum ff_queue kind, struct ff_mr_table *mrs, struct tcp_queue **out,
                  struct ff_error *err);
void tcp_queue_free(struct tcp_queue *q);

struct tcp_tls_how;

/* From now on by sealed frames; as tcp_tls_agree(), or -ENOMEM; before @q is used. Of others tcp_queue_shutdown()
 * alone may come meanwhile */
int tcp_queue_seal(struct tcp_queue *q, const struct tcp_tls_how *how, struct ff_error *err);

int tcp_queue_post(struct tcp_queue *q, const struct ff_wr *wr, struct ff_error *err);
int tcp_queue_poll(struct tcp_queue *q, struct ff_wc *wc, unsigned n, int timeout_ms,
                   struct ff_error *err);
/* Send a pad of @zeros, from the next turn on; @q has no requests yet. A turn sends and receives what it can now: 0,
 * and whether something @sends still; or @q is broken */
void tcp_queue_pad(struct tcp_queue *q, uint8_t *zeros);
int tcp_queue_turn(struct tcp_queue *q, bool *sends, struct ff_error *err);
int tcp_queue_fd(struct tcp_queue *q);
short tcp_queue_events(const struct tcp_queue *q); /* what to wait for, as poll(2) has it */
/* @other, which lives as long, uses the same link; before @q is used */
void tcp_queue_beside(struct tcp_queue *q, const struct tcp_queue *other);
void tcp_queue_shutdown(struct tcp_queue *q);                   /* any thread */
void tcp_queue_set_timeout(struct tcp_queue *q, int timeout_ms); /* any thread */

#endif
