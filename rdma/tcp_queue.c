/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_queue.c - one data connection of the tcp link: requests, replies, completions
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      one-sided reads and writes over a socket. The side that is read from calls
 *              poll() in a thread of its own, and that serves it.
 *
 * Picture      tx: FIFO of frames                            rx: one frame at a time
 *              own request: head (+ data of a WRITE)           head, map -> rx.buf
 *              reply: head, maps, runs of guest memory         data -> where it belongs
 *
 *              poll(): receive what is there -> parse -> send what the socket takes; sleep
 *
 * Threads      one at a time; tcp_queue_shutdown() from any.
 * Ownership    memory given in a work request is the caller's and must stay until it is
 *              complete, or the queue is freed.
 *              io_uring (one receive and one send in flight) takes the same CPU time a page or a
 *              fault, and is not available everywhere: a sysctl or a container's seccomp profile
 *              may forbid it. Hence plain calls; also for many peers (bench/serving.c).
 * Invariants   1. Replies go out in the order of the requests; so the oldest request in
 *                 flight is what the next reply must answer (checked by the decoder).
 *              2. A request is parsed only when there is room for its reply: a peer that
 *                 asks faster than it reads is slowed down by TCP, nothing grows.
 *              3. Data of a READ never passes a buffer of ours beyond the first RX_BUF, unless it
 *                 is of another process's memory (tcp_frame.h).
 * Limits       RX_BUF: a few 4 KiB replies in one recv, little enough to stay in the
 *              cache. REPLIES: all that a peer may have in flight, so that two sides that
 *              read from each other never wait for each other (tests/unit/rdma/test_link.c).
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "populate.h"
#include "runs.h"
#include "tcp_frame.h"
#include "tcp_pace.h"
#include "tcp_queue.h"
#include "tcp_seal.h"
#include "tcp_socket.h"
#include "tcp_tls.h"
#include "tcp_wire.h"

#define RX_BUF (64u << 10)
#define PREFILL_LOWAT (256u << 10)
#define REPLIES FF_QUEUE_DEPTH
#define TX_SLOTS (FF_QUEUE_DEPTH + REPLIES)
#define WC_MAX (2 * FF_QUEUE_DEPTH)

struct tcp_queue {
    int fd, beside_fd;
    enum ff_queue kind;
    struct ff_mr_table *mrs;
    struct tcp_seal *seal; /* NULL: in the clear */

    struct tx_frame tx[TX_SLOTS]; /* ring: tx_first, tx_n frames */
    unsigned tx_first, tx_n, replies_n;
    uint8_t *room; /* of the frame that is sent, if it is of another process's memory; or NULL */

    struct ff_wr wr[FF_QUEUE_DEPTH]; /* own requests in flight, oldest first */
    unsigned wr_first, wr_n;

    struct {
        uint8_t buf[RX_BUF];
        unsigned pos, end;
        struct runs data; /* where the data of the current frame goes */
        bool in_data, is_write;
        struct tcp_req write; /* the WRITE whose data this is */
    } rx;

    struct tcp_pace pace; /* of what PREFILL receives */
    bool is_pushed;       /* the peer WRITEs: what it may is not asked for here */
    bool had_pad;         /* the peer's has come */
    size_t lowat;
    struct ff_wc wc[WC_MAX];
    unsigned wc_first, wc_n;
    struct ff_error broken; /* code 0: it is not */
};

/* --- completions and failure --- */

static void add_wc(struct tcp_queue *q, struct ff_wc wc)
{
    q->wc[(q->wc_first + q->wc_n++) % WC_MAX] = wc;
}

static void break_with(struct tcp_queue *q, const struct ff_error *why)
{
    if (!q->broken.code)
        q->broken = *why;
}

static void break_errno(struct tcp_queue *q, const char *what, int code)
{
    struct ff_error why;
    ff_error_set(&why, code, "tcp: %s: %s%s", what, strerror(code),
                 q->seal && code == EBADMSG ? ": somebody between changed, repeated or left out "
                                             "something" : "");
    break_with(q, &why);
}

static int queue_broken(const struct tcp_queue *q, struct ff_error *err)
{
    if (err)
        *err = q->broken;
    return -q->broken.code;
}

/* --- sending --- */

static struct tx_frame *tx_new(struct tcp_queue *q, size_t head_len)
{
    struct tx_frame *f = &q->tx[(q->tx_first + q->tx_n++) % TX_SLOTS];
    f->runs.at = 0;
    f->runs.n = 1;
    f->runs.iov[0] = (struct iovec){.iov_base = f->head, .iov_len = head_len};
    f->n_head = 1;
    f->is_reply = false;
    f->from.of = NULL;
    return f;
}

/* Nothing more can be sent or received now */
static bool would_block(ssize_t n)
{
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

/* Send what the socket takes */
static void send_frames(struct tcp_queue *q)
{
    while (q->tx_n && !q->broken.code) {
        struct tx_frame *f = &q->tx[q->tx_first];
        struct runs *r = &f->runs;
        struct ff_error why;
        if (f->from.of && tcp_frame_fetch(f, &q->room, &why)) {
            break_with(q, &why);
            return;
        }
        struct iovec cut = r->iov[r->at];
        struct msghdr msg = {.msg_iov = r->iov + r->at, .msg_iovlen = r->n - r->at};

        if (ff_failpoint("tcp.send.short")) {
            cut.iov_len = FF_MIN(cut.iov_len, (size_t)5);
            msg = (struct msghdr){.msg_iov = &cut, .msg_iovlen = 1};
        }
        unsigned n_head = f->n_head > r->at ? f->n_head - r->at : 0;
        ssize_t n = q->seal ? tcp_seal_send(q->seal, q->fd, &msg, n_head)
                            : sendmsg(q->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (would_block(n))
            return;
        if (n < 0) {
            break_errno(q, "send", errno);
            return;
        }
        runs_advance(r, (size_t)n);
        if (runs_done(r)) {
            q->replies_n -= f->is_reply;
            q->tx_first = (q->tx_first + 1) % TX_SLOTS;
            q->tx_n--;
        }
    }
}

/* --- serving the peer --- */

static void reply(struct tcp_queue *q, const struct tcp_req *req, uint32_t status)
{
    struct tx_frame *f = tx_new(q, TCP_REP_LEN);

    q->replies_n++;
    tcp_frame_reply(f, q->mrs, req, status);
}

static void serve_request(struct tcp_queue *q, const struct tcp_req *req)
{
    uint32_t status = tcp_frame_status(q->mrs, req);
    int rc = ff_failpoint(q->kind == FF_QUEUE_FAULT ? "tcp.serve.fault" : "tcp.serve.prefill");

    if (rc) {
        break_errno(q, "serve (injected)", -rc);
        return;
    }
    if (req->op == TCP_OP_READ) {
        reply(q, req, status);
    } else if (status) {
        /* its data follows and has nowhere to go */
        struct ff_error why;
        ff_error_set(&why, EPROTO, "tcp: serve write of %u bytes: refused (status %u)", req->len,
                     status);
        break_with(q, &why);
    } else {
        if (q->kind == FF_QUEUE_PREFILL)
            tcp_pace_start(&q->pace, q->fd, q->beside_fd);
        if (!q->is_pushed && q->pace.on)
            tcp_pace_asks(&q->pace, true);
        q->is_pushed = true;
        q->rx.in_data = q->rx.is_write = true;
        q->rx.write = *req;
        q->rx.data.at = q->rx.data.n = 0;
        runs_add(&q->rx.data, (void *)(uintptr_t)req->addr, req->len);
    }
}

/* --- receiving --- */

static void data_complete(struct tcp_queue *q)
{
    q->rx.in_data = false;
    if (q->rx.is_write) {
        struct tcp_req *w = &q->rx.write;
        q->rx.is_write = false;
        add_wc(q, (struct ff_wc){.op = FF_WC_RECV_IMM, .len_bytes = w->len, .imm = w->imm});
        reply(q, w, TCP_OK);
        return;
    }
    struct ff_wr *wr = &q->wr[q->wr_first];
    add_wc(q, (struct ff_wc){.id = wr->id,
                             .op = wr->op == FF_OP_READ ? FF_WC_READ : FF_WC_WRITE,
                             .len_bytes = wr->len_bytes});
    q->wr_first = (q->wr_first + 1) % FF_QUEUE_DEPTH;
    if (!--q->wr_n && q->pace.on && !q->is_pushed)
        tcp_pace_asks(&q->pace, false);
}

/* This process itself writes what comes for rx.data, by a cipher or out of rx.buf. Pages of zeros are not
 * in it */
static bool make_room(struct tcp_queue *q)
{
    const struct runs *d = &q->rx.data;
    struct ff_error why;

    for (unsigned i = d->at; i < d->n; i++) {
        int rc = ff_populate(d->iov[i].iov_base, d->iov[i].iov_len, &why);
        if (!rc)
            continue;
        ff_error_pass(&why, rc, "tcp: receive");
        break_with(q, &why);
        return false;
    }
    return true;
}

/* A whole reply head at @p, @have bytes in the buffer: bytes taken, 0: more are needed */
static unsigned take_reply(struct tcp_queue *q, const uint8_t *p, unsigned have)
{
    struct ff_wr *wr = q->wr_n ? &q->wr[q->wr_first] : NULL;
    struct ff_error why;
    struct tcp_rep rep;

    if (have < TCP_REP_LEN)
        return 0;
    if (tcp_rep_decode(p, wr, &rep, &why)) {
        break_with(q, &why);
        return 0;
    }
    unsigned used = TCP_REP_LEN;
    q->rx.data.at = q->rx.data.n = 0;
    if (rep.flags & TCP_F_ZEROS) {
        uint32_t n = wr->len_bytes / wr->granule_bytes, len = tcp_map_len(n);
        bool poison = rep.flags & TCP_F_POISON;
        if (have < used + (poison ? 2 * len : len))
            return 0;
        memcpy(wr->zero, p + used, (n + 7) / 8);
        used += len;
        for (uint32_t i = 0; poison && i < (n + 7) / 8; i++)
            wr->poison[i] = p[used + i] & wr->zero[i]; /* of the others the bytes follow */
        used += poison ? len : 0;
        runs_add_granules(&q->rx.data, wr->local, wr->len_bytes, wr->granule_bytes, wr->zero);
    } else if (wr->op == FF_OP_READ) {
        runs_add(&q->rx.data, wr->local, wr->len_bytes);
    }
    if (wr->in_file && !make_room(q))
        return 0;
    q->rx.in_data = true;
    return used;
}

static unsigned take_request(struct tcp_queue *q, const uint8_t *p, unsigned have)
{
    struct ff_error why;
    struct tcp_req req;

    if (have < TCP_REQ_LEN)
        return 0;
    if (tcp_req_decode(p, &req, &why)) {
        break_with(q, &why);
        return 0;
    }
    serve_request(q, &req);
    return TCP_REQ_LEN;
}

/* Copy what the buffer holds of the current frame's data */
static void take_data(struct tcp_queue *q)
{
    struct runs *d = &q->rx.data;

    while (!runs_done(d) && q->rx.pos < q->rx.end) {
        size_t n = FF_MIN(d->iov[d->at].iov_len, (size_t)(q->rx.end - q->rx.pos));
        memcpy(d->iov[d->at].iov_base, q->rx.buf + q->rx.pos, n);
        q->rx.pos += (unsigned)n;
        runs_advance(d, n);
    }
}

/* The one pad that a peer sends, all of it: bytes taken, 0: more are needed */
static unsigned take_pad(struct tcp_queue *q, const uint8_t *p, unsigned have)
{
    struct ff_error why;
    uint32_t len;

    if (have < TCP_PAD_HEAD_LEN)
        return 0;
    int rc = q->had_pad ? ff_error_set(&why, EPROTO, "tcp: read pad: the second of a connection")
                        : tcp_pad_decode(p, &len, &why);
    if (rc) {
        break_with(q, &why);
        return 0;
    }
    if (have < TCP_PAD_HEAD_LEN + len)
        return 0;
    q->had_pad = true;
    return TCP_PAD_HEAD_LEN + len;
}

static void parse_received(struct tcp_queue *q)
{
    while (!q->broken.code) {
        if (q->rx.in_data) {
            take_data(q);
            if (!runs_done(&q->rx.data))
                return;
            if (q->wc_n == WC_MAX || q->replies_n == REPLIES)
                return; /* no room for the outcome: go on when there is */
            data_complete(q);
            continue;
        }
        const uint8_t *p = q->rx.buf + q->rx.pos;
        unsigned have = q->rx.end - q->rx.pos, used;
        if (have < 4)
            return;
        if (!memcmp(p, "FFrp", 4))
            used = take_reply(q, p, have);
        else if (tcp_is_pad(p))
            used = take_pad(q, p, have);
        else if (q->replies_n < REPLIES)
            used = take_request(q, p, have);
        else
            return;
        if (!used)
            return;
        q->rx.pos += used;
    }
}

/* What comes next may not fit into @room bytes of rx.buf */
static bool is_little(const struct tcp_queue *q, unsigned room)
{
    return room < (q->seal ? TCP_SEALED_MIXED : 1);
}

/* Receive once: true: as much as was asked for, so that there may be more; or sealed frames have been
 * read where poll(2) does not see them */
static bool receive_bytes(struct tcp_queue *q)
{
    if (q->rx.pos == q->rx.end)
        q->rx.pos = q->rx.end = 0;
    struct runs *d = &q->rx.data;
    bool direct = q->rx.in_data && !runs_done(d) && !q->rx.end;

    if (!direct && is_little(q, RX_BUF - q->rx.end)) {
        if (is_little(q, RX_BUF - q->rx.end + q->rx.pos))
            return false; /* full of requests that wait for room to be answered */
        memmove(q->rx.buf, q->rx.buf + q->rx.pos, q->rx.end - q->rx.pos);
        q->rx.end -= q->rx.pos;
        q->rx.pos = 0;
    }
    struct iovec buf = {.iov_base = q->rx.buf + q->rx.end, .iov_len = RX_BUF - q->rx.end};
    struct msghdr msg = {.msg_iov = &buf, .msg_iovlen = 1};
    if (direct)
        msg = (struct msghdr){.msg_iov = d->iov + d->at, .msg_iovlen = d->n - d->at};
    if (!q->seal && ff_failpoint("tcp.recv.short")) {
        buf = msg.msg_iov[0];
        buf.iov_len = FF_MIN(buf.iov_len, direct ? (size_t)1021 : (size_t)7);
        msg = (struct msghdr){.msg_iov = &buf, .msg_iovlen = 1};
    }
    ssize_t n = q->seal ? tcp_seal_recv(q->seal, q->fd, &msg, direct)
                        : recvmsg(q->fd, &msg, MSG_DONTWAIT);
    if (would_block(n))
        return false;
    if (n == 0)
        break_with(q, &(struct ff_error){.code = ECONNRESET,
                                         .text = "tcp: receive: the peer closed the connection"});
    else if (n < 0)
        break_errno(q, "receive", errno);
    else if (direct)
        runs_advance(d, (size_t)n);
    else
        q->rx.end += (unsigned)n;
    return q->seal ? n > 0 && tcp_seal_more(q->seal) : direct ? runs_done(d) : q->rx.end == RX_BUF;
}

/* With a small window data comes in small segments: be woken for many of them at once. It is only
 * waited for what the peer has begun to send. Sealed: a frame is of use when all of it is here. */
static void set_lowat(struct tcp_queue *q, bool waits)
{
    const struct runs *d = &q->rx.data;
    size_t want = 0;

    if (waits && q->seal) /* else others may poll(2) for what comes next */
        want = q->kind == FF_QUEUE_PREFILL ? tcp_seal_lacks(q->seal) : 0;
    else if (waits && q->pace.window && q->rx.in_data)
        for (unsigned i = d->at; i < d->n && want < PREFILL_LOWAT; i++)
            want += d->iov[i].iov_len;
    want = want > RX_BUF || q->seal ? FF_MAX(FF_MIN(want, (size_t)PREFILL_LOWAT), 1u) : 1;
    if (want == q->lowat)
        return;
    q->lowat = want;
    setsockopt(q->fd, SOL_SOCKET, SO_RCVLOWAT, &(int){(int)want}, sizeof(int));
}

/* --- the queue --- */

static void progress(struct tcp_queue *q)
{
    bool more;

    do {
        more = receive_bytes(q);
        parse_received(q);
        bool full = q->replies_n == REPLIES;
        send_frames(q);
        more |= full && q->replies_n < REPLIES; /* there is room again for what waits in buf */
    } while (more && !q->broken.code && !q->wc_n);
}

int tcp_queue_post(struct tcp_queue *q, const struct ff_wr *wr, struct ff_error *err)
{
    if (q->broken.code)
        return queue_broken(q, err);
    if (!wr->len_bytes || wr->len_bytes > TCP_MAX_LEN)
        return ff_error_set(err, EINVAL, "tcp: post: length %u (permitted 1..%u)", wr->len_bytes,
                            TCP_MAX_LEN);
    /* a frame of ours may outlive its request: a peer can answer what it has not read yet */
    if (q->wr_n == FF_QUEUE_DEPTH || q->tx_n - q->replies_n == FF_QUEUE_DEPTH)
        return ff_error_set(err, EAGAIN, "tcp: post: %u requests in flight", q->wr_n);

    bool read = wr->op == FF_OP_READ;
    if (read && q->kind == FF_QUEUE_PREFILL)
        tcp_pace_start(&q->pace, q->fd, q->beside_fd);
    struct tcp_req req = {.op = read ? TCP_OP_READ : TCP_OP_WRITE,
                          .id = wr->id,
                          .addr = wr->remote,
                          .rkey = wr->rkey,
                          .len = wr->len_bytes,
                          .granule = read && wr->zero ? wr->granule_bytes : 0,
                          .imm = wr->imm};
    struct tx_frame *f = tx_new(q, TCP_REQ_LEN);
    tcp_req_encode(f->head, &req);
    if (!read)
        f->runs.iov[f->runs.n++] =
            (struct iovec){.iov_base = wr->local, .iov_len = wr->len_bytes};
    if (!q->wr_n && q->pace.on)
        tcp_pace_asks(&q->pace, true);
    q->wr[(q->wr_first + q->wr_n++) % FF_QUEUE_DEPTH] = *wr;
    send_frames(q);
    return 0;
}

void tcp_queue_pad(struct tcp_queue *q, uint8_t *zeros)
{
    struct tx_frame *f = tx_new(q, TCP_PAD_HEAD_LEN);

    tcp_pad_encode(f->head, TCP_PAD_LEN);
    f->runs.iov[f->runs.n++] = (struct iovec){.iov_base = zeros, .iov_len = TCP_PAD_LEN};
}

int tcp_queue_turn(struct tcp_queue *q, bool *sends, struct ff_error *err)
{
    progress(q);
    *sends = q->tx_n;
    return q->broken.code ? queue_broken(q, err) : 0;
}

static unsigned drain_wc(struct tcp_queue *q, struct ff_wc *wc, unsigned n)
{
    unsigned got = 0;

    for (; got < n && q->wc_n; got++, q->wc_n--) {
        wc[got] = q->wc[q->wc_first];
        q->wc_first = (q->wc_first + 1) % WC_MAX;
    }
    return got;
}

int tcp_queue_poll(struct tcp_queue *q, struct ff_wc *wc, unsigned n, int timeout_ms,
                   struct ff_error *err)
{
    uint64_t now = ff_now_ns(), end = now + (uint64_t)timeout_ms * 1000000u;

    for (;;) {
        progress(q);
        tcp_pace_turn(&q->pace, q->fd, now);
        unsigned got = drain_wc(q, wc, n);
        if (got) {
            set_lowat(q, false);
            return (int)got;
        }
        if (q->broken.code)
            return queue_broken(q, err);
        if (now >= end)
            return 0;
        /* while data comes, the pace is looked after as well */
        uint64_t until = q->pace.on && q->wr_n ? FF_MIN(end, FF_MAX(q->pace.next_ns, now)) : end;
        set_lowat(q, true);
        struct pollfd p = {.fd = q->fd, .events = tcp_queue_events(q)};
        poll(&p, 1, (int)((until - now + 999999) / 1000000));
        now = ff_now_ns();
    }
}

short tcp_queue_events(const struct tcp_queue *q)
{
    /* full: it goes on when replies are out */
    bool full = q->replies_n == REPLIES || is_little(q, RX_BUF - q->rx.end + q->rx.pos);
    return (short)((full ? 0 : POLLIN) | (q->tx_n ? POLLOUT : 0));
}

int tcp_queue_fd(struct tcp_queue *q)
{
    return q->fd;
}

void tcp_queue_beside(struct tcp_queue *q, const struct tcp_queue *other)
{
    q->beside_fd = other->fd;
}

void tcp_queue_shutdown(struct tcp_queue *q)
{
    shutdown(q->fd, SHUT_RDWR);
}

void tcp_queue_set_timeout(struct tcp_queue *q, int timeout_ms)
{
    tcp_set_options(q->fd, timeout_ms);
}

int tcp_queue_new(int fd, enum ff_queue kind, struct ff_mr_table *mrs, struct tcp_queue **out,
                  struct ff_error *err)
{
    struct tcp_queue *q = calloc(1, sizeof(*q));
    if (!q) {
        close(fd);
        return ff_error_set(err, ENOMEM, "tcp: new queue: out of memory");
    }
    tcp_set_congestion(fd);
    q->fd = fd;
    q->beside_fd = -1;
    q->lowat = 1;
    q->kind = kind;
    if (kind == FF_QUEUE_FAULT)
        tcp_set_urgent(fd);
    q->mrs = mrs;
    *out = q;
    return 0;
}

int tcp_queue_seal(struct tcp_queue *q, const struct tcp_tls_how *how, struct ff_error *err)
{
    enum ff_hs_suite suite;
    uint8_t secret[FF_KDF_LEN];

    int rc = tcp_tls_agree(q->fd, how, &suite, secret, err);
    if (!rc)
        rc = tcp_seal_new(suite, secret, how->active, &q->seal, err);
    explicit_bzero(secret, sizeof(secret));
    return rc;
}

void tcp_queue_free(struct tcp_queue *q)
{
    if (!q)
        return;
    tcp_seal_free(q->seal);
    close(q->fd);
    free(q->room);
    free(q);
}
