/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * load.h - how busy this host's CPUs are
 */
#ifndef FF_MIGRATE_LOAD_H
#define FF_MIGRATE_LOAD_H

#include <stdint.h>

/* Threads that ran or wanted to, a CPU, on average over the last minute: 1000 is one. 0 when
 * it cannot be found out. */
uint32_t ff_load_permille(void);

#endif
