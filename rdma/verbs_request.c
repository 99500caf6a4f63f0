/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_request.c - the private data of a connect request: who asks, for which queue pair
 */
#include <errno.h>
#include <string.h>

#include "verbs_request.h"
#include "wirebuf.h"

#define MAGIC 0x6a764646u /* "FFvj" */
#define VERSION 3
#define PRIVATE_LEN 28
#define HEAD_LEN 12

_Static_assert(HEAD_LEN + FF_SESSION_LEN == PRIVATE_LEN, "a token stands there");
_Static_assert(HEAD_LEN + FF_HS_HELLO_LEN <= VERBS_PRIVATE_MAX &&
               HEAD_LEN + FF_HS_PROOF_LEN <= VERBS_PRIVATE_MAX, "both fit");

uint8_t verbs_put_private(uint8_t out[VERBS_PRIVATE_MAX], unsigned request, unsigned qps,
                          unsigned index, const uint8_t *what, size_t len)
{
    struct ff_wirebuf b = {.data = out, .len = VERBS_PRIVATE_MAX};

    memset(out, 0, VERBS_PRIVATE_MAX);
    ff_wb_put(&b, MAGIC, 4);
    ff_wb_put(&b, VERSION, 2);
    ff_wb_put(&b, request, 2);
    ff_wb_put(&b, qps, 2);
    ff_wb_put(&b, index, 2);
    if (what)
        ff_wb_put_bytes(&b, what, len);
    return (uint8_t)(HEAD_LEN + len);
}

/* A control connection is wanted: by whom? */
static int check_stranger(struct verbs_gate *gate, unsigned request, struct ff_wirebuf *b,
                          struct verbs_request *r, struct ff_error *err)
{
    size_t len = ff_wb_left(b);
    const uint8_t *said = ff_wb_take(b, len);

    if (!gate && request != VERBS_CONTROL)
        return ff_error_set(err, EACCES, "verbs: the source has a key and this side has none: "
                            "give key-file=FILE with the same");
    if (gate && request == VERBS_CONTROL)
        return ff_error_set(err, EACCES, "verbs: the destination wants a key: give key-file=FILE "
                            "with the one that it has");
    if (request == VERBS_REQUEST_HELLO) {
        int rc = verbs_gate_hello(gate, said, len, r->answer, &r->has_answer, err);
        return rc ? rc : -EINPROGRESS;
    }
    return gate ? verbs_gate_proof(gate, said, len, &r->epoch, err) : 0;
}

int verbs_get_private(const struct rdma_conn_param *p, struct verbs_gate *gate,
                      const struct verbs_link *v, const uint8_t *session, struct verbs_request *r,
                      struct ff_error *err)
{
    struct ff_wirebuf b = ff_wb_reader(p->private_data, p->private_data_len);
    uint32_t magic = (uint32_t)ff_wb_get(&b, 4);
    unsigned version = (unsigned)ff_wb_get(&b, 2), request = (unsigned)ff_wb_get(&b, 2);
    bool stranger = request == VERBS_CONTROL || request >= VERBS_ROLES;
    uint8_t diff = 0, token[FF_SESSION_LEN];

    r->epoch = NULL;
    r->has_answer = false;
    r->qps = (unsigned)ff_wb_get(&b, 2);
    r->index = (unsigned)ff_wb_get(&b, 2);
    bool whole = ff_wb_left(&b) >= FF_SESSION_LEN;
    if (magic != MAGIC || (whole && version == VERSION && request >= VERBS_REQUESTS))
        return ff_error_set(err, EPROTO, "verbs: not a connection of Farfork");
    if (!whole || version != VERSION)
        return ff_error_set(err, EPROTONOSUPPORT, "verbs: connection of version %u (want %u)",
                            version, VERSION);
    r->role = stranger ? VERBS_CONTROL : (enum verbs_role)request;
    if (r->qps < 1 || r->qps > VERBS_QPS_MAX)
        return ff_error_set(err, EPROTO, "verbs: %u prefill queue pairs (permitted 1..%u)", r->qps,
                            VERBS_QPS_MAX);
    if (stranger != !v)
        return ff_error_set(err, EBUSY, v ? "verbs: busy with another source"
                                          : "verbs: a queue pair that no session waits for");
    if (!v)
        return check_stranger(gate, request, &b, r, err);
    const uint8_t *got = ff_wb_take(&b, FF_SESSION_LEN);
    int rc = ff_secrets_token(v->secrets, verbs_queue_of(r->role), r->index, session, token);
    for (size_t i = 0; i < FF_SESSION_LEN; i++)
        diff |= (uint8_t)(got[i] ^ token[i]);
    if (diff || rc)
        return ff_error_set(err, EACCES, "verbs: not of this session");
    if (r->index >= v->q[r->role].n_conns || v->q[r->role].conn[r->index].id)
        return ff_error_set(err, EEXIST, "verbs: queue pair %u of %u: there already, or too many",
                            r->index, v->q[r->role].n_conns);
    return 0;
}
