/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * kdf.c - keys from keys: HMAC and HKDF with SHA-256
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      info = label, 0x00, context: a label has no NUL, so that no two pairs are one info.
 * Sources      RFC 5869 (HKDF)
 */
#include <errno.h>
#include <string.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include "kdf.h"
#include "wirebuf.h"

#define LABEL_MAX 32

static gnutls_datum_t datum(const void *data, size_t len)
{
    return (gnutls_datum_t){.data = (unsigned char *)data, .size = (unsigned)len};
}

int ff_kdf_extract(const uint8_t *ikm, size_t len, const char *salt, uint8_t out[FF_KDF_LEN])
{
    gnutls_datum_t key = datum(ikm, len), s = datum(salt, strlen(salt));

    return gnutls_hkdf_extract(GNUTLS_MAC_SHA256, &key, &s, out) < 0 ? -EIO : 0;
}

int ff_kdf_expand(const uint8_t secret[FF_KDF_LEN], const char *label, const void *context,
                  size_t context_len, uint8_t *out, size_t out_len)
{
    uint8_t info[LABEL_MAX + 1 + FF_KDF_CONTEXT_MAX];
    struct ff_wirebuf b = {.data = info, .len = sizeof(info)};

    ff_wb_put_bytes(&b, label, strlen(label) + 1);
    ff_wb_put_bytes(&b, context, context_len);
    if (b.bad)
        return -EIO;
    gnutls_datum_t key = datum(secret, FF_KDF_LEN), i = datum(info, b.pos);
    return gnutls_hkdf_expand(GNUTLS_MAC_SHA256, &key, &i, out, out_len) < 0 ? -EIO : 0;
}

int ff_kdf_hash(const void *data, size_t len, uint8_t out[FF_KDF_LEN])
{
    return gnutls_hash_fast(GNUTLS_DIG_SHA256, data, len, out) < 0 ? -EIO : 0;
}
