/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_wire.h - the frames of the tcp link, encoded and checked in one place
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      all integers little-endian.
 *
 *   control    | magic FFcm 4 | length 4 | message ... |
 *              | magic FFcs 4 | length 4 | sealed message ... |  with a key, after the handshake
 *   sealed     | magic FFsf 4 | length 4 | content, sealed ... | tag 16 |  on a queue with a key: all that
 *              follows here is the content of such frames, one after the other (tcp_seal.h)
 *   join       | magic FFjn 4 | version 2 | queue 2 | token 16 |
 *   request    | magic FFrq 4 | op 2 | 0 2 | id 8 | addr 8 | rkey 4 | len 4 | granule 4 | imm 4 |
 *              WRITE: len bytes follow
 *   reply      | magic FFrp 4 | op 2 | flags 2 | id 8 | status 4 | len 4 |
 *              READ, status 0: with TCP_F_ZEROS a bitmap of granules that are left out, rounded
 *              up to 8 bytes; with TCP_F_POISON another, of those among them that cannot be read:
 *              the others are zeros; then the granules whose bit is clear. Else len bytes
 *   pad        | magic FFpd 4 | length 4 | zeros ... |  once each way on each connection: longer than
 *              a packet (tcp_path.h). Whoever reads it drops it
 *
 * Invariants   1. Nothing is allocated or touched for a frame before its decoder returned 0.
 *              2. Replies come in the order of their requests.
 */
#ifndef FF_RDMA_TCP_WIRE_H
#define FF_RDMA_TCP_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "link.h"
#include "seal.h"

#define TCP_VERSION 3
#define TCP_CTRL_HEAD_LEN 8
#define TCP_JOIN_LEN 24
#define TCP_REQ_LEN 40
#define TCP_REP_LEN 24
#define TCP_MAX_LEN (4u << 20)
#define TCP_MAP_MAX (FF_GRANULES_MAX / 8)
#define TCP_SEALED_HEAD_LEN 8
#define TCP_SEALED_MAX (128u << 10)  /* content: it stays in the cache, and the tag costs nothing */
#define TCP_SEALED_MIXED (24u << 10) /* if it is not data alone: a pad, or a few pages with their head */
#define TCP_PAD_HEAD_LEN 8
#define TCP_PAD_LEN (2 * 9216u) /* two of the largest packets that switches pass */
#define TCP_PAD_MAX 32768u

enum tcp_op { TCP_OP_READ = 1, TCP_OP_WRITE = 2 };

#define TCP_F_ZEROS 1u
#define TCP_F_POISON 2u /* with TCP_F_ZEROS */

/* Why a request was refused, on the wire */
enum tcp_status { TCP_OK = 0, TCP_NO_KEY = 1, TCP_ACCESS = 2, TCP_BOUNDS = 3,
                  TCP_UNREADABLE = 4, TCP_LOST = 5 };

struct tcp_req {
    uint16_t op;
    uint64_t id, addr;
    uint32_t rkey, len, granule, imm;
};

struct tcp_rep {
    uint16_t op, flags;
    uint64_t id;
    uint32_t status, len;
};

void tcp_ctrl_encode(uint8_t out[TCP_CTRL_HEAD_LEN], uint32_t len);
int tcp_ctrl_decode(const uint8_t in[TCP_CTRL_HEAD_LEN], uint32_t *len, struct ff_error *err);

/* @len: of the sealed message, which FF_SEAL_TAG_LEN makes longer */
void tcp_sealed_encode(uint8_t out[TCP_CTRL_HEAD_LEN], uint32_t len);
int tcp_sealed_decode(const uint8_t in[TCP_CTRL_HEAD_LEN], uint32_t *len, struct ff_error *err);

/* @len: of the content. @max: of what may come here */
void tcp_seal_encode(uint8_t out[TCP_SEALED_HEAD_LEN], uint32_t len);
int tcp_seal_decode(const uint8_t in[TCP_SEALED_HEAD_LEN], uint32_t max, uint32_t *len,
                     struct ff_error *err);

void tcp_pad_encode(uint8_t out[TCP_PAD_HEAD_LEN], uint32_t len);
int tcp_pad_decode(const uint8_t in[TCP_PAD_HEAD_LEN], uint32_t *len, struct ff_error *err);

/* @in: at least four bytes */
bool tcp_is_pad(const uint8_t *in);

/* @in: at least four bytes of what a connection says first */
bool tcp_is_join(const uint8_t *in);
/* The secret of each queue: its token (ff_hs_token()), or without a key the session for both */
struct tcp_tokens {
    uint8_t of[FF_QUEUES][FF_SESSION_LEN];
};

void tcp_join_encode(uint8_t out[TCP_JOIN_LEN], enum ff_queue q, const struct tcp_tokens *t);
int tcp_join_decode(const uint8_t in[TCP_JOIN_LEN], const struct tcp_tokens *t, enum ff_queue *q,
                    struct ff_error *err);

void tcp_req_encode(uint8_t out[TCP_REQ_LEN], const struct tcp_req *r);
int tcp_req_decode(const uint8_t in[TCP_REQ_LEN], struct tcp_req *r, struct ff_error *err);

void tcp_rep_encode(uint8_t out[TCP_REP_LEN], const struct tcp_rep *r);

/* @wr: the oldest request in flight, which the reply must answer; NULL: none is */
int tcp_rep_decode(const uint8_t in[TCP_REP_LEN], const struct ff_wr *wr, struct tcp_rep *r,
                   struct ff_error *err);

/* Bytes of a zero bitmap for @n granules */
static inline uint32_t tcp_map_len(uint32_t n)
{
    return (n + 63) / 64 * 8;
}

#endif
