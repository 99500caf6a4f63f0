/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs.c - the verbs link's table of operations, control messages
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#include "cleanup.h"
#include "failpoint.h"
#include "verbs.h"
#include "verbs_request.h"

/* Completions of control messages are looked for so often; none is hot */
#define CTRL_POLL_NS 50000

#define SEND_ID 1
#define PROBE_ID 2
#define PROBES_A_TIMEOUT 3

/* The next completion of the control queue pair's requests: its id, 0 when there is none now, or
 * the link is broken. The caller holds send_lock. */
static int next_sent(struct verbs_link *v, struct ff_error *err)
{
    struct ibv_wc wc;

    int n = ibv_poll_cq(v->q[VERBS_CONTROL].send_cq, 1, &wc);
    if (n < 0)
        return verbs_poll_failed(v, VERBS_CONTROL, err);
    if (!n)
        return 0;
    if (wc.wr_id == PROBE_ID)
        v->probing = false;
    if (wc.status != IBV_WC_SUCCESS)
        return verbs_wc_error(v, VERBS_CONTROL, wc.wr_id == PROBE_ID ? "WRITE" : "SEND", &wc, err);
    atomic_store(&v->alive_ns, ff_now_ns());
    return (int)wc.wr_id;
}

/* A queue pair that posts nothing never learns that its peer's host is gone. A WRITE reaches no
 * program there, but it is acknowledged, or not. One of no bytes would need no memory, but not every
 * card lets it pass without a key. Before the queues are open nobody is silent for longer than a time
 * limit of whoever waits. */
static int probe_device(struct verbs_link *v, struct ff_error *err)
{
    if (pthread_mutex_trylock(&v->send_lock))
        return 0; /* a message is under way */
    struct ibv_sge sge = {.length = 1};
    struct ibv_send_wr *bad, wr = {
        .wr_id = PROBE_ID, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
        .sg_list = &sge, .num_sge = 1,
        .wr.rdma = {.remote_addr = v->peer_beat, .rkey = v->peer_beat_rkey}};
    int rc = next_sent(v, err);
    if (rc >= 0 && !v->probing && v->peer_beat_rkey) {
        sge.addr = (uintptr_t)v->beat_mr->addr + VERBS_BEAT_LEN / 2;
        sge.lkey = v->beat_mr->lkey;
        rc = -ibv_post_send(v->q[VERBS_CONTROL].conn[0].id->qp, &wr, &bad);
        v->probing = !rc;
    }
    atomic_store(&v->probed_ns, ff_now_ns());
    pthread_mutex_unlock(&v->send_lock);
    if (rc >= 0)
        return 0;
    struct ff_error why;
    ff_error_set(&why, -rc, "verbs: post WRITE on control queue pair: %s", strerror(-rc));
    verbs_break(v, &why); /* whoever was first has said why */
    return verbs_broken(v, err);
}

/* When to probe: a part of the time limit after the peer was last known to be there */
static uint64_t probe_at(struct verbs_link *v)
{
    uint64_t last = FF_MAX(atomic_load(&v->alive_ns), atomic_load(&v->probed_ns));
    return last + (uint64_t)v->timeout_ms * 1000000u / PROBES_A_TIMEOUT;
}

/* Until the one send in flight is complete */
static int wait_sent(struct verbs_link *v, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)v->timeout_ms * 1000000u;
    const struct timespec nap = {.tv_nsec = CTRL_POLL_NS};

    for (;;) {
        int rc = next_sent(v, err);
        if (rc == SEND_ID)
            return 0;
        if (!rc)
            rc = verbs_events(v, err);
        if (!rc && ff_now_ns() > end)
            rc = ff_error_set(err, ETIMEDOUT,
                              "verbs: SEND on control queue pair %u: the peer takes no message "
                              "within %d ms", v->q[VERBS_CONTROL].conn[0].id->qp->qp_num,
                              v->timeout_ms);
        if (rc < 0)
            return rc;
        nanosleep(&nap, NULL);
    }
}

static int verbs_send(struct ff_link *l, const void *msg, uint32_t len, struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);
    uint8_t *buf = v->ctrl_memory + VERBS_CTRL_RECVS * VERBS_CTRL_LEN;

    if (!len || len > FF_MSG_MAX)
        return ff_error_set(err, EMSGSIZE, "verbs: send: length %u (permitted 1..%u)", len,
                            FF_MSG_MAX);
    int rc = ff_failpoint("control.send");
    if (rc) {
        l->ops->shutdown(l);
        return ff_error_set(err, -rc, "verbs: send: injected");
    }
    struct ff_error why;
    if (verbs_broken(v, &why)) /* nothing was sent */
        return ff_error_set(err, EPIPE, "%s", why.text);
    pthread_mutex_lock(&v->send_lock);
    if (v->secrets) {
        rc = ff_seal_close(&v->secrets->tx, NULL, 0, msg, len, buf);
        len += FF_SEAL_TAG_LEN;
        msg = buf;
    }
    bool within = len <= v->ctrl_inline; /* the request itself holds the bytes */
    if (!within && msg != buf)
        memcpy(buf, msg, len);
    struct ibv_sge sge = {.addr = (uintptr_t)(within ? msg : buf),
                          .length = len,
                          .lkey = v->ctrl_mr->lkey};
    struct ibv_send_wr *bad, wr = {.wr_id = SEND_ID,
                                   .sg_list = &sge,
                                   .num_sge = 1,
                                   .opcode = IBV_WR_SEND,
                                   .send_flags = IBV_SEND_SIGNALED |
                                                 (within ? IBV_SEND_INLINE : 0)};
    struct ibv_qp *qp = v->q[VERBS_CONTROL].conn[0].id->qp;
    if (!rc)
        rc = ibv_post_send(qp, &wr, &bad);
    if (rc < 0)
        ff_error_set(err, -rc, "verbs: send: GnuTLS does not seal");
    else if (rc)
        rc = ff_error_set(err, rc == EPIPE ? EIO : rc,
                          "verbs: post SEND on control queue pair %u: %s", qp->qp_num,
                          strerror(rc));
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

/* What has come into receive buffer @i: the message's length, in @buf, or the link is broken */
static int take_message(struct verbs_link *v, unsigned i, uint32_t len, void *buf,
                        struct ff_error *err)
{
    const uint8_t *in = v->ctrl_memory + i * VERBS_CTRL_LEN;
    int rc = (int)len;

    if (v->secrets)
        rc = ff_seal_open(&v->secrets->rx, NULL, 0, in, len, buf);
    else if (len <= FF_MSG_MAX)
        memcpy(buf, in, len);
    else
        rc = -EBADMSG;
    verbs_post_ctrl_recv(v, i);
    if (rc >= 0)
        return rc;
    struct ff_error why;
    ff_error_set(&why, EBADMSG, "verbs: receive: a control message of %u bytes that is not the "
                 "peer's next one: too long, or somebody between changed or left out something",
                 len);
    verbs_break(v, &why);
    return verbs_broken(v, err);
}

/* The peer's pad, in @buf: 0, or the link is broken */
static int take_peer_pad(struct verbs_link *v, const void *buf, int len, struct ff_error *err)
{
    struct ff_error why;

    int rc = v->peer_beat_rkey ? ff_error_set(&why, EPROTO, "verbs: receive: a second pad")
                               : verbs_get_pad(buf, (size_t)len, &v->peer_beat,
                                               &v->peer_beat_rkey, &why);
    if (!rc)
        return 0;
    verbs_break(v, &why);
    return verbs_broken(v, err);
}

static int never_connected(struct verbs_link *v, struct ff_error *err)
{
    struct ff_error why;

    ff_error_set(&why, ECONNRESET, "verbs: receive: the source did not finish connecting");
    verbs_break(v, &why);
    return verbs_broken(v, err);
}

static int verbs_recv(struct ff_link *l, void *buf, int timeout_ms, struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);
    struct verbs_queue *q = &v->q[VERBS_CONTROL];
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
            return verbs_poll_failed(v, VERBS_CONTROL, err);
        if (n > 0 && wc.status != IBV_WC_SUCCESS) {
            /* flushed, perhaps since a probe was not acknowledged: that says more */
            if (!pthread_mutex_trylock(&v->send_lock)) {
                next_sent(v, NULL);
                pthread_mutex_unlock(&v->send_lock);
            }
            return verbs_wc_error(v, VERBS_CONTROL, "RECV", &wc, err);
        }
        if (n > 0) {
            atomic_store(&v->heard_by_ns, 0);
            atomic_store(&v->alive_ns, ff_now_ns());
            int len = take_message(v, (unsigned)wc.wr_id, wc.byte_len, buf, err);
            if (len < 0 || !verbs_is_pad(buf, (size_t)len))
                return len;
            if ((len = take_peer_pad(v, buf, len, err)))
                return len;
            continue;
        }
        int rc = verbs_events(v, err);
        if (rc)
            return rc;
        uint64_t now = ff_now_ns(), heard_by = atomic_load(&v->heard_by_ns);
        if (now >= end)
            return ff_error_set(err, ETIMEDOUT, "verbs: receive: timed out");
        if (heard_by && now >= heard_by)
            return never_connected(v, err);
        if (!heard_by && now >= probe_at(v) && (rc = probe_device(v, err)))
            return rc;
        uint64_t until = FF_MIN(end, FF_MAX(probe_at(v), now + 1000000u));
        until = heard_by ? FF_MIN(until, heard_by) : until;
        rc = verbs_wait(q, v->cancel_fd, (int)((until - now + 999999) / 1000000));
        if (rc == -ECANCELED)
            return ff_error_set(err, ECANCELED, "verbs: receive: canceled");
    }
}

static int verbs_fd(struct ff_link *l, enum ff_queue q, short *events)
{
    *events = POLLIN;
    return verbs_of(l)->q[verbs_role_of(q)].epoll_fd;
}

static int verbs_control_fd(struct ff_link *l)
{
    return verbs_of(l)->q[VERBS_CONTROL].epoll_fd;
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

static int verbs_secret(struct ff_link *l, enum ff_queue q, const char *label,
                        uint8_t out[FF_LINK_SECRET_LEN])
{
    return ff_secrets_of(verbs_of(l)->secrets, q, label, out);
}

const struct ff_link_ops ff_verbs_ops = {
    .name = "verbs",
    .reg = verbs_reg,
    .dereg = verbs_dereg,
    .may_pin = verbs_may_pin,
    .open_queues = verbs_open_queues,
    .secret = verbs_secret,
    .post = verbs_post,
    .poll = verbs_poll,
    .fd = verbs_fd,
    .send = verbs_send,
    .recv = verbs_recv,
    .control_fd = verbs_control_fd,
    .set_timeout = verbs_set_timeout,
    .join = verbs_join,
    .shutdown = verbs_shutdown,
    .free = verbs_link_free,
};

int ff_verbs_connect(const struct ff_link_params *p, int timeout_ms, int cancel_fd,
                     struct ff_link **out, struct ff_error *err)
{
    int rc = verbs_cm_connect(p, timeout_ms, cancel_fd, out, err);

    if (!rc)
        (*out)->ops = &ff_verbs_ops;
    return rc;
}

int verbs_accept(struct verbs_listener *ls, struct ff_link **out, struct ff_error *err)
{
    int rc = verbs_cm_accept(ls, out, err);

    if (!rc)
        (*out)->ops = &ff_verbs_ops;
    return rc;
}
