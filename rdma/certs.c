/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * certs.c - both ends of a tcp link prove themselves by X.509 certificates, and get a key by that
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

#include "certs.h"
#include "cleanup.h"
#include "error.h"

/* What a stranger can make GnuTLS keep. It counts all that was said so far, and what comes once
 * more: so each side has CHAIN_MAX for its certificates */
#define HANDSHAKE_MAX 32768u
#define CHAIN_MAX 14336u
#define RSA_BITS_MAX 8192u /* a signature takes 0.2 s; of 16384 bits 2 s, for any stranger */
#define FILE_MAX 1048576u
#define LABEL "EXPORTER-farfork-link"
#define PRIORITY "NORMAL:-VERS-ALL:+VERS-TLS1.3:%DISABLE_TLS13_COMPAT_MODE"

struct ff_certs {
    gnutls_certificate_credentials_t data;
    bool server;
    char hostname[256]; /* "": the one that it connects to */
};

struct ff_cert_exchange {
    gnutls_session_t session;
    int fd;
    int code; /* what the socket said last, if that was an error */
    char hostname[256];
    gnutls_typed_vdata_st want[2]; /* of the peer's certificate */
};

/* --- credentials --- */

static int tls_error(int rc, const char *what, const char *path, struct ff_error *err)
{
    return ff_error_set(err, EINVAL, "certificates: %s %s: %s", what, path, gnutls_strerror(rc));
}

/* @name of @dir; in @path what it is called. -ENOENT: there is none, and @err is left alone */
static int read_pem(const char *dir, const char *name, char path[512], gnutls_datum_t *out,
                    gnutls_hash_hd_t digest, struct ff_error *err)
{
    struct stat st;

    if (snprintf(path, 512, "%s/%s", dir, name) >= 512)
        return ff_error_set(err, ENAMETOOLONG, "certificates: a name of %zu bytes: %.99s...",
                            strlen(dir), dir);
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return -ENOENT;
    if (fd < 0 || fstat(fd, &st) < 0)
        return ff_error_set(err, errno, "certificates: open %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size <= 0 || st.st_size > FILE_MAX)
        return ff_error_set(err, EINVAL, "certificates: %s is no file of 1 to %u bytes", path,
                            FILE_MAX);
    out->size = (unsigned)st.st_size;
    out->data = gnutls_malloc(out->size);
    if (!out->data)
        return ff_error_set(err, ENOMEM, "certificates: out of memory");
    ssize_t n = read(fd, out->data, out->size);
    if (n != st.st_size) {
        int code = n < 0 ? errno : EAGAIN;
        return ff_error_set(err, code, "certificates: read %s: %s", path, strerror(code));
    }
    gnutls_hash(digest, out->data, out->size);
    return 0;
}

static void drop_pem(gnutls_datum_t *d)
{
    if (d->data)
        explicit_bzero(d->data, d->size);
    gnutls_free(d->data);
}

static int pem_missing(const char *path, struct ff_error *err)
{
    return ff_error_set(err, ENOENT, "certificates: there is no %s", path);
}

static int load_ca(struct ff_certs *c, const char *dir, gnutls_hash_hd_t digest,
                   struct ff_error *err)
{
    gnutls_datum_t ca = {0}, crl = {0};
    char path[512];
    int n;

    int rc = read_pem(dir, "ca-cert.pem", path, &ca, digest, err);
    if (rc == -ENOENT)
        rc = pem_missing(path, err);
    if (!rc && (n = gnutls_certificate_set_x509_trust_mem(c->data, &ca, GNUTLS_X509_FMT_PEM)) <= 0)
        rc = tls_error(n ? n : GNUTLS_E_NO_CERTIFICATE_FOUND, "load", path, err);
    if (!rc && (rc = read_pem(dir, "ca-crl.pem", path, &crl, digest, err)) == -ENOENT)
        rc = 0;
    if (!rc && crl.data &&
        (n = gnutls_certificate_set_x509_crl_mem(c->data, &crl, GNUTLS_X509_FMT_PEM)) <= 0)
        rc = tls_error(n ? n : GNUTLS_E_NO_CERTIFICATE_FOUND, "load", path, err);
    drop_pem(&ca);
    drop_pem(&crl);
    return rc;
}

static int check_chain(const gnutls_x509_crt_t *crt, unsigned n, const char *path,
                       struct ff_error *err)
{
    size_t sum = 0;
    unsigned bits;

    for (unsigned i = 0; i < n; i++) {
        size_t len = 0;
        gnutls_x509_crt_export(crt[i], GNUTLS_X509_FMT_DER, NULL, &len);
        sum += len;
    }
    if (sum > CHAIN_MAX)
        return ff_error_set(err, E2BIG, "certificates: %s: %u certificates of %zu bytes together "
                            "(at most %u): leave the CA's out, or use shorter keys", path, n, sum,
                            CHAIN_MAX);
    if (gnutls_x509_crt_get_pk_algorithm(crt[0], &bits) == GNUTLS_PK_RSA && bits > RSA_BITS_MAX)
        return ff_error_set(err, E2BIG, "certificates: %s: an RSA key of %u bits (at most %u): it "
                            "signs for longer than a peer waits", path, bits, RSA_BITS_MAX);
    return 0;
}

/* A peer would give up on them, and say less */
static int check_own(const struct ff_certs *c, const char *path, struct ff_error *err)
{
    gnutls_x509_crt_t *crt;
    unsigned n;

    int rc = gnutls_certificate_get_x509_crt(c->data, 0, &crt, &n);
    if (rc < 0)
        return tls_error(rc, "load", path, err);
    rc = check_chain(crt, n, path, err);
    for (unsigned i = 0; i < n; i++)
        gnutls_x509_crt_deinit(crt[i]);
    gnutls_free(crt);
    return rc;
}

static int load_own(struct ff_certs *c, const char *dir, const char *password,
                    gnutls_hash_hd_t digest, struct ff_error *err)
{
    gnutls_datum_t cert = {0}, key = {0};
    char path[512], cert_path[512];
    int n;

    int rc = read_pem(dir, c->server ? "server-cert.pem" : "client-cert.pem", cert_path, &cert,
                      digest, err);
    if (rc == -ENOENT)
        rc = pem_missing(cert_path, err);
    if (!rc)
        rc = read_pem(dir, c->server ? "server-key.pem" : "client-key.pem", path, &key, digest,
                      err);
    if (rc == -ENOENT && !cert.data)
        goto out;
    if (rc == -ENOENT)
        rc = pem_missing(path, err);
    if (!rc && (n = gnutls_certificate_set_x509_key_mem2(c->data, &cert, &key, GNUTLS_X509_FMT_PEM,
                                                         password, 0)) < 0)
        rc = tls_error(n, "load the certificate and key", cert_path, err);
    if (!rc)
        rc = check_own(c, cert_path, err);
out:
    drop_pem(&cert);
    drop_pem(&key);
    return rc;
}

int ff_certs_load(const char *dir, const char *hostname, const char *password, bool server,
                  struct ff_certs **out, uint8_t digest[FF_CERTS_DIGEST_LEN], struct ff_error *err)
{
    struct ff_certs *c = calloc(1, sizeof(*c));
    gnutls_hash_hd_t hash = NULL;

    if (!c || gnutls_certificate_allocate_credentials(&c->data) < 0 ||
        gnutls_hash_init(&hash, GNUTLS_DIG_SHA256) < 0) {
        ff_certs_free(c);
        return ff_error_set(err, ENOMEM, "certificates: out of memory");
    }
    c->server = server;
    int rc = hostname && strlen(hostname) >= sizeof(c->hostname)
                 ? ff_error_set(err, EINVAL, "certificates: a host name of %zu bytes (at most %zu)",
                                strlen(hostname), sizeof(c->hostname) - 1) : 0;
    snprintf(c->hostname, sizeof(c->hostname), "%s", hostname ? hostname : "");
    gnutls_hash(hash, c->hostname, sizeof(c->hostname));
    gnutls_hash(hash, &c->server, sizeof(c->server));
    if (!rc)
        rc = load_ca(c, dir, hash, err);
    if (!rc)
        rc = load_own(c, dir, password, hash, err);
    gnutls_hash_deinit(hash, digest);
    if (rc)
        ff_certs_free(c);
    else
        *out = c;
    return rc;
}

void ff_certs_free(struct ff_certs *c)
{
    if (!c)
        return;
    if (c->data)
        gnutls_certificate_free_credentials(c->data);
    free(c);
}

/* --- an exchange --- */

static ssize_t keep_error(struct ff_cert_exchange *x, ssize_t n)
{
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        x->code = errno;
    return n;
}

static ssize_t certs_push(gnutls_transport_ptr_t opaque, const giovec_t *iov, int n)
{
    struct ff_cert_exchange *x = opaque;
    struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n};

    return keep_error(x, sendmsg(x->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT));
}

static ssize_t certs_pull(gnutls_transport_ptr_t opaque, void *buf, size_t len)
{
    struct ff_cert_exchange *x = opaque;

    return keep_error(x, recv(x->fd, buf, len, MSG_DONTWAIT));
}

int ff_certs_begin(struct ff_certs *c, int fd, const char *host, struct ff_cert_exchange **out,
                   struct ff_error *err)
{
    struct ff_cert_exchange *x = calloc(1, sizeof(*x));
    unsigned flags = GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL | GNUTLS_NO_TICKETS;

    if (!x)
        return ff_error_set(err, ENOMEM, "certificates: out of memory");
    x->fd = fd;
    snprintf(x->hostname, sizeof(x->hostname), "%s", *c->hostname ? c->hostname : host);
    int rc = gnutls_init(&x->session, flags | (c->server ? GNUTLS_SERVER : GNUTLS_CLIENT));
    if (rc < 0)
        x->session = NULL;
    if (rc >= 0)
        rc = gnutls_priority_set_direct(x->session, PRIORITY, NULL);
    if (rc >= 0)
        rc = gnutls_credentials_set(x->session, GNUTLS_CRD_CERTIFICATE, c->data);
    if (rc < 0) {
        ff_certs_end(x);
        return ff_error_set(err, EIO, "certificates: GnuTLS: %s; does a policy forbid TLS 1.3?",
                            gnutls_strerror(rc));
    }
    gnutls_transport_set_ptr(x->session, x);
    gnutls_transport_set_vec_push_function(x->session, certs_push);
    gnutls_transport_set_pull_function(x->session, certs_pull);
    gnutls_handshake_set_max_packet_length(x->session, HANDSHAKE_MAX);
    x->want[0] = (gnutls_typed_vdata_st){
        .type = GNUTLS_DT_KEY_PURPOSE_OID,
        .data = (void *)(c->server ? GNUTLS_KP_TLS_WWW_CLIENT : GNUTLS_KP_TLS_WWW_SERVER)};
    x->want[1] = (gnutls_typed_vdata_st){.type = GNUTLS_DT_DNS_HOSTNAME,
                                         .data = (void *)x->hostname};
    gnutls_session_set_verify_cert2(x->session, x->want, c->server ? 1 : 2, 0);
    if (c->server) /* a client without one fails */
        gnutls_certificate_server_set_request(x->session, GNUTLS_CERT_REQUIRE);
    /* not the names of all the CAs: they would fill the handshake, and strangers need not know */
    gnutls_certificate_send_x509_rdn_sequence(x->session, 1);
    *out = x;
    return 0;
}

void ff_certs_end(struct ff_cert_exchange *x)
{
    if (!x)
        return;
    if (x->session)
        gnutls_deinit(x->session);
    free(x);
}

/* Why the peer's certificate is not taken, for a person */
static int not_verified(const struct ff_cert_exchange *x, struct ff_error *err)
{
    gnutls_datum_t text = {0};
    unsigned status = gnutls_session_get_verify_cert_status(x->session);

    gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &text, 0);
    ff_error_set(err, EACCES, "certificates: the peer's is not taken%s%s: %s",
                 *x->hostname ? " for host " : "", x->hostname, text.data ? (char *)text.data : "");
    gnutls_free(text.data);
    return -EACCES;
}

int ff_certs_step(struct ff_cert_exchange *x, struct ff_error *err)
{
    int rc;

    x->code = 0;
    do
        rc = gnutls_handshake(x->session);
    while (rc == GNUTLS_E_INTERRUPTED || rc == GNUTLS_E_WARNING_ALERT_RECEIVED);
    if (rc == GNUTLS_E_SUCCESS)
        return 0;
    if (rc == GNUTLS_E_AGAIN)
        return -EAGAIN;
    if (x->code || rc == GNUTLS_E_PREMATURE_TERMINATION) {
        int code = x->code ? x->code : ECONNRESET;
        return ff_error_set(err, code, "certificates: %s", strerror(code));
    }
    gnutls_alert_send_appropriate(x->session, rc); /* the peer need not wait */
    if (rc == GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR)
        return not_verified(x, err);
    if (rc == GNUTLS_E_FATAL_ALERT_RECEIVED)
        return ff_error_set(err, EACCES, "certificates: the peer does not take this side's, or "
                            "ends (alert: %s)",
                            gnutls_alert_get_name(gnutls_alert_get(x->session)));
    if (rc == GNUTLS_E_NO_CERTIFICATE_FOUND || rc == GNUTLS_E_CERTIFICATE_REQUIRED)
        return ff_error_set(err, EACCES, "certificates: the peer has none");
    if (rc == GNUTLS_E_HANDSHAKE_TOO_LARGE)
        return ff_error_set(err, EACCES, "certificates: the peer shows more than %u bytes of them",
                            CHAIN_MAX);
    if (rc == GNUTLS_E_NO_CIPHER_SUITES || rc == GNUTLS_E_NO_COMMON_KEY_SHARE ||
        rc == GNUTLS_E_UNSUPPORTED_VERSION_PACKET)
        return ff_error_set(err, EACCES, "certificates: this side and the peer have no cipher or "
                            "no group of TLS 1.3 in common: %s", gnutls_strerror(rc));
    return ff_error_set(err, EACCES, "certificates: %s; has the peer tls-creds-x509?",
                        gnutls_strerror(rc));
}

short ff_certs_events(const struct ff_cert_exchange *x)
{
    return gnutls_record_get_direction(x->session) ? POLLOUT : POLLIN;
}

int ff_certs_key(struct ff_cert_exchange *x, uint8_t out[FF_CERTS_KEY_LEN], struct ff_error *err)
{
    if (gnutls_prf_rfc5705(x->session, strlen(LABEL), LABEL, 0, NULL, FF_CERTS_KEY_LEN,
                           (char *)out) < 0)
        return ff_error_set(err, EIO, "certificates: GnuTLS gives no key");
    return 0;
}
