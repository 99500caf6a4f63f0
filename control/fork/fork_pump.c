/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fork_pump.c - wait for agents, and look after the fork meanwhile
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a wait for all hosts, with a clock for each: a host that is silent is late by what it said last itself,
 *              however much others say.
 * Picture      parent --> host 1 --> host 2     (fork_tree.c)
 *              Host 2 gets nothing while host 1 does not: it is late when both have been silent for the limit, host
 *              1 first. Then another one feeds host 2, whose clock begins anew (fed_ms).
 * Limits       an agent says something when something has changed (agent_send_progress()), and an agent that waits
 *              for another link is not silent (paused_until_ms).
 */
#include <errno.h>
#include <stdlib.h>

#include "fork.h"

#define SHOW_MS 200
#define ASK_MS 1000 /* an agent would have said why by then */

struct pump {
    struct fork *f;
    fork_waits *waits;
    uint64_t begin_ms, limit_ms;
    bool *over; /* it was late: it is not waited for any more */
};

/* Before the export: launchers and logins take turns, so that an answer of one host counts for all */
static uint64_t last_answer(const struct fork *f)
{
    double last = 0;

    for (size_t i = 0; i < f->s.n_hosts; i++)
        last = FF_MAX(last, f->s.hosts[i].answered_ms);
    return (uint64_t)last;
}

/* When @h was heard last, or one by which its memory comes; later than now: they may be silent until then */
static uint64_t last_news(const struct pump *p, const struct host *h)
{
    uint64_t last = p->begin_ms;

    for (size_t n = 0; h && n < p->f->s.n_hosts; n++, h = h->feeder) { /* who complete each other go round in a circle */
        last = FF_MAX(last, FF_MAX(h->heard_ms, h->fed_ms));
        if (h->state != HOST_FAILED)
            last = FF_MAX(last, h->paused_until_ms);
    }
    return last;
}

static bool is_waited_for(const struct pump *p, const struct host *h)
{
    return !p->over[h - p->f->s.hosts] && p->waits(p->f, h);
}

static bool is_overdue(const struct pump *p, const struct host *h)
{
    return ff_now_ms() > last_news(p, h) + p->limit_ms && is_waited_for(p, h);
}

/* The one that feeds it is late first; in a circle none is the first */
static bool is_late(const struct pump *p, const struct host *h)
{
    const struct host *by = h->feeder;

    for (size_t n = 0; by && by != h && n < p->f->s.n_hosts; n++)
        by = by->feeder;
    return is_overdue(p, h) && (by == h || !h->feeder || !is_overdue(p, h->feeder));
}

static void give_up_late(struct pump *p, fork_is_late *late)
{
    struct session *s = &p->f->s;
    bool *now = xcalloc(s->n_hosts + 1, sizeof(*now)); /* what late() does to one changes no other one's clock */

    for (size_t i = 0; i < s->n_hosts; i++)
        now[i] = is_late(p, &s->hosts[i]);
    for (size_t i = 0; i < s->n_hosts; i++) {
        p->over[i] |= now[i];
        if (now[i] && late)
            late(p->f, &s->hosts[i]);
    }
    free(now);
}

static bool is_any_waited_for(const struct pump *p)
{
    for (size_t i = 0; i < p->f->s.n_hosts; i++)
        if (is_waited_for(p, &p->f->s.hosts[i]))
            return true;
    return false;
}

int fork_pump(struct fork *f, fork_waits *waits, fork_is_late *late, int limit_ms)
{
    struct pump p = {.f = f, .waits = waits, .begin_ms = ff_now_ms(), .limit_ms = (uint64_t)limit_ms,
                     .over = xcalloc(f->s.n_hosts + 1, sizeof(*p.over))};
    uint64_t asked = p.begin_ms;

    while (is_any_waited_for(&p) && !f->s.interrupted) {
        session_turn(&f->s, SHOW_MS);
        fork_attach_watch(f);
        fork_verify_images(f);
        fork_tree_turn(f);
        if (ff_now_ms() > asked + ASK_MS) {
            fork_ask_export(f, ASK_MS);
            asked = ff_now_ms();
        }
        fork_show(f, false);
        p.begin_ms = FF_MAX(p.begin_ms, last_answer(f));
        give_up_late(&p, late);
    }
    int rc = is_any_waited_for(&p) ? -ECANCELED : 0;
    free(p.over);
    return rc;
}
