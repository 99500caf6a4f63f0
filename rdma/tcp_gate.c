/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_gate.c - the handshake over sockets: of one source, and of all who come to a listener
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a listener with a key hears nobody who has not proved that it has the key. Until
 *              then a connection has a place in a table here, and nothing else.
 *
 * Picture      accepted -> [ silent ] -- hello --> [ challenged ] -- proof --> the link's
 *                              |  GATE_MS, no hello,   |  GATE_MS, wrong, left
 *                              v  left                 v
 *                           dropped                 dropped
 *
 * Failure      whatever a stranger does costs its own connection. When one more comes than there are
 *              places, those who are silent or those who are challenged lose one, whoever are more,
 *              and of them the oldest. So a flood costs the right source its place only if
 *              TCP_GATE_MAX / 2 come between its accept and its proof. A turn takes TCP_GATE_TURN of
 *              them, and then hears all who are there: what lies in a socket counts.
 * Certificates an exchange of them (certs.h) comes before hello, on either side, and gives the key
 *              for the rest. Only that takes memory, and only of TCP_GATE_CERTS_MAX strangers: one
 *              more takes the room of the oldest.
 * Limits       GATE_MS from accept to proof: two round trips and a host that is busy.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "certs.h"
#include "cleanup.h"
#include "error.h"
#include "log.h"
#include "secret.h"
#include "tcp_gate.h"
#include "tcp_socket.h"

#define GATE_MS 2000

struct stranger {
    int fd;
    uint64_t until_ns;
    struct ff_cert_exchange *x; /* while it exchanges certificates */
    struct ff_key *key;         /* what came of that */
    bool out;                   /* another one has its room for that */
    struct ff_handshake h;
    uint8_t have, in[FF_HS_HELLO_LEN]; /* of the message that it sends now */
};

struct tcp_gate {
    const struct ff_key *key;
    struct ff_epoch *epoch; /* of who passed last */
    unsigned n;
    unsigned long dropped;
    struct stranger s[TCP_GATE_MAX]; /* the oldest first */
};

_Static_assert(FF_HS_PROOF_LEN <= FF_HS_HELLO_LEN, "both are read into one buffer");

static int gate_send(int fd, const void *data, size_t len, int cancel_fd, int timeout_ms)
{
    struct iovec iov = {.iov_base = (void *)data, .iov_len = len};
    return tcp_send_all(fd, &iov, 1, cancel_fd, timeout_ms);
}

/* The key that came of @x, which is done; NULL: there is none */
static struct ff_key *end_exchange(struct ff_cert_exchange *x, struct ff_error *err)
{
    uint8_t *bytes = ff_secret_new(FF_CERTS_KEY_LEN);
    struct ff_key *key = NULL;

    _Static_assert(FF_CERTS_KEY_LEN == FF_KEY_LEN, "what comes of certificates is a key");
    if (!bytes)
        ff_error_set(err, ENOMEM, "certificates: out of memory");
    else if (!ff_certs_key(x, bytes, err) && !(key = ff_key_of_bytes(bytes)))
        ff_error_set(err, ENOMEM, "certificates: out of memory");
    ff_secret_free(bytes, FF_CERTS_KEY_LEN);
    return key;
}

/* The source's exchange of certificates: the key that comes of it, or NULL */
static struct ff_key *pass_certs(int fd, struct ff_certs *c, const char *host, int cancel_fd,
                                 int timeout_ms, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct ff_cert_exchange *x;
    struct ff_key *key = NULL;

    if (ff_certs_begin(c, fd, host, &x, err))
        return NULL;
    int rc;
    while ((rc = ff_certs_step(x, err)) == -EAGAIN) {
        rc = tcp_wait_fd(fd, ff_certs_events(x), cancel_fd, tcp_ms_left(end));
        if (rc) {
            ff_error_set(err, -rc, "certificates: %s", strerror(-rc));
            break;
        }
    }
    if (!rc)
        key = end_exchange(x, err);
    ff_certs_end(x);
    return key;
}

static int pass_with(int fd, const struct ff_key *key, int cancel_fd, int timeout_ms,
                     struct ff_epoch *e, const char *hint, struct ff_error *err)
{
    uint8_t nonce[FF_HS_NONCE_LEN], hello[FF_HS_HELLO_LEN], answer[FF_HS_ANSWER_LEN];
    uint8_t proof[FF_HS_PROOF_LEN];
    struct ff_handshake h;

    int rc = ff_hs_nonce_of(key, nonce, err);
    if (rc)
        return rc;
    ff_hs_ask(&h, FF_HS_SUITES, nonce, hello);
    rc = gate_send(fd, hello, sizeof(hello), cancel_fd, timeout_ms);
    if (!rc)
        rc = tcp_recv_all(fd, answer, sizeof(answer), cancel_fd, timeout_ms);
    if (rc)
        return ff_error_set(err, -rc, "tcp: handshake: %s%s", strerror(-rc),
                            rc == -ECONNRESET || rc == -EPIPE ? hint : "");
    rc = ff_hs_prove(&h, key, answer, sizeof(answer), proof, e, err);
    if (rc)
        return ff_error_pass(err, rc, "tcp");
    rc = gate_send(fd, proof, sizeof(proof), cancel_fd, timeout_ms);
    return rc ? ff_error_set(err, -rc, "tcp: handshake: %s", strerror(-rc)) : 0;
}

int tcp_gate_pass(int fd, const struct ff_key *key, const char *host, int cancel_fd,
                  int timeout_ms, struct ff_epoch *e, struct ff_error *err)
{
    if (!ff_key_certs(key))
        return pass_with(fd, key, cancel_fd, timeout_ms, e,
                         "; has the destination no key (key-file=)?", err);
    struct ff_error why = {.code = EIO};
    struct ff_key *own = pass_certs(fd, ff_key_certs(key), host, cancel_fd, timeout_ms, &why);
    if (!own)
        return ff_error_set(err, why.code, "tcp: %s", why.text);
    int rc = pass_with(fd, own, cancel_fd, timeout_ms, e,
                       "; does the destination not take this side's certificate?", err);
    ff_key_unref(own);
    return rc;
}

int tcp_gate_new(const struct ff_key *key, struct tcp_gate **out, struct ff_error *err)
{
    struct tcp_gate *g = calloc(1, sizeof(*g));

    if (g)
        g->epoch = ff_secret_new(sizeof(*g->epoch));
    if (!g || !g->epoch) {
        free(g);
        return ff_error_set(err, ENOMEM, "tcp: listen: out of memory");
    }
    g->key = key;
    *out = g;
    return 0;
}

/* @i is no stranger any more */
static int leave_gate(struct tcp_gate *g, unsigned i)
{
    int fd = g->s[i].fd;

    ff_certs_end(g->s[i].x);
    ff_key_unref(g->s[i].key);
    memmove(g->s + i, g->s + i + 1, (--g->n - i) * sizeof(g->s[0]));
    return fd;
}

void tcp_gate_free(struct tcp_gate *g)
{
    if (!g)
        return;
    while (g->n)
        close(leave_gate(g, 0));
    ff_secret_free(g->epoch, sizeof(*g->epoch));
    free(g);
}

static void drop_stranger(struct tcp_gate *g, unsigned i, const char *why)
{
    close(leave_gate(g, i));
    if (ff_log_due(&g->dropped))
        ff_log(FF_LOG_WARN, "tcp: %s; connection dropped (%lu so far)", why, g->dropped);
}

static const struct ff_key *key_of_stranger(const struct tcp_gate *g, const struct stranger *s)
{
    return s->key ? s->key : g->key;
}

/* It was to show a certificate first */
static bool lacks_certs(const struct tcp_gate *g, const struct stranger *s)
{
    return ff_key_certs(g->key) && !s->key;
}

/* @s has sent all of a hello, or something else: 0, or -errno. Who can be told what is wrong is */
static int challenge(struct tcp_gate *g, struct stranger *s, struct ff_error *err)
{
    uint8_t nonce[FF_HS_NONCE_LEN], answer[FF_HS_ANSWER_LEN];
    bool can_send;

    int rc = ff_hs_nonce(nonce, err);
    if (rc)
        return rc;
    rc = ff_hs_answer(&s->h, key_of_stranger(g, s), lacks_certs(g, s) ? 0 : FF_HS_SUITES, nonce,
                      s->in, s->have, answer, &can_send, err);
    s->have = 0;
    int sent = can_send ? gate_send(s->fd, answer, sizeof(answer), -1, 0) : 0;
    return rc ? rc : sent ? ff_error_set(err, -sent, "handshake: answer: %s", strerror(-sent)) : 0;
}

/* Room for one more: the oldest of those who exchange certificates goes, in its turn */
static void limit_exchanges(struct tcp_gate *g)
{
    struct stranger *oldest = NULL;
    unsigned n = 0;

    for (unsigned i = g->n; i-- > 0;)
        if (g->s[i].x) {
            oldest = &g->s[i];
            n++;
        }
    if (n < TCP_GATE_CERTS_MAX)
        return;
    ff_certs_end(oldest->x);
    oldest->x = NULL;
    oldest->out = true;
}

/* Has @s shown a certificate? -EAGAIN: not yet. Who says something else than TLS is heard, and
 * answered that this is not enough */
static int hear_certs(struct tcp_gate *g, struct stranger *s, struct ff_error *err)
{
    uint8_t first;

    if (!s->x) {
        ssize_t n = recv(s->fd, &first, 1, MSG_PEEK | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return -EAGAIN;
        if (n <= 0 || first != FF_CERTS_FIRST_BYTE)
            return 0;
        limit_exchanges(g);
        int rc = ff_certs_begin(ff_key_certs(g->key), s->fd, "", &s->x, err);
        if (rc)
            return rc;
    }
    int rc = ff_certs_step(s->x, err);
    if (rc)
        return rc;
    s->key = end_exchange(s->x, err);
    ff_certs_end(s->x);
    s->x = NULL;
    return s->key ? 0 : -EIO;
}

static int not_yet(const struct stranger *s, struct ff_error *err)
{
    return ff_now_ns() < s->until_ns
               ? 0 : ff_error_set(err, ETIMEDOUT, "handshake: nothing within %d ms", GATE_MS);
}

/* One message of @s at most. 1: @s has the key; 0: not yet; -errno: drop it */
static int hear_stranger(struct tcp_gate *g, struct stranger *s, struct ff_error *err)
{
    if (s->out)
        return ff_error_set(err, EBUSY, "certificates: too many at once");
    if (lacks_certs(g, s) && s->h.state == FF_HS_START && !s->have) {
        int rc = hear_certs(g, s, err);
        if (rc)
            return rc == -EAGAIN ? not_yet(s, err) : rc;
    }
    for (;;) {
        size_t want = s->h.state == FF_HS_START ? FF_HS_HELLO_LEN : FF_HS_PROOF_LEN;
        ssize_t n = recv(s->fd, s->in + s->have, want - s->have, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return not_yet(s, err);
        if (n <= 0)
            return ff_error_set(err, n ? errno : ECONNRESET, "handshake: the peer has left");
        s->have += (uint8_t)n;
        bool asks = s->h.state == FF_HS_START;
        bool rubbish = asks && s->have >= 4 && !ff_hs_is_hello(s->in);
        if (s->have < want && !rubbish)
            continue;
        int rc = asks ? challenge(g, s, err)
                      : ff_hs_check(&s->h, key_of_stranger(g, s), s->in, s->have, g->epoch, err);
        return rc ? rc : s->h.state == FF_HS_DONE;
    }
}

static bool is_silent(const struct stranger *s)
{
    return s->h.state == FF_HS_START && !s->x && !s->key;
}

/* Who makes room: the oldest of those who have said nothing yet, or of the others, whoever are more */
static unsigned find_victim(const struct tcp_gate *g)
{
    unsigned silent = 0, i = 0;

    for (unsigned k = 0; k < g->n; k++)
        silent += is_silent(&g->s[k]);
    while (is_silent(&g->s[i]) != (silent > g->n / 2))
        i++;
    return i;
}

void tcp_gate_add(struct tcp_gate *g, int fd)
{
    struct ff_error why;

    if (g->n == TCP_GATE_MAX)
        drop_stranger(g, find_victim(g), "handshake: too many at once");
    g->s[g->n++] = (struct stranger){.fd = fd, .until_ns = ff_now_ns() + GATE_MS * 1000000ull};
    /* at once: a source has spoken by now, and is not one of the silent when the next comes */
    if (hear_stranger(g, &g->s[g->n - 1], &why) < 0)
        drop_stranger(g, g->n - 1, why.text);
}

int tcp_gate_next(struct tcp_gate *g, const struct ff_epoch **e)
{
    explicit_bzero(g->epoch, sizeof(*g->epoch));
    for (unsigned i = 0; i < g->n;) {
        struct ff_error why;
        int rc = hear_stranger(g, &g->s[i], &why);
        if (rc > 0) {
            *e = g->epoch;
            return leave_gate(g, i);
        }
        if (rc)
            drop_stranger(g, i, why.text);
        else
            i++;
    }
    return -EAGAIN;
}

unsigned tcp_gate_poll(const struct tcp_gate *g, struct pollfd p[TCP_GATE_MAX])
{
    for (unsigned i = 0; i < g->n; i++)
        p[i] = (struct pollfd){.fd = g->s[i].fd,
                               .events = g->s[i].x ? ff_certs_events(g->s[i].x) : POLLIN};
    return g->n;
}

int tcp_gate_ms(const struct tcp_gate *g)
{
    return g->n ? tcp_ms_left(g->s[0].until_ns) : -1;
}
