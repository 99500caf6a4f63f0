/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * feed.h - destination: prefill reads from an agent that has the image too, instead of the source
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      one source feeds few agents, and they feed the others (relay.h): the source's network
 *              carries few images, however many hosts there are. An agent's link to the source stays:
 *              faults go there, the short way, and prefill does when nobody feeds it.
 *
 * Picture      prefill thread                             relay
 *              READ of claims, by the FAULT queue ------> a byte a page: PRESENT, HOLE, ...
 *              chunks all of whose pages it has: `has`
 *              READ of such a chunk, by PREFILL's ------> its image
 *              claim, install: as ever
 *              source away: of other chunks, a run of pages that it has, in the same way
 *
 *              A relay announces what it has by the claims that it keeps anyway (claims.h): there is
 *              nothing to send, and nothing to keep there for each that it feeds. They come by a queue of
 *              their own: behind a chunk they would come too late to ask for the next one.
 * Invariants   1. A page is read only after its claim was read as PRESENT or HOLE: the image cannot
 *                 change, so what is read then is right.
 *              2. A link that fed is freed before its buffers are used with another.
 *              3. A relay needs the move's key, and its digest of the table must be ours.
 *              4. What a relay cannot read is not POISONED here: the source may have it.
 *              5. With verify=on nothing of a relay's is installed before the source's tag for it, which
 *                 comes by the pager's link (verify.h), was compared with it. A relay whose bytes are wrong
 *                 is left for good, and the owner is told (on_misfed). One that has an earlier image of the
 *                 machine (offer.is_older) is asked for smaller parts, and the source for what is wrong of them.
 * Failure      a relay that breaks off, is silent for silence_ms, or has nothing new for so long: prefill
 *              goes on over the pager's link with what is missing, until another relay comes. One that
 *              is of no use is told so: it does not come again.
 *              While the link to the source is away, prefill goes on with what the relay has, and may
 *              bring the last page. The keys of the source's segments are not looked at meanwhile. No
 *              relay may ever get the rest of a chunk then: what it has of one is taken page by page. Not
 *              with verify=on: who is to say what is right? Nor over a link whose adapter may still write
 *              into buffers. Then prefill ends with that link, as it does unfed.
 * Threads      the prefill thread's, but for ff_feed_new() and next_feed.
 */
#ifndef FF_MIGRATE_FEED_H
#define FF_MIGRATE_FEED_H

#include "prefill_private.h"
#include "verify.h"

#define FF_FEED_EARLIER_FIRST "feed: an earlier image comes first" /* the words of a REFUSE that means NOT_YET */

struct ff_feed {
    struct ff_link *link;
    struct ff_offer offer;
    struct ff_mr buffers, looks; /* of prefill's buffers; of seen */
    uint8_t *seen;               /* claims as they were read last */
    uint64_t *has;               /* bitmap of chunks */
    uint64_t look_from, look_n;  /* chunks */
    uint64_t look_pages;         /* at most */
    struct ff_pager_region *part; /* of a chunk that it has not all of: a run of pages that it has */
    uint64_t part_first, part_end;
    uint64_t looked_ns, news_ns; /* when it looked last; when there was something new */
    bool looks_now, was_away; /* the source was, when it looked last */
    bool while_away; /* it came while there was no other way to get anything */
    _Atomic unsigned *older; /* of an earlier image: the count of those that feed this one */
    uint64_t same_bytes, other_bytes;
    uint64_t no_news; /* chunks that it was looked at for since there was something new */
};

/* Takes @link, also on failure, of which its peer is told; its queues are open, and its peer has what @offer
 * says. @buf: FF_MSG_MAX bytes */
int ff_feed_new(struct ff_pager *p, struct ff_link *link, const struct ff_offer *offer,
                struct ff_feed **out, uint8_t *buf, struct ff_error *err);
void ff_feed_free(struct ff_feed *f);

/* Any thread: @f is taken, and is what prefill uses next. NULL: nothing is. @buf: FF_MSG_MAX bytes */
void ff_feed_offer(struct ff_pager *p, struct ff_feed *f, uint8_t *buf);

/* --- for prefill.c --- */

void ff_feed_await(struct ff_pager *p); /* the first one, until feed_until_ns */

/* Over the pager's link, or, when that is away, as ff_feed_leave() */
int ff_feed_begin(struct ff_pager *p, struct ff_error *why);

/* Nothing is under way: use the feed that came */
void ff_feed_take(struct ff_pager *p);

/* Prefill failed by @rc: 1: it goes on, over the pager's link or by another feed, for which an agent
 * waits; else it ends */
int ff_feed_leave(struct ff_pager *p, int rc, struct ff_error *why);
void ff_feed_end(struct ff_pager *p, int rc); /* of the thread, as prefill_turn() has it */

/* Of an earlier image: @len bytes are as the source has them, or not: 0; -ESTALE: so few are that it is of no use */
int ff_feed_same(struct ff_feed *f, uint64_t len, bool same, struct ff_error *why);

/* verify=on: these pages are not what the source has: -EBADMSG */
int ff_feed_wrong(const struct ff_pager_region *r, uint64_t first, uint64_t n, struct ff_error *why);

/* There is no chunk left that the relay is known to have: a part of another one is the next cut, or
 * claims are read, unless it is too early: 1: go on, 0: nothing more to start now, -errno */
int ff_feed_next(struct ff_pager *p, struct ff_error *err);

/* Whatever prefill waits for: 0; -ETIMEDOUT: the feed has brought nothing for too long */
int ff_feed_check(struct ff_pager *p, uint64_t now_ns, struct ff_error *why);

/* An agent has asked for all, and faults have the rest: should its source go away, other agents may have
 * that; 1, or -errno: it has */
bool ff_feed_may_need(struct ff_pager *p);
int ff_feed_rest(struct ff_pager *p, struct ff_error *why);

/* As the link's poll(); returns 0 early when there is something new */
int ff_feed_poll(struct ff_pager *p, struct ff_wc *wc, unsigned n, int timeout_ms,
                 struct ff_error *err);

static inline const struct ff_fed_region *ff_feed_of(const struct ff_pager *p,
                                                     const struct ff_pager_region *r)
{
    return &p->prefill->feed->offer.r[r - p->region];
}

static inline bool ff_feed_is_bad(const uint8_t *poison, size_t n)
{
    while (n && !poison[n - 1])
        n--;
    return n;
}

static inline struct ff_link *ff_prefill_link(const struct ff_pager *p)
{
    return p->prefill->feed ? p->prefill->feed->link : p->link;
}

static inline int ff_prefill_post(struct ff_pager *p, const struct ff_pager_region *r, bool fed,
                                  const struct ff_wr *wr, struct ff_error *err)
{
    struct ff_link *l = ff_prefill_link(p);

    if (!fed)
        return ff_pager_post(p, FF_QUEUE_PREFILL, r, wr, err);
    const struct ff_verify_of of = {.r = r, .link = l, .base = ff_feed_of(p, r)->addr};
    return p->verify ? ff_verify_post(p, FF_QUEUE_PREFILL, &of, wr, err)
                     : l->ops->post(l, FF_QUEUE_PREFILL, wr, err);
}

static inline int ff_prefill_poll(struct ff_pager *p, struct ff_wc *wc, unsigned n, int timeout_ms,
                                  struct ff_error *err)
{
    return p->prefill->feed ? ff_feed_poll(p, wc, n, timeout_ms, err)
                            : ff_pager_poll(p, FF_QUEUE_PREFILL, wc, n, timeout_ms, err);
}

#endif
