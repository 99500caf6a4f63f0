/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * gcm.h - AES-128-GCM of a queue's frames, on CPUs that encrypt four blocks with one instruction
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the cipher of seal.h where the CPU has VAES and VPCLMULQDQ: libipsec-mb uses them. On
 *              memory that is in the cache it takes 0.4 of the time of GnuTLS, OpenSSL 3.0 or libgcrypt;
 *              on other CPUs they are as fast, and ff_gcm_new() returns NULL.
 *              Memory that is in no cache costs more than the cipher. So each piece's turn begins with
 *              a prefetch of what lies AHEAD: the memory is read, or made ready to be written, while the
 *              cipher works. A frame then takes hardly longer than to be copied.
 *
 * Threads      one at a time. libipsec-mb's table of functions is of the process, and only read.
 * Ownership    the key's schedule and the state of a frame are in memory of base/secret.h.
 * Limits       PIECE, AHEAD: of 1 to 16 KiB the fastest, measured.
 */
#ifndef FF_RDMA_GCM_H
#define FF_RDMA_GCM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct ff_gcm;

/* NULL: this CPU has not what it takes, or there is no memory: GnuTLS serves as well */
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
