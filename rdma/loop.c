/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * loop.c - two ends of a link in one process: reads and writes are memcpy
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      tests of everything above the link without a network, with injected
 *              delays and breaks; and the floor that other links are measured against.
 * Picture      end[0] <-- pipe --> end[1]; both share one key table, one lock.
 *              post() copies at once; poll() hands the completion out.
 * Threads      lock guards messages, completions and the broken flag; copies run outside.
 * Failure      shutdown() of either end breaks both.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "mr.h"
#include "thread.h"

#define LOOP_MAX_LEN (4u << 20)
#define WC_MAX (4 * FF_QUEUE_DEPTH)

struct msg {
    struct msg *next;
    uint32_t len;
    uint8_t data[];
};

struct loop_queue {
    struct ff_wc wc[WC_MAX];
    unsigned first, n;
    int efd; /* readable while there are completions or the link is broken */
};

struct loop_pipe;

struct loop_end {
    struct ff_link base;
    struct loop_pipe *pipe;
    struct loop_end *peer;
    struct loop_queue q[FF_QUEUES];
    struct msg *inbox, **inbox_tail;
    int efd; /* readable while there are messages or the link is broken */
};

struct loop_pipe {
    struct loop_end end[2];
    struct ff_mr_table mrs;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool broken;
    int refs;
};

static struct loop_end *loop_end_of(struct ff_link *l)
{
    return (struct loop_end *)l; /* base is the first member */
}

static int loop_broken(struct ff_error *err)
{
    return ff_error_set(err, ECONNRESET, "loop: the link is broken");
}

static int loop_reg(struct ff_link *l, void *addr, uint64_t len, unsigned access, struct ff_mr *mr,
                    struct ff_error *err)
{
    return ff_mr_add(&loop_end_of(l)->pipe->mrs, addr, len, access, mr, err);
}

static void loop_dereg(struct ff_link *l, struct ff_mr *mr)
{
    ff_mr_remove(&loop_end_of(l)->pipe->mrs, mr->rkey);
}

static void loop_backed(struct ff_link *l, const struct ff_mr *mr, const struct ff_backing *file)
{
    ff_mr_backed(&loop_end_of(l)->pipe->mrs, mr->rkey, file);
}

static int loop_open_queues(struct ff_link *l, const uint8_t session[FF_SESSION_LEN],
                            int timeout_ms, struct ff_error *err)
{
    (void)l;
    (void)session;
    (void)timeout_ms;
    (void)err;
    return 0;
}

static void loop_shutdown(struct ff_link *l)
{
    struct loop_pipe *p = loop_end_of(l)->pipe;

    pthread_mutex_lock(&p->lock);
    p->broken = true;
    for (int e = 0; e < 2; e++)
        for (int k = 0; k < FF_QUEUES; k++)
            eventfd_write(p->end[e].q[k].efd, 1);
    for (int e = 0; e < 2; e++)
        eventfd_write(p->end[e].efd, 1);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static void copy_wanted(const struct ff_wr *wr, const uint8_t *from)
{
    for (uint32_t i = 0; i < wr->len_bytes / wr->granule_bytes; i++) {
        size_t off = (size_t)i * wr->granule_bytes;
        if (!(wr->zero[i / 8] & (1u << (i % 8))))
            memcpy((uint8_t *)wr->local + off, from + off, wr->granule_bytes);
    }
}

static int read_granules(struct loop_pipe *p, const struct ff_wr *wr)
{
    const void *from = (void *)(uintptr_t)wr->remote;
    uint8_t own[FF_GRANULES_MAX / 8] = {0}, *poison = wr->poison ? wr->poison : own;
    FF_AUTO_FREE uint8_t *room = NULL;
    struct ff_backing file;

    if (ff_mr_elsewhere(&p->mrs, wr->rkey, from, &file)) {
        room = malloc(wr->len_bytes);
        int rc = !room ? -ENOMEM
                       : ff_fetch(&file, from, wr->len_bytes, wr->granule_bytes, wr->zero, poison,
                                  room, NULL);
        if (rc < 0)
            return rc;
        from = room;
    } else {
        ff_mr_zero_scan(&p->mrs, wr->rkey, from, wr->len_bytes, wr->granule_bytes, wr->zero,
                        poison);
    }
    for (uint32_t i = 0; i < sizeof(own); i++)
        if (own[i])
            return -EHWPOISON;
    copy_wanted(wr, from);
    return 0;
}

static int read_bytes(struct loop_pipe *p, const struct ff_wr *wr)
{
    const void *from = (void *)(uintptr_t)wr->remote;
    struct ff_backing file;

    if (ff_mr_elsewhere(&p->mrs, wr->rkey, from, &file))
        return ff_fetch_all(&file, from, wr->len_bytes, wr->local, NULL);
    if (ff_readable(from, wr->len_bytes) < wr->len_bytes)
        return -EHWPOISON;
    memcpy(wr->local, from, wr->len_bytes);
    return 0;
}

static int loop_refused(struct ff_link *l, int rc, struct ff_error *err)
{
    loop_shutdown(l);
    return ff_error_set(err, -rc, "loop: post: refused by the peer: %s", strerror(-rc));
}

static int loop_post(struct ff_link *l, enum ff_queue k, const struct ff_wr *wr,
                     struct ff_error *err)
{
    struct loop_end *e = loop_end_of(l);
    struct loop_pipe *p = e->pipe;
    bool read = wr->op == FF_OP_READ;

    if (!wr->len_bytes || wr->len_bytes > LOOP_MAX_LEN)
        return ff_error_set(err, EINVAL, "loop: post: length %u (permitted 1..%u)", wr->len_bytes,
                            LOOP_MAX_LEN);
    int rc = ff_failpoint("loop.read");
    if (!rc)
        rc = ff_mr_check(&p->mrs, wr->rkey, wr->remote, wr->len_bytes,
                         read ? FF_ACCESS_REMOTE_READ : FF_ACCESS_REMOTE_WRITE);
    if (rc)
        return loop_refused(l, rc, err);
    pthread_mutex_lock(&p->lock);
    bool full = e->q[k].n >= FF_QUEUE_DEPTH || e->peer->q[k].n >= WC_MAX, down = p->broken;
    pthread_mutex_unlock(&p->lock);
    if (down)
        return loop_broken(err);
    if (full)
        return ff_error_set(err, EAGAIN, "loop: post: %u requests in flight", FF_QUEUE_DEPTH);

    if (read) {
        rc = wr->zero && wr->granule_bytes ? read_granules(p, wr) : read_bytes(p, wr);
        if (rc)
            return loop_refused(l, rc, err);
    } else
        memcpy((void *)(uintptr_t)wr->remote, wr->local, wr->len_bytes);

    pthread_mutex_lock(&p->lock);
    struct loop_queue *mine = &e->q[k], *theirs = &e->peer->q[k];
    mine->wc[(mine->first + mine->n++) % WC_MAX] = (struct ff_wc){
        .id = wr->id, .op = read ? FF_WC_READ : FF_WC_WRITE, .len_bytes = wr->len_bytes};
    eventfd_write(mine->efd, 1);
    if (!read) {
        theirs->wc[(theirs->first + theirs->n++) % WC_MAX] =
            (struct ff_wc){.op = FF_WC_RECV_IMM, .len_bytes = wr->len_bytes, .imm = wr->imm};
        eventfd_write(theirs->efd, 1);
    }
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    return 0;
}

/* Wait for a change under lock: false when @end has passed */
static bool wait_changed(struct loop_pipe *p, uint64_t end_ns)
{
    return ff_cond_wait_until(&p->changed, &p->lock, end_ns) != ETIMEDOUT;
}

static int loop_poll(struct ff_link *l, enum ff_queue k, struct ff_wc *wc, unsigned n,
                     int timeout_ms, struct ff_error *err)
{
    struct loop_end *e = loop_end_of(l);
    struct loop_pipe *p = e->pipe;
    struct loop_queue *q = &e->q[k];
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    unsigned got = 0;
    int rc = 0;

    pthread_mutex_lock(&p->lock);
    while (!q->n && !p->broken && timeout_ms && wait_changed(p, end))
        ;
    for (; got < n && q->n; got++, q->n--) {
        wc[got] = q->wc[q->first];
        q->first = (q->first + 1) % WC_MAX;
    }
    if (!got && p->broken)
        rc = loop_broken(err);
    eventfd_t ignored;
    if (!q->n && !p->broken)
        eventfd_read(q->efd, &ignored);
    pthread_mutex_unlock(&p->lock);
    return rc ? rc : (int)got;
}

static int loop_fd(struct ff_link *l, enum ff_queue k, short *events)
{
    *events = POLLIN;
    return loop_end_of(l)->q[k].efd;
}

static int loop_send(struct ff_link *l, const void *msg, uint32_t len, struct ff_error *err)
{
    struct loop_end *e = loop_end_of(l), *peer = e->peer;
    struct loop_pipe *p = e->pipe;

    if (!len || len > FF_MSG_MAX)
        return ff_error_set(err, EMSGSIZE, "loop: send: length %u (permitted 1..%u)", len,
                            FF_MSG_MAX);
    int rc = ff_failpoint("control.send");
    struct msg *m = malloc(sizeof(*m) + len);
    if (rc || !m) {
        free(m);
        loop_shutdown(l);
        return ff_error_set(err, rc ? -rc : ENOMEM, "loop: send: %s", strerror(rc ? -rc : ENOMEM));
    }
    m->next = NULL;
    m->len = len;
    memcpy(m->data, msg, len);
    pthread_mutex_lock(&p->lock);
    bool down = p->broken;
    if (!down) {
        *peer->inbox_tail = m;
        peer->inbox_tail = &m->next;
        eventfd_write(peer->efd, 1);
        pthread_cond_broadcast(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    if (down) {
        free(m);
        return loop_broken(err);
    }
    return 0;
}

static int loop_recv(struct ff_link *l, void *buf, int timeout_ms, struct ff_error *err)
{
    struct loop_end *e = loop_end_of(l);
    struct loop_pipe *p = e->pipe;
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;

    pthread_mutex_lock(&p->lock);
    while (!e->inbox && !p->broken && timeout_ms && wait_changed(p, end))
        ;
    struct msg *m = e->inbox;
    bool down = p->broken;
    if (m) {
        e->inbox = m->next;
        if (!e->inbox)
            e->inbox_tail = &e->inbox;
    }
    eventfd_t ignored;
    if (!e->inbox && !down)
        eventfd_read(e->efd, &ignored);
    pthread_mutex_unlock(&p->lock);
    if (m) {
        int len = (int)m->len;
        memcpy(buf, m->data, m->len);
        free(m);
        return len;
    }
    return down ? loop_broken(err) : ff_error_set(err, ETIMEDOUT, "loop: receive: timed out");
}

static int loop_control_fd(struct ff_link *l)
{
    return loop_end_of(l)->efd;
}

static void loop_set_timeout(struct ff_link *l, int timeout_ms)
{
    (void)l; /* a peer in this process is never silent */
    (void)timeout_ms;
}

static void loop_free(struct ff_link *l)
{
    struct loop_pipe *p = loop_end_of(l)->pipe;

    loop_shutdown(l);
    pthread_mutex_lock(&p->lock);
    int left = --p->refs;
    pthread_mutex_unlock(&p->lock);
    if (left)
        return;
    for (int e = 0; e < 2; e++) {
        for (struct msg *m = p->end[e].inbox, *next; m; m = next) {
            next = m->next;
            free(m);
        }
        for (int k = 0; k < FF_QUEUES; k++)
            close(p->end[e].q[k].efd);
        close(p->end[e].efd);
    }
    ff_mr_destroy(&p->mrs);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->changed);
    free(p);
}

static const struct ff_link_ops loop_ops = {
    .name = "loop",
    .reg = loop_reg,
    .dereg = loop_dereg,
    .backed = loop_backed,
    .open_queues = loop_open_queues,
    .post = loop_post,
    .poll = loop_poll,
    .fd = loop_fd,
    .send = loop_send,
    .recv = loop_recv,
    .control_fd = loop_control_fd,
    .set_timeout = loop_set_timeout,
    .shutdown = loop_shutdown,
    .free = loop_free,
};

int ff_loop_pair(struct ff_link **a, struct ff_link **b, struct ff_error *err)
{
    struct loop_pipe *p = calloc(1, sizeof(*p));

    if (!p)
        return ff_error_set(err, ENOMEM, "loop: new pair: out of memory");
    ff_mr_init(&p->mrs);
    pthread_mutex_init(&p->lock, NULL);
    ff_cond_init(&p->changed);
    p->refs = 2;
    for (int e = 0; e < 2; e++) {
        struct loop_end *end = &p->end[e];
        end->base = (struct ff_link){.ops = &loop_ops,
                                     .max_len_bytes = LOOP_MAX_LEN,
                                     .max_mr_bytes = UINT64_MAX,
                                     .finds_zeros = true,
                                     .pushes = true,
                                     .about = "loop"};
        end->pipe = p;
        end->peer = &p->end[1 - e];
        end->inbox_tail = &end->inbox;
        for (int k = 0; k < FF_QUEUES; k++)
            end->q[k].efd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        end->efd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    *a = &p->end[0].base;
    *b = &p->end[1].base;
    return 0;
}
