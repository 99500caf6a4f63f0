/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_seal.c - sealed frames on a data connection; see tcp_seal.h
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "cleanup.h"
#include "error.h"
#include "failpoint.h"
#include "runs.h"
#include "secret.h"
#include "tcp_seal.h"
#include "tcp_wire.h"

#define AHEAD 8192u /* a fault's page with all that belongs to it; moved, where it is of a long frame */
#define OVER (TCP_SEALED_HEAD_LEN + FF_SEAL_TAG_LEN)
#define IN_LEN (TCP_SEALED_MAX + OVER + AHEAD)
#define OUT_LEN (TCP_SEALED_MIXED + TCP_SEALED_MAX + 2 * OVER)

struct directions {
    struct ff_seal tx, rx;
};

struct tcp_seal {
    struct directions *keys;

    size_t taken; /* what of the segments is in out[out_pos, out_end) */
    uint32_t out_pos, out_end;
    struct iovec cut[RUNS_MAX + 2], cut_in[RUNS_MAX + 2];

    uint32_t in_pos, in_end; /* of in: received, not opened */
    uint8_t in[IN_LEN], out[OUT_LEN];
};

int tcp_seal_new(enum ff_hs_suite suite, const uint8_t secret[FF_KDF_LEN], bool active,
                 struct tcp_seal **out, struct ff_error *err)
{
    struct tcp_seal *s = calloc(1, sizeof(*s));
    uint8_t source[FF_KDF_LEN], dest[FF_KDF_LEN];

    if (s)
        s->keys = ff_secret_new(sizeof(*s->keys));
    if (!s || !s->keys) {
        free(s);
        return ff_error_set(err, ENOMEM, "tcp: seal a queue: out of memory");
    }
    int rc = ff_kdf_expand(secret, "from source", NULL, 0, source, sizeof(source));
    if (!rc)
        rc = ff_kdf_expand(secret, "from destination", NULL, 0, dest, sizeof(dest));
    if (!rc)
        rc = ff_seal_init_frames(&s->keys->tx, suite, active ? source : dest);
    if (!rc)
        rc = ff_seal_init_frames(&s->keys->rx, suite, active ? dest : source);
    explicit_bzero(source, sizeof(source));
    explicit_bzero(dest, sizeof(dest));
    if (!rc) {
        *out = s;
        return 0;
    }
    tcp_seal_free(s);
    return ff_error_set(err, EIO, "tcp: seal a queue: GnuTLS gives no HKDF");
}

void tcp_seal_free(struct tcp_seal *s)
{
    if (!s)
        return;
    ff_seal_end(&s->keys->tx);
    ff_seal_end(&s->keys->rx);
    ff_secret_free(s->keys, sizeof(*s->keys));
    free(s);
}

/* The first @max bytes of @iov, or all: their number; *@n segments in @out */
static uint32_t cut_segments(const struct iovec *iov, unsigned n_iov, uint32_t max,
                             struct iovec *out, unsigned *n)
{
    uint32_t len = 0;

    for (*n = 0; *n < n_iov && len < max; ++*n) {
        out[*n] = iov[*n];
        out[*n].iov_len = FF_MIN(iov[*n].iov_len, (size_t)(max - len));
        len += (uint32_t)out[*n].iov_len;
    }
    return len;
}

/* --- sending --- */

/* One frame of up to @max bytes of @iov */
static int seal_frame(struct tcp_seal *s, const struct iovec *iov, unsigned n_iov, uint32_t max)
{
    uint8_t *head = s->out + s->out_end;
    unsigned n;

    uint32_t len = cut_segments(iov, n_iov, max, s->cut, &n);
    tcp_seal_encode(head, len);
    int rc = ff_seal_close_iov(&s->keys->tx, head, TCP_SEALED_HEAD_LEN, s->cut, n, len,
                               head + TCP_SEALED_HEAD_LEN);
    s->out_end += len + OVER;
    s->taken += len;
    return rc;
}

/* One frame of all, if it is short; else the head's and one of data */
static int seal_segments(struct tcp_seal *s, const struct iovec *iov, unsigned n_iov,
                         unsigned n_head)
{
    size_t total = 0;
    int rc = 0;

    s->taken = s->out_pos = s->out_end = 0;
    for (unsigned i = 0; i < n_iov && total <= TCP_SEALED_MIXED; i++)
        total += iov[i].iov_len;
    if (total <= TCP_SEALED_MIXED)
        return seal_frame(s, iov, n_iov, TCP_SEALED_MIXED);
    if (n_head)
        rc = seal_frame(s, iov, n_head, TCP_SEALED_MIXED);
    return rc ? rc : seal_frame(s, iov + n_head, n_iov - n_head, TCP_SEALED_MAX);
}

ssize_t tcp_seal_send(struct tcp_seal *s, int fd, const struct msghdr *msg, unsigned n_head)
{
    if (s->out_pos == s->out_end &&
        seal_segments(s, msg->msg_iov, (unsigned)msg->msg_iovlen, n_head)) {
        s->out_pos = s->out_end = 0; /* whatever stands there: nothing of it is sent */
        errno = EIO;
        return -1;
    }
    while (s->out_pos < s->out_end) {
        ssize_t n = send(fd, s->out + s->out_pos, s->out_end - s->out_pos,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0)
            return -1;
        s->out_pos += (uint32_t)n;
    }
    return (ssize_t)s->taken;
}

/* --- receiving --- */

/* More for in, of which the frame that begins there wants @len bytes */
static ssize_t receive_more(struct tcp_seal *s, int fd, uint32_t len)
{
    uint32_t have = s->in_end - s->in_pos, want = len + AHEAD - have;

    memmove(s->in, s->in + s->in_pos, have);
    s->in_pos = 0;
    s->in_end = have;
    if (ff_failpoint("tcp.recv.short"))
        want = FF_MIN(want, 1021u);
    ssize_t n = recv(fd, s->in + have, want, MSG_DONTWAIT);
    if (n > 0)
        s->in_end += (uint32_t)n;
    return n;
}

/* The frame at in_pos, with @len bytes of content, is here: as tcp_seal_recv() */
static ssize_t open_frame(struct tcp_seal *s, const struct iovec *iov, unsigned n_iov, uint32_t len)
{
    uint8_t *head = s->in + s->in_pos, *sealed = head + TCP_SEALED_HEAD_LEN;
    unsigned n;

    s->in_pos += len + OVER;
    cut_segments(iov, n_iov, len, s->cut_in, &n);
    uint8_t *to = n == 1 ? s->cut_in[0].iov_base : sealed;
    int rc = ff_seal_open(&s->keys->rx, head, TCP_SEALED_HEAD_LEN, sealed, len + FF_SEAL_TAG_LEN, to);
    if (rc < 0) {
        errno = -rc;
        return -1;
    }
    for (unsigned i = 0; n > 1 && i < n; i++) {
        memcpy(s->cut_in[i].iov_base, sealed, s->cut_in[i].iov_len);
        sealed += s->cut_in[i].iov_len;
    }
    return rc;
}

ssize_t tcp_seal_recv(struct tcp_seal *s, int fd, const struct msghdr *msg, bool is_data)
{
    const struct iovec *iov = msg->msg_iov;
    unsigned n_iov = (unsigned)msg->msg_iovlen;
    uint32_t max = is_data ? 0 : TCP_SEALED_MIXED;

    for (unsigned i = 0; is_data && i < n_iov && max < TCP_SEALED_MAX; i++)
        max = (uint32_t)FF_MIN(max + iov[i].iov_len, (size_t)TCP_SEALED_MAX);
    for (;;) {
        const uint8_t *head = s->in + s->in_pos;
        uint32_t have = s->in_end - s->in_pos, len = 0;
        bool known = have >= TCP_SEALED_HEAD_LEN;

        if (known && tcp_seal_decode(head, max, &len, NULL)) {
            errno = EBADMSG;
            return -1;
        }
        if (known && have >= len + OVER)
            return open_frame(s, iov, n_iov, len);
        ssize_t n = receive_more(s, fd, known ? len + OVER : 0);
        if (n <= 0)
            return n;
    }
}

uint32_t tcp_seal_lacks(const struct tcp_seal *s)
{
    const uint32_t have = s->in_end - s->in_pos;
    uint32_t len;

    if (have < TCP_SEALED_HEAD_LEN || tcp_seal_decode(s->in + s->in_pos, TCP_SEALED_MAX, &len, NULL))
        return 0;
    return have < len + OVER ? len + OVER - have : 0;
}

bool tcp_seal_more(const struct tcp_seal *s)
{
    return s->in_pos < s->in_end;
}
