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
 * longer would take a core from the guest */
#define SPIN_NS 10000
#define RECV_ID 0x8000000000000000ull

static struct verbs_qp *queue_of(struct verbs_link *v, enum ff_queue q)
{
    return &v->qp[q == FF_QUEUE_FAULT ? VERBS_FAULT : VERBS_PREFILL];
}

int verbs_wc_error(struct verbs_link *v, enum verbs_role role, const struct ibv_wc *wc,
                   struct ff_error *err)
{
    static const char *const names[] = {"control", "fault", "prefill"};
    struct ff_error why;

    if (wc->status == IBV_WC_REM_ACCESS_ERR)
        ff_error_set(&why, EREMOTEIO,
                     "verbs: %s queue pair: refused by the peer: memory key withdrawn or out of "
                     "bounds (%s)", names[role], ibv_wc_status_str(wc->status));
    else
        ff_error_set(&why, wc->status == IBV_WC_RETRY_EXC_ERR ? ETIMEDOUT : ECONNRESET,
                     "verbs: %s queue pair: %s (status %d, vendor 0x%x)", names[role],
                     ibv_wc_status_str(wc->status), wc->status, wc->vendor_err);
    /* what is flushed only follows from something else: prefer the reason known already */
    if (wc->status == IBV_WC_WR_FLUSH_ERR)
        verbs_events(v, NULL);
    verbs_break(v, &why);
    return verbs_broken(v, err);
}

int verbs_post_recv_imm(struct verbs_qp *q, unsigned n)
{
    struct ibv_recv_wr wr = {.wr_id = RECV_ID}, *bad;
    int rc = 0;

    for (unsigned i = 0; i < n && !rc; i++)
        rc = ibv_post_recv(q->id->qp, &wr, &bad);
    return -rc;
}

int verbs_wait(struct verbs_qp *q, int cancel_fd, int timeout_ms)
{
    return tcp_wait_fd(q->epoll_fd, POLLIN, cancel_fd, timeout_ms); /* an epoll set polls too */
}

/* Empty the completion channel, which is non-blocking */
void verbs_ack_events(struct verbs_qp *q)
{
    struct ibv_cq *cq;
    void *ctx;

    while (!ibv_get_cq_event(q->chan, &cq, &ctx))
        ibv_ack_cq_events(cq, 1);
}

int verbs_post(struct ff_link *l, enum ff_queue queue, const struct ff_wr *wr, struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);
    struct verbs_qp *q = queue_of(v, queue);
    unsigned i = 0;

    int rc = verbs_broken(v, err);
    if (rc)
        return rc;
    if (!wr->len_bytes || wr->len_bytes > v->limits.max_len)
        return ff_error_set(err, EINVAL, "verbs: post: length %u (permitted 1..%u)", wr->len_bytes,
                            v->limits.max_len);
    if (q->n_busy == v->limits.depth)
        return ff_error_set(err, EAGAIN, "verbs: post: %u requests in flight", q->n_busy);
    while (q->slot[i].busy)
        i++;

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
    rc = ibv_post_send(q->id->qp, &swr, &bad);
    if (rc) {
        struct ff_error why;
        ff_error_set(&why, rc, "verbs: post: %s", strerror(rc));
        verbs_break(v, &why);
        return verbs_broken(v, err);
    }
    q->slot[i] = (struct verbs_slot){
        .id = wr->id, .len_bytes = wr->len_bytes, .op = wr->op, .busy = true};
    q->n_busy++;
    return 0;
}

/* Turn what the CQ holds into completions: how many, or the link is broken */
static int drain(struct verbs_link *v, enum verbs_role role, struct ff_wc *out, unsigned n,
                 struct ff_error *err)
{
    struct verbs_qp *q = &v->qp[role];
    struct ibv_wc wc[16];

    int got = ibv_poll_cq(q->recv_cq, (int)FF_MIN(n, (unsigned)FF_ARRAY_LEN(wc)), wc);
    if (got < 0)
        return ff_error_set(err, EIO, "verbs: poll completions: failed");
    for (int i = 0; i < got; i++) {
        if (wc[i].status != IBV_WC_SUCCESS)
            return verbs_wc_error(v, role, &wc[i], err);
        if (wc[i].wr_id & RECV_ID) {
            out[i] = (struct ff_wc){.op = FF_WC_RECV_IMM,
                                    .len_bytes = wc[i].byte_len,
                                    .imm = be32toh(wc[i].imm_data)};
            verbs_post_recv_imm(q, 1);
            continue;
        }
        struct verbs_slot *s = &q->slot[wc[i].wr_id];
        out[i] = (struct ff_wc){.id = s->id,
                                .op = s->op == FF_OP_READ ? FF_WC_READ : FF_WC_WRITE,
                                .len_bytes = s->len_bytes};
        s->busy = false;
        q->n_busy--;
    }
    return got;
}

int verbs_poll(struct ff_link *l, enum ff_queue queue, struct ff_wc *wc, unsigned n, int timeout_ms,
               struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);
    enum verbs_role role = queue == FF_QUEUE_FAULT ? VERBS_FAULT : VERBS_PREFILL;
    struct verbs_qp *q = &v->qp[role];
    uint64_t start = ff_now_ns(), end = start + (uint64_t)timeout_ms * 1000000u, now = start;
    int rc;

    for (;;) {
        do
            rc = drain(v, role, wc, n, err);
        while (!rc && q->n_busy && timeout_ms && ff_now_ns() - now < SPIN_NS);
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
