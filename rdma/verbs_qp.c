/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_qp.c - the verbs link's parts: device, completion queues, queue pairs; begin and end
 */
/**
 * DOC: Theory of Operation
 *
 * Ownership    in order of making: event channel, ids, protection domain, control memory,
 *              CQs, QPs, registrations. Freed backwards, but for the ids: the device is
 *              open for as long as an id is bound to it.
 * Limits       a data queue has as many receive buffers (without bytes: for the immediate
 *              alone) as a peer may have requests in flight, on each queue pair.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "verbs.h"

static int watch(struct verbs_link *v, struct verbs_queue *q)
{
    int fds[] = {q->chan->fd, v->events->fd, v->wake_fd};

    q->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < FF_ARRAY_LEN(fds); i++) {
        struct epoll_event ev = {.events = EPOLLIN};
        if (q->epoll_fd < 0 || epoll_ctl(q->epoll_fd, EPOLL_CTL_ADD, fds[i], &ev) < 0)
            return -errno;
    }
    return 0;
}

int verbs_use_device(struct verbs_link *v, struct rdma_cm_id *id, struct ff_error *err)
{
    const char *name = ibv_get_device_name(id->verbs->device);
    struct ibv_device_attr_ex dev;
    struct ibv_port_attr port;

    if (v->pd)
        return v->pd->context == id->verbs
                   ? 0
                   : ff_error_set(err, ENODEV, "verbs: connections use different devices (%s, %s)",
                                  ibv_get_device_name(v->pd->context->device), name);
    int rc = ibv_query_device_ex(id->verbs, NULL, &dev);
    if (!rc)
        rc = ibv_query_port(id->verbs, id->port_num, &port);
    if (rc)
        return ff_error_set(err, rc, "verbs: query device %s port %u: %s", name, id->port_num,
                            strerror(rc));
    rc = verbs_get_limits(&dev.orig_attr, &port, id->verbs->device->transport_type, &v->limits,
                          err);
    if (rc)
        return ff_error_pass(err, rc, "device %s port %u", name, id->port_num);
    verbs_get_odp(&dev.odp_caps, &v->limits);
    v->base.max_len_bytes = v->limits.max_len;
    v->base.max_mr_bytes = v->limits.max_mr_bytes;
    v->base.on_demand = v->limits.odp_read;
    v->base.pushes = !v->limits.iwarp; /* not every card there has WRITE_WITH_IMM */
    v->pd = ibv_alloc_pd(id->verbs);
    if (!v->pd)
        return ff_error_set(err, errno, "verbs: protection domain on %s: %s", name,
                            strerror(errno));
    /* the beat on a page of its own: what the peer may write has nothing else near it */
    size_t room = (VERBS_CTRL_BYTES + 4095) & ~4095ull;
    v->ctrl_memory = aligned_alloc(4096, room + 4096);
    if (!v->ctrl_memory)
        return ff_error_set(err, ENOMEM, "verbs: control memory: out of memory");
    memset(v->ctrl_memory + room, 0, 4096);
    rc = verbs_may_pin(&v->base, VERBS_CTRL_BYTES, err);
    if (rc)
        return rc;
    v->ctrl_mr = ibv_reg_mr(v->pd, v->ctrl_memory, VERBS_CTRL_BYTES, IBV_ACCESS_LOCAL_WRITE);
    if (v->ctrl_mr)
        v->beat_mr = ibv_reg_mr(v->pd, v->ctrl_memory + room, VERBS_BEAT_LEN,
                                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!v->beat_mr)
        return ff_error_set(err, errno, "verbs: register %zu bytes on %s: %s",
                            v->ctrl_mr ? VERBS_BEAT_LEN : VERBS_CTRL_BYTES, name, strerror(errno));
    return v->beat_mr->rkey ? 0 : ff_error_set(err, EIO, "verbs: device %s gave key 0", name);
}

int verbs_post_ctrl_recv(struct verbs_link *v, unsigned i)
{
    struct ibv_sge sge = {.addr = (uintptr_t)v->ctrl_memory + i * VERBS_CTRL_LEN,
                          .length = VERBS_CTRL_LEN,
                          .lkey = v->ctrl_mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;
    return -ibv_post_recv(v->q[VERBS_CONTROL].conn[0].id->qp, &wr, &bad);
}

int verbs_next_vector(int vectors)
{
    static _Atomic unsigned next;

    return vectors > 1 ? (int)((atomic_fetch_add(&next, 1) + (unsigned)getpid()) %
                               (unsigned)vectors)
                       : 0;
}

/* Channel and completion queues, for all queue pairs of @role */
static int make_queue(struct verbs_link *v, enum verbs_role role, struct ibv_context *dev,
                      struct ff_error *err)
{
    struct verbs_queue *q = &v->q[role];
    bool control = role == VERBS_CONTROL;
    int depth = (int)v->limits.depth;
    int cqe = control ? depth : depth + (int)q->n_conns * depth;

    if (q->chan)
        return 0;
    int vector = verbs_next_vector(dev->num_comp_vectors);
    q->chan = ibv_create_comp_channel(dev);
    q->recv_cq = q->chan ? ibv_create_cq(dev, cqe, NULL, q->chan, vector) : NULL;
    q->send_cq = control ? ibv_create_cq(dev, depth, NULL, NULL, vector) : q->recv_cq;
    if (!q->recv_cq || !q->send_cq)
        return ff_error_set(err, errno, "verbs: completion queue of %d on %s: %s", cqe,
                            ibv_get_device_name(dev->device), strerror(errno));
    verbs_set_nonblocking(q->chan->fd);
    int rc = watch(v, q);
    return rc ? ff_error_set(err, -rc, "verbs: watch a completion queue: %s", strerror(-rc)) : 0;
}

static int create_qp(struct verbs_link *v, enum verbs_role role, struct rdma_cm_id *id,
                     struct ff_error *err)
{
    struct verbs_queue *q = &v->q[role];
    struct ibv_qp_init_attr attr = {
        .send_cq = q->send_cq,
        .recv_cq = q->recv_cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = v->limits.depth,
                .max_recv_wr = v->limits.depth,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = role == VERBS_CONTROL ? VERBS_INLINE : 0},
    };
    struct ibv_qp_init_attr plain = attr;

    plain.cap.max_inline_data = 0;
    if (!rdma_create_qp(id, v->pd, &attr)) {
        if (role == VERBS_CONTROL)
            v->ctrl_inline = attr.cap.max_inline_data;
        return 0;
    }
    if (role == VERBS_CONTROL && !rdma_create_qp(id, v->pd, &plain))
        return 0; /* a device that has less inline, or none */
    return ff_error_set(err, errno, "verbs: queue pair with %u work requests on %s: %s",
                        v->limits.depth, ibv_get_device_name(id->verbs->device), strerror(errno));
}

int verbs_make_qp(struct verbs_link *v, enum verbs_role role, unsigned index,
                  struct rdma_cm_id *id, struct ff_error *err)
{
    struct verbs_queue *q = &v->q[role];
    int rc = verbs_use_device(v, id, err);

    if (!rc)
        rc = verbs_check_qps(&v->limits, v->q[VERBS_PREFILL].n_conns, err);
    if (!rc)
        rc = make_queue(v, role, id->verbs, err);
    if (!rc)
        rc = create_qp(v, role, id, err);
    if (rc)
        return rc;
    for (unsigned i = 0; role == VERBS_CONTROL && i < VERBS_CTRL_RECVS && !rc; i++)
        rc = verbs_post_ctrl_recv(v, i);
    if (role != VERBS_CONTROL)
        rc = verbs_post_recv_imm(q, index, v->limits.depth);
    if (rc)
        return ff_error_set(err, -rc, "verbs: post receive buffers: %s", strerror(-rc));
    pthread_mutex_lock(&v->lock);
    q->conn[index].made = true;
    pthread_mutex_unlock(&v->lock);
    return 0;
}

/* --- begin and end --- */

int verbs_link_new(const struct ff_link_params *p, int cancel_fd, struct verbs_link **out,
                   struct ff_error *err)
{
    struct verbs_link *v = calloc(1, sizeof(*v));
    if (!v)
        return ff_error_set(err, ENOMEM, "verbs: new link: out of memory");
    v->base = (struct ff_link){.max_len_bytes = VERBS_MAX_LEN,
                               .max_mr_bytes = UINT64_MAX,
                               .pins = true,
                               .about = "verbs"};
    snprintf(v->device, sizeof(v->device), "%s", p->device ? p->device : "");
    v->tos = p->tos;
    v->timeout_ms = p->timeout_ms;
    v->cancel_fd = cancel_fd;
    v->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    v->events = rdma_create_event_channel();
    for (int r = 0; r < VERBS_ROLES; r++) {
        v->q[r].epoll_fd = -1;
        v->q[r].n_conns = 1;
    }
    v->q[VERBS_PREFILL].n_conns = p->qps ? p->qps : 1;
    pthread_mutex_init(&v->lock, NULL);
    pthread_mutex_init(&v->send_lock, NULL);
    atomic_init(&v->alive_ns, ff_now_ns());
    if (!v->events) {
        int e = errno;
        verbs_link_free(&v->base);
        return ff_error_set(err, e, "verbs: no RDMA device here, or rdma_ucm is not loaded: %s",
                            strerror(e));
    }
    verbs_set_nonblocking(v->events->fd);
    *out = v;
    return 0;
}

int verbs_seal(struct verbs_link *v, const struct ff_epoch *e, bool active, struct ff_error *err)
{
    int rc = ff_secrets_new(e, active, &v->secrets);

    v->base.sealed = !rc;
    return rc ? ff_error_set(err, -rc, "verbs: new link: %s", strerror(-rc)) : 0;
}

static void free_queue(struct verbs_queue *q)
{
    for (unsigned i = 0; i < VERBS_QPS_MAX; i++)
        if (q->conn[i].id && q->conn[i].id->qp)
            rdma_destroy_qp(q->conn[i].id);
    if (q->send_cq && q->send_cq != q->recv_cq)
        ibv_destroy_cq(q->send_cq);
    if (q->recv_cq) {
        verbs_ack_events(q);
        ibv_destroy_cq(q->recv_cq);
    }
    if (q->chan)
        ibv_destroy_comp_channel(q->chan);
    ff_close_fd(&q->epoll_fd);
}

void verbs_link_free(struct ff_link *l)
{
    struct verbs_link *v = verbs_of(l);
    struct ff_error why = {.code = ESHUTDOWN, .text = "verbs: closed"};

    verbs_break(v, &why);
    for (int r = 0; r < VERBS_ROLES; r++)
        free_queue(&v->q[r]);
    verbs_free_mrs(v);
    if (v->beat_mr)
        ibv_dereg_mr(v->beat_mr);
    if (v->ctrl_mr)
        ibv_dereg_mr(v->ctrl_mr);
    free(v->ctrl_memory);
    ff_secrets_free(v->secrets);
    if (v->pd)
        ibv_dealloc_pd(v->pd);
    for (int r = 0; r < VERBS_ROLES; r++)
        for (unsigned i = 0; i < VERBS_QPS_MAX; i++)
            if (v->q[r].conn[i].id)
                rdma_destroy_id(v->q[r].conn[i].id);
    if (v->events)
        rdma_destroy_event_channel(v->events);
    ff_close_fd(&v->wake_fd);
    pthread_mutex_destroy(&v->lock);
    pthread_mutex_destroy(&v->send_lock);
    free(v);
}
