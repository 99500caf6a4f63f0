/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * children.h - destination: faults of other processes that map the pager's files
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a child maps the files behind the pager's regions privately, watches its mapping
 *              for missing pages by a userfaultfd of its own, and hands that over. Its faults
 *              are fetched by the fault engine like any other, once for all children.
 *
 * Picture      child                        fault thread                     prefill thread
 *              touches a page:
 *              not in the file --event-->   (1) PRESENT? wake, done
 *              (asleep)                     (2) note that it waits           (a) install
 *                                           (3) claim: MISSING: READ         (b) claim PRESENT
 *                                               INFLIGHT: its owner installs (c) does anybody
 *                                               PRESENT: as (1)                  wait? poke: (5)
 *                                               ...
 *                                           (4) installed: PRESENT
 *              (goes on) <--- wake -------- (5) who waits for that page; after (c) for any
 *                                               that is PRESENT by now?
 *
 *              A child's later fault on a page that is in the file raises no event at all.
 *
 * Threads      fault thread: serve() and check(); once the pager is finished and every page is
 *              present, serve() by one other thread. add() and remove(): one thread, at any
 *              time; lock guards children and their notes against it. The fault thread alone
 *              wakes, so no two threads ever look for the same note.
 * Invariants   1. No wake is missed. (2) comes before (3) and (b) before (c), and all four are
 *                 sequentially consistent, so either (3) sees PRESENT or (c) sees the note.
 *                 A child that looked into the file before (a) and went to sleep after (5)
 *                 has its event read after (b): (1).
 *              2. Every event is answered, also of pages that are PRESENT, also while the link
 *                 is broken, and until the child has unregistered.
 *              3. A POISONED page is a hole of the file, which says nothing: a child is poisoned
 *                 there by its own userfaultfd, when it touches the page, and before it
 *                 unregisters. One that comes later would watch nothing, and is refused.
 *              4. A child's descriptor is closed here only when the child is gone or was told
 *                 to end; it has a duplicate, so closing it wakes nobody.
 * Failure      a descriptor that fails, an address outside the child's regions: the child is
 *              dropped: its connection is shut down, and nothing of others is touched.
 * Limits       NOTES threads that wait at once; more stay in the kernel's queues.
 */
#ifndef FF_MIGRATE_CHILDREN_H
#define FF_MIGRATE_CHILDREN_H

#include "pager.h"

struct ff_pager_child;

struct ff_children_stats {
    uint64_t faults, waited, late;
};

int ff_children_new(struct ff_pager *p, struct ff_error *err);
void ff_children_free(struct ff_pager *p);

/**
 * ff_children_add() - serve the faults of a child
 * @uffd:   its userfaultfd; taken over, also on failure
 * @host:   where each of the pager's regions is in its address space
 * @hangup: a socket, borrowed, that is shut down when the child is dropped
 */
int ff_children_add(struct ff_pager *p, int uffd, const uint64_t *host, int hangup,
                    struct ff_pager_child **out, struct ff_error *err);
void ff_children_remove(struct ff_pager *p, struct ff_pager_child *child);

/* To be polled for serve(); -1: nothing may be read now, or there are no children */
int ff_children_fd(const struct ff_pager *p);
void ff_children_serve(struct ff_pager *p);

/* Every page is here, and @child is about to watch no longer: what is POISONED becomes so in its
 * memory. Any thread */
void ff_children_poison(struct ff_pager *p, struct ff_pager_child *child);

/* Claim what somebody waits for and nobody has claimed: the link is back. What finds no room prefill
 * brings */
void ff_children_want(struct ff_pager *p);

/* Fault thread: wake those whose page is there by now: by another thread; by this one, @page, just now */
void ff_children_check(struct ff_pager *p);
void ff_children_arrived(struct ff_pager *p, uint32_t region, uint64_t page);
void ff_children_stats(const struct ff_pager *p, struct ff_children_stats *out);

#endif
