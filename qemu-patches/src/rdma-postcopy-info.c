/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * rdma-postcopy migration: what query-migrate and `info migrate` show
 */
#include "qemu/osdep.h"
#include "exec/target_page.h"
#include "monitor/monitor.h"
#include "rdma-postcopy.h"
#include "rdma-postcopy-ram.h"

/*
 * QEMU's own: what was transferred is what came before the pause, the state,
 * and the rest. populate_ram_info() has taken the first two from mig_stats.
 * expected-downtime is a limit of other transports: this pause does not grow
 * with what is left.
 */
static void fill_ram(MigrationInfo *info, MigrationStats *ram,
                     const struct ff_stats *st, uint64_t content)
{
    int64_t ms = info->has_total_time ?
                 info->total_time - info->setup_time : 0;

    info->has_expected_downtime = false;
    ram->transferred = content + st->bytes_duplicated + ram->downtime_bytes;
    ram->postcopy_bytes = ram->transferred - ram->downtime_bytes -
                          ram->precopy_bytes;
    ram->remaining = st->bytes_total - st->bytes_present;
    ram->duplicate = st->bytes_zero / qemu_target_page_size();
    ram->normal = content / qemu_target_page_size();
    ram->normal_bytes = content;
    ram->postcopy_requests = st->faults;
    if (ms > 0) {
        ram->mbps = ram->transferred * 8.0 / 1000.0 / ms;
        ram->pages_per_second = ram->normal * 1000 / ms;
    }
}

void rp_fill_info(MigrationInfo *info, const struct ff_stats *st,
                  const struct ff_stage_time *stages, const char *link,
                  const char *link_detail)
{
    static const char *const prefills[] = {
        [FF_PREFILL_OFF] = "off", [FF_PREFILL_PULL] = "pull",
        [FF_PREFILL_PUSH] = "push",
        [FF_PREFILL_AUTO] = "off", /* not chosen yet: nobody fetches */
    };
    uint64_t content = st->bytes_prefill + st->bytes_fault;
    RdmaPostcopyInfo *x = g_new0(RdmaPostcopyInfo, 1);

    info->x_rdma_postcopy = x;
    x->link = g_strdup(link ? link : "none");
    x->total_bytes = st->bytes_total;
    x->present_bytes = st->bytes_present;
    x->prefill_bytes = st->bytes_prefill;
    x->fault_bytes = st->bytes_fault;
    x->zero_bytes = st->bytes_zero;
    x->duplicated_bytes = st->bytes_duplicated;
    x->first_touch_pages = st->first_touch;
    x->faults = st->faults;
    x->faults_waited = st->faults_waited;
    x->faults_late = st->faults_late;
    x->fault_p50 = st->fault_p50_ns;
    x->fault_p90 = st->fault_p90_ns;
    x->fault_p99 = st->fault_p99_ns;
    x->fault_p999 = st->fault_p999_ns;
    x->fault_max = st->fault_max_ns;
    x->load_time = st->load_ns;
    x->start_time = st->start_ns;
    x->complete_time = st->complete_ns;
    x->link_detail = g_strdup(link ? link_detail : "none");
    x->copied_bytes = st->bytes_copied;
    x->continued_bytes = st->bytes_continued;
    x->moved_bytes = st->bytes_moved;
    x->prefill = g_strdup(st->prefill < ARRAY_SIZE(prefills) ?
                          prefills[st->prefill] : "unknown");
    x->source_cpu_time = st->source_cpu_ns;
    x->destination_cpu_time = st->dest_cpu_ns;
    x->precopied_bytes = st->bytes_precopied;
    x->discarded_bytes = st->bytes_discarded;
    x->pass_time = st->precopy_ns;
    x->breaks = st->breaks;
    x->again_bytes = st->bytes_again;
    x->paused_time = st->paused_ns;
    x->poisoned_bytes = st->bytes_poisoned;
    for (unsigned i = FF_STAGES; i-- > 0;) {
        RdmaPostcopyStage *stage;

        if (!stages[i].name) {
            continue;
        }
        stage = g_new0(RdmaPostcopyStage, 1);
        stage->name = g_strdup(stages[i].name);
        stage->p50 = stages[i].p50_ns;
        stage->p99 = stages[i].p99_ns;
        QAPI_LIST_PREPEND(x->fault_stages, stage);
    }
    if (!info->ram) {
        return;
    }
    fill_ram(info, info->ram, st, content);
}

void rdma_postcopy_print_info(Monitor *mon, const MigrationInfo *info)
{
    const RdmaPostcopyInfo *x = info->x_rdma_postcopy;

    if (!x) {
        return;
    }
    monitor_printf(mon, "rdma-postcopy link: %s\n", x->link);
    monitor_printf(mon, "link detail: %s\n", x->link_detail);
    monitor_printf(mon, "memory present: %" PRIu64 " of %" PRIu64 " kbytes\n",
                   x->present_bytes >> 10, x->total_bytes >> 10);
    monitor_printf(mon, "fetched by prefill, by fault, twice: %" PRIu64 ", %"
                   PRIu64 ", %" PRIu64 " kbytes\n", x->prefill_bytes >> 10,
                   x->fault_bytes >> 10, x->duplicated_bytes >> 10);
    monitor_printf(mon, "faults: %" PRIu64 " (p50 %" PRIu64 ", p99 %" PRIu64
                   ", max %" PRIu64 " us)\n", x->faults, x->fault_p50 / 1000,
                   x->fault_p99 / 1000, x->fault_max / 1000);
    monitor_printf(mon, "landing by copy, in place, by move: %" PRIu64 ", %"
                   PRIu64 ", %" PRIu64 " kbytes\n", x->copied_bytes >> 10,
                   x->continued_bytes >> 10, x->moved_bytes >> 10);
    monitor_printf(mon, "prefill: %s; CPU time at source, destination: %"
                   PRIu64 ", %" PRIu64 " ms\n", x->prefill,
                   x->source_cpu_time / 1000000,
                   x->destination_cpu_time / 1000000);
    for (const RdmaPostcopyMissingList *m = x->missing; m; m = m->next) {
        monitor_printf(mon, "missing of %s: %" PRIu64 " pages of %" PRIu64 " bytes\n",
                       m->value->region, m->value->pages, m->value->page_size);
    }
    if (x->pass_time) {
        monitor_printf(mon, "fetched before the pause, written meanwhile: %"
                       PRIu64 ", %" PRIu64 " kbytes; in %" PRIu64 " ms\n",
                       x->precopied_bytes >> 10, x->discarded_bytes >> 10,
                       x->pass_time / 1000000);
    }
    if (x->poisoned_bytes) {
        monitor_printf(mon, "the source could not read (poisoned memory): %"
                       PRIu64 " kbytes\n", x->poisoned_bytes >> 10);
    }
    if (x->output_held) {
        monitor_printf(mon, "output held: %" PRIu64 " packets, %" PRIu64
                       " kbytes; dropped: %" PRIu64 " packets\n",
                       x->output_held->packets, x->output_held->bytes >> 10,
                       x->output_held->dropped);
    }
    if (x->paused_time) {
        monitor_printf(mon, "links that broke and were followed by another: %"
                       PRIu64 "; asked for again: %" PRIu64 " kbytes; without "
                       "a link: %" PRIu64 " ms\n", x->breaks,
                       x->again_bytes >> 10, x->paused_time / 1000000);
    }
}
