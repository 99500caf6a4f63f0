/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * test_claims.c - page claims: every legal and illegal move, and threads racing for pages
 */
#include "unit.h"

#include <pthread.h>

#include "claims.h"

#define RACERS 8
#define RACED 100000u

static void test_legal_moves(void **state)
{
    struct ff_claims c;
    (void)state;

    assert_int_equal(ff_claims_init(&c, 3), 0);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(ff_claim_get(&c, i), FF_CLAIM_MISSING);
    assert_true(ff_claim_take(&c, 1));
    assert_int_equal(ff_claim_get(&c, 1), FF_CLAIM_INFLIGHT);
    assert_false(ff_claim_take(&c, 1)); /* INFLIGHT has an owner */
    assert_int_equal(ff_claim_get(&c, 1), FF_CLAIM_INFLIGHT);
    assert_int_equal(ff_claims_here(&c), 0);
    ff_claim_done(&c, 1);
    assert_int_equal(ff_claim_get(&c, 1), FF_CLAIM_PRESENT);
    assert_int_equal(ff_claims_here(&c), 1);
    assert_false(ff_claim_take(&c, 1)); /* PRESENT stays, but for ff_claim_forget() */
    assert_int_equal(ff_claim_get(&c, 1), FF_CLAIM_PRESENT);
    /* the neighbours felt nothing */
    assert_int_equal(ff_claim_get(&c, 0), FF_CLAIM_MISSING);
    assert_int_equal(ff_claim_get(&c, 2), FF_CLAIM_MISSING);
    ff_claims_free(&c);
    ff_claims_free(&c);
}

static void test_hole(void **state)
{
    struct ff_claims c;
    (void)state;

    assert_int_equal(ff_claims_init(&c, 2), 0);
    assert_false(ff_claim_touch(&c, 0)); /* MISSING is for ff_claim_take() */
    assert_true(ff_claim_take(&c, 0));
    assert_false(ff_claim_touch(&c, 0));
    ff_claim_hole(&c, 0, 1);
    assert_int_equal(ff_claim_get(&c, 0), FF_CLAIM_HOLE);
    assert_int_equal(ff_claims_here(&c), 1); /* it reads as zeros, and is waited for by nobody */
    assert_false(ff_claim_take(&c, 0));
    assert_true(ff_claim_touch(&c, 0));
    assert_int_equal(ff_claims_here(&c), 0);
    assert_false(ff_claim_touch(&c, 0)); /* one installs it */
    ff_claim_done(&c, 0);
    assert_int_equal(ff_claim_get(&c, 0), FF_CLAIM_PRESENT);
    assert_false(ff_claim_touch(&c, 0));
    assert_int_equal(ff_claim_get(&c, 1), FF_CLAIM_MISSING);
    ff_claims_free(&c);
}

static void test_from_the_start(void **state)
{
    struct ff_claims c;
    (void)state;

    assert_int_equal(ff_claims_init(&c, 7), 0);
    assert_int_equal(ff_claims_here(&c), 0);
    ff_claims_holes(&c);
    assert_int_equal(ff_claims_here(&c), 7);
    ff_claims_present(&c);
    assert_int_equal(ff_claims_here(&c), 7);
    ff_claims_free(&c);
}

static void test_poisoned(void **state)
{
    struct ff_claims c;
    (void)state;

    assert_int_equal(ff_claims_init(&c, 2), 0);
    ff_claims_seal(&c);
    assert_true(ff_claim_take(&c, 0));
    ff_claim_poisoned(&c, 0);
    assert_int_equal(ff_claim_get(&c, 0), FF_CLAIM_POISONED);
    assert_int_equal(ff_claims_here(&c), 0); /* nor ever will be */
    assert_false(ff_claim_take(&c, 0) || ff_claim_touch(&c, 0));
    ff_claims_free(&c);
}

static void test_forget(void **state)
{
    struct ff_claims c;
    (void)state;

    assert_int_equal(ff_claims_init(&c, 4), 0);
    assert_true(ff_claim_take(&c, 1) && ff_claim_take(&c, 2) && ff_claim_take(&c, 3));
    ff_claim_done(&c, 2);
    ff_claim_done(&c, 3);
    assert_false(ff_claim_forget(&c, 0)); /* it is not there */
    assert_int_equal(ff_claim_get(&c, 0), FF_CLAIM_MISSING);
    assert_false(ff_claim_forget(&c, 1)); /* its owner reads it later */
    assert_int_equal(ff_claim_get(&c, 1), FF_CLAIM_INFLIGHT);
    assert_true(ff_claim_forget(&c, 2));
    assert_int_equal(ff_claim_get(&c, 2), FF_CLAIM_MISSING);
    assert_false(ff_claim_forget(&c, 2));
    assert_int_equal(ff_claims_here(&c), 1);
    ff_claim_hole(&c, 1, 1);
    assert_int_equal(ff_claims_here(&c), 2);
    assert_true(ff_claim_forget(&c, 1)); /* a hole as well */
    assert_int_equal(ff_claims_here(&c), 1);
    assert_true(ff_claim_take(&c, 1));
    /* from here on as if it had never been there */
    ff_claims_seal(&c);
    assert_true(ff_claim_take(&c, 2));
    ff_claim_done(&c, 2);
    ff_claim_done(&c, 1);
    assert_int_equal(ff_claims_here(&c), 3);
    ff_claims_free(&c);
}

static void test_give_back(void **state)
{
    struct ff_claims c;
    (void)state;

    assert_int_equal(ff_claims_init(&c, 2), 0);
    assert_true(ff_claim_take(&c, 1));
    ff_claim_give_back(&c, 1);
    assert_int_equal(ff_claim_get(&c, 1), FF_CLAIM_MISSING);
    assert_int_equal(ff_claims_here(&c), 0);
    assert_true(ff_claim_take(&c, 1)); /* anyone's, as before */
    ff_claim_done(&c, 1);
    assert_int_equal(ff_claims_here(&c), 1);
    ff_claims_free(&c);
}

/* Sealed or not: it is taken again by whoever can bring it */
static void test_leave(void **state)
{
    struct ff_claims c;
    (void)state;

    assert_int_equal(ff_claims_init(&c, 2), 0);
    ff_claims_seal(&c);
    assert_true(ff_claim_take(&c, 1));
    ff_claim_leave(&c, 1);
    assert_int_equal(ff_claim_get(&c, 1), FF_CLAIM_MISSING);
    assert_true(ff_claim_take(&c, 1) && !ff_claim_take(&c, 1));
    ff_claim_done(&c, 1);
    assert_int_equal(ff_claims_here(&c), 1);
    ff_claims_free(&c);
}

static void leave_present(void *arg)
{
    struct ff_claims c;
    (void)arg;

    ff_claims_init(&c, 1);
    ff_claims_present(&c);
    ff_claim_leave(&c, 0);
}

static void give_back_sealed(void *arg)
{
    struct ff_claims c;
    (void)arg;
    if (!ff_claims_init(&c, 1) && ff_claim_take(&c, 0)) {
        ff_claims_seal(&c);
        ff_claim_give_back(&c, 0);
    }
}

static void give_back_present(void *arg)
{
    struct ff_claims c;
    (void)arg;
    if (!ff_claims_init(&c, 1) && ff_claim_take(&c, 0)) {
        ff_claim_done(&c, 0);
        ff_claim_give_back(&c, 0);
    }
}

static void forget_sealed(void *arg)
{
    struct ff_claims c;
    (void)arg;
    if (!ff_claims_init(&c, 1) && ff_claim_take(&c, 0)) {
        ff_claim_done(&c, 0);
        ff_claims_seal(&c);
        ff_claim_forget(&c, 0);
    }
}

static void done_of_forgotten(void *arg)
{
    struct ff_claims c;
    (void)arg;
    if (!ff_claims_init(&c, 1) && ff_claim_take(&c, 0)) {
        ff_claim_done(&c, 0);
        ff_claim_forget(&c, 0);
        ff_claim_done(&c, 0);
    }
}

static void done_of_missing(void *arg)
{
    struct ff_claims c;
    (void)arg;
    if (!ff_claims_init(&c, 1))
        ff_claim_done(&c, 0);
}

static void done_twice(void *arg)
{
    struct ff_claims c;
    (void)arg;
    if (!ff_claims_init(&c, 1) && ff_claim_take(&c, 0)) {
        ff_claim_done(&c, 0);
        ff_claim_done(&c, 0);
    }
}

static void done_of_damaged(void *arg)
{
    struct ff_claims c;
    (void)arg;
    if (!ff_claims_init(&c, 1)) {
        c.state[0] = 77;
        ff_claim_done(&c, 0);
    }
}

static void legal(void *arg)
{
    struct ff_claims c;
    (void)arg;
    if (!ff_claims_init(&c, 1) && ff_claim_take(&c, 0))
        ff_claim_done(&c, 0);
}

static void test_illegal_moves_abort(void **state)
{
    (void)state;
    assert_int_equal(signal_of(legal, NULL), 0);
    assert_int_equal(signal_of(done_of_missing, NULL), SIGABRT);
    assert_int_equal(signal_of(done_twice, NULL), SIGABRT);
    assert_int_equal(signal_of(done_of_damaged, NULL), SIGABRT);
    assert_int_equal(signal_of(forget_sealed, NULL), SIGABRT);
    assert_int_equal(signal_of(done_of_forgotten, NULL), SIGABRT);
    assert_int_equal(signal_of(give_back_sealed, NULL), SIGABRT);
    assert_int_equal(signal_of(give_back_present, NULL), SIGABRT);
    assert_int_equal(signal_of(leave_present, NULL), SIGABRT);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(ff_claim_name(FF_CLAIM_MISSING), "missing");
    assert_string_equal(ff_claim_name(FF_CLAIM_INFLIGHT), "inflight");
    assert_string_equal(ff_claim_name(FF_CLAIM_PRESENT), "present");
}

struct racer {
    pthread_t thread;
    struct ff_claims *claims;
    pthread_barrier_t *start;
    unsigned number;
    uint8_t *mine; /* one byte a page */
    uint32_t *content; /* written by the owner before done(), read by whoever sees PRESENT */
    unsigned wrong;
};

static void *race_main(void *arg)
{
    struct racer *r = arg;
    uint64_t at = (uint64_t)r->number * (RACED / RACERS / 3); /* they meet all the time */

    pthread_barrier_wait(r->start);
    for (uint64_t i = 0; i < RACED; i++, at++) {
        uint64_t page = at % RACED;
        if (ff_claim_take(r->claims, page)) {
            r->mine[page]++;
            r->content[page] = (uint32_t)page ^ 0x5eed;
            ff_claim_done(r->claims, page);
        } else if (ff_claim_get(r->claims, page) == FF_CLAIM_PRESENT) {
            r->wrong += r->content[page] != ((uint32_t)page ^ 0x5eed);
        }
    }
    return NULL;
}

static void test_race(void **state)
{
    static struct racer racer[RACERS];
    pthread_barrier_t start;
    struct ff_claims c;
    uint32_t *content = calloc(RACED, sizeof(*content));
    (void)state;

    assert_non_null(content);
    assert_int_equal(ff_claims_init(&c, RACED), 0);
    pthread_barrier_init(&start, NULL, RACERS);
    for (unsigned i = 0; i < RACERS; i++) {
        racer[i] = (struct racer){.claims = &c, .start = &start, .number = i, .content = content};
        racer[i].mine = calloc(RACED, 1);
        assert_non_null(racer[i].mine);
        assert_int_equal(pthread_create(&racer[i].thread, NULL, race_main, &racer[i]), 0);
    }
    for (unsigned i = 0; i < RACERS; i++) {
        pthread_join(racer[i].thread, NULL);
        assert_int_equal(racer[i].wrong, 0);
    }
    for (uint64_t page = 0; page < RACED; page++) {
        unsigned takes = 0;
        for (unsigned i = 0; i < RACERS; i++)
            takes += racer[i].mine[page];
        assert_int_equal(takes, 1);
        assert_int_equal(ff_claim_get(&c, page), FF_CLAIM_PRESENT);
    }
    assert_int_equal(ff_claims_here(&c), RACED);
    for (unsigned i = 0; i < RACERS; i++)
        free(racer[i].mine);
    pthread_barrier_destroy(&start);
    ff_claims_free(&c);
    free(content);
}

UNIT_MAIN(cmocka_unit_test(test_legal_moves), cmocka_unit_test(test_illegal_moves_abort),
          cmocka_unit_test(test_names), cmocka_unit_test(test_hole),
          cmocka_unit_test(test_from_the_start),
          cmocka_unit_test(test_poisoned), cmocka_unit_test(test_forget),
          cmocka_unit_test(test_give_back),
          cmocka_unit_test(test_leave),
          cmocka_unit_test(test_race))
