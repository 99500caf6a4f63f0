/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * page_pool.h - pages made ready while a destination waits for its source
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      to give a new page to a process costs more than to fill it: the kernel finds one,
 *              clears it, charges it, maps it, 0.6 ms for 2 MiB. While no source has come there
 *              is time for that, and the destination learns before a guest is at risk that it can
 *              have the memory. Prefill then reads into these pages and moves them under the guest
 *              (UFFDIO_MOVE: page tables change, no byte does). Faults copy, out of slots of
 *              their own.
 *
 * Picture      region    |------ missing ------|      page i of the pool becomes page i of the
 *                           ^  ^  ^  ^  ^             region, or is given back as soon as page i
 *              pool     |==+==+==+==+==|......|      of the region is there by another way:
 *                        0           ready    end     zeros, a fault, a copy
 *
 * Threads      one, from ff_page_pool_start() to ff_page_pool_stop(), at the lowest priority;
 *              afterwards the prefill thread reads into the pool. Whoever installs a page gives its
 *              page of the pool back.
 * Invariants   the pool and what is installed are never more than the guest's memory, but for
 *              what the prefill thread has under way. When it ends, for whatever reason, the
 *              pool is empty.
 * Limits       anonymous memory of base pages without a NUMA policy, which moved pages would not
 *              follow; never so much that less than a share of the host's memory, or of its control
 *              group's, is left. Nothing where the guest's memory is populated already.
 *              Kernels before 6.18 flush the other CPUs' TLBs once a page, not once a run.
 * Failure      what is not ready is not used: it is never needed.
 */
#ifndef FF_MIGRATE_PAGE_POOL_H
#define FF_MIGRATE_PAGE_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "regions.h"

struct ff_page_pool {
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
void ff_page_pool_start(struct ff_page_pool *s, const struct ff_regions *regions);

/* Make no more ready; what is ready stays */
void ff_page_pool_stop(struct ff_page_pool *s);

/* The page of the pool that goes with the start of region @i, and how many bytes are ready from
 * there on; NULL: none */
uint8_t *ff_page_pool_of(const struct ff_page_pool *s, unsigned i, uint64_t *ready_bytes);

/* Give every page back; the pool may be read into until ff_page_pool_free() */
void ff_page_pool_empty(struct ff_page_pool *s);

/* Bytes that may be taken: what the host below @root ("": this one) and the control groups of this
 * process have available, less a share */
uint64_t ff_page_pool_room(const char *root);

/* Give all of it back; any number of times */
void ff_page_pool_free(struct ff_page_pool *s);

#endif
