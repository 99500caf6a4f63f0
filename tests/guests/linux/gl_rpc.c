/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * gl_rpc.c - a guest that works on a remote accelerator: bulk calls over one TCP session, some in flight
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      what API remoting does (rCUDA, RAPID, a GPU's runtime on another host): arguments of some 64 KiB go
 *              out, results as large come back, and the session has state at its other end, so that it must not
 *              break.
 * Picture      sender: seq, length, bytes  ->  rpcserver.py  ->  receiver: seq, length, the bytes backwards
 *              Numbers are little-endian: 64 bits, 32 bits, 32 bits of zeros.
 * Threads      two; calls in flight are limited by a semaphore.
 * Failure      a result that is wrong, or of another call, and a session that ends: one error, and no more calls.
 */
#include "guestload.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TRIES 100 /* until the network is there */
#define TRY_NS 100000000ull

struct head {
    uint64_t seq;
    uint32_t len, zero;
};

struct session {
    int fd;
    uint32_t len;
    sem_t may_send;
};

/* The arguments of a call */
static void fill(uint8_t *bytes, uint32_t len, uint64_t seq)
{
    uint64_t word;

    for (uint32_t i = 0; i < len / 8; i++) {
        word = gl_mix(seq * 65536 + i);
        memcpy(bytes + i * 8, &word, 8);
    }
}

static int all(int fd, void *bytes, size_t len, int out)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = out ? send(fd, (char *)bytes + done, len - done, MSG_NOSIGNAL)
                        : recv(fd, (char *)bytes + done, len - done, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

static void *run_sender(void *arg)
{
    struct session *s = arg;
    uint8_t *bytes = malloc(s->len);

    for (uint64_t seq = 1; bytes; seq++) {
        struct head h = { .seq = seq, .len = s->len };

        while (sem_wait(&s->may_send) < 0)
            ;
        fill(bytes, s->len, seq);
        if (all(s->fd, &h, sizeof(h), 1) < 0 || all(s->fd, bytes, s->len, 1) < 0)
            break; /* the receiver says so */
    }
    free(bytes);
    return NULL;
}

static int is_right(const uint8_t *result, uint8_t *want, uint32_t len, uint64_t seq)
{
    fill(want, len, seq);
    for (uint32_t i = 0; i < len; i++)
        if (result[i] != want[len - 1 - i])
            return 0;
    return 1;
}

static void *run_receiver(void *arg)
{
    struct session *s = arg;
    uint8_t *result = malloc(s->len), *want = malloc(s->len);
    struct head h;

    for (uint64_t seq = 1; result && want; seq++) {
        if (all(s->fd, &h, sizeof(h), 0) < 0) {
            gl_fail(&gl_stats.rpc_errors, "rpc: the session has ended after %" PRIu64 " calls: %s", seq - 1,
                    strerror(errno));
            break;
        }
        if (h.seq != seq || h.len != s->len || all(s->fd, result, s->len, 0) < 0 ||
            !is_right(result, want, s->len, seq)) {
            gl_fail(&gl_stats.rpc_errors, "rpc: call %" PRIu64 ": a wrong result, of call %" PRIu64, seq, h.seq);
            break;
        }
        atomic_fetch_add(&gl_stats.rpc_calls, 1);
        sem_post(&s->may_send);
    }
    free(result);
    free(want);
    return NULL;
}

static void *run_session(void *arg)
{
    struct session *s = arg;
    struct sockaddr_in to = { .sin_family = AF_INET };
    char *colon = strchr(gl_config.rpc, ':');
    int one = 1;

    if (!colon)
        return NULL;
    *colon = 0;
    to.sin_port = htons((uint16_t)atoi(colon + 1));
    inet_pton(AF_INET, gl_config.rpc, &to.sin_addr);
    for (int i = 0; i < TRIES; i++) {
        s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        if (connect(s->fd, (struct sockaddr *)&to, sizeof(to)) == 0) {
            gl_start(run_sender, s, 0);
            return run_receiver(s);
        }
        close(s->fd);
        gl_sleep_ns(TRY_NS);
    }
    gl_fail(&gl_stats.rpc_errors, "rpc: connect: %s", strerror(errno));
    return NULL;
}

void gl_rpc_start(void)
{
    struct session *s = calloc(1, sizeof(*s));

    if (!s)
        abort();
    s->len = (uint32_t)gl_config.rpc_kib * 1024;
    sem_init(&s->may_send, 0, (unsigned)gl_config.rpc_depth);
    if (gl_config.rpc[0])
        gl_start(run_session, s, 0);
    else
        free(s);
}
