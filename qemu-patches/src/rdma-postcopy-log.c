/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration, precopy=1: what is written while the destination
 * reads
 *
 * QEMU's own log, as pre-copy uses it.  It is emptied once, before the
 * destination reads anything, and never after that: what was written from
 * then on is in it when it is read for the last time, in the pause.
 *
 * Most discarding is done before the pause: when the pass is over the source
 * reads the log, has that discarded, and again what was written meanwhile,
 * until that is little (LOG_LITTLE_PAGES) or LOG_ROUNDS have passed.  The pause
 * then has the log's last reading, its bits (32 KiB a GiB at most) and what
 * was written since.
 *
 * A guest that visits is logged once its devices are loaded: where these map
 * memory anew, KVM begins with all of it marked.  What was touched by then
 * counts as written: nothing else was.
 */
#include "qemu/osdep.h"
#include "migration/migration-stats.h"
#include "qapi/error.h"
#include <farfork-return.h>
#include "hw/qdev-core.h"
#include "system/cpus.h"
#include "system/tcg.h"
#include "compat.h"
#include "rdma-postcopy-ram.h"

static bool logging;
static unsigned long *log_bits[RP_REGIONS_MAX]; /* of each block's pages */
static unsigned long *log_loaded[RP_REGIONS_MAX]; /* likewise, of a visit: by devices, perhaps */

static unsigned long log_words(const RAMBlock *b)
{
    return BITS_TO_LONGS(qemu_ram_get_used_length((RAMBlock *)b) >>
                         TARGET_PAGE_BITS);
}

bool rp_is_logging(void)
{
    return logging;
}

static bool log_blocks_still(Error **errp)
{
    if (rp_blocks_changed()) {
        error_setg(errp, "rdma-postcopy: memory was plugged or unplugged "
                   "since the migration began: start it again");
        return false;
    }
    return true;
}

/*
 * Devices write to memory of their own without a mark: what a guest programs
 * into flash, what a display accelerates. It is little: all counts as written.
 */
static bool is_devices_own(const RAMBlock *b)
{
    return b->mr->rom_device || (b->mr->owner && object_dynamic_cast(b->mr->owner, TYPE_DEVICE));
}

bool rp_log_start(Error **errp)
{
    assert(!logging);
    if (!log_blocks_still(errp) ||
        !memory_global_dirty_log_start(GLOBAL_DIRTY_MIGRATION, errp)) {
        return false;
    }
    logging = true;
    /*
     * TCG marks a page, then writes to it, then writes without asking: a
     * mark that is removed in between would be missing.
     */
    if (tcg_enabled()) {
        pause_all_vcpus();
    }
    memory_global_dirty_log_sync(false);
    stat64_add(&mig_stats.dirty_sync_count, 1);
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        RAMBlock *b = rp_block[i];

        /* it may grow while nobody looks; then the migration is cancelled */
        log_bits[i] = g_new0(unsigned long,
                             DIV_ROUND_UP(b->max_length >> TARGET_PAGE_BITS,
                                          BITS_PER_LONG));
        compat_clear_dirty(b, DIRTY_MEMORY_MIGRATION);
    }
    if (tcg_enabled()) {
        resume_all_vcpus();
    }
    return true;
}

bool rp_log_start_loaded(const struct ff_dest *dest, Error **errp)
{
    if (!rp_log_start(errp)) {
        return false;
    }
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        uint64_t end = qemu_ram_get_used_length(rp_block[i]), len;

        log_loaded[i] = g_new0(unsigned long, log_words(rp_block[i]));
        for (uint64_t at = 0; at < end; at += len) {
            if (ff_dest_is_touched(dest, i, at, &len)) {
                bitmap_set(log_loaded[i], at >> TARGET_PAGE_BITS,
                           len >> TARGET_PAGE_BITS);
            }
        }
    }
    return true;
}

void rp_log_stop(void)
{
    if (!logging) {
        return;
    }
    logging = false;
    memory_global_dirty_log_stop(GLOBAL_DIRTY_MIGRATION);
    for (unsigned i = 0; i < RP_REGIONS_MAX; i++) {
        g_clear_pointer(&log_bits[i], g_free);
        g_clear_pointer(&log_loaded[i], g_free);
    }
}

bool rp_log_read(bool last, uint64_t *pages, Error **errp)
{
    DirtyMemoryBlocks *blocks;

    if (!log_blocks_still(errp)) {
        return false;
    }
    *pages = 0;
    memory_global_dirty_log_sync(last);
    stat64_add(&mig_stats.dirty_sync_count, 1);
    RCU_READ_LOCK_GUARD();
    blocks = qatomic_rcu_read(&ram_list.dirty_memory[DIRTY_MEMORY_MIGRATION]);
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        unsigned long page = rp_block[i]->offset >> TARGET_PAGE_BITS;
        unsigned long n = log_words(rp_block[i]);

        if (last && is_devices_own(rp_block[i])) {
            memset(log_bits[i], 0xff, n * sizeof(*log_bits[i]));
            *pages += n * BITS_PER_LONG;
            continue;
        }
        /* a block begins with a word, so do the parts of the log */
        assert(page % BITS_PER_LONG == 0);
        for (unsigned long k = 0; k < n; k++, page += BITS_PER_LONG) {
            unsigned long *part = blocks->blocks[page /
                                                 DIRTY_MEMORY_BLOCK_SIZE];

            log_bits[i][k] = qatomic_read(
                &part[BIT_WORD(page % DIRTY_MEMORY_BLOCK_SIZE)]);
            log_bits[i][k] |= log_loaded[i] ? log_loaded[i][k] : 0;
            *pages += ctpopl(log_bits[i][k]);
        }
    }
    return true;
}

int rp_log_send(struct ff_source *source, struct ff_error *err)
{
    QEMU_BUILD_BUG_ON(sizeof(unsigned long) != sizeof(uint64_t));
    int rc = 0;

    for (unsigned i = 0; i < rp_n_blocks && !rc; i++) {
        rc = ff_source_dirty(source, i, (const uint64_t *)log_bits[i],
                             TARGET_PAGE_SIZE, err);
    }
    return rc;
}
