/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs.c - the verbs link's table of operations: memory, control messages
 */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "cleanup.h"
#include "fault.h"
#include "verbs.h"

/* Completions of control messages are looked for so often; none is hot */
#define CTRL_POLL_NS 50000

static int reg_failed(uint64_t len, int code, struct ff_error *err)
{
    struct rlimit lim = {0};

    getrlimit(RLIMIT_MEMLOCK, &lim);
    if (code == ENOMEM && lim.rlim_cur != RLIM_INFINITY)
        return ff_error_set(err, ENOMEM,
                            "verbs: register %llu MiB: the memlock limit is %llu MiB: raise it "
                            "(ulimit -l, limits.conf, LimitMEMLOCK=) to the guest's memory and 64 MiB",
                            (unsigned long long)len >> 20, (unsigned long long)lim.rlim_cur >> 20);
    return ff_error_set(err, code, "verbs: register %llu MiB: %s", (unsigned long long)len >> 20,
                        strerror(code));
}

static int verbs_reg(struct ff_link *l, void *addr, uint64_t len, unsigned access, struct ff_mr *mr,
                     struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);
    int flags = access & FF_ACCESS_REMOTE_READ ? IBV_ACCESS_REMOTE_READ : 0;

    if (access != FF_ACCESS_REMOTE_READ)
        flags |= IBV_ACCESS_LOCAL_WRITE;
    if (access & FF_ACCESS_REMOTE_WRITE)
        flags |= IBV_ACCESS_REMOTE_WRITE;
    if (v->n_mr == FF_ARRAY_LEN(v->mr))
        return ff_error_set(err, ENOSPC, "verbs: register memory: more than %zu pieces",
                            FF_ARRAY_LEN(v->mr));
    struct ibv_mr *m = ibv_reg_mr(v->pd, addr, len, flags);
    if (!m)
        return reg_failed(len, errno, err);
    pthread_mutex_lock(&v->lock);
    v->mr[v->n_mr].mr = m;
    v->mr[v->n_mr++].rkey = m->rkey;
    pthread_mutex_unlock(&v->lock);
    *mr = (struct ff_mr){
        .addr = addr, .len_bytes = len, .access = access, .rkey = m->rkey, .lkey = m->lkey};
    return 0;
}

static void verbs_dereg(struct ff_link *l, struct ff_mr *mr)
{
    struct verbs_link *v = verbs_of(l);

    pthread_mutex_lock(&v->lock);
    for (unsigned i = 0; i < v->n_mr; i++) {
        if (!v->mr[i].mr || v->mr[i].rkey != mr->rkey)
            continue;
        ibv_dereg_mr(v->mr[i].mr);
        v->mr[i].mr = NULL;
        break;
    }
    pthread_mutex_unlock(&v->lock);
}

/* Until the one send in flight is complete */
static int wait_sent(struct verbs_link *v, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)v->timeout_ms * 1000000u;
    const struct timespec nap = {.tv_nsec = CTRL_POLL_NS};
    struct ibv_wc wc;

    for (;;) {
        int n = ibv_poll_cq(v->qp[VERBS_CONTROL].send_cq, 1, &wc);
        if (n > 0)
            return wc.status == IBV_WC_SUCCESS ? 0 : verbs_wc_error(v, VERBS_CONTROL, &wc, err);
        int rc = n < 0 ? ff_error_set(err, EIO, "verbs: poll completions: failed")
                       : verbs_broken(v, err);
        if (!rc && ff_now_ns() > end)
            rc = ff_error_set(err, ETIMEDOUT, "verbs: send: the peer takes no message");
        if (rc)
            return rc;
        nanosleep(&nap, NULL);
    }
}

static int verbs_send(struct ff_link *l, const void *msg, uint32_t len, struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);
    uint8_t *buf = v->ctrl_memory + (size_t)VERBS_CTRL_RECVS * FF_MSG_MAX;

    if (!len || len > FF_MSG_MAX)
        return ff_error_set(err, EMSGSIZE, "verbs: send: length %u (permitted 1..%u)", len,
                            FF_MSG_MAX);
    int rc = ff_fault("control.send");
    if (rc) {
        l->ops->shutdown(l);
        return ff_error_set(err, -rc, "verbs: send: injected");
    }
    struct ff_error why;
    if (verbs_broken(v, &why)) /* nothing was sent */
        return ff_error_set(err, EPIPE, "%s", why.text);
    pthread_mutex_lock(&v->send_lock);
    memcpy(buf, msg, len);
    struct ibv_sge sge = {.addr = (uintptr_t)buf, .length = len, .lkey = v->ctrl_mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_SEND,
                                   .send_flags = IBV_SEND_SIGNALED};
    rc = ibv_post_send(v->qp[VERBS_CONTROL].id->qp, &wr, &bad);
    if (rc)
        rc = ff_error_set(err, rc == EPIPE ? EIO : rc, "verbs: send: %s", strerror(rc));
    else
        rc = wait_sent(v, err);
    pthread_mutex_unlock(&v->send_lock);
    if (!rc)
        return 0;
    l->ops->shutdown(l);
    if (rc != -ECONNRESET && rc != -EPIPE)
        return rc;
    if (err)
        err->code = EIO; /* it may have arrived */
    return -EIO;
}

static int verbs_recv(struct ff_link *l, void *buf, int timeout_ms, struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);
    struct verbs_qp *q = &v->qp[VERBS_CONTROL];
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct ibv_wc wc;

    for (;;) {
        int n = ibv_poll_cq(q->recv_cq, 1, &wc);
        if (!n) {
            verbs_ack_events(q);
            ibv_req_notify_cq(q->recv_cq, 0);
            n = ibv_poll_cq(q->recv_cq, 1, &wc);
        }
        if (n < 0)
            return ff_error_set(err, EIO, "verbs: poll completions: failed");
        if (n > 0 && wc.status != IBV_WC_SUCCESS)
            return verbs_wc_error(v, VERBS_CONTROL, &wc, err);
        if (n > 0) {
            memcpy(buf, v->ctrl_memory + wc.wr_id * FF_MSG_MAX, wc.byte_len);
            verbs_post_ctrl_recv(v, (unsigned)wc.wr_id);
            return (int)wc.byte_len;
        }
        int rc = verbs_events(v, err);
        if (rc)
            return rc;
        uint64_t now = ff_now_ns();
        if (now >= end)
            return ff_error_set(err, ETIMEDOUT, "verbs: receive: timed out");
        rc = verbs_wait(q, v->cancel_fd, (int)((end - now + 999999) / 1000000));
        if (rc == -ECANCELED)
            return ff_error_set(err, ECANCELED, "verbs: receive: canceled");
    }
}

static int verbs_fd(struct ff_link *l, enum ff_queue q)
{
    return verbs_of(l)->qp[q == FF_QUEUE_FAULT ? VERBS_FAULT : VERBS_PREFILL].epoll_fd;
}

static void verbs_set_timeout(struct ff_link *l, int timeout_ms)
{
    verbs_of(l)->timeout_ms = timeout_ms;
}

static void verbs_shutdown(struct ff_link *l)
{
    struct ff_error why = {.code = ECONNRESET, .text = "verbs: shut down on this side"};
    verbs_break(verbs_of(l), &why);
}

const struct ff_link_ops ff_verbs_ops = {
    .name = "verbs",
    .reg = verbs_reg,
    .dereg = verbs_dereg,
    .open_queues = verbs_open_queues,
    .post = verbs_post,
    .poll = verbs_poll,
    .fd = verbs_fd,
    .send = verbs_send,
    .recv = verbs_recv,
    .set_timeout = verbs_set_timeout,
    .shutdown = verbs_shutdown,
    .free = verbs_link_free,
};
