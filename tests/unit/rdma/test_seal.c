/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_seal.c - sealed control messages: only the next record of the peer, unchanged, opens
 */
#include "unit.h"

#include "seal.h"

#define HEAD "FFcs...."

static const uint8_t secret[FF_KDF_LEN] = "a secret of thirty-two bytes...";
static const enum ff_hs_suite suites[] = {FF_HS_AES256_GCM, FF_HS_CHACHA20_POLY1305};

struct ends {
    struct ff_seal tx, rx;
    uint8_t plain[FF_MSG_MAX], sealed[FF_MSG_MAX + FF_SEAL_TAG_LEN], opened[FF_MSG_MAX];
};

static struct ends *ends_new(enum ff_hs_suite suite)
{
    struct ends *e = malloc(sizeof(*e));

    assert_non_null(e);
    assert_int_equal(ff_seal_init(&e->tx, suite, secret), 0);
    assert_int_equal(ff_seal_init(&e->rx, suite, secret), 0);
    for (size_t i = 0; i < sizeof(e->plain); i++)
        e->plain[i] = (uint8_t)(i * 131 >> 3);
    return e;
}

static void must_close(struct ends *e, uint32_t len)
{
    assert_int_equal(ff_seal_close(&e->tx, HEAD, 8, e->plain, len, e->sealed), 0);
}

static int open_it(struct ends *e, uint32_t len)
{
    return ff_seal_open(&e->rx, HEAD, 8, e->sealed, len + FF_SEAL_TAG_LEN, e->opened);
}

static void test_round_trip(void **state)
{
    static const uint32_t lens[] = {1, 15, 16, 17, 100, 4096, FF_MSG_MAX - 1, FF_MSG_MAX};
    (void)state;

    for (size_t s = 0; s < FF_ARRAY_LEN(suites); s++) {
        struct ends *e = ends_new(suites[s]);
        uint8_t before[16];
        for (size_t i = 0; i < FF_ARRAY_LEN(lens); i++) {
            must_close(e, lens[i]);
            if (lens[i] >= 16)
                assert_memory_not_equal(e->sealed, e->plain, 16);
            assert_int_equal(open_it(e, lens[i]), lens[i]);
            assert_memory_equal(e->opened, e->plain, lens[i]);
        }
        must_close(e, 16); /* one message twice is two different records */
        memcpy(before, e->sealed, 16);
        must_close(e, 16);
        assert_memory_not_equal(before, e->sealed, 16);
        free(e);
    }
}

/* Any change ends the direction for good */
static void test_changed(void **state)
{
    (void)state;

    for (size_t s = 0; s < FF_ARRAY_LEN(suites); s++)
        for (unsigned bit = 0; bit < 8 * (40 + FF_SEAL_TAG_LEN); bit++) {
            struct ends *e = ends_new(suites[s]);
            must_close(e, 40);
            e->sealed[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_int_equal(open_it(e, 40), -EBADMSG);
            e->sealed[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_int_equal(open_it(e, 40), -EBADMSG);
            free(e);
        }
    struct ends *e = ends_new(FF_HS_AES256_GCM);
    must_close(e, 40);
    assert_int_equal(ff_seal_open(&e->rx, "FFcs...!", 8, e->sealed, 56, e->opened), -EBADMSG);
    free(e);
}

static void test_truncated(void **state)
{
    (void)state;

    for (uint32_t len = 0; len < 40 + FF_SEAL_TAG_LEN; len++) {
        struct ends *e = ends_new(FF_HS_AES256_GCM);
        must_close(e, 40);
        assert_int_equal(ff_seal_open(&e->rx, HEAD, 8, e->sealed, len, e->opened), -EBADMSG);
        free(e);
    }
}

static void test_order(void **state)
{
    struct ends *e = ends_new(FF_HS_AES256_GCM);
    (void)state;

    must_close(e, 20); /* left out */
    must_close(e, 20);
    assert_int_equal(open_it(e, 20), -EBADMSG);
    free(e);

    e = ends_new(FF_HS_AES256_GCM); /* repeated */
    must_close(e, 20);
    assert_int_equal(open_it(e, 20), 20);
    assert_int_equal(open_it(e, 20), -EBADMSG);
    free(e);

    e = ends_new(FF_HS_AES256_GCM); /* another direction's, another suite's */
    must_close(e, 20);
    e->rx.secret[0] ^= 1;
    assert_int_equal(ff_seal_init(&e->rx, FF_HS_AES256_GCM, (uint8_t[FF_KDF_LEN]){1}), 0);
    assert_int_equal(open_it(e, 20), -EBADMSG);
    assert_int_equal(ff_seal_init(&e->rx, FF_HS_CHACHA20_POLY1305, secret), 0);
    assert_int_equal(open_it(e, 20), -EBADMSG);
    free(e);
}

/* Both ends change the key together, and the old one is gone */
static void test_rekey(void **state)
{
    struct ends *e = ends_new(FF_HS_AES256_GCM);
    uint8_t first[FF_KDF_LEN], first_secret[FF_KDF_LEN];
    (void)state;

    memcpy(first, e->tx.key, sizeof(first));
    memcpy(first_secret, e->tx.secret, sizeof(first_secret));
    e->tx.number = e->rx.number = FF_SEAL_RECORDS - 2;
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(!memcmp(first, e->tx.key, sizeof(first)), i < 2);
        must_close(e, 64);
        assert_int_equal(open_it(e, 64), 64);
        assert_memory_equal(e->opened, e->plain, 64);
        assert_memory_equal(e->tx.key, e->rx.key, sizeof(first));
    }
    assert_memory_not_equal(first_secret, e->tx.secret, sizeof(first_secret));
    e->rx.number = e->tx.number = 2 * (uint64_t)FF_SEAL_RECORDS - 1; /* and again */
    memcpy(first, e->tx.key, sizeof(first));
    must_close(e, 64);
    assert_int_equal(open_it(e, 64), 64);
    assert_memory_not_equal(first, e->tx.key, sizeof(first));
    must_close(e, 64);
    assert_int_equal(open_it(e, 64), 64);
    free(e);
}

/* One that does not change it is not understood */
static void test_rekey_left_out(void **state)
{
    struct ends *e = ends_new(FF_HS_AES256_GCM);
    (void)state;

    e->tx.number = FF_SEAL_RECORDS - 1;
    e->rx.number = FF_SEAL_RECORDS - 1;
    must_close(e, 64);
    assert_int_equal(open_it(e, 64), 64);
    assert_int_equal(ff_seal_init(&e->rx, FF_HS_AES256_GCM, secret), 0);
    e->rx.number = FF_SEAL_RECORDS;
    must_close(e, 64);
    assert_int_equal(open_it(e, 64), -EBADMSG);
    free(e);
}

/* A link that has changed its keys has nothing left of which the first ones could be made */
static void test_first_secrets_gone(void **state)
{
    struct ff_epoch epoch = {.suite = FF_HS_AES256_GCM};
    uint8_t out[64 + FF_SEAL_TAG_LEN], plain[64] = {0};
    struct ff_secrets *s, *peer;
    (void)state;

    memset(epoch.from_source, 0x5a, FF_KDF_LEN);
    memset(epoch.from_dest, 0xa5, FF_KDF_LEN);
    memset(epoch.queue, 0x11, sizeof(epoch.queue));
    assert_int_equal(ff_secrets_new(&epoch, true, &s), 0);
    assert_int_equal(ff_secrets_new(&epoch, false, &peer), 0);
    assert_memory_equal(s->epoch.queue, epoch.queue, sizeof(epoch.queue));
    s->tx.number = s->rx.number = peer->tx.number = peer->rx.number = FF_SEAL_RECORDS - 1;
    assert_int_equal(ff_seal_close(&s->tx, HEAD, 8, plain, 64, out), 0);
    assert_int_equal(ff_seal_open(&peer->rx, HEAD, 8, out, sizeof(out), plain), 64);
    assert_int_equal(ff_seal_close(&peer->tx, HEAD, 8, plain, 64, out), 0);
    assert_int_equal(ff_seal_open(&s->rx, HEAD, 8, out, sizeof(out), plain), 64);
    assert_null(memmem(s, sizeof(*s), epoch.from_source, FF_KDF_LEN));
    assert_null(memmem(s, sizeof(*s), epoch.from_dest, FF_KDF_LEN));
    assert_null(memmem(peer, sizeof(*peer), epoch.from_source, FF_KDF_LEN));
    assert_null(memmem(peer, sizeof(*peer), epoch.from_dest, FF_KDF_LEN));
    ff_secrets_free(s);
    ff_secrets_free(peer);
}

UNIT_MAIN(cmocka_unit_test(test_round_trip), cmocka_unit_test(test_changed),
          cmocka_unit_test(test_truncated), cmocka_unit_test(test_order),
          cmocka_unit_test(test_rekey), cmocka_unit_test(test_rekey_left_out),
          cmocka_unit_test(test_first_secrets_gone))
