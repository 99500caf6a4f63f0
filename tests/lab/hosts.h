/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * hosts.h - inside the lab: two ends of a verbs link, on two hosts
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      pair.a (active, on hosta) <---- rxea, rxeb ----> pair.b (passive, on hostb)
 *              One process: what is made in a network namespace stays there, so the
 *              listener is made on hostb and everything else on hosta.
 * Limits       as tests/unit/pair.h. What a time limit of the link must not be waited for is
 *              told by the error: ETIMEDOUT in place of the reason.
 */
#ifndef FF_TESTS_LAB_HOSTS_H
#define FF_TESTS_LAB_HOSTS_H

#include "pair.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "verbs.h"

#define LARGE (4u << 20)
#define HOST_B "10.8.0.2"

extern char **environ;

static struct pair p;
static struct ff_port *port;
static uint8_t *src, *dst; /* LARGE and a page */
static struct ff_key *key_a, *key_b; /* of the connecting side, of the listening one */
static const uint8_t session[FF_SESSION_LEN] = "a session of 16";

static inline void enter(const char *host)
{
    char path[64];
    snprintf(path, sizeof(path), "/run/netns/%s", host);
    FF_AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) < 0)
        fail_msg("%s: %s", path, strerror(errno));
}

static inline void listen_on(const char *host, const char *addr, enum ff_link_kind kind,
                             const char *device)
{
    struct ff_link_params lp = {
        .host = addr, .port = "0", .timeout_ms = SOON_MS, .device = device, .key = key_b,
        .insecure = !key_b};
    struct ff_error err;

    enter(host);
    int rc = ff_port_listen(&lp, kind, &port, &err);
    enter("hosta");
    assert_ok(rc, err);
}

struct passive {
    pthread_t thread;
    struct ff_link *link; /* taken, or to open the queues of */
    const uint8_t *session;
    int timeout_ms, rc;
    struct ff_error err;
};

static inline void *accept_main(void *arg)
{
    struct passive *s = arg;
    s->rc = ff_port_accept(port, NULL, 0, -1, &s->link, &s->err);
    return NULL;
}

static inline void *queues_main(void *arg)
{
    struct passive *s = arg;
    s->rc = s->link->ops->open_queues(s->link, s->session, s->timeout_ms, &s->err);
    return NULL;
}

static inline void passive_start(struct passive *s, void *(*fn)(void *))
{
    assert_int_equal(pthread_create(&s->thread, NULL, fn, s), 0);
}

static inline int connect_a(const char *host, enum ff_link_kind kind, const char *device,
                            unsigned qps, struct ff_error *err)
{
    char number[16];
    struct ff_link_params lp = {
        .host = host, .port = number, .timeout_ms = SOON_MS, .device = device, .qps = qps,
        .key = key_a, .insecure = !key_a};

    snprintf(number, sizeof(number), "%u", ff_port_number(port));
    return ff_link_connect(&lp, kind, -1, &p.a, err);
}

/* Up to and without the queues */
static inline void connect_pair(enum ff_link_kind kind, unsigned qps)
{
    struct passive s = {.rc = 0};
    struct ff_error err;

    p = (struct pair){.kind = "verbs"};
    passive_start(&s, accept_main);
    int rc = connect_a(HOST_B, kind, NULL, qps, &err);
    if (rc)
        ff_port_cancel(port);
    join_soon(s.thread);
    assert_ok(rc, err);
    assert_ok(s.rc, s.err);
    p.b = s.link;
}

static inline void open_queues(void)
{
    struct passive s = {.link = p.b, .session = session, .timeout_ms = SOON_MS};
    struct ff_error err;

    passive_start(&s, queues_main);
    int rc = p.a->ops->open_queues(p.a, session, SOON_MS, &err);
    join_soon(s.thread);
    assert_ok(rc, err);
    assert_ok(s.rc, s.err);
}

static inline void open_pair(unsigned qps)
{
    connect_pair(FF_LINK_VERBS, qps);
    open_queues();
}

static inline int start(void **state)
{
    (void)state;
    src = mmap(NULL, LARGE + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    dst = mmap(NULL, LARGE + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (src == MAP_FAILED || dst == MAP_FAILED)
        return -1;
    pattern(src, LARGE + 4096, 0);
    memset(dst, 0xee, LARGE + 4096);
    p = (struct pair){.kind = "verbs"};
    listen_on("hostb", HOST_B, FF_LINK_AUTO, NULL);
    return 0;
}

static inline int end(void **state)
{
    (void)state;
    pair_close(&p);
    ff_port_free(port);
    port = NULL;
    munmap(src, LARGE + 4096);
    munmap(dst, LARGE + 4096);
    return 0;
}

static inline bool says(const char *text, const char *word)
{
    if (!strstr(text, word))
        fail_msg("\"%s\" is not in: %s", word, text);
    return true;
}

/* READs and WRITEs of every size, whole and nothing beside. What the other side may reach goes
 * with the link only (link.h, dereg()). */
static inline void read_all(struct ff_link *from, struct ff_link *to, enum ff_queue q)
{
    static const uint32_t sizes[] = {1, 2, 511, 1023, 1024, 1025, 4096, 65537, LARGE - 1, LARGE};
    struct ff_mr from_mr = must_reg(from, src, LARGE + 100, FF_ACCESS_REMOTE_READ);
    struct ff_mr to_mr = must_reg(to, dst, LARGE + 4096, 0);
    struct ff_error err;

    for (size_t i = 0; i < FF_ARRAY_LEN(sizes); i++) {
        uint32_t len = sizes[i], offset = (uint32_t)i * 3;
        memset(dst, 0xee, len + 64);
        struct ff_wr wr = read_of(&from_mr, offset, dst + 32, len);
        wr.lkey = to_mr.lkey;
        assert_ok(run_wr(to, q, &wr, &err), err);
        assert_true(!memcmp(dst + 32, src + offset, len));
        for (unsigned k = 0; k < 32; k++)
            assert_true(dst[k] == 0xee && dst[32 + len + k] == 0xee);
    }
    /* lengths that soft-RoCE would let pass */
    struct ff_wr wr = read_of(&from_mr, 0, dst, to->max_len_bytes + 1);
    assert_fails(to->ops->post(to, q, &wr, &err), EINVAL);
    assert_error(err, EINVAL, "READ", "4194305", "1..4194304");
    wr.len_bytes = 0;
    assert_fails(to->ops->post(to, q, &wr, &err), EINVAL);
    to->ops->dereg(to, &to_mr);
}

static inline void write_all(struct ff_link *from, struct ff_link *to, enum ff_queue q)
{
    static const uint32_t sizes[] = {1, 4096, 100000, LARGE};
    static struct server s;
    struct ff_mr from_mr = must_reg(from, src, LARGE, 0);
    struct ff_mr to_mr = must_reg(to, dst, LARGE, FF_ACCESS_REMOTE_WRITE);
    struct ff_error err;

    server_start(&s, to, q);
    for (unsigned i = 0; i < FF_ARRAY_LEN(sizes); i++) {
        uint32_t len = sizes[i];
        pattern(src, len, 7 + i);
        memset(dst, 0xee, LARGE + 4096);
        struct ff_wr wr = {.id = i,
                           .op = FF_OP_WRITE,
                           .local = src,
                           .lkey = from_mr.lkey,
                           .len_bytes = len,
                           .remote = (uintptr_t)to_mr.addr,
                           .rkey = to_mr.rkey,
                           .imm = 0xabc00000 + i};
        assert_ok(run_wr(from, q, &wr, &err), err);
        for (int ms = 0; atomic_load(&s.n_imms) == i && ms < SOON_MS; ms++)
            usleep(1000);
        assert_int_equal(atomic_load(&s.n_imms), i + 1);
        assert_int_equal(s.imm[i].imm, 0xabc00000 + i);
        assert_int_equal(s.imm[i].len_bytes, len);
        assert_true(!memcmp(dst, src, len));
        assert_true(dst[len] == 0xee);
    }
    server_join(&s);
    from->ops->dereg(from, &from_mr);
    pattern(src, LARGE + 4096, 0);
}

/* The kernel takes no more commands from who changes his credentials after he has opened the
 * device ("changed security contexts"): a process of its own, which does it before */
static inline void drop_ipc_lock(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct caps[2];

    if (syscall(SYS_capget, &head, caps))
        fail_msg("capget: %s", strerror(errno));
    caps[0].effective &= ~(1u << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &head, caps))
        fail_msg("capset: %s", strerror(errno));
}

#define WITH(test) cmocka_unit_test_setup_teardown(test, start, end)

/* On hosta, or exit code 77 */
static inline int enter_lab(void)
{
    const char *hosts = getenv("LAB_HOSTS");

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!hosts || strcmp(hosts, "2")) {
        printf("needs a lab with two hosts: run it by 'make check-lab'\n");
        return 77;
    }
    enter("hosta");
    return 0;
}

#endif
