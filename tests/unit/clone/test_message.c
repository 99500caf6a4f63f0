/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_message.c - messages of agents and children: what is sent arrives, all else is refused
 */
#include "unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "message.h"

static struct ff_wire_region regions[2] = {
    {.name = "pc.ram", .len_bytes = 1u << 20, .psize = 4096},
    {.name = "vga", .len_bytes = 4096, .psize = 4096},
};

static struct ff_clone_msg messages[] = {
    {.type = FF_CLONE_HELLO,
     .number = 7,
     .host = {0x7f0000000000, 0x7f0000200000},
     .table = {.version = FF_WIRE_VERSION, .oldest = FF_WIRE_VERSION, .n_regions = 2,
               .config = "pc", .regions = regions}},
    {.type = FF_CLONE_REFUSE, .code = EINVAL, .text = "why"},
    {.type = FF_CLONE_IMAGE, .state_bytes = 70000, .complete = true, .n_fds = 1},
    {.type = FF_CLONE_MEMORY,
     .n = 2,
     .memory = {{.region = 511, .present = true, .offset = 1ull << 40}, {.region = 1}},
     .n_fds = 2},
    {.type = FF_CLONE_WATCH, .n_fds = 1},
    {.type = FF_CLONE_WATCH},
    {.type = FF_CLONE_ATTACHED, .session = "a session of 16"},
    {.type = FF_CLONE_LINK, .n_fds = FF_TCP_SOCKETS},
    {.type = FF_CLONE_LOADED},
    {.type = FF_CLONE_START},
    {.type = FF_CLONE_READY},
    {.type = FF_CLONE_RUN},
    {.type = FF_CLONE_RUNNING},
    {.type = FF_CLONE_COMPLETE},
    {.type = FF_CLONE_LOST, .code = EPIPE, .text = ""},
    {.type = FF_CLONE_FEED, .key = "a key of 32 bytes, with its zero", .text = "[fe80::1]:49420"},
};

static unsigned open_files(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void open_pair(int s[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s), 0);
    for (size_t i = 0; i < FF_ARRAY_LEN(messages); i++)
        for (unsigned k = 0; k < messages[i].n_fds; k++)
            messages[i].fd[k] = s[0]; /* any descriptor will do */
}

static void close_pair(int s[2])
{
    close(s[0]);
    close(s[1]);
}

static void test_round_trip(void **state)
{
    struct ff_clone_msg got;
    struct ff_error err;
    int s[2];
    (void)state;

    unsigned before = open_files();
    open_pair(s);
    for (size_t i = 0; i < FF_ARRAY_LEN(messages); i++) {
        const struct ff_clone_msg *m = &messages[i];
        assert_ok(ff_clone_send(s[0], m, &err), err);
        assert_ok(ff_clone_recv(s[1], &got, &err), err);
        assert_int_equal(got.type, m->type);
        assert_int_equal(got.number, m->number);
        assert_int_equal(got.lends, m->lends);
        assert_memory_equal(got.host, m->host, sizeof(m->host));
        assert_int_equal(got.table.n_regions, m->table.n_regions);
        for (unsigned k = 0; k < m->table.n_regions; k++)
            assert_string_equal(got.table.regions[k].name, regions[k].name);
        assert_string_equal(got.table.config, m->table.config);
        assert_int_equal(got.code, m->code);
        assert_string_equal(got.text, m->text);
        assert_memory_equal(got.key, m->key, sizeof(m->key));
        assert_int_equal(got.state_bytes, m->state_bytes);
        assert_int_equal(got.complete, m->complete);
        assert_int_equal(got.n, m->n);
        for (unsigned k = 0; k < m->n; k++) {
            assert_int_equal(got.memory[k].region, m->memory[k].region);
            assert_int_equal(got.memory[k].present, m->memory[k].present);
            assert_int_equal(got.memory[k].offset, m->memory[k].offset);
        }
        assert_int_equal(got.n_fds, m->n_fds);
        for (unsigned k = 0; k < m->n_fds; k++)
            assert_true(fcntl(got.fd[k], F_GETFD) & FD_CLOEXEC);
        ff_clone_close(&got);
    }
    assert_int_equal(ff_clone_recv(s[1], &got, &err), -EAGAIN);
    close_pair(s);
    assert_int_equal(open_files(), before);
}

/* The bytes of @m as they are on the socket */
static size_t bytes_of(const struct ff_clone_msg *m, int s[2], uint8_t *buf, size_t room)
{
    struct ff_clone_msg plain = *m;
    struct ff_error err;

    plain.n_fds = 0;
    assert_ok(ff_clone_send(s[0], &plain, &err), err);
    ssize_t n = recv(s[1], buf, room, MSG_DONTWAIT);
    assert_true(n >= 4);
    return (size_t)n;
}

/* @len bytes with @n_fds descriptors: what the receiver says */
static int say(int s[2], const uint8_t *bytes, size_t len, unsigned n_fds, struct ff_error *err)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(FF_CLONE_FILES * sizeof(int))];
    } control = {.space = {0}};
    struct iovec iov = {.iov_base = (void *)bytes, .iov_len = len};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    struct ff_clone_msg got;

    if (n_fds) {
        msg.msg_control = control.space;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        control.head = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                        .cmsg_type = SCM_RIGHTS,
                                        .cmsg_len = CMSG_LEN(n_fds * sizeof(int))};
        for (unsigned i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(&control.head) + i * sizeof(int), &s[0], sizeof(int));
    }
    assert_int_equal(sendmsg(s[0], &msg, 0), (ssize_t)len);
    int rc = ff_clone_recv(s[1], &got, err);
    if (!rc)
        ff_clone_close(&got);
    return rc;
}

/* REFUSE and LOST end where they end */
static bool has_an_end(const struct ff_clone_msg *m)
{
    return m->type != FF_CLONE_REFUSE && m->type != FF_CLONE_LOST && m->type != FF_CLONE_FEED;
}

static void test_lengths(void **state)
{
    static uint8_t buf[FF_CLONE_MSG_MAX + 1];
    struct ff_error err;
    int s[2];
    (void)state;

    unsigned before = open_files();
    open_pair(s);
    for (size_t i = 0; i < FF_ARRAY_LEN(messages); i++) {
        const struct ff_clone_msg *m = &messages[i];
        size_t len = bytes_of(m, s, buf, sizeof(buf));
        assert_ok(say(s, buf, len, m->n_fds, &err), err);
        for (size_t n = 1; n < (has_an_end(m) ? len : 8); n++)
            assert_fails(say(s, buf, n, m->n_fds, &err), EPROTO);
        buf[len] = 0;
        if (has_an_end(m))
            assert_fails(say(s, buf, len + 1, m->n_fds, &err), EPROTO);
    }
    assert_fails(say(s, buf, sizeof(buf), 0, &err), EPROTO);
    assert_error(err, EPROTO, "too long");
    close_pair(s);
    assert_int_equal(open_files(), before);
}

static void test_descriptors(void **state)
{
    static uint8_t buf[FF_CLONE_MSG_MAX];
    struct ff_error err;
    int s[2];
    (void)state;

    unsigned before = open_files();
    open_pair(s);
    for (size_t i = 0; i < FF_ARRAY_LEN(messages); i++) {
        const struct ff_clone_msg *m = &messages[i];
        size_t len = bytes_of(m, s, buf, sizeof(buf));
        for (unsigned n = 0; n < 4; n++) {
            if (n == m->n_fds || (m->type == FF_CLONE_WATCH && n <= 1))
                continue;
            assert_fails(say(s, buf, len, n, &err), EPROTO);
            assert_error(err, EPROTO, "descriptors");
        }
    }
    close_pair(s);
    assert_int_equal(open_files(), before);
}

static void test_fields(void **state)
{
    static const struct {
        unsigned message; /* number in messages */
        size_t at;
        uint8_t byte;
        const char *says;
    } cases[] = {
        {0, 0, 0, "type 0"},
        {0, 0, FF_CLONE_LAST + 1, "type 16"},
        {0, 4, 0, "magic"},
        {0, 12, 1, "version 1"},
        {0, 14, 2, "kind 2"},
        {0, 20, 3, ""},   /* addresses: one is taken from the table */
        {0, 23, 1, "regions"},
        {0, 40, 2, "without a table"}, /* WELCOME */
        {1, 4, 0, "REFUSE"},    /* no error */
        {1, 7, 0x80, "REFUSE"}, /* a negative one */
        {2, 11, 1, "IMAGE"},    /* the state is too long */
        {3, 4, 0, "MEMORY"},
        {3, 4, FF_CLONE_FILES + 1, "MEMORY"},
        {3, 9, 2, "MEMORY"},     /* region 512 and more */
        {3, 23, 0x80, "MEMORY"}, /* offset */
    };
    static uint8_t buf[FF_CLONE_MSG_MAX];
    struct ff_error err;
    int s[2];
    (void)state;

    open_pair(s);
    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        const struct ff_clone_msg *m = &messages[cases[i].message];
        size_t len = bytes_of(m, s, buf, sizeof(buf));
        buf[cases[i].at] = cases[i].byte;
        assert_fails(say(s, buf, len, m->n_fds, &err), EPROTO);
        if (!strstr(err.text, cases[i].says))
            fail_msg("\"%s\" is not in: %s", cases[i].says, err.text);
    }
    close_pair(s);
}

/* What is sent before the end arrives, although the peer left something unread */
static void test_last_words(void **state)
{
    struct ff_clone_msg got;
    struct ff_error err;
    int s[2];
    (void)state;

    open_pair(s);
    assert_ok(ff_clone_send_type(s[1], FF_CLONE_RUNNING, &err), err);
    assert_ok(ff_clone_send_type(s[0], FF_CLONE_COMPLETE, &err), err);
    close(s[0]);
    assert_ok(ff_clone_recv(s[1], &got, &err), err);
    assert_int_equal(got.type, FF_CLONE_COMPLETE);
    assert_fails(ff_clone_recv(s[1], &got, &err), ECONNRESET);
    assert_fails(ff_clone_send_type(s[1], FF_CLONE_RUNNING, &err), EPIPE);
    close(s[1]);
}

static void test_expect(void **state)
{
    struct ff_error err, why = {.code = EIO, .text = "because"};
    struct ff_clone_msg got;
    int s[2];
    (void)state;

    open_pair(s);
    assert_fails(ff_clone_expect(s[1], -1, &got, 20, &err), ETIMEDOUT);
    assert_fails(ff_clone_expect(s[1], s[1], &got, 0, &err), ETIMEDOUT);
    ff_clone_send_why(s[0], FF_CLONE_LOST, &why);
    assert_fails(ff_clone_expect(s[1], -1, &got, 1000, &err), EIO);
    assert_error(err, EIO, "because");
    close_pair(s);
}

UNIT_MAIN(cmocka_unit_test(test_round_trip), cmocka_unit_test(test_lengths),
          cmocka_unit_test(test_descriptors), cmocka_unit_test(test_fields),
          cmocka_unit_test(test_last_words), cmocka_unit_test(test_expect))
