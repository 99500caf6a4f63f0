/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * handshake.h - both ends of a link prove that they have the key, before anything else is said
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      tell who has the key, and agree on keys of this connection alone. No socket, no
 *              clock, no allocation: bytes in, bytes out. tcp_gate.c and verbs_gate.c carry them.
 *
 * Picture      all integers little-endian; every message has one length.
 *
 *   source (active)                                     destination (passive)
 *   hello   | magic FFhs 4 | version 2 | suites 2 | nonce 32 |              --->
 *           <---  answer  | magic FFha 4 | version 2 | suite 2 | nonce 32 | proof 32 |
 *   proof   | challenge 8 | proof 32 |                                      --->
 *
 *              suites: a bit for each that the source takes. suite: one of these bits, or 0: the
 *              destination takes none of them, or not this version; nonce and proof are 0 then.
 *              challenge: the first bytes of the destination's nonce.
 *
 *   X(secret, label, context) is HKDF-Expand; prk = HKDF-Extract(salt "farfork handshake 1", key)
 *   auth            X(prk, "auth")
 *   answer's proof  X(auth, "destination", SHA-256(hello, answer without its proof))
 *   source's proof  X(auth, "source", SHA-256(hello, answer))
 *   epoch           X(prk, "epoch", SHA-256(hello, answer)); of it X(epoch, "from source"), "from
 *                   destination", "fault queue", "prefill queue" (struct ff_epoch)
 *
 * States       source START -> ASKED -> DONE; destination START -> ANSWERED -> DONE; a message
 *              that is wrong: FAILED. No call leads out of DONE or FAILED: a challenge is for one
 *              proof.
 *
 * Invariants   1. Neither side's proof is of use to any other connection: both nonces are in it
 *                 (replay), and it names the role (reflection).
 *              2. All of the hello is in both proofs: who takes a suite or version away from it
 *                 is noticed (downgrade).
 *              3. A proof is compared in time that does not depend on it.
 *              4. The source proves nothing before the destination has. A user's key (key.h) marks
 *                 its nonce, which tells those who have it, and nobody else, whose it is.
 * Limits       Whoever has the key later, and recorded a connection, can read it: a key is for one
 *              move or fork, and is thrown away after it.
 */
#ifndef FF_RDMA_HANDSHAKE_H
#define FF_RDMA_HANDSHAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kdf.h"
#include "key.h"
#include "link.h"

#define FF_HS_VERSION 1
#define FF_HS_HELLO_MAGIC "FFhs"
#define FF_HS_ANSWER_MAGIC "FFha"
#define FF_HS_NONCE_LEN 32
#define FF_HS_HELLO_LEN 40 /* with 12 bytes of a link's own it fits a connect request (56) */
#define FF_HS_ANSWER_LEN 72
#define FF_HS_PROOF_LEN 40
#define FF_HS_CHALLENGE_LEN 8

enum ff_hs_suite {
    FF_HS_AES256_GCM = 1, /* with SHA-256, both */
    FF_HS_CHACHA20_POLY1305 = 2,
    FF_HS_AES128_GCM = 4, /* of queues alone, which agree by themselves (tcp_tls.h) */
};
#define FF_HS_SUITES (FF_HS_AES256_GCM | FF_HS_CHACHA20_POLY1305)

enum ff_hs_state { FF_HS_START, FF_HS_ASKED, FF_HS_ANSWERED, FF_HS_DONE, FF_HS_FAILED };

/* Nothing in here is secret */
struct ff_handshake {
    enum ff_hs_state state;
    uint8_t said[FF_HS_HELLO_LEN + FF_HS_ANSWER_LEN]; /* hello, answer */
};

/* Keys of one connection: of memory of base/secret.h */
struct ff_epoch {
    enum ff_hs_suite suite;
    uint8_t from_source[FF_KDF_LEN], from_dest[FF_KDF_LEN]; /* control messages (seal.h) */
    uint8_t queue[FF_QUEUES][FF_KDF_LEN];
};

/* Random bytes for either side. 0 or -EIO */
int ff_hs_nonce(uint8_t nonce[FF_HS_NONCE_LEN], struct ff_error *err);

/* The source's for @key: with the mark of its user, if it has one (key.h) */
int ff_hs_nonce_of(const struct ff_key *key, uint8_t nonce[FF_HS_NONCE_LEN], struct ff_error *err);

/* The source's first message. @suites: those it takes; @nonce: random, never used again */
void ff_hs_ask(struct ff_handshake *h, unsigned suites, const uint8_t nonce[FF_HS_NONCE_LEN],
               uint8_t out[FF_HS_HELLO_LEN]);

/**
 * ff_hs_answer() - the destination's message to a hello
 * @suites: those it takes; the first in the order of their bits that both do is chosen
 * @out:    to be sent whenever @can_send says so: by a refusal, too, a source without a key or of
 *          another version learns what is wrong
 * @len:    of a hello; or less, as soon as ff_hs_is_hello() says no
 *
 * Return: 0; -EPROTO: not a hello; -EPROTONOSUPPORT: another version, or no common suite; -EIO
 */
int ff_hs_answer(struct ff_handshake *h, const struct ff_key *key, unsigned suites,
                 const uint8_t nonce[FF_HS_NONCE_LEN], const void *hello, size_t len,
                 uint8_t out[FF_HS_ANSWER_LEN], bool *can_send, struct ff_error *err);

/* The source's second message: the destination has the key. 0; -EPROTO: not an answer;
 * -EPROTONOSUPPORT: it was refused; -EACCES: the peer has another key, or somebody between changed
 * a message; -EIO */
int ff_hs_prove(struct ff_handshake *h, const struct ff_key *key, const void *answer, size_t len,
                uint8_t out[FF_HS_PROOF_LEN], struct ff_epoch *e, struct ff_error *err);

/* The destination has read it: the source has the key. Errors as ff_hs_prove() */
int ff_hs_check(struct ff_handshake *h, const struct ff_key *key, const void *proof, size_t len,
                struct ff_epoch *e, struct ff_error *err);

/* Is @proof, of FF_HS_PROOF_LEN bytes, for the challenge that @h gave? */
bool ff_hs_is_for(const struct ff_handshake *h, const void *proof);

/* Does a connection that says these four bytes first begin a handshake, or answer one? */
static inline bool ff_hs_is_hello(const uint8_t *in)
{
    return !memcmp(in, FF_HS_HELLO_MAGIC, 4);
}

static inline bool ff_hs_is_answer(const uint8_t *in)
{
    return !memcmp(in, FF_HS_ANSWER_MAGIC, 4);
}

/* What a data connection of @q, the @index-th, shows in place of @session: who has seen one such
 * token, or the session, cannot make another. 0 or -EIO */
int ff_hs_token(const struct ff_epoch *e, enum ff_queue q, unsigned index,
                const uint8_t session[FF_SESSION_LEN], uint8_t out[FF_SESSION_LEN]);

#endif
