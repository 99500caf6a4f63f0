/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * dest_broken.c - the destination when a source comes again: its answer, the new link, the lease
 */
#include "model.h"

static unsigned answer_of(const struct gen *g)
{
    const struct world *f = g->from;

    if (gen_lacks(g, M_RUNNING_DENIED) && f->d_at == D_RUN)
        return FF_ANSWER_NOT_STARTED;
    if (f->d_at <= D_SEALED)
        return FF_ANSWER_NOT_STARTED;
    return f->d_at >= D_WAIT_WITHDRAWN ? FF_ANSWER_COMPLETE : FF_ANSWER_RUNNING;
}

/* The old link is freed before the new one attaches: nothing of it lands any more */
static void attach(struct gen *g, unsigned epoch)
{
    struct world *w = &g->w;

    if (w->d_link && !gen_lacks(g, M_OLD_LINK_KEPT) && !gen_lacks(g, M_NO_SEAL))
        link_close(w, w->d_link, AT_DEST);
    w->d_ask = w->d_bare = 0;
    w->d_link = (uint8_t)epoch;
    if (epoch < w->d_epoch)
        w->broken = OLD_EPOCH;
    w->d_epoch = (uint8_t)epoch;
    for (unsigned p = 0; p < PAGES; p++) /* the claim stays; its read is posted again */
        if (w->d_page[p] == PAGE_INFLIGHT && !gen_lacks(g, M_BYTES_LOST))
            w->d_page[p] = PAGE_MISSING;
}

static void resume(struct gen *g, unsigned epoch)
{
    unsigned kind = answer_of(g);
    static const char *const what[] = {
        [FF_ANSWER_NOT_STARTED] = "seals itself; says NOT-STARTED",
        [FF_ANSWER_RUNNING] = "takes the new link; says RUNNING",
        [FF_ANSWER_COMPLETE] = "takes the new link; says COMPLETE",
    };
    struct world *w = gen_begin(g, STEP, AT_DEST, what[kind]);

    gen_get(g, epoch, TO_DEST);
    attach(g, epoch);
    gen_send(g, epoch, TO_SOURCE, MSG(FF_MSG_WELCOME, kind));
    if (kind == FF_ANSWER_COMPLETE)
        gen_send(g, epoch, TO_SOURCE, MSG(FF_MSG_DONE, 0));
    w->d_bare = kind == FF_ANSWER_RUNNING;
    if (kind == FF_ANSWER_NOT_STARTED && w->d_at != D_RUN)
        w->d_at = gen_lacks(g, M_NO_SEAL) ? D_WAIT_GO : D_SEALED;
    if (w->d_at == D_PAUSED)
        w->d_at = D_WAIT_DONE;
    gen_emit(g);
}

/* What the pager needs of a new link before it touches it */
static void take_keys(struct gen *g)
{
    const struct world *f = g->from;
    unsigned type = MSG_TYPE(world_front(f, f->d_link, TO_DEST));

    if (!f->d_bare || (type != FF_MSG_PUBLISH && type != FF_MSG_KEYS))
        return;
    struct world *w = gen_begin(g, STEP, AT_DEST,
                                type == FF_MSG_KEYS ? "ff_pager_attach: to the new link"
                                                    : "ff_dest_recover: PUBLISH");
    gen_get(g, w->d_link, TO_DEST);
    w->d_bare = type != FF_MSG_KEYS;
    gen_emit(g);
}

static void taken_back(struct gen *g, unsigned epoch)
{
    struct world *w = gen_begin(g, STEP, AT_DEST, "the guest was taken back: exits");

    gen_get(g, epoch, TO_DEST);
    gen_send(g, epoch, TO_SOURCE, MSG(FF_MSG_WELCOME, FF_ANSWER_TAKEN_BACK));
    dest_ends(w, D_FAILED);
    gen_emit(g);
}

/* A connection that is not attached: RESUME of a later epoch, or one that came too late */
static void hear(struct gen *g, unsigned epoch)
{
    const struct world *f = g->from;
    uint8_t front = world_front(f, epoch, TO_DEST);
    bool resumable = g->c->resume && f->d_at >= D_WAIT_GO && f->d_at <= D_COMPLETE;

    if (front == MSG(FF_MSG_RESUME, RESUME_SERVE) && resumable &&
        (epoch > f->d_epoch || gen_lacks(g, M_OLD_EPOCH_TAKEN)))
        resume(g, epoch);
    if (front == MSG(FF_MSG_RESUME, RESUME_TAKEN_BACK) && resumable)
        taken_back(g, epoch);
    if (front == MSG(FF_MSG_HELLO, 0) && resumable && !f->link[epoch - 1].cut) {
        struct world *w =
            gen_begin(g, STEP, AT_DEST, "waits for its own source: refuses another move");
        gen_get(g, epoch, TO_DEST);
        gen_send(g, epoch, TO_SOURCE, MSG(FF_MSG_REFUSE, 0));
        link_close(w, epoch, AT_DEST);
        gen_emit(g);
        return;
    }
    bool hello = MSG_TYPE(front) == FF_MSG_HELLO || MSG_TYPE(front) == FF_MSG_RESUME;
    bool late = hello && epoch <= f->d_epoch && f->d_at != D_ACCEPT;
    if (!late && !f->link[epoch - 1].cut)
        return;
    struct world *w = gen_begin(g, STEP, AT_DEST, "drops a connection");
    g->step.epoch = (uint8_t)epoch;
    link_close(w, epoch, AT_DEST);
    gen_emit(g);
}

void dest_broken_steps(struct gen *g)
{
    const struct world *f = g->from;
    struct world *w;

    if (f->d_at == D_DEAD || f->d_at == D_FAILED)
        return;
    for (unsigned e = 1; e <= LINKS; e++)
        if (f->link[e - 1].d_open && e != f->d_link)
            hear(g, e);
    take_keys(g);
    /* nobody asked for `reconnect` seconds */
    if (f->d_at == D_LINGER) {
        bool leaves = gen_lacks(g, M_LINGER_LEAVES);
        w = gen_begin(g, STEP, AT_DEST,
                      leaves ? "was asked nothing: exits" : "was asked nothing: seals itself");
        if (leaves)
            dest_ends(w, D_FAILED);
        else
            w->d_at = D_SEALED;
        gen_emit(g);
    }
    /* an agent ends it, and reads what it says */
    if (f->d_at == D_SEALED && g->c->agent && !f->d_link) {
        w = gen_begin(g, STEP, AT_DEST, "exits: nothing ran here");
        dest_ends(w, D_FAILED);
        w->d_left = 1;
        gen_emit(g);
    }
    if (f->d_at == D_COMPLETE && MSG_TYPE(world_front(f, f->d_link, TO_DEST))) {
        w = gen_begin(g, STEP, AT_DEST, "complete: closes");
        gen_get(g, w->d_link, TO_DEST);
        link_close(w, w->d_link, AT_DEST);
        w->d_link = 0;
        gen_emit(g);
    }
    unsigned front = MSG_TYPE(world_front(f, f->d_link, TO_DEST));
    if (f->d_at == D_SEALED && front) {
        w = gen_begin(g, STEP, AT_DEST,
                      front == FF_MSG_WITHDRAWN ? "the source knows that nothing ran here: exits"
                                                : "is sealed: not looked at");
        gen_get(g, w->d_link, TO_DEST);
        if (front == FF_MSG_WITHDRAWN) {
            dest_ends(w, D_FAILED);
            w->d_left = 1;
        }
        gen_emit(g);
    }
}
