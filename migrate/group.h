/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * group.h - one image to many agents at once, by multicast
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the source's network carries one image, however many agents there are, and so does every
 *              other link. It is a way ahead of prefill and of faults, never in place of them: what does
 *              not come this way is missing, and comes by the link.
 *
 * Picture      source's process                              each agent
 *              PUBLISH: group, salt ----- the link, sealed --->  from RUNNING on: join, listen
 *              HERE, until all run  ----- the group ---------->  prefill waits
 *              PAGE, in parts; ZEROS ----------------------->    all parts: claim, install
 *                                   <---- FIRST: what children will touch (working_set.h): sent next
 *              END                                               prefill: what is missing
 *                                   <---- PROGRESS: packets that came, that did not
 *              rate: what the slowest one gets, but for those that get less than half of what the one in
 *              the middle gets. No packet is sent twice.
 * Threads      source: one of the group, farfork-group, from the first RUNNING on; lock guards members.
 *              Agent: one, farfork-group, which alone has the socket and the parts; over, why: any.
 * Ownership    the source's memory and process outlast the group, whose last source may be gone.
 * Invariants   1. A packet is of this image: it opens by a key from the fork's key and a salt that the
 *                 source of this image has said over its link.
 *              2. A page is installed when all its parts are here, by who claims it, once.
 *              3. Nothing is installed before the image is frozen, and GO was read.
 *              4. Prefill waits for a group as long as something new comes, and never for longer than
 *                 QUIET_MS without a page; faults never wait.
 * Failure      loss, reorder, copies, a late joiner, a slot that another page needs: a page is missing.
 *              Nothing comes for FIRST_MS, nothing more for IDLE_MS, END, no memory for a socket: prefill
 *              goes on by its link, or by whoever feeds it; why_not says which it was.
 *              A source that finds that nobody hears it, or that those in the middle lose more than half,
 *              stops.
 * Limits       who has the fork's key can forge packets: with verify=on no group is used. One kind
 *              of link: what the first has, UDP by tcp, RDMA (UD) by verbs; who has the other does without.
 */
#ifndef FF_MIGRATE_GROUP_H
#define FF_MIGRATE_GROUP_H

#include "pager.h"
#include "wire.h"

/* Why END was sent */
enum ff_group_end { FF_GROUP_ALL_SENT, FF_GROUP_LOST };

/* --- source: group_send.c --- */

struct ff_link;

/* What PUBLISH says over @l, of an image of @regions; the first one decides by which interface it is
 * sent. @verify: nothing may be */
void ff_group_offer(struct ff_group *g, unsigned member, struct ff_link *l,
                    const struct ff_regions *regions, bool verify, struct ff_announce *out);

unsigned ff_group_member(struct ff_group *g); /* one more source: its number */
void ff_group_runs(struct ff_group *g, unsigned member);
void ff_group_heard(struct ff_group *g, unsigned member, const struct ff_stats *st);
/* An agent says which pages its children will touch soon: they are sent before others. The first one is heard */
void ff_group_first(struct ff_group *g, unsigned member, const struct ff_page_ref *pages, unsigned n);
void ff_group_left(struct ff_group *g, unsigned member);

/* --- source: group_rate.c --- */

#define FF_GROUP_RATE_FIRST 6250000ull /* bytes a second: 50 Mbit/s */
#define FF_GROUP_RATE_MIN 1250000ull
#define FF_GROUP_RATE_MAX 5000000000ull

struct ff_group_rate {
    uint64_t bytes_s;
    bool had_loss;    /* until then it doubles */
    unsigned useless; /* turns in which those in the middle lost more than half, at the lowest rate */
};

/* What one agent has got since the last turn */
struct ff_group_got {
    uint64_t packets, lost;
};

/* The next turn: @got of @n agents, sorted here. @is_full: as much was sent as the rate permits */
void ff_group_rate_turn(struct ff_group_rate *r, struct ff_group_got *got, unsigned n, bool is_full);

/* --- agent: group_recv.c --- */

struct ff_hearing;

/* Join the group that PUBLISH named. 0, or why not; then prefill does not wait */
int ff_hearing_start(struct ff_pager *p, const struct ff_announce *a, const struct ff_key *key,
                     struct ff_error *err);
void ff_hearing_await(struct ff_pager *p); /* the prefill thread: until it is prefill's turn */
void ff_hearing_stop(struct ff_hearing *h); /* NULL: nothing */
void ff_hearing_free(struct ff_hearing *h);
void ff_hearing_count(struct ff_hearing *h, uint64_t *packets, uint64_t *lost);

/* Why less than all came by it; "": nothing is wrong. Any thread */
const char *ff_hearing_why_not(const struct ff_hearing *h);

#endif
