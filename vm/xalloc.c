/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * xalloc.c - memory for programs, which end without it
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xalloc.h"

static void *have(void *p)
{
    if (!p) {
        fputs("farfork: no memory\n", stderr);
        _Exit(1);
    }
    return p;
}

void *xcalloc(size_t n, size_t size)
{
    return have(calloc(n ? n : 1, size));
}

void *xrealloc(void *p, size_t size)
{
    return have(realloc(p, size));
}

char *xstrdup(const char *s)
{
    return have(strdup(s));
}

char *xvprintf(const char *fmt, va_list ap)
{
    char *s = NULL;

    return have(vasprintf(&s, fmt, ap) < 0 ? NULL : s);
}

char *xprintf(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    char *s = xvprintf(fmt, ap);
    va_end(ap);
    return s;
}
