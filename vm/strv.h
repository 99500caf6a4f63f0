/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * strv.h - lists of strings
 */
#ifndef FF_VM_STRV_H
#define FF_VM_STRV_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "cleanup.h"
#include "xalloc.h"

/* NULL at its end; {0} is an empty one */
struct strv {
    char **v;
    size_t n, room;
};

void strv_take(struct strv *w, char *s); /* owns @s from now on */
void strv_add(struct strv *w, const char *fmt, ...) FF_PRINTF(2, 3);
void strv_add_json(struct strv *w, const json_t *words);
json_t *strv_json(char *const *v); /* of a list that ends with NULL */
void strv_drop(struct strv *w, size_t i);
bool strv_have(const struct strv *w, const char *s);
void strv_free(struct strv *w);

#endif
