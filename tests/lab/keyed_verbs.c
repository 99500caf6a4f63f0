/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * keyed_verbs.c - the handshake in connect requests, and sealed control messages, over verbs
 */
#include "hosts.h"

#define OTHER_KEY "5f3c0e9d6b2a48f1c7e6d5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a3928171" /* one bit */

static int start_keyed(void **state)
{
    key_a = must_key(PAIR_KEY);
    key_b = must_key(PAIR_KEY);
    return start(state);
}

static int end_keyed(void **state)
{
    int rc = end(state);

    ff_key_unref(key_a);
    ff_key_unref(key_b);
    key_a = key_b = NULL;
    return rc;
}

/* The same key at both: everything works as without */
static void test_same_key(void **state)
{
    static const uint32_t sizes[] = {1, VERBS_INLINE - FF_SEAL_TAG_LEN,
                                     VERBS_INLINE - FF_SEAL_TAG_LEN + 1, 4096, FF_MSG_MAX};
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    (void)state;

    connect_pair(FF_LINK_VERBS, 3);
    assert_true(p.a->sealed && p.b->sealed);
    for (unsigned round = 0; round < 40; round++) /* more than there are receive buffers */
        for (unsigned i = 0; i < FF_ARRAY_LEN(sizes); i++) {
            struct ff_link *from = i % 2 ? p.a : p.b, *to = i % 2 ? p.b : p.a;
            assert_ok(from->ops->send(from, src + round + i, sizes[i], &err), err);
            assert_int_equal(to->ops->recv(to, buf, SOON_MS, &err), sizes[i]);
            assert_true(!memcmp(buf, src + round + i, sizes[i]));
        }
    open_queues();
    read_all(p.a, p.b, FF_QUEUE_FAULT);
    read_all(p.b, p.a, FF_QUEUE_PREFILL);
}

/* link=auto stays with verbs */
static void test_auto(void **state)
{
    (void)state;
    connect_pair(FF_LINK_AUTO, 1);
    assert_string_equal(p.a->ops->name, "verbs");
    assert_true(p.a->sealed && p.b->sealed);
}

/* What the message is on the wire: the receive buffer has it sealed, and opens it once */
static void test_sealed(void **state)
{
    struct verbs_link *b;
    static uint8_t buf[FF_MSG_MAX];
    struct ff_error err;
    (void)state;

    connect_pair(FF_LINK_VERBS, 1);
    b = verbs_of(p.b);
    assert_ok(p.a->ops->send(p.a, "the key of this memory", 22, &err), err);
    assert_int_equal(p.b->ops->recv(p.b, buf, SOON_MS, &err), 22);
    assert_memory_equal(buf, "the key of this memory", 22);
    assert_null(memmem(b->ctrl_memory, VERBS_CTRL_BYTES, "memory", 6));
    b->secrets->rx.number++; /* as if one had been left out */
    assert_ok(p.a->ops->send(p.a, "the key of this memory", 22, &err), err);
    assert_fails(p.b->ops->recv(p.b, buf, SOON_MS, &err), EBADMSG);
    assert_error(err, EBADMSG, "left out");
}

/* @a has what it should not have; then the right source gets in */
static void try_source(struct ff_key *a, struct ff_key *b, int code, const char *why)
{
    struct passive s = {.rc = 0};
    struct ff_error err;
    struct ff_key *right = b;

    ff_port_free(port);
    key_b = b;
    listen_on("hostb", HOST_B, FF_LINK_VERBS, NULL);
    passive_start(&s, accept_main);
    key_a = a;
    int rc = connect_a(HOST_B, FF_LINK_VERBS, NULL, 1, &err);
    key_a = right;
    int then = 0;
    struct ff_error then_err;
    if (rc)
        then = connect_a(HOST_B, FF_LINK_VERBS, NULL, 1, &then_err);
    if (then)
        ff_port_cancel(port);
    join_soon(s.thread);
    p.b = s.link;
    assert_int_equal(rc, -code);
    assert_true(says(err.text, why));
    assert_ok(then, then_err);
    assert_ok(s.rc, s.err);
    pair_close(&p);
}

static void test_wrong_keys(void **state)
{
    struct ff_key *good = key_a, *same = key_b, *other = must_key(OTHER_KEY);
    (void)state;

    try_source(other, good, EACCES, "another key");
    try_source(NULL, good, ECONNREFUSED, "wants a key");
    try_source(good, NULL, ECONNREFUSED, "this side has none");
    ff_key_unref(other);
    key_a = good;
    key_b = same;
}

/* Who knows the session, and not the key, opens no queue */
static void test_queue_by_session(void **state)
{
    struct passive s;
    struct ff_error err;
    struct ff_secrets *had;
    (void)state;

    connect_pair(FF_LINK_VERBS, 1);
    s = (struct passive){.link = p.b, .session = session, .timeout_ms = 10 * SOON_MS};
    passive_start(&s, queues_main);
    had = verbs_of(p.a)->secrets;
    verbs_of(p.a)->secrets = NULL;
    int rc = p.a->ops->open_queues(p.a, session, SOON_MS, &err);
    verbs_of(p.a)->secrets = had;
    p.a->ops->free(p.a);
    p.a = NULL;
    join_soon(s.thread);
    assert_int_equal(rc, -ECONNREFUSED);
    assert_error(err, ECONNREFUSED, "not of this session");
}

#define KEYED(test) cmocka_unit_test_setup_teardown(test, start_keyed, end_keyed)

int main(void)
{
    const struct CMUnitTest tests[] = {
        KEYED(test_same_key),   KEYED(test_auto), KEYED(test_sealed),
        KEYED(test_wrong_keys), KEYED(test_queue_by_session),
    };
    int rc = enter_lab();

    return rc ? rc : cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
