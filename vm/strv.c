/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * strv.c - lists of strings
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "strv.h"

void strv_take(struct strv *w, char *s)
{
    if (w->n + 2 > w->room) {
        w->room = 2 * w->room + 8;
        w->v = xrealloc(w->v, w->room * sizeof(*w->v));
    }
    w->v[w->n++] = s;
    w->v[w->n] = NULL;
}

void strv_add(struct strv *w, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    strv_take(w, xvprintf(fmt, ap));
    va_end(ap);
}

void strv_add_json(struct strv *w, const json_t *words)
{
    size_t i;
    json_t *word;

    json_array_foreach(words, i, word)
        if (json_is_string(word))
            strv_take(w, xstrdup(json_string_value(word)));
}

json_t *strv_json(char *const *v)
{
    json_t *words = json_array();

    for (; v && *v; v++)
        json_array_append_new(words, json_stringn_nocheck(*v, strlen(*v)));
    return words;
}

bool strv_have(const struct strv *w, const char *s)
{
    for (size_t i = 0; i < w->n; i++)
        if (!strcmp(w->v[i], s))
            return true;
    return false;
}

void strv_drop(struct strv *w, size_t i)
{
    free(w->v[i]);
    memmove(w->v + i, w->v + i + 1, (w->n-- - i) * sizeof(*w->v)); /* with the NULL */
}

void strv_free(struct strv *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->v[i]);
    free(w->v);
    *w = (struct strv){0};
}
