/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * packet.h - datagrams of one sender to a group: sealed one by one, each says where it belongs
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      stream 4, number 8         in the clear; the number is the nonce
 *              kind 2, region 2, part 4, page 8, data        sealed by AES-256-GCM
 *              tag 16
 *              key, iv = HKDF(HKDF-extract(the fork's key), "multicast", salt and generation)
 *              The salt is random, and comes over the link, sealed: so it names the image.
 *
 * Threads      one at a time for each end.
 * Invariants   1. No nonce is used twice with one key: one end alone closes packets of a salt, and each
 *                 has its number. A generation of 2^24 numbers has a key of its own.
 *              2. A packet opens once. What is older than FF_PACKET_WINDOW numbers does not open.
 *              3. What does not open changes nothing at the end that tried.
 * Limits       FF_PACKET_MAX bytes, InfiniBand's largest. UDP takes what an Ethernet frame carries over
 *              IPv6: 1452. Who has opened nothing by packet 2^25 (45 GB by UDP) opens nothing later.
 */
#ifndef FF_RDMA_PACKET_H
#define FF_RDMA_PACKET_H

#include <stddef.h>
#include <stdint.h>

struct ff_error;
struct ff_key;

#define FF_PACKET_MAX 4096u
#define FF_PACKET_OVER 44u /* bytes of a packet that are no data */
#define FF_PACKET_WINDOW 1024u
#define FF_PACKET_SALT_LEN 16
#define FF_PACKET_GENERATION 24 /* log2 of the numbers that one key is used for */

/* HERE: the sender is there, and waits. PAGE: @data is part @part of a page. ZEROS: @part pages from
 * @page on. END: nothing follows; @part: enum ff_group_end */
enum ff_packet_kind { FF_PACKET_HERE, FF_PACKET_PAGE, FF_PACKET_ZEROS, FF_PACKET_END };

struct ff_packet {
    enum ff_packet_kind kind;
    uint16_t region;
    uint32_t part;
    uint64_t page;
    const uint8_t *data;
    uint32_t len;
};

struct ff_packets; /* one end */

/* @k: a fork's, no certificates. 0, -ENOMEM, -EIO */
int ff_packets_new(const struct ff_key *k, const uint8_t salt[FF_PACKET_SALT_LEN],
                   struct ff_packets **out, struct ff_error *err);
void ff_packets_free(struct ff_packets *s); /* @s may be NULL */

/* The sender's next packet, of FF_PACKET_OVER + @p->len bytes, into @out: 0 or -EIO */
int ff_packet_close(struct ff_packets *s, const struct ff_packet *p, uint8_t *out);

/* @p->data points into @room. 0; -EBADMSG: it is not the sender's; -EALREADY: it came before, or so late
 * that nobody knows */
int ff_packet_open(struct ff_packets *s, const uint8_t *in, size_t len, uint8_t room[FF_PACKET_MAX],
                   struct ff_packet *p);

/* That opened, and that are missing between the first and the last of them */
void ff_packets_count(const struct ff_packets *s, uint64_t *opened, uint64_t *missing);

#endif
