/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * seal.h - messages and frames that nobody else can read, change, repeat, reorder or leave out
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      message, length n  ->  n bytes of AES-GCM or ChaCha20-Poly1305, 16 of its tag
 *              key, iv = HKDF(secret of this direction and generation, "key" / "iv")
 *              nonce   = iv XOR number of the record, as TLS 1.3 has it; the number is not sent
 *              after so many records: secret = HKDF(secret, "next"), on both sides alike
 *              Control messages have FF_SEAL_RECORDS a key, a queue's frames (tcp_seal.h)
 *              FF_SEAL_FRAMES.
 *
 * Threads      one at a time a direction; the link's locks see to that.
 * Ownership    struct ff_seal holds secrets: put it into memory of base/secret.h. That of frames keeps
 *              its cipher as long as its key, for speed. GnuTLS's stands on the heap, which a core dump
 *              shows; that of gcm.h does not.
 * Invariants   1. No nonce is used twice with one key: each record has its number, and the key
 *                 of a generation is gone when the next begins.
 *              2. One record that does not fit ends the direction for good.
 * Limits       FF_SEAL_RECORDS a key, of FF_MSG_MAX bytes: 2^16 * 2^12 blocks; FF_SEAL_FRAMES of at
 *              most 2^17 bytes: 2^19 * 2^13. AES-GCM is good for 2^24.5 records of 2^14 bytes, which
 *              are 2^34.5 blocks (RFC 8446, 5.5).
 */
#ifndef FF_RDMA_SEAL_H
#define FF_RDMA_SEAL_H

#include <stdbool.h>
#include <sys/uio.h>

#include "gcm.h"
#include "handshake.h"

#define FF_SEAL_TAG_LEN 16
#define FF_SEAL_NONCE_LEN 12
#define FF_SEAL_RECORDS 65536u
#define FF_SEAL_FRAMES 524288u

struct ff_seal {
    enum ff_hs_suite suite;
    uint64_t number; /* of the next record */
    bool broken, of_frames;
    struct ff_gcm *gcm; /* of frames, of this key; both NULL: not made yet */
    struct api_aead_cipher_hd_st *kept; /* GnuTLS's, where gcm.h has none */
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

/* One direction of control messages; or of frames, with ff_seal_end() after it. 0 or -EIO */
int ff_seal_init(struct ff_seal *s, enum ff_hs_suite suite, const uint8_t secret[FF_KDF_LEN]);

int ff_seal_init_frames(struct ff_seal *s, enum ff_hs_suite suite,
                        const uint8_t secret[FF_KDF_LEN]);
void ff_seal_end(struct ff_seal *s);

/* @out has room for @len + FF_SEAL_TAG_LEN bytes. @head travels beside it in the clear, and cannot
 * be changed either. 0 or -EIO */
int ff_seal_close(struct ff_seal *s, const void *head, size_t head_len, const void *msg,
                  uint32_t len, void *out);

/* @len: of what was sealed, with its tag; @out has room for all but the tag, or is @in. The message's length,
 * or -EBADMSG: it is not the next record of the peer */
int ff_seal_open(struct ff_seal *s, const void *head, size_t head_len, const void *in,
                 uint32_t len, void *out);

/* The same out of segments, of @len bytes together: the cipher reads them where they lie. Each byte is
 * read once: they may change meanwhile */
int ff_seal_close_iov(struct ff_seal *s, const void *head, size_t head_len, const struct iovec *iov,
                      unsigned n_iov, uint32_t len, void *out);

#endif
