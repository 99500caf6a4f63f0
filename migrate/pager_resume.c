/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pager_resume.c - the pager without a link, and with the next one
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      link breaks   prefill thread: ends, unless another agent feeds it (feed.h)
 *                            fault thread: answers what is here, gathers what is not, and says
 *                            that it is parked
 *              park()        waits for both
 *                            (the owner frees the link: no late write lands)
 *                            (a new one; its keys go into region[].rkey)
 *              attach()      registers slots, buffers, landing; state UP
 *                            fault thread: posts the slots again whose pages never came
 *              (the owner starts prefill: what it has claimed in place first, then again whatever
 *              is MISSING)
 *
 * Threads      park() and attach(): the one that goes through the destination's stages. Between
 *              the two nobody else looks at link and rkey.
 * Invariants   No claim goes back: a page that was INFLIGHT is read again by who has claimed it,
 *              into the same place. So one install is all that it gets.
 *              An agent's fault thread gives its own back (ff_claim_leave()): others may bring them.
 * Failure      an install that failed for good is not mended by a link: park() says why.
 */
#include <errno.h>
#include <sys/eventfd.h>

#include "cleanup.h"
#include "pager.h"
#include "thread.h"
#include "verify.h"

/* Under lock */
static bool is_parked(const struct ff_pager *p)
{
    return p->fault_parked && (!p->prefill_up || p->prefill_ended || p->prefill_is_fed);
}

/* If it has ended */
static void join_prefill(struct ff_pager *p)
{
    pthread_mutex_lock(&p->lock);
    bool ended = p->prefill_up && p->prefill_ended;
    pthread_mutex_unlock(&p->lock);
    if (!ended)
        return;
    pthread_join(p->prefill_thread, NULL);
    p->prefill_up = p->prefill_ended = false;
}

int ff_pager_park(struct ff_pager *p, int timeout_ms, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct ff_error why;
    int rc = 0;

    if (!p->link)
        return 0;
    ff_error_set(&why, ECONNRESET, "the link is given up, for the next one");
    ff_pager_break(p, &why); /* no more than a word, when it is broken already */
    pthread_mutex_lock(&p->lock);
    while (!is_parked(p) && !rc)
        rc = ff_cond_wait_until(&p->changed, &p->lock, end);
    bool parked = is_parked(p);
    pthread_mutex_unlock(&p->lock);
    if (!parked)
        return 1;
    rc = ff_pager_check(p, FF_PAGER_FAILED, err);
    if (rc)
        return rc;
    join_prefill(p);
    ff_segments_dereg(&p->land, p->link);
    p->link = NULL;
    return 0;
}

static int check_link(const struct ff_pager *p, const struct ff_link *link, struct ff_error *err)
{
    uint32_t most = 0;

    for (unsigned i = 0; i < p->n_regions; i++)
        most = FF_MAX(most, p->region[i].chunk_bytes);
    if (link->pins == p->pins && link->max_len_bytes >= most)
        return 0;
    return ff_error_set(err, ENOTSUP,
                        "resume: a link of another kind (%s), or of messages of %u bytes (need a "
                        "chunk, %u): come back by the same network",
                        link->ops->name, link->max_len_bytes, most);
}

int ff_pager_attach(struct ff_pager *p, struct ff_link *link, struct ff_error *err)
{
    int rc = check_link(p, link, err);

    if (rc)
        return rc;
    p->link = link;
    rc = ff_fault_engine_attach(p, err);
    if (!rc)
        rc = ff_prefill_engine_attach(p, err);
    if (!rc && p->opts->verify)
        rc = ff_verify_new(p, err);
    if (!rc && p->land.n)
        rc = ff_segments_register(&p->land, link, 0, p->opts->odp, err);
    if (rc) {
        ff_segments_dereg(&p->land, link);
        p->link = NULL;
        return ff_error_pass(err, rc, "resume");
    }
    join_prefill(p);
    if (!p->prefill_up) /* else another agent feeds it */
        ff_prefill_engine_restart(p);
    atomic_fetch_add(&p->count.breaks, 1);
    atomic_fetch_add(&p->count.paused_ns,
                     ff_now_ns() - atomic_exchange(&p->count.broken_ns, 0));
    pthread_mutex_lock(&p->lock);
    if (p->state == FF_PAGER_BROKEN)
        p->state = FF_PAGER_UP; /* else what has failed stays so, and the next wait says it */
    p->fault_parked = false;
    p->attached = true;
    pthread_mutex_unlock(&p->lock);
    eventfd_write(p->wake_fd, 1);
    return 0;
}
