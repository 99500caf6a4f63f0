/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * runs.h - segments of memory that are sent or received one after the other
 */
#ifndef FF_RDMA_RUNS_H
#define FF_RDMA_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "link.h"

/* Granules of which every other one is left out, and two segments in front of them */
#define RUNS_MAX (FF_GRANULES_MAX / 2 + 1)

struct runs {
    struct iovec iov[RUNS_MAX + 2];
    unsigned at, n; /* iov[at..n) are still to do */
};

static inline void runs_add(struct runs *r, const void *base, size_t len)
{
    if (r->n > r->at && (uint8_t *)r->iov[r->n - 1].iov_base + r->iov[r->n - 1].iov_len == base)
        r->iov[r->n - 1].iov_len += len;
    else
        r->iov[r->n++] = (struct iovec){.iov_base = (void *)base, .iov_len = len};
}

/* Add the granules of [base, base + len) whose bit in @zero is clear */
static inline void runs_add_granules(struct runs *r, const void *base, uint32_t len,
                                     uint32_t granule, const uint8_t *zero)
{
    unsigned start = r->n; /* a run never joins the frame's head */

    for (uint32_t i = 0; i < len / granule; i++) {
        const uint8_t *p = (const uint8_t *)base + (size_t)i * granule;
        if (zero[i / 8] & (1u << (i % 8)))
            continue;
        if (r->n == start)
            r->iov[r->n++] = (struct iovec){.iov_base = (void *)p, .iov_len = granule};
        else
            runs_add(r, p, granule);
    }
}

static inline void runs_advance(struct runs *r, size_t n)
{
    while (r->at < r->n && n >= r->iov[r->at].iov_len)
        n -= r->iov[r->at++].iov_len;
    if (n) {
        r->iov[r->at].iov_base = (uint8_t *)r->iov[r->at].iov_base + n;
        r->iov[r->at].iov_len -= n;
    }
}

static inline bool runs_done(const struct runs *r)
{
    return r->at == r->n;
}

#endif
