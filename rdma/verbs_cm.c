/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_cm.c - the verbs link's connections: address, route, requests
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      active                                   passive
 *              resolve address, route
 *              with a key: connect, hello ------------> rejected, with the answer (verbs_gate.c)
 *                          connect, proof, qps -------> request: a new link
 *              without:    connect, CONTROL, qps -----> request: a new link
 *              ... hello ...
 *              connect FAULT, token ------------------> request: compare the token
 *              connect PREFILL 0..qps-1, token -------> likewise; others are rejected
 *
 * Threads      the event channel of a link is read by whoever waits; each event once.
 * Failure      the last leg of the handshake may be lost while the connection works: the
 *              passive side waits for it for a moment (before it, a disconnect would not
 *              reach the peer), and goes on without. Who has asked and then left is noticed
 *              by a CM event, or HEARD_MS later in recv().
 *              A request that is rejected carries the reason, in words, in its answer.
 * Limits       ACK_TIMEOUT: 4.096 us * 2^17 = 0.5 s, seven tries: a link that is down for
 *              4 s is survived, a lost last packet costs half a second.
 *              RNR_TIMER 12: 0.64 ms, in place of the 655 ms that 0 stands for.
 *              HEARD_MS: a source gives up on verbs after 6 s when it may take tcp instead.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "cleanup.h"
#include "log.h"
#include "secret.h"
#include "tcp_socket.h"
#include "verbs.h"
#include "verbs_gate.h"
#include "verbs_request.h"

#define ACK_TIMEOUT 17
#define RNR_TIMER 12
#define RESOLVE_MS 300
#define ESTABLISHED_MS 300
#define HEARD_MS 7000
#define LISTEN_MAX 4
#define TURN_MAX 64 /* requests between two looks at the time, and at tcp */

struct verbs_listener {
    struct ff_key *key;      /* NULL: whoever asks is heard */
    struct verbs_gate *gate; /* with a key */
    struct rdma_event_channel *events;
    struct rdma_cm_id *id[LISTEN_MAX]; /* one an address of the name, IPv4 and IPv6 */
    struct sockaddr_storage at[LISTEN_MAX]; /* its address */
    unsigned n;
    int timeout_ms;
    unsigned long rejected;
    char device[72];
    struct ff_error gone; /* why no more is heard: its device was removed; code 0: it was not */
};

/* No kernel tells whose the peer of a queue pair is */
static int may_be_without_key(const struct ff_link_params *p, struct ff_error *err)
{
    if (ff_key_certs(p->key))
        return ff_error_set(err, ENOTSUP, "verbs: certificates (tls-creds-x509) go over tcp alone: "
                            "give link=tcp, or use tls-creds-psk or a key");
    return p->key || p->insecure ? 0 : ff_error_set(err, EACCES, "verbs: " FF_LINK_NO_KEY);
}

static uint64_t deadline_of(int timeout_ms)
{
    return ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
}

static struct rdma_conn_param conn_param(const struct verbs_link *v)
{
    return (struct rdma_conn_param){
        .responder_resources = v->limits.resp_rd,
        .initiator_depth = v->limits.init_rd,
        .retry_count = 6, /* soft-RoCE takes 7 for "for ever" */
        .rnr_retry_count = 7,
    };
}

static void set_ack_timeout(struct rdma_cm_id *id)
{
    uint8_t ack = ACK_TIMEOUT;
    rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack, sizeof(ack));
}

static void set_rnr_timer(struct rdma_cm_id *id)
{
    struct ibv_qp_attr attr = {.min_rnr_timer = RNR_TIMER};
    ibv_modify_qp(id->qp, &attr, IBV_QP_MIN_RNR_TIMER); /* iWARP has none */
}

/* --- active side --- */

/* In short turns: an ARP reply that comes before the kernel waits for it is only looked at
 * when the turn ends (two network namespaces on one machine are that quick) */
static int resolve_addr(struct verbs_link *v, struct rdma_cm_id *id, uint64_t end,
                        struct ff_error *err)
{
    struct sockaddr *local = v->local.ss_family ? (struct sockaddr *)&v->local : NULL;
    int rc;

    do {
        if (rdma_resolve_addr(id, local, (struct sockaddr *)&v->peer, RESOLVE_MS))
            return ff_error_set(err, errno, "verbs: resolve address: %s",
                                errno == ENODEV ? "no RDMA device has the way there"
                                                : strerror(errno));
        rc = verbs_wait_event(v, id, RDMA_CM_EVENT_ADDR_RESOLVED, end, err);
    } while (rc == -ETIMEDOUT && tcp_ms_left(end));
    if (!rc && !verbs_on_device(id, v->device))
        return ff_error_set(err, ENODEV, "verbs: device=%s: the way there is by %s port %u",
                            v->device, ibv_get_device_name(id->verbs->device), id->port_num);
    return rc;
}

/* Before the way is looked for, which has it: the request tells it to the peer, whose packets have it too */
static void set_traffic_class(struct verbs_link *v, enum verbs_role role, struct rdma_cm_id *id)
{
    uint8_t tos = v->tos.of[role == VERBS_PREFILL ? FF_QUEUE_PREFILL : FF_QUEUE_FAULT];

    if (v->tos.set)
        rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos));
}

static int find_way(struct verbs_link *v, enum verbs_role role, struct rdma_cm_id *id, uint64_t end,
                    struct ff_error *err)
{
    set_traffic_class(v, role, id);
    int rc = resolve_addr(v, id, end, err);
    if (rc)
        return rc;
    set_ack_timeout(id);
    if (rdma_resolve_route(id, FF_MAX(tcp_ms_left(end), 1)))
        return ff_error_set(err, errno, "verbs: resolve route: %s", strerror(errno));
    return verbs_wait_event(v, id, RDMA_CM_EVENT_ROUTE_RESOLVED, end, err);
}

/* Say @hello, which the destination rejects with its @answer. InfiniBand and RoCE need no queue
 * pair for that; an iWARP device refuses here */
static int ask_for_challenge(struct verbs_link *v, const uint8_t hello[FF_HS_HELLO_LEN],
                             uint8_t answer[FF_HS_ANSWER_LEN], uint64_t end, struct ff_error *err)
{
    uint8_t private_data[VERBS_PRIVATE_MAX];
    struct rdma_conn_param p = {.retry_count = 6, .rnr_retry_count = 7};
    struct rdma_cm_id *id;

    if (rdma_create_id(v->events, &id, NULL, RDMA_PS_TCP))
        return ff_error_set(err, errno, "verbs: new connection: %s", strerror(errno));
    int rc = find_way(v, VERBS_CONTROL, id, end, err);
    /* The number of no queue pair: the peer's kernel takes a second request of one host and number
     * for a connection that was forgotten, while the first is looked at. Of the nonce, which is
     * random; devices number theirs from below */
    p.qp_num = 0x800000u | (hello[FF_HS_HELLO_LEN - 1] & 0x7fu) << 16 |
               (uint32_t)hello[FF_HS_HELLO_LEN - 2] << 8 | hello[FF_HS_HELLO_LEN - 3];
    p.private_data = private_data;
    p.private_data_len = verbs_put_private(private_data, VERBS_REQUEST_HELLO,
                                           v->q[VERBS_PREFILL].n_conns, 0, hello,
                                           FF_HS_HELLO_LEN);
    if (!rc && rdma_connect(id, &p))
        rc = ff_error_set(err, errno, "verbs: handshake: %s", strerror(errno));
    if (!rc)
        rc = verbs_wait_answer(v, id, answer, end, err);
    rdma_destroy_id(id);
    return rc;
}

/* Connection @index of @role; @request says so, and shows @what of @len bytes */
static int connect_role(struct verbs_link *v, enum verbs_role role, unsigned index,
                        unsigned request, const uint8_t *what, size_t len, uint64_t end,
                        struct ff_error *err)
{
    uint8_t private_data[VERBS_PRIVATE_MAX];
    struct rdma_cm_id *id;

    if (rdma_create_id(v->events, &id, NULL, RDMA_PS_TCP))
        return ff_error_set(err, errno, "verbs: new connection: %s", strerror(errno));
    v->q[role].conn[index].id = id;
    int rc = find_way(v, role, id, end, err);
    if (!rc)
        rc = verbs_make_qp(v, role, index, id, err);
    if (rc)
        return rc;
    struct rdma_conn_param p = conn_param(v);
    p.private_data = private_data;
    p.private_data_len = verbs_put_private(private_data, request, v->q[VERBS_PREFILL].n_conns,
                                           index, what, len);
    if (rdma_connect(id, &p))
        return ff_error_set(err, errno, "verbs: connect: %s", strerror(errno));
    rc = verbs_wait_event(v, id, RDMA_CM_EVENT_ESTABLISHED, end, err);
    if (rc == -ETIMEDOUT)
        ff_error_set(err, ETIMEDOUT, "verbs: connect: the host does not answer by RDMA in time; a "
                     "firewall? (RoCE v2 is UDP port 4791)");
    if (!rc)
        rc = verbs_end_if_broken(v, id, err);
    if (!rc)
        set_rnr_timer(id);
    return rc;
}

/* Data connection @index of @role, with its token */
static int connect_queue(struct verbs_link *v, enum verbs_role role, unsigned index,
                         const uint8_t *session, uint64_t end, struct ff_error *err)
{
    uint8_t token[FF_SESSION_LEN];

    if (ff_secrets_token(v->secrets, verbs_queue_of(role), index, session, token))
        return ff_error_set(err, EIO, "verbs: open queues: GnuTLS gives no HKDF");
    return connect_role(v, role, index, role, token, sizeof(token), end, err);
}

/* The control connection to a destination that has the key */
static int connect_keyed(struct verbs_link *v, const struct ff_key *key, uint64_t end,
                         struct ff_error *err)
{
    uint8_t nonce[FF_HS_NONCE_LEN], hello[FF_HS_HELLO_LEN], answer[FF_HS_ANSWER_LEN];
    uint8_t proof[FF_HS_PROOF_LEN];
    struct ff_epoch *e = ff_secret_new(sizeof(*e));
    struct ff_handshake h;

    int rc = e ? ff_hs_nonce_of(key, nonce, err)
               : ff_error_set(err, ENOMEM, "verbs: handshake: out of memory");
    if (!rc) {
        ff_hs_ask(&h, FF_HS_SUITES, nonce, hello);
        rc = ask_for_challenge(v, hello, answer, end, err);
    }
    if (!rc && (rc = ff_hs_prove(&h, key, answer, sizeof(answer), proof, e, err)))
        rc = ff_error_pass(err, rc, "verbs");
    if (!rc)
        rc = connect_role(v, VERBS_CONTROL, 0, VERBS_REQUEST_PROOF, proof, sizeof(proof), end, err);
    if (!rc)
        rc = verbs_seal(v, e, true, err);
    ff_secret_free(e, sizeof(*e));
    return rc;
}

static int connect_cm(const struct ff_link_params *p, const struct sockaddr_storage *peer,
                      uint64_t end, int cancel_fd, struct ff_link **out, struct ff_error *err)
{
    struct verbs_link *v;
    int rc = verbs_link_new(p, cancel_fd, &v, err);

    if (rc)
        return rc;
    v->peer = *peer;
    if (*v->device)
        rc = verbs_find_address(v->device, (const struct sockaddr *)peer, &v->local, err);
    if (!rc)
        rc = p->key ? connect_keyed(v, p->key, end, err)
                    : connect_role(v, VERBS_CONTROL, 0, VERBS_CONTROL, NULL, FF_SESSION_LEN, end,
                                   err);
    if (rc) {
        verbs_link_free(&v->base);
        return rc;
    }
    verbs_set_about(v);
    *out = &v->base;
    return 0;
}

int verbs_cm_connect(const struct ff_link_params *p, int limit_ms, int cancel_fd,
                     struct ff_link **out, struct ff_error *err)
{
    uint64_t end = deadline_of(limit_ms);
    struct ff_peers peers;

    int rc = may_be_without_key(p, err);
    if (!rc)
        rc = ff_peers_find(p, &peers, err);
    if (rc)
        return rc;
    for (unsigned i = 0; i < peers.n; i++) {
        rc = connect_cm(p, &peers.at[i].addr, end, cancel_fd, out, err);
        if (!rc || rc == -ECANCELED || !tcp_ms_left(end))
            break;
    }
    return rc;
}

/* --- passive side --- */

static int listen_on(struct verbs_listener *ls, struct addrinfo *a, unsigned port)
{
    struct rdma_cm_id *id;
    int one = 1;

    if (port && a->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)a->ai_addr)->sin6_port = htons((uint16_t)port);
    else if (port)
        ((struct sockaddr_in *)a->ai_addr)->sin_port = htons((uint16_t)port);
    if (rdma_create_id(ls->events, &id, NULL, RDMA_PS_TCP))
        return -errno;
    if (a->ai_family == AF_INET6)
        rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one));
    if (rdma_bind_addr(id, a->ai_addr) || rdma_listen(id, 2 + VERBS_QPS_MAX)) {
        int rc = -errno;
        rdma_destroy_id(id);
        return rc;
    }
    memcpy(&ls->at[ls->n], a->ai_addr, a->ai_addrlen);
    ls->id[ls->n++] = id;
    return 0;
}

static bool has_listener_at(const struct verbs_listener *ls, const struct addrinfo *a)
{
    const struct sockaddr_in *in = (const void *)a->ai_addr;
    const struct sockaddr_in6 *in6 = (const void *)a->ai_addr;

    for (unsigned i = 0; i < ls->n; i++) {
        const struct sockaddr_in *own = (const void *)&ls->at[i];
        const struct sockaddr_in6 *own6 = (const void *)&ls->at[i];
        if (ls->at[i].ss_family == a->ai_family &&
            (a->ai_family == AF_INET ? own->sin_addr.s_addr == in->sin_addr.s_addr
                                     : !memcmp(&own6->sin6_addr, &in6->sin6_addr, sizeof(in6->sin6_addr)) &&
                                           own6->sin6_scope_id == in6->sin6_scope_id))
            return true;
    }
    return false;
}

/* At those of @list at which it does not listen: the first error, or 0 */
static int listen_at_all(struct verbs_listener *ls, const struct addrinfo *list)
{
    int first = 0;

    for (const struct addrinfo *a = list; a && ls->n < LISTEN_MAX; a = a->ai_next) {
        if (has_listener_at(ls, a))
            continue;
        struct addrinfo one = *a;
        int rc = listen_on(ls, &one, ls->n ? verbs_listener_port(ls) : 0);
        first = first ? first : rc;
    }
    return first;
}

int verbs_listen(const struct ff_link_params *p, struct verbs_listener **out, struct ff_error *err)
{
    struct addrinfo *list;
    int rc = may_be_without_key(p, err);
    if (!rc)
        rc = tcp_resolve(p, true, &list, err);
    if (rc)
        return rc;
    struct verbs_listener *ls = calloc(1, sizeof(*ls));
    if (ls)
        ls->events = rdma_create_event_channel();
    if (!ls || !ls->events) {
        rc = ff_error_set(err, ls ? errno : ENOMEM, "verbs: no RDMA device here, or rdma_ucm is "
                          "not loaded: %s", strerror(ls ? errno : ENOMEM));
        freeaddrinfo(list);
        verbs_listener_free(ls);
        return rc;
    }
    ls->timeout_ms = p->timeout_ms;
    ls->key = ff_key_ref(p->key);
    rc = ls->key ? verbs_gate_new(ls->key, &ls->gate, err) : 0;
    snprintf(ls->device, sizeof(ls->device), "%s", p->device ? p->device : "");
    if (!rc && *ls->device)
        rc = verbs_find_device(ls->device, err);
    int first = rc ? 0 : listen_at_all(ls, list);
    if (!rc && !ls->n)
        rc = ff_error_set(err, -first, "verbs: listen on %s:%s: %s",
                          p->host && *p->host ? p->host : "*", p->port,
                          first == -ENODEV ? "no RDMA device has this address" : strerror(-first));
    freeaddrinfo(list);
    if (rc) {
        verbs_listener_free(ls);
        return rc;
    }
    verbs_set_nonblocking(ls->events->fd);
    *out = ls;
    return 0;
}

void verbs_listen_more(struct verbs_listener *ls, const struct ff_link_params *p)
{
    struct addrinfo *list;
    struct ff_error ignored; /* it is tried again */

    if (tcp_resolve(p, true, &list, &ignored))
        return;
    listen_at_all(ls, list);
    freeaddrinfo(list);
}

unsigned verbs_listener_count(const struct verbs_listener *ls)
{
    return ls->n;
}

void verbs_listener_free(struct verbs_listener *ls)
{
    if (!ls)
        return;
    for (unsigned i = 0; i < ls->n; i++)
        rdma_destroy_id(ls->id[i]);
    if (ls->events)
        rdma_destroy_event_channel(ls->events);
    verbs_gate_free(ls->gate);
    ff_key_unref(ls->key);
    free(ls);
}

bool verbs_listener_is_gone(const struct verbs_listener *ls)
{
    return ls->gone.code;
}

unsigned verbs_listener_port(const struct verbs_listener *ls)
{
    return ntohs(rdma_get_src_port(ls->id[0]));
}

int verbs_listener_fd(const struct verbs_listener *ls)
{
    return ls->events->fd;
}

static void reject(struct rdma_cm_id *id, const char *why)
{
    rdma_reject(id, why, (uint8_t)FF_MIN(strlen(why), (size_t)VERBS_REJECT_LEN));
}

/* The next request for @v (NULL: for a new link): 0, -EAGAIN when there is none now, or TURN_MAX
 * others were looked at; -EBADFD; -ENODEV: the listener is gone */
static int next_request(struct verbs_listener *ls, const struct verbs_link *v,
                        const uint8_t *session, struct verbs_request *r, struct ff_error *err)
{
    struct rdma_cm_event *ev;
    struct ff_error why;
    int rc;

    for (unsigned n = 0; n < TURN_MAX; n++) {
        if (ls->gone.code)
            return ff_error_set(err, ls->gone.code, "%s", ls->gone.text);
        rc = verbs_get_event(ls->events, &ev, err);
        if (rc)
            return rc;
        rc = -EAGAIN;
        if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
            r->id = ev->id;
            r->conn = ev->param.conn;
            rc = verbs_get_private(&r->conn, ls->gate, v, session, r, &why);
            r->conn.private_data = NULL;
        } else if (ev->event == RDMA_CM_EVENT_DEVICE_REMOVAL) {
            ff_error_set(&ls->gone, ENODEV, "verbs: the device on which this side listens (%s) was "
                         "removed", ev->id->verbs ? ibv_get_device_name(ev->id->verbs->device) : "?");
            ff_log(FF_LOG_WARN, "%s; listening again when there is one", ls->gone.text);
        }
        rdma_ack_cm_event(ev);
        if (rc == -EAGAIN)
            continue;
        if (!rc && !verbs_on_device(r->id, ls->device))
            rc = ff_error_set(&why, ENODEV, "verbs: came by device %s port %u, the destination "
                              "takes device=%s alone", ibv_get_device_name(r->id->verbs->device),
                              r->id->port_num, ls->device);
        if (!rc)
            return 0;
        if (rc != -EINPROGRESS && ff_log_due(&ls->rejected)) /* a challenge is nothing to warn of */
            ff_log(FF_LOG_WARN, "%s; connection rejected (%lu so far)", why.text, ls->rejected);
        if (r->has_answer)
            rdma_reject(r->id, r->answer, sizeof(r->answer));
        else
            reject(r->id, why.text);
        rdma_destroy_id(r->id);
    }
    return ls->gone.code ? ff_error_set(err, ls->gone.code, "%s", ls->gone.text) : -EAGAIN;
}

/* Accept @r for @v; takes its id */
static int accept_request(struct verbs_link *v, const struct verbs_request *r, struct ff_error *err)
{
    struct rdma_conn_param p;
    struct ff_error why;

    v->q[r->role].conn[r->index].id = r->id;
    if (rdma_migrate_id(r->id, v->events))
        return ff_error_set(err, errno, "verbs: accept: %s", strerror(errno));
    int rc = verbs_make_qp(v, r->role, r->index, r->id, err);
    p = conn_param(v);
    if (!rc)
        rc = verbs_answer_reads(&v->limits, &r->conn, &p, err);
    if (rc) {
        if (err)
            reject(r->id, err->text);
        return rc;
    }
    set_ack_timeout(r->id);
    if (rdma_accept(r->id, &p))
        return ff_error_set(err, errno, "verbs: accept: %s", strerror(errno));
    set_rnr_timer(r->id);
    rc = verbs_wait_event(v, r->id, RDMA_CM_EVENT_ESTABLISHED, deadline_of(ESTABLISHED_MS), &why);
    if (rc == -ETIMEDOUT)
        atomic_store(&v->heard_by_ns, deadline_of(HEARD_MS));
    else if (rc)
        return ff_error_set(err, -rc, "%s", why.text);
    return verbs_end_if_broken(v, r->id, err);
}

int verbs_cm_accept(struct verbs_listener *ls, struct ff_link **out, struct ff_error *err)
{
    struct verbs_request r = {.index = 0};
    struct ff_error why;
    struct verbs_link *v;

    int rc = next_request(ls, NULL, NULL, &r, err);
    if (rc)
        return rc;
    struct ff_link_params p = {.timeout_ms = ls->timeout_ms, .device = ls->device, .qps = r.qps};
    rc = verbs_link_new(&p, -1, &v, err);
    if (!rc && r.epoch && (rc = verbs_seal(v, r.epoch, false, err)))
        verbs_link_free(&v->base);
    if (rc) {
        reject(r.id, "verbs: out of memory");
        rdma_destroy_id(r.id);
        return rc;
    }
    r.index = 0;
    v->listener = ls;
    rc = accept_request(v, &r, &why);
    if (rc) {
        if (err)
            *err = why;
        verbs_link_free(&v->base);
        return rc;
    }
    verbs_set_about(v);
    *out = &v->base;
    return 0;
}

static int verbs_open_passive(struct verbs_link *v, const uint8_t *session, uint64_t end,
                              struct ff_error *err)
{
    unsigned want = 1 + v->q[VERBS_PREFILL].n_conns;

    for (unsigned n = 0; n < want;) {
        struct verbs_request r;
        int rc = verbs_events(v, err);
        if (!rc)
            rc = next_request(v->listener, v, session, &r, err);
        if (!rc) {
            struct ff_error why;
            rc = accept_request(v, &r, &why);
            if (rc && err)
                *err = why;
            n++;
        } else if (rc == -EAGAIN) {
            rc = tcp_ms_left(end)
                     ? verbs_wait_any(v, v->listener->events->fd, v->events->fd, end, err)
                     : ff_error_set(err, ETIMEDOUT, "%s", strerror(ETIMEDOUT));
        }
        if (rc)
            return ff_error_pass(err, rc, "verbs: wait for the source's queues");
    }
    return verbs_broken(v, err);
}

int verbs_open_queues(struct ff_link *l, const uint8_t session[FF_SESSION_LEN], int timeout_ms,
                      struct ff_error *err)
{
    struct verbs_link *v = verbs_of(l);
    uint64_t end = deadline_of(timeout_ms);
    int rc;

    if (v->listener) {
        rc = verbs_open_passive(v, session, end, err);
        v->listener = NULL;
        return rc ? rc : verbs_send_pad(v, err);
    }
    rc = connect_queue(v, VERBS_FAULT, 0, session, end, err);
    for (unsigned i = 0; i < v->q[VERBS_PREFILL].n_conns && !rc; i++)
        rc = connect_queue(v, VERBS_PREFILL, i, session, end, err);
    if (!rc)
        rc = verbs_send_pad(v, err);
    return rc ? ff_error_pass(err, rc, "verbs: open queues") : 0;
}
