/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_tls.h - TLS 1.3 on a data connection: what passes can be neither read nor changed
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      sendmsg() and recvmsg() of a queue, sealed. Requests, replies and completions are
 *              the same (tcp_queue.c).
 *
 * Picture      after join: TLS handshake by the queue's secret as PSK, with ephemeral keys (ECDHE)
 *              segments -- gather up to RECORD --> record -- AES-128-GCM, ChaCha20-Poly1305 -->
 *              or, where the kernel can and may: segments -- sendmsg() --> (tcp_ktls.h)
 *              The source is the client. There are no certificates and no tickets.
 *
 * Threads      as the queue: one at a time. GnuTLS allocates in them: docs/invariants.md (7).
 * Ownership    @fd stays the queue's. GnuTLS keeps the connection's keys on its heap, which a core
 *              dump shows; the queue's secret only for the handshake.
 * Failure      one record that is not the peer's next one: EBADMSG, nothing of it is given out.
 *              An end without the control channel's DONE is a broken link, as without TLS.
 * Limits       AES-128: with a PSK of SHA-256 GnuTLS has no AES-256 suite.
 *              A segment shorter than a record is copied once more.
 *              REKEY: a direction has a new key after so many records (KeyUpdate); AES-GCM is good
 *              for 2^24.5 (RFC 8446, 5.5). Each side counts what it sends and asks the peer for
 *              nothing, since GnuTLS would answer in the middle of a record that waits for room.
 *              Nothing is read ahead: what is not given out yet lies in the socket, where poll(2)
 *              sees it, or the next tcp_tls_recv() gives it out. So call that until it has nothing.
 * Sources      RFC 8446
 */
#ifndef FF_RDMA_TCP_TLS_H
#define FF_RDMA_TCP_TLS_H

#include <sys/types.h>
#include <sys/uio.h>

#include "kdf.h"
#include "link.h"

struct tcp_tls;

/* How the two ends of a connection come to a key */
struct tcp_tls_how {
    const uint8_t *secret; /* FF_KDF_LEN bytes */
    bool active;           /* the source */
    bool in_process;       /* the kernel is not to encrypt */
    int cancel_fd, timeout_ms;
};

/* The whole handshake over @fd, which is non-blocking. -EACCES: the peer does not have the secret,
 * or somebody between changed what was said; as tcp_socket.h */
int tcp_tls_new(int fd, const struct tcp_tls_how *how, struct tcp_tls **out,
                struct ff_error *err);
void tcp_tls_free(struct tcp_tls *t); /* @t may be NULL */

/* As sendmsg(2) and recvmsg(2) with MSG_DONTWAIT. After EAGAIN the next segments to send must be
 * the same: they are on their way already */
ssize_t tcp_tls_send(struct tcp_tls *t, const struct iovec *iov, size_t n_iov);
ssize_t tcp_tls_recv(struct tcp_tls *t, void *buf, size_t len);

#endif
