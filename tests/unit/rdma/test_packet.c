/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_packet.c - packets of a group: each opens once, unchanged, at who has key and salt
 */
#include "unit.h"

#include "datagram.h"
#include "key.h"
#include "packet.c"

static const uint8_t key_bytes[FF_KEY_LEN] = "a key of a fork, thirty-two byte";
static const uint8_t salt[FF_PACKET_SALT_LEN] = "salt of an image";
static uint8_t data[FF_PACKET_MAX], room[FF_PACKET_MAX];

struct ends {
    struct ff_packets *tx, *rx;
};

static struct ff_packets *end_of(const uint8_t *key, const uint8_t *with)
{
    struct ff_key *k = ff_key_of_bytes(key);
    struct ff_packets *s;
    struct ff_error err;

    assert_non_null(k);
    assert_int_equal(ff_packets_new(k, with, &s, &err), 0);
    ff_key_unref(k);
    return s;
}

static struct ends ends_new(void)
{
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 131 >> 3);
    return (struct ends){end_of(key_bytes, salt), end_of(key_bytes, salt)};
}

static void ends_free(struct ends *e)
{
    ff_packets_free(e->tx);
    ff_packets_free(e->rx);
}

static size_t make(struct ends *e, uint64_t page, uint32_t len, uint8_t out[FF_PACKET_MAX])
{
    const struct ff_packet p = {.kind = FF_PACKET_PAGE, .region = 3, .part = 2, .page = page,
                                .data = data, .len = len};

    assert_int_equal(ff_packet_close(e->tx, &p, out), 0);
    return FF_PACKET_OVER + len;
}

static void must_count(const struct ends *e, uint64_t opened, uint64_t missing)
{
    uint64_t o, m;

    ff_packets_count(e->rx, &o, &m);
    assert_int_equal(o, opened);
    assert_int_equal(m, missing);
}

static void test_round_trip(void **state)
{
    static const uint32_t lens[] = {0, 1, 16, 1366, FF_PACKET_MAX - FF_PACKET_OVER};
    struct ends e = ends_new();
    uint8_t out[FF_PACKET_MAX];
    struct ff_packet p;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(lens); i++) {
        size_t len = make(&e, 1ull << 40, lens[i], out);
        if (lens[i] >= 16)
            assert_memory_not_equal(out + 28, data, 16);
        assert_int_equal(ff_packet_open(e.rx, out, len, room, &p), 0);
        assert_true(p.kind == FF_PACKET_PAGE && p.region == 3 && p.part == 2 && p.page == 1ull << 40);
        assert_int_equal(p.len, lens[i]);
        assert_memory_equal(p.data, data, p.len);
    }
    must_count(&e, FF_ARRAY_LEN(lens), 0);
    const struct ff_packet large = {.data = data, .len = FF_PACKET_MAX - FF_PACKET_OVER + 1};
    assert_int_equal(ff_packet_close(e.tx, &large, out), -EIO);
    ends_free(&e);
}

/* Every bit, and every length but its own */
static void test_changed(void **state)
{
    struct ends e = ends_new();
    uint8_t out[FF_PACKET_MAX];
    size_t len = make(&e, 7, 40, out);
    struct ff_packet p;
    (void)state;

    for (size_t i = 0; i < len * 8; i++) {
        out[i / 8] ^= (uint8_t)(1u << i % 8);
        assert_int_equal(ff_packet_open(e.rx, out, len, room, &p), -EBADMSG);
        out[i / 8] ^= (uint8_t)(1u << i % 8);
    }
    for (size_t n = 0; n < len; n++)
        assert_int_equal(ff_packet_open(e.rx, out, n, room, &p), -EBADMSG);
    must_count(&e, 0, 0);
    assert_int_equal(ff_packet_open(e.rx, out, len, room, &p), 0); /* they changed nothing */
    ends_free(&e);
}

static void test_strangers(void **state)
{
    static const uint8_t other_key[FF_KEY_LEN] = "a key of another fork", *keys[] = {key_bytes, other_key};
    static const uint8_t other_salt[FF_PACKET_SALT_LEN] = "another image", *salts[] = {salt, other_salt};
    uint8_t out[FF_PACKET_MAX];
    struct ff_packet p;
    (void)state;

    for (unsigned i = 1; i < 4; i++) {
        struct ends e = ends_new();
        size_t len = make(&e, 7, 40, out);
        struct ff_packets *who = end_of(keys[i & 1], salts[i >> 1]);
        assert_int_equal(ff_packet_open(who, out, len, room, &p), -EBADMSG);
        ff_packets_free(who);
        ends_free(&e);
    }
}

/* Reordered, repeated, lost, late */
static void test_order(void **state)
{
    enum { N = 3000 };
    static uint8_t out[N][FF_PACKET_MAX];
    struct ends e = ends_new();
    struct ff_packet p;
    size_t len = 0;
    (void)state;

    for (unsigned i = 0; i < N; i++)
        len = make(&e, i, 8, out[i]);
    static const unsigned order[] = {100, 103, 101, 99, 102, 500, 499};
    for (unsigned i = 0; i < FF_ARRAY_LEN(order); i++) {
        assert_int_equal(ff_packet_open(e.rx, out[order[i]], len, room, &p), 0);
        assert_int_equal(p.page, order[i]);
        for (unsigned k = 0; k <= i; k++)
            assert_int_equal(ff_packet_open(e.rx, out[order[k]], len, room, &p), -EALREADY);
    }
    must_count(&e, 7, 500 - 99 + 1 - 7);
    assert_int_equal(ff_packet_open(e.rx, out[2000], len, room, &p), 0);
    /* as old as the window, and younger by one */
    assert_int_equal(ff_packet_open(e.rx, out[2000 - FF_PACKET_WINDOW], len, room, &p), -EALREADY);
    assert_int_equal(ff_packet_open(e.rx, out[2001 - FF_PACKET_WINDOW], len, room, &p), 0);
    assert_int_equal(ff_packet_open(e.rx, out[2001 - FF_PACKET_WINDOW], len, room, &p), -EALREADY);
    for (unsigned i = 2001; i < N; i++)
        assert_int_equal(ff_packet_open(e.rx, out[i], len, room, &p), 0);
    for (unsigned i = 0; i < N; i++)
        if (i > 2000 || N - 1 - i >= FF_PACKET_WINDOW)
            assert_int_equal(ff_packet_open(e.rx, out[i], len, room, &p), -EALREADY);
    must_count(&e, 7 + 2 + N - 2001, N - 99 - (7 + 2 + N - 2001));
    ends_free(&e);
}

/* A number of a key that is far from now makes no key, and changes nothing */
static void test_far(void **state)
{
    struct ends e = ends_new();
    uint8_t out[FF_PACKET_MAX], far[FF_PACKET_MAX];
    struct ff_packet p;
    (void)state;

    size_t len = make(&e, 1, 8, out);
    assert_int_equal(ff_packet_open(e.rx, out, len, room, &p), 0);
    len = make(&e, 2, 8, out);
    for (unsigned i = 0; i < 40; i++) {
        memcpy(far, out, len);
        far[4 + FF_PACKET_GENERATION / 8 + i % 5] ^= (uint8_t)(1 + i);
        assert_int_equal(ff_packet_open(e.rx, far, len, room, &p), -EBADMSG);
    }
    assert_int_equal(ff_packet_open(e.rx, out, len, room, &p), 0);
    must_count(&e, 2, 0);
    ends_free(&e);
}

/* Nor before the first one has opened, whoever sends it */
static void test_far_first(void **state)
{
    static const struct { uint64_t number; int rc; } first[] = {
        {UINT64_MAX, -EBADMSG}, {2ull << FF_PACKET_GENERATION, -EBADMSG},
        {(2ull << FF_PACKET_GENERATION) - 1, 0}, {2ull << FF_PACKET_GENERATION, 0}};
    struct ends e = ends_new();
    uint8_t out[FF_PACKET_MAX];
    struct ff_packet p;
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(first); i++) {
        e.tx->next = first[i].number;
        size_t len = make(&e, 1, 8, out);
        assert_int_equal(ff_packet_open(e.rx, out, len, room, &p), first[i].rc);
        if (first[i].rc == -EBADMSG)
            assert_true(!e.rx->cipher[0].h && !e.rx->cipher[1].h);
    }
    ends_free(&e);
}

static void test_addresses(void **state)
{
    static const struct { const char *text, *shown; } good[] = {
        {"239.1.2.3", "239.1.2.3:49420"}, {"224.0.0.1:5", "224.0.0.1:5"},
        {"ff15::1", "[ff15::1]:49420"}, {"[ff15::1]:7", "[ff15::1]:7"}, {"[ff15::1]", "[ff15::1]:49420"}};
    static const char *const bad[] = {"", "10.0.0.1", "240.0.0.1", "239.1.2", "239.1.2.3:", "239.1.2.3:0",
                                      "239.1.2.3:65536", "239.1.2.3:5x", "fe80::1", "[ff15::1", "[ff15::1]x",
                                      "[ff15::1]:", "name", "auto", "[]:1"};
    struct ff_group_at at;
    struct ff_error err;
    char text[FF_GROUP_TEXT];
    (void)state;

    for (size_t i = 0; i < FF_ARRAY_LEN(good); i++) {
        assert_int_equal(ff_group_at_parse(good[i].text, &at, &err), 0);
        ff_group_at_text(&at, text);
        assert_string_equal(text, good[i].shown);
    }
    for (size_t i = 0; i < FF_ARRAY_LEN(bad); i++)
        if (ff_group_at_parse(bad[i], &at, &err) != -EINVAL)
            fail_msg("taken: \"%s\"", bad[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_changed),
        cmocka_unit_test(test_strangers),  cmocka_unit_test(test_order),
        cmocka_unit_test(test_far),        cmocka_unit_test(test_far_first),
        cmocka_unit_test(test_addresses)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
