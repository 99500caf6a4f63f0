/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * proxy_keeper.h - a second process that keeps the source's stream while GO was not sent
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a QEMU that has lost the socket of its stream after the package never runs its guest
 *              again. So a process that does nothing else has a descriptor of that socket, too. When
 *              the proxy is killed before GO, it gets the guest back as the proxy would have
 *              (proxy_back.c), and ends.
 * Invariants   1. The proxy writes down that it lets go before it sends GO. A proxy that was killed in
 *                 between has let go of a guest that may run there.
 *              2. From then on the keeper gives nothing back: it says SHUT and reads the stream to its
 *                 end, since from 10.0 on a QEMU whose return path ends without SHUT, when its stream
 *                 is over, runs its guest again. To an older one it says SHUT after the end.
 * Limits       who kills both before GO loses the guest with QEMU 7.2 to 10.1, as if there was no
 *              keeper. Who kills both after GO, between the end of QEMU's stream, which comes when all
 *              memory is there, and its SHUT, makes a QEMU from 10.0 on run its guest: part of a
 *              second. A domain's keeper does nothing before GO; its QEMU's stream is not slow.
 */
#ifndef FF_CONTROL_PROXY_PROXY_KEEPER_H
#define FF_CONTROL_PROXY_PROXY_KEEPER_H

#include "proxy_state.h"

struct proxy_keeper;

/* While the process has one thread. NULL: there is none, which ends no move */
struct proxy_keeper *proxy_keeper_start(const struct proxy_options *o);

/* All of these take NULL. What it has to know of the QEMU; the stream's socket; whether the guest is
 * let go of; the proxy needs it no more */
void proxy_keeper_tell(struct proxy_keeper *k, const struct proxy *p);
void proxy_keeper_give(struct proxy_keeper *k, int sock);
void proxy_keeper_let_go(struct proxy_keeper *k, bool gone);
void proxy_keeper_end(struct proxy_keeper *k);

#endif
