/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * handshake.c - both ends of a link prove that they have the key, before anything else is said
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include <gnutls/gnutls.h>

#include "error.h"
#include "handshake.h"
#include "wirebuf.h"

#define MAGIC_HELLO 0x73684646u  /* FF_HS_HELLO_MAGIC */
#define MAGIC_ANSWER 0x61684646u /* FF_HS_ANSWER_MAGIC */
#define SALT "farfork handshake 1"
#define HEAD_LEN 40 /* of an answer, without the proof */

static const struct ff_error crypto = {
    .code = EIO, .text = "handshake: GnuTLS gives no SHA-256 or HKDF: does a policy forbid it?"};

static uint8_t *answer_bytes(struct ff_handshake *h)
{
    return h->said + FF_HS_HELLO_LEN;
}

static void put_head(uint8_t *out, size_t len, uint32_t magic, unsigned suites,
                     const uint8_t *nonce)
{
    struct ff_wirebuf b = {.data = out, .len = len};

    memset(out, 0, len);
    ff_wb_put(&b, magic, 4);
    ff_wb_put(&b, FF_HS_VERSION, 2);
    ff_wb_put(&b, suites, 2);
    if (nonce)
        ff_wb_put_bytes(&b, nonce, FF_HS_NONCE_LEN);
}

static bool is_length(size_t len, size_t want, const char *what, struct ff_error *err)
{
    if (len != want)
        ff_error_set(err, EPROTO, "handshake: read %s: %zu bytes (want %zu)", what, len, want);
    return len == want;
}

/* What @role says with @key after all that was said: @n bytes of it */
static int make_proof(const struct ff_handshake *h, const uint8_t *key, const char *role,
                      size_t n, uint8_t out[FF_KDF_LEN])
{
    uint8_t prk[FF_KDF_LEN], auth[FF_KDF_LEN], hash[FF_KDF_LEN];

    int rc = ff_kdf_extract(key, FF_KEY_LEN, SALT, prk);
    if (!rc)
        rc = ff_kdf_expand(prk, "auth", NULL, 0, auth, sizeof(auth));
    if (!rc)
        rc = ff_kdf_hash(h->said, n, hash);
    if (!rc)
        rc = ff_kdf_expand(auth, role, hash, sizeof(hash), out, FF_KDF_LEN);
    explicit_bzero(prk, sizeof(prk));
    explicit_bzero(auth, sizeof(auth));
    return rc;
}

static int make_epoch(const struct ff_handshake *h, const uint8_t *key,
                      enum ff_hs_suite suite, struct ff_epoch *e)
{
    uint8_t prk[FF_KDF_LEN], epoch[FF_KDF_LEN], hash[FF_KDF_LEN];

    e->suite = suite;
    int rc = ff_kdf_extract(key, FF_KEY_LEN, SALT, prk);
    if (!rc)
        rc = ff_kdf_hash(h->said, sizeof(h->said), hash);
    if (!rc)
        rc = ff_kdf_expand(prk, "epoch", hash, sizeof(hash), epoch, sizeof(epoch));
    if (!rc)
        rc = ff_kdf_expand(epoch, "from source", NULL, 0, e->from_source, FF_KDF_LEN);
    if (!rc)
        rc = ff_kdf_expand(epoch, "from destination", NULL, 0, e->from_dest, FF_KDF_LEN);
    if (!rc)
        rc = ff_kdf_expand(epoch, "fault queue", NULL, 0, e->queue[FF_QUEUE_FAULT], FF_KDF_LEN);
    if (!rc)
        rc = ff_kdf_expand(epoch, "prefill queue", NULL, 0, e->queue[FF_QUEUE_PREFILL],
                           FF_KDF_LEN);
    explicit_bzero(prk, sizeof(prk));
    explicit_bzero(epoch, sizeof(epoch));
    return rc;
}

/* Whatever was wrong: @h is of no more use */
static int handshake_failed(struct ff_handshake *h, int rc, struct ff_error *err)
{
    h->state = FF_HS_FAILED;
    if (rc == -EIO && err)
        *err = crypto;
    return rc;
}

int ff_hs_nonce_of(const struct ff_key *key, uint8_t nonce[FF_HS_NONCE_LEN], struct ff_error *err)
{
    int rc = ff_hs_nonce(nonce, err);

    if (!rc && (rc = ff_key_mark(key, nonce, FF_HS_NONCE_LEN)) && err)
        *err = crypto;
    return rc;
}

int ff_hs_nonce(uint8_t nonce[FF_HS_NONCE_LEN], struct ff_error *err)
{
    if (getrandom(nonce, FF_HS_NONCE_LEN, 0) != FF_HS_NONCE_LEN)
        return ff_error_set(err, EIO, "handshake: no random numbers: %s", strerror(errno));
    return 0;
}

void ff_hs_ask(struct ff_handshake *h, unsigned suites, const uint8_t nonce[FF_HS_NONCE_LEN],
               uint8_t out[FF_HS_HELLO_LEN])
{
    memset(h, 0, sizeof(*h));
    put_head(h->said, FF_HS_HELLO_LEN, MAGIC_HELLO, suites, nonce);
    memcpy(out, h->said, FF_HS_HELLO_LEN);
    h->state = FF_HS_ASKED;
}

/* The destination's, for the source whose hello @h has */
static const uint8_t *key_for(const struct ff_handshake *h, const struct ff_key *key)
{
    return ff_key_marked(key, h->said + FF_HS_HELLO_LEN - FF_HS_NONCE_LEN, FF_HS_NONCE_LEN);
}

/* The suite for a hello; 0: there is none, and @err says why */
static unsigned choose_suite(unsigned version, unsigned offered, unsigned suites,
                             struct ff_error *err)
{
    unsigned both = offered & suites;

    if (version != FF_HS_VERSION)
        ff_error_set(err, EPROTONOSUPPORT, "handshake: the source speaks version %u (want %u)",
                     version, FF_HS_VERSION);
    else if (!both)
        ff_error_set(err, EPROTONOSUPPORT, "handshake: the source takes suites 0x%x, this side "
                     "0x%x: none is common", offered, suites);
    else
        return both & -both;
    return 0;
}

int ff_hs_answer(struct ff_handshake *h, const struct ff_key *key, unsigned suites,
                 const uint8_t nonce[FF_HS_NONCE_LEN], const void *hello, size_t len,
                 uint8_t out[FF_HS_ANSWER_LEN], bool *can_send, struct ff_error *err)
{
    struct ff_wirebuf b = ff_wb_reader(hello, len);

    memset(h, 0, sizeof(*h));
    uint32_t magic = (uint32_t)ff_wb_get(&b, 4);
    unsigned version = (unsigned)ff_wb_get(&b, 2), offered = (unsigned)ff_wb_get(&b, 2);
    put_head(out, FF_HS_ANSWER_LEN, MAGIC_ANSWER, 0, NULL);
    *can_send = len >= 4 && magic != MAGIC_HELLO;
    if (*can_send)
        return handshake_failed(h, ff_error_set(err, EPROTO, "handshake: read hello: magic 0x%08x "
                                                "(want 0x%08x): has the source no key?", magic,
                                                MAGIC_HELLO), err);
    if (!is_length(len, FF_HS_HELLO_LEN, "hello", err))
        return handshake_failed(h, -EPROTO, err);
    unsigned suite = choose_suite(version, offered, suites, err);
    put_head(out, FF_HS_ANSWER_LEN, MAGIC_ANSWER, suite, suite ? nonce : NULL);
    *can_send = true;
    if (!suite)
        return handshake_failed(h, -EPROTONOSUPPORT, err);

    memcpy(h->said, hello, FF_HS_HELLO_LEN);
    memcpy(answer_bytes(h), out, HEAD_LEN);
    int rc = make_proof(h, key_for(h, key), "destination", FF_HS_HELLO_LEN + HEAD_LEN,
                        out + HEAD_LEN);
    *can_send = !rc;
    if (rc)
        return handshake_failed(h, rc, err);
    memcpy(answer_bytes(h), out, FF_HS_ANSWER_LEN);
    h->state = FF_HS_ANSWERED;
    return 0;
}

/* Is @answer the right kind of message, with a suite that was offered? */
static int decode_answer(const struct ff_handshake *h, const void *answer, size_t len,
                       unsigned *suite, struct ff_error *err)
{
    struct ff_wirebuf asked = ff_wb_reader(h->said + 6, 2), b = ff_wb_reader(answer, len);
    unsigned offered = (unsigned)ff_wb_get(&asked, 2);

    if (!is_length(len, FF_HS_ANSWER_LEN, "answer", err))
        return -EPROTO;
    uint32_t magic = (uint32_t)ff_wb_get(&b, 4);
    unsigned version = (unsigned)ff_wb_get(&b, 2);
    *suite = (unsigned)ff_wb_get(&b, 2);
    if (magic != MAGIC_ANSWER)
        return ff_error_set(err, EPROTO, "handshake: read answer: magic 0x%08x (want 0x%08x): has "
                            "the destination no key?", magic, MAGIC_ANSWER);
    if (version != FF_HS_VERSION)
        return ff_error_set(err, EPROTONOSUPPORT, "handshake: the destination speaks version %u "
                            "(want %u)", version, FF_HS_VERSION);
    if (!*suite)
        return ff_error_set(err, EPROTONOSUPPORT, "handshake: the destination takes none of the "
                            "suites 0x%x", offered);
    if (!(*suite & offered) || (*suite & (*suite - 1)))
        return ff_error_set(err, EPROTO, "handshake: read answer: suite 0x%x (permitted: one of "
                            "0x%x)", *suite, offered);
    return 0;
}

static int wrong_state(struct ff_handshake *h, struct ff_error *err)
{
    return handshake_failed(h, ff_error_set(err, EPROTO, "handshake: a message that nobody waits "
                                            "for"), err);
}

int ff_hs_prove(struct ff_handshake *h, const struct ff_key *key, const void *answer, size_t len,
                uint8_t out[FF_HS_PROOF_LEN], struct ff_epoch *e, struct ff_error *err)
{
    const uint8_t *own = ff_key_bytes(key);
    uint8_t want[FF_KDF_LEN];
    unsigned suite;

    if (h->state != FF_HS_ASKED)
        return wrong_state(h, err);
    int rc = decode_answer(h, answer, len, &suite, err);
    if (rc)
        return handshake_failed(h, rc, err);
    memcpy(answer_bytes(h), answer, FF_HS_ANSWER_LEN);
    rc = make_proof(h, own, "destination", FF_HS_HELLO_LEN + HEAD_LEN, want);
    if (!rc && gnutls_memcmp(want, answer_bytes(h) + HEAD_LEN, sizeof(want)))
        rc = ff_error_set(err, EACCES, "handshake: the destination has another key, or somebody "
                          "between changed what was said");
    if (!rc)
        rc = make_proof(h, own, "source", sizeof(h->said), out + FF_HS_CHALLENGE_LEN);
    if (!rc)
        rc = make_epoch(h, own, (enum ff_hs_suite)suite, e);
    if (rc)
        return handshake_failed(h, rc, err);
    memcpy(out, answer_bytes(h) + HEAD_LEN - FF_HS_NONCE_LEN, FF_HS_CHALLENGE_LEN);
    h->state = FF_HS_DONE;
    return 0;
}

int ff_hs_check(struct ff_handshake *h, const struct ff_key *key, const void *proof, size_t len,
                struct ff_epoch *e, struct ff_error *err)
{
    struct ff_wirebuf suite = ff_wb_reader(answer_bytes(h) + 6, 2);
    uint8_t want[FF_HS_PROOF_LEN];

    if (h->state != FF_HS_ANSWERED)
        return wrong_state(h, err);
    if (!is_length(len, FF_HS_PROOF_LEN, "proof", err))
        return handshake_failed(h, -EPROTO, err);
    const uint8_t *own = key_for(h, key);
    memcpy(want, answer_bytes(h) + HEAD_LEN - FF_HS_NONCE_LEN, FF_HS_CHALLENGE_LEN);
    int rc = make_proof(h, own, "source", sizeof(h->said), want + FF_HS_CHALLENGE_LEN);
    if (!rc && gnutls_memcmp(want, proof, sizeof(want)))
        rc = ff_error_set(err, EACCES, "handshake: the source has another key, or somebody between "
                          "changed what was said");
    if (!rc)
        rc = make_epoch(h, own, (enum ff_hs_suite)ff_wb_get(&suite, 2), e);
    explicit_bzero(want, sizeof(want));
    if (rc)
        return handshake_failed(h, rc, err);
    h->state = FF_HS_DONE;
    return 0;
}

bool ff_hs_is_for(const struct ff_handshake *h, const void *proof)
{
    const uint8_t *nonce = h->said + FF_HS_HELLO_LEN + HEAD_LEN - FF_HS_NONCE_LEN;

    return h->state == FF_HS_ANSWERED && !memcmp(nonce, proof, FF_HS_CHALLENGE_LEN);
}

int ff_hs_token(const struct ff_epoch *e, enum ff_queue q, unsigned index,
                const uint8_t session[FF_SESSION_LEN], uint8_t out[FF_SESSION_LEN])
{
    uint8_t context[FF_SESSION_LEN + 2];
    struct ff_wirebuf b = {.data = context, .len = sizeof(context)};

    ff_wb_put_bytes(&b, session, FF_SESSION_LEN);
    ff_wb_put(&b, index, 2);
    return ff_kdf_expand(e->queue[q], "join", context, sizeof(context), out, FF_SESSION_LEN);
}
