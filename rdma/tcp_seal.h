/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * tcp_seal.h - sealed frames on a data connection: what passes can be neither read nor changed
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      sendmsg() and recvmsg() of a queue with a key. Requests, replies and completions are
 *              the same (tcp_queue.c). The cipher is the copy: it reads memory where it lies and
 *              writes what is sent, and reads what was received and writes where that belongs.
 *
 * Picture      guest memory, in segments --- cipher --> | head 8 | sealed ... | tag 16 | --- send()
 *              recv() --> | head | sealed ... | tag | --- cipher --> landing place
 *                                     what belongs to several places: cipher, in place, then copies
 *
 *              secret of the queue (tcp_tls.h) -> HKDF "from source", "from destination": a direction's;
 *              of it key, nonces and their limit as seal.h has them. The head is what is authenticated
 *              beside the content.
 *
 * Threads      as the queue: one at a time. GnuTLS allocates in them: docs/invariants.md (7).
 * Ownership    sockets stay the queue's; secrets, and ciphers: seal.h.
 * Invariants   1. A frame is given out whole, after its tag was found right, or never. After a wrong one
 *                 the landing place holds zeros, or what it held.
 *              2. Nothing is opened out of a landing place: prefill's may be discarded under a READ, when
 *                 a fault has brought the page (page_pool.h).
 *              3. A frame that begins within the data of a request or reply ends within it.
 * Failure      one frame that is not the peer's next one: EBADMSG, for good.
 *              An end without the control channel's DONE is a broken link, as without a key.
 * Limits       TCP_SEALED_MAX, TCP_SEALED_MIXED: content of a frame. AHEAD: read beyond it.
 */
#ifndef FF_RDMA_TCP_SEAL_H
#define FF_RDMA_TCP_SEAL_H

#include <sys/socket.h>
#include <sys/types.h>

#include "seal.h"

struct tcp_seal;

/* @secret: what both ends of this connection have, and nobody else; @active: the source. 0, -ENOMEM,
 * -EIO */
int tcp_seal_new(enum ff_hs_suite suite, const uint8_t secret[FF_KDF_LEN], bool active,
                 struct tcp_seal **out, struct ff_error *err);
void tcp_seal_free(struct tcp_seal *s); /* @s may be NULL */

/* As sendmsg(2) with MSG_DONTWAIT. The first @n_head segments are no data. After EAGAIN the next
 * segments to send must be the same: they are on their way already */
ssize_t tcp_seal_send(struct tcp_seal *s, int fd, const struct msghdr *msg, unsigned n_head);

/* As recvmsg(2) with MSG_DONTWAIT: one frame's content. @is_data: the segments are where the rest of a
 * request's or reply's data belongs, and must be the same after EAGAIN; else one segment, with room
 * for TCP_SEALED_MIXED bytes */
ssize_t tcp_seal_recv(struct tcp_seal *s, int fd, const struct msghdr *msg, bool is_data);

/* Has it read ahead? poll(2) does not see that */
bool tcp_seal_more(const struct tcp_seal *s);

/* So many bytes that the peer has begun to send are still to come before a frame can be opened; 0: not known */
uint32_t tcp_seal_lacks(const struct tcp_seal *s);

#endif
