/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * gen.c - what every step of the model is made of: a copy of the world, links, messages
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      a link's life:  connect --> open at both ends --> cut --> each end notices and
 *              closes, any time later. Until then it may read what had come before the cut. What
 *              is sent into a link that is cut arrives nowhere, and the sender does not know.
 */
#include <assert.h>
#include <string.h>

#include "model.h"

struct world *gen_begin(struct gen *g, enum step_kind kind, enum actor actor, const char *what)
{
    g->w = *g->from;
    g->step = (struct step){.kind = kind, .actor = actor, .what = what};
    return &g->w;
}

void gen_emit(struct gen *g)
{
    struct world *w = &g->w;

    if (g->c->returns)
        return_settle(g);
    for (unsigned e = 0; e < LINKS; e++)
        if (!w->link[e].s_open && !w->link[e].d_open)
            memset(&w->link[e], 0, sizeof(w->link[e]));
    if (!w->broken)
        w->broken = (uint8_t)rule_broken(w, g->c);
    g->take(g->opaque, w, &g->step);
}

bool gen_lacks(const struct gen *g, enum mutant m)
{
    return g->mutant == m;
}

struct link_life *world_link(struct world *w, unsigned epoch)
{
    assert(epoch && epoch <= LINKS);
    return &w->link[epoch - 1];
}

void gen_send(struct gen *g, unsigned epoch, int dir, uint8_t msg)
{
    struct link_life *l = world_link(&g->w, epoch);

    g->step.epoch = (uint8_t)epoch;
    assert(g->step.n_sent < QUEUE);
    g->step.sent[g->step.n_sent++] = msg;
    if (l->cut)
        return;
    assert(l->n[dir] < QUEUE);
    l->q[dir][l->n[dir]++] = msg;
}

uint8_t world_front(const struct world *w, unsigned epoch, int dir)
{
    return epoch && w->link[epoch - 1].n[dir] ? w->link[epoch - 1].q[dir][0] : 0;
}

uint8_t gen_get(struct gen *g, unsigned epoch, int dir)
{
    struct link_life *l = world_link(&g->w, epoch);
    uint8_t msg = l->q[dir][0];

    assert(l->n[dir]);
    memmove(l->q[dir], l->q[dir] + 1, --l->n[dir]);
    l->q[dir][l->n[dir]] = 0;
    g->step.epoch = (uint8_t)epoch;
    g->step.got = msg;
    return msg;
}

void dest_ends(struct world *w, enum dest_at at)
{
    for (unsigned e = 1; e <= LINKS; e++)
        if (w->link[e - 1].d_open)
            link_close(w, e, AT_DEST);
    w->d_link = w->d_runs = w->d_disks = w->d_stalled = w->d_bare = 0;
    w->d_at = (uint8_t)at;
}

bool world_has_pages(const struct world *w)
{
    for (unsigned p = 0; p < PAGES; p++)
        if (w->d_page[p] != PAGE_PRESENT)
            return false;
    return true;
}

bool dest_listens(const struct gen *g)
{
    unsigned at = g->from->d_at;

    if (at == D_ACCEPT)
        return true;
    if (!g->c->resume || gen_lacks(g, M_PORT_CLOSED))
        return false;
    if (at == D_COMPLETE)
        return !gen_lacks(g, M_COMPLETE_LEAVES);
    return at >= D_WAIT_GO && at <= D_COMPLETE;
}

bool world_can_connect(const struct world *w)
{
    return w->n_links < LINKS;
}

unsigned gen_connect(struct gen *g, uint8_t hello)
{
    unsigned epoch = ++g->w.n_links;

    g->w.link[epoch - 1] = (struct link_life){.s_open = 1, .d_open = 1};
    gen_send(g, epoch, TO_DEST, hello);
    return epoch;
}

/* The other end notices, and may read before what has come; what it has not read here is gone */
void link_close(struct world *w, unsigned epoch, int who)
{
    if (!epoch)
        return;
    struct link_life *l = world_link(w, epoch);
    l->cut = 1;
    if (who == AT_SOURCE)
        l->s_open = 0;
    else
        l->d_open = 0;
    int dir = who == AT_SOURCE ? TO_SOURCE : TO_DEST;
    l->n[dir] = 0;
    memset(l->q[dir], 0, QUEUE);
    for (unsigned p = 0; p < PAGES; p++)
        if (who == AT_DEST || l->bytes[p] == BYTES_ASKED)
            l->bytes[p] = BYTES_NONE;
}

void model_start(const struct config *c, struct world *w)
{
    memset(w, 0, sizeof(*w));
    w->s_at = S_CONNECT;
    w->s_runs = w->s_disks = 1;
    w->d_at = D_ACCEPT;
    if (c->returns)
        return_start(c, w);
}

void model_steps(struct gen *g)
{
    source_steps(g);
    source_broken_steps(g);
    dest_steps(g);
    dest_broken_steps(g);
    fault_steps(g);
    if (g->c->returns)
        return_steps(g);
}
