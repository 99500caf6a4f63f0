/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_verbs_link.c - the verbs link on a device that is not here: what it asks libibverbs and librdmacm for
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      functions of the two libraries stand here in their place and keep what they were asked:
 *              what only a card would show, but the decision can be seen.
 */
#include "unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "verbs.h"
#include "verbs_request.h"

#undef ibv_reg_mr

static struct ibv_device device = {.name = "card0"};
static struct ibv_context context;
static struct ibv_pd pd = {.context = &context};
static struct ibv_cq send_cq = {.context = &context}, recv_cq = {.context = &context};
static struct ibv_qp qp = {.context = &context, .qp_num = 77};
static struct rdma_cm_id id[VERBS_QPS_MAX];
static struct verbs_link *v;

static struct {
    unsigned disconnects, disconnects_locked; /* with the link's lock taken */
    int vector[8];
    unsigned n_vectors;
    struct ibv_send_wr wr; /* the last one that was posted */
    struct ibv_sge sge;
    unsigned posts;
    struct ibv_wc wc[2]; /* what recv_cq has next */
    unsigned n_wc;
    int reg_errno;
    size_t reg_least; /* registrations of fewer bytes are taken */
} fake;

/* --- in the libraries' place --- */

int rdma_disconnect(struct rdma_cm_id *i)
{
    (void)i;
    fake.disconnects++;
    if (pthread_mutex_trylock(&v->lock))
        fake.disconnects_locked++;
    else
        pthread_mutex_unlock(&v->lock);
    return 0;
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
    (void)channel;
    (void)event;
    errno = EAGAIN;
    return -1;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
    (void)channel;
    (void)cq;
    (void)cq_context;
    return -1;
}

const char *ibv_get_device_name(struct ibv_device *d)
{
    return d->name;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
    struct ibv_comp_channel *ch = calloc(1, sizeof(*ch));

    ch->context = c;
    ch->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return ch;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int comp_vector)
{
    (void)c;
    (void)cqe;
    (void)cq_context;
    if (channel)
        fake.vector[fake.n_vectors++] = comp_vector;
    return channel ? &recv_cq : &send_cq;
}

int rdma_create_qp(struct rdma_cm_id *i, struct ibv_pd *p, struct ibv_qp_init_attr *attr)
{
    (void)p;
    (void)attr;
    i->qp = &qp;
    return 0;
}

static struct ibv_mr *registered(size_t length)
{
    static struct ibv_mr mr = {.lkey = 5, .rkey = 6};

    errno = fake.reg_errno;
    return length >= fake.reg_least ? NULL : &mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *p, void *addr, size_t length, int access)
{
    (void)p;
    (void)addr;
    (void)access;
    return registered(length);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *p, void *addr, size_t length, uint64_t iova,
                                unsigned int access)
{
    (void)p;
    (void)addr;
    (void)iova;
    (void)access;
    return registered(length);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    (void)mr;
    return 0;
}

static int post_send(struct ibv_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    (void)q;
    (void)bad;
    fake.wr = *wr;
    if (wr->num_sge)
        fake.sge = *wr->sg_list;
    fake.posts++;
    return 0;
}

static int post_recv(struct ibv_qp *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    (void)q;
    (void)wr;
    (void)bad;
    return 0;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
    (void)n;
    if (cq == &send_cq && fake.posts) { /* whatever was sent has arrived */
        *wc = (struct ibv_wc){.wr_id = fake.wr.wr_id};
        fake.posts = 0;
        return 1;
    }
    if (cq != &recv_cq || !fake.n_wc)
        return 0;
    *wc = fake.wc[--fake.n_wc];
    return 1;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    (void)cq;
    (void)solicited_only;
    return 0;
}

/* --- a link on that device --- */

static int start(void **state)
{
    static struct rdma_event_channel events;
    static struct ibv_mr ctrl_mr, beat_mr;
    size_t room = (VERBS_CTRL_BYTES + 4095) & ~4095ull;
    (void)state;

    memset(&fake, 0, sizeof(fake));
    memset(&qp, 0, sizeof(qp));
    qp = (struct ibv_qp){.context = &context, .qp_num = 77};
    context.device = &device;
    context.num_comp_vectors = 4;
    context.ops.post_send = post_send;
    context.ops.post_recv = post_recv;
    context.ops.poll_cq = poll_cq;
    context.ops.req_notify_cq = req_notify_cq;
    v = calloc(1, sizeof(*v));
    *v = (struct verbs_link){.base.ops = &ff_verbs_ops, .events = &events, .pd = &pd,
                             .cancel_fd = -1, .ctrl_mr = &ctrl_mr, .beat_mr = &beat_mr};
    v->timeout_ms = 300;
    events.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    v->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    v->limits.depth = 16;
    v->limits.max_qps = VERBS_QPS_MAX;
    v->limits.max_mr_bytes = UINT64_MAX;
    v->limits.max_mrs = 8;
    v->ctrl_memory = calloc(1, room + 4096);
    beat_mr = (struct ibv_mr){.addr = v->ctrl_memory + room, .lkey = 8, .rkey = 9};
    pthread_mutex_init(&v->lock, NULL);
    pthread_mutex_init(&v->send_lock, NULL);
    for (int r = 0; r < VERBS_ROLES; r++)
        v->q[r].n_conns = 1;
    for (unsigned i = 0; i < FF_ARRAY_LEN(id); i++)
        id[i] = (struct rdma_cm_id){.verbs = &context};
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (int r = 0; r < VERBS_ROLES; r++) {
        if (v->q[r].chan) {
            close(v->q[r].chan->fd);
            close(v->q[r].epoll_fd);
        }
        free(v->q[r].chan);
    }
    close(v->events->fd);
    close(v->wake_fd);
    free(v->mr);
    free(v->ctrl_memory);
    free(v);
    return 0;
}

static void make_queues(void)
{
    struct ff_error err;

    for (unsigned r = 0; r < VERBS_ROLES; r++) {
        v->q[r].conn[0].id = &id[r];
        assert_ok(verbs_make_qp(v, (enum verbs_role)r, 0, &id[r], &err), err);
    }
}

/* Whoever posts takes the lock: it is not held while the kernel disconnects, which may take long */
static void test_disconnects_without_lock(void **state)
{
    struct ff_error why = {.code = EIO, .text = "the first reason"}, err;
    (void)state;

    make_queues();
    verbs_break(v, &why);
    verbs_break(v, &(struct ff_error){.code = EPIPE, .text = "another"});
    assert_int_equal(fake.disconnects, VERBS_ROLES);
    assert_int_equal(fake.disconnects_locked, 0);
    assert_fails(verbs_broken(v, &err), EIO);
    assert_string_equal(err.text, "the first reason");
}

/* Each completion queue has another interrupt, and so another CPU */
static void test_vectors(void **state)
{
    (void)state;
    make_queues();
    assert_int_equal(fake.n_vectors, VERBS_ROLES);
    for (unsigned i = 1; i < VERBS_ROLES; i++)
        assert_int_equal(fake.vector[i], (fake.vector[0] + (int)i) % 4);
    for (int i = 0; i < 9; i++)
        assert_int_equal(verbs_next_vector(1), 0);
    assert_int_equal(verbs_next_vector(0), 0);
}

/* The peer's pad tells where its byte is, is no message, and comes once. An idle queue pair writes that byte,
 * by its key, and nothing as long as it does not know one */
static void test_beat(void **state)
{
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    (void)state;

    make_queues();
    assert_fails(ff_verbs_ops.recv(&v->base, buf, 250, &err), ETIMEDOUT);
    assert_int_equal(fake.wr.opcode, 0);

    verbs_put_pad(v->ctrl_memory, 0x1234567000, 0xabcd);
    memcpy(v->ctrl_memory + VERBS_CTRL_LEN, "hello", 5);
    fake.wc[0] = (struct ibv_wc){.wr_id = 1, .byte_len = 5};
    fake.wc[1] = (struct ibv_wc){.wr_id = 0, .byte_len = VERBS_PAD_LEN};
    fake.n_wc = 2;
    assert_int_equal(ff_verbs_ops.recv(&v->base, buf, 250, &err), 5);
    assert_memory_equal(buf, "hello", 5);
    assert_fails(ff_verbs_ops.recv(&v->base, buf, 250, &err), ETIMEDOUT);
    assert_int_equal(fake.wr.opcode, IBV_WR_RDMA_WRITE);
    assert_int_equal(fake.wr.num_sge, 1);
    assert_int_equal(fake.sge.length, 1);
    assert_int_equal(fake.sge.lkey, 8);
    assert_int_equal(fake.wr.wr.rdma.rkey, 0xabcd);
    assert_int_equal(fake.wr.wr.rdma.remote_addr, 0x1234567000);

    fake.wc[0] = (struct ibv_wc){.wr_id = 0, .byte_len = VERBS_PAD_LEN};
    fake.n_wc = 1;
    assert_fails(ff_verbs_ops.recv(&v->base, buf, 250, &err), EPROTO);
    assert_error(err, EPROTO, "second pad");
}

/* More than a packet, which the device sends in packets of full size; its own byte is in it */
static void test_pad(void **state)
{
    uint8_t *pad = calloc(1, VERBS_PAD_LEN);
    struct ff_error err;
    uint64_t addr;
    uint32_t rkey;
    (void)state;

    make_queues();
    assert_ok(verbs_send_pad(v, &err), err);
    assert_int_equal(fake.wr.opcode, IBV_WR_SEND);
    assert_int_equal(fake.sge.length, VERBS_PAD_LEN);
    assert_true(VERBS_PAD_LEN > 9216);
    assert_ok(verbs_get_pad((void *)(uintptr_t)fake.sge.addr, VERBS_PAD_LEN, &addr, &rkey, &err), err);
    assert_int_equal(addr, (uintptr_t)v->beat_mr->addr);
    assert_int_equal(rkey, 9);

    verbs_put_pad(pad, 4096, 7);
    for (size_t len = 0; len < VERBS_PAD_LEN; len = len * 2 + 1)
        assert_fails(verbs_get_pad(pad, len, &addr, &rkey, &err), EPROTO);
    assert_false(verbs_is_pad(pad, 3));
    verbs_put_pad(pad, 4096, 0);
    assert_fails(verbs_get_pad(pad, VERBS_PAD_LEN, &addr, &rkey, &err), EPROTO);
    assert_error(err, EPROTO, "key 0x0");
    free(pad);
}

static void test_large_packets_vanish(void **state)
{
    struct ibv_wc wc = {.status = IBV_WC_RETRY_EXC_ERR, .qp_num = 77};
    struct ff_error err;
    (void)state;

    assert_fails(verbs_wc_error(v, VERBS_CONTROL, "SEND", &wc, &err), EHOSTUNREACH);
    assert_error(err, EHOSTUNREACH, "queue pair 77: the peer does not answer: ",
                 "large packets do not arrive: check the MTU");
}

/* Before Linux 6.2 memory that is shared and may not be written is not registered: it is named, and not
 * taken for memory that has failed, which is cut out */
static void test_shared_read_only(void **state)
{
    const size_t len = 1u << 20;
    int fd = memfd_create("verbs_link", MFD_CLOEXEC);
    struct ff_error err;
    struct ff_mr mr;
    (void)state;

    assert_true(fd >= 0 && !ftruncate(fd, (off_t)len));
    void *ro = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    void *rw = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    void *own = mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_true(ro != MAP_FAILED && rw != MAP_FAILED && own != MAP_FAILED);
    assert_true(verbs_is_shared_read_only(ro));
    assert_false(verbs_is_shared_read_only(rw) || verbs_is_shared_read_only(own));

    fake.reg_errno = EFAULT;
    assert_fails(verbs_reg(&v->base, ro, len, FF_ACCESS_REMOTE_READ, &mr, &err), EOPNOTSUPP);
    assert_error(err, EOPNOTSUPP, "before 6.2", "link=tcp");
    assert_fails(verbs_reg(&v->base, rw, len, FF_ACCESS_REMOTE_READ, &mr, &err), EFAULT);
    fake.reg_least = len; /* its first page is taken: another one has failed */
    assert_fails(verbs_reg(&v->base, ro, len, FF_ACCESS_REMOTE_READ, &mr, &err), EFAULT);
    munmap(ro, len);
    munmap(rw, len);
    munmap(own, len);
    close(fd);
}

/* --- device= --- */

static const char *not_on; /* an address that is another device's */

static bool is_on(void *opaque, struct sockaddr *sa)
{
    char text[INET6_ADDRSTRLEN];
    (void)opaque;

    inet_ntop(sa->sa_family, sa->sa_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)sa)->sin6_addr
                                                       : (void *)&((struct sockaddr_in *)sa)->sin_addr,
              text, sizeof(text));
    return !not_on || strcmp(text, not_on);
}

static struct sockaddr *ipv4(const char *text)
{
    static struct sockaddr_in sa[16];
    static unsigned n;
    struct sockaddr_in *a = &sa[n++ % 16];

    *a = (struct sockaddr_in){.sin_family = AF_INET};
    assert_int_equal(inet_pton(AF_INET, text, &a->sin_addr), 1);
    return (struct sockaddr *)a;
}

static void must_bind(const struct ifaddrs *list, const char *peer, const char *routed, const char *want)
{
    const struct sockaddr *got = verbs_best_address(list, ipv4(peer), routed ? ipv4(routed) : NULL,
                                                    is_on, NULL);
    char text[INET_ADDRSTRLEN] = "none";

    if (got)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)got)->sin_addr, text, sizeof(text));
    assert_string_equal(text, want);
}

/* A card with two VLANs, and another card: the address of the way to the peer, not the first */
static void test_address(void **state)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct ifaddrs a[] = {
        {.ifa_name = "no address"},
        {.ifa_addr = (struct sockaddr *)&six},
        {.ifa_addr = ipv4("10.1.0.1"), .ifa_netmask = ipv4("255.255.255.0")},
        {.ifa_addr = ipv4("10.2.0.1"), .ifa_netmask = ipv4("255.255.255.0")},
        {.ifa_addr = ipv4("10.3.0.1"), .ifa_netmask = ipv4("255.255.255.0")},
    };
    (void)state;

    for (unsigned i = 0; i + 1 < FF_ARRAY_LEN(a); i++)
        a[i].ifa_next = &a[i + 1];
    must_bind(a, "10.2.0.9", "10.2.0.1", "10.2.0.1");
    must_bind(a, "10.9.0.9", "10.2.0.1", "10.2.0.1"); /* by a router there */
    must_bind(a, "10.2.0.9", NULL, "10.2.0.1");
    not_on = "10.3.0.1"; /* the way goes by another card: an address that the peer's network has */
    must_bind(a, "10.2.0.9", "10.3.0.1", "10.2.0.1");
    must_bind(a, "10.9.0.9", "10.3.0.1", "10.1.0.1");
    must_bind(&a[4], "10.3.0.9", "10.3.0.1", "none");
    not_on = NULL;
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, start, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_disconnects_without_lock), TEST(test_vectors), TEST(test_beat), TEST(test_pad),
        TEST(test_large_packets_vanish), TEST(test_shared_read_only), TEST(test_address),
    };
    return cmocka_run_group_tests_name("verbs_link", tests, NULL, NULL);
}
