/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_broken.c - the source after a break behind GO: ask, or take the guest back
 */
#include "model.h"

static void ask(struct gen *g)
{
    const struct world *f = g->from;

    if (!g->c->resume || !dest_listens(g) || !world_can_connect(f) || f->s_link)
        return;
    if (gen_lacks(g, M_ASKS_ONCE) && f->s_asked_once)
        return;
    if (f->s_session != f->d_session) /* check_hello(): there is no move here that could go on */
        return;
    if (f->s_at == S_PAUSED) {
        struct world *w = gen_begin(g, STEP, AT_SOURCE, "connects again");
        w->s_link = (uint8_t)gen_connect(g, MSG(FF_MSG_RESUME, RESUME_SERVE));
        w->s_keys = 0; /* they were the old link's */
        w->s_at = S_ASKED;
        w->s_asked_once = gen_lacks(g, M_ASKS_ONCE);
        gen_emit(g);
    }
    /* complete, and the destination does not know: with fallback=go it needs a lease until then */
    if (f->s_at == S_COMPLETE && g->c->fallback && !f->d_released) {
        struct world *w = gen_begin(g, STEP, AT_SOURCE, "connects again, to say WITHDRAWN");
        w->s_link = (uint8_t)gen_connect(g, MSG(FF_MSG_RESUME, RESUME_SERVE));
        w->s_at = S_ASKED;
        gen_emit(g);
    }
    bool open = false;
    for (unsigned e = 0; e < LINKS; e++)
        open |= f->link[e].d_open && !f->link[e].cut;
    if (f->s_at == S_TAKEN_BACK && !open) {
        struct world *w = gen_begin(g, STEP, AT_SOURCE, "connects again, to say TAKEN-BACK");
        unsigned e = gen_connect(g, MSG(FF_MSG_RESUME, RESUME_TAKEN_BACK));
        world_link(w, e)->s_open = 0; /* it waits for no answer: the fence has succeeded */
        gen_emit(g);
    }
}

static void answer(struct gen *g)
{
    const struct world *f = g->from;
    uint8_t front = world_front(f, f->s_link, TO_SOURCE);

    if (f->s_at != S_ASKED || !front)
        return;
    struct world *w = gen_begin(g, STEP, AT_SOURCE, "takes the answer");
    gen_get(g, w->s_link, TO_SOURCE);
    bool welcome = MSG_TYPE(front) == FF_MSG_WELCOME;
    if (welcome && MSG_KIND(front) == FF_ANSWER_NOT_STARTED && !w->s_done) {
        gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_WITHDRAWN, 0));
        source_runs_on(w, g);
    } else if (welcome && MSG_KIND(front) == FF_ANSWER_RUNNING && !w->s_done) {
        gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_PUBLISH, 0));
        gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_KEYS, 0));
        w->s_keys = 1;
        w->s_at = S_WAIT_DONE;
    } else if (welcome && MSG_KIND(front) == FF_ANSWER_COMPLETE) {
        w->s_at = S_WAIT_DONE; /* DONE follows */
    } else {
        link_close(w, w->s_link, AT_SOURCE);
        w->s_link = 0;
        w->s_at = w->s_done ? S_COMPLETE : S_PAUSED;
    }
    gen_emit(g);
}

static void fence(struct gen *g)
{
    struct world *w = gen_begin(g, STEP, AT_SOURCE,
                                g->c->fence == FENCE_KILL ? "fence: the destination is off"
                                                          : "fence: its storage is reserved");
    w->d_fenced = 1;
    if (g->c->fence == FENCE_KILL && w->d_at != D_DEAD)
        dest_ends(w, D_DEAD);
    w->s_at = S_FENCED;
    gen_emit(g);
    if (g->from->n_deaths >= g->c->deaths)
        return;
    bool ignored = gen_lacks(g, M_FENCE_FAILED);
    w = gen_begin(g, FAULT, AT_SOURCE, ignored ? "fence: failed, ignored" : "fence: failed");
    w->n_deaths++;
    w->s_at = ignored ? S_FENCED : S_TAKING;
    gen_emit(g);
}

static void activate(struct gen *g, uint8_t then)
{
    struct world *w = gen_begin(g, STEP, AT_SOURCE, "activates disks, runs the guest as of GO");

    w->s_disks = w->s_runs = 1;
    w->s_ran_on = 1;
    w->s_keys = gen_lacks(g, M_KEYS_KEPT) ? w->s_keys : 0;
    w->s_at = then;
    gen_emit(g);
}

static void drop_overlay(struct gen *g, uint8_t then)
{
    struct world *w = gen_begin(g, STEP, AT_SOURCE, "drops the overlays");

    if (w->overlay == OVERLAY_OPEN)
        w->overlay = OVERLAY_DROPPED;
    w->s_at = then;
    gen_emit(g);
}

static void take_back(struct gen *g)
{
    const struct world *f = g->from;
    bool late = f->s_at == S_COMPLETE && gen_lacks(g, M_TAKE_AFTER_DONE);

    if ((f->s_at == S_PAUSED || late) && (!f->s_lease || gen_lacks(g, M_LEASE_NOT_AWAITED))) {
        /* while the destination lives somebody may want it, and resuming has to do without */
        bool gone = f->d_at == D_DEAD || f->d_at == D_FAILED;
        struct world *w = gen_begin(g, gone ? STEP : CHOICE, AT_SOURCE, "writes TAKEN-BACK down");
        link_close(w, w->s_link, AT_SOURCE);
        w->s_link = 0;
        w->s_record = !gen_lacks(g, M_NO_RECORD_HERE);
        w->s_at = S_TAKING;
        gen_emit(g);
    }
    if (f->s_at == S_TAKING && gen_lacks(g, M_DROP_FIRST) && f->overlay == OVERLAY_OPEN)
        drop_overlay(g, S_TAKING);
    if (f->s_at == S_TAKING && gen_lacks(g, M_ACTIVATE_FIRST) && !f->s_runs)
        activate(g, S_TAKING);
    if (f->s_at == S_TAKING)
        fence(g);
    if (f->s_at == S_FENCED)
        drop_overlay(g, S_DROPPED);
    if (f->s_at == S_DROPPED)
        activate(g, S_TAKEN_BACK);
}

/* By itself, or because an operator says so */
void source_broken_steps(struct gen *g)
{
    const struct world *f = g->from;
    struct world *w;

    if (f->s_at == S_DEAD)
        return;
    ask(g);
    answer(g);
    if (g->c->fallback)
        take_back(g);
    if (f->told && f->s_at == S_PAUSED) {
        w = gen_begin(g, STEP, AT_SOURCE, "is told that nothing ran there; goes on here");
        source_runs_on(w, g);
        gen_emit(g);
    }
    if (f->o_is && f->o_link && g->c->resume && (f->s_at == S_PAUSED || f->s_at == S_ASKED)) {
        w = gen_begin(g, STEP, AT_SOURCE, "the way out is served again: GO of the return was in vain; goes on there");
        source_runs_on(w, g);
        gen_emit(g);
    }
    if (gen_lacks(g, M_RUNS_UNASKED) && f->s_at == S_PAUSED) {
        w = gen_begin(g, STEP, AT_SOURCE, "goes on here without an answer");
        source_runs_on(w, g);
        gen_emit(g);
    }
}
