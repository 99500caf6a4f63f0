/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_frame.h - what is sent over a data connection: a head, and memory as it lies
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a reply names guest memory, which the socket takes from where it is. Memory of
 *              another process has to be brought first: when the frame's turn to be sent has come,
 *              so that one buffer does for all that a peer has asked for.
 * Failure      what cannot be brought is refused by TCP_LOST: the peer knows why the link ends.
 */
#ifndef FF_RDMA_TCP_FRAME_H
#define FF_RDMA_TCP_FRAME_H

#include "mr.h"
#include "runs.h"
#include "tcp_wire.h"

/* What every frame has comes first: a ring of them takes memory only as far as they are written */
struct tx_frame {
    uint8_t head[TCP_REQ_LEN];
    uint8_t n_head; /* segments of runs before the data */
    bool is_reply;
    struct ff_backing from; /* of: a READ of another process's memory that has not been brought */
    struct tcp_req req;     /* ... and what it asks for */
    uint8_t map[2 * TCP_MAP_MAX]; /* zeros, poison */
    struct runs runs;
};

/* What a request is answered: enum tcp_status */
uint32_t tcp_frame_status(struct ff_mr_table *mrs, const struct tcp_req *req);

/* Answer @req, which has been found to be in order, or was refused by @status */
void tcp_frame_reply(struct tx_frame *f, struct ff_mr_table *mrs, const struct tcp_req *req,
                     uint32_t status);

/* Bring what @f has been waiting for to *@room, which is made when it is needed first, of TCP_MAX_LEN
 * bytes: 0; -ENOMEM; else @f says that it is refused */
int tcp_frame_fetch(struct tx_frame *f, uint8_t **room, struct ff_error *err);

#endif
