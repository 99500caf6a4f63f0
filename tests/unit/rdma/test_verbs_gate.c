/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_verbs_gate.c - challenges of a listener for verbs: one proof each, for a while, and not lost
 *
 * What is sent, and that nothing is accepted before: tests/lab/link_verbs.c.
 */
#include "pair.h"

#include "verbs_gate.h"

static struct ff_key *key;
static struct verbs_gate *gate;

static int start(void **state)
{
    struct ff_error err;
    (void)state;

    key = must_key(PAIR_KEY);
    return verbs_gate_new(key, &gate, &err);
}

static int end(void **state)
{
    (void)state;
    verbs_gate_free(gate);
    ff_key_unref(key);
    return 0;
}

struct source {
    struct ff_handshake h;
    uint8_t hello[FF_HS_HELLO_LEN], answer[FF_HS_ANSWER_LEN], proof[FF_HS_PROOF_LEN + 4];
    struct ff_epoch e;
};

/* Up to the proof, which is not shown */
static void source_asks(struct source *s, uint8_t n)
{
    uint8_t nonce[FF_HS_NONCE_LEN], padded[FF_HS_HELLO_LEN + 4] = {0};
    struct ff_error err;
    bool can_send;

    memset(nonce, n, sizeof(nonce));
    memset(s, 0, sizeof(*s));
    ff_hs_ask(&s->h, FF_HS_SUITES, nonce, s->hello);
    memcpy(padded, s->hello, sizeof(s->hello)); /* as rdma_cm does */
    assert_ok(verbs_gate_hello(gate, padded, sizeof(padded), s->answer, &can_send, &err), err);
    assert_true(can_send);
    assert_ok(ff_hs_prove(&s->h, key, s->answer, sizeof(s->answer), s->proof, &s->e, &err), err);
}

static int source_proves(struct source *s, struct ff_error *err)
{
    const struct ff_epoch *e;

    int rc = verbs_gate_proof(gate, s->proof, sizeof(s->proof), &e, err);
    if (!rc)
        assert_memory_equal(e, &s->e, sizeof(*e));
    return rc;
}

/* A listener with the keys of several users finds the source's by the mark in its nonce */
static void test_users(void **state)
{
    char path[] = "/tmp/farfork-verbs-users-XXXXXX", name[] = "a";
    FILE *f = fdopen(mkstemp(path), "w");
    struct ff_key *all, *own = key;
    struct verbs_gate *of_one = gate;
    struct ff_error err;
    (void)state;

    assert_non_null(f);
    for (int i = 0; i < 3; i++)
        fprintf(f, "%c:%032x\n", 'a' + i, i + 1);
    fclose(f);
    assert_ok(ff_key_load_psk(path, NULL, &all, &err), err);
    assert_ok(verbs_gate_new(all, &gate, &err), err);
    for (; *name <= 'c'; name[0]++) {
        uint8_t nonce[FF_HS_NONCE_LEN], padded[FF_HS_HELLO_LEN + 4] = {0};
        struct source s = {0};
        bool can_send;

        assert_ok(ff_key_load_psk(path, name, &key, &err), err);
        assert_ok(ff_hs_nonce_of(key, nonce, &err), err);
        ff_hs_ask(&s.h, FF_HS_SUITES, nonce, s.hello);
        memcpy(padded, s.hello, sizeof(s.hello));
        assert_ok(verbs_gate_hello(gate, padded, sizeof(padded), s.answer, &can_send, &err), err);
        assert_ok(ff_hs_prove(&s.h, key, s.answer, sizeof(s.answer), s.proof, &s.e, &err), err);
        assert_ok(source_proves(&s, &err), err);
        ff_key_unref(key);
    }
    verbs_gate_free(gate);
    ff_key_unref(all);
    gate = of_one;
    key = own;
    unlink(path);
}

static void test_one_proof_each(void **state)
{
    struct source a, b;
    struct ff_error err;
    (void)state;

    source_asks(&a, 1);
    source_asks(&b, 2);
    assert_ok(source_proves(&b, &err), err); /* in any order */
    assert_ok(source_proves(&a, &err), err);
    assert_fails(source_proves(&a, &err), EACCES); /* said again */
    assert_error(err, EACCES, "no challenge");
    source_asks(&a, 3); /* a wrong proof uses its challenge up */
    a.proof[20] ^= 1;
    assert_fails(source_proves(&a, &err), EACCES);
    a.proof[20] ^= 1;
    assert_fails(source_proves(&a, &err), EACCES);
}

static void test_short(void **state)
{
    const struct ff_epoch *e;
    struct source a;
    struct ff_error err;
    bool can_send;
    (void)state;

    source_asks(&a, 1);
    for (size_t len = 0; len < FF_HS_PROOF_LEN; len++)
        assert_fails(verbs_gate_proof(gate, a.proof, len, &e, &err), EACCES);
    for (size_t len = 0; len < FF_HS_HELLO_LEN; len++) {
        assert_fails(verbs_gate_hello(gate, a.hello, len, a.answer, &can_send, &err), EPROTO);
        assert_false(can_send);
    }
    assert_ok(source_proves(&a, &err), err);
}

/* Rubbish takes nobody's place; more hellos than there are places take the oldest */
static void test_flood(void **state)
{
    struct source first, s;
    uint8_t out[FF_HS_ANSWER_LEN];
    struct ff_error err;
    bool can_send;
    (void)state;

    source_asks(&first, 1);
    for (unsigned i = 0; i < 10 * VERBS_GATE_MAX; i++)
        assert_fails(verbs_gate_hello(gate, "GET / HTTP/1.0\r\n\r\n......................", 40, out,
                                      &can_send, &err), EPROTO);
    for (unsigned i = 1; i < VERBS_GATE_MAX; i++)
        source_asks(&s, 2);
    assert_ok(source_proves(&first, &err), err);
    assert_ok(source_proves(&s, &err), err);
    source_asks(&first, 1);
    for (unsigned i = 0; i < VERBS_GATE_MAX; i++)
        source_asks(&s, 2);
    assert_fails(source_proves(&first, &err), EACCES);
    assert_ok(source_proves(&s, &err), err);
}

static void test_late(void **state)
{
    struct source a;
    struct ff_error err;
    (void)state;

    source_asks(&a, 1);
    usleep(2100 * 1000); /* nothing but time makes it late */
    assert_fails(source_proves(&a, &err), EACCES);
    assert_error(err, EACCES, "2000 ms");
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, start, end)

UNIT_MAIN(TEST(test_one_proof_each), TEST(test_users), TEST(test_short), TEST(test_flood),
          TEST(test_late))
