/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_tls.c - both ends of a data connection come to a secret, by TLS 1.3; see tcp_tls.h
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

#include <gnutls/gnutls.h>

#include "cleanup.h"
#include "error.h"
#include "tcp_socket.h"
#include "tcp_tls.h"

#define PSK_NAME "farfork"
#define LABEL "EXPORTER-farfork-queue"
#define PRIORITY(suites)                                                                           \
    "NONE:+VERS-TLS1.3:" suites ":+AEAD:+SIGN-ALL:+ECDHE-PSK:"                                     \
    "+GROUP-X25519:+GROUP-SECP256R1:%DISABLE_TLS13_COMPAT_MODE"

struct tls {
    gnutls_session_t session;
    int fd;
    int code; /* what the socket said last, if that was an error */
    const uint8_t *secret;
};

/* --- the socket --- */

static ssize_t keep_code(struct tls *t, ssize_t n)
{
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        t->code = errno;
    return n;
}

static ssize_t socket_push(gnutls_transport_ptr_t opaque, const giovec_t *iov, int n)
{
    struct tls *t = opaque;
    struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n};

    return keep_code(t, sendmsg(t->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT));
}

static ssize_t socket_pull(gnutls_transport_ptr_t opaque, void *buf, size_t len)
{
    struct tls *t = opaque;

    return keep_code(t, recv(t->fd, buf, len, MSG_DONTWAIT));
}

/* --- the handshake --- */

/* What each end proves itself by: the source's, the destination's */
struct creds {
    gnutls_psk_client_credentials_t client;
    gnutls_psk_server_credentials_t server;
};

static int give_secret(gnutls_session_t session, const char *name, gnutls_datum_t *key)
{
    const struct tls *t = gnutls_session_get_ptr(session);

    if (strcmp(name, PSK_NAME))
        return -1;
    key->data = gnutls_malloc(FF_KDF_LEN);
    if (!key->data)
        return -1;
    memcpy(key->data, t->secret, FF_KDF_LEN);
    key->size = FF_KDF_LEN;
    return 0;
}

static int set_creds(struct tls *t, bool active, struct creds *c)
{
    gnutls_datum_t key = {.data = (unsigned char *)t->secret, .size = FF_KDF_LEN};

    if (!active) {
        int rc = gnutls_psk_allocate_server_credentials(&c->server);
        if (rc < 0)
            return rc;
        gnutls_psk_set_server_credentials_function(c->server, give_secret);
        return gnutls_credentials_set(t->session, GNUTLS_CRD_PSK, c->server);
    }
    int rc = gnutls_psk_allocate_client_credentials(&c->client);
    if (rc >= 0)
        rc = gnutls_psk_set_client_credentials(c->client, PSK_NAME, &key, GNUTLS_PSK_KEY_RAW);
    return rc < 0 ? rc : gnutls_credentials_set(t->session, GNUTLS_CRD_PSK, c->client);
}

static void drop_creds(struct tls *t, struct creds *c)
{
    gnutls_credentials_clear(t->session);
    if (c->client)
        gnutls_psk_free_client_credentials(c->client);
    if (c->server)
        gnutls_psk_free_server_credentials(c->server);
}

/* Does this CPU do AES by itself? Without, ChaCha20-Poly1305 is faster */
static bool has_aes(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP) & HWCAP_AES;
#else
    return false;
#endif
}

static int start_session(struct tls *t, bool active)
{
    unsigned flags = GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL | GNUTLS_NO_TICKETS;

    int rc = gnutls_init(&t->session, flags | (active ? GNUTLS_CLIENT : GNUTLS_SERVER));
    if (rc < 0) {
        t->session = NULL;
        return rc;
    }
    gnutls_session_set_ptr(t->session, t);
    gnutls_transport_set_ptr(t->session, t);
    gnutls_transport_set_vec_push_function(t->session, socket_push);
    gnutls_transport_set_pull_function(t->session, socket_pull);
    return gnutls_priority_set_direct(
        t->session, has_aes() ? PRIORITY("+AES-128-GCM:+CHACHA20-POLY1305")
                              : PRIORITY("+CHACHA20-POLY1305:+AES-128-GCM"), NULL);
}

static bool try_later(int rc)
{
    return rc == GNUTLS_E_AGAIN || rc == GNUTLS_E_INTERRUPTED;
}

/* 0, or -errno of the socket; or GnuTLS's own in @tls */
static int shake_hands(struct tls *t, int cancel_fd, int timeout_ms, int *tls)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;

    for (;;) {
        *tls = gnutls_handshake(t->session);
        if (*tls == GNUTLS_E_SUCCESS)
            return 0;
        if (t->code)
            return -t->code;
        if (*tls == GNUTLS_E_PREMATURE_TERMINATION)
            return -ECONNRESET;
        if (gnutls_error_is_fatal(*tls)) {
            gnutls_alert_send_appropriate(t->session, *tls); /* the peer need not wait */
            return -EACCES;
        }
        if (!try_later(*tls) && tcp_ms_left(end))
            continue; /* a warning of the peer */
        bool sends = gnutls_record_get_direction(t->session);
        int rc = tcp_wait_fd(t->fd, sends ? POLLOUT : POLLIN, cancel_fd, tcp_ms_left(end));
        if (rc)
            return rc;
    }
}

/* What came of it: the suite and the secret, or -EIO */
static int take_secret(struct tls *t, enum ff_hs_suite *suite, uint8_t out[FF_KDF_LEN])
{
    *suite = gnutls_cipher_get(t->session) == GNUTLS_CIPHER_AES_128_GCM ? FF_HS_AES128_GCM
                                                                        : FF_HS_CHACHA20_POLY1305;
    return gnutls_prf_rfc5705(t->session, strlen(LABEL), LABEL, 0, NULL, FF_KDF_LEN,
                              (char *)out) < 0 ? -EIO : 0;
}

int tcp_tls_agree(int fd, const struct tcp_tls_how *how, enum ff_hs_suite *suite,
                  uint8_t out[FF_KDF_LEN], struct ff_error *err)
{
    struct tls t = {.fd = fd, .secret = how->secret};
    struct creds c = {0};

    int tls = start_session(&t, how->active);
    if (tls >= 0)
        tls = set_creds(&t, how->active, &c);
    int rc = tls < 0 ? ff_error_set(err, EIO, "tcp: TLS: GnuTLS: %s; does a policy forbid TLS 1.3 "
                                    "with a PSK?", gnutls_strerror(tls))
                     : 0;
    if (!rc) {
        rc = shake_hands(&t, how->cancel_fd, how->timeout_ms, &tls);
        if (rc == -EACCES)
            ff_error_set(err, EACCES, "tcp: TLS: the peer of this queue does not have its key, or "
                         "somebody between changed what was said (GnuTLS: %s)",
                         gnutls_strerror(tls));
        else if (rc)
            ff_error_set(err, -rc, "tcp: TLS: handshake: %s", strerror(-rc));
    }
    if (!rc && (rc = take_secret(&t, suite, out)))
        ff_error_set(err, -rc, "tcp: TLS: GnuTLS gives no secret");
    if (t.session) {
        drop_creds(&t, &c);
        gnutls_deinit(t.session);
    }
    return rc;
}
