/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fault_model.c - what goes wrong, time, and whoever watches: agents, operators
 */
#include "model.h"

static void break_links(struct gen *g)
{
    const struct world *f = g->from;

    if (f->n_breaks >= g->c->breaks)
        return;
    for (unsigned e = 1; e <= LINKS; e++) {
        const struct link_life *l = &f->link[e - 1];
        if (l->cut || (!l->s_open && !l->d_open))
            continue;
        struct world *w = gen_begin(g, FAULT, AT_LINK, "breaks");
        g->step.epoch = (uint8_t)e;
        world_link(w, e)->cut = 1;
        w->n_breaks++;
        gen_emit(g);
    }
}

static void kill_source(struct gen *g)
{
    struct world *w = gen_begin(g, FAULT, AT_SOURCE, "dies");

    for (unsigned e = 1; e <= LINKS; e++)
        if (w->link[e - 1].s_open)
            link_close(w, e, AT_SOURCE);
    w->s_link = w->s_runs = w->s_disks = w->s_keys = w->s_stalled = 0;
    w->s_at = S_DEAD;
    w->n_deaths++;
    gen_emit(g);
}

static void kill_dest(struct gen *g, bool reboot)
{
    struct world *w = gen_begin(g, FAULT, AT_DEST, reboot ? "its host reboots" : "dies");

    dest_ends(w, D_DEAD);
    if (w->o_is)
        return_home_dies(w);
    if (reboot) /* what an agent there has seen is gone */
        w->d_left = w->told = 0;
    w->n_deaths++;
    gen_emit(g);
}

static void deaths(struct gen *g)
{
    const struct world *f = g->from;

    /* while it visits it is well, and may yet come to harm */
    bool settled = guest_is_well(f, g->c) && !(g->c->returns && f->s_at == S_FAILED);

    if (f->n_deaths >= g->c->deaths || settled)
        return;
    if (f->s_at != S_DEAD)
        kill_source(g);
    if (f->d_at != D_DEAD && (f->d_at != D_FAILED || f->o_is))
        kill_dest(g, false);
    if (f->o_is)
        return;
    if (f->d_left || f->told || f->d_at != D_DEAD)
        kill_dest(g, true);
}

/* --- time: the lease of fallback=go --- */

static void tick(struct gen *g)
{
    const struct world *f = g->from;
    bool asked = f->d_ask && f->d_ask <= LEASE_TICKS;

    if (!g->c->fallback ||
        (!f->s_lease && !(f->d_runs && gen_lacks(g, M_LEASE_NO_MARGIN)) && !f->d_lease && !asked))
        return;
    struct world *w = gen_begin(g, STEP, AT_HOST, "time passes");
    bool ends = f->d_lease == 1;
    w->s_lease -= !!w->s_lease;
    w->d_lease -= !!w->d_lease;
    w->d_ask += asked;
    bool margin = !gen_lacks(g, M_LEASE_NO_MARGIN);
    bool stops = (margin ? ends : !f->d_lease) && !w->d_stalled && !w->d_released &&
                 (w->d_runs || w->d_disks);
    if (stops && !gen_lacks(g, M_LEASE_IGNORED)) {
        g->step.what = "time passes: the lease ends, the destination stops its vCPUs";
        w->d_runs = w->d_disks = 0;
    }
    gen_emit(g);
}

static void stall_dest(struct gen *g)
{
    const struct world *f = g->from;

    if (!g->c->fallback || (g->c->fence != FENCE_KILL && !gen_lacks(g, M_STALL_UNFENCED)))
        return;
    if (f->n_stalls < g->c->stalls && (f->d_runs || f->d_disks) && !f->d_stalled) {
        struct world *w = gen_begin(g, FAULT, AT_DEST, "its lease thread gets no CPU");
        w->d_stalled = 1;
        w->n_stalls++;
        gen_emit(g);
    }
    if (f->d_stalled) {
        struct world *w = gen_begin(g, STEP, AT_DEST, "its lease thread gets CPU again");
        w->d_stalled = 0;
        if (!w->d_lease && !w->d_released)
            w->d_runs = w->d_disks = 0;
        gen_emit(g);
    }
}

/* --- who watches --- */

static void tell(struct gen *g)
{
    const struct world *f = g->from;
    bool dead = f->d_at == D_DEAD || f->d_at == D_FAILED;
    struct world *w;

    if (g->c->agent && dead && !f->told && f->s_at == S_PAUSED) {
        bool guess = gen_lacks(g, M_AGENT_GUESSES);
        bool unwritten = g->c->record && !f->d_record;
        if (f->d_left || unwritten || guess) {
            w = gen_begin(g, STEP, AT_HOST,
                          f->d_left ? "the agent has reaped it: it said that nothing ran"
                          : guess   ? "the agent takes a death for \"nothing ran\""
                                    : "no record there that it may run: nothing ran");
            w->told = 1;
            gen_emit(g);
        }
    }
    /* fallback=go: a source that is gone for good holds no lease back */
    bool may = !f->s_record || g->c->fence == FENCE_KILL; /* it lives: so it was not fenced */
    if (g->c->fallback && f->s_at == S_DEAD && may && !f->d_released && f->d_go && !dead &&
        !gen_lacks(g, M_SOURCE_DEATH_UNTOLD)) {
        w = gen_begin(g, STEP, AT_HOST, "the source is dead and has not taken back: go on there");
        w->d_released = 1;
        gen_emit(g);
    }
}

void fault_steps(struct gen *g)
{
    break_links(g);
    deaths(g);
    tick(g);
    stall_dest(g);
    tell(g);
}
