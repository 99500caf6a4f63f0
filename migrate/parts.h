/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * parts.h - destination: which pages of a region the source cannot read or has not registered, and the keys of those
 *           around them
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      an adapter cannot register a page whose memory has failed. So the source registers
 *              the parts of that segment before and behind it, and names them in PARTS. Over tcp
 *              there are none: a reply tells. What the guest has touched shortly before its pause comes in
 *              parts, too: the others are zeros, and registering them would populate them (segments.h).
 * Threads      written where region[].rkey is (pager_resume.c, dest_state.c).
 */
#ifndef FF_MIGRATE_PARTS_H
#define FF_MIGRATE_PARTS_H

#include <stddef.h>
#include <stdint.h>

struct ff_error;

/* Pages [first, end); @rkey 0: the source cannot read them; FF_WIRE_PART_ZEROS: they are zeros */
struct ff_part {
    uint64_t first, end;
    uint32_t rkey;
};

struct ff_parts {
    struct ff_part *part; /* ascending */
    unsigned n;
};

/* -EPROTO: it overlaps another one; -ENOMEM */
int ff_parts_add(struct ff_parts *p, const struct ff_part *part, struct ff_error *err);
void ff_parts_free(struct ff_parts *p);

/* The first part that does not end before @page; @p->n: there is none */
static inline unsigned ff_parts_from(const struct ff_parts *p, uint64_t page)
{
    unsigned low = 0, high = p->n;

    while (low < high) {
        unsigned mid = (low + high) / 2;
        if (p->part[mid].end <= page)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* NULL: @page is in none */
static inline const struct ff_part *ff_parts_find(const struct ff_parts *p, uint64_t page)
{
    unsigned i = p->n ? ff_parts_from(p, page) : 0;

    return i < p->n && p->part[i].first <= page ? &p->part[i] : NULL;
}

#endif
