/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_handshake.c - who has the key gets in, and nobody else: one attack a test
 */
#include "pair.h"

#include "handshake.h"

#define KEY_A "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"
#define KEY_B "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da28" /* one bit */

/* Both ends and what they have said */
struct talk {
    struct ff_key *sk, *dk;
    unsigned s_suites, d_suites;
    uint8_t nonce; /* all bytes of the source's; the destination's is the next value */
    struct ff_handshake s, d;
    struct ff_epoch se, de;
    uint8_t hello[FF_HS_HELLO_LEN], answer[FF_HS_ANSWER_LEN], proof[FF_HS_PROOF_LEN];
    bool can_send;
    struct ff_error err;
};

static void talk_start(struct talk *t, const char *source, const char *dest)
{
    memset(t, 0, sizeof(*t));
    t->sk = must_key(source);
    t->dk = must_key(dest);
    t->s_suites = t->d_suites = FF_HS_SUITES;
    t->nonce = 1;
}

static void talk_end(struct talk *t)
{
    ff_key_unref(t->sk);
    ff_key_unref(t->dk);
}

static void talk_ask(struct talk *t)
{
    uint8_t nonce[FF_HS_NONCE_LEN];

    memset(nonce, t->nonce, sizeof(nonce));
    ff_hs_ask(&t->s, t->s_suites, nonce, t->hello);
    assert_int_equal(t->s.state, FF_HS_ASKED);
}

static int talk_answer(struct talk *t)
{
    uint8_t nonce[FF_HS_NONCE_LEN];

    memset(nonce, t->nonce + 1, sizeof(nonce));
    return ff_hs_answer(&t->d, t->dk, t->d_suites, nonce, t->hello, sizeof(t->hello), t->answer,
                        &t->can_send, &t->err);
}

static int talk_prove(struct talk *t)
{
    return ff_hs_prove(&t->s, t->sk, t->answer, sizeof(t->answer), t->proof, &t->se, &t->err);
}

static int talk_check(struct talk *t)
{
    return ff_hs_check(&t->d, t->dk, t->proof, sizeof(t->proof), &t->de, &t->err);
}

/* All of it, which must succeed */
static void talk_through(struct talk *t)
{
    talk_ask(t);
    assert_ok(talk_answer(t), t->err);
    assert_true(t->can_send);
    assert_ok(talk_prove(t), t->err);
    assert_ok(talk_check(t), t->err);
    assert_int_equal(t->s.state, FF_HS_DONE);
    assert_int_equal(t->d.state, FF_HS_DONE);
}

static void test_both_have_it(void **state)
{
    struct talk t;
    (void)state;

    talk_start(&t, KEY_A, KEY_A);
    talk_through(&t);
    assert_memory_equal(&t.se, &t.de, sizeof(t.se));
    assert_int_equal(t.se.suite, FF_HS_AES256_GCM);
    /* one secret for each purpose */
    const uint8_t *all[] = {t.se.from_source, t.se.from_dest, t.se.queue[0], t.se.queue[1],
                            ff_key_bytes(t.sk)};
    for (size_t i = 0; i < FF_ARRAY_LEN(all); i++)
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(all[i], all[k], FF_KDF_LEN);
    talk_end(&t);
}

/* What is sent is what handshake.h says, so that another program can speak it: computed by hand
 * from RFC 5869 with Python's hmac and hashlib */
static void test_known_answer(void **state)
{
    static const uint8_t want_answer[] = {
        0x14, 0x2c, 0x06, 0xc5, 0x43, 0xd4, 0xcc, 0xaa, 0xf4, 0xbc, 0xdb, 0x62,
        0xd7, 0x8c, 0xc7, 0xd6, 0x56, 0xd0, 0x5e, 0x97, 0x97, 0x61, 0x68, 0x1d,
        0x09, 0x20, 0xfa, 0x3b, 0x5c, 0x35, 0xf9, 0x54};
    static const uint8_t want_proof[] = {
        0xe6, 0xfc, 0xae, 0xe4, 0x2c, 0x71, 0xe8, 0x65, 0x4b, 0x84, 0x62, 0xb5,
        0x0c, 0x32, 0xb0, 0x7b, 0x64, 0xb2, 0xc1, 0x47, 0xd8, 0xdf, 0xe7, 0x29,
        0x36, 0xc4, 0x41, 0x23, 0x09, 0x1b, 0xd3, 0xa6};
    static const uint8_t want_from_source[] = {
        0x98, 0x84, 0x3f, 0x17, 0xae, 0x0c, 0x7f, 0x1b, 0x64, 0xaa, 0x73, 0x5e,
        0x58, 0x6c, 0xae, 0x6d, 0xb7, 0xef, 0x08, 0xe6, 0x9e, 0x59, 0xb4, 0x6e,
        0x38, 0xd2, 0x7a, 0xf0, 0x77, 0xd1, 0x9b, 0xfe};
    static const uint8_t want_token[] = {
        0x5b, 0x44, 0xea, 0x4e, 0x37, 0x15, 0xa9, 0x9d, 0xdf, 0xb4, 0xdd, 0x2c,
        0xec, 0x1a, 0x23, 0x68};
    static const uint8_t session[FF_SESSION_LEN] = "0123456789abcde";
    uint8_t token[FF_SESSION_LEN];
    struct talk t;
    (void)state;

    talk_start(&t, KEY_A, KEY_A);
    talk_through(&t);
    assert_memory_equal(t.answer + 40, want_answer, sizeof(want_answer));
    assert_memory_equal(t.proof + 8, want_proof, sizeof(want_proof));
    assert_memory_equal(t.se.from_source, want_from_source, sizeof(want_from_source));
    assert_int_equal(ff_hs_token(&t.se, FF_QUEUE_PREFILL, 3, session, token), 0);
    assert_memory_equal(token, want_token, sizeof(want_token));
    talk_end(&t);
}

/* Neither end takes a peer with another key, and neither learns anything it could use */
static void test_wrong_key(void **state)
{
    struct talk t;
    (void)state;

    talk_start(&t, KEY_A, KEY_B);
    talk_ask(&t);
    assert_ok(talk_answer(&t), t.err);
    assert_fails(talk_prove(&t), EACCES);
    assert_error(t.err, EACCES, "another key");
    assert_int_equal(t.s.state, FF_HS_FAILED);
    for (size_t i = 0; i < sizeof(t.proof); i++) /* the source has proved nothing */
        assert_int_equal(t.proof[i], 0);

    /* a source that sends a proof all the same */
    struct talk own;
    talk_start(&own, KEY_A, KEY_A);
    talk_through(&own);
    memcpy(t.proof, own.proof, sizeof(t.proof));
    assert_fails(talk_check(&t), EACCES);
    assert_int_equal(t.d.state, FF_HS_FAILED);
    talk_end(&own);
    talk_end(&t);
}

/* What was heard from an earlier connection opens no other */
static void test_replay(void **state)
{
    struct talk old, t;
    (void)state;

    talk_start(&old, KEY_A, KEY_A);
    talk_through(&old);

    /* to the destination: the same hello, and the proof that went with it */
    talk_start(&t, KEY_A, KEY_A);
    memcpy(t.hello, old.hello, sizeof(t.hello));
    t.nonce = 7;
    assert_ok(talk_answer(&t), t.err);
    memcpy(t.proof, old.proof, sizeof(t.proof));
    assert_fails(talk_check(&t), EACCES);
    talk_end(&t);

    /* even when its challenge is given again at the front of it */
    talk_start(&t, KEY_A, KEY_A);
    memcpy(t.hello, old.hello, sizeof(t.hello));
    t.nonce = 7;
    assert_ok(talk_answer(&t), t.err);
    memcpy(t.proof, old.proof, sizeof(t.proof));
    memcpy(t.proof, t.answer + 8, FF_HS_CHALLENGE_LEN);
    assert_fails(talk_check(&t), EACCES);
    talk_end(&t);

    /* to the source: an old answer */
    talk_start(&t, KEY_A, KEY_A);
    t.nonce = 7;
    talk_ask(&t);
    memcpy(t.answer, old.answer, sizeof(t.answer));
    assert_fails(talk_prove(&t), EACCES);
    talk_end(&t);

    /* a proof twice on one challenge; and after it failed */
    assert_fails(talk_check(&old), EPROTO);
    assert_fails(talk_prove(&old), EPROTO);
    talk_end(&old);
}

/* An end is not satisfied with what it, or another end of its own role, has said */
static void test_reflection(void **state)
{
    struct talk t;
    struct ff_handshake other;
    uint8_t answer[FF_HS_ANSWER_LEN], nonce[FF_HS_NONCE_LEN];
    bool can_send;
    (void)state;

    talk_start(&t, KEY_A, KEY_A);
    talk_ask(&t);
    memset(t.answer, 0, sizeof(t.answer));
    memcpy(t.answer, t.hello, sizeof(t.hello)); /* its own hello, in place of an answer */
    assert_fails(talk_prove(&t), EPROTO);
    talk_end(&t);

    /* as a source whose challenger is asked to compute the proof: by an answer to a hello that has
     * the challenger's nonce */
    talk_start(&t, KEY_A, KEY_A);
    talk_ask(&t);
    assert_ok(talk_answer(&t), t.err);
    uint8_t hello[FF_HS_HELLO_LEN];
    memcpy(hello, t.hello, sizeof(hello));
    memcpy(hello + 8, t.answer + 8, FF_HS_NONCE_LEN);
    memset(nonce, 1, sizeof(nonce)); /* even with the nonce that the source had */
    assert_ok(ff_hs_answer(&other, t.dk, FF_HS_SUITES, nonce, hello, sizeof(hello), answer,
                           &can_send, &t.err), t.err);
    memcpy(t.proof, t.answer + 8, FF_HS_CHALLENGE_LEN);
    memcpy(t.proof + FF_HS_CHALLENGE_LEN, answer + 40, FF_KDF_LEN);
    assert_fails(talk_check(&t), EACCES);
    /* and the answer's own proof sent back */
    assert_ok(talk_answer(&t), t.err);
    memcpy(t.proof, t.answer + 8, FF_HS_CHALLENGE_LEN);
    memcpy(t.proof + FF_HS_CHALLENGE_LEN, t.answer + 40, FF_KDF_LEN);
    assert_fails(talk_check(&t), EACCES);
    talk_end(&t);
}

/* Somebody between takes the better suite, or the version, away */
static void test_downgrade(void **state)
{
    struct talk t;
    (void)state;

    talk_start(&t, KEY_A, KEY_A);
    talk_ask(&t);
    assert_int_equal(t.hello[6], FF_HS_SUITES);
    t.hello[6] = FF_HS_CHACHA20_POLY1305;
    assert_ok(talk_answer(&t), t.err);
    assert_int_equal(t.answer[6], FF_HS_CHACHA20_POLY1305);
    assert_fails(talk_prove(&t), EACCES);
    talk_end(&t);

    talk_start(&t, KEY_A, KEY_A); /* in the answer */
    talk_ask(&t);
    assert_ok(talk_answer(&t), t.err);
    t.answer[6] = FF_HS_CHACHA20_POLY1305;
    assert_fails(talk_prove(&t), EACCES);
    talk_end(&t);

    /* a suite that was not offered, more than one, none */
    static const uint8_t bad[] = {FF_HS_CHACHA20_POLY1305, FF_HS_SUITES, 4, 128};
    for (size_t i = 0; i < sizeof(bad); i++) {
        talk_start(&t, KEY_A, KEY_A);
        t.s_suites = bad[i] == FF_HS_SUITES ? FF_HS_SUITES : FF_HS_AES256_GCM;
        talk_ask(&t);
        assert_ok(talk_answer(&t), t.err);
        t.answer[6] = bad[i];
        assert_fails(talk_prove(&t), EPROTO);
        assert_error(t.err, EPROTO, "suite 0x");
        talk_end(&t);
    }
}

static void test_suites(void **state)
{
    struct talk t;
    (void)state;

    talk_start(&t, KEY_A, KEY_A); /* the one that both take */
    t.d_suites = FF_HS_CHACHA20_POLY1305;
    talk_through(&t);
    assert_int_equal(t.se.suite, FF_HS_CHACHA20_POLY1305);
    assert_int_equal(t.de.suite, FF_HS_CHACHA20_POLY1305);
    talk_end(&t);

    talk_start(&t, KEY_A, KEY_A); /* none: both say so, and no proof is given */
    t.s_suites = FF_HS_CHACHA20_POLY1305;
    t.d_suites = FF_HS_AES256_GCM;
    talk_ask(&t);
    assert_fails(talk_answer(&t), EPROTONOSUPPORT);
    assert_true(t.can_send);
    for (size_t i = 8; i < sizeof(t.answer); i++)
        assert_int_equal(t.answer[i], 0);
    assert_fails(talk_prove(&t), EPROTONOSUPPORT);
    assert_error(t.err, EPROTONOSUPPORT, "suites 0x2");
    assert_fails(talk_check(&t), EPROTO);
    talk_end(&t);

    talk_start(&t, KEY_A, KEY_A); /* another version */
    talk_ask(&t);
    t.hello[4]++;
    assert_fails(talk_answer(&t), EPROTONOSUPPORT);
    assert_error(t.err, EPROTONOSUPPORT, "version 2 (want 1)");
    assert_true(t.can_send);
    t.answer[4]++;
    assert_fails(talk_prove(&t), EPROTONOSUPPORT);
    talk_end(&t);
}

/* Every bit of every message counts */
static void test_every_bit(void **state)
{
    struct talk good, t;
    (void)state;

    talk_start(&good, KEY_A, KEY_A);
    talk_through(&good);
    for (unsigned bit = 0; bit < 8 * FF_HS_HELLO_LEN; bit++) {
        talk_start(&t, KEY_A, KEY_A);
        talk_ask(&t);
        t.hello[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (!talk_answer(&t)) /* the head may be wrong at once */
            assert_true(talk_prove(&t) < 0);
        talk_end(&t);
    }
    for (unsigned bit = 0; bit < 8 * FF_HS_ANSWER_LEN; bit++) {
        talk_start(&t, KEY_A, KEY_A);
        talk_ask(&t);
        memcpy(t.answer, good.answer, sizeof(t.answer));
        t.answer[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(talk_prove(&t) < 0);
        assert_int_equal(t.s.state, FF_HS_FAILED);
        talk_end(&t);
    }
    for (unsigned bit = 0; bit < 8 * FF_HS_PROOF_LEN; bit++) {
        talk_start(&t, KEY_A, KEY_A);
        talk_ask(&t);
        assert_ok(talk_answer(&t), t.err);
        memcpy(t.proof, good.proof, sizeof(t.proof));
        t.proof[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_fails(talk_check(&t), EACCES);
        memcpy(t.proof, good.proof, sizeof(t.proof)); /* one proof a challenge */
        assert_fails(talk_check(&t), EPROTO);
        talk_end(&t);
    }
    talk_end(&good);
}

static void test_truncated(void **state)
{
    struct talk good, t;
    uint8_t longer[FF_HS_ANSWER_LEN + 1] = {0};
    (void)state;

    talk_start(&good, KEY_A, KEY_A);
    talk_through(&good);
    talk_start(&t, KEY_A, KEY_A);
    for (size_t len = 0; len <= FF_HS_HELLO_LEN + 1; len++) {
        memcpy(longer, good.hello, sizeof(good.hello));
        if (len == FF_HS_HELLO_LEN)
            continue;
        assert_fails(ff_hs_answer(&t.d, t.dk, FF_HS_SUITES, longer, longer, len, t.answer,
                                  &t.can_send, &t.err), EPROTO);
        assert_error(t.err, EPROTO, "bytes (want 40)");
        assert_false(t.can_send);
    }
    memcpy(longer, good.answer, sizeof(good.answer));
    for (size_t len = 0; len <= FF_HS_ANSWER_LEN + 1; len++) {
        if (len == FF_HS_ANSWER_LEN)
            continue;
        talk_ask(&t);
        assert_fails(ff_hs_prove(&t.s, t.sk, longer, len, t.proof, &t.se, &t.err), EPROTO);
    }
    memcpy(longer, good.proof, sizeof(good.proof));
    for (size_t len = 0; len <= FF_HS_PROOF_LEN + 1; len++) {
        if (len == FF_HS_PROOF_LEN)
            continue;
        talk_ask(&t);
        assert_ok(talk_answer(&t), t.err);
        assert_fails(ff_hs_check(&t.d, t.dk, longer, len, &t.de, &t.err), EPROTO);
    }
    talk_end(&t);
    talk_end(&good);
}

/* Connections of one key have nothing in common */
static void test_epochs_differ(void **state)
{
    static const uint8_t session[FF_SESSION_LEN] = "0123456789abcde", other[FF_SESSION_LEN] = "x";
    uint8_t a[FF_SESSION_LEN], b[FF_SESSION_LEN];
    struct talk one, two;
    (void)state;

    talk_start(&one, KEY_A, KEY_A);
    talk_through(&one);
    talk_start(&two, KEY_A, KEY_A);
    two.nonce = 9;
    talk_through(&two);
    assert_memory_not_equal(one.se.from_source, two.se.from_source, FF_KDF_LEN);
    assert_memory_not_equal(one.se.from_dest, two.se.from_dest, FF_KDF_LEN);
    assert_memory_not_equal(one.se.queue, two.se.queue, sizeof(one.se.queue));

    assert_int_equal(ff_hs_token(&one.se, FF_QUEUE_FAULT, 0, session, a), 0);
    assert_int_equal(ff_hs_token(&one.de, FF_QUEUE_FAULT, 0, session, b), 0);
    assert_memory_equal(a, b, sizeof(a)); /* both ends agree */
    assert_int_equal(ff_hs_token(&one.se, FF_QUEUE_PREFILL, 0, session, b), 0);
    assert_memory_not_equal(a, b, sizeof(a));
    assert_int_equal(ff_hs_token(&one.se, FF_QUEUE_FAULT, 1, session, b), 0);
    assert_memory_not_equal(a, b, sizeof(a));
    assert_int_equal(ff_hs_token(&one.se, FF_QUEUE_FAULT, 0, other, b), 0);
    assert_memory_not_equal(a, b, sizeof(a));
    assert_int_equal(ff_hs_token(&two.se, FF_QUEUE_FAULT, 0, session, b), 0);
    assert_memory_not_equal(a, b, sizeof(a));
    talk_end(&one);
    talk_end(&two);
}

static void test_first_bytes(void **state)
{
    struct talk t;
    (void)state;

    talk_start(&t, KEY_A, KEY_A);
    talk_through(&t);
    assert_true(ff_hs_is_hello(t.hello) && !ff_hs_is_answer(t.hello));
    assert_true(ff_hs_is_answer(t.answer) && !ff_hs_is_hello(t.answer));
    assert_false(ff_hs_is_hello((const uint8_t *)"FFcm"));
    assert_false(ff_hs_is_hello((const uint8_t *)"GET "));
    talk_end(&t);
}

UNIT_MAIN(cmocka_unit_test(test_both_have_it), cmocka_unit_test(test_known_answer),
          cmocka_unit_test(test_wrong_key), cmocka_unit_test(test_replay),
          cmocka_unit_test(test_reflection), cmocka_unit_test(test_downgrade),
          cmocka_unit_test(test_suites), cmocka_unit_test(test_every_bit),
          cmocka_unit_test(test_truncated), cmocka_unit_test(test_epochs_differ),
          cmocka_unit_test(test_first_bytes))
