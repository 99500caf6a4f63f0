/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_tunnel.c - one end of a tunnel, with a peer by hand: what it takes, refuses and sends again
 */
#include "unit.h"

#include <unistd.h>

#include "cleanup.h"
#include "link.h"
#include "tunnel.h"

#define WAIT_MS 20000

static struct ff_tunnel *t;
static struct ff_link *link_here, *peer;
static uint8_t buf[FF_MSG_MAX], some[FF_TUNNEL_WINDOW + 1];

static void attach(void)
{
    struct ff_error err;

    assert_int_equal(ff_loop_pair(&link_here, &peer, &err), 0);
    assert_int_equal(ff_tunnel_attach(t, link_here, &err), 0);
}

static void detach(void)
{
    ff_tunnel_detach(t);
    link_here->ops->free(link_here);
    peer->ops->free(peer);
}

static int setup(void **state)
{
    struct ff_error err;
    (void)state;

    for (size_t i = 0; i < sizeof(some); i++)
        some[i] = (uint8_t)(i % 251 ^ i >> 12);
    assert_int_equal(ff_tunnel_new(&t, &err), 0);
    attach();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    detach();
    ff_tunnel_free(t);
    return 0;
}

static void say(uint64_t offset, uint32_t n, bool ends, uint64_t taken)
{
    struct ff_bytes p = {.offset = offset, .taken = taken, .data = some, .n = n, .ends = ends};

    if (n)
        p.data = some + offset % sizeof(some);
    int len = ff_wire_put_bytes(buf, &p);
    assert_int_equal(peer->ops->send(peer, buf, (uint32_t)len, NULL), 0);
}

/* The next that comes from the tunnel */
static struct ff_bytes hear(void)
{
    struct ff_bytes p;
    struct ff_error err;

    int len = peer->ops->recv(peer, buf, WAIT_MS, &err);
    assert_true(len > 0);
    assert_int_equal(ff_wire_type(buf, (size_t)len, &err), FF_MSG_BYTES);
    assert_int_equal(ff_wire_get_bytes(buf, (size_t)len, &p, &err), 0);
    return p;
}

static void must_hear(uint64_t offset, uint32_t n, bool ends, uint64_t taken)
{
    struct ff_bytes p = hear();

    assert_int_equal(p.offset, offset);
    assert_int_equal(p.n, n);
    assert_int_equal(p.ends, ends);
    assert_int_equal(p.taken, taken);
    assert_memory_equal(p.data, some + offset, n);
}

static void must_be_silent(void)
{
    assert_int_equal(peer->ops->recv(peer, buf, 0, NULL), -ETIMEDOUT);
}

static void take(size_t n)
{
    static uint8_t got[sizeof(some)];
    struct ff_error err;

    uint64_t at = t->taken;
    for (size_t have = 0; have < n;) {
        ssize_t rc = ff_tunnel_recv(t, got + have, n - have, &err);
        assert_true(rc > 0);
        have += (size_t)rc;
    }
    assert_memory_equal(got, some + at, n);
}

static void must_break(const char *says)
{
    struct ff_error err = {.code = 0};
    uint8_t byte;

    assert_int_equal(ff_tunnel_mail(t, buf, WAIT_MS, &err), -EPROTO);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" is not in: %s", says, err.text);
    int rc;
    while ((rc = peer->ops->recv(peer, buf, WAIT_MS, &err)) >= 0) /* what was said before */
        ;
    assert_int_equal(rc, -ECONNRESET); /* it learns, too */
    assert_int_equal(ff_tunnel_hear(t, &err), -EPROTO);
    assert_int_equal(ff_tunnel_send(t, "x", 1, &err), -ECANCELED); /* there is no other link */
    assert_int_equal(ff_tunnel_recv(t, &byte, 1, &err), -ECANCELED);
}

static void test_passes(void **state)
{
    struct ff_error err;
    uint8_t byte;
    (void)state;

    must_hear(0, 0, false, 0); /* where it begins */
    assert_int_equal(ff_tunnel_send(t, some, 100, &err), 0);
    must_hear(0, 100, false, 0);
    say(0, 50, false, 60);
    say(50, 0, true, 100);
    take(50);
    assert_int_equal(ff_tunnel_recv(t, &byte, 1, &err), 0);
    must_hear(100, 0, false, 51); /* an end is said to be taken at once */
    assert_false(ff_tunnel_is_done(t));
    assert_int_equal(ff_tunnel_end(t, &err), 0);
    must_hear(100, 0, true, 51);
    must_be_silent();
    assert_int_equal(ff_tunnel_wait_done(t, 0, &err), 1);
    say(51, 0, false, 101);
    assert_int_equal(ff_tunnel_wait_done(t, WAIT_MS, &err), 0);
    assert_int_equal(ff_tunnel_send(t, some, 1, &err), -EINVAL);
    assert_int_equal(ff_tunnel_end(t, &err), 0);
}

/* Seldom is said what was taken: never less than a quarter of the window */
static void test_says_taken(void **state)
{
    const uint32_t part = 32 << 10;
    (void)state;

    must_hear(0, 0, false, 0);
    for (uint32_t i = 0; i < 32; i++)
        say(i * part, part, false, 0);
    for (uint32_t i = 0; i < 32; i++) {
        take(part);
        if (i % 8 == 7)
            must_hear(0, 0, false, (i + 1) * part);
        must_be_silent();
    }
}

/* What the peer has not said to be taken comes again; what it sends again is left out here */
static void test_again(void **state)
{
    struct ff_error err;
    (void)state;

    assert_int_equal(ff_tunnel_keep_on(t, &err), 0);
    must_hear(0, 0, false, 0);
    assert_int_equal(ff_tunnel_send(t, some, 100, &err), 0);
    assert_int_equal(ff_tunnel_end(t, &err), 0);
    must_hear(0, 100, false, 0);
    must_hear(100, 0, true, 0);
    say(0, 500, false, 40);
    take(300);
    detach();
    assert_int_equal(ff_tunnel_wait_done(t, 0, &err), -ENOTCONN);
    take(100); /* what came is here */
    attach();
    must_hear(40, 60, true, 400);
    say(100, 600, false, 101); /* it has all, and knew of 100 */
    take(300);
    say(700, 0, true, 101);
    uint8_t byte;
    assert_int_equal(ff_tunnel_recv(t, &byte, 1, &err), 0);
    must_hear(101, 0, false, 701);
    assert_true(ff_tunnel_is_done(t));
    detach();
    attach(); /* that the end is taken is said over every link */
    must_hear(101, 0, false, 701);
    say(650, 50, true, 101);
    say(701, 0, false, 101);
    assert_int_equal(ff_tunnel_hear(t, &err), 0); /* which was interrupted before */
}

static void *interrupt_main(void *arg)
{
    (void)arg;
    assert_true(ff_tunnel_interrupt(t));
    return NULL;
}

static void test_again_interrupted(void **state)
{
    pthread_t thread;

    pthread_create(&thread, NULL, interrupt_main, NULL);
    pthread_join(thread, NULL);
    test_again(state);
    assert_false(ff_tunnel_interrupt(NULL));
}

/* --- hostile --- */

static void test_gap(void **state)
{
    (void)state;
    say(0, 10, false, 0);
    say(11, 10, false, 0);
    must_break("bytes at 0xb (want 0xa)");
}

static void test_repeats(void **state)
{
    (void)state;
    say(0, 10, false, 0);
    say(9, 10, false, 0);
    must_break("bytes at 0x9 (want 0xa)");
}

static void test_starts_late(void **state)
{
    (void)state;
    say(1, 10, false, 0);
    must_break("bytes at 0x1 (want 0x0");
}

static void test_too_many(void **state)
{
    const uint32_t part = 32 << 10;
    (void)state;

    for (uint32_t i = 0; i < FF_TUNNEL_WINDOW / part; i++)
        say(i * part, part, false, 0);
    say(FF_TUNNEL_WINDOW, 1, false, 0);
    must_break("permitted: 1 MiB more");
    assert_true(t->received == FF_TUNNEL_WINDOW);
}

static void test_after_end(void **state)
{
    (void)state;
    say(0, 10, true, 0);
    say(11, 1, false, 0);
    must_break("it ended at 0xa");
}

static void test_ends_twice(void **state)
{
    (void)state;
    say(0, 10, true, 0);
    say(11, 0, true, 0);
    must_break("it ended at 0xa");
}

static void test_ends_before(void **state)
{
    struct ff_error err;
    (void)state;

    assert_int_equal(ff_tunnel_keep_on(t, &err), 0);
    say(0, 10, false, 0);
    take(10);
    detach();
    attach();
    say(0, 9, true, 0);
    assert_int_equal(ff_tunnel_mail(t, buf, WAIT_MS, &err), -EPROTO);
    assert_non_null(strstr(err.text, "and an end"));
}

static void test_takes_too_much(void **state)
{
    (void)state;
    say(0, 0, false, 1);
    must_break("0x1 bytes are taken (permitted 0x0..0x0)");
}

static void test_takes_back(void **state)
{
    struct ff_error err;
    (void)state;

    assert_int_equal(ff_tunnel_send(t, some, 10, &err), 0);
    must_hear(0, 0, false, 0);
    must_hear(0, 10, false, 0);
    say(0, 0, false, 10);
    say(0, 0, false, 9);
    must_break("0x9 bytes are taken (permitted 0xa..0xa)");
}

/* --- the other messages --- */

static void test_mail(void **state)
{
    struct ff_error err;
    (void)state;

    assert_int_equal(ff_tunnel_mail(t, buf, 0, &err), -ETIMEDOUT);
    for (unsigned i = 0; i < 200; i++) { /* more than wait in the mailbox */
        int len = ff_wire_put_lease(buf, i + 1);
        assert_int_equal(peer->ops->send(peer, buf, (uint32_t)len, NULL), 0);
    }
    say(0, 10, false, 0);
    for (unsigned i = 0; i < 200; i++) {
        uint32_t number;
        int len = ff_tunnel_mail(t, buf, 0, &err); /* what was sent is there, who ever reads it */
        assert_true(len > 0);
        assert_int_equal(ff_wire_get_lease(buf, (size_t)len, &number, &err), 0);
        assert_int_equal(number, i + 1);
    }
    take(10);
    int len = ff_wire_put_refuse(buf, FF_REFUSAL_FINAL, "no reason");
    assert_int_equal(peer->ops->send(peer, buf, (uint32_t)len, NULL), 0);
    assert_int_equal(ff_tunnel_hear(t, &err), -EREMOTEIO);
    assert_string_equal(err.text, "the peer ended it: no reason");
    assert_true(ff_tunnel_mail(t, buf, 0, &err) == len && ff_wire_type(buf, (size_t)len, &err) ==
                FF_MSG_REFUSE);
    assert_int_equal(ff_tunnel_mail(t, buf, 0, &err), -EREMOTEIO);
}

static void test_early_done(void **state)
{
    struct ff_error err;
    uint8_t byte;
    (void)state;

    assert_int_equal(ff_tunnel_take_done(t, &err), -EPROTO);
    say(0, 0, true, 0);
    assert_int_equal(ff_tunnel_recv(t, &byte, 1, &err), 0);
    assert_int_equal(ff_tunnel_take_done(t, &err), -EPROTO);
    assert_int_equal(ff_tunnel_end(t, &err), 0);
    assert_int_equal(ff_tunnel_take_done(t, &err), 0); /* it has the acknowledgement */
    assert_true(ff_tunnel_is_done(t));
    assert_int_equal(ff_tunnel_take_done(NULL, &err), 0);
}

#define CASE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

/* Over a new link it begins where it knew of; once it hears what is taken it goes on behind that */
static void test_skips_taken(void **state)
{
    struct ff_error err;
    (void)state;

    assert_int_equal(ff_tunnel_keep_on(t, &err), 0);
    must_hear(0, 0, false, 0);
    say(0, 500, false, 0);
    take(500);
    detach();
    attach();
    must_hear(0, 0, false, 500);
    say(100, 100, false, 0);
    say(500, 10, false, 0);
    take(10);
}

/* Nothing is taken yet of all that may come, and the end has come: what it took is still said */
static void test_full_and_ended(void **state)
{
    const uint32_t part = 32 << 10;
    (void)state;

    must_hear(0, 0, false, 0);
    for (uint32_t at = 0; at < FF_TUNNEL_WINDOW; at += part)
        say(at, part, false, 0);
    say(FF_TUNNEL_WINDOW, 0, true, 0);
    say(FF_TUNNEL_WINDOW + 1, 0, false, 0);
    take(part);
    assert_true(ff_tunnel_reads(t));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_passes),      CASE(test_says_taken),  CASE(test_again_interrupted),
        CASE(test_gap),         CASE(test_repeats),     CASE(test_starts_late),
        CASE(test_too_many),    CASE(test_after_end),   CASE(test_ends_twice),
        CASE(test_ends_before), CASE(test_takes_too_much), CASE(test_takes_back),
        CASE(test_mail),        CASE(test_early_done), CASE(test_skips_taken),
        CASE(test_full_and_ended),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
