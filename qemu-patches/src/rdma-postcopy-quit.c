/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: this process is quit while some of it goes on
 *
 * A source whose guest runs elsewhere first lets it fetch the rest, and a
 * destination whose guest is here first fetches it.
 */
#include "qemu/osdep.h"
#include "block/aio.h"
#include "block/block.h"
#include "migration/migration.h"
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "hw/core/cpu.h"
#include "system/cpus.h"
#include "system/runstate.h"
#include "compat.h"
#include "rdma-postcopy.h"
#include "rdma-postcopy-state.h"

/* Whoever is quit waits so long for memory that does not get on */
#define QUIT_PATIENCE_MS 60000

/* A guest whose memory will never be here ends within so long when it is quit */
#define END_WITHIN_MS 4000

void rp_let_others_run(void)
{
    bql_unlock();
    g_usleep(20000);
    bql_lock();
    aio_poll(qemu_get_aio_context(), false);
}

static uint64_t bytes_present(void)
{
    if (rp.dest && rp_is(&rp.here) && !rp_is(&rp.gave_away)) {
        ff_dest_stats(rp.dest, &rp.stats);
    } else if (rp.source) {
        ff_source_stats(rp.source, &rp.stats);
    }
    return rp.stats.bytes_present;
}

/* A guest may ask for its end again and again */
static bool asked_again(void)
{
    ShutdownCause cause = qemu_shutdown_requested_get();

    return cause && !shutdown_caused_by_guest(cause);
}

/* What is paused for want of memory goes on by itself, and so may what waits for a link */
static bool goes_on(MigrationStatus state, const struct rp_wait *w)
{
    return state == MIGRATION_STATUS_ACTIVE ||
           state == MIGRATION_STATUS_POSTCOPY_ACTIVE ||
           state == MIGRATION_STATUS_POSTCOPY_RECOVER ||
           state == MIGRATION_STATUS_POSTCOPY_RECOVER_SETUP ||
           (state == MIGRATION_STATUS_POSTCOPY_PAUSED &&
            (rp_is(&rp.short_of_memory) || qatomic_read(&w->reconnects)));
}

static void wait_for_rest(const MigrationStatus *state, const struct rp_wait *w)
{
    int64_t since = qemu_clock_get_ms(QEMU_CLOCK_REALTIME);
    uint64_t present = 0;

    warn_report("rdma-postcopy: the guest on the destination still needs "
                "memory from the source: waiting until it has all of it; a "
                "second SIGTERM ends this, and the guest");
    while (goes_on(*state, w) && !asked_again()) {
        int64_t now = qemu_clock_get_ms(QEMU_CLOCK_REALTIME);
        uint64_t had = present;

        rp_let_others_run();
        present = bytes_present();
        if (present != had) {
            since = now;
        } else if (now - since > QUIT_PATIENCE_MS) {
            error_report("rdma-postcopy: no memory came for %d s: ending", QUIT_PATIENCE_MS / 1000);
            return;
        }
    }
}

static void *end_late(void *opaque)
{
    g_usleep(END_WITHIN_MS * 1000);
    error_report("rdma-postcopy: a vCPU or a disk waits for missing memory: ending without it");
    _exit(EXIT_FAILURE);
}

/*
 * Not all memory will be here.  A vCPU or an iothread may wait for a page for
 * ever, and must not be woken to read zeros: what else can be saved is saved
 * first, and nobody is waited for longer than END_WITHIN_MS.
 */
static void end_without_memory(void)
{
    QemuThread thread;

    error_report("rdma-postcopy: quit while guest memory was missing");
    qemu_thread_create(&thread, "rdma-pc-end", end_late, NULL,
                       QEMU_THREAD_DETACHED);
    bdrv_flush_all();
    vm_shutdown();
    bdrv_inactivate_all();
    _exit(EXIT_FAILURE);
}

/*
 * While the link stands whoever waits for a page gets it, and all ends as
 * without a migration, when the source knows that it is needed no more.  vCPUs
 * stop meanwhile, as each of them can.
 */
static void end_destination(void)
{
    MigrationIncomingState *mis = migration_incoming_get_current();
    CPUState *cpu;

    CPU_FOREACH(cpu) {
        cpu_pause(cpu);
    }
    ff_dest_stats(rp.dest, &rp.stats);
    if (rp.stats.prefill != FF_PREFILL_OFF ||
        rp.stats.bytes_present == rp.stats.bytes_total) {
        wait_for_rest(&mis->state, &rp.in);
    }
    if (rp.dest) {
        end_without_memory();
    }
}

/*
 * The process ends.  Nobody may read or wait for guest memory while it is
 * taken apart.  A source whose guest runs elsewhere first lets it fetch the
 * rest, and a destination whose guest is here first fetches it.
 */
void rdma_postcopy_shutdown(MigrationState *s)
{
    rp_set(&rp.quitting, true);
    rp_collapse_stop();
    if (rp_is(&rp.comes_back)) { /* nothing comes home any more */
        rp_end_return();
    }
    if (rp_is(&rp.gave_away) && goes_on(s->state, &rp.out)) {
        wait_for_rest(&s->state, &rp.out);
    }
    while (rp.releasing) {
        rp_let_others_run();
    }
    if (rp.source) {
        ff_source_stop(rp.source);
    }
    if (rp.dest && !rp_is(&rp.gave_away) && (rp_is(&rp.here) || ff_dest_give_up(rp.dest))) {
        end_destination();
    }
}
