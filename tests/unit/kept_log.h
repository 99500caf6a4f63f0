/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * kept_log.h - what the library logs, for a test to judge: how many lines, and the last one
 */
#ifndef FF_TESTS_KEPT_LOG_H
#define FF_TESTS_KEPT_LOG_H

#include <stdatomic.h>
#include <stdio.h>

#include "log.h"

static char last_log[1024];
static atomic_uint n_logs;

static inline void keep_log(enum ff_log_level level, const char *line)
{
    (void)level;
    snprintf(last_log, sizeof(last_log), "%s", line);
    atomic_fetch_add(&n_logs, 1);
}

static inline void keep_logs_from_now(enum ff_log_level most)
{
    atomic_store(&n_logs, 0);
    last_log[0] = '\0';
    ff_log_set(keep_log, most);
}

#endif
