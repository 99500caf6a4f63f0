/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * serving.c - how to serve many peers: a thread for each queue, with poll and sendmsg, or a ring for all
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      serving [PEERS [SECONDS [ROUNDS]]]: for each way, in turn, what a GiB costs who serves, and
 *              how long a fault waits. Nothing of the library is in it: the least that a serving side does.
 * Picture      server: one process                              peers: a process each
 *              image <- 4 KiB a time, one at a time, a pause --- FAULT queue
 *                    <- PIECE a time, WINDOW in flight --------- PREFILL queue
 * Ways         threads   a thread for each queue: poll, recv, sendmsg, as rdma/tcp_queue.c has it
 *              nice      the same, but PREFILL's threads have the CPUs that FAULT's leave (nice 10)
 *              ring      one thread, io_uring: a receive and a sendmsg in flight for each queue
 *              ring-zc   the same with SENDMSG_ZC, which over the loopback copies all the same
 *              rings     two threads with a ring each: one for all FAULT queues, one for all PREFILL
 *              A way that the kernel does not have or permit is left out, and said.
 * Figures      CPU time of the server's process a GiB that it sent; faults of all peers together.
 */
#include <fcntl.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#define IMAGE (64u << 20)
#define PAGE 4096u
#define PIECE (512u << 10)
#define WINDOW 4u
#define PAUSE_NS 2000000
#define PEERS_MAX 128u
#define FAULTS_MAX 100000u
#define ASKED_MAX 16u

struct request {
    uint64_t offset, len;
};

struct queue {
    int fd;
    bool is_fault;
    struct request in[ASKED_MAX], todo[ASKED_MAX];
    size_t have;         /* bytes of in[] */
    unsigned first, n;   /* of todo[] */
    size_t sent;         /* of the first */
    bool sending;
    unsigned notices;    /* the kernel may still read what was sent */
    struct msghdr msg;
    struct iovec iov[2];
};

struct shared {
    atomic_bool stop;
    atomic_uint n_faults;
    uint64_t fault_ns[FAULTS_MAX];
};

static uint8_t *image;
static struct shared *shared;
static struct queue queue[2 * PEERS_MAX];
static unsigned n_queues;
static _Atomic uint64_t sent_bytes;
static bool is_nice;

/* --- peers --- */

static int get(int fd, void *buf, size_t len)
{
    for (uint8_t *to = buf; len;) {
        ssize_t n = recv(fd, to, len, 0);
        if (n <= 0)
            return -1;
        to += n;
        len -= (size_t)n;
    }
    return 0;
}

static void *fault_main(void *arg)
{
    unsigned seed = (unsigned)getpid();
    int fd = *(int *)arg;
    struct request r = {.len = PAGE}, echo;
    uint8_t page[PAGE];

    while (!atomic_load(&shared->stop)) {
        r.offset = (uint64_t)(rand_r(&seed) % (int)(IMAGE / PAGE)) * PAGE;
        uint64_t start = ff_now_ns();
        if (send(fd, &r, sizeof(r), MSG_NOSIGNAL) != sizeof(r) || get(fd, &echo, sizeof(echo)) ||
            get(fd, page, sizeof(page)))
            break;
        uint64_t took = ff_now_ns() - start;
        unsigned i = atomic_fetch_add(&shared->n_faults, 1);
        if (i < FAULTS_MAX)
            shared->fault_ns[i] = took;
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    return NULL;
}

static int connect_to(const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

    if (fd < 0 || connect(fd, (const struct sockaddr *)to, sizeof(*to)) ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)))
        die("connect");
    return fd;
}

_Noreturn static void peer(const struct sockaddr_in *to)
{
    struct request r = {.len = PIECE}, echo;
    uint8_t *piece = malloc(PIECE);
    int fault = connect_to(to), fd = connect_to(to);
    pthread_t t;

    if (!piece || pthread_create(&t, NULL, fault_main, &fault))
        die("thread");
    for (unsigned asked = 0, got = 0; !atomic_load(&shared->stop); got++) {
        for (; asked - got < WINDOW; asked++) {
            r.offset = (uint64_t)asked % (IMAGE / PIECE) * PIECE;
            if (send(fd, &r, sizeof(r), MSG_NOSIGNAL) != sizeof(r))
                _exit(0);
        }
        if (get(fd, &echo, sizeof(echo)) || get(fd, piece, PIECE))
            break;
    }
    _exit(0);
}

/* --- the serving side --- */

/* Of what was received: whole requests become replies */
static void parse(struct queue *q, size_t n)
{
    size_t at = 0;

    q->have += n;
    for (; q->have - at >= sizeof(struct request) && q->n < ASKED_MAX; at += sizeof(struct request)) {
        struct request *r = &q->todo[(q->first + q->n++) % ASKED_MAX];
        memcpy(r, (uint8_t *)q->in + at, sizeof(*r));
        if (r->len > PIECE || r->offset > IMAGE - r->len)
            die("a request that is none");
    }
    q->have -= at;
    memmove(q->in, (uint8_t *)q->in + at, q->have);
}

/* What is left of the first reply */
static void fill_message(struct queue *q)
{
    struct request *r = &q->todo[q->first];
    size_t head = sizeof(*r) - (q->sent < sizeof(*r) ? q->sent : sizeof(*r));
    size_t body = q->sent + head - sizeof(*r);

    q->iov[0] = (struct iovec){(uint8_t *)r + sizeof(*r) - head, head};
    q->iov[1] = (struct iovec){image + r->offset + body, r->len - body};
    q->msg = (struct msghdr){.msg_iov = head ? q->iov : q->iov + 1, .msg_iovlen = head ? 2 : 1};
}

static void was_sent(struct queue *q, size_t n)
{
    q->sent += n;
    atomic_fetch_add(&sent_bytes, n);
    if (q->sent < sizeof(struct request) + q->todo[q->first].len)
        return;
    q->sent = 0;
    q->first = (q->first + 1) % ASKED_MAX;
    q->n--;
}

static void *thread_main(void *arg)
{
    struct queue *q = arg;
    struct pollfd p = {.fd = q->fd};

    if (is_nice && !q->is_fault)
        setpriority(PRIO_PROCESS, 0, 10); /* of this thread alone, on Linux */
    for (;;) {
        p.events = (short)((q->n < ASKED_MAX ? POLLIN : 0) | (q->n ? POLLOUT : 0));
        if (poll(&p, 1, -1) < 0)
            die("poll");
        ssize_t n = 0;
        if (q->n < ASKED_MAX) {
            n = recv(q->fd, (uint8_t *)q->in + q->have, sizeof(q->in) - q->have, MSG_DONTWAIT);
            if (!n || (n < 0 && errno != EAGAIN))
                return NULL;
            parse(q, n > 0 ? (size_t)n : 0);
        }
        while (q->n) {
            fill_message(q);
            n = sendmsg(q->fd, &q->msg, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0 && errno != EAGAIN)
                return NULL;
            if (n < 0)
                break;
            was_sent(q, (size_t)n);
        }
    }
}

static void serve_by_threads(void)
{
    pthread_t t[2 * PEERS_MAX];

    for (unsigned i = 0; i < n_queues; i++)
        if (pthread_create(&t[i], NULL, thread_main, &queue[i]))
            die("thread");
    for (unsigned i = 0; i < n_queues; i++)
        pthread_join(t[i], NULL);
}

static struct io_uring_sqe *next_sqe(struct io_uring *ring)
{
    struct io_uring_sqe *e = io_uring_get_sqe(ring);

    while (!e) {
        if (io_uring_submit(ring) < 0)
            die("io_uring_submit");
        e = io_uring_get_sqe(ring);
    }
    return e;
}

static void arm_recv(struct io_uring *ring, unsigned i)
{
    struct queue *q = &queue[i];
    struct io_uring_sqe *e = next_sqe(ring);

    io_uring_prep_recv(e, q->fd, (uint8_t *)q->in + q->have, sizeof(q->in) - q->have, 0);
    io_uring_sqe_set_data64(e, 2 * i);
}

static void arm_send(struct io_uring *ring, unsigned i, bool zc)
{
    struct queue *q = &queue[i];
    struct io_uring_sqe *e = next_sqe(ring);

    fill_message(q);
    if (zc && q->todo[q->first].len > PAGE)
        io_uring_prep_sendmsg_zc(e, q->fd, &q->msg, MSG_NOSIGNAL | MSG_WAITALL);
    else
        io_uring_prep_sendmsg(e, q->fd, &q->msg, MSG_NOSIGNAL | MSG_WAITALL);
    io_uring_sqe_set_data64(e, 2 * i + 1);
    q->sending = true;
}

enum which { FAULTS = 1, PREFILLS = 2, ALL = 3 };

static bool is_of(const struct queue *q, enum which which)
{
    return which & (q->is_fault ? FAULTS : PREFILLS);
}

static void serve_by_ring(enum which which, bool zc)
{
    struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};
    struct io_uring_cqe *c;
    struct io_uring ring;
    unsigned open = 0;

    if (io_uring_queue_init_params(1024, &ring, &p) && io_uring_queue_init(1024, &ring, 0))
        die("io_uring_queue_init");
    for (unsigned i = 0; i < n_queues; i++) {
        if (!is_of(&queue[i], which))
            continue;
        arm_recv(&ring, i);
        open++;
    }
    while (open) {
        if (io_uring_submit_and_wait(&ring, 1) < 0 && errno != EINTR)
            die("io_uring_submit_and_wait");
        while (!io_uring_peek_cqe(&ring, &c)) {
            unsigned i = (unsigned)c->user_data / 2, flags = c->flags;
            bool is_send = c->user_data & 1;
            struct queue *q = &queue[i];
            int n = c->res;
            io_uring_cqe_seen(&ring, c);
            if (flags & IORING_CQE_F_NOTIF) { /* a reply's header is in todo[]: it waited for this */
                q->notices--;
            } else if (n <= 0) { /* of the two that a queue has in flight the receive counts */
                open -= !is_send;
                q->sending = false;
                q->n = 0;
                continue;
            } else if (is_send) {
                q->sending = false;
                q->notices += !!(flags & IORING_CQE_F_MORE);
                was_sent(q, (size_t)n);
            } else {
                parse(q, (size_t)n);
                arm_recv(&ring, i);
            }
            if (q->n && !q->sending && !q->notices)
                arm_send(&ring, i, zc);
        }
    }
    io_uring_queue_exit(&ring);
}

static void *faults_main(void *arg)
{
    serve_by_ring(FAULTS, false);
    return arg;
}

static void serve_by_rings(void)
{
    pthread_t t;

    if (pthread_create(&t, NULL, faults_main, NULL))
        die("thread");
    serve_by_ring(PREFILLS, false);
    pthread_join(t, NULL);
}

/* --- one round of one way --- */

struct result {
    double cpu_s_gib, gib_s, p50_us, p99_us, max_us;
};

static double cpu_s(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void *stop_main(void *arg)
{
    sleep(*(unsigned *)arg);
    atomic_store(&shared->stop, true);
    for (unsigned i = 0; i < n_queues; i++)
        shutdown(queue[i].fd, SHUT_RDWR);
    return NULL;
}

static struct result one(const char *way, unsigned peers, unsigned seconds)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int ls = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    socklen_t len = sizeof(at);
    pthread_t t;

    memset(queue, 0, sizeof(queue));
    atomic_store(&shared->stop, false);
    atomic_store(&shared->n_faults, 0);
    atomic_store(&sent_bytes, 0);
    if (ls < 0 || bind(ls, (struct sockaddr *)&at, sizeof(at)) || listen(ls, 512) ||
        getsockname(ls, (struct sockaddr *)&at, &len))
        die("listen");
    for (unsigned i = 0; i < peers; i++)
        if (!fork())
            peer(&at);
    for (n_queues = 0; n_queues < 2 * peers; n_queues++) {
        struct queue *q = &queue[n_queues];
        struct request first;
        q->fd = accept4(ls, NULL, NULL, SOCK_CLOEXEC);
        if (q->fd < 0 || setsockopt(q->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) ||
            recv(q->fd, &first, sizeof(first), MSG_PEEK | MSG_WAITALL) != sizeof(first))
            die("accept");
        q->is_fault = first.len == PAGE;
    }
    double cpu = cpu_s();
    uint64_t start = ff_now_ns();
    if (pthread_create(&t, NULL, stop_main, &seconds))
        die("thread");
    is_nice = !strcmp(way, "nice");
    if (is_nice || !strcmp(way, "threads"))
        serve_by_threads();
    else if (!strcmp(way, "rings"))
        serve_by_rings();
    else
        serve_by_ring(ALL, !strcmp(way, "ring-zc"));
    double took = (double)(ff_now_ns() - start) / 1e9, gib = (double)sent_bytes / (1u << 30);
    cpu = cpu_s() - cpu;
    pthread_join(t, NULL);
    while (wait(NULL) > 0)
        ;
    for (unsigned i = 0; i < n_queues; i++)
        close(queue[i].fd);
    close(ls);
    size_t n = atomic_load(&shared->n_faults);
    n = n < FAULTS_MAX ? n : FAULTS_MAX;
    if (!n)
        die("no fault was answered");
    qsort(shared->fault_ns, n, sizeof(uint64_t), compare);
    return (struct result){cpu / gib, gib / took, (double)shared->fault_ns[n / 2] / 1e3,
                           (double)shared->fault_ns[n * 99 / 100] / 1e3,
                           (double)shared->fault_ns[n - 1] / 1e3};
}

static bool way_is_there(const char *way)
{
    bool is_ring = !strncmp(way, "ring", 4);
    struct io_uring_probe *p = is_ring ? io_uring_get_probe() : NULL;
    bool yes = !is_ring ||
               (p && io_uring_opcode_supported(p, strcmp(way, "ring-zc") ? IORING_OP_SENDMSG
                                                                         : IORING_OP_SENDMSG_ZC));

    free(p);
    return yes;
}

int main(int argc, char **argv)
{
    static const char *const ways[] = {"threads", "nice", "ring", "rings", "ring-zc"};
    unsigned peers = argc > 1 ? (unsigned)atoi(argv[1]) : 32, seconds = argc > 2 ? (unsigned)atoi(argv[2]) : 4;
    unsigned rounds = argc > 3 ? (unsigned)atoi(argv[3]) : 5;

    if (argc > 4 || !peers || peers > PEERS_MAX || !seconds || !rounds) {
        fprintf(stderr, "usage: serving [PEERS (1 to %u) [SECONDS [ROUNDS]]]\n", PEERS_MAX);
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    image = mmap(NULL, IMAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (image == MAP_FAILED || shared == MAP_FAILED)
        die("mmap");
    memset(image, 0x5a, IMAGE);
    printf("%u peers, 2 queues each, %u s; faults of %u KiB beside pieces of %u KiB\n", peers, seconds,
           PAGE >> 10, PIECE >> 10);
    printf("%-8s %10s %8s %12s %12s %12s\n", "way", "CPU s/GiB", "GiB/s", "fault p50 us", "p99 us", "max us");
    for (unsigned r = 0; r < rounds; r++)
        for (unsigned w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
            if (!way_is_there(ways[w])) {
                printf("%-8s this kernel does not have it, or does not permit it\n", ways[w]);
                continue;
            }
            struct result x = one(ways[w], peers, seconds);
            printf("%-8s %10.3f %8.2f %12.0f %12.0f %12.0f\n", ways[w], x.cpu_s_gib, x.gib_s, x.p50_us,
                   x.p99_us, x.max_us);
            fflush(stdout);
        }
    return 0;
}
