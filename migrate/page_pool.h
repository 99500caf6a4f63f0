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
 *              their own. Pages of a shared file are made ready in the file itself, and in a second
 *              mapping of it: whoever has a page's bytes puts them there, and maps the page
 *              (UFFDIO_CONTINUE).
 *
 * Picture      region    |------ missing ------|      page i of the pool becomes page i of the
 *                           ^  ^  ^  ^  ^             region, or is given back as soon as page i
 *              pool     |==+==+==+==+==|......|      of the region is there by another way:
 *                        0           ready    end     zeros, a fault, a copy
 *
 * Threads      one, from ff_page_pool_start() to ff_page_pool_stop(), of less CPU than others, and
 *              no less (nice 5): the kernel holds mmap_lock while it makes pages, so whoever maps
 *              memory, or starts a thread, waits for a thread that is seldom let run. At nice 19, with
 *              four busy threads on two CPUs, a source waited 1 to 3 s for WELCOME (Linux 7.2);
 *              afterwards the prefill thread reads into the pool. Whoever installs a page gives its
 *              page of the pool back.
 *              file      |==+==+==+==+==|......|      page i is in the file before it is filled: the
 *                        0           ready    end     guest's mapping reports it (minor fault). A page
 *                                                     of zeros leaves the file, and is a hole
 *
 * Invariants   the pool and what is installed are never more than the guest's memory, but for
 *              what the prefill thread has under way. When it ends, for whatever reason, the
 *              pool is empty, but for a file that a pager has taken and a guest has run in: what is
 *              missing there stays the next link's to fill.
 *              Nobody else maps a file of the pool meanwhile, since a page that is ready is not
 *              missing there: it would read as zeros. So an agent's image has none, nor has a file
 *              with a name, which others may open.
 * Limits       anonymous memory, memfds and unlinked files of tmpfs; of base pages, without a NUMA
 *              policy, which moved pages would not follow; never so much that less than a share of
 *              the host's memory, or of its control group's, is left. Nothing where the guest's
 *              memory is populated already.
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
    uint64_t map_bytes, all_bytes; /* anonymous; with files */
    _Atomic uint64_t ready_bytes;
    struct ff_pool_part {
        uint8_t *at;    /* within map, or a second mapping of the region's file; NULL: it has none */
        uint64_t start; /* bytes of those before it */
        uint64_t len_bytes;
        bool is_file, taken;
    } part[FF_WIRE_REGIONS_MAX]; /* of each region */
    unsigned n;
    pthread_t thread;
    _Atomic bool stop;
    bool running;
};

/* Begin to make pages ready: @moves: for anonymous memory; @continues: for shared files. Without a
 * word where it cannot be */
void ff_page_pool_start(struct ff_page_pool *s, const struct ff_regions *regions, bool moves,
                        bool continues);

/* Make no more ready; what is ready stays */
void ff_page_pool_stop(struct ff_page_pool *s);

/* The page of the pool that goes with the start of region @i, and how many bytes are ready from
 * there on; NULL: none */
uint8_t *ff_page_pool_of(const struct ff_page_pool *s, unsigned i, uint64_t *ready_bytes);

/* Likewise, of a shared file: what is ready is the caller's; the mapping stays the pool's */
uint8_t *ff_page_pool_take(struct ff_page_pool *s, unsigned i, uint64_t *ready_bytes);

/* No guest ran in what was taken, and none will: ff_page_pool_free() gives it back, too */
void ff_page_pool_return(struct ff_page_pool *s);

/* Give every anonymous page back; the pool may be read into until ff_page_pool_free() */
void ff_page_pool_empty(struct ff_page_pool *s);

/* Bytes that may be taken: what the host below @root ("": this one) and the control groups of this
 * process have available, less a share */
uint64_t ff_page_pool_room(const char *root);

/* Give all of it back that nobody has taken; any number of times */
void ff_page_pool_free(struct ff_page_pool *s);

#endif
