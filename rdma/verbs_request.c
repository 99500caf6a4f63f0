/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_request.c - the private data of a connect request: who asks, for which queue pair
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "verbs_request.h"
#include "wirebuf.h"

#define MAGIC 0x6a764646u /* "FFvj" */
#define MAGIC_PAD 0x70764646u /* "FFvp" */
#define VERSION 4
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

void verbs_put_pad(uint8_t out[VERBS_PAD_LEN], uint64_t addr, uint32_t rkey)
{
    struct ff_wirebuf b = {.data = out, .len = VERBS_PAD_LEN};

    ff_wb_put(&b, MAGIC_PAD, 4);
    ff_wb_put(&b, rkey, 4);
    ff_wb_put(&b, addr, 8);
}

bool verbs_is_pad(const uint8_t *msg, size_t len)
{
    struct ff_wirebuf b = ff_wb_reader(msg, len);

    return ff_wb_get(&b, 4) == MAGIC_PAD && !b.bad;
}

int verbs_get_pad(const uint8_t *msg, size_t len, uint64_t *addr, uint32_t *rkey,
                  struct ff_error *err)
{
    struct ff_wirebuf b = ff_wb_reader(msg, len);

    ff_wb_get(&b, 4);
    uint32_t key = (uint32_t)ff_wb_get(&b, 4);
    uint64_t at = ff_wb_get(&b, 8);
    if (len != VERBS_PAD_LEN || !key)
        return ff_error_set(err, EPROTO, "verbs: read pad: %zu bytes, key 0x%x (want %u bytes, and a "
                            "key)", len, key, VERBS_PAD_LEN);
    *addr = at;
    *rkey = key;
    return 0;
}

int verbs_send_pad(struct verbs_link *v, struct ff_error *err)
{
    FF_AUTO_FREE uint8_t *pad = calloc(1, VERBS_PAD_LEN);

    if (!pad)
        return ff_error_set(err, ENOMEM, "verbs: open queues: out of memory");
    verbs_put_pad(pad, (uintptr_t)v->beat_mr->addr, v->beat_mr->rkey);
    return v->base.ops->send(&v->base, pad, VERBS_PAD_LEN, err);
}
