/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * accept.c - search the model for a run in which each side says and reads what was observed
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      tie the model to the code: what the code does the model has to know. The other
 *              direction, that the code can do all that the model can, is not tested here.
 * Picture      a world and how much of either side's list has been explained by the steps to it;
 *              a step that says or reads what does not come next in the list is not taken. How the
 *              two lists lie in time to each other is left open.
 */
#include <stdio.h>
#include <string.h>

#include "accept.h"
#include "model.h"

bool accept_watches(unsigned type)
{
    switch (type) {
    case FF_MSG_KEYS:     /* some moves have none, or more than one */
    case FF_MSG_PARTS:    /* likewise */
    case FF_MSG_FIRST:    /* likewise */
    case FF_MSG_DATA:     /* likewise */
    case FF_MSG_DIRTY:    /* likewise */
    case FF_MSG_FEED:     /* no move has it: agents say it to each other */
    case FF_MSG_GRANT:    /* likewise */
    case FF_MSG_PROGRESS: /* by the clock */
    case FF_MSG_LEASE:    /* likewise */
    case FF_MSG_REFUSE:   /* says why; whether it comes changes nothing */
        return false;
    default:
        return true;
    }
}

static bool explain(const struct accept_side *s, uint8_t *at, uint8_t msg, bool sent)
{
    unsigned type = MSG_TYPE(msg);

    if (!accept_watches(type))
        return true;
    if (*at >= s->n || s->type[*at] != type || s->sent[*at] != sent)
        return false;
    (*at)++;
    return true;
}

static bool take_step(void *opaque, struct world *w, const struct step *step)
{
    const struct accept_run *r = opaque;
    const struct accept_side *s = step->actor == AT_SOURCE ? &r->source : &r->dest;
    uint8_t *at = step->actor == AT_SOURCE ? &w->s_shown : &w->d_shown;

    if (w->d_session > 1) /* another return: what is observed is the first */
        return false;
    for (unsigned i = 0; i < ACCEPT_VIA && r->via[i]; i++)
        if (!strcmp(r->via[i], step->what))
            w->via_shown |= (uint8_t)(1 << i);
    if (step->got && !explain(s, at, step->got, false))
        return false;
    for (unsigned i = 0; i < step->n_sent; i++)
        if (!explain(s, at, step->sent[i], true))
            return false;
    return true;
}

/* Has the model's world ended as the two sides have? */
static bool has_ended(void *opaque, const struct world *w)
{
    const struct accept_run *r = opaque;

    for (unsigned i = 0; i < ACCEPT_VIA && r->via[i]; i++)
        if (!(w->via_shown >> i & 1))
            return false;
    bool went = w->s_gone && w->s_at != S_FAILED;
    if (w->s_shown != r->source.n || w->d_shown != r->dest.n)
        return false;
    if (went != r->went || w->d_go != r->ran)
        return false;
    unsigned source = !r->source.rc ? S_COMPLETE : r->went ? S_PAUSED : S_FAILED;
    if (w->s_at != source)
        return false;
    if (!r->dest.rc)
        return w->d_at == D_COMPLETE;
    return r->ran ? w->d_at == D_PAUSED : w->d_at == D_FAILED || w->d_at == D_ACCEPT;
}

/* --- what was part of a run --- */

static struct {
    const char *what[128];
    unsigned n;
} known, shown;

static bool is_in(const char *what, const char *const *list, unsigned n)
{
    for (unsigned i = 0; i < n && list[i]; i++)
        if (!strcmp(list[i], what))
            return true;
    return false;
}

static void note_shown(void *opaque, const struct step *step, const struct world *w)
{
    (void)opaque;
    (void)w;
    if (!is_in(step->what, shown.what, shown.n))
        shown.what[shown.n++] = step->what;
}

static bool note_known(void *opaque, struct world *w, const struct step *step)
{
    (void)opaque;
    (void)w;
    if (!is_in(step->what, known.what, known.n))
        known.what[known.n++] = step->what;
    return true;
}

unsigned accept_print_missing(const char *const *but)
{
    unsigned missing = 0;

    for (unsigned i = 0; i < 8; i++) {
        const struct config c = {.name = "known", .precopy = i & 1, .push = i & 2, .resume = i & 4,
                                 .breaks = 1, .stalls = 1};
        struct search *s = search_new();
        struct search_result out;
        search_filter(s, note_known, NULL);
        search_run(s, &c, M_NONE, false, &out);
        search_free(s);
    }
    for (unsigned i = 0; i < known.n; i++)
        if (!is_in(known.what[i], shown.what, shown.n) && !is_in(known.what[i], but, 128)) {
            printf("    no run has shown: %s\n", known.what[i]);
            missing++;
        }
    printf("%u of the model's %u actions were part of a run\n", shown.n, known.n);
    return missing;
}

static bool search_for(const struct accept_run *r)
{
    const struct config c = {.name = "observed", .precopy = r->precopy, .push = r->push,
                             .resume = r->resumes, .breaks = r->resumes ? 2 : 1, .stalls = 1,
                             .fallback = r->fallback, .returns = r->returns,
                             .wrote = r->returns};
    struct search *s = search_new();

    search_filter(s, take_step, (void *)r);
    struct search_result out;
    search_run(s, &c, M_NONE, false, &out);
    uint32_t end = search_find(s, has_ended, (void *)r);
    if (end != UINT32_MAX)
        search_walk(s, &c, M_NONE, end, note_shown, NULL);
    search_free(s);
    return end != UINT32_MAX;
}

bool accept_is_run(const struct accept_run *r)
{
    /* what could not be sent may have been, into a link that was cut, or not at all */
    for (unsigned drop = 0; drop < 4; drop++) {
        struct accept_run try = *r;
        if ((drop & 1 && !r->source.failed) || (drop & 2 && !r->dest.failed))
            continue;
        try.source.n -= drop & 1;
        try.dest.n -= drop >> 1;
        if (search_for(&try))
            return true;
    }
    return false;
}

static void print_side(const char *name, const struct accept_side *s)
{
    printf("    %s (%d):", name, s->rc);
    for (unsigned i = 0; i < s->n; i++)
        printf(" %s%s%s", s->sent[i] ? "" : "<-", ff_msg_name(s->type[i]),
               s->failed && i + 1 == s->n ? " (failed)" : "");
    printf("\n");
}

void accept_print(const struct accept_run *r)
{
    print_side("source", &r->source);
    print_side("destination", &r->dest);
    printf("    the source let go: %d; the destination has GO: %d\n", r->went, r->ran);
}
