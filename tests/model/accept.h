/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * accept.h - is what two real sides said to each other, and how they ended, a run of the model?
 */
#ifndef FF_TESTS_MODEL_ACCEPT_H
#define FF_TESTS_MODEL_ACCEPT_H

#include <stdbool.h>
#include <stdint.h>

enum { ACCEPT_EVENTS = 64, ACCEPT_VIA = 4 };

/* What one side sent and read, in its own order: types of messages, without those that repeat, that
 * only some moves have, or that are advice (accept_watches()) */
struct accept_side {
    uint8_t type[ACCEPT_EVENTS];
    bool sent[ACCEPT_EVENTS];
    uint8_t n;
    bool failed; /* the last one was to be sent, and the link said that it could not */
    int rc;      /* how the side ended */
};

struct accept_run {
    struct accept_side source, dest;
    bool precopy, push;
    bool fallback;  /* fallback=go */
    bool returns;   /* the way home of a guest that visits; its first one */
    bool resumes;   /* each side waits for another link when one breaks after GO */
    bool went, ran; /* the source must not run its guest; the destination has read GO */
    const char *via[ACCEPT_VIA]; /* actions of the model that were taken for certain */
};

bool accept_watches(unsigned type);

/* True: there is such a run, perhaps with a break, a cancel or a refusal at some moment */
bool accept_is_run(const struct accept_run *r);

/* How many of the model's actions no accepted run was explained with, but for deaths, and for those
 * of @but that are so (NULL ends it): each is printed */
unsigned accept_print_missing(const char *const *but);

/* Messages that a side has shown; for a person */
void accept_print(const struct accept_run *r);

#endif
