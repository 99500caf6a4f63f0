/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * by_hand.h - a peer that says to a move's destination what the test writes
 */
#ifndef FF_TESTS_LOOP_BY_HAND_H
#define FF_TESTS_LOOP_BY_HAND_H

#include "loop.h"
#include "wire.h"

struct ff_key;

/* Over tcp to where the destination listens; waits until it does. @key: NULL: without one */
struct ff_link *hand_connect(const struct move *m, struct ff_key *key);

/* As hand_connect(), without a key; then says @msg */
struct ff_link *hand_say(const struct move *m, const uint8_t *msg, int len);

/* The table of the move's source, with this version; @r belongs to it */
struct ff_hello hand_hello(const struct move *m, struct ff_wire_region r[REGIONS_MAX]);

/* What the move's source says after a break, its session and digest with it */
struct ff_resume hand_resume(const struct move *m);

/* The destination answers by a refusal that says so, before it hangs up */
void hand_refused(struct ff_link *l, const char *says);

#endif
