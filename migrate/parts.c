/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * parts.c - a list of parts in ascending order
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "parts.h"

int ff_parts_add(struct ff_parts *p, const struct ff_part *part, struct ff_error *err)
{
    unsigned i = ff_parts_from(p, part->first);

    if (i < p->n && p->part[i].first < part->end)
        return ff_error_set(err, EPROTO,
                            "parts: pages %llu to %llu, and %llu to %llu: they overlap",
                            (unsigned long long)part->first, (unsigned long long)part->end,
                            (unsigned long long)p->part[i].first,
                            (unsigned long long)p->part[i].end);
    struct ff_part *more = realloc(p->part, (p->n + 1) * sizeof(*more));
    if (!more)
        return ff_error_set(err, ENOMEM, "parts: out of memory");
    memmove(more + i + 1, more + i, (p->n - i) * sizeof(*more));
    more[i] = *part;
    p->part = more;
    p->n++;
    return 0;
}

void ff_parts_free(struct ff_parts *p)
{
    free(p->part);
    *p = (struct ff_parts){.part = NULL};
}
