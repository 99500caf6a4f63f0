/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_tree.c - which agents get the image from other agents, and from which
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the parent's network carries fanout images, however many hosts there are.
 *
 * Picture      parent --> host 1 --> host 2 --> host 4       fanout 1: a chain
 *                                                            fanout 2: each feeds two
 *              The first fanout hosts get the image from the parent. Each of the others is told,
 *              before the export, to wait FEED_MS for an agent that feeds it. Once an agent has the
 *              parent's image (fork_verify.c) it is told whom to feed: in the order of hosts, who is
 *              fed by nobody yet, by the first that is in the tree and feeds fewer than fanout.
 * Failure      a host that fails is replaced in the same way, one of the first by one that it fed. An
 *              agent that is fed by nobody, or whose feeder is too slow, asks the parent: nothing
 *              depends on the tree but time. While the parent's side is away, agents get what they
 *              lack from each other, but not with verify=on: an agent that gives on what is wrong is
 *              found out by that, and feeds nobody from then on.
 * Invariants   from each host in the tree the way by feeders ends at one that the parent feeds.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fork.h"

#define FEED_MS 10000
#define CHUNK_BYTES (512ull << 10) /* fork_tree_options() */
#define LEVEL 3u /* a chunk has come, then it is known of, and asked for behind another: docs/results.md */

/* In chunks that one link carries, the time until @n hosts have an image of @chunks, each with
 * @fanout: a link that feeds several is shared, and each level begins by LEVEL chunks later */
static uint64_t time_of(uint64_t chunks, size_t n, unsigned fanout)
{
    uint64_t level = fanout, depth = 0;

    for (size_t left = n; left; level *= fanout, depth++)
        left -= left < level ? left : (size_t)level;
    return (chunks + LEVEL * depth) * fanout;
}

unsigned fork_fanout(size_t n, uint64_t bytes)
{
    uint64_t chunks = bytes / CHUNK_BYTES + 1;
    unsigned best = 1;

    for (unsigned k = 2; k <= 8; k++)
        if (time_of(chunks, n, k) < time_of(chunks, n, best))
            best = k;
    return best;
}

/* Agents that cannot be fed say so as well */
static bool may_feed(const struct fork *f)
{
    static const char *const not_with[] = {"reconnect=0", "prefill=off"};
    const char *given = f->s.o.link_options;

    for (size_t i = 0; given && i < FF_ARRAY_LEN(not_with); i++)
        if (strstr(given, not_with[i]))
            return false;
    return f->o->fanout;
}

/* What is passed on is passed on by chunks: each host has it by some later than the one before */
const char *fork_tree_options(const struct fork *f)
{
    const char *given = f->s.o.link_options;
    size_t n = 0;

    for (size_t i = 0; i < f->s.n_hosts; i++)
        n += !f->s.hosts[i].here;
    return n > 1 && may_feed(f) && !(given && strstr(given, "chunk=")) ? ",chunk=512K" : "";
}

static bool is_remote(const struct host *h)
{
    return h->keyed && h->state == HOST_LISTENING;
}

void fork_tree_plan(struct fork *f)
{
    size_t n = 0;

    for (size_t i = 0; i < f->s.n_hosts; i++)
        n += is_remote(&f->s.hosts[i]);
    f->fanout = f->o->fanout >= 0 ? (unsigned)f->o->fanout : fork_fanout(n, f->memory_bytes);
    if (!may_feed(f) || n <= f->fanout)
        f->fanout = 0;
    n = 0;
    for (size_t i = 0; f->fanout && i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        if (!is_remote(h) || n++ < f->fanout)
            continue;
        h->is_fed = true;
        h->fed_ms = ff_now_ms() + FEED_MS;
        host_send(h, json_pack("{si}", "await_feed", FEED_MS));
    }
}

static bool can_feed(const struct host *h)
{
    return h->keyed && h->verified && !h->gives_wrong &&
           (h->state == HOST_IMAGE || h->state == HOST_COMPLETE);
}

/* By feeders to the parent, and not by @but */
static bool in_tree(const struct fork *f, const struct host *h, const struct host *but)
{
    /* who complete each other may go round in a circle */
    for (size_t n = 0; n < f->s.n_hosts && h->is_fed && h != but && can_feed(h) && h->feeder; n++)
        h = h->feeder;
    return !h->is_fed && h != but && can_feed(h);
}

static unsigned feeds(const struct fork *f, const struct host *h)
{
    unsigned n = 0;

    for (size_t i = 0; i < f->s.n_hosts; i++)
        n += f->s.hosts[i].feeder == h && f->s.hosts[i].state == HOST_IMAGE;
    return n;
}

/* That get the image from the parent, and may give it on */
static unsigned firsts(const struct fork *f)
{
    unsigned n = 0;

    for (size_t i = 0; i < f->s.n_hosts; i++)
        n += f->s.hosts[i].keyed && !f->s.hosts[i].is_fed && f->s.hosts[i].state != HOST_FAILED &&
             !f->s.hosts[i].gives_wrong;
    return n;
}

static struct host *find_feeder(struct fork *f, const struct host *of)
{
    for (size_t i = 0; i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        if (h != of && can_feed(h) && in_tree(f, h, of) && feeds(f, h) < f->fanout)
            return h;
    }
    return NULL;
}

/* What does not come yet is the fault of the one before, perhaps. While it is paused it has another end, and may change
 * its feeder for ever */
static void change_feeder(struct host *h, struct host *by)
{
    if (h->feeder != by && !h->paused_until_ms)
        h->fed_ms = ff_now_ms();
    h->feeder = by;
}

static void feed_by_parent(struct host *h)
{
    h->is_fed = false;
    change_feeder(h, NULL);
    host_send(h, json_pack("{si}", "await_feed", 0));
}

/* Who should have fed it cannot: it is said once, since it is mostly one reason for all */
static void give_up_feeder(struct fork *f, struct host *h)
{
    h->not_by = h->feeder ? h->feeder : h->not_by;
    if (!h->feeder) {
        /* it has left that one already, for what it gave */
    } else if (h->state == HOST_IMAGE && h->paused_until_ms) {
        change_feeder(h, NULL); /* the parent's side is away: another one feeds it */
    } else if (h->state == HOST_IMAGE) {
        if (!f->told_unfed)
            session_note(&f->s, "host %s gets its memory from the parent, not from host %s: %s",
                     h->node->host, h->feeder->node->host, h->unfed);
        f->told_unfed = true;
        feed_by_parent(h);
    }
    free(h->unfed);
    h->unfed = NULL;
}

static void set_feeder(struct host *by, struct host *h)
{
    FF_AUTO_FREE char *to = host_at(h);

    change_feeder(h, by);
    if (by)
        host_send(by, json_pack("{ss}", "feed", to));
}

/* The parent's side is away. Whoever has most may have what this one lacks, and be fed by it: they
 * complete each other */
static void feed_orphan(struct fork *f, struct host *h)
{
    struct host *best = NULL;

    for (size_t i = 0; i < f->s.n_hosts; i++) {
        struct host *by = &f->s.hosts[i];
        if (by != h && by != h->not_by && can_feed(by) &&
            (!best || by->present_bytes > best->present_bytes))
            best = by;
    }
    h->not_by = NULL;
    h->is_orphan = true;
    set_feeder(best, h);
}

/* The parent's side is back: an orphan's feeder stays if it gets more than the orphan does */
static void end_orphan(const struct fork *f, struct host *h)
{
    h->is_orphan = false;
    if (!h->is_fed || !in_tree(f, h, NULL))
        change_feeder(h, NULL);
}

void fork_tree_turn(struct fork *f)
{
    for (size_t i = 0; may_feed(f) && i < f->s.n_hosts; i++) {
        struct host *h = &f->s.hosts[i];
        if (h->unfed)
            give_up_feeder(f, h);
        if (h->is_orphan && !h->paused_until_ms)
            end_orphan(f, h);
        if (h->state != HOST_IMAGE || (h->feeder && can_feed(h->feeder)))
            continue;
        if (h->paused_until_ms) {
            feed_orphan(f, h);
            continue;
        }
        if (!h->is_fed)
            continue;
        if (firsts(f) < f->fanout) {
            feed_by_parent(h);
            continue;
        }
        set_feeder(find_feeder(f, h), h);
    }
}
