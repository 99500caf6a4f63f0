/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_page_tag.c - a page's tag is the one that docs/wire.md says, and of all that it is made of
 */
#include "unit.h"

#include <gnutls/crypto.h>

#include "page_tag.h"

#define GRANULE 512u
#define N 13u /* granules: a map that ends inside a byte */
#define MAP (FF_GRANULES_MAX / 8)

static uint8_t key[FF_LINK_SECRET_LEN], head[24], data[N * GRANULE], zero[MAP], poison[MAP];

static struct ff_tagged tagged(void)
{
    return (struct ff_tagged){.data = data, .len_bytes = sizeof(data), .granule_bytes = GRANULE,
                              .zero = zero, .poison = poison};
}

static void fill(void)
{
    memset(zero, 0, sizeof(zero));
    memset(poison, 0, sizeof(poison));
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 7 ^ i >> 8);
    for (size_t i = 0; i < sizeof(key); i++)
        key[i] = (uint8_t)(200 - i);
    for (size_t i = 0; i < sizeof(head); i++)
        head[i] = (uint8_t)(3 * i);
}

/* By another function of GnuTLS: AES-256-GCM of nothing, with all of it as additional data */
static void other_way(uint64_t number, uint8_t out[FF_PAGE_TAG_LEN])
{
    static uint8_t all[sizeof(head) + 2 * MAP + sizeof(data)];
    uint8_t nonce[12] = {0};
    size_t n = sizeof(head), out_len = FF_PAGE_TAG_LEN;
    gnutls_datum_t k = {.data = key, .size = sizeof(key)};
    gnutls_aead_cipher_hd_t h;

    memcpy(all, head, n);
    memcpy(all + n, zero, MAP);
    memcpy(all + n + MAP, poison, MAP);
    n += 2 * MAP;
    for (unsigned i = 0; i < N; i++) {
        if ((zero[i / 8] | poison[i / 8]) & 1u << (i % 8))
            continue;
        memcpy(all + n, data + i * GRANULE, GRANULE);
        n += GRANULE;
    }
    for (unsigned i = 0; i < 8; i++)
        nonce[i] = (uint8_t)(number >> (8 * i));
    assert_int_equal(gnutls_aead_cipher_init(&h, GNUTLS_CIPHER_AES_256_GCM, &k), 0);
    assert_int_equal(gnutls_aead_cipher_encrypt(h, nonce, sizeof(nonce), all, n, FF_PAGE_TAG_LEN,
                                                "", 0, out, &out_len), 0);
    gnutls_aead_cipher_deinit(h);
}

static void one(uint64_t number, uint8_t out[FF_PAGE_TAG_LEN])
{
    struct ff_tagged d = tagged();

    assert_int_equal(ff_page_tag(key, number, head, sizeof(head), &d, out), 0);
}

static void test_is_gmac(void **state)
{
    uint8_t a[FF_PAGE_TAG_LEN], b[FF_PAGE_TAG_LEN];
    (void)state;

    for (unsigned round = 0; round < 4; round++) {
        fill();
        if (round & 1)
            zero[0] = 0x82, zero[1] = 0x10;
        if (round & 2)
            poison[0] = 0x41, zero[0] |= 0x40; /* in one map, or in both */
        one(round ? UINT64_MAX - round : 1, a);
        other_way(round ? UINT64_MAX - round : 1, b);
        assert_memory_equal(a, b, sizeof(a));
        assert_true(ff_page_tag_is(a, b));
        b[15] ^= 1;
        assert_false(ff_page_tag_is(a, b));
    }
}

/* Flip bit @bit of @byte: another tag; and back */
static void must_count(uint8_t *byte, unsigned bit, const uint8_t was[FF_PAGE_TAG_LEN])
{
    uint8_t now[FF_PAGE_TAG_LEN];

    *byte ^= (uint8_t)(1u << bit);
    one(5, now);
    assert_memory_not_equal(now, was, sizeof(now));
    *byte ^= (uint8_t)(1u << bit);
}

static void test_all_counts(void **state)
{
    uint8_t was[FF_PAGE_TAG_LEN], now[FF_PAGE_TAG_LEN];
    (void)state;

    fill();
    zero[0] = 4;
    one(5, was);
    for (unsigned i = 0; i < sizeof(key); i++)
        must_count(&key[i], i % 8, was);
    for (unsigned i = 0; i < sizeof(head); i++)
        must_count(&head[i], i % 8, was);
    for (unsigned i = 0; i < sizeof(data); i += 101)
        if (i / GRANULE != 2)
            must_count(&data[i], i % 8, was);
    for (unsigned i = 0; i < N; i++) {
        must_count(&zero[i / 8], i % 8, was);
        must_count(&poison[i / 8], i % 8, was);
    }
    one(6, now);
    assert_memory_not_equal(now, was, sizeof(now));
    /* what is left out, and bits behind the last granule, are nothing */
    data[2 * GRANULE + 9] ^= 1;
    zero[N / 8] |= (uint8_t)(1u << (N % 8));
    poison[MAP - 1] = 0xff;
    one(5, now);
    assert_memory_equal(now, was, sizeof(now));
}

UNIT_MAIN(cmocka_unit_test(test_is_gmac), cmocka_unit_test(test_all_counts))
