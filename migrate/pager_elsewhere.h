/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pager_elsewhere.h - destination: the memory is another process's, which watches it itself
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the pager of a process beside a QEMU. That process, the owner, has opened and registered
 *              the userfaultfd, and keeps it. We have a duplicate of its descriptor, and install
 *              through it: COPY and ZEROPAGE work on the memory of whom it belongs to.
 *
 * Picture      owner's thread touches a page
 *                |  event: whoever reads it first
 *                +--> fault thread ------------------------> as any other fault
 *                +--> owner's own thread --> its helper --> ff_elsewhere_ask() --> ring
 *                                                           fault thread takes it: the same
 *
 * Threads      ask(): any; serve(), other(): the fault thread; adopt(), end(): who starts and stops
 *              it. lock guards the ring and ended.
 * Invariants   1. Every request is answered: MISSING -> fetched, and its install wakes; INFLIGHT: the
 *                 same; HOLE -> zeros; PRESENT, POISONED -> woken. When the fault thread has ended
 *                 and all is here, who asks installs zeros itself: only holes can be missing then.
 *              2. Nothing is installed before adopt(): image_frozen, without which nobody but the pass installs,
 *                 is set there, or after it; and there is a pass only after it.
 *              3. A page that is there counts as installed: the owner may put pages there that came
 *                 to it by its own stream. It holds what the source's page holds, since the image is
 *                 frozen.
 *              4. Once every page has come, or is a hole, the owner may unregister while faults on
 *                 holes, or requests for them, are still on their way here: what the kernel says
 *                 then, ENOENT or ESRCH, ends no move. Before that it does.
 *              5. We never unregister. Closing our duplicate wakes nobody: the owner has its own. So
 *                 what is missing when this process ends shows no zeros, and waits.
 * Failure      the owner has ended: an install says ESRCH, and the move fails.
 * Limits       RING requests that were not taken; one more waits.
 */
#ifndef FF_MIGRATE_PAGER_ELSEWHERE_H
#define FF_MIGRATE_PAGER_ELSEWHERE_H

#include "pager.h"

int ff_elsewhere_new(struct ff_pager *p, struct ff_error *err);
void ff_elsewhere_free(struct ff_pager *p);

/* The events of memory that is no region's go to @fn, which the fault thread calls with the address;
 * NULL: who waits is woken, asks again, and somebody else may read it */
void ff_elsewhere_on_other(struct ff_pager *p, void (*fn)(void *opaque, uint64_t addr),
                           void *opaque);

/* Who discards what a pass has brought, as ff_dest_on_discard(); and do so */
void ff_elsewhere_on_discard(struct ff_pager *p,
                             int (*fn)(void *opaque, const struct iovec *part, unsigned n, struct ff_error *err),
                             void *opaque);
int ff_elsewhere_discard(struct ff_pager *p, const struct iovec *part, unsigned n, struct ff_error *err);

/* ff_pager_image_frozen() follows, once the state's keys are here. @uffd is taken, also on failure. -EINVAL: it does not watch a region */
int ff_elsewhere_adopt(struct ff_pager *p, int uffd, struct ff_error *err);
bool ff_elsewhere_is_adopted(const struct ff_pager *p);

/* Before adopt(): the owner has got these pages by its own stream, or has discarded them. -EINVAL: no
 * such pages */
int ff_elsewhere_received(struct ff_pager *p, unsigned region, uint64_t offset, uint64_t len_bytes,
                          bool discarded, struct ff_error *err);

/* -EINVAL: no such page, or before adopt(); -ECANCELED: nobody will bring it */
int ff_elsewhere_ask(struct ff_pager *p, unsigned region, uint64_t offset, struct ff_error *err);

/* --- for fault.c and pager.c; none does anything where the memory is our own --- */

void ff_elsewhere_serve(struct ff_pager *p);

/* There is something to serve, and room for it: nothing else may come that wakes the fault thread */
bool ff_elsewhere_is_due(const struct ff_pager *p);

void ff_elsewhere_cancel(struct ff_pager *p); /* nobody waits in ask() any more */

/* 0: it was handed on; -EFAULT: @addr is nobody's */
int ff_elsewhere_other(struct ff_pager *p, uint64_t addr, struct ff_error *err);
void ff_elsewhere_end(struct ff_pager *p); /* the fault thread has ended */

#endif
