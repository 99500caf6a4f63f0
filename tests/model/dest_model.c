/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_model.c - what the destination does: migrate/dest*.c and rdma-postcopy-dest.c
 */
#include "model.h"

/* The reads of the page that was asked for die with their link */
static void drop_link(struct world *w)
{
    link_close(w, w->d_link, AT_DEST);
    w->d_link = 0;
    w->d_ask = w->d_bare = 0;
}

/* A HELLO with NEW, on whatever connection it comes */
static void accept_new(struct gen *g)
{
    for (unsigned e = 1; e <= LINKS; e++) {
        if (!g->from->link[e - 1].d_open ||
            world_front(g->from, e, TO_DEST) != MSG(FF_MSG_HELLO, 0))
            continue;
        struct world *w = gen_begin(g, STEP, AT_DEST, "ff_dest_accept");
        gen_get(g, e, TO_DEST);
        w->d_link = w->d_epoch = (uint8_t)e;
        gen_send(g, e, TO_SOURCE, MSG(FF_MSG_WELCOME, FF_ANSWER_NEW));
        w->d_at = D_START;
        gen_emit(g);
    }
}

/* A message before READY */
static void before_ready(struct gen *g)
{
    const struct world *f = g->from;
    uint8_t front = world_front(f, f->d_link, TO_DEST);

    if (!front || f->d_at < D_START || f->d_at > D_RECV_STATE)
        return;
    struct world *w =
        gen_begin(g, STEP, AT_DEST, f->d_at == D_START ? "ff_dest_start" : "ff_dest_recv_state");
    gen_get(g, w->d_link, TO_DEST);
    bool paused = MSG_TYPE(front) == FF_MSG_DIRTY || MSG_TYPE(front) == FF_MSG_STATE;
    if (g->c->returns && paused && !return_hold(g)) {
        g->step.what = "dest_hold_kept: the guest is being taken back here: refuses";
        gen_send(g, w->d_link, TO_SOURCE, MSG(FF_MSG_REFUSE, 0));
        dest_ends(w, D_FAILED);
        gen_emit(g);
        return;
    }
    switch (MSG_TYPE(front)) {
    case FF_MSG_PUBLISH:
    case FF_MSG_STATE:
    case FF_MSG_PARTS:
    case FF_MSG_FIRST:
        break;
    case FF_MSG_KEYS: /* of PUBLISH, or of STATE */
        if (f->d_at == D_START) {
            gen_send(g, w->d_link, TO_SOURCE, MSG(FF_MSG_WATCHING, 0));
            w->d_at = D_RECV_STATE;
        }
        break;
    case FF_MSG_LOGGING:
        w->d_at = D_PRECOPY;
        break;
    case FF_MSG_DIRTY:
        for (unsigned p = 0; p < PAGES; p++)
            if (MSG_KIND(front) >> p & 1 && !gen_lacks(g, M_DIRTY_KEPT))
                w->d_page[p] = PAGE_MISSING;
        w->o_torn |= g->c->returns && MSG_KIND(front);
        break;
    case FF_MSG_DATA:
        w->d_at = D_LOAD;
        break;
    default:
        dest_ends(w, D_FAILED);
    }
    gen_emit(g);
}

/* READ of a page, by a fault or by prefill; GRANT asks the source to write page 1 */
static void fetch(struct gen *g, unsigned p)
{
    const struct world *f = g->from;
    bool pass = f->d_at == D_PRECOPY, after = f->d_at == D_WAIT_DONE;

    if (!f->d_link || f->d_bare || f->d_page[p] != PAGE_MISSING || f->link[f->d_link - 1].bytes[p])
        return;
    pass |= f->d_at == D_RECV_STATE && gen_lacks(g, M_READ_EARLY);
    if (!pass && !after && (p || (f->d_at != D_LOAD && f->d_at != D_ACTIVATED)))
        return; /* prefill begins with RUNNING */
    struct world *w =
        gen_begin(g, STEP, AT_DEST, p ? "prefill: READ of page 1" : "fault: READ of page 0");
    struct link_life *l = world_link(w, w->d_link);
    g->step.epoch = w->d_link;
    if (!l->cut)
        l->bytes[p] = BYTES_ASKED;
    w->d_page[p] = PAGE_INFLIGHT;
    gen_emit(g);
    if (after && g->c->push && p) {
        w = gen_begin(g, STEP, AT_DEST, "prefill: GRANT of page 1");
        gen_send(g, w->d_link, TO_SOURCE, MSG(FF_MSG_GRANT, 0));
        w->d_page[p] = PAGE_INFLIGHT;
        gen_emit(g);
    }
}

/* Bytes land, on whatever link is open at this end */
static void install(struct gen *g)
{
    for (unsigned i = 0; i < LINKS * PAGES; i++) {
        unsigned e = i / PAGES + 1, p = i % PAGES;
        const struct link_life *l = &g->from->link[e - 1];
        if (!l->d_open || l->bytes[p] < BYTES_COMING)
            continue;
        struct world *w = gen_begin(
            g, STEP, AT_DEST, p ? "pager: page 1 is installed" : "pager: page 0 is installed");
        g->step.epoch = (uint8_t)e;
        w->d_version &= (uint8_t)(~(1 << p) & ALL_PAGES);
        w->d_version |= (uint8_t)((l->bytes[p] == BYTES_COMING_NEW) << p);
        world_link(w, e)->bytes[p] = BYTES_NONE;
        w->d_page[p] = PAGE_PRESENT;
        if (e != w->d_epoch)
            w->broken = OLD_EPOCH;
        gen_emit(g);
    }
}

static void load_and_ready(struct gen *g)
{
    const struct world *f = g->from;
    struct world *w;

    if (f->d_at == D_PRECOPY && world_has_pages(f)) {
        w = gen_begin(g, STEP, AT_DEST, "make_precopy: passed");
        gen_send(g, w->d_link, TO_SOURCE, MSG(FF_MSG_PASSED, 0));
        w->d_at = D_RECV_STATE;
        gen_emit(g);
    }
    if (f->d_at == D_LOAD && f->d_page[0] != PAGE_INFLIGHT) {
        w = gen_begin(g, STEP, AT_DEST, "incoming_load; ff_dest_ready");
        gen_send(g, w->d_link, TO_SOURCE, MSG(FF_MSG_READY, 0));
        w->d_ask = g->c->fallback;
        w->o_loaded = g->c->returns;
        w->d_at = D_WAIT_GO;
        gen_emit(g);
    }
    if (f->d_at == D_WAIT_GO && gen_lacks(g, M_RUN_BEFORE_GO)) {
        w = gen_begin(g, CHOICE, AT_DEST, "cont");
        w->d_at = D_RUN;
        w->d_go = 1;
        gen_emit(g);
    }
}

/* GO answers READY, and LEASE a LEASE. The lease counts from when that was sent: the source
 * counts from its answer, which is later, so this side stops first */
static void take_lease(struct gen *g)
{
    struct world *w = &g->w;

    if (gen_lacks(g, M_LEASE_FROM_RECEIPT))
        w->d_lease = LEASE_TICKS;
    else if (w->d_ask && w->d_ask <= LEASE_TICKS)
        w->d_lease = (uint8_t)(LEASE_TICKS + 1 - w->d_ask);
    w->d_ask = 0;
}

/* The link that GO may come by: the one that is attached; without a guard, any that is open */
static void take_go(struct gen *g)
{
    const struct world *f = g->from;
    bool any = gen_lacks(g, M_OLD_LINK_KEPT) || gen_lacks(g, M_NO_SEAL);

    if (f->d_at != D_WAIT_GO && !(f->d_at == D_SEALED && gen_lacks(g, M_NO_SEAL)))
        return;
    for (unsigned e = 1; e <= LINKS; e++) {
        const struct link_life *l = &f->link[e - 1];
        unsigned type = MSG_TYPE(world_front(f, e, TO_DEST));
        if (!l->d_open || (e != f->d_link && !any) || (type != FF_MSG_GO && type != FF_MSG_REFUSE))
            continue;
        struct world *w = gen_begin(
            g, STEP, AT_DEST,
            type == FF_MSG_GO ? "ff_dest_wait_go" : "ff_dest_wait_go: the peer ended it; exits");
        gen_get(g, e, TO_DEST);
        if (type == FF_MSG_REFUSE) {
            dest_ends(w, D_FAILED);
            w->d_left = 1;
        } else {
            w->d_go = 1;
            w->d_at = D_RUN;
            if (g->c->fallback)
                take_lease(g);
        }
        gen_emit(g);
    }
}

static void run(struct gen *g)
{
    const struct world *f = g->from;
    bool may = !g->c->fallback || f->d_lease || f->d_released || gen_lacks(g, M_LEASE_IGNORED);
    struct world *w;

    if (f->d_at == D_RUN && may) {
        w = gen_begin(g, STEP, AT_DEST,
                      g->c->record ? "writes down that it may run; activates disks"
                                   : "incoming_run: activates disks");
        w->d_record = g->c->record && !gen_lacks(g, M_RECORD_LATE);
        w->d_disks = w->d_ran = 1;
        w->d_at = D_ACTIVATED;
        gen_emit(g);
    }
    if (f->d_at == D_ACTIVATED && may) {
        w = gen_begin(g, STEP, AT_DEST, "incoming_run: vCPUs; ff_dest_running");
        w->d_record = g->c->record;
        w->d_runs = w->d_disks = 1;
        if (w->d_link)
            gen_send(g, w->d_link, TO_SOURCE, MSG(FF_MSG_RUNNING, 0));
        w->d_at = w->d_link ? D_WAIT_DONE : D_PAUSED;
        gen_emit(g);
    }
    if (f->d_at >= D_WAIT_DONE && f->d_at <= D_WAIT_WITHDRAWN && !f->d_runs && may) {
        w = gen_begin(g, STEP, AT_DEST, "has a lease again: vCPUs go on");
        w->d_runs = w->d_disks = 1;
        gen_emit(g);
    }
}

static void beat(struct gen *g)
{
    const struct world *f = g->from;
    bool pass = f->d_at == D_PRECOPY && !world_has_pages(f);

    if (!f->d_link || f->d_bare || f->link[f->d_link - 1].n[TO_SOURCE])
        return;
    if (f->d_at != D_WAIT_GO && f->d_at != D_WAIT_DONE && !pass)
        return;
    struct world *w = gen_begin(g, STEP, AT_DEST, "ff_beat: is alive");
    gen_send(g, w->d_link, TO_SOURCE, MSG(FF_MSG_PROGRESS, 0));
    gen_emit(g);
}

static void ask_for_lease(struct gen *g)
{
    const struct world *f = g->from;

    if (!g->c->fallback || !f->d_link || f->d_bare || f->d_ask || f->d_lease == LEASE_TICKS)
        return;
    if (f->d_at < D_RUN || f->d_at > D_WAIT_WITHDRAWN || f->d_at == D_PAUSED)
        return;
    struct world *w = gen_begin(g, STEP, AT_DEST, "ff_lease: asks");
    gen_send(g, w->d_link, TO_SOURCE, MSG(FF_MSG_LEASE, 0));
    w->d_ask = 1;
    gen_emit(g);
}

static void done(struct gen *g)
{
    const struct world *f = g->from;
    uint8_t front = world_front(f, f->d_link, TO_DEST);
    struct world *w;

    bool early = gen_lacks(g, M_DONE_EARLY);
    if (f->d_at == D_WAIT_DONE && !f->d_bare && (world_has_pages(f) || early)) {
        w = gen_begin(g, STEP, AT_DEST, "ff_dest_wait_done: every page is here");
        gen_send(g, w->d_link, TO_SOURCE, MSG(FF_MSG_DONE, 0));
        w->d_at = D_WAIT_WITHDRAWN;
        if (gen_lacks(g, M_COMMIT_AT_DONE) && w->overlay == OVERLAY_OPEN)
            w->overlay = OVERLAY_COMMITTED;
        gen_emit(g);
    }
    early = gen_lacks(g, M_PAGER_ENDS);
    if (f->d_at == D_PAUSED && (world_has_pages(f) || early)) {
        w = gen_begin(g, STEP, AT_DEST, "ff_dest_wait_done: every page is here");
        w->d_at = D_WAIT_WITHDRAWN;
        gen_emit(g);
    }
    bool serves = f->d_at >= D_RUN && f->d_at <= D_WAIT_DONE;
    if (MSG_TYPE(front) == FF_MSG_LEASE && (serves || f->d_at == D_WAIT_WITHDRAWN)) {
        w = gen_begin(g, STEP, AT_DEST, "has a lease, from when it asked");
        gen_get(g, w->d_link, TO_DEST);
        take_lease(g);
        gen_emit(g);
    }
    if (f->d_at != D_WAIT_WITHDRAWN)
        return;
    bool told = MSG_TYPE(front) == FF_MSG_WITHDRAWN;
    if (told || f->d_released || !g->c->fallback) {
        w = gen_begin(g, STEP, AT_DEST,
                      told            ? "complete; commits overlays, if any"
                      : f->d_released ? "complete: the source is gone for good"
                                      : "complete, but the source may not know");
        if (told)
            gen_get(g, w->d_link, TO_DEST);
        if (told && g->c->fallback)
            gen_send(g, w->d_link, TO_SOURCE, MSG(FF_MSG_WITHDRAWN, 0));
        drop_link(w);
        w->d_released = 1;
        if (w->overlay == OVERLAY_OPEN)
            w->overlay = OVERLAY_COMMITTED;
        w->d_runs = w->d_disks = 1;
        w->d_at = D_COMPLETE;
        gen_emit(g);
    }
}

static void notice(struct gen *g)
{
    const struct world *f = g->from;
    struct world *w;

    if (!f->d_link || !f->link[f->d_link - 1].cut)
        return;
    if (f->d_at == D_START) {
        w = gen_begin(g, STEP, AT_DEST, "ff_dest_accept: it left before its queues; listens again");
        drop_link(w);
        w->d_at = D_ACCEPT;
        gen_emit(g);
    }
    bool early = f->d_at <= D_LOAD || (f->d_at == D_WAIT_GO && !g->c->resume);
    w = gen_begin(g, STEP, AT_DEST,
                  early ? "notices the break, exits: nothing ran here" : "notices the break");
    if (early) {
        dest_ends(w, D_FAILED);
        w->d_left = 1;
    } else {
        drop_link(w);
        if (f->d_at == D_WAIT_GO)
            w->d_at = D_LINGER;
        else if (f->d_at == D_WAIT_DONE)
            w->d_at = D_PAUSED;
    }
    gen_emit(g);
}

void dest_steps(struct gen *g)
{
    const struct world *f = g->from;

    if (f->d_at == D_DEAD || f->d_at == D_FAILED)
        return;
    if (f->d_at == D_ACCEPT)
        accept_new(g);
    before_ready(g);
    for (unsigned p = 0; p < PAGES; p++)
        fetch(g, p);
    install(g);
    load_and_ready(g);
    take_go(g);
    run(g);
    beat(g);
    ask_for_lease(g);
    done(g);
    notice(g);
    if (f->d_at == D_WAIT_GO && f->s_stalled) {
        struct world *w = gen_begin(g, STEP, AT_DEST,
                                    g->c->resume ? "GO_MS have passed: seals itself"
                                                 : "GO_MS have passed: exits");
        if (g->c->resume) {
            drop_link(w);
            w->d_at = D_SEALED;
        } else {
            dest_ends(w, D_FAILED);
            w->d_left = 1;
        }
        gen_emit(g);
    }
    if (f->d_at > D_START && f->d_at <= D_LOAD) {
        struct world *w = gen_begin(g, CHOICE, AT_DEST, "fails; exits: nothing ran here");
        dest_ends(w, D_FAILED);
        w->d_left = 1;
        gen_emit(g);
    }
    if (f->d_at == D_START && f->d_link) {
        struct world *w = gen_begin(g, CHOICE, AT_DEST, "ff_dest_start: refuses; exits");
        gen_send(g, w->d_link, TO_SOURCE, MSG(FF_MSG_REFUSE, 0));
        dest_ends(w, D_FAILED);
        w->d_left = 1;
        gen_emit(g);
    }
}
