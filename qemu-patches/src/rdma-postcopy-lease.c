/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration with fallback=go: the guest runs here under a lease,
 * until its source has said that it never takes it back
 *
 *   the library's thread                         main thread
 *   nothing heard for two thirds of a lease ->   stop the guest, inactivate its disks
 *     (not while `cont` activates disks: after it, or they would stay active)
 *   heard again                             ->   activate them, run the guest: if it ran,
 *                                                or by `stop` or `cont` in between
 *   the lease has ended, and the main thread has not answered: the kernel kills
 *   this process
 *
 * Both are bottom halves: whoever else starts a guest or writes a disk holds
 * the BQL as well, so rp.no_lease needs no other lock.  A vCPU that waits for a
 * missing page stops under KVM, which lets go of it at a signal; under TCG, or
 * where the main thread or a disk waits for one, the kernel has the last word.
 *
 * What the guest writes here must be droppable: each disk that it can write is
 * an overlay in which nothing is yet when it comes.  A guest that visits takes
 * none of them home: they are committed before it goes, and before that its
 * source has given up.
 */
#include "qemu/osdep.h"
#include "block/block_int.h"
#include "migration/migration.h"
#include "qapi/error.h"
#include "qapi/qapi-commands-migration.h"
#include "qemu/error-report.h"
#include "system/block-backend.h"
#include "system/cpus.h"
#include "system/runstate.h"
#include <farfork-return.h>
#include "rdma-postcopy.h"
#include "rdma-postcopy-state.h"

/* Under the BQL */
static bool runs_later;               /* when there is a lease again */
static bool changing;                 /* the main thread starts or stops the guest */
static void (*start_later)(void *);   /* GO came, and the lease had ended by then */
static void *start_opaque;
static GPtrArray *overlays;           /* nodes that can be dropped, by name; NULL: not looked at */

/* --- what a guest may write --- */

/* Whether @bs has content of its own; < 0: that cannot be found out */
static int has_content(BlockDriverState *bs)
{
    int64_t len = bdrv_getlength(bs);
    int64_t n = 0;
    int ret = len < 0 ? len : 0;

    for (int64_t at = 0; at < len && !ret; at += n) {
        ret = bdrv_is_allocated(bs, at, len - at, &n);
        if (!ret && !n) {
            break;
        }
    }
    return ret;
}

/* A disk whose writes could not be dropped, and why; NULL: there is none.  To be freed */
static char *find_kept_disk(void)
{
    GRAPH_RDLOCK_GUARD_MAINLOOP();

    g_clear_pointer(&overlays, g_ptr_array_unref);
    overlays = g_ptr_array_new_with_free_func(g_free);
    for (BlockBackend *blk = blk_all_next(NULL); blk; blk = blk_all_next(blk)) {
        BlockDriverState *bs = blk_bs(blk);
        const char *why;

        if (!bs || !blk_get_attached_dev(blk) || bdrv_is_read_only(bs)) {
            continue;
        }
        bs = bdrv_skip_filters(bs);
        why = !bdrv_cow_bs(bs) ? "is no overlay"
              : has_content(bs) ? "is an overlay that is not empty"
                                : NULL;
        if (why) {
            return g_strdup_printf("its disk %s %s (the source's disk as backing file is wanted, "
                                   "in a new overlay)",
                                   bdrv_get_device_or_node_name(blk_bs(blk)), why);
        }
        g_ptr_array_add(overlays, g_strdup(bdrv_get_node_name(bs)));
    }
    return NULL;
}

/* Home has not what the guest wrote to one of them */
bool rp_check_overlays(Error **errp)
{
    GRAPH_RDLOCK_GUARD_MAINLOOP();

    if (!overlays || !ff_dest_has_fallback(rp.dest)) {
        return true;
    }
    for (BlockBackend *blk = blk_all_next(NULL); blk; blk = blk_all_next(blk)) {
        BlockDriverState *bs = blk_get_attached_dev(blk) ? blk_bs(blk) : NULL;

        while (bs && !g_ptr_array_find_with_equal_func(overlays, bdrv_get_node_name(bs),
                                                       g_str_equal, NULL)) {
            bs = bdrv_filter_or_cow_bs(bs); /* a snapshot may lie over it by now */
        }
        if (bs) {
            error_setg(errp, "rdma-postcopy: what the guest has written to its disk %s is in an "
                       "overlay, %s, that is not at home: commit it first (block-commit), once "
                       "x-rdma-postcopy-return with fallback=off was given there",
                       bdrv_get_device_or_node_name(blk_bs(blk)), bs->filename);
            return false;
        }
    }
    return true;
}

/* --- the lease --- */

static void stop_guest(void)
{
    bool was_to_go = runstate_check(RUN_STATE_FINISH_MIGRATE); /* and may not have gone */

    rp_set(&rp.no_lease, true);
    runs_later = runstate_is_live(was_to_go ? migrate_get_current()->vm_old_state : runstate_get());
    vm_stop(RUN_STATE_PAUSED);
    if (!migration_block_inactivate()) {
        error_report("rdma-postcopy: the lease ends, and a disk cannot be given up: ending");
        _exit(EXIT_FAILURE); /* nobody may think that this side is done with it */
    }
    rp_write_late_shutdown(); /* the kernel still ends this process when the lease has ended */
}

static void let_guest_run(void)
{
    void (*start)(void *) = g_steal_pointer(&start_later);

    rp_set(&rp.no_lease, false);
    if (start) {
        start(start_opaque);
    } else if (!rp_is(&rp.quitting) && !rp_is(&rp.frozen) && !rp_is(&rp.gave_away) &&
               migration_block_activate(NULL) && runs_later) {
        vm_start(); /* where disks are not activated `cont` tries again */
    }
}

/* Under the BQL: by whoever stops or starts the guest; stop_guest() sets it anew */
void rdma_postcopy_wish_run(bool runs)
{
    runs_later = runs;
}

void rp_change_guest(void (*change)(void))
{
    bool nested = changing;

    changing = true;
    change();
    changing = nested;
}

/* QEMU's own call after this finds them active, and runs no bottom halves */
bool rp_activate_disks(Error **errp)
{
    bool nested = changing, ok;

    changing = true;
    ok = migration_block_activate(errp);
    changing = nested;
    return ok;
}

struct lease_call {
    bool may_run;
    QemuSemaphore done;
};

static void on_lease_bh(void *opaque)
{
    struct lease_call *c = opaque;

    if (changing) { /* activating a disk runs bottom halves: what it has begun is to end before */
        migration_bh_schedule(on_lease_bh, c);
        return;
    }
    rp_change_guest(c->may_run ? let_guest_run : stop_guest);
    qemu_sem_post(&c->done);
}

static void on_lease(void *opaque, bool may_run)
{
    struct lease_call c = { .may_run = may_run };

    if (qemu_get_thread_id() == rp.incoming_tid) {
        /* GO came when the lease had ended: nothing runs yet, no disk is active, and the main
         * thread may wait for a page, which it gets when this one has another link */
        rp_set(&rp.no_lease, !may_run);
        return;
    }
    qemu_sem_init(&c.done, 0);
    migration_bh_schedule(on_lease_bh, &c);
    qemu_sem_wait(&c.done);
    qemu_sem_destroy(&c.done);
}

void rp_offer_lease(void)
{
    g_autofree char *why = rp.in.reconnect_ms ? find_kept_disk()
                                           : g_strdup("it does not resume, with reconnect=0");

    rp_set(&rp.no_lease, false);
    start_later = NULL;
    if (ff_dest_hold_output(rp.dest) && !why) {
        why = rp_hold_output();
    }
    if (why) {
        ff_dest_refuse_lease(rp.dest, why);
    } else {
        ff_dest_on_lease(rp.dest, on_lease, NULL);
    }
}

bool rp_start_needs_lease(void (*start)(void *), void *opaque)
{
    if (rp_is(&rp.no_lease)) {
        start_later = start;
        start_opaque = opaque;
    }
    return rp_is(&rp.no_lease);
}

void rp_end_revoked(const char *why)
{
    error_report("rdma-postcopy: %s; ending without its disks", why);
    _exit(EXIT_FAILURE); /* what exit() would flush is the source's, or dropped */
}

/* Whoever says so answers for it; @heard: nobody does, it was heard or not */
void qmp_x_rdma_postcopy_release(bool has_heard, bool heard, Error **errp)
{
    QEMU_LOCK_GUARD(&rp.lock);

    if (!rp.dest || !rp_is(&rp.here)) {
        error_setg(errp, "no guest of an rdma-postcopy migration is here whose source could take "
                   "it back");
    } else if (ff_dest_is_released(rp.dest)) {
        return; /* by the source itself */
    } else if (heard || !qatomic_read(&rp.in.recovers)) {
        error_setg(errp, heard ? "its source has not said yet that it lets go of the guest" :
                   "the source of this rdma-postcopy migration is heard: it has to let go "
                   "of the guest by itself");
    } else {
        ff_dest_release(rp.dest);
        ff_dest_interrupt(rp.dest); /* with all memory here, that was all it waited for */
        qemu_sem_post(&rp.in.again);
    }
}
