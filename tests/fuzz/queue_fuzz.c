/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * queue_fuzz.c - libFuzzer: one tcp queue whose peer says whatever it likes
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      [queue under test] ---- socketpair ---- [peer: the input]
 *              The input is a list of steps: post a READ or WRITE, poll, fail a page, and what the
 *              peer sends: raw bytes, a request or reply that is nearly right, or its data; the
 *              peer also reads, or not, or leaves.
 * Invariants   no crash, no access outside the memory given (ASAN; canaries around what the
 *              kernel writes into), no completion that was not asked for, no hang.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "error.c"
#include "kdf.c"
#include "printable.c"
#include "failpoint.c"
#include "fetch.c"
#include "foreign.c"
#include "gcm.c"
#include "holes.c"
#include "log.c"
#include "mr.c"
#include "pagemap.c"
#include "populate.c"
#include "unreadable.c"
#include "zero_scan.c"
#include "seal.c"
#include "secret.c"
#include "tcp_seal.c"
#include "tcp_socket.c"
#include "tcp_tls.c"
#include "tcp_wire.c"

#include "tcp_frame.c"
#include "tcp_queue.c"

/* Not over a socket pair; and linux/tcp.h does not go with netinet/tcp.h */
void tcp_pace_start(struct tcp_pace *t, int fd, int beside_fd)
{
    (void)t, (void)fd, (void)beside_fd;
}

void tcp_pace_turn(struct tcp_pace *t, int fd, uint64_t now_ns)
{
    (void)t, (void)fd, (void)now_ns;
}

void tcp_pace_asks(struct tcp_pace *t, bool any)
{
    (void)t, (void)any;
}

/* Nothing is sealed here */
int ff_hs_token(const struct ff_epoch *e, enum ff_queue q, unsigned index,
                const uint8_t session[FF_SESSION_LEN], uint8_t out[FF_SESSION_LEN])
{
    (void)e, (void)q, (void)index, (void)session, (void)out;
    abort();
}

#define MEM (64u << 10)
#define CANARY 512u

struct input {
    const uint8_t *p;
    size_t left;
};

static uint8_t get(struct input *in)
{
    if (!in->left)
        return 0;
    in->left--;
    return *in->p++;
}

static uint32_t get4(struct input *in)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v = v << 8 | get(in);
    return v;
}

/* Memory with a border that must stay as it is */
#define PAGE 4096u
static uint8_t area[2][PAGE * (MEM / PAGE + 1)] __attribute__((aligned(PAGE)));
enum { LANDING, SHARED };

/* Of what the peer may read, but not write: as if the memory behind it had failed */
static void page_fails(bool fails)
{
    uint8_t *page = area[SHARED] + 10 * PAGE;

    if ((fails && madvise(page, PAGE, MADV_DONTNEED)) ||
        mprotect(page, PAGE, fails ? PROT_NONE : PROT_READ | PROT_WRITE))
        abort();
}

static void border_check(void)
{
    for (unsigned a = 0; a < 2; a++)
        for (unsigned i = 0; i < CANARY; i++)
            if (area[a][i] != 0xa5 || area[a][CANARY + MEM + i] != 0xa5)
                abort();
}

struct world {
    struct ff_mr_table mrs;
    struct tcp_queue *q;
    int peer;
    uint8_t zero[FF_QUEUE_DEPTH][FF_GRANULES_MAX / 8], poison[FF_GRANULES_MAX / 8];
    uint64_t posted, completed, next_id;
    bool broken;
};

static void peer_send(struct world *w, const void *data, size_t len)
{
    if (w->peer >= 0 && len && send(w->peer, data, len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        return; /* full: bytes are lost, which is as good as any other rubbish */
}

static void peer_read(struct world *w)
{
    static uint8_t sink[MEM];

    while (w->peer >= 0 && recv(w->peer, sink, sizeof(sink), MSG_DONTWAIT) > 0)
        ;
}

static void do_post(struct world *w, struct input *in)
{
    uint8_t how = get(in);
    uint32_t len = 1 + get4(in) % (how & 1 ? 64 : MEM), room = MEM - len;
    struct ff_wr wr = {.id = w->next_id,
                       .op = how & 2 ? FF_OP_WRITE : FF_OP_READ,
                       .local = area[LANDING] + CANARY + (room ? get4(in) % room : 0),
                       .remote = 0x1000,
                       .rkey = 9,
                       .len_bytes = len};
    if (how & 4 && len >= 512) {
        wr.granule_bytes = 512;
        wr.len_bytes = len / 512 * 512;
        wr.zero = w->zero[w->next_id % FF_QUEUE_DEPTH];
        memset(wr.zero, 0, sizeof(w->zero[0]));
        wr.poison = w->next_id % 2 ? w->poison : NULL;
    }
    if (!tcp_queue_post(w->q, &wr, NULL)) {
        w->posted++;
        w->next_id++;
    }
}

static void do_poll(struct world *w)
{
    struct ff_error err;
    struct ff_wc wc[4];

    for (int i = 0; i < 40; i++) {
        err.code = 0;
        int n = tcp_queue_poll(w->q, wc, 4, 0, &err);
        if (n < 0 && (err.code != -n || !err.text[0]))
            abort();
        w->broken = n < 0;
        if (n <= 0)
            return;
        for (int k = 0; k < n; k++)
            if (wc[k].op != FF_WC_RECV_IMM &&
                (wc[k].id != w->completed || ++w->completed > w->posted))
                abort();
    }
}

static void peer_request(struct world *w, struct input *in)
{
    uint8_t frame[TCP_REQ_LEN], how = get(in);
    struct tcp_req r = {.op = how & 1 ? TCP_OP_WRITE : TCP_OP_READ,
                        .id = get(in),
                        .addr = (uintptr_t)area[SHARED] + CANARY + get4(in) % MEM,
                        .rkey = how & 2 ? 1 : 2, /* writable, readable */
                        .len = 1 + get4(in) % (how & 4 ? MEM : 200),
                        .granule = how & 8 ? 512 : 0,
                        .imm = 5};
    if (how & 16)
        r.len = r.len / 512 * 512;
    tcp_req_encode(frame, &r);
    if (how & 32)
        frame[get(in) % TCP_REQ_LEN] ^= get(in);
    peer_send(w, frame, how & 64 ? get(in) % TCP_REQ_LEN : TCP_REQ_LEN);
}

static void peer_reply(struct world *w, struct input *in)
{
    uint8_t frame[TCP_REP_LEN], how = get(in);
    const struct ff_wr *wr = w->q->wr_n ? &w->q->wr[w->q->wr_first] : NULL;
    struct tcp_rep r = {.op = how & 1 ? TCP_OP_WRITE : TCP_OP_READ,
                        .id = w->completed,
                        .len = wr ? wr->len_bytes : get4(in)};

    if (wr)
        r.op = wr->op == FF_OP_READ ? TCP_OP_READ : TCP_OP_WRITE;
    r.flags = (uint16_t)((how & 2 ? TCP_F_ZEROS : 0) | (how & 16 ? TCP_F_POISON : 0));
    r.status = how & 4 ? get(in) : 0;
    tcp_rep_encode(frame, &r);
    if (how & 32)
        frame[get(in) % TCP_REP_LEN] ^= get(in);
    peer_send(w, frame, how & 64 ? get(in) % TCP_REP_LEN : TCP_REP_LEN);
}

static void peer_raw(struct world *w, struct input *in)
{
    size_t n = get(in);

    n = FF_MIN(n, in->left);
    peer_send(w, in->p, n);
    in->p += n;
    in->left -= n;
}

static void peer_data(struct world *w, struct input *in)
{
    static uint8_t data[MEM];

    memset(data, get(in), sizeof(data));
    peer_send(w, data, get4(in) % MEM);
}

static void step(struct world *w, struct input *in)
{
    switch (get(in) % 10) {
    case 0:
        peer_raw(w, in);
        break;
    case 1:
    case 2:
        do_post(w, in);
        break;
    case 3:
        do_poll(w);
        break;
    case 4:
        peer_request(w, in);
        break;
    case 5:
        peer_reply(w, in);
        break;
    case 6:
        peer_data(w, in);
        break;
    case 7:
        peer_read(w);
        break;
    case 9:
        page_fails(get(in) & 1);
        break;
    case 8:
        if (get(in) == 0 && w->peer >= 0)
            shutdown(w->peer, SHUT_WR);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct world w;
    struct input in = {.p = data, .left = size};
    struct ff_mr mr;
    int fd[2];

    memset(&w, 0, sizeof(w));
    memset(area, 0xa5, sizeof(area));
    memset(area[SHARED] + CANARY, 0, MEM / 2); /* zeros, then content */
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd))
        abort();
    w.peer = fd[1];
    ff_mr_init(&w.mrs);
    if (ff_mr_add(&w.mrs, area[SHARED] + CANARY, MEM / 2, FF_ACCESS_REMOTE_WRITE, &mr, NULL) ||
        ff_mr_add(&w.mrs, area[SHARED] + CANARY, MEM, FF_ACCESS_REMOTE_READ, &mr, NULL))
        abort();
    w.mrs.mr[0].rkey = 1; /* an input must mean the same every time */
    w.mrs.mr[1].rkey = 2;
    if (tcp_queue_new(fd[0], FF_QUEUE_FAULT, &w.mrs, &w.q, NULL))
        abort();
    for (unsigned steps = 0; in.left && steps < 400; steps++) {
        step(&w, &in);
        if (steps % 4 == 3)
            do_poll(&w);
    }
    do_poll(&w);
    peer_read(&w);
    do_poll(&w);
    if (w.peer >= 0)
        close(w.peer);
    for (int i = 0; i < 100 && !w.broken; i++)
        do_poll(&w); /* what was in the socket comes first */
    tcp_queue_free(w.q);
    ff_mr_destroy(&w.mrs);
    page_fails(false);
    border_check();
    return 0;
}
