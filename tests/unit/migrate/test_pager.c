/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_pager.c - what a pager knows of its pages: that all are here, and that there is no memory for some
 */
#include "unit.h"

#include <sys/mman.h>

#include "cleanup.h"
#include "pager.h"

#define PAGE 4096u
#define PAGES 64u

static struct ff_pager p;

static void setup_pager(void)
{
    void *m = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(m != MAP_FAILED);
    p = (struct ff_pager){.n_regions = 1, .bytes_total = PAGES * PAGE, .wake_fd = -1};
    p.region[0] = (struct ff_pager_region){.name = "ram", .chunk_bytes = PAGES * PAGE};
    p.region[0].range = (struct ff_uffd_range){.host = m, .len_bytes = PAGES * PAGE, .psize = PAGE};
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.changed, NULL);
    assert_int_equal(ff_claims_init(&p.region[0].claims, PAGES), 0);
}

static void teardown_pager(void)
{
    ff_claims_free(&p.region[0].claims);
    munmap(p.region[0].range.host, PAGES * PAGE);
    pthread_mutex_destroy(&p.lock);
    pthread_cond_destroy(&p.changed);
}

/* @n pages from @first on are zeros of the source's */
static void leave_holes(uint64_t first, uint64_t n)
{
    for (uint64_t i = first; i < first + n; i++)
        assert_true(ff_claim_take(&p.region[0].claims, i));
    ff_pager_leave_holes(&p, &p.region[0], first, n);
}

/* A pass has brought every page, and what was written since is missing again */
static void test_pass_is_not_all(void **state)
{
    const struct ff_dirty d = {.n = 8, .bits = (const uint8_t *)"\x05"};
    struct ff_error err;
    (void)state;

    setup_pager();
    leave_holes(0, PAGES);
    assert_false(ff_pager_was_complete(&p)); /* as who waits for it asks, at any time */
    assert_ok(ff_pager_discard(&p, &d, &err), err);
    ff_pager_image_frozen(&p);
    assert_false(ff_pager_was_complete(&p));
    leave_holes(0, 1);
    assert_false(ff_pager_was_complete(&p));
    leave_holes(2, 1);
    assert_true(ff_pager_was_complete(&p));
    assert_true(ff_claim_touch(&p.region[0].claims, 2));
    ff_pager_count_hole(&p, &p.region[0], false);
    assert_true(ff_pager_was_complete(&p)); /* it is filled by who is here */
    teardown_pager();
}

/* Nothing was written: all of it is here as soon as it cannot change any more */
static void test_pass_is_all(void **state)
{
    (void)state;
    setup_pager();
    leave_holes(0, PAGES);
    ff_pager_image_frozen(&p);
    assert_true(atomic_load(&p.was_complete));
    teardown_pager();
}

UNIT_MAIN(cmocka_unit_test(test_pass_is_not_all), cmocka_unit_test(test_pass_is_all))
