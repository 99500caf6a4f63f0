/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * source_model.c - what the source does: migrate/source.c and rdma-postcopy-source.c
 */
#include "model.h"

/* ff_source_free() and migration_iteration_finish(): withdrawn, and the guest goes on here */
void source_runs_on(struct world *w, const struct gen *g)
{
    link_close(w, w->s_link, AT_SOURCE);
    w->s_link = 0;
    w->s_at = S_FAILED;
    w->s_keys = gen_lacks(g, M_KEYS_KEPT) ? w->s_keys : 0;
    w->s_runs = w->s_disks = !w->o_is || return_may_run(w, g->c);
    w->s_stalled = 0;
    if (w->s_gone)
        w->s_ran_on = 1;
    if (w->overlay == OVERLAY_OPEN) /* nobody wrote to it */
        w->overlay = OVERLAY_DROPPED;
}

static void to_paused(struct world *w)
{
    link_close(w, w->s_link, AT_SOURCE);
    w->s_link = 0;
    w->s_at = w->s_done ? S_COMPLETE : S_PAUSED;
}

/* One message and the state after it, while the guest is the source's */
static void before_go(struct gen *g)
{
    const struct world *f = g->from;
    unsigned type = MSG_TYPE(world_front(f, f->s_link, TO_SOURCE));
    struct world *w;

    if (type == FF_MSG_REFUSE) {
        w = gen_begin(g, STEP, AT_SOURCE, "ff_control_expect: the peer ended it; goes on here");
        gen_get(g, w->s_link, TO_SOURCE);
        source_runs_on(w, g);
        gen_emit(g);
        return;
    }
    static const struct {
        uint8_t at, type, then;
        const char *what;
    } moves[] = {
        {S_WAIT_WELCOME, FF_MSG_WELCOME, S_PUBLISH, "ff_source_connect: queues"},
        {S_WAIT_WATCHED, FF_MSG_WATCHING, S_STOP, "ff_source_wait_watched"},
        {S_WAIT_PASSED, FF_MSG_PROGRESS, S_WAIT_PASSED, "ff_source_wait_alive"},
        {S_WAIT_PASSED, FF_MSG_PASSED, S_STOP, "ff_source_precopy: passed"},
        {S_WAIT_READY, FF_MSG_READY, S_GO, "ff_source_wait_ready"},
        {S_GO, FF_MSG_PROGRESS, S_GO, "ff_source_go: it waits"},
    };
    for (unsigned i = 0; i < sizeof(moves) / sizeof(*moves); i++) {
        if (moves[i].at != f->s_at || moves[i].type != type)
            continue;
        w = gen_begin(g, STEP, AT_SOURCE, moves[i].what);
        gen_get(g, w->s_link, TO_SOURCE);
        w->s_at = moves[i].at == S_WAIT_WATCHED && g->c->precopy ? S_PRECOPY : moves[i].then;
        if (type == FF_MSG_READY) /* of a visit: home has given up, and never takes back */
            w->o_released |= g->c->lease;
        gen_emit(g);
    }
}

static void send_state(struct gen *g)
{
    struct world *w = gen_begin(g, STEP, AT_SOURCE, "ff_source_send_state");

    bool emptied = gen_lacks(g, M_LOG_EMPTIED) && w->n_tries > 1;
    if (g->c->precopy || g->c->returns) /* kind 1: it names the page */
        gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_DIRTY, emptied ? 0 : w->s_version));
    gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_STATE, 0));
    gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_PARTS, 0));
    gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_KEYS, 0));
    gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_FIRST, 0));
    gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_DATA, 0));
    w->s_at = S_WAIT_READY;
    w->o_released |= g->c->lease && gen_lacks(g, M_RELEASED_EARLY);
    if (g->c->precopy && gen_lacks(g, M_LOG_READ_EARLY))
        w->s_version |= 1; /* a device is saved after the log was read, and writes memory */
    gen_emit(g);
}

static void send_go(struct gen *g)
{
    const struct world *f = g->from;
    unsigned front = MSG_TYPE(world_front(f, f->s_link, TO_SOURCE));
    struct world *w;

    if (f->s_stalled && !gen_lacks(g, M_LATE_GO)) {
        w = gen_begin(g, STEP, AT_SOURCE, "ff_source_go: paused for too long; goes on here");
        source_runs_on(w, g);
        gen_emit(g);
        return;
    }
    if (front && front != FF_MSG_PROGRESS && front != FF_MSG_REFUSE) {
        w = gen_begin(g, STEP, AT_SOURCE, "ff_source_go: it no longer waits; goes on here");
        gen_get(g, w->s_link, TO_SOURCE);
        source_runs_on(w, g);
        gen_emit(g);
    }
    if (!front) {
        w = gen_begin(g, STEP, AT_SOURCE, "ff_source_go");
        gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_GO, 0));
        w->s_gone = 1;
        w->s_at = S_WAIT_RUNNING;
        w->s_lease = g->c->fallback ? LEASE_TICKS : 0;
        w->s_stalled = 0;
        gen_emit(g);
    }
    if (world_link((struct world *)f, f->s_link)->cut) {
        w = gen_begin(g, STEP, AT_SOURCE, "ff_source_go: ECONNRESET, not sent; goes on here");
        source_runs_on(w, g);
        gen_emit(g);
    }
    if (!front && gen_lacks(g, M_GO_UNCLEAR)) {
        w = gen_begin(g, STEP, AT_SOURCE, "ff_source_go: ETIMEDOUT, taken for not sent");
        gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_GO, 0));
        source_runs_on(w, g);
        gen_emit(g);
    }
}

static void do_next(struct gen *g)
{
    const struct world *f = g->from;
    struct world *w;

    switch (f->s_at) {
    case S_CONNECT:
        if (dest_listens(g)) {
            w = gen_begin(g, STEP, AT_SOURCE, "ff_source_connect");
            w->s_link = (uint8_t)gen_connect(g, MSG(FF_MSG_HELLO, 0));
            w->s_session = w->d_session;
            w->s_at = S_WAIT_WELCOME;
        } else {
            w = gen_begin(g, STEP, AT_SOURCE, "ff_source_connect: refused; goes on here");
            source_runs_on(w, g);
        }
        break;
    case S_PUBLISH:
        w = gen_begin(g, STEP, AT_SOURCE, "ff_source_publish");
        gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_PUBLISH, 0));
        gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_KEYS, 0));
        w->s_keys = 1;
        w->s_at = S_WAIT_WATCHED;
        break;
    case S_PRECOPY:
        w = gen_begin(g, STEP, AT_SOURCE, "ff_source_precopy");
        gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_LOGGING, 0));
        w->s_at = S_WAIT_PASSED;
        break;
    case S_STOP:
        if (f->o_is && !f->o_link) {
            w = gen_begin(g, STEP, AT_SOURCE, "outgoing_stop: no link home; goes on here");
            gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_REFUSE, 0));
            source_runs_on(w, g);
            break;
        }
        w = gen_begin(g, STEP, AT_SOURCE, "outgoing_stop: vCPUs stopped, disks inactive");
        w->s_runs = w->s_disks = 0;
        w->overlay = g->c->fallback && !gen_lacks(g, M_NO_OVERLAY) ? OVERLAY_OPEN : OVERLAY_NONE;
        w->s_at = S_SEND_STATE;
        break;
    default:
        return;
    }
    gen_emit(g);
}

/* fallback=go: it may not know yet that the guest is its own for good */
static void await_told(struct gen *g)
{
    const struct world *f = g->from;
    unsigned type = MSG_TYPE(world_front(f, f->s_link, TO_SOURCE));

    if (f->s_at != S_COMPLETE || !g->c->fallback || !type)
        return;
    struct world *w = gen_begin(g, STEP, AT_SOURCE, "ff_source_await_told");
    gen_get(g, w->s_link, TO_SOURCE);
    if (type == FF_MSG_LEASE)
        gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_LEASE, 0));
    else if (type != FF_MSG_PROGRESS) {
        link_close(w, w->s_link, AT_SOURCE);
        w->s_link = 0;
    }
    gen_emit(g);
}

/* The source after GO: RUNNING, PROGRESS, LEASE, GRANT, DONE */
static void serve(struct gen *g)
{
    const struct world *f = g->from;
    unsigned type = MSG_TYPE(world_front(f, f->s_link, TO_SOURCE));

    if ((f->s_at != S_WAIT_RUNNING && f->s_at != S_WAIT_DONE) || !type)
        return;
    bool done = f->s_at == S_WAIT_DONE;
    struct world *w =
        gen_begin(g, STEP, AT_SOURCE, done ? "ff_source_wait_done" : "ff_source_wait_running");
    gen_get(g, w->s_link, TO_SOURCE);
    if (type == FF_MSG_RUNNING) {
        w->s_at = S_WAIT_DONE;
    } else if (type == FF_MSG_LEASE) {
        gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_LEASE, 0));
        w->s_lease = LEASE_TICKS;
    } else if (type == FF_MSG_PROGRESS) {
        /* its statistics are taken */
    } else if (type == FF_MSG_GRANT) {
        struct link_life *l = world_link(w, w->s_link);
        if (!l->cut)
            l->bytes[1] = w->s_version & 2 ? BYTES_COMING_NEW : BYTES_COMING;
    } else if (type == FF_MSG_DONE && done) {
        w->s_keys = gen_lacks(g, M_KEYS_KEPT);
        w->s_done = 1;
        w->s_at = S_COMPLETE;
        gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_WITHDRAWN, 0));
    } else {
        to_paused(w);
    }
    gen_emit(g);
}

/* The responder, or the adapter in its place: any link whose end is open here */
static void answer_reads(struct gen *g)
{
    for (unsigned i = 0; i < LINKS * PAGES; i++) {
        unsigned e = i / PAGES + 1, p = i % PAGES;
        const struct link_life *l = &g->from->link[e - 1];
        if (!l->s_open || l->bytes[p] != BYTES_ASKED || l->cut)
            continue;
        struct world *w =
            gen_begin(g, STEP, AT_SOURCE,
                      g->from->s_keys ? "responder: READ answered" : "responder: no such key");
        g->step.epoch = (uint8_t)e;
        if (w->s_keys)
            world_link(w, e)->bytes[p] = w->s_version >> p & 1 ? BYTES_COMING_NEW : BYTES_COMING;
        else
            world_link(w, e)->cut = 1;
        gen_emit(g);
    }
}

static void notice(struct gen *g)
{
    const struct world *f = g->from;

    if (!f->s_link || !f->link[f->s_link - 1].cut)
        return;
    struct world *w;
    if (f->s_at <= S_GO) {
        w = gen_begin(g, STEP, AT_SOURCE, "notices the break; goes on here");
        source_runs_on(w, g);
    } else {
        w = gen_begin(g, STEP, AT_SOURCE,
                      f->s_done ? "notices the break, complete"
                                : "notices the break: postcopy-paused");
        to_paused(w);
    }
    gen_emit(g);
}

void source_steps(struct gen *g)
{
    const struct world *f = g->from;
    struct world *w;

    if (f->s_at == S_DEAD)
        return;
    do_next(g);
    if (f->s_at == S_FAILED && g->c->again && !f->s_again && !f->s_gone && world_can_connect(f)) {
        w = gen_begin(g, CHOICE, AT_SOURCE, "migrate, once more");
        w->s_at = S_CONNECT;
        w->s_again = 1;
        w->s_version = 0;
        gen_emit(g);
    }
    if (f->s_at == S_SEND_STATE)
        send_state(g);
    if (f->s_at == S_GO)
        send_go(g);
    if (f->s_at <= S_GO && f->s_link)
        before_go(g);
    serve(g);
    await_told(g);
    answer_reads(g);
    notice(g);
    /* with fallback=go it waits until the destination, which needs WITHDRAWN, has closed */
    if (f->s_at == S_COMPLETE && f->s_link && !g->c->fallback) {
        w = gen_begin(g, STEP, AT_SOURCE, "ff_source_free");
        link_close(w, w->s_link, AT_SOURCE);
        w->s_link = 0;
        gen_emit(g);
    }
    bool logs = g->c->precopy && f->s_runs && (f->s_at == S_WAIT_PASSED || f->s_at == S_STOP);
    logs |= gen_lacks(g, M_READ_EARLY) && f->s_at == S_STOP;
    for (unsigned p = 0; p < PAGES && logs; p++) {
        w = gen_begin(g, CHOICE, AT_SOURCE,
                      p ? "the guest writes to page 1, logged"
                        : "the guest writes to page 0, logged");
        w->s_version |= (uint8_t)(1 << p);
        gen_emit(g);
    }
    if (f->s_at == S_WAIT_READY && gen_lacks(g, M_GO_UNREADY)) {
        w = gen_begin(g, STEP, AT_SOURCE, "does not wait for READY");
        w->s_at = S_GO;
        gen_emit(g);
    }
    if (f->s_at > S_STOP && f->s_at <= S_GO && !f->s_runs && gen_lacks(g, M_CONT_FROZEN)) {
        w = gen_begin(g, CHOICE, AT_SOURCE, "cont, of a frozen guest");
        w->s_runs = w->s_disks = 1;
        gen_emit(g);
    }
    bool early = f->s_at < S_WAIT_RUNNING || gen_lacks(g, M_CANCEL_AFTER_GO);
    if (f->s_link && early && f->s_at <= S_WAIT_RUNNING) {
        w = gen_begin(g, CHOICE, AT_SOURCE, "rdma_postcopy_cancel; goes on here");
        if (f->s_at > S_WAIT_WELCOME && f->s_at < S_WAIT_RUNNING)
            gen_send(g, w->s_link, TO_DEST, MSG(FF_MSG_REFUSE, 0));
        source_runs_on(w, g);
        gen_emit(g);
    }
    if (f->s_at == S_GO && g->c->stalls > f->n_stalls && !f->s_stalled) {
        w = gen_begin(g, FAULT, AT_SOURCE, "is stopped (SIGSTOP) for longer than pause_ms");
        w->s_stalled = 1;
        w->n_stalls++;
        gen_emit(g);
    }
}
