/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: glue between QEMU and libfarfork
 *
 * Source                                  Destination
 *   main: migrate ->                        main: -incoming ->
 *   thread: connect, compare, publish       thread: accept, compare
 *           (guest runs)                            discard RAM, pager up
 *           precopy=1: log writes      <->          read all memory once
 *           stop, inactivate disks, save
 *           device state               ->           receive it
 *                                           main:   load it
 *                                      <-   thread: READY
 *           GO                         ->
 *                                           main:   activate disks, start
 *                                      <-   thread: RUNNING
 *           serve                      <->          faults, prefill
 *           complete                   <-           DONE; complete
 *
 * The threads block in libfarfork without the BQL.  What needs the main
 * thread runs there as a bottom half that the thread waits for.
 * States of the source: setup, active, device, postcopy-active, completed; of
 * the destination: setup, active, postcopy-active, completed.  For a link that
 * breaks after GO see rdma-postcopy-resume.c.  A cancel and
 * the point of no return decide between each other by one atomic change of
 * state (device to cancelling, or device to postcopy-active): whoever comes
 * second has lost.
 *
 * rp.gave_away is set before GO is sent and never cleared but for a GO that
 * was not sent, or of which the destination (or for one that has ended whoever
 * knows it) has said that it never came, or when the guest was taken back
 * (fallback=go): from then on this process does not run the guest.
 */
#include "qemu/osdep.h"
#include "migration/migration.h"
#include "qapi/error.h"
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "system/runstate.h"
#include "compat.h"
#include "rdma-postcopy.h"
#include "rdma-postcopy-state.h"

struct rp_state rp;

void rp_take_error(Error **errp, struct ff_error *err)
{
    error_setg(errp, "rdma-postcopy: %s", ff_error_message(err));
    ff_error_free(err);
}

void rp_collapse_stop(void)
{
    ff_collapse_stop(rp.collapse);
    rp.collapse = NULL;
}

static bool rp_is_idle(Error **errp)
{
    rp_collapse_stop(); /* any migration comes first */
    if (rp_is(&rp.gave_away) || rp.source || rp.releasing || rp.dest) {
        error_setg(errp, "an rdma-postcopy migration %s: no other can begin",
                   rp_is(&rp.gave_away) ? "took this guest away" : "is under way");
        return false;
    }
    return true;
}

bool rdma_postcopy_check_transport(MigrationAddress *addr, Error **errp)
{
    if (rp.source && qatomic_read(&rp.out.recovers) &&
        addr->transport == MIGRATION_ADDRESS_TYPE_RDMA_POSTCOPY) {
        return true; /* to be resumed: QEMU takes nothing else for this state */
    }
    if (rp_may_go_back()) {
        if (addr->transport == MIGRATION_ADDRESS_TYPE_RDMA_POSTCOPY) {
            return rp_check_host(errp);
        }
        error_setg(errp, "this guest visits: it goes back by rdma-postcopy, to where it came from");
        return false;
    }
    if (!rp_is_idle(errp)) {
        return false;
    }
    if (addr->transport != MIGRATION_ADDRESS_TYPE_RDMA_POSTCOPY) {
        rp.used = false; /* what query-migrate shows is another's */
        return true;
    }
    return rp_check_host(errp);
}

/* A reset would write ROMs over an image, or over memory not loaded yet */
bool rdma_postcopy_forbids_reset(void)
{
    if (rp.resets) {
        return false;
    }
    if (rp_is(&rp.frozen) || rp_is(&rp.gave_away) || (rp.dest && !rp_is(&rp.here))) {
        warn_report("rdma-postcopy: reset ignored: this side does not own the "
                    "guest's memory");
        return true;
    }
    return false;
}

/*
 * A destination that waits takes `cont` as a wish for later, as QEMU does.  The
 * end of a lease waits until this has activated disks.
 */
bool rdma_postcopy_forbids_cont(Error **errp)
{
    bool waits = runstate_check(RUN_STATE_INMIGRATE);
    bool waits_for_lease = rp_is(&rp.no_lease) && !waits;

    if (rp_is(&rp.gave_away)) {
        error_setg(errp, "this guest runs on the destination of its "
                   "rdma-postcopy migration; it cannot run here as well");
    } else if (rp_is(&rp.frozen)) {
        error_setg(errp, "this guest is being moved by rdma-postcopy");
    } else if (waits_for_lease) {
        rdma_postcopy_wish_run(true);
        error_setg(errp, "the source of this guest is not heard, and may take it back: it goes on "
                   "here when it is heard, or by x-rdma-postcopy-release if it is dead for good");
    } else {
        return rp.dest && rp_is(&rp.here) && !waits && !rp_activate_disks(errp);
    }
    return true;
}

bool rdma_postcopy_forbids_run(void)
{
    return rp_is(&rp.gave_away) || rp_is(&rp.frozen) || rp.refused || rp_is(&rp.no_lease) ||
           (rp.dest && !rp_is(&rp.here));
}

bool rp_hold_discards(Error **errp)
{
    if (ram_block_discard_disable(true)) {
        error_setg(errp, "rdma-postcopy: a device (virtio-mem?) needs to "
                   "discard guest memory, which does not go with post-copy");
        return false;
    }
    return true;
}

/* --- query-migrate --- */

void rdma_postcopy_fill_info(MigrationInfo *info)
{
    if (!rp.used || !info->has_status) {
        return;
    }
    if (rp.source) {
        ff_source_stats(rp.source, &rp.stats);
        rp.link = ff_source_link(rp.source);
        ff_source_link_detail(rp.source, rp.link_detail);
    } else if (rp.dest && !rp_is(&rp.went_back)) { /* else those of the return are shown */
        ff_dest_stats(rp.dest, &rp.stats);
        ff_dest_stages(rp.dest, rp.stages);
        rp.link = ff_dest_link(rp.dest);
        ff_dest_link_detail(rp.dest, rp.link_detail);
    }
    rp_fill_info(info, &rp.stats, rp.stages, rp.link, rp.link_detail);
    rp_fill_return(info->x_rdma_postcopy);
    if (rp.source && qatomic_read(&rp.out.recovers)) {
        QEMU_LOCK_GUARD(&rp.lock);
        info->x_rdma_postcopy->has_take_back = true;
        info->x_rdma_postcopy->take_back = rp.take_back;
    }
    if (rp.dest && rp_is(&rp.here) && info->status == MIGRATION_STATUS_POSTCOPY_PAUSED) {
        info->x_rdma_postcopy->has_missing = true;
        info->x_rdma_postcopy->missing = rp_missing_list();
    }
    if (rp.holds) {
        info->x_rdma_postcopy->output_held = rp_held_output();
    }
}
