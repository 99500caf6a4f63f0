/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs.h - what the files of the verbs link share
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      queue     queue pairs    carries                          file
 *              control   1              SEND/RECV: one message each      verbs.c
 *              FAULT     1              READ, WRITE_WITH_IMM             verbs_queue.c
 *              PREFILL   1..qps         likewise; the least busy one     verbs_queue.c
 *                                       takes the next request
 *              Each queue has one completion queue and channel, however many queue pairs.
 *              All queue pairs come from one listening rdma_cm id; who they are for stands
 *              in the private data of the connect request. verbs_cm.c connects them,
 *              verbs_gate.c knows who has the key, verbs_event.c ends them, verbs_qp.c makes and
 *              frees them, verbs_mem.c registers memory, verbs_limits.c knows what a device
 *              permits, verbs_device.c which device.
 *              verbs_multicast.c sends to a group, and hears it.
 *
 * Threads      lock guards broken, why, conn[].made and the table of registrations. A
 *              queue's CQ is polled by its owner alone; control has a CQ for sends
 *              (send_lock) and one for receives.
 *              An idle control queue pair probes its peer with WRITEs of a byte, three in a time
 *              limit: into memory that the peer has for that alone, and names in its pad.
 * MTU          when the queues are open each side sends a pad, a control message longer than a packet.
 *              It is complete when the peer's device has it all: else the link ends before a guest
 *              stops, and RETRY_EXC says that packets of full size may not arrive.
 * Priority     tos= gives FAULT and PREFILL traffic classes of their own, and so service levels and
 *              priorities; else they have rdma_cm's default.
 * Failure      a work completion that is not a success, a disconnect, a removed device:
 *              verbs_break() keeps the first reason, disconnects every QP (what is in
 *              flight is flushed) and makes wake_fd readable for ever: every wait ends.
 *              A QP that is made later is disconnected by who made it.
 */
#ifndef FF_RDMA_VERBS_H
#define FF_RDMA_VERBS_H

#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>

#include "error.h"
#include "link.h"
#include "seal.h"

enum verbs_role { VERBS_CONTROL, VERBS_FAULT, VERBS_PREFILL, VERBS_ROLES };

#define VERBS_MAX_LEN (4u << 20)
#define VERBS_CTRL_RECVS 16u
#define VERBS_CTRL_LEN ((size_t)FF_MSG_MAX + FF_SEAL_TAG_LEN) /* one buffer */
#define VERBS_CTRL_BYTES ((VERBS_CTRL_RECVS + 1) * VERBS_CTRL_LEN)
#define VERBS_BEAT_LEN 16u /* the byte that the peer writes, and further on one that is written to it */
#define VERBS_PAD_LEN (2 * 9216u)
#define VERBS_QPS_MAX 8u
#define VERBS_RD_ATOMIC_MAX 16
#define VERBS_REJECT_LEN 140 /* of a reason: InfiniBand's answer has room for 148 bytes */
#define VERBS_INLINE 256u /* asked for; the short control messages fit */

/* What a device permits, at most what we use of it */
struct verbs_limits {
    uint32_t max_len;  /* of one message: whole pages, at most VERBS_MAX_LEN */
    uint64_t max_mr_bytes;
    uint32_t max_mrs;
    uint32_t depth;    /* work requests of a queue */
    uint32_t max_qps;  /* PREFILL queue pairs */
    uint8_t init_rd;   /* READs of ours that a QP may have in flight */
    uint8_t resp_rd;   /* READs of the peer that a QP may have in flight */
    bool iwarp;
    bool odp_read, odp_write; /* on-demand paging under READ, under WRITE */
};

struct verbs_slot {
    uint64_t id;
    uint32_t len_bytes;
    enum ff_op op;
    uint8_t conn;
    bool busy;
};

struct verbs_conn {
    struct rdma_cm_id *id;
    unsigned n_busy;
    bool made; /* it has a QP that verbs_break() must end */
};

struct verbs_queue {
    struct verbs_conn conn[VERBS_QPS_MAX];
    unsigned n_conns;              /* how many there are to be */
    struct ibv_comp_channel *chan; /* of recv_cq, and of send_cq where they are one */
    struct ibv_cq *send_cq, *recv_cq;
    int epoll_fd; /* chan, CM events, wake_fd */
    struct verbs_slot slot[FF_QUEUE_DEPTH];
    unsigned n_busy;
    uint64_t posted_ns; /* the last request */
    uint64_t read_ns;   /* what a read usually takes that is alone in the queue; 0: unknown */
    bool alone;         /* the one posted last was the only one, and still is */
    unsigned n_alone;
};

struct verbs_mr {
    struct ibv_mr *mr; /* NULL: free */
    uint32_t lkey;     /* own memory may have no rkey of its own */
};

struct verbs_link {
    struct ff_link base;
    struct rdma_event_channel *events;
    struct verbs_listener *listener; /* passive side, until the queues are open */
    struct ibv_pd *pd;
    struct verbs_queue q[VERBS_ROLES];
    struct verbs_limits limits;
    struct sockaddr_storage local, peer; /* local: family 0 for whatever the route says */
    struct ff_tos tos;                   /* active side */
    char device[72];                     /* "NAME", "NAME:PORT", "" for any */
    _Atomic int timeout_ms; /* any thread sends, and reads it */
    int cancel_fd, wake_fd;
    _Atomic uint64_t heard_by_ns; /* the peer must have said something by then; 0: it has */

    pthread_mutex_t lock;
    bool broken;
    struct ff_error why;

    /* control messages */
    pthread_mutex_t send_lock;
    bool probing;                /* under send_lock: a probe is not acknowledged yet */
    _Atomic uint64_t alive_ns, probed_ns; /* the peer was there; it was asked */
    uint8_t *ctrl_memory; /* VERBS_CTRL_RECVS receive buffers, one send buffer */
    struct ibv_mr *ctrl_mr, *beat_mr; /* beat: behind the buffers */
    uint64_t peer_beat;      /* the peer's, and its key; 0: its pad has not come. recv()'s alone */
    uint32_t peer_beat_rkey;
    uint32_t ctrl_inline; /* so many bytes a send may carry within itself */
    struct ff_secrets *secrets; /* NULL: nothing is sealed */

    struct verbs_mr *mr;
    unsigned n_mr, mr_room, mrs_live;
};

static inline struct verbs_link *verbs_of(struct ff_link *l)
{
    return (struct verbs_link *)l; /* base is the first member */
}

static inline enum verbs_role verbs_role_of(enum ff_queue q)
{
    return q == FF_QUEUE_FAULT ? VERBS_FAULT : VERBS_PREFILL;
}

static inline enum ff_queue verbs_queue_of(enum verbs_role role)
{
    return role == VERBS_FAULT ? FF_QUEUE_FAULT : FF_QUEUE_PREFILL;
}

/* verbs.c */
extern const struct ff_link_ops ff_verbs_ops;

/* --- verbs_limits.c: pure functions --- */

/* What @dev and @port permit us; -ENOTSUP when the device cannot carry the link at all */
int verbs_get_limits(const struct ibv_device_attr *dev, const struct ibv_port_attr *port,
                     enum ibv_transport_type transport, struct verbs_limits *out,
                     struct ff_error *err);
void verbs_get_odp(const struct ibv_odp_caps *caps, struct verbs_limits *l);

/* IBV_ACCESS_* for @access, or -EINVAL, -ENOTSUP, -ENOSPC: this registration is not to be */
int verbs_check_reg(const struct verbs_limits *l, uint64_t len, unsigned access, unsigned live,
                    struct ff_error *err);

/* Whether @qps PREFILL queue pairs are permitted */
int verbs_check_qps(const struct verbs_limits *l, unsigned qps, struct ff_error *err);

/* What to answer to a request: READs in flight either way that both permit */
int verbs_answer_reads(const struct verbs_limits *l, const struct rdma_conn_param *asked,
                       struct rdma_conn_param *out, struct ff_error *err);

/* --- verbs_device.c --- */

/* The device and port of @id are those that @wanted names; "" is any */
bool verbs_on_device(const struct rdma_cm_id *id, const char *wanted);

/* 0 if there is such a device, else -ENODEV with those that there are */
int verbs_find_device(const char *wanted, struct ff_error *err);

/* Of the own addresses of @list that are on the device: the one @routed, from which the kernel would
 * talk to @peer (NULL: unknown); or one in the peer's network (a VLAN's); or the first. NULL: none is */
struct ifaddrs;
const struct sockaddr *verbs_best_address(const struct ifaddrs *list, const struct sockaddr *peer,
                                          const struct sockaddr *routed,
                                          bool (*is_on)(void *opaque, struct sockaddr *sa),
                                          void *opaque);

/* An own address on device @wanted, fit to talk to @peer */
int verbs_find_address(const char *wanted, const struct sockaddr *peer,
                       struct sockaddr_storage *out, struct ff_error *err);

/* Say in base.about what the link runs on, from its connected control queue pair */
void verbs_set_about(struct verbs_link *v);

/* --- verbs_mem.c --- */
int verbs_reg(struct ff_link *l, void *addr, uint64_t len, unsigned access, struct ff_mr *mr,
              struct ff_error *err);
void verbs_dereg(struct ff_link *l, struct ff_mr *mr);
int verbs_may_pin(struct ff_link *l, uint64_t bytes, struct ff_error *err);
void verbs_free_mrs(struct verbs_link *v);

/* Is the mapping at @addr shared, and not writable? */
bool verbs_is_shared_read_only(const void *addr);

/* --- verbs_qp.c --- */

int verbs_link_new(const struct ff_link_params *p, int cancel_fd, struct verbs_link **out,
                   struct ff_error *err);
void verbs_link_free(struct ff_link *l);

/* From now on control messages are sealed with @e; @active: this is the source */
int verbs_seal(struct verbs_link *v, const struct ff_epoch *e, bool active, struct ff_error *err);

/* Limits and protection domain, from the device of @id; once */
int verbs_use_device(struct verbs_link *v, struct rdma_cm_id *id, struct ff_error *err);

/* The interrupt of the next completion queue, of those of a device: each has another, also in processes
 * that begin at the same time, so that no CPU gets all of them */
int verbs_next_vector(int vectors);

/* Give @id, the connection @index of @role, its queue pair */
int verbs_make_qp(struct verbs_link *v, enum verbs_role role, unsigned index,
                  struct rdma_cm_id *id, struct ff_error *err);
int verbs_post_ctrl_recv(struct verbs_link *v, unsigned i);
int verbs_post_recv_imm(struct verbs_queue *q, unsigned conn, unsigned n);

/* --- verbs_cm.c --- */

struct verbs_listener;
int verbs_listen(const struct ff_link_params *p, struct verbs_listener **out, struct ff_error *err);
/* At those addresses, too, at which it does not listen yet: their card is there by now, perhaps */
void verbs_listen_more(struct verbs_listener *ls, const struct ff_link_params *p);
unsigned verbs_listener_count(const struct verbs_listener *ls); /* of addresses */
void verbs_listener_free(struct verbs_listener *ls);
int verbs_listener_fd(const struct verbs_listener *ls);
unsigned verbs_listener_port(const struct verbs_listener *ls);

/* Its device was removed: nobody is heard any more, until another listener is made */
bool verbs_listener_is_gone(const struct verbs_listener *ls);

/* A link from who has asked for one by now, else -EAGAIN; -EBADFD: nobody can be heard any
 * more. Waits for less than a second. */
int verbs_accept(struct verbs_listener *ls, struct ff_link **out, struct ff_error *err);

/* verbs_cm.c: both, without the link's operations */
int verbs_cm_connect(const struct ff_link_params *p, int limit_ms, int cancel_fd,
                     struct ff_link **out, struct ff_error *err);
int verbs_cm_accept(struct verbs_listener *ls, struct ff_link **out, struct ff_error *err);

/* @limit_ms: for all of it; p->timeout_ms is for afterwards */
int ff_verbs_connect(const struct ff_link_params *p, int limit_ms, int cancel_fd,
                     struct ff_link **out, struct ff_error *err);
int verbs_open_queues(struct ff_link *l, const uint8_t session[FF_SESSION_LEN], int timeout_ms,
                      struct ff_error *err);

/* --- verbs_multicast.c --- */
int verbs_join(struct ff_link *l, const struct ff_group_at *at, bool sends, struct ff_datagrams **out,
               struct ff_error *err);

/* --- verbs_event.c --- */

void verbs_set_nonblocking(int fd);

/* The next event: 0, -EAGAIN when there is none now, or the channel is of no more use */
int verbs_get_event(struct rdma_event_channel *ch, struct rdma_cm_event **ev, struct ff_error *err);

/* Take note of what happened to the connections: 0, or the link is broken */
int verbs_events(struct verbs_link *v, struct ff_error *err);
void verbs_break(struct verbs_link *v, const struct ff_error *why);
int verbs_broken(struct verbs_link *v, struct ff_error *err);

/* A link that broke while @id was being connected did not disconnect it, or too early */
int verbs_end_if_broken(struct verbs_link *v, struct rdma_cm_id *id, struct ff_error *err);

/* Until one of two descriptors (-1: none) may be readable: 0, -ETIMEDOUT, -ECANCELED, or why
 * the link is broken */
int verbs_wait_any(struct verbs_link *v, int fd, int fd2, uint64_t end_ns, struct ff_error *err);

/* Until @want came for @id; whatever else ends a connection ends the wait */
int verbs_wait_event(struct verbs_link *v, struct rdma_cm_id *id, enum rdma_cm_event_type want,
                     uint64_t end_ns, struct ff_error *err);

/* Until the peer rejects @id with an answer to a hello, which goes to @out. Else as above */
int verbs_wait_answer(struct verbs_link *v, struct rdma_cm_id *id, uint8_t out[FF_HS_ANSWER_LEN],
                      uint64_t end_ns, struct ff_error *err);

/* --- verbs_queue.c --- */

int verbs_post(struct ff_link *l, enum ff_queue q, const struct ff_wr *wr, struct ff_error *err);
int verbs_poll(struct ff_link *l, enum ff_queue q, struct ff_wc *wc, unsigned n, int timeout_ms,
               struct ff_error *err);

/* Wait until @q's channel, a CM event or wake_fd is readable: 0, -ETIMEDOUT, -ECANCELED */
int verbs_wait(struct verbs_queue *q, int cancel_fd, int timeout_ms);
void verbs_ack_events(struct verbs_queue *q);

/* Break the link for a work completion of @verb that failed */
int verbs_wc_error(struct verbs_link *v, enum verbs_role role, const char *verb,
                   const struct ibv_wc *wc, struct ff_error *err);
int verbs_poll_failed(struct verbs_link *v, enum verbs_role role, struct ff_error *err);

#endif
