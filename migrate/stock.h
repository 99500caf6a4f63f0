/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * stock.h - pages made ready while a destination waits for its source
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      to give a new page to a process costs more than to fill it: the kernel finds one,
 *              clears it, accounts for it. While nobody has come there is time for that, and with
 *              it known before a guest is at risk that its memory can be had. Prefill then reads
 *              into these pages and moves them under the guest (UFFDIO_MOVE).
 *
 * Picture      region    |------ missing ------|      page i of the stock becomes page i of the
 *                           ^  ^  ^  ^  ^             region; what is not needed (zeros, pages
 *              stock     |==+==+==+==+==|......|      that a fault has brought) is given back
 *                        0           ready    end
 *
 * Threads      one, from ff_stock_start() to ff_stock_stop(), at the lowest priority; afterwards
 *              the prefill thread alone.
 * Limits       anonymous memory of base pages; never so much that less than a share of the host's
 *              memory, or of its control group's, is left. Nothing where the guest's memory is
 *              populated already.
 * Failure      what is not ready is not used: it is never needed.
 */
#ifndef FF_MIGRATE_STOCK_H
#define FF_MIGRATE_STOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "regions.h"

struct ff_stock {
    uint8_t *map;
    uint64_t map_bytes;
    _Atomic uint64_t ready_bytes;
    uint64_t start[FF_WIRE_REGIONS_MAX]; /* of each region's part within map */
    uint64_t len_bytes[FF_WIRE_REGIONS_MAX]; /* 0: it has none */
    unsigned n;
    pthread_t thread;
    _Atomic bool stop;
    bool running;
};

/* Begin to make pages ready; without a word where it cannot be */
void ff_stock_start(struct ff_stock *s, const struct ff_regions *regions);

/* Make no more ready; what is ready stays */
void ff_stock_stop(struct ff_stock *s);

/* The page of the stock that goes with the start of region @i, and how many bytes are ready from
 * there on; NULL: none */
uint8_t *ff_stock_of(const struct ff_stock *s, unsigned i, uint64_t *ready_bytes);

/* Give all of it back; any number of times */
void ff_stock_free(struct ff_stock *s);

#endif
