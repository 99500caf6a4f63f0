/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * gl_tcp.c - TCP server: a connection must survive a move with nothing lost
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      Keep state for every connection, so that a line lost, doubled or
 *              reordered, or a connection whose state went back, shows at once.
 * Picture      client                               server (seq, chain of this one)
 *                "N\n"                          ->  N must be seq + 1
 *                "N COUNTER CHECKSUM\n"         <-  chain = mix(chain ^ N ^ COUNTER << 32)
 *              CHECKSUM is the chain, 16 hex digits; both start from 0, and the
 *              client computes it as well (tcpclient.py).
 * Threads      one, with poll(): connections are non-blocking.
 * Failure      a wrong line is answered "ERR ...", counted, and ends the connection;
 *              a client that goes away, also by a reset, is no error here: the
 *              client knows better whether it should have stayed.
 * Limits       32 connections; a client that does not read its answers is dropped.
 */
#include "guestload.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS 32
#define LINE_MAX_BYTES 64u

struct conn {
    uint64_t seq, chain;
    size_t used;
    char line[LINE_MAX_BYTES];
};

struct server {
    struct pollfd fds[CONNECTIONS + 1];    /* [0] listens; [i + 1] belongs to conns[i] */
    struct conn conns[CONNECTIONS];
};

static void drop(struct server *s, unsigned i)
{
    close(s->fds[i + 1].fd);
    s->fds[i + 1].fd = -1;
}

static int answer(int fd, const char *text, int n)
{
    return send(fd, text, (size_t)n, MSG_NOSIGNAL) == n ? 0 : -1;
}

/* One whole line without its newline. */
static int take_line(struct conn *c, int fd, const char *line)
{
    char out[128], *end;
    uint64_t n = strtoull(line, &end, 10), counter = gl_stats.counter;
    int len;

    if (end == line || *end || n != c->seq + 1) {
        gl_fail(&gl_stats.tcp_errors, "tcp: line '%s' for %" PRIu64, line, c->seq + 1);
        len = snprintf(out, sizeof(out), "ERR expected %" PRIu64 " got %s\n", c->seq + 1, line);
        answer(fd, out, len);
        return -1;
    }
    c->seq = n;
    c->chain = gl_mix(c->chain ^ n ^ counter << 32);
    atomic_fetch_add(&gl_stats.tcp_lines, 1);
    len = snprintf(out, sizeof(out), "%" PRIu64 " %" PRIu64 " %016" PRIx64 "\n", n, counter,
                   c->chain);
    return answer(fd, out, len);
}

static int serve(struct conn *c, int fd)
{
    ssize_t got = recv(fd, c->line + c->used, sizeof(c->line) - c->used, MSG_DONTWAIT);
    char *nl;

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got <= 0)
        return -1;
    c->used += (size_t)got;
    while ((nl = memchr(c->line, '\n', c->used))) {
        size_t n = (size_t)(nl - c->line) + 1;

        *nl = 0;
        if (take_line(c, fd, c->line) < 0)
            return -1;
        c->used -= n;
        memmove(c->line, c->line + n, c->used);
    }
    if (c->used == sizeof(c->line)) {
        gl_fail(&gl_stats.tcp_errors, "tcp: line after %" PRIu64 " is too long", c->seq);
        return -1;
    }
    return 0;
}

static void take_connection(struct server *s)
{
    int one = 1, fd = accept4(s->fds[0].fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        if (s->fds[i + 1].fd >= 0)
            continue;
        s->fds[i + 1] = (struct pollfd){ .fd = fd, .events = POLLIN };
        s->conns[i] = (struct conn){ 0 };
        atomic_fetch_add(&gl_stats.tcp_conns, 1);
        return;
    }
    close(fd);
}

static void *run_tcp(void *arg)
{
    struct server *s = arg;

    for (;;) {
        if (poll(s->fds, CONNECTIONS + 1, -1) <= 0)
            continue;
        for (unsigned i = 0; i < CONNECTIONS; i++)
            if (s->fds[i + 1].fd >= 0 && s->fds[i + 1].revents &&
                serve(&s->conns[i], s->fds[i + 1].fd) < 0)
                drop(s, i);
        if (s->fds[0].revents)
            take_connection(s);
    }
    return NULL;
}

void gl_tcp_start(void)
{
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT,
                                .sin6_port = htons((uint16_t)gl_config.port) };
    struct server *s = calloc(1, sizeof(*s));
    int one = 1, zero = 0, fd;

    if (!s)
        abort();
    fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
        bind(fd, (struct sockaddr *)&any, sizeof(any)) < 0 || listen(fd, 8) < 0) {
        gl_fail(&gl_stats.tcp_errors, "tcp: listen on %" PRIu64 ": %s", gl_config.port,
                strerror(errno));
        if (fd >= 0)
            close(fd);
        free(s);
        return;
    }
    s->fds[0] = (struct pollfd){ .fd = fd, .events = POLLIN };
    for (unsigned i = 0; i < CONNECTIONS; i++)
        s->fds[i + 1].fd = -1;
    gl_start(run_tcp, s, 0);
}
