/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_wants.c - pages that somebody waits for, while an agent's link is away and when it is back; holes
 */
#include "unit.h"

#include "claims.h"
#include "uffd.h"

static enum ff_claim look(const struct ff_claims *c, uint64_t page);
static int wake_note(uint64_t offset);
#define ff_claim_get look
#define ff_uffd_wake(u, range, offset, len, err) wake_note(offset)
#include "children.c"
#undef ff_claim_get
#undef ff_uffd_wake

static bool touch_hole(struct ff_claims *c, uint64_t page);
#define ff_claim_touch touch_hole
#include "wants.c"
#undef ff_claim_touch

#include "failpoint.h"
#include "fault_private.h"

#define PAGES 6000u
#define SLOTS 4u

static struct ff_pager p;
static struct ff_pager_child *child;
static unsigned looks, wakes[PAGES];

static enum ff_claim look(const struct ff_claims *c, uint64_t page)
{
    looks++;
    return ff_claim_get(c, page);
}

static int wake_note(uint64_t offset)
{
    wakes[offset / 4096]++;
    return 0;
}

static struct ff_pager_child *child_new(void)
{
    struct ff_pager_child *k = calloc(1, sizeof(*k) + sizeof(k->host[0]));

    assert_non_null(k);
    k->uffd = (struct ff_uffd){.fd = -1, .keep_fd = -1};
    k->dropped = true; /* its descriptor is watched nowhere */
    k->next = p.children->first;
    return p.children->first = k;
}

/* All but the last page are waited for by a child and claimed: some in slots, the others queued */
static void setup_pager(void)
{
    struct ff_error err;

    p = (struct ff_pager){.n_regions = 1, .may_be_fed = true, .state = FF_PAGER_UP};
    p.region[0] = (struct ff_pager_region){.name = "ram", .range.psize = 4096, .chunk_bytes = 64 << 10};
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.changed, NULL);
    assert_int_equal(ff_claims_init(&p.region[0].claims, PAGES), 0);
    ff_claims_seal(&p.region[0].claims);
    assert_ok(ff_children_new(&p, &err), err);
    child = child_new();
    p.wants = calloc(1, sizeof(*p.wants));
    p.fault = calloc(1, sizeof(*p.fault));
    assert_true(p.wants && p.fault);
    pthread_mutex_init(&p.fault->lock, NULL);
    p.fault->n_slots = SLOTS;
    for (uint32_t i = 0; i < PAGES - 1; i++)
        serve_event(&p, child, 0, i);
    for (unsigned i = 0; i < SLOTS; i++)
        p.fault->slot[i] = (struct slot){.busy = true, .want = ff_wants_take(p.wants)};
    assert_int_equal(p.wants->n, PAGES - 1 - SLOTS);
}

static void teardown_pager(void)
{
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

    serve_event(&p, child, 0, PAGES - 1); /* as somebody touches one more */
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

static void arrive(uint64_t page)
{
    if (ff_claim_get(&p.region[0].claims, page) == FF_CLAIM_MISSING)
        ff_claim_take(&p.region[0].claims, page);
    ff_claim_done(&p.region[0].claims, page);
}

/* However many wait, a page that comes by the fault thread wakes those that wait for it, looks at no others, and leaves
 * them */
static void test_one_arrives(void **state)
{
    unsigned waits[PAGES];
    (void)state;

    setup_pager();
    struct ff_pager_child *other = child_new();
    for (uint64_t i = 0; i < PAGES; i++) {
        waits[i] = i < PAGES - 1;
        wakes[i] = 0;
        for (; !(i % 7) && waits[i] < 3; waits[i]++)
            serve_event(&p, waits[i] == 1 ? other : child, 0, i);
    }
    assert_int_equal(p.children->n_notes, atomic_load(&p.waiting));
    for (uint64_t n = 0, i = 17; n < PAGES / 2; n++, i = (i + 1009) % PAGES) {
        arrive(i);
        looks = 0;
        ff_children_check(&p);
        ff_children_arrived(&p, 0, i);
        assert_int_equal(wakes[i], waits[i]);
        assert_true(looks <= waits[i]);
        waits[i] = 0;
    }
    ff_children_remove(&p, other); /* in the middle of it: its own go, and no others */
    for (uint64_t i = 0; i < PAGES; i++) {
        wakes[i] = 0;
        waits[i] -= waits[i] > 1;
        if (waits[i])
            arrive(i);
    }
    atomic_fetch_add(&p.installs, 1); /* by another thread: all are looked at, once */
    ff_children_check(&p);
    for (uint64_t i = 0; i < PAGES; i++)
        assert_int_equal(wakes[i], waits[i]);
    assert_int_equal(p.children->n_notes, 0);
    assert_int_equal(p.waiting, 0);
    teardown_pager();
}

static enum { AS_IT_IS, LAST_PAGE_COMES, IT_IS_DISCARDED } meanwhile;

/* The fault thread claims a hole; another thread does something just then */
static bool touch_hole(struct ff_claims *c, uint64_t page)
{
    if (meanwhile == IT_IS_DISCARDED) /* at once with its bytes, which are no more */
        assert_true(ff_claim_forget(c, page));
    bool mine = ff_claim_touch(c, page);
    if (meanwhile == LAST_PAGE_COMES)
        atomic_fetch_add(&p.count.bytes_present, 4096);
    if (meanwhile != IT_IS_DISCARDED)
        assert_false(ff_pager_was_complete(&p));
    return mine;
}

static uint64_t present(void)
{
    return atomic_load(&p.count.bytes_present) / 4096;
}

/* A page that is neither here nor a hole is never the last one: nobody would bring it */
static void test_hole_counts(void **state)
{
    struct ff_claims *c = &p.region[0].claims;
    struct ff_error err;
    (void)state;

    setup_pager();
    p.bytes_total = PAGES * 4096ull;
    p.region[0].watched = true;
    ff_claim_take(c, PAGES - 1);
    ff_claim_hole(c, PAGES - 1, 1);
    p.count.bytes_present = p.count.bytes_zero = p.bytes_total - 4096; /* another page is to come */
    p.image_frozen = true;
    meanwhile = LAST_PAGE_COMES;
    assert_int_equal(ff_failpoints_arm("dest.install=fail:12@1", &err), 0);
    assert_false(ff_wants_fill_hole(&p, &p.region[0], PAGES - 1));
    assert_int_equal(present(), PAGES - 1);
    assert_int_equal(ff_claim_get(c, PAGES - 1), FF_CLAIM_INFLIGHT);
    teardown_pager();
}

/* The thread that was to fill it has ended */
static void test_hole_is_left(void **state)
{
    struct ff_claims *c = &p.region[0].claims;
    (void)state;

    setup_pager();
    ff_wants_take(p.wants);
    p.wants->want[p.wants->first].hole = true;
    p.fault->slot[0].want.hole = p.fault->slot[0].kept = true;
    p.fault->n_kept = 1;
    ff_fault_leave_holes(&p);
    assert_int_equal(count(FF_CLAIM_HOLE), 2);
    assert_int_equal(ff_claim_get(c, p.fault->slot[0].want.page), FF_CLAIM_HOLE);
    assert_int_equal(present(), 2);
    assert_int_equal(p.fault->n_kept, 0);
    assert_int_equal(p.wants->n, PAGES - 1 - SLOTS - 2);
    teardown_pager();
}

/* It was discarded just then: it counts as it did, less what was discarded */
static void test_hole_is_lost(void **state)
{
    struct ff_claims *c = &p.region[0].claims;
    (void)state;

    setup_pager();
    atomic_store(&c->sealed, false);
    p.bytes_total = PAGES * 4096ull;
    p.region[0].watched = true;
    ff_claim_take(c, PAGES - 1);
    ff_claim_hole(c, PAGES - 1, 1);
    p.count.bytes_present = p.count.bytes_zero = p.bytes_total;
    meanwhile = IT_IS_DISCARDED;
    assert_false(ff_wants_fill_hole(&p, &p.region[0], PAGES - 1));
    assert_int_equal(present(), PAGES);
    assert_int_equal(p.count.bytes_zero, p.bytes_total);
    assert_int_equal(ff_claim_get(c, PAGES - 1), FF_CLAIM_MISSING);
    teardown_pager();
}

UNIT_MAIN(cmocka_unit_test(test_away_and_back), cmocka_unit_test(test_nobody_else), cmocka_unit_test(test_one_arrives),
          cmocka_unit_test(test_hole_counts), cmocka_unit_test(test_hole_is_left), cmocka_unit_test(test_hole_is_lost))
