/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * datagram.h - UDP to an IP multicast group, and from it
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
void ff_group_at_text(const struct ff_group_at *at, char out[FF_GROUP_TEXT]);

/* A socket, on the interface that has the address of this end of @link_fd, a TCP connection. *@max_bytes:
 * of a datagram that no router cuts. 0, or why not: -EAFNOSUPPORT: @link_fd is none */
int ff_datagram_sender(const struct ff_group_at *at, int link_fd, int *fd, uint32_t *max_bytes,
                       struct ff_error *err);
int ff_datagram_receiver(const struct ff_group_at *at, int link_fd, int *fd, struct ff_error *err);

/* At most FF_DATAGRAMS of @len bytes each, one behind the other, as one (UDP GSO) or one by one.
 * *@gso: whether to try the first; it remembers. The kernel may drop some. 0, or why none can be sent */
#define FF_DATAGRAMS 44u
int ff_datagram_send(int fd, const uint8_t *data, uint32_t len, unsigned n, bool *gso,
                     struct ff_error *err);

/* As many as are there, at most FF_DATAGRAMS; @room of FF_DATAGRAMS times @each bytes; longer ones are
 * left out. Their number, 0 after @timeout_ms, -errno */
int ff_datagram_recv(int fd, uint8_t *room, uint32_t each, uint32_t len[FF_DATAGRAMS], int timeout_ms);

#endif
