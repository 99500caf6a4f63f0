/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * fault_around.h - the fault thread's: the pages behind one that somebody waits for come with it
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      a guest that touches all of its memory faster than it comes in the background would wait for each page by
 *              itself: 16 round trips, requests and wake-ups for 64 KiB.
 * Picture      fault -> READ of its page, at once; then, if nobody else waits: one READ of the pages behind it that nobody has,
 *              up to FF_AROUND_BYTES with it. They are claimed as faults claim theirs, so who touches one waits for it.
 * Limits       a READ that was sent before a fault's comes first. So not while other faults are to be sent, FF_AROUNDS at once
 *              at most, and not for a while when faults beside one take half as long again as others: it is measured.
 *              Not without prefill, nor with a budget: there somebody counts what comes unasked.
 * Failure      the link breaks: what was under way is wanted page by page, as if it had been touched. There is no memory: the
 *              bytes are kept until there is, as a fault's.
 * Threads      the fault thread's alone.
 * Sources      do_fault_around() in mm/memory.c has the name and the 64 KiB
 */
#ifndef FF_MIGRATE_FAULT_AROUND_H
#define FF_MIGRATE_FAULT_AROUND_H

#include "pager.h"

void ff_around_post(struct ff_pager *p); /* what was touched last is on its way: what is behind it, too */

/* A READ with this id is one of these, and has come */
bool ff_around_is(const struct ff_pager *p, uint64_t id);
void ff_around_arrived(struct ff_pager *p, uint64_t id);

void ff_around_retry(struct ff_pager *p); /* perhaps there is memory by now */
void ff_around_break(struct ff_pager *p); /* the link is broken, and brings nothing any more */

/* A fault's page took so long from its READ to its bytes, @beside such a READ or alone */
void ff_around_measure(struct ff_pager *p, uint64_t took_ns, bool beside);

#endif
