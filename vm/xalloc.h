/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * xalloc.h - memory for programs, which end without it
 */
#ifndef FF_VM_XALLOC_H
#define FF_VM_XALLOC_H

#include <stdarg.h>
#include <stddef.h>

#include "cleanup.h"

void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t size);
char *xstrdup(const char *s);
char *xprintf(const char *fmt, ...) FF_PRINTF(1, 2); /* asprintf() */
char *xvprintf(const char *fmt, va_list ap);

#endif
