/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * rested.h - whether no CPU of a guest has run since it was stopped, where nobody says events: libvirt's monitor
 */
#ifndef FF_CONTROL_ATTACH_RESTED_H
#define FF_CONTROL_ATTACH_RESTED_H

#include "parked.h"
#include "qmp.h"

struct rested { /* {0}: of no guest */
    struct parked *vcpus; /* of each, as it was; then as it is */
    unsigned n;
};

/* While the guest runs: its CPUs' threads. 0; -EPROTO; else as qmp_command() */
int rested_find(struct qmp *q, struct rested *r, struct ff_error *err);

/* They have come to rest, and the guest is stopped then. -ETIMEDOUT: they do not */
int rested_await(struct qmp *q, pid_t pid, struct rested *r, struct ff_error *err);

/* All threads stand still: none of these has run since. -EBUSY: one has */
int rested_check(pid_t pid, struct rested *r, struct ff_error *err);

void rested_free(struct rested *r);

#endif
