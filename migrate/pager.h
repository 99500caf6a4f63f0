/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * pager.h - destination: turn page faults into one-sided reads, and fetch the rest
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      materialise the source's image in this process: on demand (fault.c) and in
 *              the background (prefill.c). It knows nothing of device state or stages.
 *
 * Picture      vCPU touches a page
 *                |  (1) event                       (4) READ reply
 *                v                                       v
 *              fault thread -- (2) claim -- (3) READ --> slot -- (5) install, wake
 *                                            FAULT queue
 *              prefill thread ------- READ chunk ------> buffer -- claim a run of pages,
 *                                            PREFILL queue         install, next run
 *
 *              Both read into memory of their own and claim at different moments: a fault
 *              claims before it reads, prefill only when the bytes are here. So a fault
 *              never waits for a chunk under way, and a page's bytes may come twice
 *              (counted) but are installed once. It is right because the image cannot
 *              change while it is published.
 *
 * Threads      fault thread: owns the FAULT queue, slots, pending. prefill thread: owns
 *              the PREFILL queue and its buffers. Neither calls into the guest's owner,
 *              touches guest memory through the guest's mapping, or allocates once it
 *              runs. lock guards state and why; counters are atomic.
 * Ownership    the pager owns userfaultfd, claims, slots, alias mappings; it borrows link
 *              and guest memory.
 * Invariants   1. Every event is answered: MISSING -> read and install; INFLIGHT -> its
 *                 owner's install wakes whoever waits (the kernel queues the waiter before
 *                 we can see the event); PRESENT -> wake now.
 *              2. When the link breaks, events of PRESENT pages are still answered; others
 *                 wait. Nothing ever installs what was not read.
 *              3. Nothing is read before the source said that its guest is paused: until
 *                 then whoever touches memory here waits, or a page of a running guest
 *                 would be installed for good.
 *              4. A failure to install while the guest runs aborts the process.
 * Failure      link broken or silent for timeout_ms: state BROKEN, the guest goes on until
 *              it touches what is missing.
 * Limits       SLOTS pages in flight for faults, window chunks for prefill; both within
 *              SLOT_MEMORY + window * chunk bytes.
 */
#ifndef FF_MIGRATE_PAGER_H
#define FF_MIGRATE_PAGER_H

#include <pthread.h>
#include <stdatomic.h>

#include "address.h"
#include "claims.h"
#include "error.h"
#include "hist.h"
#include "link.h"
#include "regions.h"
#include "uffd.h"

enum ff_pager_state { FF_PAGER_UP, FF_PAGER_BROKEN, FF_PAGER_FAILED };

struct ff_pager_region {
    struct ff_uffd_range range;
    struct ff_claims claims;
    const char *name; /* borrowed from the region table */
    uint64_t remote;  /* the source's address of the region */
    uint32_t rkey;
    uint32_t chunk_bytes; /* chunk size here: a multiple of the page size */
    uint64_t first_chunk; /* number of its first chunk, counted over all regions */
    bool watched;
};

struct ff_pager_counters {
    _Atomic uint64_t bytes_present, bytes_prefill, bytes_fault, bytes_zero, bytes_duplicated;
    _Atomic uint64_t faults, faults_waited, faults_late, first_touch;
};

struct ff_fault_engine;   /* fault.c */
struct ff_prefill_engine; /* prefill.c */

struct ff_pager {
    struct ff_link *link;
    const struct ff_address *opts;
    struct ff_uffd uffd;
    struct ff_pager_region region[FF_WIRE_REGIONS_MAX];
    unsigned n_regions;
    uint64_t bytes_total, n_chunks;

    struct ff_fault_engine *fault;
    struct ff_prefill_engine *prefill;
    pthread_t fault_thread, prefill_thread;
    bool fault_up, prefill_up;
    int wake_fd; /* eventfd: stop, or first-touch pages to fetch */
    _Atomic bool stop;
    _Atomic uint64_t hint; /* chunk of the last fault + 1; 0: none since prefill looked */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* state, or all pages present */
    enum ff_pager_state state;
    struct ff_error why;
    _Atomic bool image_frozen; /* the source's guest is paused: what is read is the image */
    _Atomic bool guest_runs;
    _Atomic int silence_ms; /* reads unanswered for so long: the link is broken */
    void (*on_break)(void *opaque, const char *why); /* under lock; NULL: nobody asks */
    void *on_break_opaque;

    struct ff_pager_counters count;
    struct ff_hist fault_ns;
};

/* --- for dest.c --- */

int ff_pager_init(struct ff_pager *p, struct ff_link *link, const struct ff_address *opts,
                  const struct ff_regions *regions, struct ff_error *err);

/* Watch every region and start the fault thread; region[].remote and rkey are set */
int ff_pager_start(struct ff_pager *p, struct ff_error *err);

/* The source's guest is paused: faults may be served from now on */
void ff_pager_image_frozen(struct ff_pager *p);

/* Fetch these pages at once, as if they had been touched */
int ff_pager_first_touch(struct ff_pager *p, const struct ff_page_ref *pages, unsigned n,
                         struct ff_error *err);
int ff_pager_start_prefill(struct ff_pager *p, struct ff_error *err);

/* 0: every page is present; 1: not after @timeout_ms; -errno: broken, with the reason */
int ff_pager_wait(struct ff_pager *p, int timeout_ms, struct ff_error *err);

/* 0, or -errno with the reason when the state is @limit or worse */
int ff_pager_check(struct ff_pager *p, enum ff_pager_state limit, struct ff_error *err);

/* Stop the threads and watch no longer. Pages that are missing then read as zeros. */
void ff_pager_finish(struct ff_pager *p);
void ff_pager_free(struct ff_pager *p);
void ff_pager_stats(struct ff_pager *p, struct ff_stats *st);

/* --- for fault.c and prefill.c --- */

void *ff_fault_main(void *pager);
void *ff_prefill_main(void *pager);
int ff_fault_engine_new(struct ff_pager *p, struct ff_error *err);
int ff_prefill_engine_new(struct ff_pager *p, struct ff_error *err);
void ff_fault_engine_free(struct ff_fault_engine *f);
void ff_prefill_engine_free(struct ff_prefill_engine *e);
int ff_fault_engine_want(struct ff_pager *p, const struct ff_page_ref *pages, unsigned n,
                         struct ff_error *err);

/* Install @n pages whose claims the caller took; @src NULL: zeros. Never fails to return
 * while the guest runs: it aborts. */
int ff_pager_install(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n,
                     const void *src);

/* The link is of no use any more */
void ff_pager_break(struct ff_pager *p, const struct ff_error *why);

#endif
