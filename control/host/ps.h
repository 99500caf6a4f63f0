/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * ps.h - forks with children on this host
 */
#ifndef FF_CONTROL_HOST_PS_H
#define FF_CONTROL_HOST_PS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define EXIT_ALL 0
#define EXIT_SOME 1
#define EXIT_NONE 3

#define KILL_LIMIT_MS 10000

/* Their state files, with agent_alive, rundir, and children that have ended as such */
json_t *ps_forks(const char *base);
void ps_print(const json_t *forks);

/**
 * ps_end() - look at a fork here, and end it if so, until nothing of it is alive
 * @agent: the one that looks after it; 0: whoever does
 * @limit_ms: 0: no limit
 * @lonely: leave off when standard input ends
 *
 * Return: EXIT_ALL; EXIT_SOME: not all of it has ended, and stderr says so; EXIT_NONE: no such
 * fork.
 */
int ps_end(const char *base, const char *id, int agent, bool kill, uint64_t limit_ms,
              bool lonely);

#endif
