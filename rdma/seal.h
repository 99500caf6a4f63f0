/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * seal.h - control messages that nobody else can read, change, repeat, reorder or leave out
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      message, length n  ->  n bytes of AES-256-GCM or ChaCha20-Poly1305, 16 of its tag
 *              key, iv = HKDF(secret of this direction and generation, "key" / "iv")
 *              nonce   = iv XOR number of the record, as TLS 1.3 has it; the number is not sent
 *              after FF_SEAL_RECORDS records: secret = HKDF(secret, "next"), on both sides alike
 *
 * Threads      one at a time a direction; the link's locks see to that.
 * Ownership    struct ff_seal holds secrets: put it into memory of base/secret.h.
 * Invariants   1. No nonce is used twice with one key: each record has its number, and the key
 *                 of a generation is gone when the next begins.
 *              2. One record that does not fit ends the direction for good.
 * Limits       FF_SEAL_RECORDS a key, of FF_MSG_MAX bytes: 2^16 * 2^12 blocks, and AES-GCM is good
 *              for 2^24.5 records of 2^14 bytes (RFC 8446, 5.5).
 */
#ifndef FF_RDMA_SEAL_H
#define FF_RDMA_SEAL_H

#include <stdbool.h>

#include "handshake.h"

#define FF_SEAL_TAG_LEN 16
#define FF_SEAL_NONCE_LEN 12
#define FF_SEAL_RECORDS 65536u

struct ff_seal {
    enum ff_hs_suite suite;
    uint64_t number; /* of the next record */
    bool broken;
    uint8_t secret[FF_KDF_LEN], key[FF_KDF_LEN], iv[FF_SEAL_NONCE_LEN];
};

/* All that a link keeps: in memory of base/secret.h */
struct ff_secrets {
    struct ff_epoch epoch; /* of the queues; the secrets of the control messages are zeros here */
    struct ff_seal tx, rx;
};

/* What @e has for the queues, and both directions of one end; @active: the source's. 0, -ENOMEM,
 * -EIO */
int ff_secrets_new(const struct ff_epoch *e, bool active, struct ff_secrets **out);
void ff_secrets_free(struct ff_secrets *s); /* @s may be NULL */

/* What data connection @index of @q shows instead of @session (ff_hs_token()); @s NULL: itself */
int ff_secrets_token(const struct ff_secrets *s, enum ff_queue q, unsigned index,
                     const uint8_t session[FF_SESSION_LEN], uint8_t out[FF_SESSION_LEN]);

/* What both ends have for @label on @q. 0 or -EIO */
int ff_secrets_of(const struct ff_secrets *s, enum ff_queue q, const char *label,
                  uint8_t out[FF_LINK_SECRET_LEN]);

/* One direction. 0 or -EIO */
int ff_seal_init(struct ff_seal *s, enum ff_hs_suite suite, const uint8_t secret[FF_KDF_LEN]);

/* @out has room for @len + FF_SEAL_TAG_LEN bytes. @head travels beside it in the clear, and cannot
 * be changed either. 0 or -EIO */
int ff_seal_close(struct ff_seal *s, const void *head, size_t head_len, const void *msg,
                  uint32_t len, void *out);

/* @len: of what was sealed, with its tag; @out has room for all but the tag. The message's length,
 * or -EBADMSG: it is not the next record of the peer */
int ff_seal_open(struct ff_seal *s, const void *head, size_t head_len, const void *in,
                 uint32_t len, void *out);

#endif
