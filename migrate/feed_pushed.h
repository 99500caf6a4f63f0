/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * feed_pushed.h - destination: READs from a relay whose image no adapter may read
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      over a link that pins what it registers, a relay cannot let its image be read: it is
 *              filled while it is served, and pinning would put zeros into every hole of its files, for
 *              good. So there a relay registers its claims, and buffers. What it has announced is asked for
 *              by GRANT, as with prefill=push, and its adapter WRITEs it. To who reads, that is a link like
 *              any other.
 *
 * Picture      prefill                    relay
 *              READ of claims ----------> (its adapter)
 *              READ of pages: GRANT ----> claims looked at, pages copied into a buffer
 *              landing <----------------- WRITE, imm
 *              copied to where the READ has it: complete. What was checked lies where no peer may write
 *
 * Threads      the prefill thread's.
 * Limits       SLOTS READs at once; a copy at either end.
 */
#ifndef FF_MIGRATE_FEED_PUSHED_H
#define FF_MIGRATE_FEED_PUSHED_H

#include "link.h"

/* Takes @real, unless it fails; READs of PREFILL have at most @max_bytes, their rkey is the number of the
 * region + 1, and their address the offset in it. NULL: failed */
struct ff_link *ff_pushed_new(struct ff_link *real, uint32_t max_bytes, struct ff_error *err);

/* So it is over @link, on both sides */
bool ff_pushed_is(const struct ff_link *link);

#endif
