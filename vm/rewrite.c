/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * rewrite.c - what the rewriting of options has in common
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      the paths and notes of a child. A path keeps its name and moves to the child's run
 *              directory, with the child's number in front; no two are the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rewrite.h"

char *rewrite_path(struct rewrite *r, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t own = r->own ? strlen(r->own) : 0;

    if (own && !strncmp(path, r->own, own))
        name = path + own;
    FF_AUTO_FREE char *safe = xprintf("%.40s", *name ? name : "file");
    char *out = NULL;

    for (char *c = safe; *c; c++)
        if (*c == ',')
            *c = '_';
    for (unsigned k = 0; !out || strv_have(&r->paths, out); k++) {
        free(out);
        out = k ? xprintf("%s/%u.%s.%u", r->s->rundir, r->s->number, safe, k)
                : xprintf("%s/%u.%s", r->s->rundir, r->s->number, safe);
    }
    strv_add(&r->paths, "%s", out);
    return out;
}

void rewrite_note(struct rewrite *r, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (!strv_have(r->notes, text))
        strv_add(r->notes, "%s", text);
}

const char *rewrite_where(const struct rewrite *r)
{
    return r->s->incoming ? "there" : "in children";
}

void rewrite_emit(struct rewrite *r, const char *option, const char *value)
{
    strv_add(r->out, "-%s", option);
    if (value)
        strv_add(r->out, "%s", value);
}
