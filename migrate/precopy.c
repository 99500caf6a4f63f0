/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * precopy.c - destination: one pass over a guest that still runs, and what it wrote meanwhile
 */
/**
 * DOC: Theory of Operation
 *
 * Purpose      precopy=1: fetch memory once before the pause, so that only what the guest wrote
 *              from then on is missing after it.
 *
 * Picture      source: log on | guest runs, writes ........ | paused | log read
 *                             (1) LOGGING                   (3) DIRTY  (4) STATE
 *              here:              (2) read every page, once,   discard   frozen
 *                                     installed as by prefill
 *
 * Threads      the prefill thread makes the pass. The caller's, between the pass and
 *              ff_pager_image_frozen(), discards: nobody installs anything then, since the
 *              prefill thread has ended and the fault thread reads nothing before.
 * Invariants   1. What was installed by (4) and is not in a DIRTY is what the source's page
 *                 holds at its pause: the log began before the first read, and was read
 *                 after the last write. A page that was written during its READ may be
 *                 torn, and is in the log.
 *              2. A page without a key is not installed: the guest may touch it yet, and
 *                 then its key comes with the state.
 *              3. Whoever touches memory here before (4) may see a page of the pass, as it is
 *                 between the source's past and its pause, or already discarded. That is so
 *                 with every pre-copy, QEMU's own too: until device state is loaded nothing
 *                 here may act on what guest memory holds. What counts is that nothing of it
 *                 stays. A thread that meets a missing page waits until the pass brings it,
 *                 next, or for the frozen image, as without a pass (fault.c, early).
 * Discards     MADV_DONTNEED, and MADV_REMOVE for shared memory that bytes are copied to. Memory
 *              that lands in place is only unmapped: its pages stay in the file, pinned as they
 *              may be, and are read into again. Memory of another process the caller discards
 *              (ff_dest_on_discard()). The source has most of it done before its pause
 *              (qemu-patches/src/rdma-postcopy-log.c).
 * Failure      as any other before GO: the guest goes on at the source.
 * Limits       PARTS runs of pages in one system call. There is one pass, however much the guest
 *              writes.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "cleanup.h"
#include "log.h"
#include "pager_elsewhere.h"
#include "thread.h"
#include "undo.h"

#define PARTS 512u

int ff_pager_start_precopy(struct ff_pager *p, struct ff_error *err)
{
    /* nothing is there yet: whether it can be discarded is known before it costs anything */
    for (unsigned i = 0; i < p->n_regions; i++) {
        const struct ff_pager_region *r = &p->region[i];
        const struct iovec part = {.iov_base = r->range.host, .iov_len = r->range.psize};
        int rc = p->elsewhere ? ff_elsewhere_discard(p, &part, 1, err) : ff_uffd_discard(&r->range, &part, 1, err);
        if (rc)
            return ff_error_pass(err, rc, "precopy=1: region %s", r->name);
    }
    p->mode = FF_PREFILL_PULL; /* the source does not run yet what would push */
    p->in_precopy = true;
    p->precopy_from_ns = ff_now_ns();
    void *opaque;
    int rc = ff_thread_start(&p->prefill_thread, ff_elsewhere_pass(p, &opaque) ? ff_pass_local_main : ff_prefill_main, p,
                             "farfork-prefill", err);
    p->prefill_up = !rc;
    return rc;
}

int ff_pager_wait_precopy(struct ff_pager *p, int timeout_ms, struct ff_error *err)
{
    uint64_t end = ff_now_ns() + (uint64_t)timeout_ms * 1000000u;
    int rc = 0;

    pthread_mutex_lock(&p->lock);
    while (!p->prefill_ended && p->state == FF_PAGER_UP && !rc)
        rc = ff_cond_wait_until(&p->changed, &p->lock, end);
    bool ended = p->prefill_ended;
    pthread_mutex_unlock(&p->lock);
    atomic_store(&p->count.bytes_precopied, atomic_load(&p->count.bytes_present));
    atomic_store(&p->count.precopy_ns, ff_now_ns() - p->precopy_from_ns);
    rc = ff_pager_check(p, FF_PAGER_BROKEN, err);
    return rc ? rc : !ended;
}

int ff_pager_end_precopy(struct ff_pager *p, struct ff_error *err)
{
    if (atomic_load(&p->stop))
        return ff_error_set(err, ECANCELED, "given up during the pass");
    pthread_join(p->prefill_thread, NULL);
    p->prefill_up = p->prefill_ended = p->in_precopy = false;
    p->mode = p->opts->prefill;
    ff_prefill_engine_rewind(p);
    return 0;
}

/* --- what is kept --- */

int ff_pager_keep(struct ff_pager *p, struct ff_error *err)
{
    for (unsigned i = 0; i < p->n_regions; i++) {
        struct ff_pager_region *r = &p->region[i];
        r->kept = true;
        r->holes = false; /* what is discarded and comes again as zeros lies in no hole of the file's own */
        ff_claims_holes(&r->claims);
        atomic_fetch_add(&p->count.bytes_present, r->range.len_bytes);
        atomic_fetch_add(&p->count.bytes_zero, r->range.len_bytes);
    }
    return ff_undo_new(p, err);
}

bool ff_pager_fill_kept(struct ff_pager *p, struct ff_pager_region *r, uint64_t page)
{
    uint64_t len = 0;
    struct ff_error why;

    pthread_mutex_lock(&p->keep_lock);
    bool is_hole = ff_claim_touch(&r->claims, page);
    bool is_here = !is_hole && ff_claim_get(&r->claims, page) == FF_CLAIM_PRESENT;
    if (is_hole)
        ff_undo_filled(p, r, page);
    int rc = is_hole ? ff_uffd_install(&p->uffd, &r->range, page * r->range.psize, NULL, r->range.psize, true,
                                       &len, &why)
                     : 0;
    if (is_hole && rc)
        ff_claim_hole(&r->claims, page, 1); /* nothing is there still */
    else if (is_hole)
        ff_claim_done(&r->claims, page);
    pthread_mutex_unlock(&p->keep_lock);
    bool later = rc && ff_uffd_may_pass(rc);
    if (later)
        ff_undo_later(p);
    else if (rc)
        ff_pager_break(p, &why);
    if (is_here || (rc && !later)) /* it touches the page again */
        ff_pager_wake(p, r, page);
    return is_hole || is_here;
}

/* Does nothing lie where @part was discarded? A piece of a huge page that cannot be split just now is
 * zeroed, and stays */
static int must_be_gone(const struct ff_pager_region *r, const struct iovec *part, struct ff_error *err)
{
    uint8_t there[256];

    for (size_t at = 0, n; at < part->iov_len; at += n) {
        n = FF_MIN(part->iov_len - at, sizeof(there) * r->range.psize);
        if (mincore((uint8_t *)part->iov_base + at, n, there))
            return ff_error_set(err, errno, "mincore: %s", strerror(errno));
        for (size_t i = 0; i < n / r->range.psize; i++)
            if (there[i] & 1)
                return ff_error_set(err, EBUSY, "the page at offset 0x%llx cannot be discarded: a part of "
                                    "a huge page that is in use (shmem_enabled)",
                                    (unsigned long long)((uint8_t *)part->iov_base + at - r->range.host +
                                                         i * r->range.psize));
    }
    return 0;
}

static int discard_parts(struct ff_pager *p, const struct ff_pager_region *r, const struct iovec *part, unsigned n,
                         struct ff_error *err)
{
    int rc = p->elsewhere ? ff_elsewhere_discard(p, part, n, err) : ff_uffd_discard(&r->range, part, n, err);

    for (unsigned i = 0; i < n && !rc && r->kept && r->range.shared; i++)
        rc = must_be_gone(r, &part[i], err);
    return rc;
}

/* --- what was written --- */

static bool is_dirty(const struct ff_dirty *d, uint64_t i)
{
    return d->bits[i / 8] & (1u << (i % 8));
}

/* Take a run of pages, from page @i of @d on, back to MISSING: its length; 0: page @i stays */
static uint64_t forget_run(struct ff_claims *c, const struct ff_dirty *d, uint64_t i)
{
    uint64_t run = 0;

    while (i + run < d->n && is_dirty(d, i + run) && ff_claim_forget(c, d->first + i + run))
        run++;
    return run;
}

int ff_pager_discard(struct ff_pager *p, const struct ff_dirty *d, struct ff_error *err)
{
    struct ff_pager_region *r = &p->region[d->region];
    uint32_t psize = r->range.psize;
    struct iovec part[PARTS];
    unsigned n = 0;
    int rc = 0;

    if (r->kept)
        pthread_mutex_lock(&p->keep_lock);
    for (uint64_t i = 0; i < d->n && !rc;) {
        uint64_t run = forget_run(&r->claims, d, i);
        if (run) {
            atomic_fetch_sub(&p->count.bytes_present, run * psize);
            atomic_fetch_add(&p->count.bytes_discarded, run * psize);
            part[n++] = (struct iovec){.iov_base = r->range.host + (d->first + i) * psize,
                                       .iov_len = run * psize};
            i += run;
        } else {
            i += i % 8 || d->bits[i / 8] ? 1 : 8;
        }
        if (n == PARTS || (n && i >= d->n)) {
            rc = discard_parts(p, r, part, n, err);
            n = 0;
        }
    }
    if (r->kept)
        pthread_mutex_unlock(&p->keep_lock);
    return rc ? ff_error_pass(err, rc, "%s: region %s", r->kept ? "return" : "precopy=1",
                                 r->name)
              : 0;
}
