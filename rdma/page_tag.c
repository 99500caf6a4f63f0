/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * page_tag.c - a keyed hash of pages, which travels beside them
 */
#include <errno.h>
#include <string.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include "page_tag.h"
#include "wirebuf.h"

#define NONCE_LEN 12
#define MAP_LEN (FF_GRANULES_MAX / 8)

/* Only the bits of @n granules */
static void copy_map(uint8_t out[MAP_LEN], const uint8_t *map, uint32_t n)
{
    memset(out, 0, MAP_LEN);
    memcpy(out, map, n / 8);
    if (n % 8)
        out[n / 8] = (uint8_t)(map[n / 8] & ((1u << (n % 8)) - 1));
}

/* What lies together at once */
static int add_granules(gnutls_hmac_hd_t h, const struct ff_tagged *d, const uint8_t *left_out)
{
    uint32_t n = d->len_bytes / d->granule_bytes;
    int rc = 0;

    for (uint32_t i = 0, run; i < n && !rc; i += run) {
        for (run = 0; i + run < n && !(left_out[(i + run) / 8] & (1u << ((i + run) % 8))); run++)
            ;
        if (run)
            rc = gnutls_hmac(h, (const uint8_t *)d->data + (size_t)i * d->granule_bytes,
                             (size_t)run * d->granule_bytes);
        else
            run = 1;
    }
    return rc;
}

int ff_page_tag(const uint8_t key[FF_LINK_SECRET_LEN], uint64_t number, const void *head,
                size_t head_len, const struct ff_tagged *d, uint8_t out[FF_PAGE_TAG_LEN])
{
    uint8_t nonce[NONCE_LEN] = {0}, map[2][MAP_LEN];
    struct ff_wirebuf b = {.data = nonce, .len = sizeof(nonce)};
    uint32_t n = d->len_bytes / d->granule_bytes;
    gnutls_hmac_hd_t h;

    if (n > FF_GRANULES_MAX ||
        gnutls_hmac_init(&h, GNUTLS_MAC_AES_GMAC_256, key, FF_LINK_SECRET_LEN) < 0)
        return -EIO;
    ff_wb_put(&b, number, 8);
    gnutls_hmac_set_nonce(h, nonce, sizeof(nonce));
    copy_map(map[0], d->zero, n);
    copy_map(map[1], d->poison, n);
    int rc = gnutls_hmac(h, head, head_len);
    if (!rc)
        rc = gnutls_hmac(h, map, sizeof(map));
    for (unsigned i = 0; i < MAP_LEN; i++)
        map[0][i] |= map[1][i];
    if (!rc)
        rc = add_granules(h, d, map[0]);
    gnutls_hmac_deinit(h, out);
    return rc < 0 ? -EIO : 0;
}

bool ff_page_tag_is(const uint8_t a[FF_PAGE_TAG_LEN], const uint8_t b[FF_PAGE_TAG_LEN])
{
    return !gnutls_memcmp(a, b, FF_PAGE_TAG_LEN);
}
