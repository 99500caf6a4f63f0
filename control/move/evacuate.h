/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * evacuate.h - every guest of this host to others
 */
#ifndef FF_CONTROL_MOVE_EVACUATE_H
#define FF_CONTROL_MOVE_EVACUATE_H

#include "hostlist.h"
#include "strv.h"

/**
 * struct evacuate_options - which guests go where, and how
 * @guests: names or process numbers; none: all that this user may move
 * @more:   options of farfork move, for each move
 * @jobs:   moves at once
 */
struct evacuate_options {
    const struct strv *guests;
    const char *launcher, *agent, *rundir;
    char *const *more;
    size_t n_more;
    unsigned jobs, timeout_s;
    bool outside_jobs; /* no guests of batch jobs */
    bool dry_run, json, quiet;
};

/**
 * evacuate_host() - move guests to @to, the largest first, each to the host with most memory left
 *
 * A guest that is still here after a move that failed goes to the next host that has room for it. SIGINT
 * and SIGTERM go to the moves that are under way, and no more begin.
 *
 * Return: the exit code: 0 all of them are gone; 1 some are here; 2 usage; 3 of one it is not known where it is,
 * or it is incomplete or lost
 */
int evacuate_host(const struct evacuate_options *o, const struct hostlist *to);

#endif
