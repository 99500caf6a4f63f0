/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_try.c - the lab's own small verbs program: RDMA READ between two hosts
 *
 * usage: verbs_try server ADDRESS PORT             serves connections until it is killed
 *        verbs_try read ADDRESS PORT               reads 1 MiB, compares; then a wrong rkey
 *        verbs_try until-error ADDRESS PORT LIMIT  reads over and over until one fails, which
 *                                                  must be within LIMIT seconds; says how
 *
 * Not part of Farfork: it shows that the lab's RDMA works, also when Farfork's does not. One
 * program so that both ends agree; rdma_cm's synchronous mode, no event loop.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#define LEN (1u << 20)
#define WAIT_S 30       /* for one completion */
#define ACK_TIMEOUT 17  /* 4.096 us * 2^17 = 0.54 s, 7 times: a silent peer is given up after
                         * 4 s. What rdma_cm takes by itself, 2^19, is more than 15 s. */
#define RETRIES 6       /* not 7, which rxe takes for "for ever", as for RNR */
#define PERIOD 251      /* of the pattern, a prime: a lost or doubled block shows */

/* what the server tells in its accept, in network byte order */
struct offer {
    uint64_t addr;
    uint32_t rkey;
    uint32_t len;
};

static void die(const char *what) {
    fprintf(stderr, "verbs_try: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now_s(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct rdma_addrinfo *resolve(const char *host, const char *port, int flags) {
    struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *res;

    if (rdma_getaddrinfo(host, port, &hints, &res)) {
        die("rdma_getaddrinfo");
    }
    return res;
}

static struct ibv_qp_init_attr qp_attr(void) {
    return (struct ibv_qp_init_attr) {
        .cap = { .max_send_wr = 16, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
        .sq_sig_all = 1,
    };
}

/* zeroed memory that the given side may use in the given way */
static uint8_t *buffer(struct rdma_cm_id *id, int access, struct ibv_mr **mr) {
    uint8_t *mem = aligned_alloc(4096, LEN);

    if (!mem) {
        die("memory");
    }
    memset(mem, 0, LEN);
    *mr = ibv_reg_mr(id->pd, mem, LEN, access);
    if (!*mr) {
        die("ibv_reg_mr");
    }
    return mem;
}

static uint8_t pattern(uint32_t i) {
    return (uint8_t)(i % PERIOD + 1);
}

static _Noreturn void serve(const char *host, const char *port) {
    struct rdma_addrinfo *res = resolve(host, port, RAI_PASSIVE);
    struct ibv_qp_init_attr attr = qp_attr();
    struct rdma_cm_id *listener, *id;

    if (rdma_create_ep(&listener, res, NULL, &attr) || rdma_listen(listener, 4)) {
        die("listen");
    }
    printf("listening\n");
    fflush(stdout);
    for (;;) {
        struct rdma_conn_param param = { .responder_resources = 16, .initiator_depth = 16,
                                         .rnr_retry_count = 7 };
        struct offer offer;
        struct ibv_mr *mr;
        uint8_t *mem;

        if (rdma_get_request(listener, &id)) {
            die("rdma_get_request");
        }
        mem = buffer(id, IBV_ACCESS_REMOTE_READ, &mr);
        for (uint32_t i = 0; i < LEN; i++) {
            mem[i] = pattern(i);
        }
        offer.addr = htobe64((uintptr_t)mem);
        offer.rkey = htonl(mr->rkey);
        offer.len = htonl(LEN);
        param.private_data = &offer;
        param.private_data_len = sizeof offer;
        if (rdma_accept(id, &param)) {
            die("rdma_accept");
        }
        /* what was offered stays until the process ends: the peer may go without a word */
    }
}

/* completion status of the one READ that is under way */
static enum ibv_wc_status completion(struct rdma_cm_id *id) {
    double end = now_s() + WAIT_S;
    struct ibv_wc wc;

    while (now_s() < end) {
        int n = ibv_poll_cq(id->send_cq, 1, &wc);

        if (n < 0) {
            die("ibv_poll_cq");
        }
        if (n) {
            return wc.status;
        }
        usleep(100);
    }
    fprintf(stderr, "verbs_try: no completion within %d s\n", WAIT_S);
    exit(1);
}

static enum ibv_wc_status read_once(struct rdma_cm_id *id, uint8_t *mem, struct ibv_mr *mr,
                                    uint64_t addr, uint32_t rkey, uint32_t len) {
    if (rdma_post_read(id, NULL, mem, len, mr, 0, addr, rkey)) {
        die("rdma_post_read");
    }
    return completion(id);
}

static struct rdma_cm_id *connect_to(const char *host, const char *port, struct offer *offer) {
    struct rdma_conn_param param = { .responder_resources = 16, .initiator_depth = 16,
                                     .retry_count = RETRIES, .rnr_retry_count = 7 };
    struct rdma_addrinfo *res = resolve(host, port, 0);
    struct ibv_qp_init_attr attr = qp_attr();
    uint8_t ack_timeout = ACK_TIMEOUT;
    struct rdma_cm_id *id;

    if (rdma_create_ep(&id, res, NULL, &attr) ||
        rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout,
                        sizeof ack_timeout) ||
        rdma_connect(id, &param)) {
        die("connect");
    }
    if (id->event->param.conn.private_data_len < sizeof *offer) {
        fprintf(stderr, "verbs_try: no offer in the accept\n");
        exit(1);
    }
    memcpy(offer, id->event->param.conn.private_data, sizeof *offer);
    offer->addr = be64toh(offer->addr);
    offer->rkey = ntohl(offer->rkey);
    offer->len = ntohl(offer->len);
    return id;
}

static int try_read(struct rdma_cm_id *id, const struct offer *o) {
    struct ibv_mr *mr;
    uint8_t *mem = buffer(id, IBV_ACCESS_LOCAL_WRITE, &mr);
    double start = now_s();
    enum ibv_wc_status status = read_once(id, mem, mr, o->addr, o->rkey, LEN);
    double took = now_s() - start;

    if (status != IBV_WC_SUCCESS) {
        fprintf(stderr, "verbs_try: read: %s\n", ibv_wc_status_str(status));
        return 1;
    }
    for (uint32_t i = 0; i < LEN; i++) {
        if (mem[i] != pattern(i)) {
            fprintf(stderr, "verbs_try: byte %u is %u, not %u\n", i, mem[i], pattern(i));
            return 1;
        }
    }
    status = read_once(id, mem, mr, o->addr, o->rkey ^ 0x5500, 4096);
    if (status != IBV_WC_REM_ACCESS_ERR) {
        fprintf(stderr, "verbs_try: wrong rkey: %s\n", ibv_wc_status_str(status));
        return 1;
    }
    printf("read %u bytes in %.1f ms, wrong rkey: %s\n", LEN, took * 1e3,
           ibv_wc_status_str(status));
    return 0;
}

static int until_error(struct rdma_cm_id *id, const struct offer *o, double limit_s) {
    struct ibv_mr *mr;
    uint8_t *mem = buffer(id, IBV_ACCESS_LOCAL_WRITE, &mr);
    double end = now_s() + limit_s, last = now_s();
    unsigned long reads = 0;

    while (now_s() < end) {
        enum ibv_wc_status status = read_once(id, mem, mr, o->addr, o->rkey, 4096);

        if (status != IBV_WC_SUCCESS) {
            printf("%s after %lu reads, %.1f s after the last good one\n",
                   ibv_wc_status_str(status), reads, now_s() - last);
            return 0;
        }
        last = now_s();
        if (!reads++) {
            printf("reading\n");
            fflush(stdout);
        }
    }
    fprintf(stderr, "verbs_try: %lu reads and no error in %.0f s\n", reads, limit_s);
    return 1;
}

int main(int argc, char **argv) {
    struct rdma_cm_id *id;
    struct offer offer;

    if (argc == 4 && !strcmp(argv[1], "server")) {
        serve(argv[2], argv[3]);
    }
    if (argc == 4 && !strcmp(argv[1], "read")) {
        id = connect_to(argv[2], argv[3], &offer);
        return try_read(id, &offer);
    }
    if (argc == 5 && !strcmp(argv[1], "until-error")) {
        id = connect_to(argv[2], argv[3], &offer);
        return until_error(id, &offer, atof(argv[4]));
    }
    fprintf(stderr, "usage: verbs_try server|read|until-error ADDRESS PORT [SECONDS]\n");
    return 2;
}
