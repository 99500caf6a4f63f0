/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_responder.c - grants that arrive during a push; time limit; shutdown
 */
#include "unit.h"

#include "responder.c"

static struct ff_responder s;
static const struct ff_grant more = {.id = 7, .len_bytes = 4096};
static unsigned posts;
static bool ends;
static _Atomic bool ended;
static pthread_t ender;
static struct ff_error err;

static void *end_main(void *arg)
{
    (void)arg;
    ff_responder_end_push(&s);
    atomic_store(&ended, true);
    return NULL;
}

static bool takes_no_more(void)
{
    pthread_mutex_lock(&s.ring_lock);
    bool no = s.push_ended;
    pthread_mutex_unlock(&s.ring_lock);
    return no;
}

/* As a relay waits for a page: others go on meanwhile */
static int copy_slowly(void *opaque, const struct ff_grant *g, uint8_t *to, uint32_t *why_not, struct ff_error *e)
{
    (void)opaque, (void)g, (void)to, (void)why_not, (void)e;
    assert_int_equal(pthread_mutex_trylock(&s.ring_lock), 0);
    pthread_mutex_unlock(&s.ring_lock);
    assert_ok(ff_responder_grant(&s, &more, 1, &err), err);
    if (!ends)
        return 0;
    assert_int_equal(pthread_create(&ender, NULL, end_main, NULL), 0);
    while (!takes_no_more()) /* the test's limit bounds it */
        poll(NULL, 0, 1);
    return 0;
}

static int post(struct ff_link *l, enum ff_queue q, const struct ff_wr *wr, struct ff_error *e)
{
    (void)l, (void)q, (void)wr, (void)e;
    assert_false(atomic_load(&ended));
    posts++;
    return 0;
}

static void test_grants_meanwhile(void **state)
{
    static const struct ff_link_ops ops = {.post = post};
    static const struct ff_regions regions;
    static const struct ff_segments none;
    static const struct ff_copies copies = {.copy = copy_slowly};
    struct ff_link link = {.ops = &ops};
    (void)state;

    assert_ok(ff_responder_init(&s, &regions, &none, &err), err);
    s.link = &link;
    s.copies = &copies;
    assert_ok(ff_responder_grant(&s, &more, 1, &err), err);
    for (unsigned i = 0; i < FF_PUSH_IN_FLIGHT; i++)
        assert_int_equal(push_next(&s, &err), 1);
    assert_int_equal(push_next(&s, &err), 0); /* as many as may be are in flight */
    assert_int_equal(posts, FF_PUSH_IN_FLIGHT);

    s.in_flight = 1; /* which never ends */
    ends = true;
    assert_int_equal(push_next(&s, &err), 1);
    assert_int_equal(pthread_join(ender, NULL), 0);
    assert_int_equal(posts, FF_PUSH_IN_FLIGHT + 1);
    assert_int_equal(push_next(&s, &err), 0);
    ff_responder_free(&s);
}

UNIT_MAIN(cmocka_unit_test(test_grants_meanwhile))
