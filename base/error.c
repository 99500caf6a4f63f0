/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * error.c - an error that gathers context on its way up
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "printable.h"

/* It was cut: not within a character of UTF-8, since the text may go into JSON */
static void end_at_character(struct ff_error *err)
{
    size_t room = sizeof(err->text) - 1, at = room;

    while (at > room - 3 && (err->text[at - 1] & 0xc0) == 0x80)
        at--;
    unsigned first = (unsigned char)err->text[at - 1];
    size_t bytes = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (at - 1 + bytes > room)
        err->text[at - 1] = '\0';
}

int ff_error_set(struct ff_error *err, int code, const char *fmt, ...)
{
    if (!err)
        return -code;

    va_list ap;
    va_start(ap, fmt);
    err->code = code;
    int n = vsnprintf(err->text, sizeof(err->text), fmt, ap);
    va_end(ap);
    if (n >= (int)sizeof(err->text))
        end_at_character(err);
    ff_printable(err->text);
    return -code;
}

static void put_in_front(struct ff_error *err, const char *fmt, va_list ap)
{
    char old[sizeof(err->text)];
    memcpy(old, err->text, sizeof(old));

    int n = vsnprintf(err->text, sizeof(err->text), fmt, ap);
    if (n >= 0 && (size_t)n < sizeof(err->text))
        n += snprintf(err->text + n, sizeof(err->text) - (size_t)n, ": %s", old);
    if (n >= (int)sizeof(err->text))
        end_at_character(err);
    ff_printable(err->text);
}

int ff_error_context(struct ff_error *err, const char *fmt, ...)
{
    va_list ap;

    if (!err)
        return -EIO;
    va_start(ap, fmt);
    put_in_front(err, fmt, ap);
    va_end(ap);
    return -err->code;
}

int ff_error_pass(struct ff_error *err, int rc, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    if (err)
        put_in_front(err, fmt, ap);
    va_end(ap);
    return rc;
}
