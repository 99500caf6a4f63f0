/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest.h - a destination without a guest: an agent owns it (clone/), and its table is the source's
 */
#ifndef FF_MIGRATE_DEST_H
#define FF_MIGRATE_DEST_H

#include "farfork.h"
#include "wire.h"

struct ff_pager;

/**
 * struct ff_dest_owner - who takes any table, and learns when all of it is here
 * @adopt:    in ff_dest_accept(), with a valid HELLO, whose config is taken as it is: adds a region
 *            for each of @peer's, in its order. Refuses by -errno and a reason, which the source
 *            is told
 * @complete: in ff_dest_wait_done(), at once when the last page is present: the pager's threads
 *            have ended, and what children still ask is the owner's to answer (children.h)
 * @misfed:   verify=on: another agent fed this one, and gave it what the source does not have. Nothing
 *            of that was installed, and it feeds this one no more. A thread of the pager's
 */
struct ff_dest_owner {
    int (*adopt)(void *opaque, const struct ff_hello *peer, struct ff_error *err);
    void (*complete)(void *opaque);
    void (*misfed)(void *opaque, const char *why);
    void *opaque;
};

/* Before ff_dest_accept() */
void ff_dest_own(struct ff_dest *d, const struct ff_dest_owner *owner);

/* In adopt(): all of a region is here already; neither watched nor fetched */
void ff_dest_lent(struct ff_dest *d, unsigned region);

/* Nobody connects any more; not beside ff_dest_accept() */
void ff_dest_close_port(struct ff_dest *d);

/* Any thread, when nobody needs the image any more: ff_dest_wait_done() tells the source, which would
 * wait for another link otherwise, and fails with -ECANCELED, soon; so does ff_dest_recover() */
void ff_dest_leave(struct ff_dest *d);

/* Any thread, before ff_dest_running(): prefill waits so long for an agent that feeds it (feed.h), and
 * asks the source only if none comes. Where nobody can feed it, it does not wait */
void ff_dest_await_feed(struct ff_dest *d, int timeout_ms);

/* Of bytes_present, what came from other agents; from this host's earlier image */
uint64_t ff_dest_bytes_fed(struct ff_dest *d);
uint64_t ff_dest_bytes_same(struct ff_dest *d);
uint64_t ff_dest_bytes_group(struct ff_dest *d);

/* Why not all came from the group that its source sends to: *@out; "": it did, or there is none. Any
 * thread */
#define FF_GROUP_WHY_MAX 160
void ff_dest_no_group(struct ff_dest *d, char out[FF_GROUP_WHY_MAX]);

/* After ff_dest_start(): for children.h */
struct ff_pager *ff_dest_pager(struct ff_dest *d);

/* After ff_dest_accept(): the session that it chose */
const uint8_t *ff_dest_session(const struct ff_dest *d);

/* Of the region at @host, which is one of its own */
/* Any thread: its guest is awaited where it came from, READY was heard: it needs no lease. The number of its newest
 * link that was offered; whether a later one than @link was taken up */
uint32_t ff_dest_is_awaited(struct ff_dest *d);
bool ff_dest_has_link_after(const struct ff_dest *d, uint32_t link);

const struct ff_claims *ff_dest_claims(const struct ff_dest *d, const void *host);

/* After ff_dest_accept(); number i is number i of the pager's regions too */
const struct ff_hello *ff_dest_hello(const struct ff_dest *d);

#endif
