/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * exit_queue.h - which children of a guest's forks have ended, and what `join` says about them
 */
#ifndef FF_CLI_JOINS_H
#define FF_CLI_JOINS_H

#include <stdbool.h>
#include <stddef.h>

/* Forks that nobody has joined: then the oldest that is over is forgotten, or none is begun */
#define JOINS_MAX 1024
#define JOINS_NO_CODE 255 /* of a child that ended without a word */

struct join_end {
    unsigned number;
    int code;
};

struct join_fork {
    unsigned fork, count, n; /* ends known */
    struct join_end *ends;   /* as they came */
};

/* {0}: no forks */
struct joins {
    struct join_fork *v; /* the oldest first */
    size_t n;
    bool asked, told;    /* an answer is given; all of it was */
    char *first;         /* line of it, not yet said */
    size_t at_fork;      /* what is next in it */
    unsigned at_end;
};

/* joins_room() makes room; false: JOINS_MAX forks have children still. @fork: a number of its own,
 * for which there is room */
bool joins_room(struct joins *j);
unsigned joins_alive(const struct joins *j); /* children of all forks that have not ended */
void joins_add(struct joins *j, unsigned fork, unsigned count);

/* A child has ended: twice, or of nobody's fork, is no news. joins_over(): all of them have */
void joins_ended(struct joins *j, unsigned fork, unsigned number, int code);
void joins_over(struct joins *j, unsigned fork);

/**
 * joins_ask()    - the guest asks; the answer begins anew. @word: with what it is to begin
 * joins_next()   - the next line of the answer, to be freed; NULL: none, or none yet
 * joins_cancel() - nobody listens to the answer any more: everything is there for the next one
 * joins_heard()  - the guest has all of it: those forks are forgotten. Before that: no effect
 *
 * Forks come one after the other, their children as they end.
 */
void joins_ask(struct joins *j, const char *word);
char *joins_next(struct joins *j);
void joins_cancel(struct joins *j);
void joins_heard(struct joins *j);
void joins_free(struct joins *j);

#endif
