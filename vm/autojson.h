/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * autojson.h - JSON values that are released at the end of a scope, texts that are never NULL
 */
#ifndef FF_VM_AUTOJSON_H
#define FF_VM_AUTOJSON_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "printable.h"

static inline void json_auto_free(json_t **j)
{
    json_decref(*j);
}
#define FF_AUTO_JSON __attribute__((cleanup(json_auto_free)))

static inline const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

/* What others have written, as they like: what neither JSON nor a terminal should get becomes '?'.
 * @s NULL: "" */
static inline json_t *json_lossy(const char *s)
{
    char *copy = s ? strdup(s) : NULL;
    json_t *o = json_string(copy ? ff_printable(copy) : "");

    free(copy);
    return o;
}

/* The same for each text within @o, which others have written; returns @o */
static inline json_t *json_printable(json_t *o)
{
    char *copy = json_is_string(o) ? strdup(json_string_value(o)) : NULL;
    const char *key;
    json_t *v;
    size_t i;

    if (copy)
        json_string_set(o, ff_printable(copy));
    free(copy);
    json_array_foreach(o, i, v)
        json_printable(v);
    json_object_foreach(o, key, v)
        json_printable(v);
    return o;
}

/* The first of @list whose @key is @value; NULL: none */
static inline const json_t *json_find(const json_t *list, const char *key, const char *value)
{
    size_t i;
    json_t *o;

    json_array_foreach(list, i, o) {
        const char *s = json_string_value(json_object_get(o, key));
        if (s && !strcmp(s, value))
            return o;
    }
    return NULL;
}

#endif
