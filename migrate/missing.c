/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * missing.c - destination: which pages are not here, in words
 */
#include <stdio.h>

#include "missing.h"

#define NAME_MOST 60 /* of a region's name: a message has room for all of it */

static bool not_come(const struct ff_pager_region *r, uint64_t page)
{
    enum ff_claim claim = ff_claim_get(&r->claims, page);

    return claim == FF_CLAIM_MISSING || claim == FF_CLAIM_INFLIGHT;
}

/* The next run of pages that are not here, from @from on: [*first, *end). False: there is none */
static bool next_run(const struct ff_pager_region *r, uint64_t from, uint64_t *first, uint64_t *end)
{
    while (from < r->claims.n_pages && !not_come(r, from))
        from++;
    *first = from;
    while (from < r->claims.n_pages && not_come(r, from))
        from++;
    *end = from;
    return *first < *end;
}

void ff_missing_text(const struct ff_pager *p, char text[FF_MISSING_TEXT])
{
    uint64_t n_pages = 0, bytes = 0, n_runs = 0, first, end;
    char runs[FF_MISSING_RUNS * (NAME_MOST + 60)] = "";
    size_t len = 0;

    for (unsigned i = 0; i < p->n_regions; i++) {
        const struct ff_pager_region *r = &p->region[i];
        uint64_t psize = r->range.psize;
        for (uint64_t from = 0; next_run(r, from, &first, &end); from = end) {
            n_pages += end - first;
            bytes += (end - first) * psize;
            if (n_runs++ < FF_MISSING_RUNS)
                len += (size_t)snprintf(runs + len, sizeof(runs) - len, "%s %.*s 0x%llx-0x%llx",
                                        len ? "," : ":", NAME_MOST, r->name,
                                        (unsigned long long)(first * psize),
                                        (unsigned long long)(end * psize - 1));
        }
    }
    len = (size_t)snprintf(text, FF_MISSING_TEXT, "%llu pages (%llu KiB)%s",
                           (unsigned long long)n_pages, (unsigned long long)bytes >> 10, runs);
    if (n_runs > FF_MISSING_RUNS)
        snprintf(text + len, FF_MISSING_TEXT - len, " and %llu ranges more",
                 (unsigned long long)(n_runs - FF_MISSING_RUNS));
}
