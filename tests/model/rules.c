/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * rules.c - what must hold in every state, when a guest is well, and what can lose it
 */
#include "model.h"

static bool dest_is_gone(const struct world *w)
{
    return w->d_at == D_DEAD || w->d_at == D_FAILED;
}

enum rule rule_broken(const struct world *w, const struct config *c)
{
    bool took = w->s_at >= S_TAKING && w->s_at <= S_TAKEN_BACK;

    if (w->s_runs && w->d_runs)
        return TWO_RUNNERS;
    if (w->o_runs)
        return return_rule(w);
    if (w->s_disks && w->d_disks && !w->d_fenced)
        return TWO_DISKS;
    if (w->s_runs && w->s_gone && !took && w->d_ran)
        return RAN_THERE;
    if (w->d_runs && w->s_ran_on)
        return RAN_HERE;
    for (unsigned p = 0; p < PAGES; p++)
        if (w->d_runs && w->d_page[p] == PAGE_PRESENT && (w->d_version ^ w->s_version) >> p & 1)
            return WRONG_BYTES;
    if (w->d_at == D_COMPLETE && !world_has_pages(w))
        return ZEROS_SHOWN;
    if (w->s_keys && (w->s_at == S_COMPLETE || w->s_at == S_FAILED || w->s_at == S_TAKEN_BACK))
        return KEYS_LEFT;
    if (w->overlay == OVERLAY_DROPPED && w->d_disks && !w->d_fenced)
        return OVERLAY_LOST;
    if (w->overlay == OVERLAY_COMMITTED && w->s_ran_on)
        return BASE_CHANGED;
    if (c->fallback && w->overlay == OVERLAY_NONE && w->d_ran && w->s_ran_on)
        return BASE_CHANGED;
    return RULE_KEPT;
}

/* GO is where the destination can still read it */
bool go_can_come(const struct world *w)
{
    const struct link_life *l = w->d_link ? &w->link[w->d_link - 1] : NULL;

    if (w->d_at != D_WAIT_GO || !l)
        return false;
    for (unsigned i = 0; i < l->n[TO_DEST]; i++)
        if (MSG_TYPE(l->q[TO_DEST][i]) == FF_MSG_GO)
            return true;
    return false;
}

/* Exactly one side runs it, or will by itself, and nothing is left behind */
bool guest_is_well(const struct world *w, const struct config *c)
{
    bool gone = dest_is_gone(w);

    if (c->returns)
        return visit_is_well(w, c);
    if (w->s_at == S_FAILED)
        return w->s_runs && !w->s_keys && (gone || !w->d_go) && !go_can_come(w);
    if (w->s_at == S_TAKEN_BACK)
        return w->s_runs && !w->s_keys && gone;
    if (w->d_at != D_COMPLETE || !w->d_runs)
        return false;
    if (w->s_at == S_DEAD)
        return true;
    return w->s_at == S_COMPLETE ? !w->s_keys : !c->resume && w->s_at == S_PAUSED;
}

bool pages_can_come(const struct world *w)
{
    for (unsigned p = 0; p < PAGES; p++)
        if (w->d_page[p] != PAGE_PRESENT &&
            (!w->d_link || w->link[w->d_link - 1].bytes[p] < BYTES_COMING))
            return false;
    return true;
}

static enum loss lost_with_source(const struct world *w, const struct config *c)
{
    if (w->s_record && (c->fence != FENCE_KILL || dest_is_gone(w)))
        return LOSS_TAKING_DIED;
    if (!w->d_go)
        return go_can_come(w) ? LOSS_NONE : LOSS_SOURCE_DIED;
    if (dest_is_gone(w))
        return LOSS_BOTH_DIED;
    return pages_can_come(w) ? LOSS_NONE : LOSS_PAGES;
}

/* Nothing that can still happen brings it back, and why */
enum loss guest_lost(const struct world *w, const struct config *c)
{
    bool took = w->s_at >= S_TAKING && w->s_at <= S_TAKEN_BACK;

    if (c->returns)
        return visit_lost(w, c);
    if (w->s_at == S_DEAD)
        return lost_with_source(w, c);
    if (!w->s_gone || w->s_at == S_FAILED || took)
        return LOSS_NONE;
    if (w->d_at == D_DEAD && w->n_deaths) {
        if (w->d_go && w->d_ran && (!c->fallback || w->s_done))
            return LOSS_DEST_DIED;
        if (!c->fallback && !w->told && !w->d_left && (!c->record || w->d_record))
            return w->d_ran ? LOSS_DEST_DIED : LOSS_DEST_UNKNOWN;
    }
    if (c->resume || w->s_at != S_PAUSED || !w->n_breaks)
        return LOSS_NONE;
    if (w->d_at == D_FAILED && !w->d_go)
        return LOSS_GO_BROKEN;
    if (w->d_at == D_PAUSED && !pages_can_come(w))
        return LOSS_LINK_BROKEN;
    return LOSS_NONE;
}
