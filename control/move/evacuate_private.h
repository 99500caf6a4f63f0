/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * evacuate_private.h - what the files of evacuate share
 */
#ifndef FF_CONTROL_MOVE_EVACUATE_PRIVATE_H
#define FF_CONTROL_MOVE_EVACUATE_PRIVATE_H

#include <jansson.h>

#include "evacuate.h"
#include "spawn.h"

enum guest_state { WAITS, MOVES, GONE, ENDED, STAYS, UNKNOWN };

struct guest {
    pid_t pid;
    uint64_t start; /* process_start_time() */
    char *name, *qmp; /* qmp NULL: none answers */
    uint64_t bytes;
    enum guest_state state;
    size_t host, tries; /* where it goes, or is; how many were tried */
    bool *tried;        /* of each host */
    struct spawn run;
    bool interrupted; /* its move was told to end, once */
    unsigned long turns; /* context switches of its move's process, and when they were others */
    uint64_t turned_ms;
    char *said;   /* all that its move printed */
    char *reason; /* why it is not there */
    json_t *result;
};

struct place {
    const struct node *node;
    uint64_t available;
    unsigned guests;
    char *why_not; /* it gets none */
    char *identity;
};

struct evacuation {
    const struct evacuate_options *o;
    struct guest *guest;
    size_t n_guests, n_of_jobs; /* of jobs: left out */
    json_t *others;             /* processes of other users: left out */
    size_t *named;              /* how many guests each of o->guests names */
    struct place *place;
    size_t n_places;
    char *agent, *identity;
    int signals;
    bool stops;
};

/* evacuate_find.c: fill e->guest, e->named and e->others, the largest guest first */
void evacuate_find(struct evacuation *e);

#endif
