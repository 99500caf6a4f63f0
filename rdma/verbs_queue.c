/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_queue.c - the verbs link's data queues: post, poll, completions in words
 */
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "cleanup.h"
#include "tcp_socket.h"
#include "verbs.h"

/* A read of 4 KiB takes 2-5 us on a card: spinning that long saves a sleep and a wake-up;
 * longer would take a core from the guest. But not while the one read in flight is a fault's: the
 * vCPU that waits for it has left its core. Then for twice what such a read usually takes, where
 * that is not long in any case: in the lab (soft-RoCE, TCG) one thread that faults waits 283 us
 * instead of 423. With several in flight it would only keep other events waiting. */
#define SPIN_NS 10000
#define SPIN_MAX_NS 300000
#define SPIN_TRY 64u
#define RECV_ID 0x8000000000000000ull /* and which connection, in the low bits */

static const char *const role_names[] = {"control", "fault", "prefill"};

static int errno_of(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_REM_ACCESS_ERR:
        return EREMOTEIO;
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return EHOSTUNREACH; /* not ETIMEDOUT: who waits would take it for nothing heard yet */
    default:
        return ECONNRESET;
    }
}

/* A queue pair whose connection nobody ended, with receive buffers flushed: as the one that serves
 * the peer it has refused something */
static const char *hint(enum ibv_wc_status status, const char *verb)
{
    switch (status) {
    case IBV_WC_WR_FLUSH_ERR:
        return strcmp(verb, "RECV") ? "" : "a request of the peer was refused here: ";
    case IBV_WC_REM_ACCESS_ERR:
        return "refused by the peer: memory key withdrawn, not for this, or out of bounds: ";
    case IBV_WC_RETRY_EXC_ERR:
        return "the peer does not answer: ";
    default:
        return "";
    }
}

int verbs_wc_error(struct verbs_link *v, enum verbs_role role, const char *verb,
                   const struct ibv_wc *wc, struct ff_error *err)
{
    struct ff_error why;

    ff_error_set(&why, errno_of(wc->status),
                 "verbs: %s on %s queue pair %u: %s%s (status %d, vendor 0x%x)%s", verb,
                 role_names[role], wc->qp_num, hint(wc->status, verb),
                 ibv_wc_status_str(wc->status), wc->status, wc->vendor_err,
                 wc->status == IBV_WC_RETRY_EXC_ERR /* it did when the link was connected */
                     ? "; if its host is up, large packets do not arrive: check the MTU of both hosts "
                       "and of the network between" : "");
    /* what is flushed only follows from something else: prefer the reason known already */
    if (wc->status == IBV_WC_WR_FLUSH_ERR)
        verbs_events(v, NULL);
    verbs_break(v, &why);
    return verbs_broken(v, err);
}

int verbs_poll_failed(struct verbs_link *v, enum verbs_role role, struct ff_error *err)
{
    struct ff_error why;

    ff_error_set(&why, EIO, "verbs: poll completions of the %s queue: failed", role_names[role]);
    verbs_break(v, &why);
    return verbs_broken(v, err);
}

int verbs_post_recv_imm(struct verbs_queue *q, unsigned conn, unsigned n)
{
    struct ibv_recv_wr wr = {.wr_id = RECV_ID | conn}, *bad;
    int rc = 0;

    for (unsigned i = 0; i < n && !rc; i++)
        rc = ibv_post_recv(q->conn[conn].id->qp, &wr, &bad);
    return -rc;
}

int verbs_wait(struct verbs_queue *q, int cancel_fd, int timeout_ms)
{
    return tcp_wait_fd(q->epoll_fd, POLLIN, cancel_fd, timeout_ms); /* an epoll set polls too */
}

/* Empty the completion channel, which is non-blocking */
void verbs_ack_events(struct verbs_queue *q)
{
    struct ibv_cq *cq;
    void *ctx;

    while (!ibv_get_cq_event(q->chan, &cq, &ctx))
        ibv_ack_cq_events(cq, 1);
}

static const char *verb_of(enum ff_op op)
{
    return op == FF_OP_READ ? "READ" : "WRITE";
}

/* The connection with the fewest requests in flight */
static unsigned least_busy(const struct verbs_queue *q)
{
    unsigned best = 0;

    for (unsigned i = 1; i < q->n_conns; i++)
        if (q->conn[i].n_busy < q->conn[best].n_busy)
            best = i;
    return best;
}

static int post_failed(struct verbs_link *v, enum verbs_role role, const struct ff_wr *wr,
                       uint32_t qp_num, int code, struct ff_error *err)
{
    struct ff_error why;
    bool no_imm = wr->op == FF_OP_WRITE && v->limits.iwarp;

    ff_error_set(&why, code, "verbs: post %s on %s queue pair %u: %s%s", verb_of(wr->op),
                 role_names[role], qp_num, strerror(code),
                 no_imm ? "; not every iWARP card has WRITE_WITH_IMM: use prefill=pull" : "");
    verbs_break(v, &why);
    return verbs_broken(v, err);
}

int verbs_post(struct ff_link *l, enum ff_queue queue, const struct ff_wr *wr, struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);
    enum verbs_role role = verbs_role_of(queue);
    struct verbs_queue *q = &v->q[role];
    unsigned i = 0;

    int rc = verbs_broken(v, err);
    if (rc)
        return rc;
    if (!wr->len_bytes || wr->len_bytes > v->limits.max_len)
        return ff_error_set(err, EINVAL, "verbs: post %s: length %u (permitted 1..%u)",
                            verb_of(wr->op), wr->len_bytes, v->limits.max_len);
    if (q->n_busy == v->limits.depth)
        return ff_error_set(err, EAGAIN, "verbs: post %s: %u requests in flight", verb_of(wr->op),
                            q->n_busy);
    while (q->slot[i].busy)
        i++;

    unsigned c = least_busy(q);
    struct ibv_qp *qp = q->conn[c].id->qp;
    struct ibv_sge sge = {.addr = (uintptr_t)wr->local, .length = wr->len_bytes, .lkey = wr->lkey};
    struct ibv_send_wr *bad, swr = {
        .wr_id = i,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = wr->op == FF_OP_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE_WITH_IMM,
        .send_flags = IBV_SEND_SIGNALED,
        .imm_data = htobe32(wr->imm),
        .wr.rdma = {.remote_addr = wr->remote, .rkey = wr->rkey},
    };
    rc = ibv_post_send(qp, &swr, &bad);
    if (rc)
        return post_failed(v, role, wr, qp->qp_num, rc, err);
    q->slot[i] = (struct verbs_slot){.id = wr->id,
                                     .len_bytes = wr->len_bytes,
                                     .op = wr->op,
                                     .conn = (uint8_t)c,
                                     .busy = true};
    q->conn[c].n_busy++;
    q->posted_ns = ff_now_ns();
    q->alone = !q->n_busy++;
    q->n_alone += q->alone;
    return 0;
}

/* Spinning is not worth it, as far as is known; but a sleep is part of what such a read takes, so
 * try it now and then */
static bool tries_again(const struct verbs_queue *q)
{
    return q->read_ns > SPIN_MAX_NS && !(q->n_alone % SPIN_TRY);
}

/* One that was alone in its queue has taken so long: a moving average, but for a try */
static void usual_read(struct verbs_queue *q, uint64_t took_ns)
{
    took_ns = FF_MIN(took_ns, 4u * SPIN_MAX_NS);
    q->read_ns = q->read_ns && !tries_again(q) ? (q->read_ns * 7 + took_ns) / 8 : took_ns;
    q->alone = false;
}

/* Turn what the CQ holds into completions: how many, or the link is broken */
static int drain(struct verbs_link *v, enum verbs_role role, struct ff_wc *out, unsigned n,
                 struct ff_error *err)
{
    struct verbs_queue *q = &v->q[role];
    struct ibv_wc wc[16];

    int got = ibv_poll_cq(q->recv_cq, (int)FF_MIN(n, (unsigned)FF_ARRAY_LEN(wc)), wc);
    if (got < 0)
        return verbs_poll_failed(v, role, err);
    for (int i = 0; i < got; i++) {
        bool recv = wc[i].wr_id & RECV_ID;
        struct verbs_slot *s = recv ? NULL : &q->slot[wc[i].wr_id];
        if (wc[i].status != IBV_WC_SUCCESS)
            return verbs_wc_error(v, role, recv ? "RECV" : verb_of(s->op), &wc[i], err);
        if (recv) {
            out[i] = (struct ff_wc){.op = FF_WC_RECV_IMM,
                                    .len_bytes = wc[i].byte_len,
                                    .imm = be32toh(wc[i].imm_data)};
            verbs_post_recv_imm(q, (unsigned)(wc[i].wr_id & ~RECV_ID), 1);
            continue;
        }
        out[i] = (struct ff_wc){.id = s->id,
                                .op = s->op == FF_OP_READ ? FF_WC_READ : FF_WC_WRITE,
                                .len_bytes = s->len_bytes};
        if (q->alone && s->op == FF_OP_READ)
            usual_read(q, ff_now_ns() - q->posted_ns);
        s->busy = false;
        q->conn[s->conn].n_busy--;
        q->n_busy--;
    }
    return got;
}

/* How long to look again at once for what is in flight */
static uint64_t spin_ns(const struct verbs_queue *q, enum verbs_role role)
{
    if (role != VERBS_FAULT || !q->alone || (q->read_ns > SPIN_MAX_NS && !tries_again(q)))
        return SPIN_NS;
    return q->read_ns ? FF_MIN(FF_MAX(2 * q->read_ns, SPIN_NS), SPIN_MAX_NS) : SPIN_MAX_NS;
}

/* Look again at once? Who waits, for a while from @since on; the fault thread, which waits
 * elsewhere, for a while after it has posted. */
static bool spins(const struct verbs_queue *q, enum verbs_role role, int timeout_ms, uint64_t since)
{
    uint64_t from = timeout_ms ? since : role == VERBS_FAULT ? q->posted_ns : 0;
    return q->n_busy && ff_now_ns() - from < spin_ns(q, role);
}

int verbs_poll(struct ff_link *l, enum ff_queue queue, struct ff_wc *wc, unsigned n, int timeout_ms,
               struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);
    enum verbs_role role = verbs_role_of(queue);
    struct verbs_queue *q = &v->q[role];
    uint64_t start = ff_now_ns(), end = start + (uint64_t)timeout_ms * 1000000u, now = start;
    int rc;

    for (;;) {
        do
            rc = drain(v, role, wc, n, err);
        while (!rc && spins(q, role, timeout_ms, now));
        if (rc)
            return rc;
        /* armed before the last look: a completion in between makes the channel readable */
        verbs_ack_events(q);
        ibv_req_notify_cq(q->recv_cq, 0);
        rc = drain(v, role, wc, n, err);
        if (rc)
            return rc;
        rc = verbs_events(v, err);
        if (rc)
            return rc;
        now = ff_now_ns();
        if (now >= end)
            return 0;
        verbs_wait(q, -1, (int)((end - now + 999999) / 1000000));
        now = ff_now_ns();
    }
}
