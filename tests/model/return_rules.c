/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * return_rules.c - a guest that visits: what must hold when home takes it back, and when it is well
 */
#include "model.h"

unsigned visit_seen(const struct world *w)
{
    bool home = w->d_at == D_COMPLETE && w->s_at == S_COMPLETE;

    return (unsigned)home << VISIT_CAME_HOME |
           (unsigned)(home && w->n_tries > 1 && w->d_session > 1) << VISIT_CAME_LATER |
           (unsigned)(w->s_runs && w->o_given_up && w->o_link) << VISIT_WENT_ON |
           (unsigned)(w->o_hold == HELD && w->s_at == S_GO) << VISIT_HELD |
           (unsigned)(w->o_runs && !w->n_tries) << VISIT_TAKEN_BACK |
           (unsigned)(w->o_at == OUT_TAKING && w->d_at == D_RECV_STATE) << VISIT_TAKEN_MEANWHILE |
           (unsigned)(w->s_runs && w->d_at == D_DEAD && w->o_released) << VISIT_FREED |
           (unsigned)(w->s_runs && w->o_released && w->d_at == D_ACCEPT && !w->o_lease) << VISIT_UNLEASED;
}

/* Home runs the guest as of the way out's GO */
enum rule return_rule(const struct world *w)
{
    if (w->s_runs || w->d_runs)
        return TWO_RUNNERS;
    if (w->s_disks || w->d_disks)
        return TWO_DISKS;
    return w->o_torn ? NOT_WHOLE : RULE_KEPT;
}

/* Home or away has all that the guest needs, or gets it, and nothing else can still become of it by itself */
bool visit_is_well(const struct world *w, const struct config *c)
{
    if (w->o_at == OUT_TAKEN_BACK)
        return w->o_runs && w->s_at == S_DEAD;
    if (w->s_at == S_FAILED)
        return w->s_runs && !w->s_keys && !w->d_go && !go_can_come(w) &&
               (w->o_link || (w->o_page == PAGE_PRESENT && (!c->lease || w->o_released)));
    if (w->d_at != D_COMPLETE || !w->d_runs)
        return false;
    if (w->s_at == S_COMPLETE)
        return !w->s_keys;
    return w->s_at == S_DEAD || (!c->resume && w->s_at == S_PAUSED);
}

static enum loss lost_away(const struct world *w, const struct config *c)
{
    if (go_can_come(w))
        return LOSS_NONE;
    if (w->d_at == D_DEAD)
        return LOSS_BOTH_DIED;
    if (w->d_go)
        return pages_can_come(w) ? LOSS_NONE : LOSS_PAGES;
    if (!c->lease)
        return LOSS_AWAY_DIED;
    return w->o_given_up ? LOSS_GIVEN_UP : LOSS_NONE;
}

static enum loss lost_home(const struct world *w, const struct config *c)
{
    bool gone = w->s_gone && w->s_at != S_FAILED;

    if (c->lease && w->o_at >= OUT_RECORDED && c->fence != FENCE_KILL)
        return LOSS_TAKING_DIED;
    if (gone)
        return w->d_go ? LOSS_DEST_DIED : LOSS_DEST_UNKNOWN;
    return w->o_page != PAGE_PRESENT && w->o_bytes < BYTES_COMING ? LOSS_PAGES : LOSS_NONE;
}

enum loss visit_lost(const struct world *w, const struct config *c)
{
    if (w->s_at == S_DEAD)
        return w->o_at > OUT_SERVES && w->d_at != D_DEAD ? LOSS_NONE : lost_away(w, c);
    if (w->d_at == D_DEAD)
        return lost_home(w, c);
    if (c->resume)
        return LOSS_NONE;
    if (w->s_at != S_PAUSED || w->o_at != OUT_SERVES)
        return LOSS_NONE;
    if (!w->d_go)
        return w->d_at == D_WAIT_GO ? LOSS_NONE : LOSS_GO_BROKEN;
    return w->d_at == D_PAUSED && !pages_can_come(w) ? LOSS_LINK_BROKEN : LOSS_NONE;
}
