/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * failpoint.h - named points at which a test can make things go wrong
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      reach failures that no layer outside can make: a slow install, a link
 *              that breaks between two messages, a process that dies at a stage.
 * Picture      FARFORK_FAILPOINTS="tcp.serve.fault=delay:2000,dest.ready=kill@1"
 *              NAME=delay:USEC | fail[:ERRNO] | kill, each with an optional @N
 *              (only the Nth time), @N+ (from the Nth time on) or @N-M (until the Mth).
 * Invariants   1. Off unless the variable is set: one predictable branch.
 *              2. A name that does not exist is an error at start, not a test that
 *                 silently tests nothing.
 */
#ifndef FF_BASE_FAILPOINT_H
#define FF_BASE_FAILPOINT_H

#include <stdbool.h>

struct ff_error;

extern bool ff_failpoints_armed;
extern const char *const ff_failpoints[]; /* every name there is */
extern const unsigned ff_failpoints_n;

/* Parse @spec (NULL: the environment variable FARFORK_FAILPOINTS) and arm. Not thread-safe:
 * before threads start. Return 0 or -EINVAL with the part that is wrong. */
int ff_failpoints_arm(const char *spec, struct ff_error *err);

/* Arm from the environment, the first time that anybody calls this in the process; what a
 * test has armed by ff_failpoints_arm() stays when the variable is not set */
int ff_failpoints_start(struct ff_error *err);

/* How often the point was passed since it was armed (0 when not armed) */
unsigned long ff_failpoint_hits(const char *name);

int ff_failpoint_hit(const char *name);

/* Return: 0 go on (perhaps after a delay), or -errno: behave as if that had happened */
static inline int ff_failpoint(const char *name)
{
    return __builtin_expect(ff_failpoints_armed, 0) ? ff_failpoint_hit(name) : 0;
}

#endif
