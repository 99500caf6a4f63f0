/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_lease.c - a slow answer to WITHDRAWN blocks nothing else
 */
#include "unit.h"

#include <poll.h>

#include "lease.h"
#include "link.h"

static struct ff_lease lease;
static _Atomic bool answered, was_locked;

static int send_message(struct ff_link *l, const void *msg, uint32_t len, struct ff_error *err)
{
    (void)l;
    if (ff_wire_type(msg, len, err) != FF_MSG_WITHDRAWN)
        return 0;
    uint64_t end = ff_now_ns() + 10000000000ull; /* others have it for a moment */
    int rc;
    while ((rc = pthread_mutex_trylock(&lease.lock)) && ff_now_ns() < end)
        poll(NULL, 0, 1);
    if (rc)
        atomic_store(&was_locked, true); /* who asks whether it is released waits, the watching thread too */
    else
        pthread_mutex_unlock(&lease.lock);
    atomic_store(&answered, true);
    return 0;
}

static int recv_message(struct ff_link *l, void *buf, int timeout_ms, struct ff_error *err)
{
    (void)l, (void)timeout_ms, (void)err;
    return ff_wire_put_empty(buf, FF_MSG_WITHDRAWN);
}

static void shut(struct ff_link *l)
{
    (void)l;
}

static void let_run(void *opaque, bool may_run)
{
    (void)opaque, (void)may_run;
}

static void test_withdrawn(void **state)
{
    static const struct ff_link_ops ops = {.send = send_message, .recv = recv_message, .shutdown = shut};
    struct ff_link link = {.ops = &ops};
    struct ff_error err;
    (void)state;

    ff_lease_init(&lease);
    lease.fn = let_run;
    assert_ok(ff_lease_take(&lease, 3600 * 1000, false, 10000, &err), err);
    assert_ok(ff_lease_prepare(&lease, &err), err);
    ff_lease_begin(&lease, &link);
    assert_ok(ff_lease_wait_withdrawn(&lease, &err), err);
    assert_true(atomic_load(&answered));
    assert_false(atomic_load(&was_locked));
    assert_true(ff_lease_is_released(&lease));
    ff_lease_free(&lease);
}

UNIT_MAIN(cmocka_unit_test(test_withdrawn))
