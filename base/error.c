/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * error.c - an error that gathers context on its way up
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "error.h"

int ff_error_set(struct ff_error *err, int code, const char *fmt, ...)
{
    if (!err)
        return -code;

    va_list ap;
    va_start(ap, fmt);
    err->code = code;
    vsnprintf(err->text, sizeof(err->text), fmt, ap);
    va_end(ap);
    return -code;
}

int ff_error_context(struct ff_error *err, const char *fmt, ...)
{
    if (!err)
        return -EIO;

    char old[sizeof(err->text)];
    memcpy(old, err->text, sizeof(old));

    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->text, sizeof(err->text), fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof(err->text))
        snprintf(err->text + n, sizeof(err->text) - (size_t)n, ": %s", old);
    return -err->code;
}
