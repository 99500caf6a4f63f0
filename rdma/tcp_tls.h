/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_tls.h - both ends of a data connection come to a secret that nobody finds out later, by TLS 1.3
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what the queue's frames are sealed with (tcp_seal.h). The key of the move would do, but
 *              whoever gets that later could then open what he recorded.
 *
 * Picture      after join: TLS handshake by the queue's secret as PSK, with ephemeral keys (ECDHE)
 *              --> 32 bytes of its exporter (RFC 5705), and its suite by name: the frames'
 *              The source is the client, and its order of suites counts: AES-128-GCM first where its
 *              CPU has AES, else ChaCha20-Poly1305. There are no certificates and no tickets, and no
 *              records of TLS after Finished.
 *
 * Threads      the one that opens the link.
 * Limits       AES-128: with a PSK of SHA-256 GnuTLS has no AES-256 suite.
 *              Nothing is read ahead: what follows the handshake is in the socket.
 * Sources      RFC 8446
 */
#ifndef FF_RDMA_TCP_TLS_H
#define FF_RDMA_TCP_TLS_H

#include "handshake.h"

/* How the two ends of a connection come to a secret */
struct tcp_tls_how {
    const uint8_t *secret; /* FF_KDF_LEN bytes */
    bool active;           /* the source */
    int cancel_fd, timeout_ms;
};

/* The whole handshake over @fd, which is non-blocking. -EACCES: the peer does not have the secret,
 * or somebody between changed what was said; as tcp_socket.h */
int tcp_tls_agree(int fd, const struct tcp_tls_how *how, enum ff_hs_suite *suite,
                  uint8_t out[FF_KDF_LEN], struct ff_error *err);

#endif
