/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_wants.c - pages that somebody waits for, while an agent's link is away and when it is back
 */
#include "unit.h"

#include "children.c"

#include "fault_private.h"

#define PAGES 6000u
#define SLOTS 4u

static struct ff_pager p;
static struct ff_pager_child child;

/* All but the last page are waited for by a child and claimed: some in slots, the others queued */
static void setup_pager(void)
{
    struct ff_error err;

    p = (struct ff_pager){.n_regions = 1, .may_be_fed = true, .state = FF_PAGER_UP};
    p.region[0] = (struct ff_pager_region){.range.psize = 4096, .chunk_bytes = 64 << 10};
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.changed, NULL);
    assert_int_equal(ff_claims_init(&p.region[0].claims, PAGES), 0);
    ff_claims_seal(&p.region[0].claims);
    assert_ok(ff_children_new(&p, &err), err);
    p.wants = calloc(1, sizeof(*p.wants));
    p.fault = calloc(1, sizeof(*p.fault));
    assert_true(p.wants && p.fault);
    pthread_mutex_init(&p.fault->lock, NULL);
    p.fault->n_slots = SLOTS;
    for (uint32_t i = 0; i < PAGES - 1; i++)
        serve_event(&p, &child, 0, i);
    for (unsigned i = 0; i < SLOTS; i++)
        p.fault->slot[i] = (struct slot){.busy = true, .want = ff_wants_take(p.wants)};
    assert_int_equal(p.wants->n, PAGES - 1 - SLOTS);
}

static void teardown_pager(void)
{
    p.children->first = NULL;
    ff_children_free(&p);
    ff_claims_free(&p.region[0].claims);
    ff_fault_engine_free(p.fault);
    free(p.wants);
    pthread_mutex_destroy(&p.lock);
    pthread_cond_destroy(&p.changed);
}

static uint64_t count(enum ff_claim what)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < PAGES; i++)
        n += ff_claim_get(&p.region[0].claims, i) == what;
    return n;
}

/* However many there are: anybody may bring each of them while the link is away; what is still
 * missing when it is back is claimed again, once, and nothing else is */
static void test_away_and_back(void **state)
{
    (void)state;
    setup_pager();
    p.fault->broken = true;
    assert_false(ff_fault_follow_link(&p));
    assert_true(p.fault_parked && atomic_load(&p.rewind));
    assert_int_equal(count(FF_CLAIM_MISSING), PAGES);
    assert_int_equal(p.wants->n, 0);

    serve_event(&p, &child, 0, PAGES - 1); /* as somebody touches one more */
    assert_int_equal(count(FF_CLAIM_MISSING), PAGES);
    for (uint64_t i = 0; i < PAGES; i += 2) {
        assert_true(ff_claim_take(&p.region[0].claims, i));
        ff_claim_done(&p.region[0].claims, i);
    }
    p.attached = true;
    assert_true(ff_fault_follow_link(&p));
    assert_int_equal(count(FF_CLAIM_PRESENT), PAGES / 2);
    assert_int_equal(count(FF_CLAIM_INFLIGHT), PAGES / 2);
    assert_int_equal(p.wants->n, PAGES / 2);
    for (unsigned i = 0; i < SLOTS; i++)
        assert_false(p.fault->slot[i].due);
    teardown_pager();
}

/* A guest's own pager keeps its claims: its next link brings them */
static void test_nobody_else(void **state)
{
    (void)state;
    setup_pager();
    p.may_be_fed = false;
    p.fault->broken = true;
    assert_false(ff_fault_follow_link(&p));
    assert_int_equal(count(FF_CLAIM_INFLIGHT), PAGES - 1);
    p.attached = true;
    assert_true(ff_fault_follow_link(&p));
    assert_int_equal(p.wants->n, PAGES - 1 - SLOTS);
    for (unsigned i = 0; i < SLOTS; i++)
        assert_true(p.fault->slot[i].due);
    teardown_pager();
}

UNIT_MAIN(cmocka_unit_test(test_away_and_back), cmocka_unit_test(test_nobody_else))
