/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_undo.c - pre-image log without memory: the fault thread continues, waiters retry
 */
#include "unit.h"

#include <poll.h>
#include <sys/mman.h>

#include "failpoint.h"
#include "uffd.h"

/* Nothing of it may wait for time to pass */
__attribute__((unused)) static int must_not_wait(void)
{
    fail_msg("the fault thread sleeps");
    return 0;
}

static unsigned wakes;

static int wake_range(uint64_t offset, uint64_t len)
{
    assert_int_equal(offset, 0);
    wakes += len != 0;
    return 0;
}

static int install(uint64_t *done, struct ff_error *why)
{
    *done = 0;
    return ff_error_set(why, ENOMEM, "no memory");
}

#define nanosleep(time, left) must_not_wait()
#define ff_uffd_wake(u, range, offset, len, err) wake_range(offset, len)
#define ff_uffd_protect(u, range, offset, len, on, err) ((void)(err), 0)
#define ff_uffd_install(u, range, offset, src, size, wake, done, err) install(done, err)
#include "undo.c"
#include "precopy.c"

#define PAGE 4096u
#define PAGES 8u

static struct ff_pager p;

static void setup_pager(void)
{
    void *m = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct ff_error err;

    assert_true(m != MAP_FAILED);
    /* broken: the return has failed, and who loads does not know yet */
    p = (struct ff_pager){.n_regions = 1, .state = FF_PAGER_BROKEN, .wake_fd = -1};
    p.region[0].name = "ram";
    p.region[0].range = (struct ff_uffd_range){.host = m, .len_bytes = PAGES * PAGE, .psize = PAGE};
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.changed, NULL);
    pthread_mutex_init(&p.keep_lock, NULL);
    assert_int_equal(ff_claims_init(&p.region[0].claims, PAGES), 0);
    assert_ok(ff_pager_keep(&p, &err), err);
    wakes = 0;
}

static void teardown_pager(void)
{
    ff_undo_free(&p);
    ff_claims_free(&p.region[0].claims);
    munmap(p.region[0].range.host, PAGES * PAGE);
    pthread_mutex_destroy(&p.lock);
    pthread_cond_destroy(&p.changed);
    pthread_mutex_destroy(&p.keep_lock);
}

/* Once, a while later, for all that wait */
static void must_ask_again(void)
{
    assert_int_equal(wakes, 0);
    assert_int_equal(ff_undo_again(&p), AGAIN_MS);
    p.undo->again_ns = 1;
    assert_int_equal(ff_undo_again(&p), 0);
    assert_int_equal(wakes, 1);
    assert_int_equal(ff_undo_again(&p), -1);
    wakes = 0;
}

static void test_writers(void **state)
{
    struct ff_error err;
    (void)state;

    setup_pager();
    assert_ok(ff_failpoints_arm("dest.undo=fail:12@1-3", &err), err);
    for (uint64_t page = 0; page < 3; page++)
        ff_undo_fault(&p, &p.region[0], page);
    must_ask_again();
    ff_undo_fault(&p, &p.region[0], 0); /* there is memory */
    assert_int_equal(ff_undo_again(&p), -1);
    assert_int_equal(wakes, 0);
    teardown_pager();
}

static void test_readers(void **state)
{
    (void)state;
    setup_pager();
    assert_true(ff_pager_fill_kept(&p, &p.region[0], 2));
    must_ask_again();
    assert_int_equal(ff_claim_get(&p.region[0].claims, 2), FF_CLAIM_HOLE);
    give_zeros(&p, &p.region[0], 2); /* given up, and still it waits */
    must_ask_again();
    teardown_pager();
}

UNIT_MAIN(cmocka_unit_test(test_writers), cmocka_unit_test(test_readers))
