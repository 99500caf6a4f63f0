/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * relay.h - an agent serves the image that it gets to another agent
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      relay                                           the agent that it feeds
 *              connect, with the fork's key             --->   at the port where its source came
 *              FEED: digest of the table, addresses     --->   (dest_feed.c)
 *                                                       <---   WELCOME; queues
 *              answer READs of claims and of pages      <---   prefill (feed.h)
 *                                                       <---   DONE
 *
 *              What it serves lies in the files of its image, which it maps once more, for reading: what
 *              is missing there has no page in that mapping either, and nobody waits for one.
 * Threads      one of its own for the stages, two of a responder (responder.h) while there is a link.
 *              ff_relay_stop(): any.
 * Ownership    the destination is the caller's, and must outlast the relay; it may be complete.
 * Failure      a link that breaks is followed by another; nobody to feed for TRY_MS, or who says that it
 *              is not to come, ends the relay, and its owner is told. Who has no link to its source just
 *              now is asked again for as long as a link may be away.
 *              A link that pins memory would fill every hole of those files: there pages are pushed out of
 *              buffers (feed_pushed.h).
 */
#ifndef FF_MIGRATE_RELAY_H
#define FF_MIGRATE_RELAY_H

#include "farfork.h"

struct ff_relay;

/* A relay's thread calls @failed, when it gives up */
struct ff_relay_owner {
    void (*failed)(void *opaque, const struct ff_address *to, const char *why);
    void *opaque;
};

/* @to: the port of the other agent. @is_older: that one gets a later image of the same machine, with a key of its
 * own, which @to has. 0; -EINVAL: nothing can be served: there is no key, or a region is lent */
int ff_relay_start(struct ff_dest *d, const struct ff_address *to, bool is_older,
                   const struct ff_relay_owner *owner, struct ff_relay **out, struct ff_error *err);
void ff_relay_stop(struct ff_relay *r); /* ends it and frees it; NULL: nothing */
bool ff_relay_has_ended(const struct ff_relay *r);

#endif
