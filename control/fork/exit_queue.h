/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * exit_queue.h - which children of a guest's forks have ended, and what `join` says about them
 */
#ifndef FF_CONTROL_FORK_EXIT_QUEUE_H
#define FF_CONTROL_FORK_EXIT_QUEUE_H

#include <stdbool.h>
#include <stddef.h>

/* Forks that nobody has joined: then the oldest that is over is forgotten, or none is begun */
#define EXIT_QUEUE_MAX 1024
#define EXIT_QUEUE_NO_CODE 255 /* of a child that ended without a word */

struct exit_queue_end {
    unsigned number;
    int code;
};

struct exit_queue_fork {
    unsigned fork, count, n; /* ends known */
    struct exit_queue_end *ends; /* as they came */
};

/* {0}: no forks */
struct exit_queue {
    struct exit_queue_fork *v; /* the oldest first */
    size_t n;
    bool asked, told;    /* an answer is given; all of it was */
    char *first;         /* line of it, not yet said */
    size_t at_fork;      /* what is next in it */
    unsigned at_end;
};

/* exit_queue_room() makes room; false: EXIT_QUEUE_MAX forks have children still. @fork: a number of
 * its own, for which there is room */
bool exit_queue_room(struct exit_queue *j);
unsigned exit_queue_alive(
    const struct exit_queue *j); /* children of all forks that have not ended */
void exit_queue_add(struct exit_queue *j, unsigned fork, unsigned count);

/* A child has ended: twice, or of nobody's fork, is no news. exit_queue_over(): all of them have */
void exit_queue_ended(struct exit_queue *j, unsigned fork, unsigned number, int code);
void exit_queue_over(struct exit_queue *j, unsigned fork);

/**
 * exit_queue_ask()    - the guest asks; the answer begins anew. @word: with what it is to begin
 * exit_queue_next()   - the next line of the answer, to be freed; NULL: none, or none yet
 * exit_queue_cancel() - nobody listens to the answer any more: everything is there for the next one
 * exit_queue_acknowledged()  - the guest has all of it: those forks are forgotten. Before that: no
 *                            effect
 *
 * Forks come one after the other, their children as they end.
 */
void exit_queue_ask(struct exit_queue *j, const char *word);
char *exit_queue_next(struct exit_queue *j);
void exit_queue_cancel(struct exit_queue *j);
void exit_queue_acknowledged(struct exit_queue *j);
void exit_queue_free(struct exit_queue *j);

#endif
