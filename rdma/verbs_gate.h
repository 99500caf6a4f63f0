/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * verbs_gate.h - the handshake in connect requests: which hellos a listener has answered
 */
#ifndef FF_RDMA_VERBS_GATE_H
#define FF_RDMA_VERBS_GATE_H

#include "handshake.h"

#define VERBS_GATE_MAX 1024u

struct verbs_gate;

/* Takes all memory that it will ever need. @key is borrowed */
int verbs_gate_new(const struct ff_key *key, struct verbs_gate **out, struct ff_error *err);
void verbs_gate_free(struct verbs_gate *g); /* @g may be NULL */

/* @len bytes, or more: what rdma_cm adds is not looked at. 0 or as ff_hs_answer(); @out likewise */
int verbs_gate_hello(struct verbs_gate *g, const void *hello, size_t len,
                     uint8_t out[FF_HS_ANSWER_LEN], bool *can_send, struct ff_error *err);

/* Who has the key: 0, with the keys in *@e until the next call; -EACCES, -EPROTO, -EIO. A challenge
 * is for one proof, within GATE_MS */
int verbs_gate_proof(struct verbs_gate *g, const void *proof, size_t len,
                     const struct ff_epoch **e, struct ff_error *err);

#endif
