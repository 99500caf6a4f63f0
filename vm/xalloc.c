/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * xalloc.c - memory, lists of words and reasons, for the programs
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

char *xstrdup(const char *s)
{
    return have(strdup(s));
}

static char *xvprintf(const char *fmt, va_list ap)
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

int refuse(struct why *w, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    if (w)
        vsnprintf(w->text, sizeof(w->text), fmt, ap);
    va_end(ap);
    return -code;
}

void words_take(struct words *w, char *s)
{
    if (w->n + 2 > w->room) {
        w->room = 2 * w->room + 8;
        w->v = have(realloc(w->v, w->room * sizeof(*w->v)));
    }
    w->v[w->n++] = s;
    w->v[w->n] = NULL;
}

void words_add(struct words *w, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    words_take(w, xvprintf(fmt, ap));
    va_end(ap);
}

bool words_have(const struct words *w, const char *s)
{
    for (size_t i = 0; i < w->n; i++)
        if (!strcmp(w->v[i], s))
            return true;
    return false;
}

void words_free(struct words *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->v[i]);
    free(w->v);
    *w = (struct words){0};
}

int output_code(const char *program, int code, int failed)
{
    if (!fflush(stdout) && !ferror(stdout))
        return code;
    fprintf(stderr, "%s: write the output: not all of it could be written (exit code %d else)\n",
            program, code);
    clearerr(stdout);
    return code ? code : failed;
}

double now_exact_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

uint64_t now_ms(void)
{
    return (uint64_t)now_exact_ms();
}

void free_text(char **p)
{
    free(*p);
}
