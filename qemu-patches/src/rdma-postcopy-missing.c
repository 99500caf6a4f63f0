/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: what a destination without a link has not got, and
 * a dump of the guest without that
 *
 * Whoever reads a missing page waits for it, perhaps for ever.  So a dump has
 * the pages that are here and no others, as if that memory did not exist: no
 * reader of it takes zeros for the guest's.  Pages that come during the dump
 * are not in it.
 *
 * A dump stops the guest by vm_stop(), which waits for vCPUs and disks: those
 * that wait for a page would never stop.  Here vCPUs are asked to, and waited
 * for STOP_MS.  Under KVM one that waits for a page can be interrupted, else
 * its registers cannot be read, and the dump is refused.  Under TCG it stands
 * where it is, and its registers are those that it had when it last wrote them
 * back.  Requests of disks go on.
 */
#include "qemu/osdep.h"
#include "exec/target_page.h"
#include "hw/core/cpu.h"
#include "migration/migration.h"
#include "qapi/error.h"
#include "qemu/error-report.h"
#include "qemu/main-loop.h"
#include "system/kvm.h"
#include "system/memory_mapping.h"
#include "system/runstate.h"
#include "compat.h"
#include "rdma-postcopy.h"
#include "rdma-postcopy-state.h"

#define STOP_MS 4000

/* Under the BQL */
static bool dumps, cpus_held;

char *rp_missing_text(void)
{
    g_autoptr(GString) s = g_string_new(NULL);
    uint64_t pages = 0;

    for (unsigned i = 0; i < rp_n_blocks; i++) {
        struct ff_region r = rp_region(i);
        uint64_t n = ff_dest_missing_bytes(rp.dest, i) / r.psize;

        if (n) {
            g_string_append_printf(s, "%s%s %" PRIu64 " of %" PRIu64, pages ? ", " : "", r.name, n,
                                   (uint64_t)(r.len_bytes / r.psize));
        }
        pages += n;
    }
    return pages ? g_strdup_printf("%" PRIu64 " pages are not here: %s", pages, s->str)
                 : g_strdup("every page is here");
}

RdmaPostcopyMissingList *rp_missing_list(void)
{
    RdmaPostcopyMissingList *list = NULL;

    for (unsigned i = rp_n_blocks; i-- > 0;) {
        struct ff_region r = rp_region(i);
        uint64_t n = ff_dest_missing_bytes(rp.dest, i) / r.psize;
        RdmaPostcopyMissing *m;

        if (!n) {
            continue;
        }
        m = g_new0(RdmaPostcopyMissing, 1);
        m->region = g_strdup(r.name);
        m->page_size = r.psize;
        m->pages = n;
        QAPI_LIST_PREPEND(list, m);
    }
    return list;
}

/* --- dump-guest-memory --- */

bool rdma_postcopy_misses_memory(void)
{
    MigrationIncomingState *mis = migration_incoming_get_current();

    return rp.dest && rp_is(&rp.here) &&
           qatomic_read(&mis->state) == MIGRATION_STATUS_POSTCOPY_PAUSED;
}

/* Which of them wait for a page; -1: none, all have stopped */
static int hold_cpus(void)
{
    int64_t end = qemu_clock_get_ms(QEMU_CLOCK_REALTIME) + STOP_MS;
    CPUState *cpu;
    int waits;

    cpus_held = true;
    CPU_FOREACH(cpu) {
        cpu_pause(cpu);
    }
    do {
        waits = -1;
        CPU_FOREACH(cpu) {
            if (!cpu->stopped) {
                waits = cpu->cpu_index;
                qemu_cpu_kick(cpu);
            }
        }
        if (waits < 0) {
            break;
        }
        bql_unlock();
        g_usleep(10000);
        bql_lock();
    } while (qemu_clock_get_ms(QEMU_CLOCK_REALTIME) < end);
    return waits;
}

bool rdma_postcopy_dump_begin(bool reads_memory, Error **errp)
{
    int waits;

    if (reads_memory) {
        error_setg(errp, "rdma-postcopy: memory of this guest is missing: dump without paging, as "
                   "elf or kdump");
        return false;
    }
    dumps = true;
    waits = runstate_is_running() ? hold_cpus() : -1;
    if (waits >= 0 && kvm_enabled()) {
        error_setg(errp, "rdma-postcopy: CPU %d waits for missing memory, and does not stop: its "
                   "registers cannot be read", waits);
        return false;
    }
    if (waits >= 0) {
        warn_report("rdma-postcopy: dump: CPU %d waits for missing memory: its registers may be of "
                    "some instructions before", waits);
    }
    return true;
}

/* With or without the BQL */
void rdma_postcopy_dump_end(void)
{
    CPUState *cpu;
    BQL_LOCK_GUARD();

    dumps = false;
    if (cpus_held && runstate_is_running()) { /* else somebody has stopped it meanwhile */
        CPU_FOREACH(cpu) {
            cpu_resume(cpu);
        }
    }
    cpus_held = false;
}

static int block_at(const uint8_t *host)
{
    for (unsigned i = 0; i < rp_n_blocks; i++) {
        struct ff_region r = rp_region(i);

        if (host >= (uint8_t *)r.host && host < (uint8_t *)r.host + r.len_bytes) {
            return i;
        }
    }
    return -1;
}

/* Its parts that are here, before it */
static uint64_t keep_present(GuestPhysBlockList *list, GuestPhysBlock *b, unsigned i)
{
    uint64_t offset = b->host_addr - (uint8_t *)rp_region(i).host, left = 0, len;

    for (hwaddr at = b->target_start; at < b->target_end; at += len) {
        uint64_t from = at - b->target_start;
        bool here = ff_dest_is_present(rp.dest, i, offset + from, &len);

        len = MIN(len, b->target_end - at);
        if (!here) {
            left += len;
            continue;
        }
        GuestPhysBlock *part = g_new0(GuestPhysBlock, 1);

        part->target_start = at;
        part->target_end = at + len;
        part->host_addr = b->host_addr + from;
        part->mr = b->mr;
        memory_region_ref(part->mr);
        QTAILQ_INSERT_BEFORE(b, part, next);
        list->num++;
    }
    return left;
}

void rdma_postcopy_dump_present(GuestPhysBlockList *list)
{
    GuestPhysBlock *b, *next;
    uint64_t left = 0;

    if (!dumps || !rp.dest) { /* or all came while the vCPUs stopped */
        return;
    }
    QTAILQ_FOREACH_SAFE(b, &list->head, next, next) {
        int i = block_at(b->host_addr);

        if (i < 0) {
            continue;
        }
        left += keep_present(list, b, i);
        QTAILQ_REMOVE(&list->head, b, next);
        memory_region_unref(b->mr);
        g_free(b);
        list->num--;
    }
    warn_report("rdma-postcopy: dump: %" PRIu64 " kbytes of guest memory are not here, and not in "
                "the dump", left >> 10);
}

bool rdma_postcopy_dump_reads(const GuestPhysBlockList *list, uint64_t at, uint64_t len)
{
    const GuestPhysBlock *b;

    if (!dumps) {
        return true;
    }
    QTAILQ_FOREACH(b, &list->head, next) {
        if (at >= b->target_start && at < b->target_end && len <= b->target_end - at) {
            return true;
        }
    }
    return false;
}
