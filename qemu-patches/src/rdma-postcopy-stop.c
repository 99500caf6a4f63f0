/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: the source stops its guest, gives its disks up and saves its devices
 *
 * The migration thread stops the guest. One main-loop callback does the rest: no other thread gets the
 * BQL from the time devices are idle until their state is saved.
 */
#include "qemu/osdep.h"
#include "block/aio.h"
#include "migration/migration.h"
#include "migration/savevm.h"
#include "qapi/error.h"
#include "qemu/main-loop.h"
#include "system/runstate.h"
#include "compat.h"
#include "rdma-postcopy.h"
#include "rdma-postcopy-state.h"

struct save {
    struct rp_first_touch *ft;
    Error **errp;
    bool ok;
    QemuSemaphore done;
};

static bool outgoing_stop(MigrationState *s, Error **errp)
{
    int ret;

    if (qatomic_read(&s->state) != MIGRATION_STATUS_ACTIVE) {
        error_setg(errp, "rdma-postcopy: canceled");
        return false;
    }
    if (rp_blocks_changed()) {
        error_setg(errp, "rdma-postcopy: memory was plugged or unplugged "
                   "since the migration began: start it again");
        return false;
    }
    if (rp_is(&rp.returns) && qatomic_read(&rp.in.recovers)) {
        error_setg(errp, RP_NO_LINK_HOME);
        return false;
    }
    ret = migration_stop_vm(s, RUN_STATE_FINISH_MIGRATE);
    if (ret < 0) {
        error_setg_errno(errp, -ret, "rdma-postcopy: cannot stop the guest");
        return false;
    }
    /* its last act: from here on it would be dropped */
    if (qemu_reset_requested_get() || qemu_shutdown_requested_get()) {
        error_setg(errp, "rdma-postcopy: a reset or a shutdown came in between: start it again");
        return false;
    }
    rp_set(&rp.frozen, true);
    if (!migration_switchover_prepare(s)) { /* may let go of the BQL */
        error_setg(errp, "rdma-postcopy: canceled");
        return false;
    }
    return true;
}

static bool save(struct rp_first_touch *ft, Error **errp)
{
    uint64_t pages;

    if (rp_is(&rp.quitting)) { /* its disks are gone, or go */
        error_setg(errp, "rdma-postcopy: this QEMU was told to quit");
        return false;
    }
    if (!rp_settle_devices(errp)) {
        return false;
    }
    if (rp_blocks_changed() || qemu_reset_requested_get() ||
        qemu_shutdown_requested_get()) {
        error_setg(errp, "rdma-postcopy: a reset, a shutdown or a change of "
                   "memory came in between: start it again");
        return false;
    }
    if (!rp_check_disks(errp)) { /* one that was started meanwhile */
        return false;
    }
    if (!migration_block_inactivate()) {
        error_setg(errp, "rdma-postcopy: cannot hand over the disks");
        return false;
    }
    if (!rp_save_devices(&rp.state, &rp.state_len, errp)) {
        return false;
    }
    rp_first_touch(ft);
    /* the last of all: saving may write memory */
    return !rp_is_logging() || rp_log_read(true, &pages, errp);
}

static void save_bh(void *opaque)
{
    struct save *save_it = opaque;

    save_it->ok = save(save_it->ft, save_it->errp);
    qemu_sem_post(&save_it->done);
}

bool rp_stop_and_save(MigrationState *s, struct rp_first_touch *ft, Error **errp)
{
    struct save it = { .ft = ft, .errp = errp };
    bool ok;

    qemu_sem_init(&it.done, 0);
    bql_lock();
    ok = outgoing_stop(s, errp);
    if (ok) {
        /* of the outermost loop: a nested one may be in the middle of a change of disks */
        aio_bh_schedule_oneshot(iohandler_get_aio_context(), save_bh, &it);
    }
    bql_unlock();
    if (!ok) {
        qemu_sem_destroy(&it.done);
        return false;
    }
    qemu_sem_wait(&it.done);
    qemu_sem_destroy(&it.done);
    return it.ok;
}
