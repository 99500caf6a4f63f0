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
 *              Into a buffer (anonymous memory; push): a fault claims before it reads,
 *              prefill only when the bytes are here. So a fault never waits for a chunk
 *              under way, and a page's bytes may come twice (counted) but are installed
 *              once. It is right because the image cannot change while it is published.
 *
 *              In place (an alias mapping of shared memory: zero-copy; also pages of a file that
 *              are ready): both claim before
 *              they read, since a late READ would overwrite what the guest has written by
 *              then. A fault on a page under way waits for its READ, which is why prefill
 *              reads in place in short segments (prefill.c), not in chunks.
 *
 * Threads      fault thread: owns the FAULT queue, slots, pending. prefill thread: owns
 *              the PREFILL queue and its buffers. Neither calls into the guest's owner,
 *              touches guest memory through the guest's mapping, or allocates once it
 *              runs (but for undo.h). lock guards state and why; counters are atomic.
 * Ownership    the pager owns userfaultfd, claims, slots, alias mappings; it borrows link
 *              and guest memory.
 * Invariants   1. Every event is answered: MISSING -> read and install; INFLIGHT -> its
 *                 owner's install wakes whoever waits (the kernel queues the waiter before
 *                 we can see the event); PRESENT -> wake now, and where memory lands by
 *                 CONTINUE, map it again: the kernel may have reclaimed the page table's entry;
 *                 HOLE -> install zeros, without the source. A first-touch page is
 *                 a fault for which nobody waits: only a MISSING one is read.
 *              2. When the link breaks, events of PRESENT pages and of holes are still
 *                 answered; others wait. Nothing ever installs what was not read. No claim
 *                 goes back: over the next link its owner reads the page again
 *                 (pager_resume.c).
 *              3. Nothing is read before the source said that its guest is paused: until
 *                 then whoever touches memory here waits, or a page of a running guest
 *                 would be installed for good. The one exception is the pass (precopy.c),
 *                 all of whose pages that were written by then are missing again.
 *              4. While there is no memory for a page, it stays claimed, its bytes stay where they
 *                 were read to, and its owner tries again; other events are answered. Any
 *                 other failure to install while the guest runs aborts the process. An agent
 *                 has no guest: there it breaks the image, and children are told to end.
 *                 Nobody can bring a page that the source cannot read (poisoned memory): it is
 *                 POISONED here, too, and who touches it is told by SIGBUS. A kernel that cannot do
 *                 that (Linux 6.6 can) forbids the page once the guest runs: SIGSEGV, and KVM stops
 *                 the guest. Before GO such a move fails, and an agent's image is lost.
 *              5. A hole is watched until the end, as any page: a pager that dies shows no
 *                 zeros, there either.
 * Holes        a page of zeros in a shared file of ours that was empty before is not installed
 *              (claims.h): it takes no memory until somebody touches it. Private memory has
 *              the kernel's page of zeros for that. When nothing watches any more, the kernel
 *              fills a hole with zeros itself. An agent's image has the same holes.
 *              A page that was made ready for what turns out to be zeros leaves the file first.
 *              Exceptions: memory that the destination had populated or locked gets its pages back.
 *              Over verbs pinned memory is populated, segment by segment. A pushed chunk is read as
 *              a whole at the source. Private hugetlb memory, and landing=continue with
 *              precopy=1, get every page. A hugetlb file whose pages are not reserved is filled
 *              at once: else a touch after the move could find no page.
 * Zeros        a read carries a bitmap with one bit a granule, which is a page. The responder sets
 *              the bits of pages that are all zeros and leaves their bytes out. An adapter does
 *              not look at what it sends: over verbs the destination looks itself when a chunk is
 *              in a buffer, and in place nobody does. A zero page counts as bytes_zero; bytes by
 *              prefill, by faults, zero and poisoned add up to the total and what a pass
 *              discarded.
 * Failure      link broken or silent for timeout_ms: state BROKEN, the guest goes on until
 *              it touches what is missing. No memory for SHORT_NS: the owner of the guest is
 *              told, and told again when there is some; before GO the move fails.
 * Limits       SLOTS pages in flight for faults, window chunks for prefill; both within
 *              SLOT_MEMORY + window * chunk bytes.
 * Landing      by region:       auto over tcp   auto over verbs      on request
 *              anonymous        copy            copy                 move
 *              shared, 4 KiB    copy            continue, in place   either
 *              hugetlb, shared  copy            continue, in place   either
 *              hugetlb, private copy            copy                 -
 *
 *              Over tcp continue was measured to be slower than a copy, except for pages that
 *              lie in the file before and are mapped at the alias (page_pool.h): those land in
 *              place, and those behind them by copy. Anonymous memory is moved
 *              in out of the page pool (page_pool.h) where the link does not pin the pool, else
 *              copied. move: a chunk lands in transparent huge pages, and each 2 MiB of it that
 *              nobody has touched goes in whole by UFFDIO_MOVE. What is pinned cannot be moved.
 *              With precopy=1 shared hugetlb lands in place: by copy, what is discarded would
 *              go back to the pool, where others may take it. Private hugetlb is refused then.
 * End          the thread that installs the last page wakes the caller, who stops both threads,
 *              unregisters the ranges and only then says DONE. With visit=on there is none: the caller
 *              waits on.
 */
#ifndef FF_MIGRATE_PAGER_H
#define FF_MIGRATE_PAGER_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "address.h"
#include "claims.h"
#include "cleanup.h"
#include "error.h"
#include "farfork.h"
#include "hist.h"
#include "link.h"
#include "segments.h"
#include "regions.h"
#include "page_pool.h"
#include "parts.h"
#include "uffd.h"
#include "wants.h"

/* Threads that install pages */
enum ff_installer { FF_BY_FAULT, FF_BY_PREFILL, FF_BY_GROUP, FF_INSTALLERS };

enum ff_pager_state { FF_PAGER_UP, FF_PAGER_BROKEN, FF_PAGER_FAILED };

struct ff_pager_region {
    struct ff_uffd_range range;
    struct ff_claims claims;
    const char *name; /* borrowed from the region table */
    uint32_t peer_number; /* the source's number of the region */
    uint64_t remote;  /* the source's address of the region */
    uint32_t *rkey;   /* of each segment; 0: it was never touched there, it reads as zeros */
    uint64_t segment_bytes;
    struct ff_parts parts; /* of segments that the source cannot read as a whole */
    bool holes;       /* zeros need not be installed: what nobody touches takes no memory */
    bool in_place;    /* the link may put bytes into range.alias itself */
    bool kept;        /* ff_pager_keep() */
    bool can_move;    /* whole huge pages may be moved in from a staging buffer */
    uint8_t *pool;   /* pages that were made ready for it (pool.h); NULL: none */
    uint64_t pool_bytes;
    struct ff_segment *land; /* of each segment: the alias, registered; where that pins */
    uint32_t chunk_bytes; /* chunk size here: a multiple of the page size */
    uint64_t first_chunk; /* number of its first chunk, counted over all regions */
    bool watched;
    bool lent; /* all of it was here from the start: neither watched nor fetched */
};

struct ff_pager_counters {
    _Atomic uint64_t bytes_present, bytes_prefill, bytes_fault, bytes_zero, bytes_duplicated;
    _Atomic uint64_t bytes_poisoned, bytes_fed, bytes_same, bytes_group;
    _Atomic uint64_t faults, faults_waited, faults_late, first_touch;
    _Atomic uint64_t bytes_copied, bytes_continued, bytes_moved;
    _Atomic uint64_t fault_cpu_ns, prefill_cpu_ns;
    _Atomic uint64_t bytes_precopied, bytes_discarded, precopy_ns;
    _Atomic uint64_t breaks, bytes_again, paused_ns;
    _Atomic uint64_t broken_ns; /* since when there is no link; 0: there is one */
};

struct ff_children;       /* children.c */
struct ff_elsewhere;      /* pager_elsewhere.c */
struct ff_fault_engine;   /* fault.c */
struct ff_feed;           /* feed.c */
struct ff_hearing;        /* group_recv.c */
struct ff_prefill_engine; /* prefill.c */
struct ff_undo;           /* undo.c */
struct ff_verify;         /* verify.c */
struct ff_working_set;    /* working_set.c */

struct ff_pager {
    struct ff_link *link;
    const struct ff_address *opts;
    struct ff_uffd uffd;
    struct ff_pager_region region[FF_WIRE_REGIONS_MAX];
    unsigned n_regions;
    uint64_t bytes_total, n_chunks;
    bool pins;             /* the link does, or did: every one must */
    bool can_move;         /* staging buffers are there that pages can be moved out of */
    struct ff_page_pool *pool; /* borrowed */
    struct ff_segments land; /* alias mappings, registered to land in */
    bool can_push;         /* so the source says */
    _Atomic unsigned mode; /* enum ff_prefill_mode; until it is chosen as the address says */

    struct ff_children *children; /* whose memory is a view of this one; NULL: there can be none */
    struct ff_elsewhere *elsewhere; /* the memory is another process's; NULL: it is our own */
    struct ff_wants *wants; /* the fault thread's */
    struct ff_fault_engine *fault;
    struct ff_prefill_engine *prefill;
    struct ff_working_set *_Atomic first; /* what prefill brings before all else; NULL: nothing */
    struct ff_working_set *touched; /* by an agent's children, or a guest that visits; NULL: it is not kept */
    struct ff_verify *verify; /* goes with the link; NULL: what the link brings is taken as it is */
    struct ff_hearing *_Atomic hearing; /* of a group that its source sends to; NULL: none */
    struct ff_feed *_Atomic next_feed; /* prefill is to take it up */
    _Atomic uint64_t feed_until_ns;    /* prefill waits for one until then, unless */
    _Atomic bool rewind; /* pages are missing again in chunks that prefill has asked for */
    _Atomic bool feed_off, feed_over;  /* none comes; prefill has asked for all, or asks for nothing */
    _Atomic unsigned n_older; /* feeds of an earlier image, before others feed this one */
    uint64_t asks_addr;       /* verify=on: where this link's source is asked */
    uint32_t asks_rkey;
    pthread_t fault_thread, prefill_thread;
    bool fault_up, prefill_up;
    bool in_precopy;      /* the prefill thread makes the pass */
    pthread_mutex_t keep_lock; /* what is kept: filling a hole, or discards, or a copy */
    struct ff_undo *undo; /* what is kept is put back if the guest does not return; NULL: nothing is kept */
    uint64_t precopy_from_ns;
    int wake_fd; /* eventfd: stop, or first-touch pages to fetch */
    _Atomic bool stop, was_complete;
    _Atomic unsigned waiting; /* faults whose page prefill is about to install */
    _Atomic unsigned installs; /* ff_pager_installed() was called so often */
    _Atomic uint64_t hint; /* chunk of the last fault + 1; 0: none since prefill looked */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* state, all pages present, a thread has ended or is parked */
    enum ff_pager_state state;
    bool prefill_ended;
    bool may_be_fed;     /* an agent's, also while this link is away (dest_feed.c) */
    bool prefill_is_fed; /* its thread uses another link, and goes on when this one is away */
    bool fault_parked; /* the fault thread does not touch the link until it has seen that: */
    bool attached;     /* there is a new one */
    struct ff_error why;
    struct ff_error no_memory; /* why a page could not be installed last */
    _Atomic uint64_t short_ns[FF_INSTALLERS]; /* since when that thread has no memory; 0: it has */
    _Atomic bool image_frozen; /* the source's guest is paused: what is read is the image */
    _Atomic bool guest_runs;
    _Atomic int silence_ms; /* reads unanswered for so long: the link is broken */
    void (*on_break)(void *opaque, const char *why); /* under lock; NULL: nobody asks */
    void *on_break_opaque;
    void (*on_misfed)(void *opaque, const char *why); /* prefill's thread; NULL: nobody asks */
    void *on_misfed_opaque;

    struct ff_pager_counters count;
    struct ff_hist fault_ns, stage_ns[FF_STAGES];
};

/* --- for dest.c --- */

int ff_pager_init(struct ff_pager *p, struct ff_link *link, const struct ff_address *opts,
                  const struct ff_regions *regions, uint64_t segment_bytes, struct ff_error *err);

/* Every page of region @i is here already; before ff_pager_start() */
void ff_pager_lent(struct ff_pager *p, unsigned i);

/* All of memory is here, as it was when a guest went from here; before ff_pager_start() */
int ff_pager_keep(struct ff_pager *p, struct ff_error *err);

/* Somebody waits for @page of a region that is kept, before the image is frozen: who serves it to the guest
 * elsewhere, to which it is zeros. False: it is missing, as its guest has written it there */
bool ff_pager_fill_kept(struct ff_pager *p, struct ff_pager_region *r, uint64_t page);

/* The source can write grants of at most @push_bytes: 0, or -ENOTSUP if it must push and cannot,
 * which after GO would cost the guest */
int ff_pager_check_push(struct ff_pager *p, uint32_t push_bytes, struct ff_error *err);

/* What PUBLISH says of verify=on, over this link: 0, or -EPROTO */
int ff_pager_set_asks(struct ff_pager *p, uint64_t addr, uint32_t rkey, struct ff_error *err);

/* Watch every region and start the fault thread; region[].remote and rkey are set */
int ff_pager_start(struct ff_pager *p, struct ff_error *err);

/* Where the link pins what it writes to: register the alias mappings. Memory is empty by now
 * and watched: what is discarded later would not be the memory that is written to. */
int ff_pager_register_landing(struct ff_pager *p, const struct ff_regions *regions,
                              struct ff_error *err);

/* The source's guest is paused: faults may be served from now on */
void ff_pager_image_frozen(struct ff_pager *p);

/* Fetch these pages at once, as if they had been touched */
int ff_pager_first_touch(struct ff_pager *p, const struct ff_page_ref *pages, unsigned n,
                         struct ff_error *err);

/* @source_load_permille: of the source's CPUs, for prefill=auto */
int ff_pager_start_prefill(struct ff_pager *p, uint32_t source_load_permille,
                           struct ff_error *err);

/* --- pass.c: for dest.c, with precopy=1, before the image is frozen --- */

/* Fetch in the background whatever has a key by now, once */
int ff_pager_start_precopy(struct ff_pager *p, struct ff_error *err);

/* 0: it is over, to be ended; 1: not after @timeout_ms; -errno: broken, with the reason */
int ff_pager_wait_precopy(struct ff_pager *p, int timeout_ms, struct ff_error *err);

/* Not together with ff_pager_finish(). -ECANCELED: that was called */
int ff_pager_end_precopy(struct ff_pager *p, struct ff_error *err);

/* These pages were written after they were read, perhaps: make them missing again. @d->region is
 * ours */
int ff_pager_discard(struct ff_pager *p, const struct ff_dirty *d, struct ff_error *err);

/* 0: every page is present, and the guest is not to return; 1: not after @timeout_ms; -errno: broken, with
 * the reason */
int ff_pager_wait(struct ff_pager *p, int timeout_ms, struct ff_error *err);

/* Has a page waited for memory for so long that its owner should know? @why: what the kernel
 * said */
bool ff_pager_is_short(struct ff_pager *p, struct ff_error *why);

/* 0, or -errno with the reason when the state is @limit or worse */
int ff_pager_check(struct ff_pager *p, enum ff_pager_state limit, struct ff_error *err);

/* --- pager_resume.c: after GO, for the thread that waits for a source that comes back --- */

/* The link is broken, or is from here on; it is shut down. 0: no thread of the pager touches it any
 * more, and it can be freed; 1: not after @timeout_ms; -errno: an install failed, for good */
int ff_pager_park(struct ff_pager *p, int timeout_ms, struct ff_error *err);

/* Parked, with the keys of @link: register what is read into, and go on with what is missing. Not
 * 0: it is parked as before */
int ff_pager_attach(struct ff_pager *p, struct ff_link *link, struct ff_error *err);

/* Stop the threads and watch no longer. Pages that are missing then read as zeros. */
void ff_pager_finish(struct ff_pager *p);

/* No GO came, and none will: nobody waits any more, as after ff_pager_finish(), which follows. What is kept
 * is watched until then, for who writes to it may not know yet (undo.h) */
void ff_pager_give_up(struct ff_pager *p);

/* Finished, and every page is present: let go of what grows with memory. ff_dest_free() may be
 * called with a lock of the caller's that its guest needs: there it would cost seconds. */
void ff_pager_drop_landing(struct ff_pager *p);
void ff_pager_free(struct ff_pager *p);
void ff_pager_stats(struct ff_pager *p, struct ff_stats *st);
void ff_pager_stages(struct ff_pager *p, struct ff_stage_time out[FF_STAGES]);

/* --- wants.c: for the fault thread --- */

/* The region that has @addr here; -1: none has */
int ff_wants_find_region(const struct ff_pager *p, uint64_t addr);

/* Claim a page and queue its read; what stands in the way, if something does. With room */
enum ff_claim ff_wants_claim(struct ff_pager *p, struct ff_want w);

/* An agent's link is away: @w, which is claimed and in no slot or queue any more, may be brought by
 * others */
void ff_wants_leave(struct ff_pager *p, struct ff_want w);

/* Is there room for one more batch of events? */
bool ff_wants_room(const struct ff_pager *p);

/* Fetch @page of region @i, for which somebody waits since @since_ns. MISSING: it is claimed and
 * will be read; else what its claim was. Fault thread, with room */
enum ff_claim ff_wants_page(struct ff_pager *p, uint32_t i, uint64_t page, uint64_t since_ns);

/* Somebody touches @page. True: it was a hole, and is PRESENT now. False: it was none, or will be
 * PRESENT when there is memory, or is fetched when the image is frozen. Fault thread, and after
 * ff_pager_finish() the agent's */
bool ff_wants_fill_hole(struct ff_pager *p, struct ff_pager_region *r, uint64_t page);

/* @page was a hole, and is the fault thread's, which calls: to be filled when there is memory; not
 * @hole: to be fetched when the image is frozen. With room */
void ff_wants_later(struct ff_pager *p, uint32_t region, uint64_t page, bool hole);

/* --- fault.c, prefill.c --- */

void *ff_fault_main(void *pager);
void *ff_prefill_main(void *pager);

/* Likewise, of a pass whose memory is on this host: as ff_dest_on_pass() has it */
typedef int ff_pass_fn(void *opaque, uint32_t region, uint64_t offset, uint32_t len, uint8_t *into, uint8_t *zero,
                       struct ff_error *err);
void *ff_pass_local_main(void *pager);
int ff_fault_engine_new(struct ff_pager *p, struct ff_error *err);
int ff_fault_engine_attach(struct ff_pager *p, struct ff_error *err); /* to p->link; likewise: */
int ff_prefill_engine_attach(struct ff_pager *p, struct ff_error *err);
int ff_prefill_engine_new(struct ff_pager *p, struct ff_error *err);
void ff_fault_engine_free(struct ff_fault_engine *f);
void ff_prefill_engine_free(struct ff_prefill_engine *e);
void ff_prefill_engine_rewind(struct ff_pager *p); /* nothing was asked for */
void ff_prefill_engine_restart(struct ff_pager *p); /* of what was, all that counts was claimed */
int ff_fault_engine_want(struct ff_pager *p, const struct ff_page_ref *pages, unsigned n,
                         struct ff_error *err);

/* --- pager_install.c --- */

/* Install @n pages whose claims the caller took; @src NULL: zeros; the alias itself: the bytes
 * are in place. Not @wake: whoever waits is to be woken by ff_pager_wake().
 * Return: 0; -EAGAIN: there is no memory now: the first @done pages are installed, the claims of
 *         the others stay the caller's, who says ff_pager_short() and tries again; else the image
 *         is of no use, or, while the guest runs, the process aborts */
int ff_pager_install(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n,
                     const void *src, bool wake, uint64_t *done);

/* As ff_pager_install(): the source cannot read these pages, and nobody will here */
int ff_pager_poison(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n,
                    uint64_t *done);

/* The thread of @who could not install for want of memory: 0, or -errno: it has waited for too long
 * before GO, and the image is of no use. Until it says that it has got what it wanted */
int ff_pager_short(struct ff_pager *p, enum ff_installer who);
static inline void ff_pager_enough(struct ff_pager *p, enum ff_installer who)
{
    atomic_store(&p->short_ns[who], 0);
}
void ff_pager_wake(struct ff_pager *p, struct ff_pager_region *r, uint64_t page);

/* Somebody touched @page, which is here. A pass may have brought it and be about to discard it,
 * until the image is frozen: to map it again would keep what the source has written since */
void ff_pager_wake_late(struct ff_pager *p, struct ff_pager_region *r, uint64_t page);

/* @n pages of zeros whose claims the caller took are there, without an install; where @r.holes */
void ff_pager_leave_holes(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n);

/* A hole is to be claimed, and does not count until it is installed; @there: it was not, and counts again */
void ff_pager_count_hole(struct ff_pager *p, struct ff_pager_region *r, bool there);

/* @page was a hole, and is the caller's: as ff_pager_install() */
int ff_pager_install_hole(struct ff_pager *p, struct ff_pager_region *r, uint64_t page);

/* As ff_pager_install(), out of a staging buffer, which loses its pages */
int ff_pager_move_in(struct ff_pager *p, struct ff_pager_region *r, uint64_t page, uint64_t n,
                     void *src, uint64_t *done);

/* The source's key for a page; 0: zeros */
static inline uint32_t ff_pager_rkey(const struct ff_pager_region *r, uint64_t page)
{
    const struct ff_part *part = ff_parts_find(&r->parts, page);

    if (part && part->rkey)
        return part->rkey == FF_WIRE_PART_ZEROS ? 0 : part->rkey;
    return r->rkey[page * r->range.psize / r->segment_bytes];
}

/* The source has said, over this link, that it cannot read @page: never to be asked for */
static inline bool ff_pager_is_unreadable(const struct ff_pager_region *r, uint64_t page)
{
    const struct ff_part *part = ff_parts_find(&r->parts, page);

    return part && !part->rkey;
}

/* The end of the pages from @page on that have one key, or are unreadable or zeros alike; at most @end */
static inline uint64_t ff_pager_part_end(const struct ff_pager_region *r, uint64_t page,
                                         uint64_t end)
{
    unsigned i = ff_parts_from(&r->parts, page);

    if (i == r->parts.n)
        return end;
    const struct ff_part *part = &r->parts.part[i];
    return FF_MIN(end, part->first <= page ? part->end : part->first);
}

/* Where the link may put @page directly, and the key of that memory; NULL: it may not */
static inline uint8_t *ff_pager_in_place(const struct ff_pager_region *r, uint64_t page,
                                         uint32_t *lkey)
{
    uint64_t offset = page * r->range.psize;

    *lkey = 0;
    if (offset < r->range.ready_bytes)
        return r->range.alias + offset;
    if (!r->in_place || (r->land && !r->land[offset / r->segment_bytes].mr.len_bytes))
        return NULL;
    *lkey = r->land ? r->land[offset / r->segment_bytes].mr.lkey : 0;
    return r->range.alias + offset;
}

/* Is [@page, @page + @n) ready in the region's file? */
static inline bool ff_pager_is_ready(const struct ff_pager_region *r, uint64_t page, uint64_t n)
{
    return (page + n) * r->range.psize <= r->range.ready_bytes;
}

/* Are there pages of the pool for [@first, @first + @n)? */
static inline bool ff_pager_in_pool(const struct ff_pager_region *r, uint64_t first, uint64_t n)
{
    return r->pool && (first + n) * r->range.psize <= r->pool_bytes;
}

/* They are not needed any more: the pages are there by another way. Any number of times */
static inline void ff_pager_give_back(const struct ff_pager_region *r, uint64_t first, uint64_t n)
{
    uint64_t ready = r->pool ? r->pool_bytes / r->range.psize : 0;

    n = first < ready ? FF_MIN(n, ready - first) : 0;
    if (n)
        madvise(r->pool + first * r->range.psize, n * r->range.psize, MADV_DONTNEED);
}

/* Bytes that the source could not read */
static inline uint64_t ff_pager_poisoned(const struct ff_pager *p)
{
    return atomic_load(&p->count.bytes_poisoned);
}

/* To be polled for events; -1: there are none to read, or not yet */
static inline int ff_pager_events_fd(const struct ff_pager *p)
{
    return p->elsewhere && !atomic_load(&p->image_frozen) ? -1 : p->uffd.fd;
}

/* Every page of the frozen image has come, or is a hole; once true, it stays so: a hole that is filled
 * later is missing meanwhile. From then on the owner of memory elsewhere may end its watch, or itself.
 * What a pass has brought may be discarded */
static inline bool ff_pager_was_complete(struct ff_pager *p)
{
    if (atomic_load(&p->image_frozen) && atomic_load(&p->count.bytes_present) == p->bytes_total)
        atomic_store(&p->was_complete, true);
    return atomic_load(&p->was_complete);
}

/* Installing a hole said @rc, and it needs nothing: its owner has ended its watch, and gets zeros */
static inline bool ff_pager_hole_is_gone(const struct ff_pager *p, int rc)
{
    return p->elsewhere && (rc == -ENOENT || rc == -ESRCH) && atomic_load(&p->was_complete);
}

/* Tell the fault thread that another has installed pages, or left holes, that somebody may wait for: it keeps
 * the time, and wakes children */
void ff_pager_installed(struct ff_pager *p);

/* The link is of no use any more */
void ff_pager_break(struct ff_pager *p, const struct ff_error *why);

#endif
