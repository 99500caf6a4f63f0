/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fault_engine.c - the fault thread's slots: made, given to a link, and what becomes of them when it breaks
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "children.h"
#include "cleanup.h"
#include "fault_around.h"
#include "fault_private.h"

#define SLOT_MEMORY (16u << 20)

int ff_fault_engine_new(struct ff_pager *p, struct ff_error *err)
{
    struct ff_fault_engine *f = calloc(1, sizeof(*f));
    if (!f)
        return ff_error_set(err, ENOMEM, "pager: fault engine: out of memory");
    p->fault = f;
    pthread_mutex_init(&f->lock, NULL);
    f->slot_bytes = 4096;
    for (unsigned i = 0; i < p->n_regions; i++)
        f->slot_bytes = FF_MAX(f->slot_bytes, p->region[i].range.psize);
    f->n_slots = FF_MIN(FF_QUEUE_DEPTH, FF_MAX(SLOT_MEMORY / f->slot_bytes, 4u));
    void *m = mmap(NULL, (size_t)f->n_slots * f->slot_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return ff_error_set(err, ENOMEM, "pager: fault slots: out of memory");
    madvise(m, (size_t)f->n_slots * f->slot_bytes, MADV_DONTFORK); /* not a child's */
    f->memory = m;
    m = mmap(NULL, FF_AROUNDS * FF_AROUND_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return ff_error_set(err, ENOMEM, "pager: fault slots: out of memory");
    madvise(m, FF_AROUNDS * FF_AROUND_BYTES, MADV_DONTFORK);
    f->around_memory = m;
    return ff_fault_engine_attach(p, err);
}

int ff_fault_engine_attach(struct ff_pager *p, struct ff_error *err)
{
    struct ff_fault_engine *f = p->fault;

    int rc = p->link->ops->reg(p->link, f->memory, (size_t)f->n_slots * f->slot_bytes, 0, &f->mr, err);
    return rc ? rc : p->link->ops->reg(p->link, f->around_memory, FF_AROUNDS * FF_AROUND_BYTES, 0, &f->around_mr, err);
}

void ff_fault_engine_free(struct ff_fault_engine *f)
{
    if (!f)
        return;
    if (f->memory)
        munmap(f->memory, (size_t)f->n_slots * f->slot_bytes);
    if (f->around_memory)
        munmap(f->around_memory, FF_AROUNDS * FF_AROUND_BYTES);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

int ff_fault_engine_want(struct ff_pager *p, const struct ff_page_ref *pages, unsigned n,
                         struct ff_error *err)
{
    struct ff_fault_engine *f = p->fault;

    pthread_mutex_lock(&f->lock);
    bool fits = n <= FF_WIRE_FIRST_MAX - f->n_asked;
    if (fits) {
        memcpy(f->asked + f->n_asked, pages, n * sizeof(*pages));
        f->n_asked += n;
    }
    pthread_mutex_unlock(&f->lock);
    if (!fits)
        return ff_error_set(err, E2BIG, "pager: more than %d first-touch pages", FF_WIRE_FIRST_MAX);
    eventfd_write(p->wake_fd, 1);
    return 0;
}

/* An agent's link is away: other agents may have what it was to bring */
static void leave_claims(struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;

    p->wants->away = true;
    for (unsigned n = p->wants->n; n; n--)
        ff_wants_leave(p, ff_wants_take(p->wants));
    for (unsigned i = 0; i < f->n_slots; i++) {
        struct slot *s = &f->slot[i];
        if (!s->busy || s->kept)
            continue;
        s->busy = false;
        ff_wants_leave(p, s->want);
    }
    atomic_store(&p->rewind, true);
}

static void take_claims(struct ff_pager *p)
{
    p->wants->away = false;
    if (p->children)
        ff_children_want(p);
}

bool ff_fault_follow_link(struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;

    if (!f->broken)
        return false;
    pthread_mutex_lock(&p->lock);
    f->broken = !p->attached;
    if (f->broken && !p->fault_parked)
        pthread_cond_broadcast(&p->changed);
    p->fault_parked = f->broken;
    p->attached = false;
    pthread_mutex_unlock(&p->lock);
    ff_around_break(p);
    if (f->broken && p->may_be_fed && !p->wants->away)
        leave_claims(p);
    else if (!f->broken)
        take_claims(p);
    f->n_busy = f->n_due = 0;
    for (unsigned i = 0; i < f->n_slots; i++) {
        f->slot[i].due = f->slot[i].busy && !f->slot[i].kept;
        f->n_due += f->slot[i].due;
    }
    return !f->broken;
}

static void leave_hole(struct ff_pager *p, const struct ff_want *w)
{
    struct ff_pager_region *r = &p->region[w->region];

    ff_claim_hole(&r->claims, w->page, 1);
    ff_pager_count_hole(p, r, true);
}

void ff_fault_leave_holes(struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;

    for (unsigned n = p->wants->n; n; n--) {
        struct ff_want w = ff_wants_take(p->wants);
        if (w.hole)
            leave_hole(p, &w);
        else
            ff_wants_add(p->wants, w);
    }
    for (unsigned i = 0; i < f->n_slots; i++) {
        struct slot *s = &f->slot[i];
        if (!s->kept || !s->want.hole)
            continue;
        leave_hole(p, &s->want);
        s->busy = s->kept = false;
        f->n_kept--;
    }
}
