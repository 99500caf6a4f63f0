/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * claims.c - who installs which page: MISSING -> INFLIGHT -> PRESENT, once
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "claims.h"
#include "cleanup.h"
#include "log.h"

static const char *const names[] = {
    [FF_CLAIM_MISSING] = "missing",
    [FF_CLAIM_INFLIGHT] = "inflight",
    [FF_CLAIM_PRESENT] = "present",
    [FF_CLAIM_HOLE] = "hole",
    [FF_CLAIM_POISONED] = "poisoned",
};
static_assert(FF_ARRAY_LEN(names) == FF_CLAIM_POISONED + 1, "a name for every claim");

int ff_claims_init(struct ff_claims *c, uint64_t n_pages)
{
    /* fresh anonymous memory: all MISSING, and only touched parts cost anything */
    void *p = mmap(NULL, n_pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return -errno;
    c->state = p;
    c->n_pages = n_pages;
    atomic_init(&c->here, 0);
    atomic_init(&c->sealed, false);
    return 0;
}

void ff_claims_free(struct ff_claims *c)
{
    if (c->state)
        munmap((void *)c->state, c->n_pages);
    c->state = NULL;
}

bool ff_claim_take(struct ff_claims *c, uint64_t page)
{
    uint8_t want = FF_CLAIM_MISSING;
    return atomic_compare_exchange_strong(&c->state[page], &want, FF_CLAIM_INFLIGHT);
}

bool ff_claim_touch(struct ff_claims *c, uint64_t page)
{
    uint8_t want = FF_CLAIM_HOLE;
    if (!atomic_compare_exchange_strong(&c->state[page], &want, FF_CLAIM_INFLIGHT))
        return false;
    atomic_fetch_sub_explicit(&c->here, 1, memory_order_relaxed);
    return true;
}

static void end_claim(struct ff_claims *c, uint64_t page, enum ff_claim as)
{
    uint8_t was = atomic_exchange(&c->state[page], (uint8_t)as);
    if (was != FF_CLAIM_INFLIGHT) {
        ff_log(FF_LOG_ERROR, "claims: page %llu becomes %s while %s: aborting",
               (unsigned long long)page, names[as],
               was < FF_ARRAY_LEN(names) ? names[was] : "damaged");
        abort();
    }
}

void ff_claim_done(struct ff_claims *c, uint64_t page)
{
    end_claim(c, page, FF_CLAIM_PRESENT);
    atomic_fetch_add_explicit(&c->here, 1, memory_order_relaxed);
}

void ff_claim_poisoned(struct ff_claims *c, uint64_t page)
{
    end_claim(c, page, FF_CLAIM_POISONED);
}

void ff_claim_hole(struct ff_claims *c, uint64_t page, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        end_claim(c, page + i, FF_CLAIM_HOLE);
    atomic_fetch_add_explicit(&c->here, (int64_t)n, memory_order_relaxed);
}

void ff_claims_present(struct ff_claims *c)
{
    memset((void *)c->state, FF_CLAIM_PRESENT, c->n_pages);
    atomic_store(&c->here, (int64_t)c->n_pages);
}

void ff_claims_holes(struct ff_claims *c)
{
    memset((void *)c->state, FF_CLAIM_HOLE, c->n_pages);
    atomic_store(&c->here, (int64_t)c->n_pages);
}

static void must_not_be_sealed(const struct ff_claims *c, uint64_t page)
{
    if (!atomic_load(&c->sealed))
        return;
    ff_log(FF_LOG_ERROR, "claims: page %llu discarded after the image was frozen: aborting",
           (unsigned long long)page);
    abort();
}

void ff_claim_give_back(struct ff_claims *c, uint64_t page)
{
    must_not_be_sealed(c, page);
    end_claim(c, page, FF_CLAIM_MISSING);
}

void ff_claim_leave(struct ff_claims *c, uint64_t page)
{
    end_claim(c, page, FF_CLAIM_MISSING);
}

bool ff_claim_forget(struct ff_claims *c, uint64_t page)
{
    uint8_t want = FF_CLAIM_PRESENT, hole = FF_CLAIM_HOLE;

    must_not_be_sealed(c, page);
    if (!atomic_compare_exchange_strong(&c->state[page], &hole, FF_CLAIM_MISSING) &&
        !atomic_compare_exchange_strong_explicit(&c->state[page], &want, FF_CLAIM_MISSING,
                                                 memory_order_acq_rel, memory_order_acquire))
        return false;
    atomic_fetch_sub_explicit(&c->here, 1, memory_order_relaxed);
    return true;
}

void ff_claims_seal(struct ff_claims *c)
{
    atomic_store(&c->sealed, true);
}

enum ff_claim ff_claim_get(const struct ff_claims *c, uint64_t page)
{
    return atomic_load(&c->state[page]);
}

uint64_t ff_claims_here(const struct ff_claims *c)
{
    int64_t here = atomic_load(&c->here);

    return here < 0 ? 0 : FF_MIN((uint64_t)here, c->n_pages);
}

const char *ff_claim_name(enum ff_claim claim)
{
    return names[claim];
}
