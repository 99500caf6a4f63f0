/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * autojson.h - JSON values that are released at the end of a scope, texts that are never NULL
 */
#ifndef FF_VM_AUTOJSON_H
#define FF_VM_AUTOJSON_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

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

/* What others have written, as they like: what JSON does not take becomes '?'. @s NULL: "" */
static inline json_t *json_lossy(const char *s)
{
    json_t *o = json_string(s ? s : "");
    char *copy = o ? NULL : strdup(s);

    for (char *c = copy; c && *c; c++)
        if (*c & 0x80)
            *c = '?';
    if (copy)
        o = json_string(copy);
    free(copy);
    return o ? o : json_string("");
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
