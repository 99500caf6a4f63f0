/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_request.h - the private data of a connect request: who asks, for which queue pair
 */
#ifndef FF_RDMA_VERBS_REQUEST_H
#define FF_RDMA_VERBS_REQUEST_H

#include "verbs.h"
#include "verbs_gate.h"

#define VERBS_PRIVATE_MAX 52 /* with a hello or a proof; InfiniBand has room for 56 */

/* What a connect request is for, on the wire: a role, or a step of the handshake for CONTROL */
enum { VERBS_REQUEST_HELLO = VERBS_ROLES, VERBS_REQUEST_PROOF, VERBS_REQUESTS };

struct verbs_request {
    enum verbs_role role;
    unsigned qps, index; /* of PREFILL */
    struct rdma_cm_id *id;
    struct rdma_conn_param conn;
    const struct ff_epoch *epoch; /* of who has proved the key; NULL: this side has none */
    uint8_t answer[FF_HS_ANSWER_LEN];
    bool has_answer; /* it is to be rejected with */
};

/* @what of @len bytes: a token, a hello, a proof; NULL: zeros. The length of it all */
uint8_t verbs_put_private(uint8_t out[VERBS_PRIVATE_MAX], unsigned request, unsigned qps,
                          unsigned index, const uint8_t *what, size_t len);

/* Who a request is for. @gate: NULL where this side has no key. @v: the link that waits for its
 * queues, NULL: a control connection is wanted. 0; -EINPROGRESS: a hello, to be rejected with the
 * answer; or -errno with the reason in @err, and perhaps an answer */
int verbs_get_private(const struct rdma_conn_param *p, struct verbs_gate *gate,
                      const struct verbs_link *v, const uint8_t *session, struct verbs_request *r,
                      struct ff_error *err);

/* The pad: a control message of VERBS_PAD_LEN bytes, which no other begins like. Its sender's beat is at
 * @addr, and may be written with @rkey. @out is zeros */
void verbs_put_pad(uint8_t out[VERBS_PAD_LEN], uint64_t addr, uint32_t rkey);
bool verbs_is_pad(const uint8_t *msg, size_t len);
/* 0: the peer's device has all of it; or the link is broken */
int verbs_send_pad(struct verbs_link *v, struct ff_error *err);
int verbs_get_pad(const uint8_t *msg, size_t len, uint64_t *addr, uint32_t *rkey,
                  struct ff_error *err);

#endif
