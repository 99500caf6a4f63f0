/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_wire.c - the frames of the tcp link, encoded and checked in one place
 */
#include <errno.h>
#include <string.h>

#include "error.h"
#include "tcp_wire.h"
#include "wirebuf.h"

#define MAGIC_CTRL 0x6d634646u /* "FFcm" */
#define MAGIC_SEALED 0x73634646u /* "FFcs" */
#define MAGIC_FRAME 0x66734646u /* "FFsf" */
#define MAGIC_JOIN 0x6e6a4646u /* "FFjn" */
#define MAGIC_REQ 0x71724646u  /* "FFrq" */
#define MAGIC_REP 0x70724646u  /* "FFrp" */
#define MAGIC_PAD 0x64704646u  /* "FFpd" */

static struct ff_wirebuf writer(uint8_t *out, size_t len)
{
    return (struct ff_wirebuf){.data = out, .len = len};
}

static int bad_magic(const char *what, uint32_t got, uint32_t want, struct ff_error *err)
{
    return ff_error_set(err, EPROTO, "tcp: read %s: not a Farfork peer (magic 0x%08x, want 0x%08x)",
                        what, got, want);
}

void tcp_ctrl_encode(uint8_t out[TCP_CTRL_HEAD_LEN], uint32_t len)
{
    struct ff_wirebuf b = writer(out, TCP_CTRL_HEAD_LEN);
    ff_wb_put(&b, MAGIC_CTRL, 4);
    ff_wb_put(&b, len, 4);
}

/* @n, the length of @what, is from @min to @max: 0 and *@len */
static int get_length(const char *what, uint32_t n, uint32_t min, uint32_t max, uint32_t *len,
                      struct ff_error *err)
{
    if (n < min || n > max)
        return ff_error_set(err, EPROTO, "tcp: read %s: length %u (permitted %u..%u)", what, n, min,
                            max);
    *len = n;
    return 0;
}

int tcp_ctrl_decode(const uint8_t in[TCP_CTRL_HEAD_LEN], uint32_t *len, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wb_reader(in, TCP_CTRL_HEAD_LEN);
    uint32_t magic = (uint32_t)ff_wb_get(&b, 4);
    uint32_t n = (uint32_t)ff_wb_get(&b, 4);

    if (ff_hs_is_answer(in))
        return ff_error_set(err, EACCES, "tcp: the destination wants a key: give key-file=FILE "
                            "with the one that it has");
    if (ff_hs_is_hello(in))
        return ff_error_set(err, EACCES, "tcp: the source has a key and this side has none: give "
                            "key-file=FILE with the same");
    if (magic != MAGIC_CTRL)
        return bad_magic("control message", magic, MAGIC_CTRL, err);
    return get_length("control message", n, 1, FF_MSG_MAX, len, err);
}

void tcp_sealed_encode(uint8_t out[TCP_CTRL_HEAD_LEN], uint32_t len)
{
    struct ff_wirebuf b = writer(out, TCP_CTRL_HEAD_LEN);
    ff_wb_put(&b, MAGIC_SEALED, 4);
    ff_wb_put(&b, len, 4);
}

int tcp_sealed_decode(const uint8_t in[TCP_CTRL_HEAD_LEN], uint32_t *len, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wb_reader(in, TCP_CTRL_HEAD_LEN);
    uint32_t magic = (uint32_t)ff_wb_get(&b, 4);
    uint32_t n = (uint32_t)ff_wb_get(&b, 4);

    if (magic != MAGIC_SEALED)
        return bad_magic("sealed control message", magic, MAGIC_SEALED, err);
    return get_length("control message", n, 1 + FF_SEAL_TAG_LEN, FF_MSG_MAX + FF_SEAL_TAG_LEN, len,
                      err);
}

void tcp_seal_encode(uint8_t out[TCP_SEALED_HEAD_LEN], uint32_t len)
{
    struct ff_wirebuf b = writer(out, TCP_SEALED_HEAD_LEN);
    ff_wb_put(&b, MAGIC_FRAME, 4);
    ff_wb_put(&b, len + FF_SEAL_TAG_LEN, 4);
}

int tcp_seal_decode(const uint8_t in[TCP_SEALED_HEAD_LEN], uint32_t max, uint32_t *len,
                     struct ff_error *err)
{
    struct ff_wirebuf b = ff_wb_reader(in, TCP_SEALED_HEAD_LEN);
    uint32_t magic = (uint32_t)ff_wb_get(&b, 4);
    uint32_t n = (uint32_t)ff_wb_get(&b, 4);

    if (magic != MAGIC_FRAME)
        return bad_magic("sealed frame", magic, MAGIC_FRAME, err);
    int rc = get_length("sealed frame", n, 1 + FF_SEAL_TAG_LEN, max + FF_SEAL_TAG_LEN, len, err);
    *len -= rc ? 0 : FF_SEAL_TAG_LEN;
    return rc;
}

void tcp_pad_encode(uint8_t out[TCP_PAD_HEAD_LEN], uint32_t len)
{
    struct ff_wirebuf b = writer(out, TCP_PAD_HEAD_LEN);
    ff_wb_put(&b, MAGIC_PAD, 4);
    ff_wb_put(&b, len, 4);
}

bool tcp_is_pad(const uint8_t *in)
{
    struct ff_wirebuf b = ff_wb_reader(in, 4);
    return ff_wb_get(&b, 4) == MAGIC_PAD;
}

int tcp_pad_decode(const uint8_t in[TCP_PAD_HEAD_LEN], uint32_t *len, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wb_reader(in, TCP_PAD_HEAD_LEN);
    uint32_t magic = (uint32_t)ff_wb_get(&b, 4);
    uint32_t n = (uint32_t)ff_wb_get(&b, 4);

    if (magic != MAGIC_PAD)
        return bad_magic("pad", magic, MAGIC_PAD, err);
    return get_length("pad", n, 1, TCP_PAD_MAX, len, err);
}

void tcp_join_encode(uint8_t out[TCP_JOIN_LEN], enum ff_queue q, const struct tcp_tokens *t)
{
    struct ff_wirebuf b = writer(out, TCP_JOIN_LEN);
    ff_wb_put(&b, MAGIC_JOIN, 4);
    ff_wb_put(&b, TCP_VERSION, 2);
    ff_wb_put(&b, q == FF_QUEUE_FAULT ? 0 : 1, 2);
    ff_wb_put_bytes(&b, t->of[q], FF_SESSION_LEN);
}

bool tcp_is_join(const uint8_t *in)
{
    struct ff_wirebuf b = ff_wb_reader(in, 4);
    return ff_wb_get(&b, 4) == MAGIC_JOIN;
}

int tcp_join_decode(const uint8_t in[TCP_JOIN_LEN], const struct tcp_tokens *t, enum ff_queue *q,
                    struct ff_error *err)
{
    struct ff_wirebuf b = ff_wb_reader(in, TCP_JOIN_LEN);
    uint32_t magic = (uint32_t)ff_wb_get(&b, 4);
    unsigned version = (unsigned)ff_wb_get(&b, 2), queue = (unsigned)ff_wb_get(&b, 2);
    uint8_t diff = 0;

    if (magic != MAGIC_JOIN)
        return bad_magic("join", magic, MAGIC_JOIN, err);
    if (version != TCP_VERSION)
        return ff_error_set(err, EPROTO, "tcp: read join: version %u (want %u)", version,
                            TCP_VERSION);
    if (queue > 1)
        return ff_error_set(err, EPROTO, "tcp: read join: queue %u (permitted 0..1)", queue);
    enum ff_queue k = queue == 0 ? FF_QUEUE_FAULT : FF_QUEUE_PREFILL;
    for (size_t i = 0; i < FF_SESSION_LEN; i++) /* the same time whatever differs */
        diff |= (uint8_t)(in[b.pos + i] ^ t->of[k][i]);
    if (diff)
        return ff_error_set(err, EACCES, "tcp: read join: another session's connection");
    *q = k;
    return 0;
}

void tcp_req_encode(uint8_t out[TCP_REQ_LEN], const struct tcp_req *r)
{
    struct ff_wirebuf b = writer(out, TCP_REQ_LEN);
    ff_wb_put(&b, MAGIC_REQ, 4);
    ff_wb_put(&b, r->op, 2);
    ff_wb_put(&b, 0, 2);
    ff_wb_put(&b, r->id, 8);
    ff_wb_put(&b, r->addr, 8);
    ff_wb_put(&b, r->rkey, 4);
    ff_wb_put(&b, r->len, 4);
    ff_wb_put(&b, r->granule, 4);
    ff_wb_put(&b, r->imm, 4);
}

int tcp_req_decode(const uint8_t in[TCP_REQ_LEN], struct tcp_req *r, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wb_reader(in, TCP_REQ_LEN);
    uint32_t magic = (uint32_t)ff_wb_get(&b, 4);

    r->op = (uint16_t)ff_wb_get(&b, 2);
    ff_wb_get(&b, 2);
    r->id = ff_wb_get(&b, 8);
    r->addr = ff_wb_get(&b, 8);
    r->rkey = (uint32_t)ff_wb_get(&b, 4);
    r->len = (uint32_t)ff_wb_get(&b, 4);
    r->granule = (uint32_t)ff_wb_get(&b, 4);
    r->imm = (uint32_t)ff_wb_get(&b, 4);

    if (magic != MAGIC_REQ)
        return bad_magic("request", magic, MAGIC_REQ, err);
    if (r->op != TCP_OP_READ && r->op != TCP_OP_WRITE)
        return ff_error_set(err, EPROTO, "tcp: read request: operation %u (permitted 1..2)", r->op);
    if (!r->len || r->len > TCP_MAX_LEN)
        return ff_error_set(err, EPROTO, "tcp: read request: length %u (permitted 1..%u)", r->len,
                            TCP_MAX_LEN);
    if (r->granule && (r->op != TCP_OP_READ || r->granule < 512 ||
                       (r->granule & (r->granule - 1)) || r->len % r->granule ||
                       r->len / r->granule > FF_GRANULES_MAX))
        return ff_error_set(err, EPROTO, "tcp: read request: granule %u does not divide length %u",
                            r->granule, r->len);
    return 0;
}

void tcp_rep_encode(uint8_t out[TCP_REP_LEN], const struct tcp_rep *r)
{
    struct ff_wirebuf b = writer(out, TCP_REP_LEN);
    ff_wb_put(&b, MAGIC_REP, 4);
    ff_wb_put(&b, r->op, 2);
    ff_wb_put(&b, r->flags, 2);
    ff_wb_put(&b, r->id, 8);
    ff_wb_put(&b, r->status, 4);
    ff_wb_put(&b, r->len, 4);
}

static const char *status_text(uint32_t status)
{
    switch (status) {
    case TCP_NO_KEY:
        return "no such memory key: the image was withdrawn";
    case TCP_ACCESS:
        return "the memory key does not permit it";
    case TCP_BOUNDS:
        return "outside the registered memory";
    case TCP_UNREADABLE:
        return "the peer itself cannot read it: a poisoned page";
    case TCP_LOST:
        return "the process that has the memory has ended, or lets nobody read it any more";
    default:
        return "unknown status";
    }
}

int tcp_rep_decode(const uint8_t in[TCP_REP_LEN], const struct ff_wr *wr, struct tcp_rep *r,
                   struct ff_error *err)
{
    struct ff_wirebuf b = ff_wb_reader(in, TCP_REP_LEN);
    uint32_t magic = (uint32_t)ff_wb_get(&b, 4);

    r->op = (uint16_t)ff_wb_get(&b, 2);
    r->flags = (uint16_t)ff_wb_get(&b, 2);
    r->id = ff_wb_get(&b, 8);
    r->status = (uint32_t)ff_wb_get(&b, 4);
    r->len = (uint32_t)ff_wb_get(&b, 4);

    if (magic != MAGIC_REP)
        return bad_magic("reply", magic, MAGIC_REP, err);
    if (!wr)
        return ff_error_set(err, EPROTO, "tcp: read reply: nothing was asked (id %llu)",
                            (unsigned long long)r->id);
    uint16_t op = wr->op == FF_OP_READ ? TCP_OP_READ : TCP_OP_WRITE;
    if (r->id != wr->id || r->op != op)
        return ff_error_set(err, EPROTO,
                            "tcp: read reply: out of order (id %llu op %u, want %llu op %u)",
                            (unsigned long long)r->id, r->op, (unsigned long long)wr->id, op);
    if (r->status)
        return ff_error_set(err, EREMOTEIO, "tcp: request of %u bytes at 0x%llx: refused: %s (%u)",
                            wr->len_bytes, (unsigned long long)wr->remote, status_text(r->status),
                            r->status);
    if (r->len != wr->len_bytes || (r->flags & ~(TCP_F_ZEROS | TCP_F_POISON)) ||
        r->flags == TCP_F_POISON)
        return ff_error_set(err, EPROTO,
                            "tcp: read reply: length %u flags 0x%x (want %u, 0x0, 0x1 or 0x3)",
                            r->len, r->flags, wr->len_bytes);
    if ((r->flags & TCP_F_ZEROS) && (op != TCP_OP_READ || !wr->granule_bytes || !wr->zero))
        return ff_error_set(err, EPROTO, "tcp: read reply: unasked zero map");
    if ((r->flags & TCP_F_POISON) && !wr->poison)
        return ff_error_set(err, EHWPOISON, "tcp: request of %u bytes at 0x%llx: %s",
                            wr->len_bytes, (unsigned long long)wr->remote,
                            status_text(TCP_UNREADABLE));
    return 0;
}
