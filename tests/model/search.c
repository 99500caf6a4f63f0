/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * search.c - every state that the model can reach, breadth first, and how it got there
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      all of it: no state is cut off, so a rule that holds here holds for every order of
 *              events within the bounds of a configuration.
 * Picture      worlds[] in the order of their discovery; table: a hash of their places; parent[]:
 *              the first way there, so a trace is a shortest one; edges of worlds[i] are
 *              edge[first[i]..first[i + 1])
 * Invariants   progress: from every state some STEPs, without a FAULT or a CHOICE, lead to a guest
 *              that is well or lost for a reason. Timers are STEPs: so a reason counts only when
 *              its fault has happened (guest_lost()).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

#define STEP_BIT 0x80000000u

struct search {
    struct world *worlds;
    uint32_t *parent, *first, *edge, *table;
    uint32_t n, room, table_size;
    uint64_t n_edges, edges_room;
    struct search_result *out;
    uint32_t from;
    uint32_t loss_at[LOSSES];
    bool (*filter)(void *opaque, struct world *w, const struct step *step);
    void *filter_opaque;
};

struct search *search_new(void)
{
    struct search *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    return s;
}

void search_free(struct search *s)
{
    free(s->worlds);
    free(s->parent);
    free(s->first);
    free(s->edge);
    free(s->table);
    free(s);
}

static void *grow(void *p, uint64_t n, size_t size)
{
    p = realloc(p, n * size);
    if (!p) {
        fprintf(stderr, "model: out of memory (%llu entries)\n", (unsigned long long)n);
        exit(1);
    }
    return p;
}

static uint32_t hash_world(const struct world *w)
{
    const uint8_t *p = (const uint8_t *)w;
    uint64_t h = 0x9e3779b97f4a7c15ull, x;
    size_t i = 0;

    for (; i + 8 <= sizeof(*w); i += 8) {
        memcpy(&x, p + i, 8);
        h = (h ^ x) * 0xff51afd7ed558ccdull;
        h ^= h >> 32;
    }
    for (; i < sizeof(*w); i++)
        h = (h ^ p[i]) * 0x100000001b3ull;
    return (uint32_t)(h ^ h >> 29);
}

static void rehash(struct search *s)
{
    s->table_size = s->table_size ? s->table_size * 2 : 1u << 16;
    s->table = grow(s->table, s->table_size, sizeof(*s->table));
    memset(s->table, 0xff, s->table_size * sizeof(*s->table));
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t at = hash_world(&s->worlds[i]) & (s->table_size - 1);
        while (s->table[at] != UINT32_MAX)
            at = (at + 1) & (s->table_size - 1);
        s->table[at] = i;
    }
}

static uint32_t add_world(struct search *s, const struct world *w)
{
    if (s->n * 2 >= s->table_size)
        rehash(s);
    uint32_t at = hash_world(w) & (s->table_size - 1);
    for (; s->table[at] != UINT32_MAX; at = (at + 1) & (s->table_size - 1))
        if (!memcmp(&s->worlds[s->table[at]], w, sizeof(*w)))
            return s->table[at];
    if (s->n + 1 >= s->room) {
        s->room = s->room ? s->room * 2 : 1u << 14;
        s->worlds = grow(s->worlds, s->room, sizeof(*s->worlds));
        s->parent = grow(s->parent, s->room, sizeof(*s->parent));
        s->first = grow(s->first, s->room + 1ull, sizeof(*s->first));
    }
    s->table[at] = s->n;
    s->worlds[s->n] = *w;
    s->parent[s->n] = s->from;
    return s->n++;
}

static void take_edge(void *opaque, const struct world *next, const struct step *step)
{
    struct search *s = opaque;
    struct search_result *out = s->out;
    struct world changed = *next;
    const struct world *w = next;

    if (s->filter) {
        if (!s->filter(s->filter_opaque, &changed, step))
            return;
        w = &changed;
    }
    uint32_t before = s->n, to = add_world(s, w);
    if (step->got)
        out->messages_seen |= 1ull << MSG_TYPE(step->got);
    out->source_seen |= 1u << w->s_at;
    out->dest_seen |= 1u << w->d_at;
    if (to == s->from)
        return;
    if (s->n_edges == s->edges_room) {
        s->edges_room = s->edges_room ? s->edges_room * 2 : 1u << 16;
        s->edge = grow(s->edge, s->edges_room, sizeof(*s->edge));
    }
    s->edge[s->n_edges++] = to | (step->kind == STEP ? STEP_BIT : 0);
    if (s->n > before && w->broken && out->rule == RULE_KEPT) {
        out->rule = w->broken;
        out->bad = to;
    }
}

static unsigned depth_of(const struct search *s, uint32_t at)
{
    unsigned d = 0;

    for (; at; at = s->parent[at])
        d++;
    return d;
}

/* The first state from which no STEPs lead to an end; UINT32_MAX: there is none */
static uint32_t find_stuck(const struct search *s, const struct config *c)
{
    uint8_t *ends = calloc(s->n, 1);
    uint32_t stuck = UINT32_MAX;
    bool more = true;

    if (!ends)
        abort();
    for (uint32_t i = 0; i < s->n; i++)
        ends[i] = guest_is_well(&s->worlds[i], c) || guest_lost(&s->worlds[i], c);
    while (more) {
        more = false;
        for (uint32_t i = s->n; i-- > 0;)
            for (uint32_t e = s->first[i]; !ends[i] && e < s->first[i + 1]; e++)
                if (s->edge[e] & STEP_BIT && ends[s->edge[e] & ~STEP_BIT])
                    ends[i] = more = true;
    }
    for (uint32_t i = 0; i < s->n && stuck == UINT32_MAX; i++)
        if (!ends[i])
            stuck = i;
    free(ends);
    return stuck;
}

/* Different orders of at most @steps actions, each until nothing can happen any more */
static double count_runs(const struct search *s, unsigned steps)
{
    double *now = malloc(s->n * sizeof(*now)), *before = malloc(s->n * sizeof(*before));

    if (!now || !before)
        abort();
    for (uint32_t i = 0; i < s->n; i++)
        before[i] = 1;
    for (unsigned k = 0; k < steps; k++) {
        for (uint32_t i = 0; i < s->n; i++) {
            now[i] = s->first[i] == s->first[i + 1];
            for (uint32_t e = s->first[i]; e < s->first[i + 1]; e++)
                now[i] += before[s->edge[e] & ~STEP_BIT];
        }
        double *swap = now;
        now = before;
        before = swap;
    }
    double runs = before[0];
    free(now);
    free(before);
    return runs;
}

static void note_losses(struct search *s, const struct config *c)
{
    struct search_result *out = s->out;

    for (uint32_t i = 0; i < s->n; i++) {
        if (guest_is_well(&s->worlds[i], c))
            continue;
        enum loss l = guest_lost(&s->worlds[i], c);
        if (!l || out->loss_states[l]++)
            continue;
        out->losses |= 1u << l;
        s->loss_at[l] = i;
        out->loss_depth[l] = depth_of(s, i);
    }
}

void search_run(struct search *s, const struct config *c, enum mutant m, bool all,
                struct search_result *out)
{
    struct world w;
    struct gen g = {.c = c, .mutant = m, .take = take_edge, .opaque = s};

    *out = (struct search_result){.rule = RULE_KEPT};
    s->out = out;
    s->n = 0;
    s->n_edges = 0;
    if (s->table)
        memset(s->table, 0xff, s->table_size * sizeof(*s->table));
    model_start(c, &w);
    add_world(s, &w);
    for (uint32_t i = 0; i < s->n && !out->rule; i++) {
        s->from = i;
        s->first[i] = (uint32_t)s->n_edges;
        w = s->worlds[i]; /* the array may move */
        g.from = &w;
        model_steps(&g);
        s->first[i + 1] = (uint32_t)s->n_edges;
    }
    out->states = s->n;
    out->edges = s->n_edges;
    if (out->rule || s->filter)
        return;
    out->bad = find_stuck(s, c);
    if (out->bad != UINT32_MAX) {
        out->rule = NO_RUNNER;
        return;
    }
    if (!all)
        return;
    out->steps_deep = depth_of(s, s->n - 1);
    out->runs = count_runs(s, (unsigned)out->steps_deep);
    note_losses(s, c);
}

void search_filter(struct search *s,
                   bool (*step)(void *opaque, struct world *w, const struct step *step),
                   void *opaque)
{
    s->filter = step;
    s->filter_opaque = opaque;
}

uint32_t search_find(const struct search *s, bool (*is)(void *opaque, const struct world *w),
                     void *opaque)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (is(opaque, &s->worlds[i]))
            return i;
    return UINT32_MAX;
}

const struct world *search_world(const struct search *s, uint32_t at)
{
    return &s->worlds[at];
}

uint32_t search_loss_at(const struct search *s, enum loss l)
{
    return s->loss_at[l];
}

/* --- a trace, as a diagram --- */

struct seek {
    struct search *s;
    const struct world *want;
    struct step step;
    bool found;
};

static void seek_edge(void *opaque, const struct world *w, const struct step *step)
{
    struct seek *k = opaque;
    struct world changed = *w;

    if (k->s->filter && !k->s->filter(k->s->filter_opaque, &changed, step))
        return;
    if (k->found || memcmp(&changed, k->want, sizeof(changed)))
        return;
    k->step = *step;
    k->found = true;
}

void search_walk(struct search *s, const struct config *c, enum mutant m, uint32_t at,
                 void (*fn)(void *opaque, const struct step *step, const struct world *w),
                 void *opaque)
{
    unsigned n = depth_of(s, at);
    uint32_t *path = malloc((n + 1) * sizeof(*path));

    if (!path)
        abort();
    for (unsigned i = n + 1; i-- > 0; at = s->parent[at])
        path[i] = at;
    for (unsigned i = 0; i < n; i++) {
        struct seek k = {.want = &s->worlds[path[i + 1]], .s = s};
        struct gen g = {
            .c = c, .mutant = m, .from = &s->worlds[path[i]], .take = seek_edge, .opaque = &k};
        model_steps(&g);
        fn(opaque, &k.step, k.want);
    }
    free(path);
}

static void print_message(const struct step *st, uint8_t msg, bool sent)
{
    bool right = (st->actor == AT_SOURCE) == sent;
    char text[48];

    msg_text(msg, text, sizeof(text));
    printf("          %s %s %s%s link %u\n", right ? "|" : "|<--", text, right ? "-->|" : "|",
           sent ? "  sent," : "  read,", st->epoch);
}

static void print_step(const struct step *st, const struct world *w)
{
    static const char *const column[] = {"source", "            destination", "      link",
                                         "      (host)"};
    static const char *const kind[] = {"", "", "  ** FAULT"};

    printf("  %s: %s%s", column[st->actor], st->what, kind[st->kind]);
    if (st->epoch && !st->got && !st->n_sent)
        printf(" (link %u)", st->epoch);
    printf("\n");
    if (st->got)
        print_message(st, st->got, false);
    for (unsigned i = 0; i < st->n_sent; i++)
        print_message(st, st->sent[i], true);
    printf("%60s %s%s | %s%s\n", "", source_name(w->s_at), w->s_runs ? ", RUNS" : "",
           dest_name(w->d_at), w->d_runs ? ", RUNS" : "");
    static const char *const hold[] = {[FREE] = "free", [HELD] = "held", [RETURNED] = "returned"};
    if (w->o_is)
        printf("%60s way out: %s, %s, home %s%s, leases %u %u%s\n", "",
               w->o_link ? "link" : "no link", w->o_given_up ? "given up" : "whole",
               hold[w->o_hold], w->o_runs ? ", RUNS as of GO" : "", w->o_away_lease, w->o_lease,
               w->o_released ? " (away needs none)" : "");
    if (w->o_is && w->o_at != OUT_SERVES)
        printf("%60s way out: %s\n", "", out_name(w->o_at));
}

static void print_walk(void *opaque, const struct step *step, const struct world *w)
{
    (void)opaque;
    print_step(step, w);
}

void search_trace(struct search *s, const struct config *c, enum mutant m, uint32_t at)
{
    search_walk(s, c, m, at, print_walk, NULL);
}
