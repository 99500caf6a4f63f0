/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * soak_moves.h - what one round of soak_moves is to do, drawn from a seed and its number
 */
#ifndef FF_TESTS_SOAK_MOVES_H
#define FF_TESTS_SOAK_MOVES_H

#include <stdint.h>

#include "loop.h"

enum kind { TOGETHER, DEST_APART, SOURCE_APART, KINDS };

#define ROUND_FAULTS 4u

struct round {
    uint64_t number, state;
    enum kind kind;
    bool fallback, keyed, precopy, lost_contact; /* the last: taken back from one that lives */
    enum memory memory;
    unsigned n_regions, touchers;
    uint64_t cells[3];
    char options[400];
    unsigned fault[ROUND_FAULTS], n_faults; /* of round_faults[] */
    char faults[400], deadly[80];           /* of both sides; of the one that is to die */
    unsigned breaks;
    bool breaks_early;         /* not from GO on */
    enum stage cancel;         /* before this one; 0: never */
    unsigned kill_ms, stop_ms; /* from its start; 0: not */
};

/* It strikes at the Nth time, drawn up to @max, and up to @more times */
struct round_fault {
    const char *what;
    unsigned max, more;
};
extern const struct round_fault round_faults[];
extern const unsigned round_faults_n;

/* A number below @n */
unsigned draw(struct round *r, unsigned n);

/* @folder has the fence, the record, and the key */
void round_draw(struct round *r, uint64_t seed, uint64_t number, const char *key_file);

/* In one line */
void round_print(const struct round *r);

#endif
