/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * policy.h - NUMA policies of guest memory: pages are installed on the nodes that it names
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      A page that is copied in (UFFDIO_COPY) follows the policy of the guest's mapping. A
 *              page that is moved in stays on its node, and a page that a second mapping of a
 *              hugetlb file brings follows the policy of that mapping: each needs care of ours.
 *              So does memory that is mapped anew: a policy goes with a mapping, or with the file.
 * Failure      Where the kernel does not tell (no NUMA, a filter of system calls), nobody can have
 *              set a policy either.
 */
#ifndef FF_MIGRATE_POLICY_H
#define FF_MIGRATE_POLICY_H

#include <stdbool.h>

#include "regions.h"

#define FF_POLICY_NODES 4096u /* more than any kernel is built for: 1024 */

struct ff_policy {
    int mode; /* as mbind(2) has it */
    unsigned long nodes[FF_POLICY_NODES / 8 / sizeof(unsigned long)];
};

struct ff_policy ff_policy_at(const void *addr);

/* 0 or -errno; memory without a policy stays without one */
int ff_policy_set(const struct ff_policy *p, void *addr, uint64_t len_bytes);

/* Has any of @r a policy? */
bool ff_policy_is_set(const struct ff_region *r);

/* Give @alias, a second mapping of all of @r, the policy of @r: 0 or -errno with the reason */
int ff_policy_copy(const struct ff_region *r, void *alias, struct ff_error *err);

#endif
