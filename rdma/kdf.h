/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * kdf.h - keys from keys: HMAC and HKDF with SHA-256
 */
#ifndef FF_RDMA_KDF_H
#define FF_RDMA_KDF_H

#include <stddef.h>
#include <stdint.h>

#define FF_KDF_LEN 32 /* of SHA-256 */

/* A secret of @ikm that all labels start from. 0 or -EIO, as all here: GnuTLS refused (a policy of
 * the host may forbid what is used) */
int ff_kdf_extract(const uint8_t *ikm, size_t len, const char *salt, uint8_t out[FF_KDF_LEN]);

/* What @secret is for @label in @context (NULL: none), at most FF_KDF_CONTEXT_MAX bytes. Another
 * label or context tells nothing about it */
#define FF_KDF_CONTEXT_MAX 64
int ff_kdf_expand(const uint8_t secret[FF_KDF_LEN], const char *label, const void *context,
                  size_t context_len, uint8_t *out, size_t out_len);

int ff_kdf_hash(const void *data, size_t len, uint8_t out[FF_KDF_LEN]);

#endif
