/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pager_elsewhere.h - destination: the memory is another process's, which watches it itself
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the pager of a process beside a QEMU. That process, the owner, has the userfaultfd, and keeps it. We have a
 *              duplicate of its descriptor, read its events and install through it: COPY and ZEROPAGE work on the memory
 *              of whom it belongs to.
 *
 * Invariants   1. Nothing is installed before adopt(): image_frozen, without which nobody but the pass installs,
 *                 is set there, or after it; and there is a pass only after it.
 *              2. Once every page has come, or is a hole, the owner may unregister while faults on
 *                 holes are still on their way here: what the kernel says then, ENOENT or ESRCH, ends no move. Before
 *                 that it does.
 *              3. We never unregister. Closing our duplicate wakes nobody: the owner has its own. So
 *                 what is missing when this process ends shows no zeros, and waits.
 * Failure      the owner has ended: an install says ESRCH, and the move fails.
 */
#ifndef FF_MIGRATE_PAGER_ELSEWHERE_H
#define FF_MIGRATE_PAGER_ELSEWHERE_H

#include "pager.h"

int ff_elsewhere_new(struct ff_pager *p, struct ff_error *err);
void ff_elsewhere_free(struct ff_pager *p);

/* Who discards what a pass has brought, as ff_dest_on_discard(); and do so */
void ff_elsewhere_on_discard(struct ff_pager *p,
                             int (*fn)(void *opaque, const struct iovec *part, unsigned n, struct ff_error *err),
                             void *opaque);
int ff_elsewhere_discard(struct ff_pager *p, const struct iovec *part, unsigned n, struct ff_error *err);

/* Who has an earlier state of that memory; without one NULL, and the link brings it */
void ff_elsewhere_on_pass(struct ff_pager *p, ff_pass_fn *fn, void *opaque);
ff_pass_fn *ff_elsewhere_pass(const struct ff_pager *p, void **opaque);

/* ff_pager_image_frozen() follows, once the state's keys are here. @uffd is taken, also on failure. -EINVAL: it does not watch a region */
int ff_elsewhere_adopt(struct ff_pager *p, int uffd, struct ff_error *err);
bool ff_elsewhere_is_adopted(const struct ff_pager *p);

#endif
