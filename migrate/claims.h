/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * claims.h - who installs which page: MISSING -> INFLIGHT -> PRESENT, once
 */
/**
 * DOC: Theory of Operation
 *
 * States       MISSING   nobody has it. ff_claim_take() by anyone.
 *              INFLIGHT  exactly one thread owns it: the one whose take() returned true.
 *                        It alone installs the page, and it alone calls ff_claim_done().
 *                        A page whose read failed stays with its owner, but for
 *                        ff_claim_give_back() until ff_claims_seal(), and for ff_claim_leave().
 *              PRESENT   the guest can see it; once the claims are sealed, for ever
 *                        (discards are inhibited).
 *              HOLE      zeros, and nothing is installed: whoever touches it waits for the
 *                        fault thread, which takes it by ff_claim_touch() and installs it. When
 *                        memory is watched no longer it reads as zeros by itself.
 *              POISONED  as PRESENT, but the source cannot read it, and here nobody can either:
 *                        who touches it gets SIGBUS. Never before the image is frozen: what
 *                        is poisoned cannot be discarded (the kernel keeps its mark), and a
 *                        source that still runs may write it anew.
 *
 * Invariants   1. INFLIGHT -> HOLE -> INFLIGHT -> PRESENT is the way of a hole. No other move
 *                 exists, but two, until ff_claims_seal(): ff_claim_forget() takes a PRESENT
 *                 page or a HOLE back to MISSING, for its caller to discard, and
 *                 ff_claim_give_back() one that is INFLIGHT. That is how pages of a guest that
 *                 still ran go again (precopy=1); the guest does not run here by then. A wrong
 *                 move aborts: going on would mean two installs of one page, or none.
 *                 A third: ff_claim_leave(), INFLIGHT -> MISSING, by an agent's fault thread whose link
 *                 is away. It reads into slots of its own: what comes late is installed by nobody.
 *              2. here == number of PRESENT pages and HOLEs, when nobody changes one: a moment before
 *                 or after its claim changes. ff_claims_here() is what can be told meanwhile.
 * Threads      any. Who sees PRESENT sees the installed page. take(), done() and get() are
 *              sequentially consistent: who first says that it waits (in another variable)
 *              and then does not see PRESENT is seen by who calls done() and then looks for
 *              those that wait (children.c).
 * Limits       one byte a page: 1/4096 of guest RAM at 4 KiB.
 */
#ifndef FF_MIGRATE_CLAIMS_H
#define FF_MIGRATE_CLAIMS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum ff_claim { FF_CLAIM_MISSING, FF_CLAIM_INFLIGHT, FF_CLAIM_PRESENT, FF_CLAIM_HOLE,
                FF_CLAIM_POISONED };

struct ff_claims {
    _Atomic uint8_t *state;
    uint64_t n_pages;
    _Atomic int64_t here;
    _Atomic bool sealed;
};

int ff_claims_init(struct ff_claims *c, uint64_t n_pages);
void ff_claims_free(struct ff_claims *c);

bool ff_claim_take(struct ff_claims *c, uint64_t page);
void ff_claim_done(struct ff_claims *c, uint64_t page);

void ff_claim_poisoned(struct ff_claims *c, uint64_t page); /* instead of ff_claim_done() */

/* Instead of ff_claim_done(), until they are sealed: what was read is of no use. Who waits for the
 * page by then is to be woken, to ask for it again */
void ff_claim_give_back(struct ff_claims *c, uint64_t page);

/* Instead of ff_claim_done(): whoever can may bring it. Who waits for the page waits for that */
void ff_claim_leave(struct ff_claims *c, uint64_t page);

/* Instead of ff_claim_done(): nothing was installed. Who waits for the page by then is to be woken,
 * to touch it again */
void ff_claim_hole(struct ff_claims *c, uint64_t page, uint64_t n);

/* True: @page was a HOLE, and is the caller's to install */
bool ff_claim_touch(struct ff_claims *c, uint64_t page);

/* All pages are here from the start; before any other thread knows @c. ff_claims_holes(): or zeros, and
 * nothing is there: that is seen when somebody waits for one */
void ff_claims_present(struct ff_claims *c);
void ff_claims_holes(struct ff_claims *c);

/* True: @page was PRESENT or a HOLE and is MISSING now: the caller discards it. False:
 * there is nothing to discard: it is MISSING, or INFLIGHT: its owner has not read it yet, since the
 * image is not frozen */
bool ff_claim_forget(struct ff_claims *c, uint64_t page);
void ff_claims_seal(struct ff_claims *c); /* from here on ff_claim_forget() aborts */
enum ff_claim ff_claim_get(const struct ff_claims *c, uint64_t page);
uint64_t ff_claims_here(const struct ff_claims *c); /* so many pages can be read */
const char *ff_claim_name(enum ff_claim claim);

#endif
