/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_tls.c - TLS 1.3 on a data connection: what passes can be neither read nor changed
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <gnutls/gnutls.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "log.h"
#include "tcp_ktls.h"
#include "tcp_socket.h"
#include "tcp_tls.h"

#define RECORD 16384u /* as much as TLS puts into one */
#define REKEY 4194304u /* records of one key */
#define PSK_NAME "farfork"
#define PRIORITY                                                                                   \
    "NONE:+VERS-TLS1.3:+AES-128-GCM:+CHACHA20-POLY1305:+AEAD:+SIGN-ALL:+ECDHE-PSK:"                \
    "+GROUP-X25519:+GROUP-SECP256R1:%DISABLE_TLS13_COMPAT_MODE"

struct tcp_tls {
    gnutls_session_t session;
    int fd;
    int code;     /* what the socket said last, if that was an error */
    bool sending; /* a record waits for room in the socket */
    bool rekeying; /* the word of it does */
    bool key_said; /* by_kernel: it is said, and the kernel has not taken the key yet */
    bool by_kernel; /* it has the key for sending: GnuTLS sends nothing any more */
    uint32_t records; /* sent with this key */
    const uint8_t *secret; /* for the handshake */
    uint8_t gathered[RECORD];
};

/* --- the socket --- */

/* EBADMSG is what tcp_tls_recv() says of the peer; the kernel says it of a record that it could not
 * encrypt */
static ssize_t keep_code(struct tcp_tls *t, ssize_t n)
{
    if (n < 0 && errno == EBADMSG)
        errno = EIO;
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        t->code = errno;
    return n;
}

static ssize_t socket_push(gnutls_transport_ptr_t opaque, const giovec_t *iov, int n)
{
    struct tcp_tls *t = opaque;
    struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n};
    ssize_t len = 0;

    /* the word of a new key, which is said already; or an alert, and then the connection ends */
    for (int i = 0; t->by_kernel && i < n; i++)
        len += (ssize_t)iov[i].iov_len;
    if (t->by_kernel)
        return len;
    return keep_code(t, sendmsg(t->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT));
}

static ssize_t socket_pull(gnutls_transport_ptr_t opaque, void *buf, size_t len)
{
    struct tcp_tls *t = opaque;

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
    const struct tcp_tls *t = gnutls_session_get_ptr(session);

    if (strcmp(name, PSK_NAME))
        return -1;
    key->data = gnutls_malloc(FF_KDF_LEN);
    if (!key->data)
        return -1;
    memcpy(key->data, t->secret, FF_KDF_LEN);
    key->size = FF_KDF_LEN;
    return 0;
}

static int set_creds(struct tcp_tls *t, bool active, struct creds *c)
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

static void drop_creds(struct tcp_tls *t, struct creds *c)
{
    gnutls_credentials_clear(t->session);
    if (c->client)
        gnutls_psk_free_client_credentials(c->client);
    if (c->server)
        gnutls_psk_free_server_credentials(c->server);
    t->secret = NULL;
}

/* The handshake is done, and nothing has been sent or received since. Once in a process: whoever
 * looks for kTLS is told */
static void choose_where(struct tcp_tls *t, bool in_process)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const char *why = in_process ? "kernel-tls=off"
                                 : tcp_ktls_lacks(gnutls_cipher_get(t->session));

    if (!why) {
        int rc = tcp_ktls_take_key(t->fd, t->session);
        why = rc ? strerror(-rc) : NULL;
        t->by_kernel = !rc;
    }
    if (atomic_flag_test_and_set(&said))
        return;
    if (why)
        ff_log(FF_LOG_INFO, "tcp: TLS: this process encrypts (GnuTLS), not the kernel (kTLS): %s",
               why);
    else
        ff_log(FF_LOG_INFO, "tcp: TLS: the kernel encrypts (kTLS)");
}

static int start_session(struct tcp_tls *t, bool active)
{
    unsigned flags = GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL | GNUTLS_NO_TICKETS |
                     GNUTLS_NO_AUTO_REKEY;

    int rc = gnutls_init(&t->session, flags | (active ? GNUTLS_CLIENT : GNUTLS_SERVER));
    if (rc < 0) {
        t->session = NULL;
        return rc;
    }
    gnutls_session_set_ptr(t->session, t);
    gnutls_transport_set_ptr(t->session, t);
    gnutls_transport_set_vec_push_function(t->session, socket_push);
    gnutls_transport_set_pull_function(t->session, socket_pull);
    return gnutls_priority_set_direct(t->session, PRIORITY, NULL);
}

static bool try_later(ssize_t rc)
{
    return rc == GNUTLS_E_AGAIN || rc == GNUTLS_E_INTERRUPTED;
}

/* 0, or -errno of the socket; or GnuTLS's own in @tls */
static int shake_hands(struct tcp_tls *t, int cancel_fd, int timeout_ms, int *tls)
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

int tcp_tls_new(int fd, const struct tcp_tls_how *how, struct tcp_tls **out, struct ff_error *err)
{
    struct tcp_tls *t = calloc(1, sizeof(*t));
    struct creds c = {0};
    int tls;

    if (!t)
        return ff_error_set(err, ENOMEM, "tcp: TLS: out of memory");
    t->fd = fd;
    t->secret = how->secret;
    tls = start_session(t, how->active);
    if (tls >= 0)
        tls = set_creds(t, how->active, &c);
    int rc = tls < 0 ? ff_error_set(err, EIO, "tcp: TLS: GnuTLS: %s; does a policy forbid TLS 1.3 "
                                    "with a PSK?", gnutls_strerror(tls))
                     : 0;
    if (!rc) {
        rc = shake_hands(t, how->cancel_fd, how->timeout_ms, &tls);
        if (rc == -EACCES)
            ff_error_set(err, EACCES, "tcp: TLS: the peer of this queue does not have its key, or "
                         "somebody between changed what was said (GnuTLS: %s)",
                         gnutls_strerror(tls));
        else if (rc)
            ff_error_set(err, -rc, "tcp: TLS: handshake: %s", strerror(-rc));
    }
    if (t->session)
        drop_creds(t, &c);
    if (rc)
        tcp_tls_free(t);
    else
        *out = t;
    if (!rc)
        choose_where(t, how->in_process);
    return rc;
}

void tcp_tls_free(struct tcp_tls *t)
{
    if (!t)
        return;
    if (t->session)
        gnutls_deinit(t->session);
    free(t);
}

/* --- data --- */

/* As a system call says it */
static ssize_t as_syscall(const struct tcp_tls *t, ssize_t rc)
{
    if (rc >= 0)
        return rc;
    if (!t->code && rc == GNUTLS_E_PREMATURE_TERMINATION)
        return 0;
    errno = try_later(rc) ? EAGAIN : t->code ? t->code
            : rc == GNUTLS_E_MEMORY_ERROR ? ENOMEM : EBADMSG;
    return -1;
}

/* The next record's content: @len bytes */
static const void *gather_record(struct tcp_tls *t, const struct iovec *iov, size_t n_iov,
                                 size_t *len)
{
    *len = FF_MIN(iov[0].iov_len, (size_t)RECORD);
    if (*len == RECORD || n_iov == 1)
        return iov[0].iov_base;
    *len = 0;
    for (size_t i = 0; i < n_iov && *len < RECORD; i++) {
        size_t n = FF_MIN(iov[i].iov_len, RECORD - *len);
        memcpy(t->gathered + *len, iov[i].iov_base, n);
        *len += n;
    }
    return t->gathered;
}

static bool wants_key(struct tcp_tls *t)
{
    return t->rekeying |= t->records >= REKEY || (t->records && ff_failpoint("tcp.tls.rekey"));
}

/* Between two records: what follows has another key. 0, or as GnuTLS has it */
static int rekey(struct tcp_tls *t)
{
    if (!wants_key(t))
        return 0;
    int rc = gnutls_session_key_update(t->session, 0);
    t->rekeying = try_later(rc);
    if (!rc)
        t->records = 0;
    return rc;
}

/* Likewise: 0, or -errno. A key that the kernel does not take leaves the peer waiting for it */
static int rekey_kernel(struct tcp_tls *t)
{
    if (!wants_key(t))
        return 0;
    if (!t->key_said) {
        int rc = tcp_ktls_say_new_key(t->fd);
        if (!rc && gnutls_session_key_update(t->session, 0) < 0)
            rc = -EIO;
        if (rc)
            return rc;
        t->key_said = true;
    }
    int rc = tcp_ktls_take_key(t->fd, t->session);
    if (rc == -EAGAIN || rc == -EINTR) /* a card that encrypts has no room for it now */
        return rc;
    if (rc) {
        ff_log(FF_LOG_WARN, "tcp: TLS: the kernel took no new key (%s): kernel-tls=off in the address "
               "lets this process encrypt", strerror(-rc));
        return rc;
    }
    t->rekeying = t->key_said = false;
    t->records = 0;
    return 0;
}

/* The kernel makes records of RECORD bytes, and one of what is left */
static ssize_t send_by_kernel(struct tcp_tls *t, const struct iovec *iov, size_t n_iov)
{
    struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = n_iov};

    int rc = rekey_kernel(t);
    errno = -rc;
    ssize_t n = keep_code(t, rc ? -1 : sendmsg(t->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT));
    if (n > 0)
        t->records += (uint32_t)((size_t)n / RECORD + 1);
    return n;
}

ssize_t tcp_tls_send(struct tcp_tls *t, const struct iovec *iov, size_t n_iov)
{
    const void *data = NULL;
    size_t len = 0;

    t->code = 0;
    if (t->by_kernel)
        return send_by_kernel(t, iov, n_iov);
    if (!t->sending) {
        int rc = rekey(t);
        if (rc < 0)
            return as_syscall(t, rc);
        data = gather_record(t, iov, n_iov, &len);
        t->records++;
    }
    ssize_t rc = gnutls_record_send(t->session, data, len);
    t->sending = try_later(rc);
    return as_syscall(t, rc);
}

ssize_t tcp_tls_recv(struct tcp_tls *t, void *buf, size_t len)
{
    t->code = 0;
    return as_syscall(t, gnutls_record_recv(t->session, buf, len));
}
