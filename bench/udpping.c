/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * udpping.c - what a move looks like from outside: numbered UDP packets, one each 500 us
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      udpping HOST PORT sends packet n at start + n x 500 us, whatever has come back, to
 *              a server that echoes (tests/guests/linux/gl_udp.c), until SIGTERM; then waits
 *              LAST_MS for what is under way, and prints one JSON object:
 *                sent, lost       packets; lost: no answer came
 *                interval_us
 *                first_lost_ms    of the longest row of lost ones, since the start; -1: none
 *                longest_lost     so many in a row
 *                silence_ms       longest time without an answer
 *                rtt_p50_us, rtt_p99_us, rtt_max_us
 *                slots            [[ms since the start, answers], ...] by 100 ms, by arrival
 *                start            CLOCK_REALTIME of packet 0, seconds
 *
 * Limits       PACKETS_MAX packets, 10 minutes.
 * Sources      the method of "Migration Techniques in HPC Environments": downtime is lost packets
 *              times the interval
 */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define INTERVAL_NS 500000ull
#define LAST_MS 1000
#define SLOT_MS 100
#define PACKETS_MAX (10ull * 60 * 1000000000 / INTERVAL_NS)
#define SLOTS (PACKETS_MAX * INTERVAL_NS / 1000000 / SLOT_MS + LAST_MS / SLOT_MS + 1)

static volatile sig_atomic_t stop;
static uint64_t sent_at[PACKETS_MAX], rtt[PACKETS_MAX]; /* rtt 0: no answer */
static uint32_t slots[SLOTS];

static void on_term(int sig)
{
    (void)sig;
    stop = 1;
}

static int open_udp(const char *host, const char *port)
{
    struct addrinfo want = { .ai_socktype = SOCK_DGRAM }, *res;
    int rc = getaddrinfo(host, port, &want, &res), fd;

    if (rc) {
        fprintf(stderr, "udpping: %s: %s\n", host, gai_strerror(rc));
        exit(1);
    }
    fd = socket(res->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, res->ai_addr, res->ai_addrlen) < 0)
        die("connect");
    freeaddrinfo(res);
    return fd;
}

/* Take what has come; a refusal by ICMP is a lost packet like any other. */
static void take_echoes(int fd, uint64_t n, uint64_t start, uint64_t *heard, uint64_t *silence)
{
    uint64_t seq;

    while (recv(fd, &seq, sizeof(seq), MSG_DONTWAIT) == sizeof(seq)) {
        uint64_t at = ff_now_ns();

        if (seq >= n || rtt[seq])
            continue;
        rtt[seq] = at - sent_at[seq];
        slots[(at - start) / 1000000 / SLOT_MS]++;
        *silence = at - *heard > *silence ? at - *heard : *silence;
        *heard = at;
    }
}

static void wait_until(int fd, uint64_t at)
{
    uint64_t now = ff_now_ns();
    struct pollfd p = { .fd = fd, .events = POLLIN };
    struct timespec left = { .tv_nsec = at > now ? (long)(at - now) : 0 };

    ppoll(&p, 1, &left, NULL);
}

static void print_silence(uint64_t n, uint64_t silence, double start)
{
    uint64_t lost = 0, row = 0, longest = 0, end = 0, got = 0;

    for (uint64_t i = 0; i < n; i++) {
        row = rtt[i] ? 0 : row + 1;
        lost += !rtt[i];
        if (row > longest) {
            longest = row;
            end = i + 1;
        }
    }
    printf("{\"sent\":%llu,\"lost\":%llu,\"interval_us\":%llu,\"longest_lost\":%llu,"
           "\"first_lost_ms\":%.1f,\"silence_ms\":%.3f,\"start\":%.6f,\"slots\":[",
           (unsigned long long)n, (unsigned long long)lost, INTERVAL_NS / 1000,
           (unsigned long long)longest,
           longest ? (double)((end - longest) * INTERVAL_NS) / 1e6 : -1, (double)silence / 1e6,
           start);
    for (uint64_t i = 0; i < SLOTS && i * SLOT_MS * 1000000 < n * INTERVAL_NS; i++)
        printf("%s[%llu,%u]", i ? "," : "", (unsigned long long)i * SLOT_MS, slots[i]);
    for (uint64_t i = 0; i < n; i++)
        if (rtt[i])
            rtt[got++] = rtt[i];
    qsort(rtt, got, sizeof(*rtt), compare);
    printf("],\"rtt_p50_us\":%.1f,\"rtt_p99_us\":%.1f,\"rtt_max_us\":%.1f}\n",
           got ? (double)rtt[got / 2] / 1e3 : 0, got ? (double)rtt[got * 99 / 100] / 1e3 : 0,
           got ? (double)rtt[got - 1] / 1e3 : 0);
}

int main(int argc, char **argv)
{
    uint64_t n = 0, start, heard, silence = 0, end;
    struct sigaction act = { .sa_handler = on_term };
    struct timespec wall;
    int fd;

    if (argc != 3) {
        fprintf(stderr, "usage: udpping HOST PORT\n");
        return 2;
    }
    fd = open_udp(argv[1], argv[2]);
    sigaction(SIGTERM, &act, NULL);
    clock_gettime(CLOCK_REALTIME, &wall);
    start = heard = ff_now_ns();
    while (!stop && n < PACKETS_MAX) {
        uint64_t due = start + n * INTERVAL_NS;

        if (ff_now_ns() < due) {
            wait_until(fd, due);
        } else {
            sent_at[n] = ff_now_ns();
            n++;
            send(fd, &(uint64_t){ n - 1 }, sizeof(uint64_t), MSG_DONTWAIT);
        }
        take_echoes(fd, n, start, &heard, &silence);
    }
    end = ff_now_ns() + LAST_MS * 1000000ull;
    while (ff_now_ns() < end) {
        wait_until(fd, ff_now_ns() + 10000000);
        take_echoes(fd, n, start, &heard, &silence);
    }
    print_silence(n, silence, (double)wall.tv_sec + (double)wall.tv_nsec / 1e9);
    close(fd);
    return 0;
}
