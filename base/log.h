/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * log.h - messages for a person; the program that links the library decides where they go
 */
#ifndef FF_BASE_LOG_H
#define FF_BASE_LOG_H

#include <stdbool.h>

enum ff_log_level { FF_LOG_ERROR, FF_LOG_WARN, FF_LOG_INFO, FF_LOG_DEBUG };

typedef void ff_log_fn(enum ff_log_level level, const char *line);

/* @fn may be NULL: to stderr, which is the default, with errors and warnings */
void ff_log_set(ff_log_fn *fn, enum ff_log_level max_level);

/* Any thread; one line without a newline, "subsystem: what happened (values)" */
void ff_log(enum ff_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Something that a stranger can cause has happened once more, *@n times by now: shall a line say so?
 * At 1, 2, 4, 8, ...: a flood does not fill a disk */
static inline bool ff_log_due(unsigned long *n)
{
    ++*n;
    return !(*n & (*n - 1));
}

#endif
