/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_group.c - one image to many: who is counted while others join, and a shortage of memory is each thread's own
 */
#include "unit.h"

#include <pthread.h>

static int lock_late(pthread_mutex_t *m);
#define pthread_mutex_lock lock_late
#include "group_send.c"
#undef pthread_mutex_lock

static int install_now(uint64_t n, uint64_t *done);
#define ff_pager_install(p, r, page, n, src, wake, done) install_now(n, done)
#include "group_recv.c"
#undef ff_pager_install

static struct ff_group group;
static bool joins;

/* Another source joins while this thread waits for the lock */
static int lock_late(pthread_mutex_t *m)
{
    if (joins) {
        joins = false;
        ff_group_member(&group);
    }
    return (pthread_mutex_lock)(m);
}

static void test_members(void **state)
{
    static struct member members[4];
    (void)state;

    group = (struct ff_group){.member = members, .max = 3};
    pthread_mutex_init(&group.lock, NULL);
    ff_group_member(&group);
    joins = true;
    assert_int_equal(members_in(&group, WAITS), 3);
    members[0].state = RUNS;
    members[1].state = LEFT;
    assert_int_equal(members_in(&group, WAITS), 1);
    assert_int_equal(members_in(&group, RUNS), 1);
    pthread_mutex_destroy(&group.lock);
}

static bool no_memory;

static int install_now(uint64_t n, uint64_t *done)
{
    *done = no_memory ? 0 : n;
    return no_memory ? -EAGAIN : 0;
}

/* Prefill has waited for memory for long, and what the group brings finds some */
static void test_shortage(void **state)
{
    static struct ff_pager p;
    static struct ff_hearing h = {.p = &p};
    struct ff_error why;
    (void)state;

    pthread_mutex_init(&p.lock, NULL);
    ff_pager_short(&p, FF_BY_PREFILL);
    atomic_fetch_sub(&p.short_ns[FF_BY_PREFILL], 6000000000ull);
    assert_true(ff_pager_is_short(&p, &why));
    assert_int_equal(install(&h, &p.region[0], 0, 1, NULL), 0);
    assert_true(ff_pager_is_short(&p, &why));

    no_memory = h.stop = true;
    assert_int_equal(install(&h, &p.region[0], 0, 1, NULL), -ECANCELED);
    ff_pager_enough(&p, FF_BY_PREFILL);
    assert_true(atomic_load(&p.short_ns[FF_BY_GROUP])); /* as long as its page waits */
    pthread_mutex_destroy(&p.lock);
}

UNIT_MAIN(cmocka_unit_test(test_members), cmocka_unit_test(test_shortage))
