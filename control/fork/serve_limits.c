/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * serve_limits.c - how much a guest that forks itself may take of its hosts
 */
#include <stddef.h>

#include "serve_limits.h"

#define MINUTE_MS 60000

const char *serve_limits_take(struct serve_limits *l, unsigned alive, unsigned want,
                              uint64_t now_ms)
{
    uint64_t *slot = &l->begun_ms[l->n % l->forks];

    if (alive > l->children || want > l->children - alive)
        return "too many children are alive: wait until some have ended";
    if (l->n >= l->forks && now_ms - *slot < MINUTE_MS)
        return "too many forks within a minute: try again later";
    *slot = now_ms;
    l->n++;
    return NULL;
}
