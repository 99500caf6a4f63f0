/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fault_around.c - the pages behind one that somebody waits for come with it; see fault_around.h
 */
#include <string.h>

#include "children.h"
#include "cleanup.h"
#include "failpoint.h"
#include "fault_around.h"
#include "fault_private.h"
#include "verify.h"
#include "wants.h"

#define SLOWER(alone_ns) ((alone_ns) + (alone_ns) / 2 + 30000) /* a fault that waits so long beside one waits too long */
#define SAMPLES 8u /* before that is judged */
#define ALONE 32u /* one fault of so many has none around it: what is usual may change */
#define HOLD_MIN 16u /* faults without one, then; twice as many each time, up to */
#define HOLD_MAX 1024u

static uint32_t pages_of(const struct ff_pager_region *r)
{
    return FF_AROUND_BYTES / r->range.psize;
}

static bool is_bit(const uint8_t *map, uint32_t i)
{
    return map[i / 8] & 1u << i % 8;
}

/* The link is needed for faults: none waits to be sent, nothing is left of the last link, and there is room */
static struct ff_around *free_around(const struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;

    if (f->broken || f->n_due || f->n_kept || p->wants->n || f->n_busy >= f->n_slots / 2)
        return NULL;
    for (struct ff_around *a = f->around; a < f->around + FF_AROUNDS; a++)
        if (!a->busy)
            return a;
    return NULL;
}

/* Pages from @first on that nobody has, and that one READ may bring: claimed, so many */
static uint32_t claim(struct ff_pager_region *r, uint64_t first)
{
    const uint64_t segment = r->segment_bytes / r->range.psize, ready = r->range.ready_bytes / r->range.psize;
    uint64_t end = FF_MIN(first + pages_of(r) - 1, r->claims.n_pages), n = 0;

    if (first >= end || ff_pager_is_unreadable(r, first) || !ff_pager_rkey(r, first))
        return 0; /* zeros cost prefill nothing */
    end = FF_MIN(end, (first / segment + 1) * segment);
    end = first < ready ? FF_MIN(end, ready) : end;
    end = ff_pager_part_end(r, first, end);
    while (first + n < end && ff_claim_take(&r->claims, first + n))
        n++;
    return (uint32_t)n;
}

/* As if somebody had touched what is left of @a: its claims stay taken */
static void want_each(struct ff_pager *p, struct ff_around *a)
{
    for (uint32_t i = a->done; i < a->n; i++)
        ff_wants_add(p->wants, (struct ff_want){.region = a->region,
                                                .page = a->first + i,
                                                .around = true,
                                                .since_ns = a->posted_ns,
                                                .queued_ns = a->posted_ns});
    a->busy = false;
}

static void post_around(struct ff_pager *p, struct ff_around *a)
{
    struct ff_fault_engine *f = p->fault;
    struct ff_pager_region *r = &p->region[a->region];
    const size_t i = (size_t)(a - f->around);
    struct ff_error why;
    uint32_t lkey;

    memset(a->zero, 0, sizeof(a->zero));
    memset(a->poison, 0, sizeof(a->poison));
    a->local = ff_pager_in_place(r, a->first, &lkey);
    const bool in_file = a->local && !ff_pager_is_ready(r, a->first, a->n);
    if (!a->local) {
        a->local = f->around_memory + i * FF_AROUND_BYTES;
        lkey = f->around_mr.lkey;
    }
    const struct ff_wr wr = {.id = f->n_slots + i,
                             .op = FF_OP_READ,
                             .local = a->local,
                             .in_file = in_file,
                             .lkey = lkey,
                             .remote = r->remote + a->first * r->range.psize,
                             .rkey = ff_pager_rkey(r, a->first),
                             .len_bytes = a->n * r->range.psize,
                             .granule_bytes = r->range.psize,
                             .zero = a->zero,
                             .poison = a->poison};
    const int rc = ff_pager_post(p, FF_QUEUE_FAULT, r, &wr, &why);

    a->posted_ns = ff_now_ns();
    a->busy = true;
    if (!rc) {
        f->n_around++;
        if (!f->n_busy++)
            f->last_progress_ns = a->posted_ns;
        return;
    }
    want_each(p, a);
    if (rc != -EAGAIN) {
        f->broken = true;
        ff_pager_break(p, &why);
    }
}

/* --- how much it costs those that wait for a page --- */

void ff_around_measure(struct ff_pager *p, uint64_t took_ns, bool beside)
{
    struct ff_fault_engine *f = p->fault;
    uint64_t *usual = beside ? &f->beside_ns : &f->alone_ns;

    *usual = *usual ? (*usual * 7 + took_ns) / 8 : took_ns;
    f->n_beside += beside;
}

static bool may_post(struct ff_fault_engine *f)
{
    if (f->hold) {
        f->hold--;
        return false;
    }
    if (!(++f->n_posted % ALONE))
        return false;
    if (!f->alone_ns || f->n_beside < SAMPLES)
        return true;
    f->n_beside = 0;
    if (f->beside_ns <= SLOWER(f->alone_ns)) {
        f->hold_next /= 2;
        return true;
    }
    f->hold_next = FF_MIN(FF_MAX(2 * f->hold_next, HOLD_MIN), HOLD_MAX);
    f->hold = f->hold_next;
    f->beside_ns = 0;
    return false;
}

void ff_around_post(struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;
    const uint32_t region = p->wants->touched_region;
    struct ff_pager_region *r = &p->region[region];

    if (!p->wants->was_touched)
        return;
    p->wants->was_touched = false;
    if (!atomic_load(&p->image_frozen) || p->mode == FF_PREFILL_OFF || p->opts->budget_bytes || r->kept ||
        r->range.psize > FF_AROUND_BYTES / 2)
        return;
    struct ff_around *a = free_around(p);
    if (!a || !may_post(f) || ff_failpoint("dest.around"))
        return;
    const uint64_t first = p->wants->touched_page + 1;
    const uint32_t n = claim(r, first);
    if (!n)
        return;
    *a = (struct ff_around){.region = region, .first = first, .n = n};
    post_around(p, a);
}

/* --- what has come --- */

/* One run of pages alike from a->done on: 0, -EAGAIN: there is no memory for the rest of it; or the image is of no use */
static int install_run(struct ff_pager *p, struct ff_around *a)
{
    struct ff_pager_region *r = &p->region[a->region];
    const uint32_t i = a->done, psize = r->range.psize;
    const bool zero = is_bit(a->zero, i), poison = is_bit(a->poison, i);
    const uint64_t first = a->first + i;
    uint64_t run = 1, done = 0;
    int rc = 0;

    while (i + run < a->n && is_bit(a->zero, i + (uint32_t)run) == zero && is_bit(a->poison, i + (uint32_t)run) == poison)
        run++;
    if (poison) {
        rc = ff_pager_poison(p, r, first, run, &done);
    } else if (zero && r->holes && ff_uffd_drop_ready(&r->range, first * psize, run * psize)) {
        ff_pager_leave_holes(p, r, first, run);
        done = run;
    } else {
        rc = ff_pager_install(p, r, first, run, zero ? NULL : a->local + (size_t)i * psize, true, &done);
    }
    if (!zero && !poison)
        atomic_fetch_add(&p->count.bytes_fault, done * psize);
    for (uint64_t k = 0; k < done; k++)
        ff_children_arrived(p, a->region, first + k);
    a->done += (uint32_t)done;
    return rc;
}

/* Where there is no memory it is kept until there is */
static void install_around(struct ff_pager *p, struct ff_around *a)
{
    struct ff_fault_engine *f = p->fault;
    int rc = 0;

    while (!rc && a->done < a->n)
        rc = install_run(p, a);
    f->n_kept -= a->kept;
    a->busy = a->kept = rc == -EAGAIN;
    f->n_kept += a->kept;
    if (rc == -EAGAIN)
        rc = ff_pager_short(p, FF_BY_FAULT);
    f->broken |= rc != 0;
}

bool ff_around_is(const struct ff_pager *p, uint64_t id)
{
    const struct ff_fault_engine *f = p->fault;
    const struct ff_around *a = id >= f->n_slots && id - f->n_slots < FF_AROUNDS ? &f->around[id - f->n_slots] : NULL;

    return a && a->busy && !a->kept;
}

void ff_around_arrived(struct ff_pager *p, uint64_t id)
{
    struct ff_fault_engine *f = p->fault;

    f->n_busy--;
    f->n_around--;
    install_around(p, &f->around[id - f->n_slots]);
}

void ff_around_retry(struct ff_pager *p)
{
    for (struct ff_around *a = p->fault->around; a < p->fault->around + FF_AROUNDS; a++)
        if (a->kept)
            install_around(p, a);
}

void ff_around_break(struct ff_pager *p)
{
    struct ff_fault_engine *f = p->fault;

    for (struct ff_around *a = f->around; a < f->around + FF_AROUNDS; a++)
        if (a->busy && !a->kept)
            want_each(p, a);
    f->n_around = 0;
}
