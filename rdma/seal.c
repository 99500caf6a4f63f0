/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * seal.c - messages and frames that nobody else can read, change, repeat, reorder or leave out
 */
/**
 * DOC: Theory of Operation
 *
 * Ownership    GnuTLS's own state of a cipher, which stands on the heap, lives for one control message.
 *              To make it takes longer than to seal a page: a cipher of frames lives as long as its key.
 */
#include <errno.h>
#include <string.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include "failpoint.h"
#include "seal.h"
#include "secret.h"

static int start_generation(struct ff_seal *s)
{
    int rc = ff_kdf_expand(s->secret, "key", NULL, 0, s->key, sizeof(s->key));
    return rc ? rc : ff_kdf_expand(s->secret, "iv", NULL, 0, s->iv, sizeof(s->iv));
}

int ff_seal_init(struct ff_seal *s, enum ff_hs_suite suite, const uint8_t secret[FF_KDF_LEN])
{
    memset(s, 0, sizeof(*s));
    s->suite = suite;
    memcpy(s->secret, secret, FF_KDF_LEN);
    return start_generation(s);
}

int ff_seal_init_frames(struct ff_seal *s, enum ff_hs_suite suite,
                        const uint8_t secret[FF_KDF_LEN])
{
    int rc = ff_seal_init(s, suite, secret);

    s->of_frames = true;
    return rc;
}

void ff_seal_end(struct ff_seal *s)
{
    if (s->kept)
        gnutls_aead_cipher_deinit(s->kept);
    s->kept = NULL;
    ff_gcm_free(s->gcm);
    s->gcm = NULL;
}

int ff_secrets_new(const struct ff_epoch *e, bool active, struct ff_secrets **out)
{
    struct ff_secrets *s = ff_secret_new(sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->epoch = *e;
    int rc = ff_seal_init(&s->tx, e->suite, active ? e->from_source : e->from_dest);
    if (!rc)
        rc = ff_seal_init(&s->rx, e->suite, active ? e->from_dest : e->from_source);
    /* tx and rx have them, and forget them in time */
    explicit_bzero(s->epoch.from_source, sizeof(s->epoch.from_source));
    explicit_bzero(s->epoch.from_dest, sizeof(s->epoch.from_dest));
    if (rc)
        ff_secrets_free(s);
    else
        *out = s;
    return rc;
}

void ff_secrets_free(struct ff_secrets *s)
{
    ff_secret_free(s, sizeof(*s));
}

int ff_secrets_token(const struct ff_secrets *s, enum ff_queue q, unsigned index,
                     const uint8_t session[FF_SESSION_LEN], uint8_t out[FF_SESSION_LEN])
{
    if (s)
        return ff_hs_token(&s->epoch, q, index, session, out);
    memcpy(out, session, FF_SESSION_LEN);
    return 0;
}

int ff_secrets_of(const struct ff_secrets *s, enum ff_queue q, const char *label,
                  uint8_t out[FF_LINK_SECRET_LEN])
{
    return s ? ff_kdf_expand(s->epoch.queue[q], label, NULL, 0, out, FF_LINK_SECRET_LEN) : -EIO;
}

/* The record is done: the next one has another number, perhaps another key */
static int next_record(struct ff_seal *s)
{
    if (++s->number % (s->of_frames ? FF_SEAL_FRAMES : FF_SEAL_RECORDS))
        return 0;
    ff_seal_end(s);
    int rc = s->of_frames ? ff_failpoint("tcp.tls.rekey") : 0;
    if (!rc)
        rc = ff_kdf_expand(s->secret, "next", NULL, 0, s->key, sizeof(s->key));
    memcpy(s->secret, s->key, sizeof(s->secret));
    return rc ? rc : start_generation(s);
}

static void make_nonce(const struct ff_seal *s, uint8_t nonce[FF_SEAL_NONCE_LEN])
{
    memcpy(nonce, s->iv, FF_SEAL_NONCE_LEN);
    for (unsigned i = 0; i < 8; i++)
        nonce[FF_SEAL_NONCE_LEN - 1 - i] ^= (uint8_t)(s->number >> (8 * i));
}

static gnutls_cipher_algorithm_t suite_cipher(enum ff_hs_suite suite)
{
    return suite == FF_HS_AES128_GCM   ? GNUTLS_CIPHER_AES_128_GCM
           : suite == FF_HS_AES256_GCM ? GNUTLS_CIPHER_AES_256_GCM
                                       : GNUTLS_CIPHER_CHACHA20_POLY1305;
}

/* Is the cipher of this key that of gcm.h? */
static bool has_gcm(struct ff_seal *s)
{
    if (s->of_frames && s->suite == FF_HS_AES128_GCM && !s->kept && !s->gcm)
        s->gcm = ff_gcm_new(s->key);
    return s->gcm;
}

static int start_cipher(struct ff_seal *s, gnutls_aead_cipher_hd_t *h)
{
    gnutls_cipher_algorithm_t which = suite_cipher(s->suite);
    gnutls_datum_t key = {.data = s->key, .size = (unsigned)gnutls_cipher_get_key_size(which)};

    *h = s->kept;
    if (s->kept)
        return 0;
    if (gnutls_aead_cipher_init(h, which, &key) < 0)
        return -EIO;
    if (s->of_frames)
        s->kept = *h;
    return 0;
}

static void stop_cipher(const struct ff_seal *s, gnutls_aead_cipher_hd_t h)
{
    if (!s->kept)
        gnutls_aead_cipher_deinit(h);
}

static int encrypt(struct ff_seal *s, const uint8_t *nonce, const void *head, size_t head_len,
                   const struct iovec *iov, unsigned n_iov, uint32_t len, void *out)
{
    giovec_t auth = {.iov_base = (void *)head, .iov_len = head_len};
    size_t out_len = (size_t)len + FF_SEAL_TAG_LEN;
    gnutls_aead_cipher_hd_t h;

    if (has_gcm(s)) {
        ff_gcm_close(s->gcm, nonce, head, head_len, iov, n_iov, out);
        return 0;
    }
    if (start_cipher(s, &h))
        return -EIO;
    /* of segments it makes two passes, over what is in the cache then; of one, one */
    int rc = n_iov == 1 ? gnutls_aead_cipher_encrypt(h, nonce, FF_SEAL_NONCE_LEN, head, head_len,
                                                     FF_SEAL_TAG_LEN, iov->iov_base, len, out, &out_len)
                        : gnutls_aead_cipher_encryptv(h, nonce, FF_SEAL_NONCE_LEN, &auth, !!head_len,
                                                      FF_SEAL_TAG_LEN, iov, (int)n_iov, out, &out_len);
    stop_cipher(s, h);
    return rc < 0 || out_len != (size_t)len + FF_SEAL_TAG_LEN ? -EIO : 0;
}

int ff_seal_close_iov(struct ff_seal *s, const void *head, size_t head_len, const struct iovec *iov,
                      unsigned n_iov, uint32_t len, void *out)
{
    uint8_t nonce[FF_SEAL_NONCE_LEN];

    if (s->broken)
        return -EIO;
    make_nonce(s, nonce);
    s->broken = encrypt(s, nonce, head, head_len, iov, n_iov, len, out) || next_record(s);
    return s->broken ? -EIO : 0;
}

int ff_seal_close(struct ff_seal *s, const void *head, size_t head_len, const void *msg,
                  uint32_t len, void *out)
{
    struct iovec iov = {.iov_base = (void *)msg, .iov_len = len};

    return ff_seal_close_iov(s, head, head_len, &iov, 1, len, out);
}

/* @len: of the message, which its tag follows */
static bool decrypt(struct ff_seal *s, const uint8_t *nonce, const void *head, size_t head_len,
                    const void *in, size_t len, void *out)
{
    gnutls_aead_cipher_hd_t h;
    size_t out_len = len;

    if (has_gcm(s))
        return ff_gcm_open(s->gcm, nonce, head, head_len, in, len, out);
    if (start_cipher(s, &h))
        return false;
    int rc = gnutls_aead_cipher_decrypt(h, nonce, FF_SEAL_NONCE_LEN, head, head_len, FF_SEAL_TAG_LEN, in,
                                        len + FF_SEAL_TAG_LEN, out, &out_len);
    stop_cipher(s, h);
    return rc >= 0 && out_len == len;
}

int ff_seal_open(struct ff_seal *s, const void *head, size_t head_len, const void *in,
                 uint32_t len, void *out)
{
    uint8_t nonce[FF_SEAL_NONCE_LEN];

    if (s->broken || len < FF_SEAL_TAG_LEN) {
        s->broken = true;
        return -EBADMSG;
    }
    len -= FF_SEAL_TAG_LEN;
    make_nonce(s, nonce);
    s->broken = !decrypt(s, nonce, head, head_len, in, len, out) || next_record(s);
    if (!s->broken)
        return (int)len;
    memset(out, 0, len); /* somebody else chose what would stand there */
    return -EBADMSG;
}
