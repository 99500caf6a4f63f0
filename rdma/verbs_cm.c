/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_cm.c - the verbs link's connections: address, route, queue pairs, events, end
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      active                                   passive
 *              resolve address, route
 *              connect, private data: CONTROL --------> request: a new link
 *              ... hello ...
 *              connect FAULT, session ----------------> request: compare the session
 *              connect PREFILL, session --------------> likewise; others are rejected
 * Limits       ACK_TIMEOUT: 4.096 us * 2^17 = 0.5 s, seven tries: a link that is down for
 *              4 s is survived, a lost last packet costs half a second.
 *              RNR_TIMER 12: 0.64 ms, in place of the 655 ms that 0 stands for.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "log.h"
#include "tcp_socket.h"
#include "verbs.h"
#include "wirebuf.h"

#define MAGIC 0x6a764646u /* "FFvj" */
#define VERSION 1
#define PRIVATE_LEN 24
#define ACK_TIMEOUT 17
#define RNR_TIMER 12
#define RESOLVE_MS 300

struct verbs_listener {
    struct rdma_event_channel *events;
    struct rdma_cm_id *id;
};

/* --- private data of a connect request --- */

static void put_private(uint8_t out[PRIVATE_LEN], enum verbs_role role, const uint8_t *session)
{
    struct ff_wirebuf b = {.data = out, .len = PRIVATE_LEN};
    static const uint8_t none[FF_SESSION_LEN];

    ff_wb_put(&b, MAGIC, 4);
    ff_wb_put(&b, VERSION, 2);
    ff_wb_put(&b, role, 2);
    ff_wb_put_bytes(&b, session ? session : none, FF_SESSION_LEN);
}

/* Who a request is for, or -errno */
static int get_private(const struct rdma_conn_param *p, const uint8_t *session)
{
    struct ff_wirebuf b = {.data = (uint8_t *)p->private_data, .len = p->private_data_len};
    uint32_t magic = (uint32_t)ff_wb_get(&b, 4);
    unsigned version = (unsigned)ff_wb_get(&b, 2), role = (unsigned)ff_wb_get(&b, 2);
    const uint8_t *got = ff_wb_take(&b, FF_SESSION_LEN);
    uint8_t diff = 0;

    if (!got || magic != MAGIC || version != VERSION || role >= VERBS_ROLES)
        return -EPROTO;
    for (size_t i = 0; session && i < FF_SESSION_LEN; i++)
        diff |= (uint8_t)(got[i] ^ session[i]);
    return diff ? -EACCES : (int)role;
}

/* --- events --- */

static int event_error(const struct rdma_cm_event *ev, struct ff_error *err)
{
    int code = ev->event == RDMA_CM_EVENT_REJECTED      ? ECONNREFUSED
               : ev->event == RDMA_CM_EVENT_ADDR_ERROR && ev->status == -ETIMEDOUT ? ETIMEDOUT
               : ev->event == RDMA_CM_EVENT_UNREACHABLE ? EHOSTUNREACH
               : ev->event == RDMA_CM_EVENT_DEVICE_REMOVAL ? ENODEV
                                                           : ECONNRESET;
    return ff_error_set(err, code, "verbs: connection: %s (status %d)",
                        rdma_event_str(ev->event), ev->status);
}

/* The next event of @ch, which must be @want; to be acknowledged by the caller if @out */
static int wait_event(struct rdma_event_channel *ch, enum rdma_cm_event_type want, int cancel_fd,
                      int timeout_ms, struct rdma_cm_event **out, struct ff_error *err)
{
    struct rdma_cm_event *ev;

    while (rdma_get_cm_event(ch, &ev)) {
        int rc = errno == EAGAIN ? tcp_wait_fd(ch->fd, POLLIN, cancel_fd, timeout_ms) : -errno;
        if (rc)
            return ff_error_set(err, -rc, "verbs: wait for %s: %s", rdma_event_str(want),
                                strerror(-rc));
    }
    int rc = ev->event == want ? 0 : event_error(ev, err);
    if (!rc && out)
        *out = ev;
    else
        rdma_ack_cm_event(ev);
    return rc;
}

int verbs_broken(struct verbs_link *v, struct ff_error *err)
{
    pthread_mutex_lock(&v->lock);
    int rc = v->broken ? -v->why.code : 0;
    if (rc && err)
        *err = v->why;
    pthread_mutex_unlock(&v->lock);
    return rc;
}

void verbs_break(struct verbs_link *v, const struct ff_error *why)
{
    pthread_mutex_lock(&v->lock);
    if (!v->broken) {
        v->broken = true;
        v->why = *why;
        eventfd_write(v->wake_fd, 1);
        for (int r = 0; r < VERBS_ROLES; r++)
            if (v->qp[r].id && v->qp[r].id->qp)
                rdma_disconnect(v->qp[r].id);
    }
    pthread_mutex_unlock(&v->lock);
}

int verbs_events(struct verbs_link *v, struct ff_error *err)
{
    struct rdma_cm_event *ev;
    struct ff_error why;

    while (!rdma_get_cm_event(v->events, &ev)) {
        bool end = ev->event == RDMA_CM_EVENT_DISCONNECTED ||
                   ev->event == RDMA_CM_EVENT_DEVICE_REMOVAL;
        if (ev->event == RDMA_CM_EVENT_DISCONNECTED)
            ff_error_set(&why, ECONNRESET, "verbs: the peer closed the connection");
        else
            event_error(ev, &why);
        rdma_ack_cm_event(ev);
        if (end)
            verbs_break(v, &why);
    }
    return verbs_broken(v, err);
}

/* What ends a wait: the caller's descriptor, or a shutdown */
static int cancel_of(const struct verbs_link *v)
{
    return v->cancel_fd >= 0 ? v->cancel_fd : v->wake_fd;
}

/* --- queue pairs --- */

static void non_blocking(int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static int watch(struct verbs_link *v, struct verbs_qp *q)
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

/* Protection domain and limits, from the device that the first connection uses */
static int use_device(struct verbs_link *v, struct rdma_cm_id *id, struct ff_error *err)
{
    struct ibv_device_attr dev;
    struct ibv_port_attr port;

    if (v->pd)
        return v->pd->context == id->verbs
                   ? 0
                   : ff_error_set(err, ENODEV, "verbs: connections use different devices");
    if (ibv_query_device(id->verbs, &dev) || ibv_query_port(id->verbs, id->port_num, &port))
        return ff_error_set(err, EIO, "verbs: query device %s: %s",
                            ibv_get_device_name(id->verbs->device), strerror(errno));
    int rc = verbs_get_limits(&dev, &port, &v->limits, err);
    if (rc)
        return rc;
    v->base.max_len_bytes = v->limits.max_len;
    v->base.max_mr_bytes = dev.max_mr_size;
    v->pd = ibv_alloc_pd(id->verbs);
    if (!v->pd)
        return ff_error_set(err, errno, "verbs: protection domain: %s", strerror(errno));
    size_t len = (VERBS_CTRL_RECVS + 1) * FF_MSG_MAX;
    v->ctrl_memory = aligned_alloc(4096, len);
    v->ctrl_mr = v->ctrl_memory
                     ? ibv_reg_mr(v->pd, v->ctrl_memory, len, IBV_ACCESS_LOCAL_WRITE)
                     : NULL;
    return v->ctrl_mr ? 0
                      : ff_error_set(err, errno, "verbs: register %zu bytes: %s; see the memlock "
                                     "limit (ulimit -l)", len, strerror(errno));
}

int verbs_post_ctrl_recv(struct verbs_link *v, unsigned i)
{
    struct ibv_sge sge = {.addr = (uintptr_t)v->ctrl_memory + (size_t)i * FF_MSG_MAX,
                          .length = FF_MSG_MAX,
                          .lkey = v->ctrl_mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;
    return -ibv_post_recv(v->qp[VERBS_CONTROL].id->qp, &wr, &bad);
}

static int make_qp(struct verbs_link *v, enum verbs_role role, struct rdma_cm_id *id,
                   struct ff_error *err)
{
    struct verbs_qp *q = &v->qp[role];
    int rc = use_device(v, id, err);

    q->id = id;
    if (rc)
        return rc;
    int depth = (int)FF_MIN(v->limits.depth, FF_QUEUE_DEPTH);
    q->chan = ibv_create_comp_channel(id->verbs);
    q->recv_cq = q->chan ? ibv_create_cq(id->verbs, 2 * depth, NULL, q->chan, 0) : NULL;
    q->send_cq = role == VERBS_CONTROL ? ibv_create_cq(id->verbs, depth, NULL, NULL, 0) : q->recv_cq;
    if (!q->recv_cq || !q->send_cq)
        return ff_error_set(err, errno, "verbs: completion queue: %s", strerror(errno));
    non_blocking(q->chan->fd);
    struct ibv_qp_init_attr attr = {
        .send_cq = q->send_cq,
        .recv_cq = q->recv_cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = (uint32_t)depth,
                .max_recv_wr = (uint32_t)depth,
                .max_send_sge = 1,
                .max_recv_sge = 1},
    };
    if (rdma_create_qp(id, v->pd, &attr))
        return ff_error_set(err, errno, "verbs: queue pair: %s", strerror(errno));
    rc = watch(v, q);
    for (unsigned i = 0; role == VERBS_CONTROL && i < VERBS_CTRL_RECVS && !rc; i++)
        rc = verbs_post_ctrl_recv(v, i);
    if (role != VERBS_CONTROL && !rc)
        rc = verbs_post_recv_imm(q, (unsigned)depth / 2);
    return rc ? ff_error_set(err, -rc, "verbs: prepare queue pair: %s", strerror(-rc)) : 0;
}

static struct rdma_conn_param conn_param(struct verbs_link *v, const uint8_t *private_data)
{
    return (struct rdma_conn_param){
        .private_data = private_data,
        .private_data_len = private_data ? PRIVATE_LEN : 0,
        .responder_resources = v->limits.rd_atomic,
        .initiator_depth = v->limits.rd_atomic,
        .retry_count = 6, /* soft-RoCE takes 7 for "for ever" */
        .rnr_retry_count = 7,
    };
}

static void set_timers(struct verbs_qp *q)
{
    struct ibv_qp_attr attr = {.min_rnr_timer = RNR_TIMER};
    ibv_modify_qp(q->id->qp, &attr, IBV_QP_MIN_RNR_TIMER); /* iWARP has none */
}

/* --- active side --- */

/* In short turns: an ARP reply that comes before the kernel waits for it is only looked at
 * when the turn ends (two network namespaces on one machine are that quick) */
static int resolve_addr(struct verbs_link *v, struct rdma_cm_id *id, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)v->timeout_ms * 1000000u;
    int rc;

    do {
        if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&v->peer, RESOLVE_MS))
            return ff_error_set(err, errno, "verbs: resolve address: %s", strerror(errno));
        rc = wait_event(v->events, RDMA_CM_EVENT_ADDR_RESOLVED, cancel_of(v), v->timeout_ms, NULL,
                        err);
    } while (rc == -ETIMEDOUT && ff_now_ns() < end);
    return rc;
}

static int connect_role(struct verbs_link *v, enum verbs_role role, const uint8_t *session,
                        struct ff_error *err)
{
    uint8_t private_data[PRIVATE_LEN], ack = ACK_TIMEOUT;
    struct rdma_cm_id *id;

    if (rdma_create_id(v->events, &id, NULL, RDMA_PS_TCP))
        return ff_error_set(err, errno, "verbs: new connection: %s", strerror(errno));
    v->qp[role].id = id;
    int rc = resolve_addr(v, id, err);
    if (rc)
        return rc;
    rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack, sizeof(ack));
    if (rdma_resolve_route(id, v->timeout_ms))
        return ff_error_set(err, errno, "verbs: resolve route: %s", strerror(errno));
    rc = wait_event(v->events, RDMA_CM_EVENT_ROUTE_RESOLVED, cancel_of(v), v->timeout_ms, NULL, err);
    if (!rc)
        rc = make_qp(v, role, id, err);
    if (rc)
        return rc;
    put_private(private_data, role, session);
    struct rdma_conn_param p = conn_param(v, private_data);
    if (rdma_connect(id, &p))
        return ff_error_set(err, errno, "verbs: connect: %s", strerror(errno));
    rc = wait_event(v->events, RDMA_CM_EVENT_ESTABLISHED, cancel_of(v), v->timeout_ms, NULL, err);
    if (!rc)
        set_timers(&v->qp[role]);
    return rc;
}

int ff_verbs_connect(const struct ff_link_params *p, int cancel_fd, struct ff_link **out,
                     struct ff_error *err)
{
    struct addrinfo *list;
    struct verbs_link *v;
    int rc = tcp_resolve(p, false, &list, err);
    if (rc)
        return rc;
    rc = verbs_link_new(p->timeout_ms, cancel_fd, &v, err);
    if (!rc) {
        memcpy(&v->peer, list->ai_addr, list->ai_addrlen);
        rc = connect_role(v, VERBS_CONTROL, NULL, err);
        if (rc)
            verbs_link_free(&v->base);
    }
    freeaddrinfo(list);
    if (rc)
        return ff_error_context(err, "verbs: connect to %s:%s", p->host, p->port);
    *out = &v->base;
    return 0;
}

/* --- passive side --- */

int verbs_listen(const struct ff_link_params *p, struct verbs_listener **out, struct ff_error *err)
{
    struct addrinfo *list;
    int rc = tcp_resolve(p, true, &list, err);
    if (rc)
        return rc;
    struct verbs_listener *ls = calloc(1, sizeof(*ls));
    if (ls)
        ls->events = rdma_create_event_channel();
    if (!ls || !ls->events || rdma_create_id(ls->events, &ls->id, NULL, RDMA_PS_TCP) ||
        rdma_bind_addr(ls->id, list->ai_addr) || rdma_listen(ls->id, 8))
        rc = ff_error_set(err, errno, "verbs: listen on %s:%s: %s",
                          p->host && *p->host ? p->host : "*", p->port, strerror(errno));
    freeaddrinfo(list);
    if (rc) {
        verbs_listener_free(ls);
        return rc;
    }
    non_blocking(ls->events->fd);
    *out = ls;
    return 0;
}

void verbs_listener_free(struct verbs_listener *ls)
{
    if (!ls)
        return;
    if (ls->id)
        rdma_destroy_id(ls->id);
    if (ls->events)
        rdma_destroy_event_channel(ls->events);
    free(ls);
}

unsigned verbs_listener_port(const struct verbs_listener *ls)
{
    return ntohs(rdma_get_src_port(ls->id));
}

int verbs_listener_fd(const struct verbs_listener *ls)
{
    return ls->events->fd;
}

/* Accept the request @id as @role of @v; takes @id */
static int accept_role(struct verbs_link *v, enum verbs_role role, struct rdma_cm_id *id,
                       struct ff_error *err)
{
    uint8_t ack = ACK_TIMEOUT;

    v->qp[role].id = id;
    if (rdma_migrate_id(id, v->events))
        return ff_error_set(err, errno, "verbs: accept: %s", strerror(errno));
    int rc = make_qp(v, role, id, err);
    if (rc)
        return rc;
    rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack, sizeof(ack));
    struct rdma_conn_param p = conn_param(v, NULL);
    if (rdma_accept(id, &p))
        return ff_error_set(err, errno, "verbs: accept: %s", strerror(errno));
    rc = wait_event(v->events, RDMA_CM_EVENT_ESTABLISHED, cancel_of(v), v->timeout_ms, NULL, err);
    if (!rc)
        set_timers(&v->qp[role]);
    return rc;
}

/* A request for one of us, if there is one now: its role, -EAGAIN */
static int next_request(struct verbs_listener *ls, const uint8_t *session, struct rdma_cm_id **id)
{
    struct rdma_cm_event *ev;

    if (rdma_get_cm_event(ls->events, &ev))
        return -EAGAIN;
    int role = -EAGAIN;
    if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
        role = get_private(&ev->param.conn, session);
        *id = ev->id;
    }
    bool ours = role >= 0 && (role == VERBS_CONTROL) == !session;
    struct rdma_cm_id *stranger = role != -EAGAIN && !ours ? ev->id : NULL;
    rdma_ack_cm_event(ev);
    if (stranger) {
        ff_log(FF_LOG_WARN, "verbs: connection dropped: not of this session");
        rdma_reject(stranger, NULL, 0);
        rdma_destroy_id(stranger);
    }
    return ours ? role : -EAGAIN;
}

int verbs_accept(struct verbs_listener *ls, int timeout_ms, struct ff_link **out,
                 struct ff_error *err)
{
    struct rdma_cm_id *id;
    struct verbs_link *v;

    if (next_request(ls, NULL, &id) < 0)
        return -EAGAIN;
    int rc = verbs_link_new(timeout_ms, -1, &v, err);
    if (rc) {
        rdma_reject(id, NULL, 0);
        rdma_destroy_id(id);
        return rc;
    }
    v->listener = ls;
    rc = accept_role(v, VERBS_CONTROL, id, err);
    if (rc) {
        verbs_link_free(&v->base);
        return rc;
    }
    *out = &v->base;
    return 0;
}

int verbs_open_queues(struct ff_link *l, const uint8_t session[FF_SESSION_LEN], int timeout_ms,
                      struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    int rc = 0;

    if (!v->listener) {
        for (enum verbs_role r = VERBS_FAULT; r < VERBS_ROLES && !rc; r++)
            rc = connect_role(v, r, session, err);
        return rc;
    }
    while (!rc && (!v->qp[VERBS_FAULT].id || !v->qp[VERBS_PREFILL].id)) {
        struct rdma_cm_id *id;
        int role = next_request(v->listener, session, &id);
        if (role < 0) {
            rc = tcp_wait_fd(v->listener->events->fd, POLLIN, v->wake_fd, tcp_ms_left(end));
            if (rc)
                ff_error_set(err, -rc, "verbs: wait for the source's queues: %s", strerror(-rc));
        } else if (v->qp[role].id) {
            rdma_reject(id, NULL, 0);
            rdma_destroy_id(id);
        } else {
            rc = accept_role(v, (enum verbs_role)role, id, err);
        }
    }
    v->listener = NULL;
    return rc;
}

/* --- begin and end --- */

int verbs_link_new(int timeout_ms, int cancel_fd, struct verbs_link **out, struct ff_error *err)
{
    struct verbs_link *v = calloc(1, sizeof(*v));
    if (!v)
        return ff_error_set(err, ENOMEM, "verbs: new link: out of memory");
    v->base = (struct ff_link){.ops = &ff_verbs_ops,
                               .max_len_bytes = VERBS_MAX_LEN,
                               .max_mr_bytes = UINT64_MAX,
                               .pins = true,
                               .about = "verbs"};
    v->timeout_ms = timeout_ms;
    v->cancel_fd = cancel_fd;
    v->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    v->events = rdma_create_event_channel();
    for (int r = 0; r < VERBS_ROLES; r++)
        v->qp[r].epoll_fd = -1;
    pthread_mutex_init(&v->lock, NULL);
    pthread_mutex_init(&v->send_lock, NULL);
    if (!v->events) {
        int e = errno;
        verbs_link_free(&v->base);
        return ff_error_set(err, e, "verbs: no RDMA devices, or rdma_ucm is not loaded: %s",
                            strerror(e));
    }
    non_blocking(v->events->fd);
    *out = v;
    return 0;
}

static void free_qp(struct verbs_qp *q)
{
    if (q->id && q->id->qp)
        rdma_destroy_qp(q->id);
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
        free_qp(&v->qp[r]);
    for (unsigned i = 0; i < v->n_mr; i++)
        if (v->mr[i].mr)
            ibv_dereg_mr(v->mr[i].mr);
    if (v->ctrl_mr)
        ibv_dereg_mr(v->ctrl_mr);
    free(v->ctrl_memory);
    if (v->pd)
        ibv_dealloc_pd(v->pd);
    for (int r = 0; r < VERBS_ROLES; r++)
        if (v->qp[r].id)
            rdma_destroy_id(v->qp[r].id);
    if (v->events)
        rdma_destroy_event_channel(v->events);
    ff_close_fd(&v->wake_fd);
    pthread_mutex_destroy(&v->lock);
    pthread_mutex_destroy(&v->send_lock);
    free(v);
}
