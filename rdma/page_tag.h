/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * page_tag.h - a keyed hash of pages, which travels beside them
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      tag = AES-256-GMAC(key, number; head, map of zeros, map of poison, the granules that
 *              are in neither, in order)
 *
 * Purpose      GMAC, since it is three times as quick as HMAC-SHA256 where the CPU has both, and
 *              reads in parts what does not lie together. Its one trap: two tags of one key with
 *              one number give the key away. So who makes tags counts them, and nobody else does.
 */
#ifndef FF_RDMA_PAGE_TAG_H
#define FF_RDMA_PAGE_TAG_H

#include <stddef.h>
#include <stdint.h>

#include "link.h"

#define FF_PAGE_TAG_LEN 16

/* Bytes as a READ brings them */
struct ff_tagged {
    const void *data;
    uint32_t len_bytes, granule_bytes; /* at most FF_GRANULES_MAX granules */
    /* a bit each, as in struct ff_wr: left out, and not looked at. Bits behind the last one mean
     * nothing */
    const uint8_t *zero, *poison;
};

/* @number: never used before with @key, by who makes tags. 0 or -EIO */
int ff_page_tag(const uint8_t key[FF_LINK_SECRET_LEN], uint64_t number, const void *head,
                size_t head_len, const struct ff_tagged *d, uint8_t out[FF_PAGE_TAG_LEN]);

/* In a time that tells nothing of either */
bool ff_page_tag_is(const uint8_t a[FF_PAGE_TAG_LEN], const uint8_t b[FF_PAGE_TAG_LEN]);

#endif
