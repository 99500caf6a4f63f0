/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stream_pass.c - a migration between two sockets: both directions, counted
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      forward a stream and its return path; a proxy acts in the hooks.
 * Threads      one, with poll(2): a direction is read when all that it had has been written, so
 *              neither waits for the other.
 * Failure      a stream that is not understood is cut: both QEMUs see the end of a connection.
 *              Before the package the guest goes on at the source; after it both pause.
 */
#include "stream_pass.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "cleanup.h"

#define READ_LEN (256 << 10) /* a unix socket's buffer and some */
#define HOLD_MS 10

struct direction {
    int from, to;
    uint8_t *in, *out;
    size_t in_pos, in_len;
    size_t out_pos, out_len, out_size;
    bool ended; /* nothing more comes, and the reader was told */
    bool gone;  /* the reader takes nothing any more */
    uint64_t *read, *written;
};

struct passing {
    struct direction there, back;
    struct stream *stream;
    struct stream_return_reader *reader;
    const struct stream_pass_hooks *hooks;
    struct stream_pass_counts *counts;
};

static int keep_outgoing(struct direction *d, const void *data, size_t len, struct ff_error *err)
{
    if (len > d->out_size - d->out_len) {
        size_t size = FF_MAX(2 * d->out_size, d->out_len + len);
        uint8_t *more = realloc(d->out, size);

        if (!more)
            return ff_error_set(err, ENOMEM, "stream: keep %zu bytes: no memory", size);
        d->out = more;
        d->out_size = size;
    }
    memcpy(d->out + d->out_len, data, len);
    d->out_len += len;
    return 0;
}

static int bytes_there(void *opaque, const void *data, size_t len, struct ff_error *err)
{
    return keep_outgoing(&((struct passing *)opaque)->there, data, len, err);
}

static int bytes_back(void *opaque, const void *data, size_t len, struct ff_error *err)
{
    return keep_outgoing(&((struct passing *)opaque)->back, data, len, err);
}

static int unit_seen(void *opaque, const struct stream_event *e, struct ff_error *err)
{
    struct passing *p = opaque;
    int verdict = p->hooks && p->hooks->seen ? p->hooks->seen(p->hooks->opaque, e, err) : 0;

    if (verdict < 0 || verdict == STREAM_HOLD)
        return verdict;
    p->counts->units[e->kind]++;
    p->counts->zero_pages += e->kind == STREAM_PAGE && !e->data;
    if (e->kind == STREAM_PACKAGE)
        p->counts->package_bytes += e->value;
    return verdict;
}

static int message_seen(void *opaque, const struct stream_return *m, struct ff_error *err)
{
    struct passing *p = opaque;

    p->counts->messages[m->type]++;
    return p->hooks && p->hooks->asked ? p->hooks->asked(p->hooks->opaque, m, err) : 0;
}

/* Send what is there; a reader that has gone is no error, the other direction says why */
static int write_out(struct direction *d, struct ff_error *err)
{
    while (d->out_pos < d->out_len && !d->gone) {
        ssize_t n = send(d->to, d->out + d->out_pos, d->out_len - d->out_pos, MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) {
            d->gone = true;
            break;
        }
        if (n < 0)
            return ff_error_set(err, errno, "stream: send: %s", strerror(errno));
        d->out_pos += (size_t)n;
        *d->written += (uint64_t)n;
    }
    d->out_pos = d->out_len = 0;
    return 0;
}

static int read_in(struct direction *d, struct ff_error *err)
{
    ssize_t n = recv(d->from, d->in, READ_LEN, 0);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return 0;
    if (n < 0 && errno != ECONNRESET)
        return ff_error_set(err, errno, "stream: receive: %s", strerror(errno));
    if (n <= 0) {
        d->ended = true;
        return 0;
    }
    d->in_pos = 0;
    d->in_len = (size_t)n;
    *d->read += (uint64_t)n;
    return 0;
}

static bool reads(const struct direction *d)
{
    return !d->ended && d->in_pos == d->in_len && d->out_pos == d->out_len;
}

static int step_there(struct passing *p, struct ff_error *err)
{
    struct direction *d = &p->there;
    ssize_t n;

    if (d->out_pos < d->out_len || (d->in_pos == d->in_len && !stream_holds(p->stream)))
        return 0;
    n = stream_feed(p->stream, d->in + d->in_pos, d->in_len - d->in_pos, err);
    if (n < 0)
        return (int)n;
    d->in_pos += (size_t)n;
    return write_out(d, err);
}

static int step_back(struct passing *p, struct ff_error *err)
{
    struct direction *d = &p->back;
    int rc;

    if (d->in_pos == d->in_len)
        return 0;
    rc = stream_return_feed(p->reader, d->in, d->in_len, err);
    d->in_pos = d->in_len;
    return rc ? rc : write_out(d, err);
}

static int pass_once(struct passing *p, struct ff_error *err)
{
    struct direction *both[] = {&p->there, &p->back};
    struct pollfd fds[4];
    int rc;

    for (unsigned i = 0; i < 2; i++) {
        struct direction *d = both[i];

        fds[2 * i] = (struct pollfd){.fd = reads(d) ? d->from : -1, .events = POLLIN};
        fds[2 * i + 1] =
            (struct pollfd){.fd = d->out_pos < d->out_len ? d->to : -1, .events = POLLOUT};
    }
    if (poll(fds, 4, stream_holds(p->stream) ? HOLD_MS : -1) < 0 && errno != EINTR)
        return ff_error_set(err, errno, "stream: poll: %s", strerror(errno));
    for (unsigned i = 0; i < 2; i++) {
        struct direction *d = both[i];

        rc = d->out_pos < d->out_len ? write_out(d, err) : 0;
        if (!rc && fds[2 * i].fd >= 0 && fds[2 * i].revents)
            rc = read_in(d, err);
        if (!rc)
            rc = i ? step_back(p, err) : step_there(p, err);
        if (rc)
            return rc;
        if (d->ended && d->out_pos == d->out_len && d->in_pos == d->in_len && d->to >= 0 &&
            (i || !stream_holds(p->stream))) {
            shutdown(d->to, SHUT_WR);
            d->to = -1;
        }
    }
    return 0;
}

static int run_both(struct passing *p, struct ff_error *err)
{
    while (!p->there.ended || !p->back.ended || p->there.to >= 0 || p->back.to >= 0) {
        int rc = pass_once(p, err);

        if (rc)
            return rc;
    }
    return stream_end(p->stream, err);
}

static int make_nonblocking(int fd, struct ff_error *err)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
        return ff_error_set(err, errno, "stream: make socket non-blocking: %s", strerror(errno));
    return 0;
}

int stream_pass(int source, int destination, const struct stream_pass_hooks *hooks,
                struct stream_pass_counts *counts, struct ff_error *err)
{
    struct passing p = {.there = {.from = source, .to = destination},
                        .back = {.from = destination, .to = source},
                        .hooks = hooks,
                        .counts = counts};
    struct stream_sink sink = {.event = unit_seen, .bytes = bytes_there, .opaque = &p};
    struct stream_return_reader reader = {
        .sink = {.event = message_seen, .bytes = bytes_back, .opaque = &p}};
    int rc;

    *counts = (struct stream_pass_counts){0};
    p.there.read = &counts->forward_bytes;
    p.there.written = &counts->forward_written;
    p.back.read = &counts->return_bytes;
    p.back.written = &counts->return_written;
    p.reader = &reader;
    p.stream = stream_new(&sink);
    p.there.in = malloc(READ_LEN);
    p.back.in = malloc(READ_LEN);
    if (p.stream && p.there.in && p.back.in)
        rc = 0;
    else
        rc = ff_error_set(err, ENOMEM, "stream: prepare to forward: no memory");
    if (!rc)
        rc = make_nonblocking(source, err);
    if (!rc)
        rc = make_nonblocking(destination, err);
    if (!rc)
        rc = run_both(&p, err);
    if (rc) { /* neither is to wait for what does not come */
        shutdown(source, SHUT_RDWR);
        shutdown(destination, SHUT_RDWR);
    }
    stream_free(p.stream);
    free(p.there.in);
    free(p.there.out);
    free(p.back.in);
    free(p.back.out);
    return rc;
}
