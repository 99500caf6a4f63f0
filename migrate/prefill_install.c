/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * prefill_install.c - prefill: what has come is claimed and installed, run by run; see prefill.c
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "cleanup.h"
#include "feed.h"
#include "mr.h"
#include "prefill_private.h"

#define MOVE_BATCH 512u /* each interrupts the CPUs of the guest */
#define RETRY_MS 20

static bool is_zero(const struct transfer *t, uint64_t i)
{
    return t->zero[i / 8] & (1u << (i % 8));
}

/* A page that the source cannot read counts as zero, too */
static bool is_poison(const struct transfer *t, uint64_t i)
{
    return t->poison[i / 8] & (1u << (i % 8));
}

static bool are_alike(const struct transfer *t, uint64_t i, uint64_t k)
{
    return is_zero(t, i) == is_zero(t, k) && is_poison(t, i) == is_poison(t, k);
}

uint64_t ff_prefill_claim_run(const struct transfer *t, uint64_t i, uint64_t max)
{
    uint64_t len = 0;

    while (i + len < t->n && len < max && are_alike(t, i + len, i) &&
           ff_claim_take(&t->r->claims, t->first + i + len))
        len++;
    return len;
}

/* Until the next try to install; -errno: in vain */
static int wait_for_memory(struct ff_pager *p)
{
    struct ff_prefill_engine *e = p->prefill;
    unsigned room = FF_ARRAY_LEN(e->kept) - e->n_kept;

    int rc = ff_pager_short(p, FF_BY_PREFILL);
    int n = !room ? -1 : ff_prefill_poll(p, e->kept + e->n_kept, room, RETRY_MS, NULL);
    e->n_kept += n > 0 ? (unsigned)n : 0;
    if (n) /* more comes at once; or never again, and a broken link says so once more */
        nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000}, NULL);
    e->last_progress_ns = ff_now_ns();
    return rc;
}

int ff_prefill_install(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n,
                       uint8_t *src, enum how how)
{
    uint64_t done;

    for (;;) {
        int rc = how == POISON    ? ff_pager_poison(p, r, page, n, &done)
                 : how == BY_MOVE ? ff_pager_move_in(p, r, page, n, src, &done)
                                  : ff_pager_install(p, r, page, n, src, true, &done);
        if (rc != -EAGAIN) {
            ff_pager_enough(p, FF_BY_PREFILL);
            return rc;
        }
        page += done, n -= done;
        if (done)
            ff_pager_installed(p);
        src = src ? src + done * r->range.psize : NULL;
        if ((rc = wait_for_memory(p)) || atomic_load(&p->stop))
            return rc;
    }
}

int ff_prefill_put_zeros(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n)
{
    if (!r->holes || !ff_uffd_drop_ready(&r->range, page * r->range.psize, n * r->range.psize))
        return ff_prefill_install(p, r, page, n, NULL, BY_COPY);
    ff_pager_leave_holes(p, r, page, n);
    return 0;
}

static void count_prefill(struct ff_pager *p, const struct transfer *t, uint64_t len)
{
    const struct ff_feed *f = t->unfed ? NULL : p->prefill->feed;

    atomic_fetch_add(&p->count.bytes_prefill, len);
    if (f)
        atomic_fetch_add(f->offer.is_older ? &p->count.bytes_same : &p->count.bytes_fed, len);
}

/* Whole huge pages that nobody else has touched, mostly not zeros, may be moved in */
static uint64_t try_move(struct ff_pager *p, struct transfer *t, uint64_t i, int *rc)
{
    uint32_t psize = t->r->range.psize;
    uint64_t n = HUGE / psize, zeros = 0, run = 0;
    uint8_t *src = t->local + i * psize;

    *rc = 0;
    if (!t->r->can_move || i + n > t->n || (uintptr_t)src % HUGE ||
        ((uintptr_t)t->r->range.host + (t->first + i) * psize) % HUGE)
        return 0;
    for (uint64_t k = i; k < i + n; k++)
        zeros += is_poison(t, k) ? n : is_zero(t, k);
    if (zeros > n / 2)
        return 0;
    while (run < n && ff_claim_take(&t->r->claims, t->first + i + run))
        run++;
    for (uint64_t k = 0; zeros && k < run; k++)
        if (is_zero(t, i + k))
            memset(src + k * psize, 0, psize);
    if (run == n)
        *rc = ff_prefill_install(p, t->r, t->first + i, n, src, BY_MOVE);
    else if (run) /* a fault has one of them: the others as single pages */
        *rc = ff_prefill_install(p, t->r, t->first + i, run, src, BY_COPY);
    if (!*rc)
        count_prefill(p, t, run * psize);
    return run;
}

int ff_prefill_leave(struct ff_pager *p, const struct transfer *t, uint64_t i, uint64_t n)
{
    for (; n; i++, n--) {
        ff_claim_give_back(&t->r->claims, t->first + i);
        ff_pager_wake(p, t->r, t->first + i);
    }
    return 0;
}

/* Pages that are ours, alike */
static int install_found(struct ff_pager *p, struct transfer *t, uint64_t i, uint64_t run)
{
    uint32_t psize = t->r->range.psize;
    bool zero = is_zero(t, i);
    uint8_t *src = t->local + i * psize;

    int rc = is_poison(t, i) && p->in_precopy ? ff_prefill_leave(p, t, i, run)
             : is_poison(t, i) ? ff_prefill_install(p, t->r, t->first + i, run, NULL, POISON)
             : zero          ? ff_prefill_put_zeros(p, t->r, t->first + i, run)
                             : ff_prefill_install(p, t->r, t->first + i, run, src,
                                             t->pool ? BY_MOVE : BY_COPY);
    if (!rc && !zero)
        count_prefill(p, t, run * psize);
    if (!rc)
        ff_pager_installed(p);
    return rc;
}

int ff_prefill_install_buffer(struct ff_pager *p, struct transfer *t)
{
    uint32_t psize = t->r->range.psize;
    bool any_others = false;
    int rc;

    if (!ff_prefill_link(p)->finds_zeros || !t->pulled) /* a WRITE tells of none */
        ff_zero_scan(t->local, (uint32_t)(t->n * psize), psize, t->zero);
    for (uint64_t i = 0; i < t->n && !atomic_load(&p->stop);) {
        uint64_t run = try_move(p, t, i, &rc);
        if (rc)
            return rc;
        i += run;
        if (run)
            continue;
        run = ff_prefill_claim_run(t, i, t->pool ? MOVE_BATCH : BATCH);
        if (!run) {
            if (!is_zero(t, i))
                atomic_fetch_add(&p->count.bytes_duplicated, psize);
            any_others = true;
            i++;
            continue;
        }
        rc = install_found(p, t, i, run);
        if (rc)
            return rc;
        i += run;
    }
    if (any_others) /* read anew into the pool's pages; together, as each call interrupts the guest's CPUs */
        ff_pager_give_back(t->r, t->first, t->n);
    return 0;
}

/* A page that no page table has leaves its file in a third of the time, and nobody uses the alias of
 * these pages any more */
static void unmap_ready(const struct transfer *t)
{
    unsigned runs = 0;

    for (uint64_t i = 0; i < t->n; i++)
        runs += is_zero(t, i) && (!i || !is_zero(t, i - 1));
    if (runs > 1 && ff_pager_is_ready(t->r, t->first, t->n))
        madvise(t->local, t->n * t->r->range.psize, MADV_DONTNEED);
}

int ff_prefill_install_in_place(struct ff_pager *p, struct transfer *t)
{
    unmap_ready(t);
    for (uint64_t i = 0; i < t->n;) {
        uint64_t run = 1;
        while (i + run < t->n && are_alike(t, i + run, i))
            run++;
        int rc = install_found(p, t, i, run);
        if (rc)
            return rc;
        i += run;
    }
    return 0;
}
