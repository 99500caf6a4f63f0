/* SPDX-License-Identifier: LGPL-2.1-or-later
 *
 * move_metrics.c - farfork move --metrics-dir: what a move adds to this host's counters
 */
#include "metrics.h"
#include "move.h"

struct metrics *move_metrics_begin(const struct move *m)
{
    struct metrics *metrics = metrics_new(m->s.o.metrics_dir, m->s.kind->program);

    metrics_begin_move(metrics, "source");
    return metrics;
}

void move_metrics_end(const struct move *m, struct metrics *metrics)
{
    struct metrics_move done = {
        .side = "source",
        .via = m->via == VIA_ATTACH ? "attach" : "transport",
        .link = *m->link ? m->link : "none",
        .outcome = m->outcome == MOVE_THERE || m->outcome == MOVE_HOME ? NULL : move_outcome_name(m->outcome),
        .total_bytes = (double)m->total_bytes,
        .present_bytes = (double)m->present_bytes,
        .again_bytes = (double)m->again_bytes,
        .faults = (double)m->faults,
        .breaks = (double)m->breaks,
        .paused_s = m->paused_ms / 1e3,
        .duration_s = move_between(m->sent_ms, m->completed_ms) / 1e3,
        .downtime_s = m->downtime_ms / 1e3,
        .fault_p99_s = m->faults ? m->fault_p99_ms / 1e3 : -1,
    };

    metrics_end_move(metrics, &done);
    metrics_free(metrics);
}
