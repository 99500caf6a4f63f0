/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_multicast.c - datagrams by RDMA (UD) to an IP multicast group, and from it; see datagram.h
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what a group gets does not pass the CPU's network stack at either end; nobody acknowledges
 *              it, so one queue pair reaches all.
 * Picture      buffers in turn -- SEND --> group --> any buffer that was posted: ROUTE bytes, the datagram
 *              The adapter and the address are the link's: so no route to the group is needed.
 * Ownership    in order of making: event channel, id (and so the device), protection domain, memory,
 *              completion queue, queue pair, membership, address handle. Freed backwards.
 * Limits       SENDS, RECEIVES buffers of the port's MTU, pinned. When all that were posted are full, the
 *              adapter drops. JOIN_MS: the subnet manager makes the group; on RoCE IGMP says it.
 *              A link of IPv4 has groups of IPv4. The sender's MTU is that of all: what has a smaller one
 *              on its way hears no page, and prefill goes on without.
 * Sources      rdma_join_multicast(3), rdma_get_cm_event(3), ibv_post_recv(3): the 40 bytes
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cleanup.h"
#include "datagram.h"
#include "tcp_socket.h"
#include "verbs.h"

#define SENDS 256u
#define RECEIVES 2048u
#define ROUTE 40u
#define JOIN_MS 2000
#define NO_IPV6 524 /* the kernel's ENOTSUPP */
#define FULL_MS 20 /* the adapter may have no room for so long */

struct verbs_group {
    struct ff_datagrams base;
    struct rdma_event_channel *events;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_comp_channel *chan;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_ah *ah;
    uint32_t qpn, qkey;
    struct sockaddr_storage group;
    bool asked; /* the kernel, to join */
    uint8_t *memory;
    uint32_t each; /* bytes of a buffer */
    unsigned n, next, busy;
};

static struct verbs_group *group_of(struct ff_datagrams *d)
{
    return (struct verbs_group *)d; /* base is the first member */
}

/* Completions, after @timeout_ms at the latest; -errno */
static int poll_cq(struct verbs_group *g, struct ibv_wc *wc, int room, int timeout_ms)
{
    struct pollfd p = {.fd = g->chan->fd, .events = POLLIN};
    struct ibv_cq *cq;
    void *context;

    int n = ibv_poll_cq(g->cq, room, wc);
    if (n || !timeout_ms)
        return n < 0 ? -EIO : n;
    while (!ibv_get_cq_event(g->chan, &cq, &context)) /* of what was found without it */
        ibv_ack_cq_events(cq, 1);
    if (ibv_req_notify_cq(g->cq, 0))
        return -EIO;
    n = ibv_poll_cq(g->cq, room, wc); /* what came meanwhile is not told */
    if (n)
        return n < 0 ? -EIO : n;
    if (poll(&p, 1, timeout_ms) > 0 && p.revents & ~POLLIN)
        return -EIO; /* the device has gone */
    n = ibv_poll_cq(g->cq, room, wc);
    return n < 0 ? -EIO : n;
}

/* --- who sends --- */

/* Until @n buffers are free: 0; -EAGAIN: the adapter has no room; -EIO */
static int await_room(struct verbs_group *g, unsigned n, struct ff_error *err)
{
    struct ibv_wc wc[16];

    for (int wait_ms = 0; g->busy + n > g->n; wait_ms = FULL_MS) {
        int got = poll_cq(g, wc, FF_ARRAY_LEN(wc), wait_ms);
        if (got < 0 || (!got && wait_ms))
            return got < 0 ? ff_error_set(err, EIO, "multicast: verbs: poll") : -EAGAIN;
        for (int i = 0; i < got; i++) {
            g->busy -= (unsigned)wc[i].wr_id;
            if (wc[i].status != IBV_WC_SUCCESS)
                return ff_error_set(err, EIO, "multicast: verbs: send: %s",
                                    ibv_wc_status_str(wc[i].status));
        }
    }
    return 0;
}

static int group_send(struct ff_datagrams *d, const uint8_t *data, uint32_t len, unsigned n,
                      struct ff_error *err)
{
    struct verbs_group *g = group_of(d);
    struct ibv_send_wr wr[FF_DATAGRAMS], *bad;
    struct ibv_sge sge[FF_DATAGRAMS];

    int rc = await_room(g, n, err);
    if (rc)
        return rc == -EAGAIN ? 0 : rc; /* as if the network had lost them */
    memset(wr, 0, sizeof(wr));
    for (unsigned i = 0; i < n; i++) {
        uint8_t *buffer = g->memory + (size_t)g->each * g->next;
        memcpy(buffer, data + (size_t)i * len, len);
        sge[i] = (struct ibv_sge){.addr = (uintptr_t)buffer, .length = len, .lkey = g->mr->lkey};
        wr[i].sg_list = &sge[i];
        wr[i].num_sge = 1;
        wr[i].opcode = IBV_WR_SEND;
        wr[i].wr.ud.ah = g->ah;
        wr[i].wr.ud.remote_qpn = g->qpn;
        wr[i].wr.ud.remote_qkey = g->qkey;
        wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
        g->next = (g->next + 1) % g->n;
    }
    wr[n - 1].send_flags = IBV_SEND_SIGNALED;
    wr[n - 1].wr_id = n; /* they complete in order: the last one stands for all */
    rc = ibv_post_send(g->id->qp, wr, &bad);
    if (rc)
        return ff_error_set(err, rc, "multicast: verbs: post: %s", strerror(rc));
    g->busy += n;
    return 0;
}

/* --- who hears --- */

static int post_recv(struct verbs_group *g, uint64_t i)
{
    struct ibv_sge sge = {.addr = (uintptr_t)(g->memory + g->each * i),
                          .length = g->each, .lkey = g->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;

    return -ibv_post_recv(g->id->qp, &wr, &bad);
}

static int group_recv(struct ff_datagrams *d, uint8_t *room, uint32_t each, uint32_t len[FF_DATAGRAMS],
                      int timeout_ms)
{
    struct verbs_group *g = group_of(d);
    struct ibv_wc wc[FF_DATAGRAMS];

    int n = poll_cq(g, wc, FF_DATAGRAMS, timeout_ms);
    for (int i = 0; i < n; i++) {
        if (wc[i].status != IBV_WC_SUCCESS || wc[i].wr_id >= g->n)
            return -EIO;
        len[i] = wc[i].byte_len > ROUTE && wc[i].byte_len - ROUTE <= each ? wc[i].byte_len - ROUTE : 0;
        memcpy(room + (size_t)i * each, g->memory + g->each * wc[i].wr_id + ROUTE, len[i]);
        if (post_recv(g, wc[i].wr_id))
            return -EIO;
    }
    return n;
}

/* --- beginning and end --- */

static void group_free(struct ff_datagrams *d)
{
    struct verbs_group *g = group_of(d);

    if (g->asked) /* else its queue pair may stay attached */
        rdma_leave_multicast(g->id, (struct sockaddr *)&g->group);
    if (g->ah)
        ibv_destroy_ah(g->ah);
    if (g->id && g->id->qp)
        rdma_destroy_qp(g->id);
    if (g->cq)
        ibv_destroy_cq(g->cq);
    if (g->chan)
        ibv_destroy_comp_channel(g->chan);
    if (g->mr)
        ibv_dereg_mr(g->mr);
    if (g->memory)
        munmap(g->memory, (size_t)g->each * g->n);
    if (g->pd)
        ibv_dealloc_pd(g->pd);
    if (g->id)
        rdma_destroy_id(g->id);
    if (g->events)
        rdma_destroy_event_channel(g->events);
    free(g);
}

/* The link's address with no port, on which an id of its own has the link's adapter; the group's */
static int find_addresses(struct verbs_group *g, struct rdma_cm_id *of, const struct ff_group_at *at,
                          struct sockaddr_storage *own, struct ff_error *err)
{
    const struct sockaddr *local = rdma_get_local_addr(of);
    struct sockaddr_in6 *own6 = (struct sockaddr_in6 *)own, *to6 = (struct sockaddr_in6 *)&g->group;
    struct sockaddr_in *own4 = (struct sockaddr_in *)own, *to4 = (struct sockaddr_in *)&g->group;
    bool v4 = ff_group_at_is_v4(at);

    if (local->sa_family != (v4 ? AF_INET : AF_INET6))
        return ff_error_set(err, EAFNOSUPPORT, "multicast: verbs: the link is of IPv%c, the group is not",
                            v4 ? '6' : '4');
    memset(own, 0, sizeof(*own));
    if (v4) {
        memcpy(own4, local, sizeof(*own4));
        own4->sin_port = 0;
        to4->sin_family = AF_INET;
        memcpy(&to4->sin_addr, at->addr + 12, 4);
    } else {
        memcpy(own6, local, sizeof(*own6));
        own6->sin6_port = 0;
        to6->sin6_family = AF_INET6;
        memcpy(&to6->sin6_addr, at->addr, 16);
    }
    return 0;
}

static int open_device(struct verbs_group *g, const struct sockaddr_storage *own, struct ff_error *err)
{
    g->events = rdma_create_event_channel();
    if (!g->events || rdma_create_id(g->events, &g->id, NULL, RDMA_PS_UDP))
        return ff_error_set(err, errno, "multicast: verbs: %s", strerror(errno));
    verbs_set_nonblocking(g->events->fd);
    if (rdma_bind_addr(g->id, (struct sockaddr *)own))
        return ff_error_set(err, errno, "multicast: verbs: the link's address: %s", strerror(errno));
    if (!g->id->verbs)
        return ff_error_set(err, ENODEV, "multicast: verbs: no device has the link's address any more");
    g->pd = ibv_alloc_pd(g->id->verbs);
    return g->pd ? 0 : ff_error_set(err, errno, "multicast: verbs: protection domain: %s", strerror(errno));
}

static int make_buffers(struct verbs_group *g, struct verbs_link *v, bool sends, struct ff_error *err)
{
    struct ibv_device_attr dev;
    struct ibv_port_attr port;

    int rc = ibv_query_device(g->id->verbs, &dev);
    if (!rc)
        rc = ibv_query_port(g->id->verbs, g->id->port_num, &port);
    if (rc)
        return ff_error_set(err, rc, "multicast: verbs: query: %s", strerror(rc));
    g->base.max_bytes = 128u << port.active_mtu;
    g->each = ROUTE + FF_MAX(g->base.max_bytes, sends ? 0 : 4096u); /* whatever comes fits */
    g->n = FF_MIN(sends ? SENDS : RECEIVES, (unsigned)FF_MIN(dev.max_qp_wr, dev.max_cqe));
    if (g->n < FF_DATAGRAMS)
        return ff_error_set(err, ENOTSUP, "multicast: verbs: %u work requests are too few", g->n);
    rc = verbs_may_pin(&v->base, (uint64_t)g->each * g->n, err);
    if (rc)
        return rc;
    void *m = mmap(NULL, (size_t)g->each * g->n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    g->memory = m == MAP_FAILED ? NULL : m;
    if (!g->memory)
        return ff_error_set(err, ENOMEM, "multicast: verbs: out of memory");
    madvise(m, (size_t)g->each * g->n, MADV_DONTFORK); /* not a child's */
    g->mr = ibv_reg_mr(g->pd, m, (size_t)g->each * g->n, IBV_ACCESS_LOCAL_WRITE);
    return g->mr ? 0 : ff_error_set(err, errno, "multicast: verbs: register: %s", strerror(errno));
}

static int make_qp(struct verbs_group *g, bool sends, struct ff_error *err)
{
    g->chan = ibv_create_comp_channel(g->id->verbs);
    g->cq = g->chan ? ibv_create_cq(g->id->verbs, (int)g->n, NULL, g->chan, 0) : NULL;
    struct ibv_qp_init_attr attr = {
        .qp_type = IBV_QPT_UD,
        .send_cq = g->cq,
        .recv_cq = g->cq,
        .cap = {.max_send_wr = sends ? g->n : 1, .max_recv_wr = sends ? 1 : g->n,
                .max_send_sge = 1, .max_recv_sge = 1},
    };
    if (!g->cq || rdma_create_qp(g->id, g->pd, &attr))
        return ff_error_set(err, errno, "multicast: verbs: queue pair: %s", strerror(errno));
    verbs_set_nonblocking(g->chan->fd);
    for (unsigned i = 0; i < g->n && !sends; i++)
        if (post_recv(g, i))
            return ff_error_set(err, EIO, "multicast: verbs: receive buffers");
    return 0;
}

/* The event of the kernel, which the library attaches the queue pair on */
static int await_join(struct verbs_group *g, int limit_ms, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)limit_ms * 1000000u;
    struct pollfd p = {.fd = g->events->fd, .events = POLLIN};
    struct rdma_cm_event *ev;

    for (;;) {
        int rc = verbs_get_event(g->events, &ev, err), left = tcp_ms_left(end);
        if (rc == -EAGAIN && left) {
            poll(&p, 1, left);
            continue;
        }
        if (rc)
            return rc == -EAGAIN ? ff_error_set(err, ETIMEDOUT, "multicast: verbs: join: no answer") : rc;
        bool joined = ev->event == RDMA_CM_EVENT_MULTICAST_JOIN, other = !joined &&
                      ev->event != RDMA_CM_EVENT_MULTICAST_ERROR;
        int status = ev->status < -1 ? -ev->status : EIO; /* -1: of the library, which says no more */
        if (joined) {
            errno = EIO;
            g->ah = ibv_create_ah(g->pd, &ev->param.ud.ah_attr);
            status = errno;
            g->qpn = ev->param.ud.qp_num;
            g->qkey = ev->param.ud.qkey;
        }
        rdma_ack_cm_event(ev);
        if (!other && !g->ah)
            return ff_error_set(err, status == NO_IPV6 ? ENOTSUP : status, "multicast: verbs: join: %s",
                                status == NO_IPV6 ? "RoCE v2 has groups of IPv4 alone" : strerror(status));
        if (!other)
            return 0;
    }
}

int verbs_join(struct ff_link *l, const struct ff_group_at *at, bool sends, struct ff_datagrams **out,
               struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);
    struct sockaddr_storage own;

    if (v->limits.iwarp)
        return ff_error_set(err, ENOTSUP, "multicast: verbs: iWARP has none");
    struct verbs_group *g = calloc(1, sizeof(*g));
    if (!g)
        return ff_error_set(err, ENOMEM, "multicast: out of memory");
    g->base = (struct ff_datagrams){.send = group_send, .recv = group_recv, .free = group_free};
    int rc = find_addresses(g, v->q[VERBS_CONTROL].conn[0].id, at, &own, err);
    if (!rc)
        rc = open_device(g, &own, err);
    if (!rc)
        rc = make_buffers(g, v, sends, err);
    if (!rc)
        rc = make_qp(g, sends, err);
    if (!rc && rdma_join_multicast(g->id, (struct sockaddr *)&g->group, g))
        rc = ff_error_set(err, errno, "multicast: verbs: join: %s", strerror(errno));
    g->asked = !rc;
    if (!rc) /* the peer waits meanwhile */
        rc = await_join(g, FF_MIN(JOIN_MS, atomic_load(&v->timeout_ms) / 2), err);
    if (rc)
        group_free(&g->base);
    else
        *out = &g->base;
    return rc;
}
