/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * shaper.c - a link with rate, delay and loss between two network namespaces, without netem
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      for kernels without sch_netem. Packets that arrive in either namespace are held in
 *              the kernel (NFQUEUE), this program says when each goes on: their bytes are never
 *              copied, so that it carries 10 Gbit/s and more on a part of a CPU.
 *
 *              shaper BITS_PER_S DELAY_NS LOSS_PPM QUEUE_BYTES fifo|prio NETNS_A NETNS_B
 *
 *              Prints "ready" and works until its standard input ends; then what it did, and how
 *              many packets came LATE_NS after their time: the machine was too busy for the link.
 *              The rule that sends packets
 *              here is the caller's: iptables -A INPUT -j NFQUEUE --queue-num QUEUE.
 *
 * Picture      each way   packet -> lost? -> does it fit? -> the line, one after the other -> delay
 *              time       arrived            else dropped    busy until its last bit
 *                         delivered
 *
 *              fifo       one queue: that of a switch. A packet never overtakes another, so one
 *                         verdict lets all up to its id go on.
 *              prio       two: what has a DSCP goes first. That of the sending host, where the
 *                         line is its own and no switch in between is slower: pfifo_fast has
 *                         bands by SO_PRIORITY, and the connection that sets this sets a DSCP
 *                         as well. An adapter has AHEAD_NS of packets already, as BQL lets it.
 *
 * Limits       A packet of 64 KiB is one piece: it comes when its last bit does, is lost as a whole
 *              (as with netem). Its headers are counted as often as it will be cut.
 *              A sleep here ends 20 to 30 us late: it is begun EARLY_NS shorter. Less than NEAR_NS
 *              is spun. Not at real-time priority: the kernel takes that away for 40 ms each
 *              second.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define QUEUE 79        /* of NFQUEUE; testbed.py has it too */
#define HELD_MAX 65536u /* packets in one direction */
#define SEGMENT 1448u   /* TCP payload of a packet of 1500 bytes */
#define HEADERS 66u     /* Ethernet, IP, TCP with time stamps */
#define ETHERNET 14u
#define EARLY_NS 22000
#define NEAR_NS 5000
#define AHEAD_NS 20000
#define LATE_NS 100000
#define BANDS 2u
#define BATCH 32u
#define MESSAGE 512u

struct link {
    double ns_per_byte; /* 0: no limit */
    uint64_t delay_ns, queue_bytes;
    uint32_t loss_ppm;
    bool prio;
};

/* A ring: n from first on */
struct ring {
    struct held {
        uint64_t ns; /* in a band: it came; under way: it arrives */
        uint32_t id, bytes;
    } held[HELD_MAX];
    uint32_t first, n;
    uint64_t bytes;
};

struct way {
    int fd;
    uint64_t busy_ns;        /* until then the line is taken */
    struct ring band[BANDS]; /* waiting for it, in prio only */
    struct ring sent;        /* it has been decided when they arrive */
    uint64_t dropped, lost, passed, late;
};

static struct way ways[2];

/* --- netlink --- */

struct request {
    struct nlmsghdr head;
    struct nfgenmsg gen;
    uint8_t attr[64];
};

static void netlink_begin(struct request *r, unsigned type, unsigned flags)
{
    memset(r, 0, sizeof(*r));
    r->head = (struct nlmsghdr){ .nlmsg_len = NLMSG_LENGTH(sizeof(r->gen)),
                                 .nlmsg_type = (uint16_t)(NFNL_SUBSYS_QUEUE << 8 | type),
                                 .nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags) };
    r->gen = (struct nfgenmsg){ .version = NFNETLINK_V0, .res_id = htons(QUEUE) };
}

static void put(struct request *r, unsigned type, const void *data, size_t len)
{
    struct nlattr *a = (struct nlattr *)((uint8_t *)r + r->head.nlmsg_len);

    a->nla_type = (uint16_t)type;
    a->nla_len = (uint16_t)(NLA_HDRLEN + len);
    memcpy((uint8_t *)a + NLA_HDRLEN, data, len);
    r->head.nlmsg_len += NLA_ALIGN(a->nla_len);
}

static void put_u32(struct request *r, unsigned type, uint32_t value)
{
    value = htonl(value);
    put(r, type, &value, sizeof(value));
}

static void transmit(int fd, const struct request *r)
{
    if (send(fd, r, r->head.nlmsg_len, 0) < 0)
        die("send to netlink");
}

/* With NLM_F_ACK: what the kernel says to it */
static void netlink_ask(int fd, const struct request *r)
{
    struct {
        struct nlmsghdr head;
        struct nlmsgerr err;
        uint8_t more[256];
    } answer;

    transmit(fd, r);
    if (recv(fd, &answer, sizeof(answer), 0) < (ssize_t)NLMSG_LENGTH(sizeof(answer.err)) ||
        answer.head.nlmsg_type != NLMSG_ERROR)
        die("answer of netlink");
    errno = -answer.err.error;
    if (errno)
        die("NFQUEUE");
}

/* A socket of the namespace @netns; its packets of queue QUEUE come to it */
static int open_queue(const char *netns)
{
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), size = 16 << 20, one = 1, fd, ns;
    struct nfqnl_msg_config_cmd bind_cmd = { .command = NFQNL_CFG_CMD_BIND, .pf = htons(AF_INET) };
    struct nfqnl_msg_config_params params = { .copy_range = htonl(20),
                                              .copy_mode = NFQNL_COPY_PACKET };
    struct sockaddr_nl any = { .nl_family = AF_NETLINK };
    struct request r;
    char path[256];

    snprintf(path, sizeof(path), "/run/netns/%s", netns);
    ns = open(path, O_RDONLY | O_CLOEXEC);
    if (own < 0 || ns < 0 || setns(ns, CLONE_NEWNET) < 0)
        die(path);
    fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
    if (fd < 0 || bind(fd, (struct sockaddr *)&any, sizeof(any)) < 0)
        die("netlink socket");
    if (setns(own, CLONE_NEWNET) < 0)
        die("back to the own namespace");
    close(own);
    close(ns);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
    setsockopt(fd, SOL_NETLINK, NETLINK_NO_ENOBUFS, &one, sizeof(one));

    netlink_begin(&r, NFQNL_MSG_CONFIG, NLM_F_ACK);
    put(&r, NFQA_CFG_CMD, &bind_cmd, sizeof(bind_cmd));
    netlink_ask(fd, &r);
    netlink_begin(&r, NFQNL_MSG_CONFIG, NLM_F_ACK);
    put(&r, NFQA_CFG_PARAMS, &params, sizeof(params));
    put_u32(&r, NFQA_CFG_QUEUE_MAXLEN, HELD_MAX);
    put_u32(&r, NFQA_CFG_FLAGS, NFQA_CFG_F_GSO);
    put_u32(&r, NFQA_CFG_MASK, NFQA_CFG_F_GSO);
    netlink_ask(fd, &r);
    return fd;
}

static void put_verdict(struct request *r, unsigned type, uint32_t id, uint32_t what)
{
    struct nfqnl_msg_verdict_hdr v = { .verdict = htonl(what), .id = htonl(id) };

    netlink_begin(r, type, 0);
    put(r, NFQA_VERDICT_HDR, &v, sizeof(v));
}

static void verdict(struct way *w, unsigned type, uint32_t id, uint32_t what)
{
    struct request r;

    put_verdict(&r, type, id, what);
    transmit(w->fd, &r);
}

/* Out of order: one each, in one message */
static void accept_all(struct way *w, const uint32_t *id, uint32_t n)
{
    uint8_t buf[BATCH * sizeof(struct request)];
    size_t len = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct request r;
        put_verdict(&r, NFQNL_MSG_VERDICT, id[i], NF_ACCEPT);
        memcpy(buf + len, &r, r.head.nlmsg_len);
        len += NLMSG_ALIGN(r.head.nlmsg_len);
    }
    if (send(w->fd, buf, len, 0) < 0)
        die("send to netlink");
}

/* --- the link --- */

/* What a packet of @ip_bytes takes on the line, cut to 1500 bytes */
static uint32_t on_the_line(uint32_t ip_bytes)
{
    uint32_t payload = ip_bytes > HEADERS - ETHERNET ? ip_bytes - (HEADERS - ETHERNET) : 0;
    uint32_t more = payload > SEGMENT ? (payload - 1) / SEGMENT : 0;

    return ip_bytes + ETHERNET + more * HEADERS;
}

static uint32_t random_ppm(void)
{
    static uint64_t x = 88172645463325252ull; /* xorshift: the same losses every time */

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return (uint32_t)((x >> 11) % 1000000);
}

static void ring_push(struct ring *r, struct held h)
{
    r->held[(r->first + r->n++) % HELD_MAX] = h;
    r->bytes += h.bytes;
}

static struct held pull(struct ring *r)
{
    struct held h = r->held[r->first];

    r->first = (r->first + 1) % HELD_MAX;
    r->n--;
    r->bytes -= h.bytes;
    return h;
}

/* @h takes the line, as soon as it is free */
static void put_on_line(const struct link *l, struct way *w, struct held h)
{
    w->busy_ns = (w->busy_ns > h.ns ? w->busy_ns : h.ns) +
                 (uint64_t)((double)h.bytes * l->ns_per_byte);
    h.ns = w->busy_ns + l->delay_ns;
    ring_push(&w->sent, h);
}

/* What the line takes by now, and a little ahead */
static void serve_way(const struct link *l, struct way *w, uint64_t now)
{
    while (w->busy_ns < now + AHEAD_NS && (w->band[0].n || w->band[1].n) && w->sent.n < HELD_MAX)
        put_on_line(l, w, pull(&w->band[!w->band[0].n]));
}

static void packet_arrived(const struct link *l, struct way *w, uint32_t id, uint32_t ip_bytes,
                           uint8_t tos, uint64_t now)
{
    struct held h = { .ns = now, .id = id, .bytes = on_the_line(ip_bytes) };
    struct ring *to = l->prio ? &w->band[!(tos >> 2)] : &w->sent;
    double waiting = (double)(l->prio ? to->bytes : 0);

    if (w->busy_ns > now && l->ns_per_byte > 0)
        waiting += (double)(w->busy_ns - now) / l->ns_per_byte;
    if (random_ppm() < l->loss_ppm) {
        w->lost++;
        verdict(w, NFQNL_MSG_VERDICT, id, NF_DROP);
    } else if (to->n == HELD_MAX || waiting + h.bytes > (double)l->queue_bytes) {
        w->dropped++;
        verdict(w, NFQNL_MSG_VERDICT, id, NF_DROP);
    } else if (l->prio) {
        ring_push(to, h);
    } else {
        put_on_line(l, w, h);
    }
}

static void deliver(const struct link *l, struct way *w, uint64_t now)
{
    uint32_t id[BATCH], n;

    do {
        for (n = 0; n < BATCH && w->sent.n && w->sent.held[w->sent.first].ns <= now; n++) {
            struct held h = pull(&w->sent);
            id[n] = h.id;
            w->late += now - h.ns > LATE_NS;
        }
        w->passed += n;
        if (n && l->prio)
            accept_all(w, id, n);
        else if (n)
            verdict(w, NFQNL_MSG_VERDICT_BATCH, id[n - 1], NF_ACCEPT);
    } while (n == BATCH);
}

static void parse_packet(const struct link *l, struct way *w, const uint8_t *p, size_t len,
                         uint64_t now)
{
    const struct nlmsghdr *h = (const void *)p;
    uint32_t id = 0, bytes = 0;
    uint8_t tos = 0;

    if (len < NLMSG_LENGTH(sizeof(struct nfgenmsg)) ||
        h->nlmsg_type != (NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET))
        return;
    len = len < h->nlmsg_len ? len : h->nlmsg_len;
    for (size_t at = NLMSG_LENGTH(sizeof(struct nfgenmsg)); at + NLA_HDRLEN <= len;) {
        const struct nlattr *a = (const void *)(p + at);
        const void *data = p + at + NLA_HDRLEN;

        if (a->nla_len < NLA_HDRLEN || at + a->nla_len > len)
            break;
        if ((a->nla_type & NLA_TYPE_MASK) == NFQA_PACKET_HDR)
            id = ntohl(((const struct nfqnl_msg_packet_hdr *)data)->packet_id);
        else if ((a->nla_type & NLA_TYPE_MASK) == NFQA_CAP_LEN)
            bytes = ntohl(*(const uint32_t *)data);
        else if ((a->nla_type & NLA_TYPE_MASK) == NFQA_PAYLOAD && a->nla_len >= NLA_HDRLEN + 2)
            tos = ((const uint8_t *)data)[1];
        at += NLA_ALIGN(a->nla_len);
    }
    packet_arrived(l, w, id, bytes, tos, now);
}

static void receive_packets(const struct link *l, struct way *w)
{
    static uint8_t buf[BATCH][MESSAGE];
    struct iovec iov[BATCH];
    struct mmsghdr m[BATCH];
    int n;

    do {
        for (unsigned i = 0; i < BATCH; i++) {
            iov[i] = (struct iovec){ .iov_base = buf[i], .iov_len = MESSAGE };
            m[i] = (struct mmsghdr){ .msg_hdr = { .msg_iov = &iov[i], .msg_iovlen = 1 } };
        }
        n = recvmmsg(w->fd, m, BATCH, MSG_DONTWAIT, NULL);
        if (n < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
            die("receive from netlink");
        uint64_t now = ff_now_ns();
        for (int i = 0; i < n; i++)
            parse_packet(l, w, buf[i], m[i].msg_len, now);
    } while (n == (int)BATCH);
}

/* Until something is due, or has come; false: standard input has ended */
static bool wait_for_work(void)
{
    struct pollfd p[3] = { { .fd = ways[0].fd, .events = POLLIN },
                           { .fd = ways[1].fd, .events = POLLIN },
                           { .fd = STDIN_FILENO, .events = POLLIN } };
    uint64_t due = UINT64_MAX, now = ff_now_ns();

    for (int i = 0; i < 2; i++) {
        const struct way *w = &ways[i];
        if (w->sent.n && w->sent.held[w->sent.first].ns < due)
            due = w->sent.held[w->sent.first].ns;
        if ((w->band[0].n || w->band[1].n) && w->busy_ns - AHEAD_NS < due)
            due = w->busy_ns - AHEAD_NS;
    }
    if (due <= now)
        return true;
    uint64_t nap = due - now > EARLY_NS ? due - now - EARLY_NS : due - now > NEAR_NS ? 1 : 0;
    struct timespec ts = { .tv_sec = (time_t)(nap / 1000000000u),
                           .tv_nsec = (long)(nap % 1000000000u) };
    if (ppoll(p, 3, due == UINT64_MAX ? NULL : &ts, NULL) < 0 && errno != EINTR)
        die("ppoll");
    return !p[2].revents;
}

/* A link does not wait for a CPU: the highest priority, and soon when there is something to do */
static void go_first(void)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t slice_ns, deadline_ns, period_ns;
    } attr = { .size = sizeof(attr), .nice = -20, .slice_ns = 100000 };

    if (syscall(SYS_sched_setattr, 0, &attr, 0) < 0)
        fprintf(stderr, "shaper: no priority: %s\n", strerror(errno));
}

int main(int argc, char **argv)
{
    if (argc != 8) {
        fprintf(stderr, "usage: shaper BITS_PER_S DELAY_NS LOSS_PPM QUEUE_BYTES fifo|prio "
                        "NETNS_A NETNS_B\n");
        return 2;
    }
    double bits = strtod(argv[1], NULL);
    struct link l = { .ns_per_byte = bits > 0 ? 8e9 / bits : 0,
                      .delay_ns = strtoull(argv[2], NULL, 10),
                      .loss_ppm = (uint32_t)strtoul(argv[3], NULL, 10),
                      .queue_bytes = strtoull(argv[4], NULL, 10),
                      .prio = !strcmp(argv[5], "prio") };
    for (int i = 0; i < 2; i++)
        ways[i].fd = open_queue(argv[6 + i]);
    prctl(PR_SET_TIMERSLACK, 1);
    go_first();
    puts("ready");
    fflush(stdout);
    while (wait_for_work()) {
        for (int i = 0; i < 2; i++)
            deliver(&l, &ways[i], ff_now_ns());
        for (int i = 0; i < 2; i++) {
            receive_packets(&l, &ways[i]);
            serve_way(&l, &ways[i], ff_now_ns());
        }
    }
    fprintf(stderr, "shaper:");
    for (int i = 0; i < 2; i++)
        fprintf(stderr, " %s: %llu passed, %llu late, %llu lost, %llu dropped;", argv[7 - i],
                (unsigned long long)ways[i].passed, (unsigned long long)ways[i].late,
                (unsigned long long)ways[i].lost, (unsigned long long)ways[i].dropped);
    fprintf(stderr, "\n");
    return 0;
}
