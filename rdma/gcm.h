/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * gcm.h - AES-128-GCM of a queue's frames, on CPUs that encrypt four blocks with one instruction
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the cipher of seal.h, by libipsec-mb, on CPUs with AVX-512, VAES and VPCLMULQDQ. On cached
 *              memory it takes 0.4 of the time of GnuTLS, OpenSSL 3.0 or libgcrypt. On other CPUs those
 *              are as fast: ff_gcm_new() returns NULL.
 *              Fetching uncached memory costs more than encrypting it. So each piece begins with a
 *              prefetch of the lines FETCH_AHEAD bytes further on: the CPU fetches them while it
 *              encrypts. A frame then takes hardly longer than a memcpy of it.
 *
 * Threads      one at a time. libipsec-mb's table of functions is of the process, and only read.
 * Ownership    the key's schedule and the state of a frame are in memory of base/secret.h.
 * Limits       GCM_PIECE, FETCH_AHEAD: the fastest of the sizes from 1 to 16 KiB, as measured.
 */
#ifndef FF_RDMA_GCM_H
#define FF_RDMA_GCM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ff_gcm;

/* NULL: this CPU lacks an instruction set, or out of memory. The caller then uses GnuTLS */
struct ff_gcm *ff_gcm_new(const uint8_t key[16]);
void ff_gcm_free(struct ff_gcm *g); /* @g may be NULL */

/* Encrypt the segments to @out, and write the tag of 16 bytes behind. @nonce: of 12 bytes; @head is
 * authenticated beside them */
void ff_gcm_close(struct ff_gcm *g, const uint8_t *nonce, const void *head, size_t head_len,
                  const struct iovec *iov, unsigned n_iov, void *out);

/* Decrypt @len bytes at @in, behind which their tag is, to @out, which may be @in. False: the tag is
 * wrong, and what @out holds is of no use */
bool ff_gcm_open(struct ff_gcm *g, const uint8_t *nonce, const void *head, size_t head_len,
                 const void *in, size_t len, void *out);

#endif
