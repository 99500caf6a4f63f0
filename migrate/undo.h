/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * undo.h - destination: memory that is kept is as it was, when its guest does not return after all
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      who loads a guest's devices writes to its memory before GO. Until then that memory is the
 *              image of a guest that runs elsewhere (dest_return.c).
 *
 * Picture      ff_dest_start()   all that is there is protected
 *              a write           the page is copied, then let go of: the writer goes on
 *              a hole is filled  it is noted: it was zeros
 *              GO                nobody needs that: a thread of its own lets go of all, piece by piece;
 *                                who writes meanwhile is let go of at once
 *              no GO             what was copied is put back, what was filled is emptied
 *
 * States       of a page, by its claim. HOLE: it is as it was, or was copied. MISSING, INFLIGHT, PRESENT:
 *              it was discarded and the other side has it, or it was filled, and is noted.
 * Threads      the fault thread copies; keep_lock guards against discards, and GO. When the attempt is
 *              given up the fault thread stays: who loads may not know yet, and what he writes is
 *              copied as before. roll_back(): the caller's, when that thread has ended and nobody writes.
 * Failure      no memory for a copy: the return fails, and the writer waits until there is some: it is woken
 *              each AGAIN_MS to ask again, and the fault thread goes on with others meanwhile.
 * Limits       a copy of each page that is written, in pieces of SLAB pages. What writes by another mapping,
 *              to the file, or by a device that has memory pinned is not seen.
 */
#ifndef FF_MIGRATE_UNDO_H
#define FF_MIGRATE_UNDO_H

#include <pthread.h>

#include "bitmap.h"
#include "pager.h"

struct ff_undo_slab;

struct ff_undo_region {
    uint64_t *copied, *zeros; /* a bit a page */
};

struct ff_undo {
    struct ff_undo_region region[FF_WIRE_REGIONS_MAX];
    struct ff_undo_slab *slab; /* the newest first */
    _Atomic bool over;         /* GO came */
    _Atomic bool ends;         /* the fault thread does not stay */
    bool told;                 /* by that thread: who writes has to wait */
    uint64_t again_ns;         /* the fault thread's: then who got no memory asks again; 0: nobody is to */
    pthread_t thread;          /* it lets go of all */
    bool thread_up;
};

/* What is kept is guarded; before ff_pager_start(). It goes with ff_undo_free() */
int ff_undo_new(struct ff_pager *p, struct ff_error *err);
int ff_undo_protect(struct ff_pager *p, struct ff_error *err); /* once it is watched */

/* Fault thread: somebody is to write to @page, which is there */
void ff_undo_fault(struct ff_pager *p, struct ff_pager_region *r, uint64_t page);

/* With keep_lock, if @r is kept: @page is about to be filled, and nothing lies there */
static inline void ff_undo_filled(struct ff_pager *p, const struct ff_pager_region *r, uint64_t page)
{
    if (!atomic_load(&p->undo->over))
        ff_bitmap_set(p->undo->region[r - p->region].zeros, page);
}

/* Fault thread: there was no memory for what somebody asked. again(): if it is time, all that wait ask again: 0; or
 * so many milliseconds until then, at most; -1: nobody is to */
void ff_undo_later(struct ff_pager *p);
int ff_undo_again(struct ff_pager *p);

/* Fault thread, at its end: the attempt was given up */
void ff_undo_stay(struct ff_pager *p);

/* GO came: memory is the guest's */
void ff_undo_forget(struct ff_pager *p);

void ff_undo_end(struct ff_pager *p); /* no thread of it is up from here on, or soon: the fault thread's */

/* The pager has finished, without GO: memory is what it was. Again: nothing */
void ff_undo_roll_back(struct ff_pager *p);
void ff_undo_free(struct ff_pager *p);

#endif
