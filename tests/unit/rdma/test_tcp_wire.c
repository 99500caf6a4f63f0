/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_tcp_wire.c - frames of the tcp link: what is encoded is decoded, everything else refused
 */
#include "unit.h"

#include "tcp_wire.h"
#include "wirebuf.h"

static void put(uint8_t *frame, size_t at, uint64_t v, size_t bytes)
{
    struct ff_wirebuf b = {.data = frame, .len = at + bytes, .pos = at};
    ff_wb_put(&b, v, bytes);
}

static void test_ctrl(void **state)
{
    uint8_t f[TCP_CTRL_HEAD_LEN];
    struct ff_error err;
    uint32_t len;
    (void)state;

    for (uint32_t n = 1; n <= FF_MSG_MAX; n = n * 2) {
        tcp_ctrl_encode(f, n);
        assert_ok(tcp_ctrl_decode(f, &len, &err), err);
        assert_int_equal(len, n);
    }
    static const uint32_t bad[] = {0, FF_MSG_MAX + 1, 1u << 31, UINT32_MAX};
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        tcp_ctrl_encode(f, bad[i]);
        assert_fails(tcp_ctrl_decode(f, &len, &err), EPROTO);
        assert_error(err, EPROTO, "permitted 1..65536");
    }
    for (size_t i = 0; i < 4; i++) {
        tcp_ctrl_encode(f, 1);
        f[i] ^= 1;
        assert_fails(tcp_ctrl_decode(f, &len, &err), EPROTO);
        assert_error(err, EPROTO, "not a Farfork peer", "0x");
    }
    assert_fails(tcp_ctrl_decode((const uint8_t *)"GET / HT", &len, NULL), EPROTO);
}

static void test_sealed_frame(void **state)
{
    static const uint32_t bad[] = {0, 4097, 1u << 31, UINT32_MAX - FF_SEAL_TAG_LEN};
    uint8_t f[TCP_SEALED_HEAD_LEN];
    struct ff_error err;
    uint32_t len;
    (void)state;

    for (uint32_t n = 1; n <= 4096; n = n * 2) {
        tcp_seal_encode(f, n);
        assert_ok(tcp_seal_decode(f, 4096, &len, &err), err);
        assert_int_equal(len, n);
    }
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        tcp_seal_encode(f, bad[i]);
        assert_fails(tcp_seal_decode(f, 4096, &len, &err), EPROTO);
        assert_error(err, EPROTO, "sealed frame", "permitted 17..4112");
    }
    for (size_t i = 0; i < 4; i++) {
        tcp_seal_encode(f, 1);
        f[i] ^= 1;
        assert_fails(tcp_seal_decode(f, 4096, &len, &err), EPROTO);
        assert_error(err, EPROTO, "not a Farfork peer", "0x");
    }
}

static void test_pad(void **state)
{
    static const uint32_t bad[] = {0, TCP_PAD_MAX + 1, 1u << 31, UINT32_MAX};
    uint8_t f[TCP_PAD_HEAD_LEN];
    struct ff_error err;
    uint32_t len;
    (void)state;

    for (uint32_t n = 1; n <= TCP_PAD_MAX; n = n * 2) {
        tcp_pad_encode(f, n);
        assert_true(tcp_is_pad(f));
        assert_ok(tcp_pad_decode(f, &len, &err), err);
        assert_int_equal(len, n);
    }
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++) {
        tcp_pad_encode(f, bad[i]);
        assert_fails(tcp_pad_decode(f, &len, &err), EPROTO);
        assert_error(err, EPROTO, "pad", "permitted 1..32768");
    }
    for (size_t i = 0; i < 4; i++) {
        tcp_pad_encode(f, 1);
        f[i] ^= 1;
        assert_false(tcp_is_pad(f));
        assert_fails(tcp_pad_decode(f, &len, &err), EPROTO);
    }
}

static void test_join(void **state)
{
    static const struct tcp_tokens t = {.of = {"0123456789abcde", "fedcba987654321"}};
    uint8_t f[TCP_JOIN_LEN];
    struct ff_error err;
    enum ff_queue q;
    (void)state;

    for (enum ff_queue k = 0; k < FF_QUEUES; k++) {
        q = FF_QUEUES;
        tcp_join_encode(f, k, &t);
        assert_ok(tcp_join_decode(f, &t, &q, &err), err);
        assert_int_equal(q, k);
    }
    for (size_t i = 0; i < 4; i++) {
        tcp_join_encode(f, FF_QUEUE_FAULT, &t);
        f[i] ^= 0x80;
        assert_fails(tcp_join_decode(f, &t, &q, &err), EPROTO);
        assert_error(err, EPROTO, "magic");
    }
    tcp_join_encode(f, FF_QUEUE_FAULT, &t);
    put(f, 4, TCP_VERSION + 1, 2);
    assert_fails(tcp_join_decode(f, &t, &q, &err), EPROTO);
    assert_error(err, EPROTO, "version 4 (want 3)");
    for (unsigned bad = 2; bad < 0x10000; bad = bad * 2 + 1) {
        tcp_join_encode(f, FF_QUEUE_FAULT, &t);
        put(f, 6, bad, 2);
        assert_fails(tcp_join_decode(f, &t, &q, &err), EPROTO);
        assert_error(err, EPROTO, "permitted 0..1");
    }
    for (size_t i = 0; i < FF_SESSION_LEN; i++) { /* each byte of the secret counts */
        tcp_join_encode(f, FF_QUEUE_FAULT, &t);
        f[8 + i] ^= 1;
        assert_fails(tcp_join_decode(f, &t, &q, &err), EACCES);
        assert_error(err, EACCES, "another session");
        assert_null(strstr(err.text, "0123")); /* and is not told */
    }
}

static const struct tcp_req good_read = {.op = TCP_OP_READ,
                                         .id = 0x1122334455667788,
                                         .addr = 0x99aabbccddeeff00,
                                         .rkey = 0x12345678,
                                         .len = 1 << 20,
                                         .granule = 4096,
                                         .imm = 0xabcdef01};

static void expect_req(const struct tcp_req *r, int code, const char *says)
{
    uint8_t f[TCP_REQ_LEN];
    struct tcp_req out;
    struct ff_error err = {.code = 0};

    tcp_req_encode(f, r);
    int rc = tcp_req_decode(f, &out, &err);
    if (rc != -code || !strstr(err.text, says))
        fail_msg("op %u len %u granule %u: %d \"%s\", want %d \"%s\"", r->op, r->len, r->granule,
                 rc, err.text, -code, says);
    if (rc)
        return;
    assert_int_equal(out.op, r->op);
    assert_true(out.id == r->id && out.addr == r->addr);
    assert_int_equal(out.rkey, r->rkey);
    assert_int_equal(out.len, r->len);
    assert_int_equal(out.granule, r->granule);
    assert_int_equal(out.imm, r->imm);
}

static void test_request(void **state)
{
    struct tcp_req r = good_read;
    (void)state;

    expect_req(&r, 0, "");
    r.granule = 0;
    for (uint32_t op = TCP_OP_READ; op <= TCP_OP_WRITE; op++) {
        r.op = (uint16_t)op;
        for (r.len = 1; r.len < TCP_MAX_LEN; r.len = r.len * 2 + 1)
            expect_req(&r, 0, "");
        r.len = TCP_MAX_LEN;
        expect_req(&r, 0, "");
        r.len++;
        expect_req(&r, EPROTO, "length 4194305 (permitted 1..4194304)");
        r.len = UINT32_MAX;
        expect_req(&r, EPROTO, "length 4294967295");
        r.len = 0;
        expect_req(&r, EPROTO, "length 0");
    }
    r = good_read;
    for (unsigned op = 0; op < 0x10000; op = op * 3 + 3) {
        r.op = (uint16_t)op;
        expect_req(&r, EPROTO, "permitted 1..2");
    }
}

static void test_granules(void **state)
{
    static const struct {
        uint32_t len, granule;
        int code;
    } cases[] = {
        {4096, 512, 0},
        {4096, 4096, 0},
        {4 << 20, 4096, 0},
        {4 << 20, 2 << 20, 0},
        {512, 512, 0},
        {4096, 256, EPROTO},
        {4096, 1, EPROTO},
        {4096, 8192, EPROTO},
        {4608, 4096, EPROTO},
        {12288, 3072, EPROTO},
        {4 << 20, 2048, EPROTO}, /* 2048 granules */
        {4096, 1u << 31, EPROTO},
        {4096, UINT32_MAX, EPROTO},
    };
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(cases); i++) {
        struct tcp_req r = good_read;
        r.len = cases[i].len;
        r.granule = cases[i].granule;
        expect_req(&r, cases[i].code, cases[i].code ? "granule" : "");
    }
    struct tcp_req w = good_read;
    w.op = TCP_OP_WRITE;
    expect_req(&w, EPROTO, "granule"); /* only of a READ */
    assert_int_equal(tcp_map_len(1), 8);
    assert_int_equal(tcp_map_len(64), 8);
    assert_int_equal(tcp_map_len(65), 16);
    assert_int_equal(tcp_map_len(FF_GRANULES_MAX), TCP_MAP_MAX);
}

static int reply(const struct tcp_rep *r, const struct ff_wr *wr, struct ff_error *err)
{
    uint8_t f[TCP_REP_LEN];
    struct tcp_rep out;

    tcp_rep_encode(f, r);
    int rc = tcp_rep_decode(f, wr, &out, err);
    if (!rc)
        assert_true(out.op == r->op && out.flags == r->flags && out.id == r->id &&
                    out.status == r->status && out.len == r->len);
    return rc;
}

static void test_reply(void **state)
{
    uint8_t zero[128], poison[128];
    struct ff_wr rd = {.id = 77,
                       .op = FF_OP_READ,
                       .remote = 0x5000,
                       .len_bytes = 8192,
                       .granule_bytes = 4096,
                       .zero = zero};
    struct ff_wr wr = {.id = 78, .op = FF_OP_WRITE, .len_bytes = 4096};
    struct tcp_rep r = {.op = TCP_OP_READ, .id = 77, .len = 8192},
                   w = {.op = TCP_OP_WRITE, .id = 78, .len = 4096};
    struct tcp_rep bad;
    struct ff_error err;
    (void)state;

    assert_ok(reply(&r, &rd, &err), err);
    assert_ok(reply(&w, &wr, &err), err);
    bad = r, bad.flags = TCP_F_ZEROS;
    assert_ok(reply(&bad, &rd, &err), err);

    assert_fails(reply(&r, NULL, &err), EPROTO);
    assert_error(err, EPROTO, "nothing was asked");
    bad = r, bad.id = 78;
    assert_fails(reply(&bad, &rd, &err), EPROTO);
    assert_error(err, EPROTO, "out of order", "78", "77");
    bad = r, bad.op = TCP_OP_WRITE;
    assert_fails(reply(&bad, &rd, &err), EPROTO);
    assert_error(err, EPROTO, "out of order");
    bad = r, bad.len = 8191;
    assert_fails(reply(&bad, &rd, &err), EPROTO);
    assert_error(err, EPROTO, "8191", "8192");
    bad = r, bad.flags = TCP_F_POISON; /* it comes with a zero map */
    assert_fails(reply(&bad, &rd, &err), EPROTO);
    assert_error(err, EPROTO, "flags 0x2");
    bad = r, bad.flags = 4;
    assert_fails(reply(&bad, &rd, &err), EPROTO);
    assert_error(err, EPROTO, "flags 0x4");
    bad = r, bad.flags = TCP_F_ZEROS | TCP_F_POISON;
    assert_fails(reply(&bad, &rd, &err), EHWPOISON); /* who asked cannot tell it from zeros */
    assert_error(err, EHWPOISON, "8192 bytes at 0x5000", "poisoned");
    rd.poison = poison;
    assert_ok(reply(&bad, &rd, &err), err);
    bad = w, bad.flags = TCP_F_ZEROS;
    assert_fails(reply(&bad, &wr, &err), EPROTO);
    assert_error(err, EPROTO, "unasked");
    struct ff_wr plain = rd;
    bad = r, bad.flags = TCP_F_ZEROS;
    plain.zero = NULL;
    assert_fails(reply(&bad, &plain, &err), EPROTO);
    plain = rd, plain.granule_bytes = 0;
    assert_fails(reply(&bad, &plain, &err), EPROTO);

    static const char *const why[] = {"withdrawn", "does not permit", "outside", "cannot read it",
                                      "the process that has the memory has ended",
                                      "unknown status"};
    for (uint32_t s = 1; s <= FF_ARRAY_LEN(why); s++) {
        bad = (struct tcp_rep){.op = TCP_OP_READ, .id = 77, .status = s};
        assert_fails(reply(&bad, &rd, &err), EREMOTEIO);
        assert_error(err, EREMOTEIO, "refused", "8192 bytes at 0x5000");
        assert_non_null(strstr(err.text, why[s - 1]));
    }
    uint8_t f[TCP_REP_LEN];
    for (size_t i = 0; i < 4; i++) {
        tcp_rep_encode(f, &r);
        f[i] ^= 0x20;
        assert_fails(tcp_rep_decode(f, &rd, &bad, &err), EPROTO);
        assert_error(err, EPROTO, "magic");
    }
}

UNIT_MAIN(cmocka_unit_test(test_ctrl), cmocka_unit_test(test_sealed_frame), cmocka_unit_test(test_pad),
        cmocka_unit_test(test_join), cmocka_unit_test(test_request),
          cmocka_unit_test(test_granules), cmocka_unit_test(test_reply))
