/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * certs.h - both ends of a tcp link prove themselves by X.509 certificates, and get a key by that
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a TLS 1.3 handshake on the control connection, before that of handshake.h, which
 *              goes on with the key that comes of it. No TLS record follows.
 *
 * Picture      source (TLS client)                     destination (TLS server)
 *              ClientHello                     --->
 *                                              <---    certificate, request for one, Finished
 *              verify: CA, host name, purpose
 *              certificate, Finished           --->    verify: CA, purpose
 *              key = exporter(LABEL)                   key = exporter(LABEL)
 *              hello (handshake.h) with key    --->
 *
 * Invariants   1. Both verify the other's chain up to the CA of their folder, its CRL if there is
 *                 one, its dates, and that it is for a server or a client. There is no way to ask
 *                 for less.
 *              2. The key is of this connection alone, and who gets a certificate's key later
 *                 cannot compute it: TLS has ephemeral keys (forward secrecy).
 *              3. A byte that follows the handshake stays in the socket: GnuTLS reads records
 *                 whole, and nothing ahead; there are no tickets.
 * Limits       What both say has HANDSHAKE_MAX bytes at most, of which each side's certificates may
 *              have CHAIN_MAX. Who has more, or an RSA key of more than RSA_BITS_MAX, learns so when
 *              it loads them.
 * Sources      RFC 8446; RFC 5705 (exporters)
 */
#ifndef FF_RDMA_CERTS_H
#define FF_RDMA_CERTS_H

#include <stdbool.h>
#include <stdint.h>

struct ff_error;
struct ff_certs;
struct ff_cert_exchange;

/* @dir: ca-cert.pem, ca-crl.pem if there is one, and {server,client}-{cert,key}.pem, as QEMU's
 * tls-creds-x509 has them. @password: of the key, or NULL. @server: a destination.
 * @digest: SHA-256 of it all, @hostname (a source: whom it wants; NULL: the one that it connects
 * to) too. 0; -EINVAL; -ENOMEM; -E2BIG: more than a peer takes; or why a file cannot be read */
#define FF_CERTS_DIGEST_LEN 32
int ff_certs_load(const char *dir, const char *hostname, const char *password, bool server,
                  struct ff_certs **out, uint8_t digest[FF_CERTS_DIGEST_LEN], struct ff_error *err);
void ff_certs_free(struct ff_certs *c); /* @c may be NULL */

/* Does a connection that says this byte first begin TLS? */
#define FF_CERTS_FIRST_BYTE 0x16

/* An exchange over @fd, which is non-blocking; borrows both. @host: whom a source connects to */
int ff_certs_begin(struct ff_certs *c, int fd, const char *host, struct ff_cert_exchange **out,
                   struct ff_error *err);
void ff_certs_end(struct ff_cert_exchange *x); /* @x may be NULL */

/* 0: done; -EAGAIN: when the socket shows ff_certs_events(); -EACCES: the peer did not prove
 * itself, or does not believe this side; -ECONNRESET, or another -errno of the socket */
int ff_certs_step(struct ff_cert_exchange *x, struct ff_error *err);
short ff_certs_events(const struct ff_cert_exchange *x);

/* Done: the key of both. 0 or -EIO */
#define FF_CERTS_KEY_LEN 32
int ff_certs_key(struct ff_cert_exchange *x, uint8_t out[FF_CERTS_KEY_LEN], struct ff_error *err);

#endif
