/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs.h - what the files of the verbs link share
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      control QP   SEND/RECV: one message each     verbs.c
 *              FAULT QP     READ, WRITE_WITH_IMM            verbs_queue.c
 *              PREFILL QP   likewise
 *              All three come from one listening rdma_cm id; who they are for stands in
 *              the private data of the connect request. verbs_cm.c makes and ends them.
 *
 * Threads      lock guards broken and why. A queue's CQ is polled by its owner alone; the
 *              control QP has a CQ for sends (send_lock) and one for receives.
 * Failure      a work completion that is not a success, a disconnect, a removed device:
 *              verbs_break() keeps the first reason, disconnects every QP (what is in
 *              flight is flushed) and makes wake_fd readable for ever: every wait ends.
 */
#ifndef FF_RDMA_VERBS_H
#define FF_RDMA_VERBS_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>

#include "error.h"
#include "link.h"

enum verbs_role { VERBS_CONTROL, VERBS_FAULT, VERBS_PREFILL, VERBS_ROLES };

#define VERBS_MAX_LEN (4u << 20)
#define VERBS_CTRL_RECVS 16u

struct verbs_limits {
    uint32_t max_len;   /* of one message: the port's, at most VERBS_MAX_LEN */
    uint32_t depth;     /* work requests of a queue */
    uint8_t rd_atomic;  /* READs in flight that a QP may have, either way */
};

struct verbs_slot {
    uint64_t id;
    uint32_t len_bytes;
    enum ff_op op;
    bool busy;
};

struct verbs_qp {
    struct rdma_cm_id *id;
    struct ibv_comp_channel *chan; /* of recv_cq, and of send_cq where they are one */
    struct ibv_cq *send_cq, *recv_cq;
    int epoll_fd; /* chan, CM events, wake_fd */
    struct verbs_slot slot[FF_QUEUE_DEPTH];
    unsigned n_busy;
};

struct verbs_link {
    struct ff_link base;
    struct rdma_event_channel *events;
    struct verbs_listener *listener; /* passive side, until the queues are open */
    struct ibv_pd *pd;
    struct verbs_qp qp[VERBS_ROLES];
    struct verbs_limits limits;
    struct sockaddr_storage peer;
    int timeout_ms, cancel_fd, wake_fd;

    pthread_mutex_t lock;
    bool broken;
    struct ff_error why;

    /* control messages */
    pthread_mutex_t send_lock;
    uint8_t *ctrl_memory; /* VERBS_CTRL_RECVS receive buffers, one send buffer */
    struct ibv_mr *ctrl_mr;

    struct {
        struct ibv_mr *mr;
        uint32_t rkey;
    } mr[1024];
    unsigned n_mr;
};

static inline struct verbs_link *verbs_of(struct ff_link *l)
{
    return (struct verbs_link *)l; /* base is the first member */
}

/* verbs.c */
extern const struct ff_link_ops ff_verbs_ops;

/* verbs_limits.c: what @dev and @port permit us, as a pure function; -ENOTSUP when the
 * device cannot carry the link at all */
int verbs_get_limits(const struct ibv_device_attr *dev, const struct ibv_port_attr *port,
                     struct verbs_limits *out, struct ff_error *err);

/* verbs_cm.c */
struct verbs_listener;
int verbs_listen(const struct ff_link_params *p, struct verbs_listener **out, struct ff_error *err);
void verbs_listener_free(struct verbs_listener *ls);
int verbs_listener_fd(const struct verbs_listener *ls);
unsigned verbs_listener_port(const struct verbs_listener *ls);

/* A link from who has asked for one by now, else -EAGAIN */
int verbs_accept(struct verbs_listener *ls, int timeout_ms, struct ff_link **out,
                 struct ff_error *err);
int ff_verbs_connect(const struct ff_link_params *p, int cancel_fd, struct ff_link **out,
                     struct ff_error *err);
int verbs_post_ctrl_recv(struct verbs_link *v, unsigned i);
int verbs_link_new(int timeout_ms, int cancel_fd, struct verbs_link **out, struct ff_error *err);
int verbs_open_queues(struct ff_link *l, const uint8_t session[FF_SESSION_LEN], int timeout_ms,
                      struct ff_error *err);
void verbs_link_free(struct ff_link *l);

/* Take note of what happened to the connections: 0, or the link is broken */
int verbs_events(struct verbs_link *v, struct ff_error *err);
void verbs_break(struct verbs_link *v, const struct ff_error *why);
int verbs_broken(struct verbs_link *v, struct ff_error *err);

/* verbs_queue.c */
int verbs_post(struct ff_link *l, enum ff_queue q, const struct ff_wr *wr, struct ff_error *err);
int verbs_poll(struct ff_link *l, enum ff_queue q, struct ff_wc *wc, unsigned n, int timeout_ms,
               struct ff_error *err);
int verbs_post_recv_imm(struct verbs_qp *q, unsigned n);

/* Wait until @q's channel, a CM event or wake_fd is readable: 0, -ETIMEDOUT, -ECANCELED */
int verbs_wait(struct verbs_qp *q, int cancel_fd, int timeout_ms);
void verbs_ack_events(struct verbs_qp *q);

/* A work completion that failed, in words */
int verbs_wc_error(struct verbs_link *v, enum verbs_role role, const struct ibv_wc *wc,
                   struct ff_error *err);

#endif
