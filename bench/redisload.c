/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * redisload.c - a client of a Redis server that moves: how long it waits for each answer
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      redisload HOST PORT ITEMS connects, as soon as somebody listens; sets ITEMS values
 *              of VALUE bytes; prints "ready"; then asks for one after the other at random, each
 *              when the one before was answered, and sets each SET_EVERYth anew, until SIGTERM.
 *              Prints one JSON object:
 *                start            CLOCK_REALTIME of the first request, seconds
 *                wrong            answers that were not what was last set
 *                answers          [at, took, at, took, ...] in us: when it was asked for, since
 *                                 the start, and how long the answer took
 *
 *              One connection: Redis answers one request after the other all the same, and the
 *              one that waits for a missing page of memory is the one that a client waits for.
 *
 * Limits       ANSWERS_MAX answers; a wait on the socket ends after WAIT_S, and fails.
 * Sources      the Redis serialization protocol, RESP2
 */
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define VALUE 4000u /* with what Redis adds, about a page */
#define HEAD 17u    /* item and version, in hex */
#define SET_EVERY 4u
#define AHEAD 64u   /* SETs on their way while the memory is filled */
#define ANSWERS_MAX (8u << 20)
#define CONNECT_S 60
#define WAIT_S 60

static volatile sig_atomic_t stop;
static uint32_t *version, took_us[ANSWERS_MAX];
static uint64_t at_us[ANSWERS_MAX];
static uint64_t n_answers, wrong;
static int fd;

/* what came and was not read yet */
static char in[64 << 10];
static size_t in_at, in_len;

static void on_redis_term(int sig)
{
    (void)sig;
    stop = 1;
}

static uint64_t now_us(void)
{
    return ff_now_ns() / 1000u;
}

static uint64_t next_random(void)
{
    static uint64_t state = 1;

    state += 0x9e3779b97f4a7c15ull;
    uint64_t x = (state ^ state >> 32) * 0xd6e8feb86659fd93ull;
    return x ^ x >> 32;
}

static void connect_redis(const char *host, const char *port)
{
    struct addrinfo want = { .ai_socktype = SOCK_STREAM }, *res;
    struct timeval wait = { .tv_sec = WAIT_S };
    uint64_t end = now_us() + CONNECT_S * 1000000ull;
    int rc = getaddrinfo(host, port, &want, &res), one = 1;

    if (rc) {
        fprintf(stderr, "redisload: %s: %s\n", host, gai_strerror(rc));
        exit(1);
    }
    for (;;) {
        fd = socket(res->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            die("socket");
        if (connect(fd, res->ai_addr, res->ai_addrlen) == 0)
            break;
        close(fd);
        if (now_us() > end || stop)
            die("connect");
        usleep(100000);
    }
    freeaddrinfo(res);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
}

static void make_value(char *value, uint32_t item)
{
    snprintf(value, HEAD + 1, "%08" PRIx32 "-%08" PRIx32, item, version[item]);
    for (size_t i = HEAD; i < VALUE; i++)
        value[i] = (char)('a' + (i + item) % 23);
}

static void send_bytes(const char *data, size_t len)
{
    while (len) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);

        if (n < 0 && errno != EINTR)
            die("send");
        data += n > 0 ? n : 0;
        len -= n > 0 ? (size_t)n : 0;
    }
}

static void ask_set(uint32_t item)
{
    char request[VALUE + 128];
    int n;

    version[item]++;
    n = snprintf(request, 128, "*3\r\n$3\r\nSET\r\n$8\r\n%08" PRIx32 "\r\n$%u\r\n", item, VALUE);
    make_value(request + n, item);
    memcpy(request + n + VALUE, "\r\n", 2);
    send_bytes(request, (size_t)n + VALUE + 2);
}

static void ask_get(uint32_t item)
{
    char request[128];
    int n = snprintf(request, sizeof(request), "*2\r\n$3\r\nGET\r\n$8\r\n%08" PRIx32 "\r\n", item);

    send_bytes(request, (size_t)n);
}

static void take_bytes(char *out, size_t len)
{
    while (len) {
        size_t n;

        if (in_at == in_len) {
            ssize_t got;

            do
                got = recv(fd, in, sizeof(in), 0);
            while (got < 0 && errno == EINTR);
            if (got <= 0)
                die(got ? "no answer" : "the server closed the connection");
            in_at = 0;
            in_len = (size_t)got;
        }
        n = in_len - in_at < len ? in_len - in_at : len;
        memcpy(out, in + in_at, n);
        in_at += n;
        out += n;
        len -= n;
    }
}

/* One line of an answer, without its end */
static void take_line(char *line, size_t room)
{
    size_t n = 0;

    do {
        if (n + 1 >= room) {
            errno = EPROTO;
            die("a line of an answer");
        }
        take_bytes(line + n, 1);
    } while (line[n++] != '\n');
    line[n >= 2 ? n - 2 : 0] = '\0';
}

static void take_set(void)
{
    char line[256];

    take_line(line, sizeof(line));
    if (strcmp(line, "+OK")) {
        fprintf(stderr, "redisload: SET: %s\n", line);
        exit(1);
    }
}

static void take_get(uint32_t item)
{
    char line[256], want[VALUE], got[VALUE + 2];

    take_line(line, sizeof(line));
    if (line[0] != '$' || strtol(line + 1, NULL, 10) != (long)VALUE) {
        fprintf(stderr, "redisload: GET of item %" PRIu32 ": %s\n", item, line);
        exit(1);
    }
    take_bytes(got, sizeof(got));
    make_value(want, item);
    wrong += memcmp(want, got, VALUE) != 0;
}

static void fill(uint32_t items)
{
    for (uint32_t i = 0; i < items; i += AHEAD) {
        uint32_t n = items - i < AHEAD ? items - i : AHEAD;

        for (uint32_t k = 0; k < n; k++)
            ask_set(i + k);
        for (uint32_t k = 0; k < n; k++)
            take_set();
    }
}

static void run_load(uint32_t items)
{
    uint64_t start = now_us(), asked;

    while (!stop && n_answers < ANSWERS_MAX) {
        uint64_t r = next_random();
        uint32_t item = (uint32_t)(r >> 8) % items;

        asked = now_us();
        if (r % SET_EVERY) {
            ask_get(item);
            take_get(item);
        } else {
            ask_set(item);
            take_set();
        }
        at_us[n_answers] = asked - start;
        took_us[n_answers++] = (uint32_t)(now_us() - asked);
    }
}

int main(int argc, char **argv)
{
    struct sigaction act = { .sa_handler = on_redis_term };
    struct timespec wall;
    uint32_t items = argc == 4 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;

    if (!items) {
        fprintf(stderr, "usage: redisload HOST PORT ITEMS\n");
        return 2;
    }
    version = calloc(items, sizeof(*version));
    if (!version)
        die("memory");
    sigaction(SIGTERM, &act, NULL);
    connect_redis(argv[1], argv[2]);
    fill(items);
    puts("ready");
    fflush(stdout);
    clock_gettime(CLOCK_REALTIME, &wall);
    run_load(items);
    printf("{\"start\":%.6f,\"wrong\":%" PRIu64 ",\"answers\":[",
           (double)wall.tv_sec + (double)wall.tv_nsec / 1e9, wrong);
    for (uint64_t i = 0; i < n_answers; i++)
        printf("%s%" PRIu64 ",%" PRIu32, i ? "," : "", at_us[i], took_us[i]);
    printf("]}\n");
    close(fd);
    free(version);
    return 0;
}
