/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stranger.h - a process that speaks to an agent without the library's child or source
 */
#ifndef FF_TESTS_LOOP_STRANGER_H
#define FF_TESTS_LOOP_STRANGER_H

#include "family.h"
#include "message.h"

/* A connection to the agent */
int stranger(const struct family *f);

/* A child's HELLO for the image of family_new(), to be made wrong; @r belongs to it */
struct ff_clone_msg stranger_hello(struct ff_wire_region r[2]);

/* The agent ends this connection, perhaps with a reason; closes it */
void must_be_dropped(int sock, const char *what);

#endif
