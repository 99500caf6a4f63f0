/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * probe.h - what both sides of a probe share: messages, the pattern that is read
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      find out whether two hosts can talk, and how fast, with the links that moves
 *              use. No guest, no memory of anybody: a pattern. It shares no message with moves.
 *
 * Picture      peer (active)                        serving side (passive)
 *              connect, HELLO  ------------------->
 *                              <-------------------  WELCOME  session
 *              open queues     ------------------->  take them
 *                              <-------------------  KEY      address, rkey, length
 *              READ ... on FAULT (latency), on PREFILL (bandwidth); compare
 *              BYE             ------------------->  withdraw the key
 *              REFUSE with the reason instead of WELCOME or KEY.
 *
 *              every message: | "FFPROBE1" | type 2 | version 2 | body |, little-endian
 */
#ifndef FF_PROBE_PROBE_H
#define FF_PROBE_PROBE_H

#include <endian.h>
#include <stddef.h>

#include "link.h"

struct ff_error;

#define FF_PROBE_VERSION 1
#define FF_PROBE_LEN_MAX (8u << 20)
#define FF_PROBE_LEN_MIN (2u << 20) /* the largest READ */
#define FF_PROBE_TEXT_MAX 400

enum ff_probe_type {
    FF_PROBE_HELLO = 1,
    FF_PROBE_WELCOME,
    FF_PROBE_KEY,
    FF_PROBE_BYE,
    FF_PROBE_REFUSE,
};

struct ff_probe_msg {
    enum ff_probe_type type;
    uint8_t session[FF_SESSION_LEN];  /* WELCOME */
    uint64_t addr;                    /* KEY */
    uint32_t rkey, len_bytes;         /* KEY */
    char text[FF_PROBE_TEXT_MAX + 1]; /* REFUSE */
};

/* @buf: FF_MSG_MAX large. Return: the length */
uint32_t ff_probe_encode(uint8_t *buf, const struct ff_probe_msg *m);

/* Return: 0; -EPROTO, -EPROTONOSUPPORT (another version); -EREMOTEIO: a REFUSE where another
 * type was wanted */
int ff_probe_decode(uint8_t *buf, size_t len, enum ff_probe_type want, struct ff_probe_msg *out,
                    struct ff_error *err);

int ff_probe_send(struct ff_link *l, const struct ff_probe_msg *m, struct ff_error *err);
int ff_probe_recv(struct ff_link *l, enum ff_probe_type want, int timeout_ms,
                  struct ff_probe_msg *out, struct ff_error *err);

/* Memory of @most bytes, or less where the memlock limit does not permit that, registered.
 * To be unmapped with ff_probe_memory_free() when @l, and the key with it, is freed. */
int ff_probe_memory(struct ff_link *l, uint32_t most, unsigned access, struct ff_mr *mr,
                    struct ff_error *err);
void ff_probe_memory_free(struct ff_mr *mr);

/* The word at @offset, a multiple of 8: different in each session, never at two offsets alike */
static inline uint64_t ff_probe_word(const uint8_t session[FF_SESSION_LEN], uint64_t offset)
{
    uint64_t seed;

    __builtin_memcpy(&seed, session, sizeof(seed));
    return htole64(le64toh(seed) + (offset + 1) * 0x9e3779b97f4a7c15u);
}

#endif
