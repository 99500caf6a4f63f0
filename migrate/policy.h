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
 * Failure      Where the kernel does not tell (no NUMA, a filter of system calls), nobody can have
 *              set a policy either.
 */
#ifndef FF_MIGRATE_POLICY_H
#define FF_MIGRATE_POLICY_H

#include <stdbool.h>

#include "regions.h"

/* Has any of @r a policy? */
bool ff_policy_is_set(const struct ff_region *r);

/* Give @alias, a second mapping of all of @r, the policy of @r: 0 or -errno with the reason */
int ff_policy_copy(const struct ff_region *r, void *alias, struct ff_error *err);

#endif
