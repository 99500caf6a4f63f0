/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * visits.h - a guest that goes, works elsewhere, and comes back: its memory, and the two moves
 */
#ifndef FF_TESTS_VISITS_H
#define FF_TESTS_VISITS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "farfork-return.h"
#include "loop.h"

#define PAGE 4096u
#define REGIONS 2
#define PAGES 2048u /* of each region */
#define WORDS (PAGES / 64)

/* One way: from memory of one side to the other's */
struct leg {
    struct ff_address *to, *at;
    struct ff_source *source;
    struct ff_dest *dest;
    pthread_t thread, stay;
    bool dirty, went;
    bool leaves; /* its source, before GO */
    int rc; /* the source's */
    int stay_rc; /* the destination's, of a guest that is to return */
    struct ff_error err;
};

extern const char *visit_options; /* more for visit_go() */
extern const char *visit_first;   /* likewise: what comes first; or NULL */
extern bool visit_budget;         /* more comes there than the guest touches */
extern struct area home[REGIONS], away[REGIONS];
extern uint64_t log_bits[REGIONS][WORDS]; /* since the first GO, as a hypervisor has it */
extern uint32_t version[REGIONS][PAGES];  /* what the guest's pages hold; 0: zeros */
extern bool seen[REGIONS][PAGES];         /* it touched the page elsewhere */

void visit_fill(uint8_t *page, uint32_t v);
bool visit_holds(const uint8_t *page, uint32_t v);

/* The two sides of a move, not connected yet; of the way back */
void visit_leg_new(struct leg *l, struct area *from, struct area *to, const char *options);
void visit_back(struct leg *back, const struct leg *out, const char *options);
void visit_leg_free(struct leg *l);

/* A new guest at home: most pages are written, some hold zeros, and some were never there. It goes, with
 * visit=on */
void visit_guest_new(enum memory kind);
void visit_go(struct leg *out, enum memory kind);

/* A thread for the stages of @l's source */
void *visit_source_main(void *leg);

/* Until the state is here; @empty: as its owner does it for a guest that comes for the first time */
int visit_receive(struct leg *l, struct area *to, bool empty);
void visit_let_run(struct leg *l);

/* The guest is away: one page in @each is touched, and every other one of these written */
void visit_work(unsigned each);

/* Of what it touched, or wrote */
uint64_t visit_bytes(bool written);
void visit_must_hold(struct area *a);

/* Who serves the guest has heard of all that it touched, and the move goes on, also when that is everything */
void visit_await_present(struct leg *out);

/* @back has GO: all comes, and nothing but what was written */
void visit_finish(struct leg *back, struct leg *out);

#endif
