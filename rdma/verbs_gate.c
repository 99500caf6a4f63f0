/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_gate.c - the handshake in connect requests: which hellos a listener has answered
 */
/**
 * DOC: Theory of Operation
 *
 * Picture      source                                   destination
 *              connect request, hello ----------------> nothing is accepted: no queue pair, no
 *                                                       buffer; a place in a table
 *                    <--- rejected, with the answer ---
 *              connect request, proof ----------------> its challenge finds the place: right, and
 *                                                       it becomes a link
 *
 * Limits       VERBS_GATE_MAX challenges, each for GATE_MS: one more takes the place of the oldest.
 *              Between its requests a source looks for the way again and makes a queue pair, which
 *              may be 300 ms; hence many places, of 128 bytes each.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "error.h"
#include "secret.h"
#include "verbs_gate.h"

#define GATE_MS 2000

struct challenge {
    uint64_t until_ns; /* 0: a free place */
    struct ff_handshake h;
};

struct verbs_gate {
    const struct ff_key *key;
    struct ff_epoch *epoch; /* of who passed last */
    struct challenge c[VERBS_GATE_MAX];
};

int verbs_gate_new(const struct ff_key *key, struct verbs_gate **out, struct ff_error *err)
{
    struct verbs_gate *g = calloc(1, sizeof(*g));

    if (g)
        g->epoch = ff_secret_new(sizeof(*g->epoch));
    if (!g || !g->epoch) {
        free(g);
        return ff_error_set(err, ENOMEM, "verbs: listen: out of memory");
    }
    g->key = key;
    *out = g;
    return 0;
}

void verbs_gate_free(struct verbs_gate *g)
{
    if (!g)
        return;
    ff_secret_free(g->epoch, sizeof(*g->epoch));
    free(g);
}

/* The one that is free, or ends first */
static struct challenge *oldest(struct verbs_gate *g)
{
    struct challenge *c = &g->c[0];

    for (unsigned i = 1; i < VERBS_GATE_MAX; i++)
        if (g->c[i].until_ns < c->until_ns)
            c = &g->c[i];
    return c;
}

int verbs_gate_hello(struct verbs_gate *g, const void *hello, size_t len,
                     uint8_t out[FF_HS_ANSWER_LEN], bool *can_send, struct ff_error *err)
{
    struct challenge c;
    uint8_t nonce[FF_HS_NONCE_LEN];

    *can_send = false;
    int rc = ff_hs_nonce(nonce, err);
    if (rc)
        return rc;
    rc = ff_hs_answer(&c.h, g->key, FF_HS_SUITES, nonce, hello,
                      FF_MIN(len, (size_t)FF_HS_HELLO_LEN), out, can_send, err);
    c.until_ns = ff_now_ns() + GATE_MS * 1000000ull;
    if (!rc)
        *oldest(g) = c;
    return rc;
}

int verbs_gate_proof(struct verbs_gate *g, const void *proof, size_t len,
                     const struct ff_epoch **e, struct ff_error *err)
{
    uint64_t now = ff_now_ns();

    explicit_bzero(g->epoch, sizeof(*g->epoch));
    for (unsigned i = 0; i < VERBS_GATE_MAX && len >= FF_HS_PROOF_LEN; i++) {
        struct challenge *c = &g->c[i];
        if (c->until_ns <= now || !ff_hs_is_for(&c->h, proof))
            continue;
        c->until_ns = 0;
        int rc = ff_hs_check(&c->h, g->key, proof, FF_HS_PROOF_LEN, g->epoch, err);
        *e = g->epoch;
        return rc;
    }
    return ff_error_set(err, EACCES, "handshake: a proof for no challenge of the last %d ms",
                        GATE_MS);
}
