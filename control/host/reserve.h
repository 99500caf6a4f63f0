/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * reserve.h - memory of this host that is promised to forks which are about to come
 */
#ifndef FF_CONTROL_HOST_RESERVE_H
#define FF_CONTROL_HOST_RESERVE_H

#include <stdint.h>

#include "error.h"

#define RESERVE_S 60 /* so long without an agent of that fork */
#define RESERVE_UNSEEN_S 86400 /* ... whose agent cannot be seen: its container may be gone, or is filled by then */

/**
 * reserve_left() - what is promised and not taken yet, of all forks of this user
 *
 * Cost:    for each that runs, a look at the memory of its processes: some milliseconds a GiB
 */
uint64_t reserve_left(const char *base);

/**
 * reserve_take() - promise @bytes to fork @id on this host, as its run directory names it: @node
 * @bytes:     0: what was promised is not wanted any more
 * @available: memory that nobody uses now
 * @others:    of it that other forks were promised
 *
 * It holds for RESERVE_S, and then as long as the agent of that fork runs here, which drops it; where that cannot be
 * seen, for RESERVE_UNSEEN_S. A second call for the
 * same one replaces the first.
 * Return: 0; -ENOMEM: less is left; -errno, with the reason
 */
int reserve_take(const char *base, const char *id, const char *node, uint64_t bytes, uint64_t available,
                 uint64_t *others, struct ff_error *why);

/* The fork leaves this host; without the lock: nobody else writes that one now */
void reserve_drop(const char *base, const char *id, const char *node);

#endif
