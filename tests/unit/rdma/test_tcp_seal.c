/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_tcp_seal.c - sealed frames of a queue: all that the peer sent, in its order, or nothing
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      a (source) --> fd[0] ==== fd[1] --> b (destination)
 *              What passes is taken out of the socket, changed, and put in again.
 */
#include "unit.h"

#include <sys/socket.h>

#include "failpoint.h"
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include "seal.h"
#include "tcp_wire.h"

#include "tcp_seal.c"

#define GNUTLS_ALONE "tcp.seal.gcm=fail"

#define BIG (1u << 20)
#define PASSING (1u << 20)

static const uint8_t secret[FF_KDF_LEN] = "a secret of thirty-two bytes...";
static const enum ff_hs_suite suites[] = {FF_HS_AES128_GCM, FF_HS_CHACHA20_POLY1305};

static const char *armed = ""; /* in all tests of a group */
static struct tcp_seal *a, *b;
static int fd[2];
static uint8_t plain[BIG], landing[BIG], passing[PASSING];

static void ends(enum ff_hs_suite one, enum ff_hs_suite other)
{
    int room = 4 << 20;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    setsockopt(fd[0], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof(room));
    assert_int_equal(tcp_seal_new(one, secret, true, &a, NULL), 0);
    assert_int_equal(tcp_seal_new(other, secret, false, &b, NULL), 0);
    memset(landing, 0xee, TCP_SEALED_MIXED);
    assert_int_equal(ff_failpoints_arm(armed, NULL), 0);
}

/* The group's fault points, and @more */
static void arm(const char *more)
{
    char all[80];

    snprintf(all, sizeof(all), "%s%s%s", armed, *armed ? "," : "", more);
    assert_int_equal(ff_failpoints_arm(all, NULL), 0);
}

static int fill(void **state)
{
    (void)state;
    for (size_t i = 0; i < BIG; i++)
        plain[i] = (uint8_t)((i % 4093) * 131 >> 2);
    return 0;
}

static int no_ends(void **state)
{
    (void)state;
    tcp_seal_free(a);
    tcp_seal_free(b);
    a = b = NULL;
    if (fd[0])
        close(fd[0]), close(fd[1]);
    fd[0] = 0;
    return ff_failpoints_arm("", NULL);
}

static ssize_t send_iov(struct iovec *iov, unsigned n, unsigned n_head)
{
    return tcp_seal_send(a, fd[0], &(struct msghdr){.msg_iov = iov, .msg_iovlen = n}, n_head);
}

static ssize_t recv_iov(struct iovec *iov, unsigned n, bool is_data)
{
    return tcp_seal_recv(b, fd[1], &(struct msghdr){.msg_iov = iov, .msg_iovlen = n}, is_data);
}

/* @len bytes of plain as one run */
static void send_plain(uint32_t len)
{
    struct iovec iov = {.iov_base = plain, .iov_len = len};

    assert_int_equal(send_iov(&iov, 1, 0), len);
}

static ssize_t recv_at(uint8_t *at, size_t room, bool is_data)
{
    struct iovec iov = {.iov_base = at, .iov_len = room};

    return recv_iov(&iov, 1, is_data);
}

static size_t take_passing(void)
{
    ssize_t n = recv(fd[1], passing, sizeof(passing), 0);

    assert_true(n > 0);
    return (size_t)n;
}

static void put_passing(const void *what, size_t n)
{
    assert_int_equal(send(fd[0], what, n, 0), n);
}

static void must_refuse(uint32_t room, bool is_data)
{
    errno = 0;
    assert_int_equal(recv_at(landing, room, is_data), -1);
    assert_int_equal(errno, EBADMSG);
    for (uint32_t i = 0; i < room; i++) /* nothing of it stays */
        if (landing[i] && landing[i] != 0xee)
            fail_msg("byte %u of what was refused is there: 0x%02x", i, landing[i]);
}

/* --- what arrives --- */

/* Segments whose borders are nowhere near those of blocks, out of memory and into it */
static unsigned segments(struct iovec *iov, uint8_t *base, uint32_t len, unsigned first)
{
    static const uint32_t sizes[] = {1, 15, 16, 17, 4096, 31, 4095, 8192, 3, 65536};
    uint32_t at = 0;
    unsigned n = 0;

    for (; at < len && n < 400; n++) {
        uint32_t size = n == 399 ? len - at : FF_MIN(sizes[(n + first) % 10], len - at);
        iov[n] = (struct iovec){.iov_base = base + at, .iov_len = size};
        at += size;
    }
    return n;
}

/* A head of 40 bytes and @len of data, as a queue sends and receives them */
static void message(uint32_t len, unsigned first)
{
    static struct iovec out[401], in[400];
    static uint8_t got[TCP_SEALED_MIXED];
    struct runs left = {0};
    uint32_t sent = 0, came = 0, total = 40 + len;

    out[0] = (struct iovec){.iov_base = plain + BIG - 40, .iov_len = 40};
    struct runs tx = {.n = 1 + segments(out + 1, plain, len, first)};
    memcpy(tx.iov, out, tx.n * sizeof(*out));
    left.n = segments(in, landing, len, first + 3);
    memcpy(left.iov, in, left.n * sizeof(*in));
    memset(landing, 0xee, sizeof(landing));
    while (came < total) {
        while (sent < total) {
            ssize_t n = send_iov(tx.iov + tx.at, tx.n - tx.at, !tx.at);
            if (n < 0 && errno == EAGAIN)
                break;
            assert_true(n > 0);
            runs_advance(&tx, (size_t)n);
            sent += (uint32_t)n;
        }
        struct iovec head = {.iov_base = got, .iov_len = sizeof(got)};
        ssize_t n = came ? recv_iov(left.iov + left.at, left.n - left.at, true)
                         : recv_iov(&head, 1, false);
        if (n < 0 && errno == EAGAIN)
            continue;
        assert_true(n > 0);
        if (came) {
            runs_advance(&left, (size_t)n);
        } else {
            assert_memory_equal(got, plain + BIG - 40, 40);
            for (size_t i = 40; i < (size_t)n; left.at += !left.iov[left.at].iov_len, i++) {
                *(uint8_t *)left.iov[left.at].iov_base++ = got[i];
                left.iov[left.at].iov_len--;
            }
        }
        came += (uint32_t)n;
    }
    assert_memory_equal(landing, plain, len);
    assert_true(len == BIG - 40 || landing[len] == 0xee);
}

static void test_arrives(void **state)
{
    static const uint32_t lens[] = {1, 4096, TCP_SEALED_MIXED - 40, TCP_SEALED_MIXED - 39, TCP_SEALED_MAX,
                                    TCP_SEALED_MAX + 1, 3 * TCP_SEALED_MAX + 4096, BIG - 40};
    (void)state;

    for (unsigned s = 0; s < FF_ARRAY_LEN(suites); s++) {
        ends(suites[s], suites[s]);
        for (unsigned i = 0; i < FF_ARRAY_LEN(lens); i++)
            message(lens[i], i);
        assert_int_equal(recv_at(landing, BIG, false), -1);
        assert_int_equal(errno, EAGAIN);
        arm("tcp.recv.short=fail");
        for (unsigned i = 0; i < FF_ARRAY_LEN(lens); i++)
            message(lens[i], i);
        no_ends(state);
    }
}

/* One byte of it at a time, while the landing place is discarded, as prefill's may be; and an end
 * within */
static void test_in_pieces(void **state)
{
    (void)state;

    for (int is_data = 0; is_data < 2; is_data++) {
        ends(suites[0], suites[0]);
        send_plain(5000);
        size_t n = take_passing();
        assert_int_equal(n, 5000 + OVER);
        for (size_t i = 0; i < n - 1; i++) {
            put_passing(passing + i, 1);
            memset(landing, (int)i, 5000);
            assert_int_equal(recv_at(landing, TCP_SEALED_MIXED, is_data), -1);
            assert_int_equal(errno, EAGAIN);
        }
        put_passing(passing + n - 1, 1);
        assert_int_equal(recv_at(landing, TCP_SEALED_MIXED, is_data), 5000);
        assert_memory_equal(landing, plain, 5000);

        send_plain(5000);
        n = take_passing();
        put_passing(passing, n - 1);
        shutdown(fd[0], SHUT_WR);
        assert_int_equal(recv_at(landing, TCP_SEALED_MIXED, is_data), 0); /* as recvmsg(2) */
        no_ends(state);
    }
}

/* --- what somebody between does --- */

static void test_changed(void **state)
{
    const uint32_t len = 300;
    (void)state;

    for (unsigned s = 0; s < FF_ARRAY_LEN(suites); s++)
        for (int is_data = 0; is_data < 2; is_data++)
            for (uint32_t bit = 0; bit < 8 * (len + OVER); bit++) {
                ends(suites[s], suites[s]);
                send_plain(len);
                size_t n = take_passing();
                passing[bit / 8] ^= (uint8_t)(1 << bit % 8);
                put_passing(passing, n);
                put_passing(plain, 130000); /* it may claim to be longer */
                must_refuse(TCP_SEALED_MIXED, is_data);
                assert_int_equal(recv_at(landing, 300, is_data), -1); /* for good */
                no_ends(state);
            }
}

/* The same, where a cipher has gone on for long */
static void test_changed_late(void **state)
{
    static const uint32_t at[] = {TCP_SEALED_HEAD_LEN, 1024, 4100, TCP_SEALED_MAX / 2 + 3, TCP_SEALED_MAX + 7,
                                  TCP_SEALED_MAX + OVER - 1};
    (void)state;

    for (unsigned i = 0; i < FF_ARRAY_LEN(at); i++) {
        ends(suites[0], suites[0]);
        memset(landing, 0xee, TCP_SEALED_MAX);
        send_plain(TCP_SEALED_MAX);
        size_t n = take_passing();
        assert_int_equal(n, TCP_SEALED_MAX + OVER);
        passing[at[i]] ^= 0x10;
        put_passing(passing, n);
        must_refuse(TCP_SEALED_MAX, true);
        no_ends(state);
    }
}

/* What passes is frames of one length: one that has another number is not the next one */
static void test_order(void **state)
{
    enum { LEFT_OUT, REPEATED, REORDERED, CUT_SHORT, CASES };
    const size_t one = 200 + OVER;
    (void)state;

    for (int what = 0; what < CASES; what++)
        for (int is_data = 0; is_data < 2; is_data++) {
            ends(suites[0], suites[0]);
            send_plain(200);
            send_plain(200);
            assert_int_equal(take_passing(), 2 * one);
            if (what == REPEATED)
                put_passing(passing, one);
            if (what == REPEATED)
                assert_int_equal(recv_at(landing, 200, is_data), 200);
            memset(landing, 0xee, 200);
            if (what == LEFT_OUT || what == REORDERED)
                put_passing(passing + one, one);
            if (what == REPEATED || what == REORDERED)
                put_passing(passing, one);
            if (what == CUT_SHORT) { /* and the length says so */
                tcp_seal_encode(passing, 100);
                put_passing(passing, 100 + OVER);
            }
            must_refuse(200 + 24000, is_data);
            no_ends(state);
        }
}

/* Each end has sent what opens at the other one alone, by one suite, with one secret */
static void test_others(void **state)
{
    static const uint8_t other[FF_KDF_LEN] = "another one of thirty-two bytes";
    (void)state;

    ends(suites[0], suites[1]);
    send_plain(200);
    must_refuse(200, true);
    no_ends(state);

    ends(suites[0], suites[0]); /* sent back */
    send_plain(200);
    size_t n = take_passing();
    assert_int_equal(send(fd[1], passing, n, 0), n);
    struct iovec iov = {.iov_base = landing, .iov_len = 200};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    assert_int_equal(tcp_seal_recv(a, fd[0], &msg, true), -1);
    assert_int_equal(errno, EBADMSG);
    no_ends(state);

    ends(suites[0], suites[0]);
    tcp_seal_free(b);
    assert_int_equal(tcp_seal_new(suites[0], other, false, &b, NULL), 0);
    send_plain(200);
    must_refuse(200, true);
}

/* A frame of data goes over no end of it, and a long one is of data: nothing is opened to find out */
static void test_borders(void **state)
{
    (void)state;

    ends(suites[0], suites[0]);
    send_plain(200);
    must_refuse(199, true);
    no_ends(state);

    ends(suites[0], suites[0]);
    send_plain(TCP_SEALED_MIXED + 1);
    must_refuse(TCP_SEALED_MIXED, false);
    no_ends(state);

    ends(suites[0], suites[0]);
    tcp_seal_encode(passing, TCP_SEALED_MAX + 1);
    put_passing(passing, TCP_SEALED_HEAD_LEN);
    memset(landing, 0xee, BIG);
    must_refuse(BIG, true);
    assert_int_equal(b->keys->rx.number, 0);
}

/* --- keys --- */

/* Both directions have keys of their own, and new ones in time; the old ones are gone */
static void test_new_keys(void **state)
{
    uint8_t first[FF_KDF_LEN];
    (void)state;

    ends(suites[0], suites[0]);
    assert_memory_equal(a->keys->tx.secret, b->keys->rx.secret, FF_KDF_LEN);
    assert_memory_equal(a->keys->rx.secret, b->keys->tx.secret, FF_KDF_LEN);
    assert_memory_not_equal(a->keys->tx.secret, a->keys->rx.secret, FF_KDF_LEN);
    assert_memory_not_equal(a->keys->tx.key, a->keys->rx.key, 16);
    memcpy(first, a->keys->tx.secret, sizeof(first));
    for (unsigned turn = 1; turn < 3; turn++) {
        a->keys->tx.number = b->keys->rx.number = turn * (uint64_t)FF_SEAL_FRAMES - 2;
        for (unsigned i = 0; i < 4; i++) {
            if (i < 2)
                assert_memory_equal(first, a->keys->tx.secret, sizeof(first));
            memset(landing, 0, 4096);
            send_plain(4096);
            assert_int_equal(recv_at(landing, 4096, i % 2), 4096);
            assert_memory_equal(landing, plain, 4096);
        }
        assert_memory_not_equal(first, a->keys->tx.secret, sizeof(first));
        assert_memory_equal(a->keys->tx.secret, b->keys->rx.secret, FF_KDF_LEN);
        memcpy(first, a->keys->tx.secret, sizeof(first));
    }
    /* who does not change it is not understood */
    a->keys->tx.number = b->keys->rx.number = 3 * (uint64_t)FF_SEAL_FRAMES - 1;
    send_plain(200);
    assert_int_equal(recv_at(landing, 200, true), 200);
    memcpy(b->keys->rx.secret, first, sizeof(first));
    assert_int_equal(ff_seal_init_frames(&b->keys->rx, suites[0], first), 0);
    b->keys->rx.number = 3 * (uint64_t)FF_SEAL_FRAMES;
    memset(landing, 0xee, 200);
    send_plain(200);
    must_refuse(200, true);
}

/* One that cannot be made ends the direction: the one before is not used on */
static void test_no_new_key(void **state)
{
    struct iovec iov = {.iov_base = plain, .iov_len = 200};
    (void)state;

    for (int opens = 0; opens < 2; opens++) {
        ends(suites[0], suites[0]);
        a->keys->tx.number = b->keys->rx.number = FF_SEAL_FRAMES - 1;
        if (opens)
            send_plain(200);
        arm("tcp.tls.rekey=fail@1");
        for (int i = 0; i < 2; i++) {
            errno = 0;
            assert_int_equal(opens ? recv_at(landing, 200, true) : send_iov(&iov, 1, 0), -1);
            assert_int_equal(errno, opens ? EBADMSG : EIO);
            if (!i && opens)
                send_plain(200);
        }
        assert_int_equal(ff_failpoint_hits("tcp.tls.rekey"), 1);
        no_ends(state);
    }
}

/* AES-128-GCM as seal.h and docs/wire.md say it: another program could do it */
static void test_as_documented(void **state)
{
    static const uint32_t lens[] = {1, 15, 100, 1023, 1025, 4096, TCP_SEALED_MIXED, TCP_SEALED_MAX - 1,
                                    TCP_SEALED_MAX};
    static uint8_t want[TCP_SEALED_MAX + FF_SEAL_TAG_LEN];
    uint8_t dir[FF_KDF_LEN], key[16], iv[12], head[TCP_SEALED_HEAD_LEN] = "FFsf";
    struct iovec iov[400];
    gnutls_aead_cipher_hd_t h;
    (void)state;

    ends(suites[0], suites[0]);
    ff_kdf_expand(secret, "from source", NULL, 0, dir, sizeof(dir));
    ff_kdf_expand(dir, "key", NULL, 0, key, sizeof(key));
    gnutls_datum_t k = {.data = key, .size = sizeof(key)};
    assert_int_equal(gnutls_aead_cipher_init(&h, GNUTLS_CIPHER_AES_128_GCM, &k), 0);
    for (unsigned number = 0; number < 2 * FF_ARRAY_LEN(lens); number++) {
        const uint32_t len = lens[number / 2], sealed = len + FF_SEAL_TAG_LEN;
        size_t want_len = sizeof(want);
        unsigned n = 1;

        iov[0] = (struct iovec){.iov_base = plain, .iov_len = len};
        if (number % 2)
            n = segments(iov, plain, len, number);
        assert_int_equal(send_iov(iov, n, 0), len);
        assert_int_equal(take_passing(), len + OVER);
        ff_kdf_expand(dir, "iv", NULL, 0, iv, sizeof(iv));
        iv[11] ^= (uint8_t)number;
        for (unsigned i = 0; i < 4; i++)
            head[4 + i] = (uint8_t)(sealed >> 8 * i);
        assert_int_equal(gnutls_aead_cipher_encrypt(h, iv, sizeof(iv), head, sizeof(head),
                                                    FF_SEAL_TAG_LEN, plain, len, want, &want_len), 0);
        assert_memory_equal(passing, head, sizeof(head));
        assert_memory_equal(passing + sizeof(head), want, sealed);
    }
    gnutls_aead_cipher_deinit(h);
}

/* gcm.h's where the CPU has what that needs; else, and for other suites, GnuTLS's */
static void test_cipher(void **state)
{
    bool can = __builtin_cpu_supports("vaes") && __builtin_cpu_supports("vpclmulqdq") &&
               __builtin_cpu_supports("avx512bw");
    (void)state;

    for (unsigned s = 0; s < FF_ARRAY_LEN(suites); s++) {
        ends(suites[s], suites[s]);
        send_plain(200);
        assert_int_equal(recv_at(landing, 200, true), 200);
        bool want = can && !s && !*armed;
        assert_int_equal(!!a->keys->tx.gcm, want);
        assert_int_equal(!!b->keys->rx.gcm, want);
        assert_int_equal(!!a->keys->tx.kept, !want);
        assert_int_equal(!!b->keys->rx.kept, !want);
        no_ends(state);
    }
}

static int gnutls_alone(void **state)
{
    armed = GNUTLS_ALONE;
    return fill(state);
}

#define TEST(fn) cmocka_unit_test_teardown(fn, no_ends)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_arrives), TEST(test_in_pieces), TEST(test_changed), TEST(test_changed_late),
        TEST(test_order), TEST(test_others), TEST(test_borders), TEST(test_new_keys),
        TEST(test_no_new_key), TEST(test_as_documented), TEST(test_cipher)};

    int failed = cmocka_run_group_tests(tests, fill, NULL);
    return failed + cmocka_run_group_tests_name("GnuTLS alone", tests, gnutls_alone, NULL);
}
