/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_ktls.h - the kernel's TLS (kTLS) for what a connection sends
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      after GnuTLS's handshake the kernel encrypts what sendmsg() is given, out of the
 *              pages where it lies: no copy in this process, and none into the socket.
 *
 * Picture      gnutls_record_get_state() -- key, IV, number --> setsockopt(TLS_TX)
 *              sendmsg() -- records of 16 KiB, encrypted --> socket
 *              a new key:  KeyUpdate under the old key, as a record of type 22 (cmsg);
 *                          GnuTLS derives the next one; setsockopt(TLS_TX) again
 *              GnuTLS decrypts what is received, as before. There the kernel would save little: the
 *              bytes have to be written where they belong either way. And alerts, the peer's
 *              KeyUpdate and records that are not the peer's stay GnuTLS's to judge.
 *
 * Failure      whatever is missing is found before the kernel has a key: then the process encrypts.
 *              A new key that it does not take, as a card's offload may not, breaks the link.
 * Limits       Linux before 6.14 takes one key for a connection. AES-GCM's limit would end that
 *              after 256 GiB, and a break before GO ends the move: there the process encrypts.
 *              A page that changes meanwhile, as in a pass of precopy=1, breaks no record: the tag
 *              is made of the ciphertext.
 *              A page whose memory fails between the look for that (unreadable.c) and this can stop
 *              the host, since no process is there to be told: hence kernel-tls=off.
 * Sources      Linux: Documentation/networking/tls.rst; RFC 8446, 4.6.3 and 5.5
 */
#ifndef FF_RDMA_TCP_KTLS_H
#define FF_RDMA_TCP_KTLS_H

#include <gnutls/gnutls.h>

/* NULL: this kernel can encrypt with @cipher; or why not, a text that stays. Asks the kernel once
 * for each, over a connection of its own. Any thread */
const char *tcp_ktls_lacks(gnutls_cipher_algorithm_t cipher);

/* From now on the kernel encrypts what is sent on @fd, with the key that @session has for sending.
 * Again: from now on with the key that it has now. 0, or -errno: nothing has changed */
int tcp_ktls_take_key(int fd, gnutls_session_t session);

/* Tell the peer that a new key follows: 0, or -errno, nothing was sent; -EAGAIN */
int tcp_ktls_say_new_key(int fd);

#endif
