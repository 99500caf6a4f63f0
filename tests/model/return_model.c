/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * return_model.c - a guest that visits: the way out, which stands beside the way home
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the way home is a move like any other, from away (here the source) to home (here the
 *              destination), and is modelled as such. This file has what is there besides: home
 *              serves the guest as the source of the way out, holds, gives up, or takes back;
 *              away lives by the lease of that move.
 *
 * Picture      away runs  -- x-rdma-postcopy-return, migrate -->  paused: DIRTY, STATE
 *              home: FREE                     -- return_hold() -->  HELD, given up, no link
 *                -- GO was read -->  RETURNED
 *                -- the return ends without -->  memory is put back, FREE: another link
 *              home: OUT_SERVES -> OUT_TAKING -> OUT_RECORDED -> OUT_FENCED -> OUT_TAKEN_BACK
 *
 * Limits       the way out begins where away has said RUNNING, and does not end but by these. Its
 *              link breaks at both ends at once, and its lease is renewed in one step: what can
 *              happen between is modelled for a move's own link and lease. So its lease has but
 *              the order: away stops, then home may take back. Page 0 is what the guest wrote,
 *              page 1 is what it has not: it may not have got that yet.
 */
#include "model.h"

#define HOME_TICKS 2
#define AWAY_TICKS 1
#define TRIES 2

void return_start(const struct config *c, struct world *w)
{
    w->o_is = w->o_link = 1;
    w->s_at = S_FAILED; /* where a guest runs that goes nowhere at the moment */
    w->d_at = D_FAILED;
    w->s_version = c->wrote;
    w->o_lease = c->lease ? HOME_TICKS : 0;
    w->o_away_lease = c->lease ? AWAY_TICKS : 0;
}

bool return_may_run(const struct world *w, const struct config *c)
{
    return !c->lease || w->o_away_lease || w->o_released;
}

/* What nobody has answered is never answered. Bytes under way may come yet */
static void cut_out(struct world *w)
{
    w->o_link = 0;
    if (w->o_bytes == BYTES_ASKED)
        w->o_bytes = BYTES_NONE;
}

/* ff_source_hold() */
bool return_hold(struct gen *g)
{
    struct world *w = &g->w;

    if (w->o_hold == HELD)
        return true;
    if (w->o_at != OUT_SERVES && !gen_lacks(g, M_TAKEN_HELD))
        return false;
    w->o_given_up = !gen_lacks(g, M_GIVEN_UP_TAKEN);
    w->o_hold = HELD;
    if (!gen_lacks(g, M_HOLD_SERVES))
        cut_out(w);
    return true;
}

/* The pager's lock is held over this: GO is read by a pager that stands, or memory is put back */
void return_settle(struct gen *g)
{
    struct world *w = &g->w;

    if (w->o_hold != HELD)
        return;
    if (w->d_go) {
        w->o_hold = RETURNED;
    } else if ((w->d_at == D_LINGER || w->d_at == D_SEALED || w->d_at == D_FAILED) &&
               !gen_lacks(g, M_NEVER_LET_GO)) {
        w->o_loaded &= gen_lacks(g, M_NOT_PUT_BACK);
        w->o_hold = FREE;
    }
}

void return_home_dies(struct world *w)
{
    cut_out(w);
    w->o_runs = w->o_loaded = 0;
    w->o_hold = FREE;
}

static void away_ends(struct world *w)
{
    for (unsigned e = 1; e <= LINKS; e++)
        if (w->link[e - 1].s_open)
            link_close(w, e, AT_SOURCE);
    w->s_link = w->s_runs = w->s_disks = w->s_keys = w->s_stalled = 0;
    w->s_at = S_DEAD;
}

/* --- the way out: its link, its lease, a page that the guest has not got yet --- */

static void renew(struct world *w, const struct config *c)
{
    w->o_lease = c->lease ? HOME_TICKS : 0;
    w->o_away_lease = c->lease ? AWAY_TICKS : 0;
}

static void link_steps(struct gen *g)
{
    const struct world *f = g->from;
    bool serves = f->o_at == OUT_SERVES && f->d_at != D_DEAD && f->s_at != S_DEAD;
    bool free = f->o_hold == FREE || (f->o_hold == HELD && gen_lacks(g, M_HOLD_CONNECTS));
    struct world *w;

    if (f->o_link && f->n_breaks < g->c->breaks) {
        w = gen_begin(g, FAULT, AT_LINK, "of the way out breaks");
        cut_out(w);
        w->n_breaks++;
        gen_emit(g);
    }
    if (!f->o_link && serves && free) {
        w = gen_begin(g, STEP, AT_DEST, "the way out connects again; RUNNING; away has a lease");
        w->o_link = 1;
        w->o_bytes = BYTES_NONE; /* the old link was freed */
        w->o_released &= w->o_given_up; /* what somebody said of a home that is dead */
        renew(w, g->c);
        gen_emit(g);
    }
    if (f->o_link && serves && g->c->lease && !f->o_released &&
        (f->o_given_up || gen_lacks(g, M_LET_GO_UNASKED))) {
        w = gen_begin(g, STEP, AT_DEST, "the way out: LEASE was asked for; WITHDRAWN: away needs none");
        w->o_released = 1;
        gen_emit(g);
    }
    if (f->o_link && serves && g->c->lease &&
        f->o_lease + f->o_away_lease < HOME_TICKS + AWAY_TICKS) {
        w = gen_begin(g, STEP, AT_DEST, "the way out: LEASE was asked for and is given");
        renew(w, g->c);
        gen_emit(g);
    }
}

static void lease_steps(struct gen *g)
{
    const struct world *f = g->from;
    struct world *w;

    if (f->o_lease || f->o_away_lease) {
        w = gen_begin(g, STEP, AT_HOST, "time passes for the way out");
        w->o_lease -= !!w->o_lease;
        w->o_away_lease -= !!w->o_away_lease;
        if (w->s_runs && !return_may_run(w, g->c) && !gen_lacks(g, M_RETURN_UNLEASED)) {
            g->step.what = "time passes for the way out: the lease ends, away stops its vCPUs";
            w->s_runs = w->s_disks = 0;
        }
        gen_emit(g);
    }
    if ((f->s_at <= S_STOP || f->s_at == S_FAILED) && !f->s_runs && return_may_run(f, g->c)) {
        w = gen_begin(g, STEP, AT_SOURCE, "may run again: vCPUs go on");
        w->s_runs = w->s_disks = 1;
        gen_emit(g);
    }
    /* its fence has not succeeded, or else this side were off: as in tell() */
    bool may = f->o_at < OUT_RECORDED || g->c->fence == FENCE_KILL;
    if (g->c->lease && f->d_at == D_DEAD && f->s_at != S_DEAD && may && !f->o_released &&
        !gen_lacks(g, M_HOME_DEATH_UNTOLD)) {
        w = gen_begin(g, STEP, AT_HOST, "home is dead and has not taken back: go on there");
        w->o_released = 1;
        gen_emit(g);
    }
}

static void page_steps(struct gen *g)
{
    const struct world *f = g->from;
    struct world *w;

    if (f->s_at == S_DEAD || f->o_page == PAGE_PRESENT)
        return;
    if (!f->o_bytes && f->o_link) {
        w = gen_begin(g, STEP, AT_SOURCE, "away: READ of page 1, by the way out");
        w->o_bytes = BYTES_ASKED;
        gen_emit(g);
    }
    if (f->o_bytes == BYTES_ASKED && f->o_link) {
        w = gen_begin(g, STEP, AT_DEST, "home: READ answered, by the way out");
        w->o_bytes = f->o_loaded ? BYTES_COMING_NEW : BYTES_COMING;
        gen_emit(g);
    }
    if (f->o_bytes >= BYTES_COMING) {
        w = gen_begin(g, STEP, AT_SOURCE, "away: page 1 is installed");
        w->o_page = PAGE_PRESENT;
        w->o_bytes = BYTES_NONE;
        if (f->o_bytes == BYTES_COMING_NEW)
            w->broken = WRONG_BYTES;
        gen_emit(g);
    }
}

/* --- home takes the guest back, as of the way out's GO --- */

static void begin_taking(struct gen *g)
{
    const struct world *f = g->from;
    bool can =
        f->o_hold == FREE || f->o_hold == HELD; /* RETURNED: ff_source_resume() has ended it */

    if (f->o_at != OUT_SERVES || !can || f->o_given_up)
        return;
    struct world *w = gen_begin(g, f->s_at == S_DEAD ? STEP : CHOICE, AT_DEST,
                                "ff_source_begin_taking: of the way out");
    cut_out(w);
    w->o_at = OUT_TAKING;
    gen_emit(g);
}

static void take_back(struct gen *g)
{
    const struct world *f = g->from;
    struct world *w;

    begin_taking(g);
    if (f->o_at == OUT_TAKING && f->s_at != S_DEAD) {
        w = gen_begin(g, CHOICE, AT_DEST, "is interrupted: ff_source_end_taking");
        w->o_at = OUT_SERVES;
        gen_emit(g);
    }
    if (f->o_at == OUT_TAKING && (!f->o_lease || gen_lacks(g, M_OUT_LEASE_NOT_AWAITED))) {
        w = gen_begin(g, STEP, AT_DEST, "writes TAKEN-BACK down, for the way out");
        w->o_at = OUT_RECORDED;
        gen_emit(g);
    }
    if (f->o_at == OUT_RECORDED) {
        bool kills = g->c->fence == FENCE_KILL;
        w = gen_begin(g, STEP, AT_DEST,
                      kills ? "fence: away is off" : "fence: away's storage is reserved");
        if (kills && w->s_at != S_DEAD)
            away_ends(w);
        w->s_disks = 0;
        w->o_at = OUT_FENCED;
        gen_emit(g);
    }
    if (f->o_at == OUT_FENCED) {
        w = gen_begin(g, STEP, AT_DEST,
                      "ends a return, if any; runs the guest as of the way out's GO");
        if (w->d_at != D_FAILED && !w->d_go) /* rp_end_return() */
            dest_ends(w, D_FAILED);
        w->o_runs = 1;
        w->o_at = OUT_TAKEN_BACK;
        gen_emit(g);
    }
    if (f->o_at == OUT_TAKEN_BACK && f->s_at != S_DEAD) {
        w = gen_begin(g, STEP, AT_SOURCE, "is told that the guest was taken back: exits");
        away_ends(w);
        gen_emit(g);
    }
}

/* --- the way home begins --- */

/* x-rdma-postcopy-return; also in the place of one whose link broke before GO was read. @gives_up: with fallback=off */
static void begin_return(struct gen *g, bool gives_up)
{
    const struct world *f = g->from;
    bool ended = f->d_at == D_FAILED || f->d_at == D_LINGER || f->d_at == D_SEALED;

    if (!ended || f->o_at > OUT_RECORDED || f->o_hold == RETURNED || f->d_session >= TRIES ||
        (gives_up && f->o_at != OUT_SERVES)) /* -EBUSY */
        return;
    struct world *w = gen_begin(g, CHOICE, AT_DEST, gives_up ? "x-rdma-postcopy-return, fallback=off: listens"
                                                             : "x-rdma-postcopy-return: listens");
    dest_ends(w, D_ACCEPT);
    w->o_given_up |= gives_up && !gen_lacks(g, M_GIVEN_UP_TAKEN);
    w->d_session++;
    w->d_epoch = w->d_version = w->d_left = 0;
    for (unsigned p = 0; p < PAGES; p++)
        w->d_page[p] = PAGE_PRESENT; /* but for what DIRTY will name */
    gen_emit(g);
}

static void go_home(struct gen *g)
{
    const struct world *f = g->from;

    if (f->s_at != S_FAILED || f->d_at != D_ACCEPT || !f->o_link || f->n_tries >= TRIES ||
        !world_can_connect(f))
        return;
    struct world *w = gen_begin(g, CHOICE, AT_SOURCE, "migrate, home");
    w->s_at = S_CONNECT;
    w->n_tries++;
    w->s_gone = w->s_ran_on = w->s_done = 0;
    gen_emit(g);
}

void return_steps(struct gen *g)
{
    const struct world *f = g->from;

    link_steps(g);
    lease_steps(g);
    page_steps(g);
    go_home(g);
    if (f->d_at == D_DEAD)
        return;
    if (g->c->lease)
        take_back(g);
    begin_return(g, false);
    if (g->c->lease && !f->o_given_up)
        begin_return(g, true);
}
