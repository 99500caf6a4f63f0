/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * log.c - messages for a person
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "log.h"

static void log_stderr(enum ff_log_level level, const char *line)
{
    (void)level;
    fprintf(stderr, "farfork: %s\n", line);
}

static _Atomic(ff_log_fn *) log_fn = log_stderr;
static atomic_int log_max = FF_LOG_WARN;

void ff_log_set(ff_log_fn *fn, enum ff_log_level max_level)
{
    atomic_store(&log_fn, fn ? fn : log_stderr);
    atomic_store(&log_max, (int)max_level);
}

void ff_log(enum ff_log_level level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    if ((int)level > atomic_load_explicit(&log_max, memory_order_relaxed))
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    atomic_load(&log_fn)(level, line);
}
