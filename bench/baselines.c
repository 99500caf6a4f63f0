/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * baselines.c - what this machine can do at best: userfaultfd, TCP, memcpy; and warm its memory
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      baselines local          one JSON object: a bare userfaultfd COPY round trip
 *              (handler
 *                                    on the CPU of the faulting thread, and on another one), memcpy
 *              baselines serve HOST     print a port, serve one `baselines tcp`, end
 *              baselines tcp HOST PORT  one JSON object: TCP round trip, bandwidth of one stream
 *              baselines warm MIB       touch so much anonymous memory twice, give it back but for
 *                                       one
 *                                    page in KEEP, say so, wait for the end of stdin
 *
 *              Nothing of the library is in here: these are the baselines that it stands on.
 *
 * Limits       PAGES faults, ROUNDS round trips, STREAM_MS of stream: about half a second in all.
 *              A wait on a socket ends after WAIT_S, the program after TOTAL_S.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/userfaultfd.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define PAGE 4096u
#define PAGES 4096u
#define ROUNDS 4000u
#define STREAM_MS 200u
#define BLOCK ((size_t)256 << 10)
#define COPY_BYTES ((size_t)64 << 20)
#define WAIT_S 10
#define TOTAL_S 300
#define KEEP 256u /* pages; less than what a virtual machine reports to its host as free */

static void print_latency(const char *name, uint64_t *ns, size_t n)
{
    qsort(ns, n, sizeof(*ns), compare);
    printf("\"%s_p50_us\":%.3f,\"%s_p99_us\":%.3f", name, (double)ns[n / 2] / 1e3, name,
           (double)ns[n * 99 / 100] / 1e3);
}

static void *map(size_t len)
{
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        die("mmap");
    return p;
}

/* --- userfaultfd --- */

struct handler {
    int fd, cpu;
    const uint8_t *page;
};

static void pin(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set) < 0)
        die("sched_setaffinity");
}

static void *handle_faults(void *arg)
{
    const struct handler *h = arg;
    struct uffd_msg msg;

    pin(h->cpu);
    for (unsigned i = 0; i < PAGES; i++) {
        struct uffdio_copy copy = { .src = (uintptr_t)h->page, .len = PAGE };

        if (read(h->fd, &msg, sizeof(msg)) != sizeof(msg))
            die("read userfaultfd");
        copy.dst = msg.arg.pagefault.address & ~(uint64_t)(PAGE - 1);
        if (ioctl(h->fd, UFFDIO_COPY, &copy) < 0)
            die("UFFDIO_COPY");
    }
    return NULL;
}

static int open_uffd(void)
{
    struct uffdio_api api = { .api = UFFD_API };
    int dev = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC), fd;

    fd = dev < 0 ? -1 : ioctl(dev, USERFAULTFD_IOC_NEW, O_CLOEXEC);
    if (dev >= 0)
        close(dev);
    if (fd < 0)
        fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) < 0)
        die("UFFDIO_API");
    return fd;
}

/* False when it may not be used here */
static bool fault_round_trip(const char *name, int cpu, int handler_cpu)
{
    static uint64_t ns[PAGES];
    struct handler h = { .fd = open_uffd(), .cpu = handler_cpu };
    struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
    volatile uint8_t *area;
    pthread_t thread;

    if (h.fd < 0)
        return false;
    h.page = memset(map(PAGE), 1, PAGE);
    area = map((size_t)PAGES * PAGE);
    madvise((void *)area, (size_t)PAGES * PAGE, MADV_NOHUGEPAGE);
    reg.range.start = (uintptr_t)area;
    reg.range.len = (uint64_t)PAGES * PAGE;
    if (ioctl(h.fd, UFFDIO_REGISTER, &reg) < 0)
        die("UFFDIO_REGISTER");
    if (pthread_create(&thread, NULL, handle_faults, &h))
        die("pthread_create");
    pin(cpu);
    for (unsigned i = 0; i < PAGES; i++) {
        uint64_t start = ff_now_ns();

        (void)area[(size_t)i * PAGE];
        ns[i] = ff_now_ns() - start;
    }
    pthread_join(thread, NULL);
    print_latency(name, ns, PAGES);
    munmap((void *)area, (size_t)PAGES * PAGE);
    munmap((void *)h.page, PAGE);
    close(h.fd);
    return true;
}

static void copy_bandwidth(void)
{
    uint8_t *a = memset(map(COPY_BYTES), 1, COPY_BYTES);
    uint8_t *b = memset(map(COPY_BYTES), 2, COPY_BYTES);
    uint64_t best = UINT64_MAX;

    for (int i = 0; i < 5; i++) {
        uint64_t start = ff_now_ns();

        memcpy(b, a, COPY_BYTES);
        __asm__ volatile("" : : "r"(b) : "memory");
        start = ff_now_ns() - start;
        best = start < best ? start : best;
    }
    printf("\"memcpy_mib_s\":%.0f", (double)(COPY_BYTES >> 20) * 1e9 / (double)best);
    munmap(a, COPY_BYTES);
    munmap(b, COPY_BYTES);
}

static int local(void)
{
    cpu_set_t all;
    int cpu[2], n = 0;

    if (sched_getaffinity(0, sizeof(all), &all) < 0)
        die("sched_getaffinity");
    for (int i = 0; i < CPU_SETSIZE && n < 2; i++)
        if (CPU_ISSET(i, &all))
            cpu[n++] = i;
    printf("{");
    if (fault_round_trip("uffd_same_cpu", cpu[0], cpu[0]))
        printf(",");
    if (n == 2 && fault_round_trip("uffd_other_cpu", cpu[0], cpu[1]))
        printf(",");
    sched_setaffinity(0, sizeof(all), &all);
    copy_bandwidth();
    printf("}\n");
    return 0;
}

/* --- TCP: one byte there and back, then a stream --- */

static int make_socket(const char *host, const char *port, struct addrinfo **res)
{
    struct addrinfo want = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST };
    struct timeval wait = { .tv_sec = WAIT_S };
    int rc = getaddrinfo(host, port, &want, res), fd;

    if (rc) {
        fprintf(stderr, "baselines: %s: %s\n", host, gai_strerror(rc));
        exit(1);
    }
    fd = socket((*res)->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) < 0)
        die("socket");
    return fd;
}

static int serve_pages(const char *host)
{
    struct addrinfo *res;
    struct sockaddr_storage own;
    socklen_t len = sizeof(own);
    int ls = make_socket(host, "0", &res), fd, one = 1;
    char *block = malloc(BLOCK), port[16];

    if (!block || bind(ls, res->ai_addr, res->ai_addrlen) < 0 || listen(ls, 1) < 0 ||
        getsockname(ls, (struct sockaddr *)&own, &len) < 0)
        die("listen");
    if (getnameinfo((struct sockaddr *)&own, len, NULL, 0, port, sizeof(port), NI_NUMERICSERV))
        die("getnameinfo");
    puts(port);
    fflush(stdout);
    fd = accept(ls, NULL, NULL);
    if (fd < 0)
        die("accept");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    for (unsigned i = 0; i < ROUNDS; i++)
        if (recv(fd, block, 1, 0) != 1 || send(fd, block, 1, MSG_NOSIGNAL) != 1)
            die("ping");
    while (recv(fd, block, BLOCK, 0) > 0)
        ;
    send(fd, block, 1, MSG_NOSIGNAL); /* all of it has come */
    freeaddrinfo(res);
    free(block);
    close(fd);
    close(ls);
    return 0;
}

static int tcp(const char *host, const char *port)
{
    static uint64_t ns[ROUNDS];
    struct addrinfo *res;
    uint64_t start, bytes = 0, took;
    int fd = make_socket(host, port, &res), one = 1;
    char *block = calloc(1, BLOCK);

    if (!block || connect(fd, res->ai_addr, res->ai_addrlen) < 0)
        die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    for (unsigned i = 0; i < ROUNDS; i++) {
        start = ff_now_ns();
        if (send(fd, block, 1, MSG_NOSIGNAL) != 1 || recv(fd, block, 1, 0) != 1)
            die("ping");
        ns[i] = ff_now_ns() - start;
    }
    start = ff_now_ns();
    while (ff_now_ns() - start < STREAM_MS * 1000000ull) {
        ssize_t n = send(fd, block, BLOCK, MSG_NOSIGNAL);

        if (n < 0)
            die("send");
        bytes += (uint64_t)n;
    }
    shutdown(fd, SHUT_WR);
    if (recv(fd, block, 1, 0) != 1)
        die("end of the stream");
    took = ff_now_ns() - start;
    printf("{");
    print_latency("tcp_round_trip", ns, ROUNDS);
    printf(",\"tcp_mib_s\":%.1f}\n", (double)bytes * 1e9 / (double)took / (1 << 20));
    freeaddrinfo(res);
    free(block);
    close(fd);
    return 0;
}

/* The host of a virtual machine takes free memory away, in blocks of 2 MiB or so, and giving it
 * back is slow. Of each block one page stays ours: what is free around it stays warm. */
static int warm(const char *mib)
{
    size_t len = strtoull(mib, NULL, 10) << 20;
    uint8_t *p = map(len ? len : PAGE);
    char c;

    madvise(p, len, MADV_NOHUGEPAGE);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < len; i += PAGE)
            *(volatile uint8_t *)(p + i) = 1;
    for (size_t i = 0; i < len; i += (size_t)KEEP * PAGE)
        madvise(p + i + PAGE, (size_t)(KEEP - 1) * PAGE, MADV_DONTNEED);
    printf("warm\n");
    fflush(stdout);
    alarm(0);
    while (read(STDIN_FILENO, &c, 1) > 0)
        ;
    return 0;
}

int main(int argc, char **argv)
{
    alarm(TOTAL_S);
    if (argc == 2 && !strcmp(argv[1], "local"))
        return local();
    if (argc == 3 && !strcmp(argv[1], "serve"))
        return serve_pages(argv[2]);
    if (argc == 4 && !strcmp(argv[1], "tcp"))
        return tcp(argv[2], argv[3]);
    if (argc == 3 && !strcmp(argv[1], "warm"))
        return warm(argv[2]);
    fprintf(stderr, "usage: baselines local | serve HOST | tcp HOST PORT | warm MIB\n");
    return 2;
}
