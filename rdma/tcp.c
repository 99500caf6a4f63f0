/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp.c - the tcp link: addresses, connections, control messages
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      active (source)                      passive (destination)
 *              connect control  ------------------> ff_tcp_accept()
 *              ... hello, which chooses a session ...
 *              open_queues(): connect FAULT, join -> open_queues(): whoever has the session
 *                             connect PREFILL, join  (tcp_listen.c)
 *                             with a key: TLS, then sealed frames on both (tcp_tls.c)
 *                             on all three a packet of full size, both ways (tcp_path.c)
 *              (or both are given connected sockets: ff_tcp_on_sockets())
 *              after that     data: tcp_queue.c; control: plain send and recv, not hot
 *
 * Priority     the queues use cubic between two processes of one host: bbr, where that is the
 *              default, paces a loopback down to less than half. FAULT uses cubic everywhere, and
 *              its packets are marked as interactive (DSCP AF21, SO_PRIORITY 6). Between two hosts
 *              tcp_pace.c limits how much of prefill is on the way.
 * Threads      fds_lock guards the sockets against shutdown(); send_lock orders senders.
 * Failure      a peer that is silent for timeout_ms while data is under way, or that
 *              does not answer keepalive probes for so long, is gone (TCP_USER_TIMEOUT).
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "cleanup.h"
#include "datagram.h"
#include "error.h"
#include "failpoint.h"
#include "log.h"
#include "same_user.h"
#include "secret.h"
#include "tcp_listen.h"
#include "tcp_pace.h"
#include "tcp_path.h"
#include "tcp_queue.h"
#include "tcp_socket.h"
#include "tcp_tls.h"
#include "tcp_wire.h"

#define SOCKETS_BUF (1 << 20) /* the kernel's own 208 KiB take two turns a chunk */

struct tcp_link {
    struct ff_link base;
    _Atomic int timeout_ms; /* any thread sends, and reads it */
    struct ff_listener *ls; /* passive side, until the queues are open */
    int cancel_fd;          /* active side: borrowed */
    pthread_mutex_t fds_lock, send_lock;
    int ctrl_fd;
    struct tcp_queue *q[FF_QUEUES];
    bool down; /* under fds_lock */
    struct ff_error why; /* likewise: what a queue has ended it for; code 0: nothing */
    struct ff_mr_table mrs;
    struct ff_secrets *secrets; /* NULL: nothing is sealed */
    uint8_t *sealed_tx;          /* with them; under send_lock */
    bool doubts;                 /* active, without a key: it matters whose the peer is */
    struct ff_tos tos;           /* struct ff_link_params */
    uint8_t rx[TCP_CTRL_HEAD_LEN + FF_MSG_MAX + FF_SEAL_TAG_LEN];
    size_t rx_have;
    bool had_pad; /* the peer's has come */
};

static struct tcp_link *tcp_of(struct ff_link *l)
{
    return (struct tcp_link *)l; /* base is the first member */
}

/* --- the link --- */

static const struct ff_link_ops tcp_ops;

/* A connection that was closed was closed for a reason, if a queue of this side has found one: that
 * is what @err says then. Returns @rc */
static int tell_reason(struct tcp_link *t, int rc, struct ff_error *err)
{
    if (rc != -ECONNRESET && rc != -EPIPE)
        return rc;
    pthread_mutex_lock(&t->fds_lock);
    if (t->why.code && err)
        snprintf(err->text, sizeof(err->text), "%s", t->why.text);
    pthread_mutex_unlock(&t->fds_lock);
    return rc;
}

static void note_reason(struct tcp_link *t, const struct ff_error *why)
{
    pthread_mutex_lock(&t->fds_lock);
    if (!t->down && !t->why.code)
        t->why = *why;
    pthread_mutex_unlock(&t->fds_lock);
}

/* Takes @fd, also on failure */
static int link_new(int fd, int timeout_ms, struct tcp_link **out, struct ff_error *err)
{
    struct tcp_link *t = calloc(1, sizeof(*t));
    if (!t) {
        close(fd);
        return ff_error_set(err, ENOMEM, "tcp: new link: out of memory");
    }
    t->base = (struct ff_link){.ops = &tcp_ops,
                               .max_len_bytes = TCP_MAX_LEN,
                               .max_mr_bytes = UINT64_MAX,
                               .finds_zeros = true,
                               .pushes = true,
                               .rtt_us = tcp_is_local(fd) ? 0 : tcp_rtt_us(fd),
                               .about = "tcp"};
    t->ctrl_fd = fd;
    t->timeout_ms = timeout_ms;
    t->cancel_fd = -1;
    pthread_mutex_init(&t->fds_lock, NULL);
    pthread_mutex_init(&t->send_lock, NULL);
    ff_mr_init(&t->mrs);
    *out = t;
    return 0;
}

static void tcp_free(struct ff_link *l);

/* From now on control messages are sealed with @e; @active: this is the source. @t is freed on
 * failure */
static int seal_control(struct tcp_link *t, const struct ff_epoch *e, bool active,
                        struct ff_error *err)
{
    t->sealed_tx = malloc(FF_MSG_MAX + FF_SEAL_TAG_LEN);
    int rc = t->sealed_tx ? ff_secrets_new(e, active, &t->secrets) : -ENOMEM;
    t->base.sealed = true;
    if (rc) {
        ff_error_set(err, -rc, "tcp: new link: %s", strerror(-rc));
        tcp_free(&t->base);
    }
    return rc;
}

/* The source's side of the handshake. @t is freed on failure */
static int pass_gate(struct tcp_link *t, const struct ff_link_params *p, struct ff_error *err)
{
    struct ff_epoch *e = ff_secret_new(sizeof(*e));

    int rc = e ? tcp_gate_pass(t->ctrl_fd, p->key, p->host ? p->host : "", t->cancel_fd,
                               p->timeout_ms, e, err)
               : ff_error_set(err, ENOMEM, "tcp: handshake: out of memory");
    if (rc)
        tcp_free(&t->base);
    else
        rc = seal_control(t, e, true, err);
    ff_secret_free(e, sizeof(*e));
    return rc;
}

static void use_tos(struct tcp_link *t, const struct ff_tos *tos)
{
    t->tos = *tos;
    if (tos->set)
        tcp_set_tos(t->ctrl_fd, tos->of[FF_QUEUE_FAULT]);
}

int ff_tcp_connect(const struct ff_link_params *p, int cancel_fd, struct ff_link **out,
                   struct ff_error *err)
{
    struct ff_peers peers;
    struct tcp_link *t;
    int fd = -EADDRNOTAVAIL;

    int rc = ff_peers_find(p, &peers, err);
    if (rc)
        return rc;
    for (unsigned i = 0; i < peers.n; i++) {
        fd = tcp_connect_addr((struct sockaddr *)&peers.at[i].addr, peers.at[i].len, cancel_fd,
                              p->connect_ms ? p->connect_ms : p->timeout_ms);
        if (fd >= 0 || fd == -ECANCELED)
            break;
    }
    if (fd < 0)
        return ff_error_set(err, -fd, "tcp: connect to %s:%s: %s%s", p->host, p->port,
                            strerror(-fd),
                            fd == -ECONNREFUSED ? "; is the destination listening there?"
                                                : "");
    rc = link_new(fd, p->timeout_ms, &t, err);
    if (rc)
        return rc;
    t->cancel_fd = cancel_fd;
    t->doubts = !p->key && !p->insecure;
    use_tos(t, &p->tos);
    if (t->doubts && !tcp_is_local(fd)) {
        tcp_free(&t->base);
        return ff_error_set(err, EACCES, "tcp: connect to %s:%s: it is not this host, and "
                            FF_LINK_NO_KEY, p->host, p->port);
    }
    if (p->key && (rc = pass_gate(t, p, err)))
        return rc;
    *out = &t->base;
    return 0;
}

int ff_tcp_accept(struct ff_listener *ls, int timeout_ms, struct ff_link **out,
                  struct ff_error *err)
{
    const struct ff_epoch *e;
    struct tcp_link *t;
    int fd = tcp_listen_take(ls, timeout_ms, &e);

    if (fd < 0)
        return ff_error_set(err, -fd, "tcp: wait for a source: %s", strerror(-fd));
    int rc = link_new(fd, tcp_listen_timeout_ms(ls), &t, err);
    if (!rc && e)
        rc = seal_control(t, e, false, err);
    if (rc)
        return rc;
    t->ls = ls;
    use_tos(t, tcp_listen_tos(ls));
    *out = &t->base;
    return 0;
}

/* Put a connected socket to use as a queue, unless the link is down by now */
static int add_queue(struct tcp_link *t, enum ff_queue kind, int fd, struct ff_error *err)
{
    struct tcp_queue *q;
    int rc = tcp_queue_new(fd, kind, &t->mrs, &q, err);
    if (rc)
        return rc;
    if (t->tos.set)
        tcp_set_tos(fd, t->tos.of[kind]);
    pthread_mutex_lock(&t->fds_lock);
    t->q[kind] = q;
    if (t->down)
        tcp_queue_shutdown(q);
    pthread_mutex_unlock(&t->fds_lock);
    return 0;
}

/* What the queues of @session show: the session alone where there is no key */
static int queue_tokens(const struct tcp_link *t, const uint8_t *session, struct tcp_tokens *out,
                        struct ff_error *err)
{
    for (enum ff_queue k = 0; k < FF_QUEUES; k++)
        if (ff_secrets_token(t->secrets, k, 0, session, out->of[k]))
            return ff_error_set(err, EIO, "tcp: open queues: GnuTLS gives no HKDF");
    return 0;
}

/* It has accepted the connection and answered, so that this can be told; HELLO or RESUME is all that
 * it knows of the guest */
static int tcp_check_peer(struct ff_link *l, struct ff_error *err)
{
    struct tcp_link *t = tcp_of(l);
    struct ff_error why;

    if (t->doubts && ff_same_user(t->ctrl_fd, &why))
        return ff_error_set(err, EACCES, "%s, and " FF_LINK_NO_KEY, why.text);
    return 0;
}

static int open_active(struct tcp_link *t, const struct tcp_tokens *tokens, int timeout_ms,
                       struct ff_error *err)
{
    struct sockaddr_storage peer;
    socklen_t len = sizeof(peer);
    int checked = tcp_check_peer(&t->base, err);

    if (checked)
        return checked;
    if (getpeername(t->ctrl_fd, (struct sockaddr *)&peer, &len) < 0)
        return ff_error_set(err, errno, "tcp: open queues: %s", strerror(errno));
    for (enum ff_queue k = 0; k < FF_QUEUES; k++) {
        uint8_t join[TCP_JOIN_LEN];
        struct iovec iov = {.iov_base = join, .iov_len = sizeof(join)};
        int fd = tcp_connect_addr((struct sockaddr *)&peer, len, t->cancel_fd,
                              FF_MIN(timeout_ms, t->timeout_ms));
        if (fd < 0)
            return ff_error_set(err, -fd, "tcp: open queue %u: connect: %s", k, strerror(-fd));
        tcp_join_encode(join, k, tokens);
        int rc = tcp_send_all(fd, &iov, 1, t->cancel_fd, timeout_ms);
        if (rc) {
            close(fd);
            return ff_error_set(err, -rc, "tcp: open queue %u: join: %s", k, strerror(-rc));
        }
        tcp_set_options(fd, t->timeout_ms);
        rc = add_queue(t, k, fd, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int tcp_open_passive(struct tcp_link *t, const struct tcp_tokens *tokens, int timeout_ms,
                            struct ff_error *err)
{
    int fd[FF_QUEUES];

    int rc = tcp_listen_joins(t->ls, t->ctrl_fd, tokens, timeout_ms, fd, err);
    for (enum ff_queue k = 0; k < FF_QUEUES; k++) {
        if (!rc)
            rc = add_queue(t, k, fd[k], err); /* takes it, also on failure */
        else
            ff_close_fd(&fd[k]);
    }
    return rc;
}

/* With a key: both sides have both queues by now, and say so in one order */
static int seal_queues(struct tcp_link *t, uint64_t end, struct ff_error *err)
{
    struct tcp_tls_how how = {.active = !t->ls,
                              .cancel_fd = t->ls ? tcp_listen_cancel_fd(t->ls) : t->cancel_fd};
    int rc = 0;

    for (enum ff_queue k = 0; k < FF_QUEUES && !rc; k++) {
        how.secret = t->secrets->epoch.queue[k];
        how.timeout_ms = tcp_ms_left(end);
        rc = tcp_queue_seal(t->q[k], &how, err);
    }
    return rc;
}

static int tcp_open_queues(struct ff_link *l, const uint8_t session[FF_SESSION_LEN],
                           int timeout_ms, struct ff_error *err)
{
    struct tcp_link *t = tcp_of(l);
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct tcp_tokens tokens;

    int rc = queue_tokens(t, session, &tokens, err);
    if (!rc && !t->q[FF_QUEUE_PREFILL]) /* else by ff_tcp_on_sockets() */
        rc = t->ls ? tcp_open_passive(t, &tokens, timeout_ms, err)
                   : open_active(t, &tokens, timeout_ms, err);
    if (!rc && t->secrets)
        rc = seal_queues(t, end, err);
    int cancel_fd = t->ls ? tcp_listen_cancel_fd(t->ls) : t->cancel_fd;
    t->ls = NULL;
    if (!rc)
        rc = tcp_path_check_queues(t->q, cancel_fd, end, err);
    if (!rc)
        rc = tcp_path_check_control(t->ctrl_fd, cancel_fd, end, err);
    if (!rc)
        tcp_queue_beside(t->q[FF_QUEUE_PREFILL], t->q[FF_QUEUE_FAULT]);
    return rc;
}

static int tcp_send(struct ff_link *l, const void *msg, uint32_t len, struct ff_error *err)
{
    struct tcp_link *t = tcp_of(l);
    uint8_t head[TCP_CTRL_HEAD_LEN];
    struct iovec iov[2] = {{.iov_base = head, .iov_len = sizeof(head)},
                           {.iov_base = (void *)msg, .iov_len = len}};

    if (!len || len > FF_MSG_MAX)
        return ff_error_set(err, EMSGSIZE, "tcp: send: length %u (permitted 1..%u)", len,
                            FF_MSG_MAX);
    int rc = ff_failpoint("control.send");
    pthread_mutex_lock(&t->send_lock);
    if (!t->secrets) {
        tcp_ctrl_encode(head, len);
    } else if (!rc) {
        tcp_sealed_encode(head, len + FF_SEAL_TAG_LEN);
        rc = ff_seal_close(&t->secrets->tx, head, sizeof(head), msg, len, t->sealed_tx);
        iov[1] = (struct iovec){.iov_base = t->sealed_tx, .iov_len = len + FF_SEAL_TAG_LEN};
    }
    if (!rc)
        rc = tcp_send_all(t->ctrl_fd, iov, 2, t->cancel_fd, t->timeout_ms);
    pthread_mutex_unlock(&t->send_lock);
    if (rc) {
        l->ops->shutdown(l); /* part of a message may be out: the stream is lost */
        return tell_reason(t, ff_error_set(err, -rc, "tcp: send: %s", strerror(-rc)), err);
    }
    return 0;
}

static int decode_head(const struct tcp_link *t, uint32_t *len, struct ff_error *err)
{
    if (tcp_is_pad(t->rx) && !t->had_pad)
        return tcp_pad_decode(t->rx, len, err);
    return t->secrets ? tcp_sealed_decode(t->rx, len, err) : tcp_ctrl_decode(t->rx, len, err);
}

/* All of a message of @len bytes is in rx: the message's own length, in @buf, or -errno */
static int open_message(struct tcp_link *t, void *buf, uint32_t len, struct ff_error *err)
{
    t->rx_have = 0;
    if (!t->secrets) {
        memcpy(buf, t->rx + TCP_CTRL_HEAD_LEN, len);
        return (int)len;
    }
    int rc = ff_seal_open(&t->secrets->rx, t->rx, TCP_CTRL_HEAD_LEN, t->rx + TCP_CTRL_HEAD_LEN,
                          len, buf);
    if (rc >= 0)
        return rc;
    t->base.ops->shutdown(&t->base); /* somebody is between us */
    return ff_error_set(err, EBADMSG, "tcp: receive: a control message that is not the peer's next "
                        "one: somebody between changed, repeated or left out something");
}

static int tcp_recv(struct ff_link *l, void *buf, int timeout_ms, struct ff_error *err)
{
    struct tcp_link *t = tcp_of(l);
    uint64_t start = ff_now_ns(), end = start + (uint64_t)timeout_ms * 1000000u;

    for (;;) {
        size_t want = TCP_CTRL_HEAD_LEN;
        uint32_t len = 0;
        if (t->rx_have >= TCP_CTRL_HEAD_LEN) {
            int rc = decode_head(t, &len, err);
            if (rc)
                return rc;
            want += len;
        }
        if (len && t->rx_have == want && tcp_is_pad(t->rx)) {
            t->had_pad = true;
            t->rx_have = 0;
            continue;
        }
        if (len && t->rx_have == want)
            return open_message(t, buf, len, err);
        ssize_t n = recv(t->ctrl_fd, t->rx + t->rx_have, want - t->rx_have, MSG_DONTWAIT);
        if (n > 0) {
            t->rx_have += (size_t)n;
            continue;
        }
        if (n == 0)
            return tell_reason(t, ff_error_set(err, ECONNRESET, "tcp: receive: the peer closed "
                                               "the connection"), err);
        int rc = errno == EAGAIN || errno == EINTR
                     ? tcp_wait_fd(t->ctrl_fd, POLLIN, t->cancel_fd, tcp_ms_left(end))
                 : errno == ETIMEDOUT ? -EHOSTUNREACH /* not as if nothing was heard yet */
                                      : -errno;
        if (rc == -ETIMEDOUT) /* more than @timeout_ms: this process had no CPU either */
            ff_error_set(err, ETIMEDOUT, "tcp: receive: nothing came for %llu ms",
                         (unsigned long long)(ff_now_ns() - start) / 1000000);
        else if (rc)
            ff_error_set(err, -rc, "tcp: receive: %s", strerror(-rc));
        if (rc)
            return tell_reason(t, rc, err);
    }
}

static int tcp_reg(struct ff_link *l, void *addr, uint64_t len, unsigned access, struct ff_mr *mr,
                   struct ff_error *err)
{
    return ff_mr_add(&tcp_of(l)->mrs, addr, len, access, mr, err);
}

static void tcp_dereg(struct ff_link *l, struct ff_mr *mr)
{
    ff_mr_remove(&tcp_of(l)->mrs, mr->rkey);
}

static void tcp_backed(struct ff_link *l, const struct ff_mr *mr, const struct ff_backing *file)
{
    ff_mr_backed(&tcp_of(l)->mrs, mr->rkey, file);
}

static int tcp_post(struct ff_link *l, enum ff_queue q, const struct ff_wr *wr,
                    struct ff_error *err)
{
    return tcp_queue_post(tcp_of(l)->q[q], wr, err);
}

static int tcp_poll(struct ff_link *l, enum ff_queue q, struct ff_wc *wc, unsigned n,
                    int timeout_ms, struct ff_error *err)
{
    struct ff_error why;
    int rc = tcp_queue_poll(tcp_of(l)->q[q], wc, n, timeout_ms, &why);
    if (rc >= 0)
        return rc;
    note_reason(tcp_of(l), &why);
    l->ops->shutdown(l); /* a link breaks as a whole, and the peer learns of it */
    if (err)
        *err = why;
    return tell_reason(tcp_of(l), rc, err);
}

static int tcp_fd(struct ff_link *l, enum ff_queue q, short *events)
{
    *events = tcp_queue_events(tcp_of(l)->q[q]);
    return tcp_queue_fd(tcp_of(l)->q[q]);
}

static void tcp_set_timeout(struct ff_link *l, int timeout_ms)
{
    struct tcp_link *t = tcp_of(l);

    pthread_mutex_lock(&t->fds_lock);
    t->timeout_ms = timeout_ms;
    tcp_set_options(t->ctrl_fd, timeout_ms);
    for (int k = 0; k < FF_QUEUES; k++)
        if (t->q[k])
            tcp_queue_set_timeout(t->q[k], timeout_ms);
    pthread_mutex_unlock(&t->fds_lock);
}

static int tcp_control_fd(struct ff_link *l)
{
    return tcp_of(l)->ctrl_fd;
}

static int tcp_join(struct ff_link *l, const struct ff_group_at *at, bool sends,
                    struct ff_datagrams **out, struct ff_error *err)
{
    return ff_udp_join(at, sends, tcp_of(l)->ctrl_fd, out, err);
}

static void tcp_shutdown(struct ff_link *l)
{
    struct tcp_link *t = tcp_of(l);

    pthread_mutex_lock(&t->fds_lock);
    t->down = true;
    shutdown(t->ctrl_fd, SHUT_RDWR);
    for (int k = 0; k < FF_QUEUES; k++)
        if (t->q[k])
            tcp_queue_shutdown(t->q[k]);
    pthread_mutex_unlock(&t->fds_lock);
}

static void tcp_free(struct ff_link *l)
{
    struct tcp_link *t = tcp_of(l);

    for (int k = 0; k < FF_QUEUES; k++)
        tcp_queue_free(t->q[k]);
    close(t->ctrl_fd);
    ff_secrets_free(t->secrets);
    free(t->sealed_tx);
    ff_mr_destroy(&t->mrs);
    pthread_mutex_destroy(&t->fds_lock);
    pthread_mutex_destroy(&t->send_lock);
    free(t);
}

static int tcp_secret(struct ff_link *l, enum ff_queue q, const char *label,
                      uint8_t out[FF_LINK_SECRET_LEN])
{
    return ff_secrets_of(tcp_of(l)->secrets, q, label, out);
}

static const struct ff_link_ops tcp_ops = {
    .name = "tcp",
    .reg = tcp_reg,
    .dereg = tcp_dereg,
    .backed = tcp_backed,
    .open_queues = tcp_open_queues,
    .check_peer = tcp_check_peer,
    .secret = tcp_secret,
    .post = tcp_post,
    .poll = tcp_poll,
    .fd = tcp_fd,
    .send = tcp_send,
    .recv = tcp_recv,
    .control_fd = tcp_control_fd,
    .set_timeout = tcp_set_timeout,
    .join = tcp_join,
    .shutdown = tcp_shutdown,
    .free = tcp_free,
};

/* --- sockets of this host --- */

int ff_tcp_on_sockets(const int fd[FF_TCP_SOCKETS], int timeout_ms, struct ff_link **out,
                      struct ff_error *err)
{
    struct tcp_link *t = NULL;
    unsigned used = 0;
    int rc = 0;

    for (unsigned i = 0; i < FF_TCP_SOCKETS && !rc; i++) {
        setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &(int){SOCKETS_BUF}, sizeof(int));
        if (!tcp_is_stream(fd[i]))
            rc = ff_error_set(err, EINVAL, "tcp: descriptor %d is no stream socket of this host",
                              fd[i]);
    }
    if (!rc)
        rc = link_new(fd[used++], timeout_ms, &t, err);
    for (enum ff_queue k = 0; k < FF_QUEUES && !rc; k++)
        rc = add_queue(t, k, fd[used++], err);
    while (used < FF_TCP_SOCKETS)
        close(fd[used++]);
    if (rc && t)
        t->base.ops->free(&t->base);
    if (rc)
        return rc;
    snprintf(t->base.about, sizeof(t->base.about), "tcp (sockets of this host)");
    *out = &t->base;
    return 0;
}
