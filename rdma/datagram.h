/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * datagram.h - datagrams to an IP multicast group, and from it
 */
#ifndef FF_RDMA_DATAGRAM_H
#define FF_RDMA_DATAGRAM_H

#include <stdbool.h>
#include <stdint.h>

struct ff_error;

#define FF_GROUP_PORT 49420 /* where none is given */
#define FF_GROUP_TEXT 64

/* An address of a group; IPv4 as ::ffff:a.b.c.d. @port 0: none */
struct ff_group_at {
    uint8_t addr[16];
    uint16_t port;
};

/* "239.1.2.3", "239.1.2.3:PORT", "ff15::1", "[ff15::1]:PORT": 0; -EINVAL: no such address, or of no
 * group */
int ff_group_at_parse(const char *text, struct ff_group_at *out, struct ff_error *err);
bool ff_group_at_is_group(const struct ff_group_at *at);
bool ff_group_at_is_v4(const struct ff_group_at *at);
void ff_group_at_text(const struct ff_group_at *at, char out[FF_GROUP_TEXT]);

/* One end: who sends, or who hears. Its link made it (link.h) */
#define FF_DATAGRAMS 44u
struct ff_datagrams {
    uint32_t max_bytes; /* of one that no router cuts */

    /* At most FF_DATAGRAMS of @len bytes each, one behind the other. Some may be dropped here. 0, or why
     * none can be sent */
    int (*send)(struct ff_datagrams *d, const uint8_t *data, uint32_t len, unsigned n,
                struct ff_error *err);

    /* As many as are there, at most FF_DATAGRAMS; @room of FF_DATAGRAMS times @each bytes; longer ones are
     * left out. Their number, 0 after @timeout_ms, -errno */
    int (*recv)(struct ff_datagrams *d, uint8_t *room, uint32_t each, uint32_t len[FF_DATAGRAMS],
                int timeout_ms);
    void (*free)(struct ff_datagrams *d); /* it leaves the group */
};

/* By UDP, on the interface that has the address of this end of @link_fd, a TCP connection */
int ff_udp_join(const struct ff_group_at *at, bool sends, int link_fd, struct ff_datagrams **out,
                struct ff_error *err);

#endif
